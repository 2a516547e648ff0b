//! What a check leaves as it is: what is known of targets that it did not look at, and the time of
//! the next one.

use super::*;

fn of(target: TargetId) -> StartFsck {
    StartFsck { targets: vec![target], ..all() }
}

async fn problems(world: &World) -> Vec<String> {
    world.turn(|core| Ok(core.noted_problems().to_vec())).await
}

fn exported(world: &World) -> String {
    let mut metrics = Metrics::new();
    world.checks.register_metrics(&mut metrics);
    metrics.encode()
}

/// When the next check begins by itself, once none runs.
async fn next(world: &World) -> Timestamp {
    loop {
        let report = world.checks.show().await.unwrap();
        match report.next {
            Some(next) if !report.state.is_running() => return next,
            _ => tokio::task::yield_now().await,
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_a_target_stays_known_until_that_target_was_looked_at_again() {
    let world = World::new().await;
    let inode = world.file("results", 6).await;
    let lacks = world.shelf.take(inode, 3);
    let other = *TARGETS.iter().find(|target| **target != lacks).unwrap();
    assert_eq!(world.check().await.missing.chunks, 1);
    assert_eq!(world.check_as(of(other)).await.missing.chunks, 0);
    let told = problems(&world).await;
    assert!(told[0].contains("/results") && told[0].contains("fsck start"), "{told:?}");
    let figures = exported(&world);
    assert!(figures.contains("millrace_metadata_fsck_missing_chunks 1\n"), "{figures}");
    // It is away while everything else is checked.
    world
        .turn(move |core| {
            core.forget_compared(lacks);
            Ok(())
        })
        .await;
    assert_eq!(world.check().await.missing.chunks, 0);
    assert_eq!(problems(&world).await, told);
    let figures = exported(&world);
    assert!(figures.contains("millrace_metadata_fsck_missing_chunks 1\n"), "{figures}");
    assert!(figures.contains("millrace_metadata_fsck_unchecked_targets 1\n"), "{figures}");
    world.turn(move |core| core.compare_log(LogWitness { target: lacks, seen: None })).await;
    world.shelf.put(lacks, inode, 1, 3);
    world.check_as(of(lacks)).await;
    assert!(problems(&world).await.is_empty());
    let figures = exported(&world);
    assert!(figures.contains("millrace_metadata_fsck_missing_chunks 0\n"), "{figures}");
    assert!(figures.contains("millrace_metadata_fsck_unchecked_targets 0\n"), "{figures}");
}

#[tokio::test]
async fn only_a_check_of_everything_that_came_to_its_end_puts_the_next_one_off() {
    let world = World::new().await;
    world.checks.start(of(TARGETS[0])).await.unwrap();
    assert!(!world.checks.shared.run_one().await, "it was one of a target");
    world.checks.start(all()).await.unwrap();
    world.checks.cancel().await.unwrap();
    assert!(!world.checks.shared.run_one().await, "it was cancelled");
    world.checks.start(all()).await.unwrap();
    assert!(world.checks.shared.run_one().await);

    let checks = world.checks.clone();
    let running = tokio::spawn(async move { checks.run().await });
    let before = next(&world).await;
    world.checks.start(of(TARGETS[0])).await.unwrap();
    assert_eq!(next(&world).await, before);
    running.abort();
}
