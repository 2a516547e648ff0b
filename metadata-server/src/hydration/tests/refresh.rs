//! Directories whose listing is old, and what comes back of what an export stored.

use std::{fs, os::unix::fs::PermissionsExt as _, time::Duration};

use millrace_object_source::{Entry, EntryKind, ObjectVersion, Page, RequestClass, Tag};
use millrace_protocol::{
    admin::{AttributeSource, JobKind, JobState, SetLinkOptions},
    cluster::LinkMode,
    metadata::{FileKind, NewNode},
};
use millrace_types::{ErrorKind, FileName, InodeId, Timestamp};

use super::server::{ROOT, World};
use crate::{
    command::{self, Command},
    hydration::{
        Environment,
        import::{entries, linked},
        left_out,
    },
    namespace::{Body, ObjectState, tree},
};

const AGE: Duration = Duration::from_secs(60);

fn name(text: &str) -> FileName {
    FileName::parse(text.as_bytes()).unwrap()
}

async fn set(world: &World, path: &str, refresh: u32, attributes: Option<AttributeSource>) {
    let path = path.as_bytes().to_vec();
    let request = SetLinkOptions { path, refresh_seconds: Some(refresh), attributes };
    world.hydration.set_link_options(&request).await.unwrap();
}

async fn list(world: &World, path: &str) -> InodeId {
    let directory = world.find(path).await.unwrap().id;
    world.hydration.importer.whole(directory).await.unwrap();
    directory
}

async fn names(world: &World, directory: InodeId) -> Vec<String> {
    let query = world.server.read(move |view| Ok(tree::list(view, directory, 0, 1000).unwrap()));
    let mut names: Vec<_> =
        query.await.unwrap().into_iter().map(|(name, _)| name.to_string()).collect();
    names.sort();
    names
}

#[tokio::test]
async fn an_old_directory_is_listed_again_when_somebody_looks_and_not_before() {
    let world = World::new(LinkMode::ImportExport).await;
    for key in ["changed", "deleted", "dirty", "same", "gone/deep/file", "kept/file"] {
        world.put(key, b"before");
    }
    set(&world, "/data", 60, Some(AttributeSource::Listing)).await;
    let data = list(&world, "/data").await;
    list(&world, "/data/gone/deep").await;
    list(&world, "/data/gone").await;
    world.write("/data/dirty", b"mine").await;
    world.write("/data/local", b"only here").await;
    world.make_directory("/data/made").await;
    world.put("changed", b"after it");
    world.put("new", b"new");
    fs::remove_file(world.object("deleted")).unwrap();
    fs::remove_file(world.object("dirty")).unwrap();
    fs::remove_dir_all(world.object("gone")).unwrap();

    let asked = world.bucket.counters().requests_total();
    world.hydration.refresh(data, None).await;
    assert_eq!(world.bucket.counters().requests_total(), asked, "it is not old yet");
    world.server.pass(AGE);
    world.hydration.refresh(data, None).await;
    let expected = ["changed", "dirty", "kept", "local", "made", "new", "same"];
    assert_eq!(names(&world, data).await, expected);
    assert_eq!(world.find("/data/changed").await.unwrap().size, 8);
    assert_eq!(world.state("/data/dirty").await, ObjectState::Conflict);
    assert_eq!(world.state("/data/local").await, ObjectState::Local);

    let (asked, commands) = (world.bucket.counters().requests_total(), world.server.commands());
    world.server.pass(AGE);
    world.hydration.refresh(data, None).await;
    assert_eq!(world.bucket.counters().requests_total() - asked, 1, "one page");
    assert_eq!(world.server.commands() - commands, 1, "that it was listed");
}

