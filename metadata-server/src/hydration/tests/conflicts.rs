//! Objects that change behind everybody's back, and the decision when the file changed too.

use std::fs;

use millrace_object_source::RequestClass;
use millrace_protocol::{
    admin::{JobKind, Keep, ResolveConflict, ResolveReply},
    cluster::LinkMode,
    session::Caller,
    target::ContentName,
};
use millrace_types::{ErrorKind, Failure, InodeId};
use tokio_util::sync::CancellationToken;

use super::server::{LIMIT, ROOT, World};
use crate::{
    hydration::Environment,
    namespace::{Body, Inode, ObjectState},
    store::{View, keys, prefix_end},
};

fn name_of(inode: &Inode) -> ContentName {
    let Body::File(body) = &inode.body else { panic!("a file") };
    ContentName { inode: inode.id, generation: body.generation }
}

/// Lists a directory to its end, so that nothing that is put later is found by that listing.
async fn list(world: &World, path: &str) {
    let directory = world.find(path).await.unwrap().id;
    world.hydration.importer.whole(directory).await.unwrap();
}

/// Lets a target report a content, and waits until `done` sees what came of it.
async fn report(world: &World, content: ContentName, done: impl Fn(Option<Inode>) -> bool) {
    let stop = CancellationToken::new();
    let watch = async {
        world.hydration.note_changed(&[content, content]);
        loop {
            let query = world
                .server
                .read(move |view| Ok(crate::namespace::tree::find(view, content.inode)));
            if done(query.await.unwrap().unwrap()) {
                return stop.cancel();
            }
            tokio::task::yield_now().await;
        }
    };
    let both = async { tokio::join!(world.hydration.run(stop.clone()), watch) };
    tokio::time::timeout(LIMIT, both).await.expect("the file follows");
}

pub(super) async fn resolve(
    world: &World,
    path: &str,
    keep: Keep,
) -> Result<ResolveReply, Failure> {
    let request = ResolveConflict { caller: ROOT, path: path.as_bytes().to_vec(), keep };
    world.hydration.resolve_conflict(b"", &request).await
}

async fn conflicts(world: &World) -> usize {
    let query = world.server.read(|view: &dyn View| {
        let prefix = keys::conflicts();
        let end = prefix_end(&prefix);
        let from = std::ops::Bound::Included(&prefix[..]);
        Ok(view.scan(from, crate::store::borrow(&end), 100).unwrap().len())
    });
    query.await.unwrap()
}

/// A file that changed on both sides; what was written here is all here.
pub(super) async fn conflict(world: &World, name: &str, content: &[u8]) -> InodeId {
    world.put(name, b"before");
    world.job(JobKind::Import, "/data").await;
    let inode = world.write(&format!("/data/{name}"), content).await;
    world.put(name, b"somebody else's");
    let size = content.len() as u64;
    world.server.present.lock().unwrap().insert(inode, size);
    world.hydration.importer.object(inode).await.unwrap();
    assert_eq!(world.state(&format!("/data/{name}")).await, ObjectState::Conflict);
    inode
}

#[tokio::test]
async fn a_clean_file_follows_its_object_when_a_target_reports_it() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"before");
    list(&world, "/data").await;
    let before = world.find("/data/file").await.unwrap();
    world.put("file", b"after it");
    let heads = world.bucket.counters().requests(RequestClass::Head);
    let old = name_of(&before);
    report(&world, old, |inode| name_of(&inode.unwrap()).generation > old.generation).await;
    let after = world.find("/data/file").await.unwrap();
    assert_eq!((after.id, after.size), (before.id, 8));
    assert_eq!(world.state("/data/file").await, ObjectState::Clean);
    let asked = world.bucket.counters().requests(RequestClass::Head) - heads;
    assert_eq!(asked, 1, "two reports of one content are one question");
}

#[tokio::test]
async fn a_clean_file_whose_object_is_gone_goes_too_and_comes_back_with_it() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("dir/file", b"before");
    world.put("dir/other", b"stays");
    list(&world, "/data/dir").await;
    let before = world.find("/data/dir/file").await.unwrap();
    let directory = world.find("/data/dir").await.unwrap();
    fs::remove_file(world.object("dir/file")).unwrap();
    report(&world, name_of(&before), |inode| inode.is_none()).await;
    let gone = world.find("/data/dir/file").await.unwrap_err();
    assert_eq!(gone.kind, ErrorKind::NotFound);
    let now = world.find("/data/dir").await.unwrap();
    assert_eq!(now.modified, directory.modified, "nobody here changed the directory");
    world.put("dir/file", b"again");
    world.job(JobKind::Import, "/data/dir").await;
    assert_eq!(world.find("/data/dir/file").await.unwrap().size, 5, "no whiteout hides it");
}

#[tokio::test]
async fn all_names_of_a_file_go_with_its_object() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("a/file", b"before");
    world.put("b/other", b"stays");
    list(&world, "/data/a").await;
    list(&world, "/data/b").await;
    let file = world.find("/data/a/file").await.unwrap();
    for number in 0..50 {
        world.hard_link(file.id, ["/data/a", "/data/b"][number % 2], &number.to_string()).await;
    }
    let sizes =
        [world.find("/data/a").await.unwrap().size, world.find("/data/b").await.unwrap().size];
    assert_eq!(sizes, [26, 26]);
    fs::remove_file(world.object("a/file")).unwrap();
    report(&world, name_of(&file), |inode| inode.is_none()).await;
    for number in 0..50 {
        let path = format!("{}/{number}", ["/data/a", "/data/b"][number % 2]);
        assert_eq!(world.find(&path).await.unwrap_err().kind, ErrorKind::NotFound, "{path}");
    }
    assert_eq!(world.find("/data/b").await.unwrap().size, 1, "what is left");
    assert!(world.find("/data/b/other").await.is_ok());
}

