//! Files and directories that were renamed, or removed and made anew: what becomes of the objects
//! at their old keys is not their affair, and what was removed stays removed.

use std::{fs, time::Duration};

use millrace_protocol::{
    admin::{JobKind, JobState, SetLinkOptions},
    cluster::LinkMode,
    metadata::{NewNode, RenameMode},
};
use millrace_types::{ErrorKind, FileName, InodeId};

use super::server::{ROOT, World};
use crate::{
    command::{self, Command, Observation},
    hydration::{Environment, import::object::Object},
    namespace::{ObjectState, tree},
};

fn name(text: &str) -> FileName {
    FileName::parse(text.as_bytes()).unwrap()
}

fn split(path: &str) -> (&str, FileName) {
    let (directory, last) = path.rsplit_once('/').unwrap();
    (directory, name(last))
}

pub(super) async fn rename(world: &World, from: &str, to: &str) {
    let ((source_parent, source_name), (target_parent, target_name)) = (split(from), split(to));
    let rename = command::Rename {
        caller: ROOT,
        source_parent: world.find(source_parent).await.unwrap().id,
        source_name,
        target_parent: world.find(target_parent).await.unwrap().id,
        target_name,
        mode: RenameMode::Replace,
        readers: Vec::new(),
    };
    world.server.execute(Command::Rename(rename), false).await.unwrap();
}

pub(super) async fn remove(world: &World, path: &str, directory: bool) {
    let (parent, name) = split(path);
    let parent = world.find(parent).await.unwrap().id;
    let remove = command::Remove { caller: ROOT, parent, name, directory, readers: Vec::new() };
    world.server.execute(Command::Remove(remove), false).await.unwrap();
}

pub(super) async fn list(world: &World, path: &str) -> InodeId {
    let directory = world.find(path).await.unwrap().id;
    world.hydration.importer.whole(directory).await.unwrap();
    directory
}

pub(super) async fn names(world: &World, path: &str) -> Vec<String> {
    let directory = world.find(path).await.unwrap().id;
    let query = world.server.read(move |view| Ok(tree::list(view, directory, 0, 1000).unwrap()));
    let mut names: Vec<_> =
        query.await.unwrap().into_iter().map(|(name, _)| name.to_string()).collect();
    names.sort();
    names
}

pub(super) async fn refresh_all(world: &World) {
    let path = b"/data".to_vec();
    let request = SetLinkOptions { path, refresh_seconds: Some(60), attributes: None };
    world.hydration.set_link_options(&request).await.unwrap();
    world.server.pass(Duration::from_secs(100));
    let job = world.job(JobKind::Import, "/data").await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
}

#[tokio::test]
async fn a_renamed_file_never_follows_what_takes_its_old_place() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("latest", b"first");
    list(&world, "/data").await;
    rename(&world, "/data/latest", "/data/old").await;
    let old = world.find("/data/old").await.unwrap();
    world.write("/data/latest", b"second version").await;
    world.server.present.lock().unwrap().insert(old.id, 5);
    world.export("/data/latest").await;
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"second version");

    // A lookup, a reader who finds that the object is another, and a whole import look at it.
    world.hydration.importer.object(old.id).await.unwrap();
    refresh_all(&world).await;
    let after = world.find("/data/old").await.unwrap();
    assert_eq!((after.id, after.size, &after.body), (old.id, 5, &old.body));
    assert_eq!(world.state("/data/latest").await, ObjectState::Exported);

    fs::remove_file(world.object("latest")).unwrap();
    let told = world.hydration.importer.object(old.id).await.unwrap_err();
    assert_eq!(told.kind, ErrorKind::ObjectChanged);
    assert_eq!(world.find("/data/old").await.unwrap().size, 5, "it is still there");
}

#[tokio::test]
async fn an_object_stays_while_a_file_that_was_moved_away_still_needs_it() {
    let world = World::new(LinkMode::ImportExport).await;
    for key in ["latest", "other"] {
        world.put(key, b"first");
    }
    let data = list(&world, "/data").await;
    rename(&world, "/data/latest", "/data/old").await;
    let old = world.find("/data/old").await.unwrap();
    world.server.present.lock().unwrap().insert(old.id, 4);
    world.write("/data/latest", b"second version").await;
    let job = world.job(JobKind::Export, "/data/latest").await;
    let failure = &job.failures[0].failure;
    assert_eq!(failure.kind, ErrorKind::Conflict);
    assert!(failure.message.contains("/data/old") && failure.message.contains("1 B"), "{failure}");
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"first");
    // A file of two names that loses the first one needs it as much.
    let inode = world.find("/data/other").await.unwrap().id;
    let link = command::MakeLink { caller: ROOT, inode, parent: data, name: name("second") };
    world.server.execute(Command::MakeLink(link), false).await.unwrap();
    remove(&world, "/data/other", false).await;
    world.write("/data/other", b"another").await;
    let job = world.job(JobKind::Export, "/data/other").await;
    assert!(job.failures[0].failure.message.contains("/data/second"), "{:?}", job.failures);

    // Once it is here the object may go, and once it is gone nobody needs it.
    world.server.present.lock().unwrap().insert(old.id, 5);
    world.export("/data/latest").await;
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"second version");
    remove(&world, "/data/second", false).await;
    world.export("/data/other").await;
    assert_eq!(fs::read(world.object("other")).unwrap(), b"another");
}

