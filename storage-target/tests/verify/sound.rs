//! No false alarms: whatever has happened to a target that is sound, nothing is wrong with it.

use super::{
    snapshot::Snapshot,
    target::{BOOT, Target, check},
};

/// Histories of each run of the tests; `MILLRACE_TEST_ROUNDS` says another number.
fn seeds() -> std::ops::Range<u64> {
    let rounds = std::env::var("MILLRACE_TEST_ROUNDS").ok().and_then(|text| text.parse().ok());
    1..1 + rounds.unwrap_or(15)
}

fn assert_sound(snapshot: &Snapshot, target: &Target, when: &str) {
    let checked = check(snapshot, target.boot).unwrap();
    let damages: Vec<_> = checked.damages().collect();
    assert!(damages.is_empty(), "{when}: {damages:#?}");
    let totals = (checked.summary.clean_pages, checked.summary.written_pages);
    assert_eq!(checked.summary.checked_pages, totals.0 + totals.1, "{when}");
}

#[tokio::test]
async fn what_any_end_leaves_is_sound_before_and_after_the_next_start() {
    for seed in seeds() {
        let mut target = Target::new(seed).await;
        let random = millrace_runtime::Random::seeded(seed);
        for life in 0..4 {
            let context = |what: &str| format!("seed {seed}, life {life}, {what}");
            for _ in 0..random.within(1..120) {
                target.change().await;
            }
            assert_sound(&target.snapshot().await, &target, &context("running"));
            let end = random.within(0..3);
            match end {
                0 => target.close().await,
                1 => target.kill(),
                _ => target.cut(),
            }
            let left = target.snapshot().await;
            assert_sound(&left, &target, &context("ended"));
            if end == 0 {
                let checked = check(&left, target.boot).unwrap();
                assert!(checked.remarks.is_empty(), "seed {seed}: {:?}", checked.remarks);
                assert!(checked.summary.ended_in_order);
            }
            target.open().await.unwrap();
            assert_sound(&target.snapshot().await, &target, &context("started again"));
            target.assert_serves_nothing_wrong().await;
        }
    }
}

#[tokio::test]
async fn a_blank_target_is_sound() {
    let mut target = Target::new(1).await;
    assert_sound(&target.snapshot().await, &target, "made");
    target.close().await;
    let checked = check(&target.snapshot().await, BOOT).unwrap();
    assert_eq!((checked.summary.sections, checked.remarks.len()), (0, 0));
}
