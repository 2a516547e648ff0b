//! Hydrate and release ask each target for exactly the chunks that matter.

use std::{fs::File, sync::atomic::Ordering, time::Duration};

use millrace_protocol::{
    admin::{JobKind, JobState, StartJob},
    cluster::LinkMode,
    selection::{Selection, StartSelected},
};
use millrace_types::{ByteLen, ErrorKind, FileName, InodeId, MIB, TargetId};
use tokio::time::Instant;

use super::{
    moved::list,
    server::{HOST, ROOT, World},
};
use crate::{
    command::{Command, Loss, RegisterHost, Remove, SetPin},
    namespace::ObjectState,
};

fn released(world: &World) -> Vec<InodeId> {
    world.server.items_of("release").iter().map(|item| item.content.inode).collect()
}

#[tokio::test]
async fn hydrate_covers_every_chunk_of_every_file() {
    let world = World::new(LinkMode::ImportExport).await;
    for at in 0..300 {
        world.put(&format!("images/{at:03}"), b"12345");
    }
    world.put("empty", b"");
    world.put("large", b"");
    File::options().write(true).open(world.object("large")).unwrap().set_len(900 * MIB).unwrap();
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.files_done, job.files_total), (JobState::Succeeded, 302, 302));
    assert_eq!(job.bytes_total, 300 * 5 + 900 * MIB);
    assert_eq!(job.bytes_done, job.bytes_total);
    let items = world.server.items_of("hydrate");
    let large = world.find("/data/large").await.unwrap();
    let mut runs: Vec<_> = items
        .iter()
        .filter(|item| item.content.inode == large.id)
        .map(|item| (item.first.0, item.count))
        .collect();
    runs.sort_unstable();
    runs.dedup();
    let mut at = 0;
    for (first, count) in runs {
        assert_eq!(first, at);
        at += count;
    }
    assert_eq!(ByteLen(u64::from(at) * 8 * MIB), ByteLen(904 * MIB), "113 chunks of 8 MiB");
}

#[tokio::test]
async fn what_is_found_after_targets_came_or_went_is_fetched_by_those_that_serve_it_now() {
    let third = (TargetId([3; 8]), ByteLen(1 << 40));
    let (name, addresses, targets) = ("storage1".to_owned(), Vec::new(), vec![third]);
    let register = RegisterHost { host: HOST, name, addresses, targets };
    let target = TargetId([1; 8]);
    let begin = Loss::Begin { target, below: InodeId(1 << 20) };
    for change in [
        vec![Command::RegisterHost(register)],
        vec![Command::Loss(begin), Command::Loss(Loss::End(target))],
    ] {
        let world = World::new(LinkMode::ReadOnly).await;
        // They fill one request, with which the change comes: before the directory is listed.
        for at in 0..64 {
            world.put(&format!("{at:02}"), b"12345");
        }
        world.put("sub/large", b"");
        let large = File::options().write(true).open(world.object("sub/large")).unwrap();
        large.set_len(40 * MIB).unwrap();
        *world.server.troubles.before_named.lock().unwrap() = change;
        let job = world.job(JobKind::Hydrate, "/data").await;
        assert!(world.server.troubles.before_named.lock().unwrap().is_empty());
        assert_eq!((job.state, job.errors), (JobState::Succeeded, 0), "{:?}", job.failures);
        assert_eq!((job.files_done, job.bytes_done), (65, 64 * 5 + 40 * MIB));
    }
}

#[tokio::test]
async fn release_leaves_dirty_files_alone() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("clean", b"12345");
    world.put("dirty", b"12345");
    let clean = world.find("/data/clean").await.unwrap().id;
    world.write("/data/dirty", b"new").await;
    let job = world.job(JobKind::Release, "/data").await;
    assert_eq!((job.state, job.files_done, job.bytes_done), (JobState::Succeeded, 2, 5));
    assert_eq!(released(&world), [clean]);
}