#[tokio::test]
async fn a_renamed_file_that_was_changed_is_no_conflict_with_its_old_place() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("latest", b"first");
    list(&world, "/data").await;
    rename(&world, "/data/latest", "/data/old").await;
    let old = world.write("/data/old", b"changed").await;
    world.put("latest", b"somebody else's");
    world.hydration.importer.object(old).await.unwrap();
    assert_eq!(world.state("/data/old").await, ObjectState::Dirty);
    world.export("/data/old").await;
    assert_eq!(fs::read(world.object("old")).unwrap(), b"changed");
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"somebody else's");
}

#[tokio::test]
async fn a_renamed_directory_has_nothing_of_what_takes_its_old_place() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("latest/a", b"first");
    world.put("latest/sub/b", b"first");
    list(&world, "/data").await;
    list(&world, "/data/latest").await;
    list(&world, "/data/latest/sub").await;
    rename(&world, "/data/latest", "/data/old").await;
    world.make_directory("/data/latest").await;
    world.write("/data/latest/c", b"second version").await;
    world.export("/data/latest").await;
    world.put("latest/a", b"somebody else's");
    refresh_all(&world).await;
    assert_eq!(names(&world, "/data/old").await, ["a", "sub"]);
    assert_eq!(names(&world, "/data/old/sub").await, ["b"]);
    assert_eq!(world.find("/data/old/a").await.unwrap().size, 5, "it does not follow");
    assert_eq!(names(&world, "/data/latest").await, ["c"], "what was moved is not here");

    // Both files stand against one key, and one of them may still need the object there.
    world.write("/data/latest/a", b"mine").await;
    let job = world.job(JobKind::Export, "/data/latest/a").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict);
    assert_eq!(fs::read(world.object("latest/a")).unwrap(), b"somebody else's");
}

#[tokio::test]
async fn an_unlisted_directory_that_is_renamed_still_shows_what_it_had() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("deep/sub/file", b"there");
    list(&world, "/data").await;
    rename(&world, "/data/deep", "/data/moved").await;
    assert_eq!(world.find("/data/moved/sub/file").await.unwrap().size, 5);
    refresh_all(&world).await;
    assert_eq!(world.find("/data/moved/sub/file").await.unwrap().size, 5);
}

#[tokio::test]
async fn an_empty_directory_is_marked_where_it_is_now() {
    let world = World::new(LinkMode::ImportExport).await;
    list(&world, "/data").await;
    world.make_directory("/data/a").await;
    rename(&world, "/data/a", "/data/b").await;
    world.export("/data").await;
    assert!(world.object("b").exists() && !world.object("a").exists());
}

#[tokio::test]
async fn what_was_removed_stays_removed_when_its_directory_is_made_anew() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("d/file", b"there");
    list(&world, "/data").await;
    list(&world, "/data/d").await;
    remove(&world, "/data/d/file", false).await;
    remove(&world, "/data/d", true).await;
    world.make_directory("/data/d").await;
    refresh_all(&world).await;
    assert_eq!(names(&world, "/data/d").await, [""; 0]);
    assert!(world.object("d/file").exists(), "the bucket still has it");
    world.write("/data/d/new", b"mine").await;
    world.export("/data/d").await;
    assert_eq!(fs::read(world.object("d/new")).unwrap(), b"mine");
}

#[tokio::test]
async fn a_symbolic_link_that_was_removed_does_not_come_back() {
    let world = World::new(LinkMode::ImportExport).await;
    let request = SetLinkOptions {
        path: b"/data".to_vec(),
        refresh_seconds: Some(60),
        attributes: Some(millrace_protocol::admin::AttributeSource::Objects),
    };
    world.hydration.set_link_options(&request).await.unwrap();
    let data = list(&world, "/data").await;
    let create = command::Create {
        caller: ROOT,
        parent: data,
        name: name("link"),
        node: NewNode::Symlink(b"target".to_vec()),
        mode: 0o777,
        inode: InodeId(1000),
        seed: 0,
        open: None,
        exclusive: true,
    };
    world.server.execute(Command::Create(create), false).await.unwrap();
    world.export("/data").await;
    assert!(world.object("link").exists());
    remove(&world, "/data/link", false).await;
    refresh_all(&world).await;
    assert_eq!(names(&world, "/data").await, [""; 0]);
}

/// The bucket was asked for long, and what it says is of where the file was.
#[tokio::test]
async fn an_object_that_went_while_its_file_was_renamed_takes_it_nowhere() {
    let world = World::new(LinkMode::Import).await;
    world.put("a", b"bytes");
    let inode = world.find("/data/a").await.unwrap().id;
    let object = world.server.read(move |view| Object::of(view, inode)).await.unwrap().unwrap();
    rename(&world, "/data/a", "/data/b").await;
    fs::remove_file(world.object("a")).unwrap();
    let observed = world.hydration.importer.observe(&object).await.unwrap();
    assert_eq!(observed, (Observation::Known, false));
    assert_eq!(world.find("/data/b").await.unwrap().id, inode);
}