#[tokio::test]
async fn an_answer_that_is_older_than_what_the_file_knows_changes_nothing() {
    let world = World::new(LinkMode::ImportExport).await;
    for key in ["clean", "dirty"] {
        world.put(key, b"before");
    }
    let data = list(&world, "/data").await;
    let query = world.server.read(move |view| linked(view, data));
    let linked = query.await.unwrap().unwrap();
    let importer = &world.hydration.importer;
    let old = world.bucket.list_directory("", None).await.unwrap();
    let asked = world.server.now();
    for key in ["clean", "dirty"] {
        world.put(key, b"after it");
        importer.object(world.find(&format!("/data/{key}")).await.unwrap().id).await.unwrap();
    }
    world.write("/data/dirty", b"written here").await;

    let found = entries::of_page(&old, &linked);
    importer.import(data, asked, found.clone()).await.unwrap();
    assert_eq!(world.find("/data/clean").await.unwrap().size, 8);
    assert_eq!(world.state("/data/dirty").await, ObjectState::Dirty, "no conflict");
    // The same answer, had it come later, would count.
    importer.import(data, world.server.now(), found).await.unwrap();
    assert_eq!(world.find("/data/clean").await.unwrap().size, 6);
    assert_eq!(world.state("/data/dirty").await, ObjectState::Conflict);
}

#[tokio::test]
async fn a_page_that_is_too_long_for_one_command_is_imported_by_several() {
    let world = World::new(LinkMode::ReadOnly).await;
    let data = list(&world, "/data").await;
    let query = world.server.read(move |view| linked(view, data));
    let mut linked = query.await.unwrap().unwrap();
    linked.prefix = "long/".repeat(1000);
    let tag = Tag::new("\"t\"").unwrap();
    let version = ObjectVersion { tag, size: 5, modified: Timestamp(9) };
    let entry = |nth: usize| {
        let kind = EntryKind::Object(version.clone());
        Entry { name: name(&format!("{nth:03}")), kind }
    };
    let page = Page { entries: (0..1000).map(entry).collect(), ..Page::default() };
    let found = entries::of_page(&page, &linked);
    let commands = world.server.commands();
    world.hydration.importer.import(data, world.server.now(), found).await.unwrap();
    assert_eq!(world.server.commands() - commands, 3);
    assert_eq!(names(&world, data).await.len(), 1000);
}

#[tokio::test]
async fn a_lookup_in_an_old_directory_hears_of_its_own_name() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("changed", b"before");
    world.put("deleted", b"before");
    set(&world, "/data", 60, None).await;
    let data = list(&world, "/data").await;
    world.put("changed", b"after it");
    world.put("new", b"new");
    fs::remove_file(world.object("deleted")).unwrap();
    world.server.pass(AGE);
    for wanted in ["changed", "deleted", "new"] {
        world.hydration.refresh(data, Some(&name(wanted))).await;
    }
    assert_eq!(world.find("/data/changed").await.unwrap().size, 8);
    assert_eq!(world.find("/data/new").await.unwrap().size, 3);
    let gone = world.find("/data/deleted").await.unwrap_err();
    assert_eq!(gone.kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn a_bucket_that_is_away_costs_lookups_nothing_but_the_news() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"before");
    set(&world, "/data", 60, None).await;
    let data = list(&world, "/data").await;
    let aside = world.bucket_dir.path().with_extension("aside");
    fs::rename(world.bucket_dir.path(), &aside).unwrap();
    world.server.pass(AGE);
    world.hydration.refresh(data, None).await;
    assert_eq!(world.find("/data/file").await.unwrap().size, 6, "what is known is the answer");
    let asked = world.bucket.counters().requests_total();
    world.hydration.refresh(data, Some(&name("file"))).await;
    assert_eq!(world.bucket.counters().requests_total(), asked, "it is left alone for a while");
    fs::rename(&aside, world.bucket_dir.path()).unwrap();
}

#[tokio::test]
async fn without_an_age_only_an_import_looks_again() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("dir/one", b"1");
    let data = list(&world, "/data").await;
    let dir = list(&world, "/data/dir").await;
    fs::remove_file(world.object("dir/one")).unwrap();
    world.put("dir/two", b"2");
    world.server.pass(AGE * 1_000_000);
    world.hydration.refresh(data, None).await;
    world.hydration.refresh(dir, None).await;
    assert_eq!(names(&world, dir).await, ["one"]);
    world.job(JobKind::Import, "/data").await;
    assert_eq!(names(&world, dir).await, ["two"]);
}