#[tokio::test]
async fn what_may_not_go_any_more_when_targets_are_asked_is_not_released() {
    for change in ["conflict", "pin", "rename"] {
        let world = World::new(LinkMode::ImportExport).await;
        world.put("clean", b"12345");
        world.put("kept", b"1234567");
        let clean = world.find("/data/clean").await.unwrap().id;
        let inode = world.find("/data/kept").await.unwrap().id;
        // Both were found and wait in their batches.
        let meanwhile = match change {
            "conflict" => world.conflicting("/data/kept").await,
            "pin" => vec![Command::SetPin(SetPin { caller: ROOT, inode, pinned: true })],
            _ => vec![world.renaming("/data/kept", "/data/moved").await],
        };
        *world.server.troubles.before_named.lock().unwrap() = meanwhile;
        let job = world.job(JobKind::Release, "/data").await;
        assert_eq!((job.state, job.files_done, job.files_total), (JobState::Succeeded, 2, 2));
        assert_eq!((job.bytes_done, job.bytes_total), (5, 5), "{change}");
        assert_eq!(released(&world), [clean], "{change}");
    }
}

#[tokio::test]
async fn a_release_that_is_asked_for_again_looks_at_its_files_again() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("file", b"12345");
    let conflict = world.conflicting("/data/file").await;
    *world.server.troubles.instead_of_release.lock().unwrap() = conflict;
    let job = world.job(JobKind::Release, "/data").await;
    assert_eq!((job.state, job.files_done, job.bytes_total), (JobState::Succeeded, 1, 0));
    assert!(released(&world).is_empty());
    assert_eq!(world.state("/data/file").await, ObjectState::Conflict);
}

#[tokio::test(start_paused = true)]
async fn a_batch_goes_out_while_a_filter_passes_over_the_rest_of_a_tree() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("a", b"12345");
    for at in 0..200 {
        world.put(&format!("b{at:03}"), b"12345");
    }
    let wanted = world.find("/data/a").await.unwrap().id;
    let data = world.find("/data").await.unwrap().id;
    world.hydration.importer.whole(data).await.unwrap();
    let start = StartJob { caller: ROOT, kind: JobKind::Release, path: b"/data".to_vec() };
    let selection = Selection { include: vec!["a".to_owned()], ..Selection::default() };
    let request = StartSelected { start, selection, dry_run: false };
    let id = world.hydration.start_selected(b"", &request).await.unwrap().id;
    // The walk looks at each file, which takes twenty seconds.
    *world.server.troubles.query_time.lock().unwrap() = Duration::from_millis(100);
    let begun = Instant::now();
    let state = world.run_beside(async {
        while released(&world).is_empty() {
            world.hydration.list_jobs().await.unwrap();
        }
        world.hydration.show_job(id).await.unwrap().state
    });
    assert_eq!(state.await, JobState::Running);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    assert_eq!(released(&world), [wanted]);
}

#[tokio::test(start_paused = true)]
async fn a_job_goes_on_looking_while_its_targets_have_all_that_may_be_under_way() {
    let world = World::new(LinkMode::ReadOnly).await;
    for at in 0..90 {
        world.put(&format!("sub/{at:02}"), b"12345");
    }
    list(&world, "/data").await;
    list(&world, "/data/sub").await;
    world.server.silent.store(true, Ordering::Relaxed);
    let start = StartJob { caller: ROOT, kind: JobKind::Hydrate, path: b"/data".to_vec() };
    let selection = Selection { include: vec!["sub/*".to_owned()], ..Selection::default() };
    let request = StartSelected { start, selection, dry_run: false };
    let id = world.hydration.start_selected(b"", &request).await.unwrap().id;
    // Ten files a second: after a few, two requests for each target wait for answers that never
    // come, and of the others no batch is full.
    *world.server.troubles.query_time.lock().unwrap() = Duration::from_millis(100);
    let found = world.run_beside(async {
        loop {
            let found = world.hydration.show_job(id).await.unwrap().files_total;
            if found == 90 {
                return found;
            }
        }
    });
    assert_eq!(found.await, 90);
}