#[tokio::test]
async fn a_dirty_file_becomes_a_conflict_whether_its_object_changed_or_is_gone() {
    let world = World::new(LinkMode::ImportExport).await;
    for name in ["changed", "gone"] {
        world.put(name, b"before");
    }
    list(&world, "/data").await;
    for name in ["changed", "gone"] {
        let inode = world.write(&format!("/data/{name}"), b"mine").await;
        match name {
            "gone" => fs::remove_file(world.object(name)).unwrap(),
            _ => world.put(name, b"theirs"),
        }
        let now = world.find(&format!("/data/{name}")).await.unwrap();
        report(&world, name_of(&now), |inode| match inode.unwrap().body {
            Body::File(body) => body.state == ObjectState::Conflict,
            _ => false,
        })
        .await;
        assert_eq!(world.find(&format!("/data/{name}")).await.unwrap().id, inode);
    }
    assert_eq!(conflicts(&world).await, 2);
}

#[tokio::test]
async fn the_local_version_replaces_the_object_only_on_the_tag_that_was_looked_at() {
    let world = World::new(LinkMode::ImportExport).await;
    conflict(&world, "file", b"mine").await;
    let reply = resolve(&world, "/data/file", Keep::Local).await.unwrap();
    assert_eq!((reply.removed, reply.size.0), (false, 4));
    assert!(reply.origin.unwrap().0.ends_with("/file"));
    assert_eq!((world.state("/data/file").await, conflicts(&world).await), (ObjectState::Dirty, 0));
    world.put("file", b"once more somebody else's");
    let job = world.job(JobKind::Export, "/data/file").await;
    assert_eq!(job.errors, 1, "{job:?}");
    assert_eq!(fs::read(world.object("file")).unwrap(), b"once more somebody else's");
    assert_eq!(world.state("/data/file").await, ObjectState::Conflict);
    resolve(&world, "/data/file", Keep::Local).await.unwrap();
    world.export("/data/file").await;
    assert_eq!(fs::read(world.object("file")).unwrap(), b"mine");
    assert_eq!(world.state("/data/file").await, ObjectState::Exported);
}

#[tokio::test]
async fn the_buckets_version_is_a_new_content_once_nobody_writes_the_old_one() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = conflict(&world, "file", b"mine").await;
    let before = world.find("/data/file").await.unwrap();
    world.server.open_write(inode).await;
    let failure = resolve(&world, "/data/file", Keep::Bucket).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::InUse);
    world.server.commit(inode, 4).await;
    let reply = resolve(&world, "/data/file", Keep::Bucket).await.unwrap();
    assert_eq!((reply.removed, reply.size.0), (false, 15));
    let after = world.find("/data/file").await.unwrap();
    assert!(name_of(&after).generation > name_of(&before).generation);
    assert_eq!(world.state("/data/file").await, ObjectState::Clean);
    let again = resolve(&world, "/data/file", Keep::Bucket).await.unwrap_err();
    assert_eq!(again.kind, ErrorKind::InvalidArgument);
    assert!(again.message.contains("not in conflict"), "{again}");
}

#[tokio::test]
async fn against_an_object_that_is_gone_the_local_version_is_a_new_one_and_the_buckets_is_none() {
    let world = World::new(LinkMode::ImportExport).await;
    for name in ["keep", "drop"] {
        conflict(&world, name, b"mine").await;
        fs::remove_file(world.object(name)).unwrap();
    }
    let kept = resolve(&world, "/data/keep", Keep::Local).await.unwrap();
    assert_eq!((kept.removed, kept.origin), (false, None));
    world.export("/data/keep").await;
    assert_eq!(fs::read(world.object("keep")).unwrap(), b"mine");
    let dropped = resolve(&world, "/data/drop", Keep::Bucket).await.unwrap();
    assert!(dropped.removed);
    assert_eq!(world.find("/data/drop").await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(conflicts(&world).await, 0);
}

#[tokio::test]
async fn bytes_that_were_never_fetched_are_not_taken_from_the_new_object() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = conflict(&world, "file", b"mine, over six bytes").await;
    world.server.present.lock().unwrap().insert(inode, 14);
    let failure = resolve(&world, "/data/file", Keep::Local).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Lost, "{failure}");
    assert_eq!(world.state("/data/file").await, ObjectState::Conflict, "nothing is decided");

    // Nor are bytes past the end, of which no mount has told yet, counted for what is missing.
    world.server.present.lock().unwrap().insert(inode, 30);
    world.server.ends.lock().unwrap().insert(inode, 34);
    let failure = resolve(&world, "/data/file", Keep::Local).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Lost, "{failure}");

    let reply = resolve(&world, "/data/file", Keep::Bucket).await.unwrap();
    assert_eq!(reply.size.0, 15);
}

#[tokio::test]
async fn only_the_owner_and_root_decide() {
    let world = World::new(LinkMode::ImportExport).await;
    conflict(&world, "file", b"mine").await;
    let stranger = Caller { uid: 1000, gid: 1000, groups: Vec::new() };
    let path = b"/data/file".to_vec();
    let request = ResolveConflict { caller: stranger, path, keep: Keep::Bucket };
    let failure = world.hydration.resolve_conflict(b"", &request).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::NotPermitted);
    assert_eq!(world.state("/data/file").await, ObjectState::Conflict);
}