#[tokio::test]
async fn a_hydration_takes_what_the_bucket_has_now_where_the_listing_is_old() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("one", b"1");
    set(&world, "/data", 60, None).await;
    let data = list(&world, "/data").await;
    world.put("two", b"22");
    world.job(JobKind::Hydrate, "/data").await;
    assert_eq!(names(&world, data).await, ["one"]);
    world.server.pass(AGE);
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!(job.bytes_total, 3, "{job:?}");
    assert_eq!(names(&world, data).await, ["one", "two"]);
}

pub(super) async fn symlink(world: &World, path: &str, target: &str) {
    let (directory, text) = path.rsplit_once('/').unwrap();
    let parent = world.find(directory).await.unwrap().id;
    let inode = world.server.reserve_inodes(1).await.unwrap()[0];
    let create = command::Create {
        caller: ROOT,
        parent,
        name: name(text),
        node: NewNode::Symlink(target.as_bytes().to_vec()),
        mode: 0o777,
        inode,
        seed: 0,
        open: None,
        exclusive: true,
    };
    world.server.execute(Command::Create(create), false).await.unwrap();
}

#[tokio::test]
async fn links_modes_and_empty_directories_come_back_by_a_listing() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/hub").await;
    world.make_directory("/data/hub/empty").await;
    let private = world.make_directory("/data/hub/private").await;
    let mode = Some(0o700);
    let set_mode =
        command::SetAttributes { inode: private, mode, caller: Some(ROOT), ..Default::default() };
    world.server.execute(Command::SetAttributes(set_mode), false).await.unwrap();
    world.write("/data/hub/private/model", b"weights").await;
    symlink(&world, "/data/hub/latest", "private/model").await;
    world.export("/data").await;
    let metadata = fs::metadata(world.object("hub/empty")).unwrap();
    assert!(metadata.is_dir() && metadata.permissions().mode() & 0o700 == 0o700);
    let puts = world.bucket.counters().requests(RequestClass::Put);

    world.link_at("/again", LinkMode::ReadOnly).await.unwrap();
    set(&world, "/again", 0, Some(AttributeSource::Objects)).await;
    let heads = world.bucket.counters().requests(RequestClass::Head);
    list(&world, "/again").await;
    let hub = list(&world, "/again/hub").await;
    let asked = world.bucket.counters().requests(RequestClass::Head) - heads;
    // `hub`; then `empty`, `latest` and `private`; a name looked up alone before it is listed may
    // have been asked for once more.
    assert!((4..=6).contains(&asked), "{asked}");
    assert_eq!(names(&world, hub).await, ["empty", "latest", "private"]);
    let latest = world.find("/again/hub/latest").await.unwrap();
    assert_eq!((latest.kind, latest.mode), (FileKind::Symlink, 0o777));
    assert_eq!(latest.body, Body::Symlink(b"private/model".to_vec()));
    assert_eq!(world.find("/again/hub/private").await.unwrap().mode, 0o700);
    list(&world, "/again/hub/empty").await;
    list(&world, "/again/hub/private").await;
    let model = world.find("/again/hub/private/model").await.unwrap();
    assert_eq!((model.mode, model.size), (0o640, 7));

    let heads = world.bucket.counters().requests(RequestClass::Head);
    world.job(JobKind::Import, "/again").await;
    let asked = world.bucket.counters().requests(RequestClass::Head) - heads;
    assert_eq!(asked, 0, "what is known is not asked for again");
    assert_eq!(world.bucket.counters().requests(RequestClass::Put), puts);
}