#[tokio::test]
async fn a_directory_that_goes_before_a_job_comes_to_it_is_no_failure() {
    let world = World::new(LinkMode::ImportExport).await;
    for at in 0..300 {
        world.put(&format!("a/{at:03}"), b"12345");
    }
    let parent = list(&world, "/data").await;
    world.make_directory("/data/b").await;
    list(&world, "/data/a").await;
    list(&world, "/data/b").await;
    let name = FileName::parse(b"b").unwrap();
    let remove = Remove { caller: ROOT, parent, name, directory: true, readers: Vec::new() };
    // Both were found by then: files of the first one are about to be fetched.
    *world.server.troubles.before_named.lock().unwrap() = vec![Command::Remove(remove)];
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Succeeded, 0), "{:?}", job.failures);
    assert_eq!((job.files_done, job.files_total), (300, 300));
    assert!(world.find("/data/b").await.is_err());
}

#[tokio::test]
async fn a_file_that_is_removed_while_it_is_fetched_has_not_failed() {
    for kind in [ErrorKind::ObjectChanged, ErrorKind::StaleContent, ErrorKind::Lost] {
        let world = World::new(LinkMode::ImportExport).await;
        world.put("d/kept", b"12345");
        world.put("d/removed", b"1234567");
        let removed = world.find("/data/d/removed").await.unwrap().id;
        let parent = world.find("/data/d").await.unwrap().id;
        let name = FileName::parse(b"removed").unwrap();
        let remove = Remove { caller: ROOT, parent, name, directory: false, readers: Vec::new() };
        *world.server.troubles.before_named.lock().unwrap() = vec![Command::Remove(remove)];
        world.server.changed.lock().unwrap().insert(removed, kind);
        let job = world.job(JobKind::Hydrate, "/data").await;
        assert_eq!((job.state, job.errors), (JobState::Succeeded, 0), "{kind} {:?}", job.failures);
        assert!(world.find("/data/d/removed").await.is_err());
    }
}

#[tokio::test]
async fn hydrate_follows_an_object_that_changed() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"before");
    let before = world.find("/data/file").await.unwrap();
    // A name is answered before its directory is listed: that listing must not see what follows.
    let data = world.find("/data").await.unwrap().id;
    world.hydration.importer.whole(data).await.unwrap();
    world.put("file", b"another version");
    world.server.changed.lock().unwrap().insert(before.id, ErrorKind::ObjectChanged);
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.files_done, job.errors), (JobState::Succeeded, 1, 0));
    assert_eq!((job.bytes_done, job.bytes_total), (15, 15), "as it is now");
    let after = world.find("/data/file").await.unwrap();
    assert_eq!((after.id, after.size), (before.id, 15));
    let last = world.server.items_of("hydrate").pop().unwrap();
    assert_eq!(last.content.origin, after.content().unwrap().origin);
    std::fs::remove_file(world.object("file")).unwrap();
    world.server.changed.lock().unwrap().insert(before.id, ErrorKind::ObjectChanged);
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 1));
    assert_eq!((job.bytes_done, job.bytes_total), (0, 15));
    assert!(job.failures[0].failure.message.contains("no longer"), "{:?}", job.failures);
    assert_eq!(job.failures[0].path, b"/data/file", "it had that name");
}

#[tokio::test]
async fn hydrate_reads_a_file_anew_that_was_exported_since_it_was_found() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"content");
    let file = world.find("/data/file").await.unwrap().id;
    list(&world, "/data").await;
    world.server.changed.lock().unwrap().insert(file, ErrorKind::StaleEpoch);
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert_eq!((job.bytes_done, job.bytes_total), (7, 7));
    assert_eq!(world.server.items_of("hydrate").len(), 2, "the second time as it is then");
}

#[tokio::test]
async fn of_a_file_that_changes_or_fails_in_its_middle_no_byte_counts_twice() {
    const LEN: u64 = 1200 * MIB;
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("large", b"");
    File::options().write(true).open(world.object("large")).unwrap().set_len(LEN).unwrap();
    let large = world.find("/data/large").await.unwrap().id;
    list(&world, "/data").await;
    world.server.changed.lock().unwrap().insert(large, ErrorKind::ObjectChanged);
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert_eq!((job.bytes_done, job.bytes_total), (LEN, LEN));
    assert!(world.server.items_of("hydrate").len() > 3, "both times in several pieces");
    std::fs::remove_file(world.object("large")).unwrap();
    world.server.changed.lock().unwrap().insert(large, ErrorKind::ObjectChanged);
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 1));
    assert_eq!((job.bytes_done, job.bytes_total), (0, LEN), "none of it is done");
}
