//! Hydrate and release ask each target for exactly the chunks that matter.

use std::fs::File;

use millrace_protocol::{
    admin::{JobKind, JobState},
    cluster::LinkMode,
};
use millrace_types::{ByteLen, MIB};

use super::server::World;

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
async fn release_leaves_dirty_files_alone() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("clean", b"12345");
    world.put("dirty", b"12345");
    let clean = world.find("/data/clean").await.unwrap().id;
    world.write("/data/dirty", b"new").await;
    let job = world.job(JobKind::Release, "/data").await;
    assert_eq!((job.state, job.files_done, job.bytes_done), (JobState::Succeeded, 2, 5));
    let released: Vec<_> =
        world.server.items_of("release").iter().map(|item| item.content.inode).collect();
    assert_eq!(released, [clean]);
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
    world.server.changed.lock().unwrap().insert(before.id);
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.files_done, job.errors), (JobState::Succeeded, 1, 0));
    let after = world.find("/data/file").await.unwrap();
    assert_eq!((after.id, after.size), (before.id, 15));
    let last = world.server.items_of("hydrate").pop().unwrap();
    assert_eq!(last.content.origin, after.content().unwrap().origin);
    std::fs::remove_file(world.object("file")).unwrap();
    world.server.changed.lock().unwrap().insert(before.id);
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 1));
    assert!(job.failures[0].failure.message.contains("no longer"), "{:?}", job.failures);
}