#[tokio::test]
async fn a_directory_that_is_looked_up_before_its_parent_is_listed_has_the_mode_that_it_had() {
    let world = World::new(LinkMode::ImportExport).await;
    let private = world.make_directory("/data/private").await;
    let mode = Some(0o700);
    let set_mode =
        command::SetAttributes { inode: private, mode, caller: Some(ROOT), ..Default::default() };
    world.server.execute(Command::SetAttributes(set_mode), false).await.unwrap();
    world.write("/data/private/model", b"weights").await;
    world.export("/data").await;

    world.link_at("/again", LinkMode::ReadOnly).await.unwrap();
    set(&world, "/again", 0, Some(AttributeSource::Objects)).await;
    assert_eq!(world.find("/again/private").await.unwrap().mode, 0o700);
    list(&world, "/again").await;
    assert_eq!(world.find("/again/private").await.unwrap().mode, 0o700);
}

/// Lists a directory with an object in it, and has an object take its place in the bucket.
async fn replace_by_object(world: &World, key: &str) {
    list(world, &format!("/data/{key}")).await;
    fs::remove_dir_all(world.object(key)).unwrap();
    world.put(key, b"now");
}

/// The keys that the last listing of a directory left out.
async fn keys_left_out(world: &World, directory: InodeId) -> Vec<String> {
    let record = left_out::of(&*world.server, directory).await.unwrap();
    record.into_iter().flat_map(|record| record.first).map(|out| out.key).collect()
}

#[tokio::test]
async fn an_object_has_the_place_of_a_directory_of_which_nothing_is_left() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("x/1", b"1");
    let data = list(&world, "/data").await;
    replace_by_object(&world, "x").await;
    let job = world.job(JobKind::Import, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Succeeded, 0), "{:?}", job.failures);
    let x = world.find("/data/x").await.unwrap();
    assert_eq!((x.kind, x.size), (FileKind::Regular, 3));
    assert!(keys_left_out(&world, data).await.is_empty(), "it has its place");

    world.job(JobKind::Import, "/data").await;
    assert_eq!(world.find("/data/x").await.unwrap().id, x.id, "nothing changes any more");
    assert!(keys_left_out(&world, data).await.is_empty());
}

#[tokio::test]
async fn a_directory_with_a_file_that_is_only_here_gives_its_place_to_no_object() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("x/1", b"1");
    let data = list(&world, "/data").await;
    list(&world, "/data/x").await;
    world.write("/data/x/local", b"only here").await;
    replace_by_object(&world, "x").await;
    for _ in 0..2 {
        world.job(JobKind::Import, "/data").await;
        let x = world.find("/data/x").await.unwrap();
        assert_eq!(x.kind, FileKind::Directory);
        assert_eq!(names(&world, x.id).await, ["local"]);
        assert_eq!(keys_left_out(&world, data).await, ["x"]);
    }
    assert_eq!(world.state("/data/x/local").await, ObjectState::Local);
}

#[tokio::test]
async fn an_import_takes_no_listing_for_its_own_that_began_before_it() {
    for round in 0..30 {
        let world = World::new(LinkMode::ReadOnly).await;
        world.put("file", b"before");
        // Asked for by name, which begins to list the directory.
        assert_eq!(world.find("/data/file").await.unwrap().size, 6);
        for _ in 0..round % 6 {
            tokio::task::yield_now().await;
        }
        world.put("file", b"after it");
        world.job(JobKind::Import, "/data").await;
        assert_eq!(world.find("/data/file").await.unwrap().size, 8, "round {round}");
    }
}

#[tokio::test]
async fn a_hydration_does_not_fail_with_a_listing_that_began_before_it() {
    for round in 0..30 {
        let world = World::new(LinkMode::ReadOnly).await;
        world.put("file", b"123456");
        let bucket = world.bucket_dir.path();
        let hidden = bucket.with_extension("hidden");
        fs::rename(bucket, &hidden).unwrap();
        // Asked for by name, which begins to list the directory, in vain.
        world.find("/data/file").await.unwrap_err();
        for _ in 0..round % 6 {
            tokio::task::yield_now().await;
        }
        fs::rename(&hidden, bucket).unwrap();
        let job = world.job(JobKind::Hydrate, "/data").await;
        assert!(job.errors == 0 && job.bytes_total == 6, "round {round}: {job:?}");
    }
}
