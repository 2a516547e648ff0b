//! Answers of a bucket that come late: what was removed here meanwhile stays removed.

use millrace_protocol::cluster::LinkMode;
use millrace_types::{InodeId, Timestamp};

use super::{
    moved::{list, names, remove},
    server::{ROOT, World},
};
use crate::{
    command::{Command, SetAttributes, SetTime},
    hydration::{
        Environment,
        import::{Import, entries, linked},
    },
};

/// Sets when a directory was modified, as programs do that copy one.
async fn set_modified(world: &World, inode: InodeId, modified: Timestamp) {
    let (caller, modified) = (Some(ROOT), Some(SetTime::At(modified)));
    let set = SetAttributes { caller, inode, modified, ..Default::default() };
    world.server.execute(Command::SetAttributes(set), false).await.unwrap();
}

#[tokio::test]
async fn a_page_that_was_asked_for_before_an_export_brings_no_removed_file_back() {
    let world = World::propagating().await;
    world.put("file", b"before");
    let data = list(&world, "/data").await;
    let linked = world.server.read(move |view| linked(view, data)).await.unwrap().unwrap();
    let importer = &world.hydration.importer;
    let asked = world.server.now();
    let old = world.bucket.list_directory("", None).await.unwrap();
    world.write("/data/file", b"written here").await;
    world.export("/data/file").await;
    remove(&world, "/data/file", false).await;

    let found = entries::of_page(&old, &linked);
    assert_eq!(importer.import(data, asked, found).await.unwrap(), Import::Partial);
    assert!(names(&world, "/data").await.is_empty(), "it was removed");
    assert_eq!(world.deletes().await.waiting, 1, "and its object is to be deleted");

    // What is put there later is another file, whatever happened in the directory before.
    world.put("file", b"somebody else's");
    let asked = world.server.now();
    let page = world.bucket.list_directory("", None).await.unwrap();
    let found = entries::of_page(&page, &linked);
    assert_eq!(importer.import(data, asked, found).await.unwrap(), Import::Whole);
    assert_eq!(names(&world, "/data").await, ["file"]);
}

#[tokio::test]
async fn a_late_page_names_what_was_never_here_also_where_others_were_removed() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("gone", b"before");
    let data = list(&world, "/data").await;
    let linked = world.server.read(move |view| linked(view, data)).await.unwrap().unwrap();
    world.put("new", b"new");
    let asked = world.server.now();
    let page = world.bucket.list_directory("", None).await.unwrap();
    remove(&world, "/data/gone", false).await;
    let found = entries::of_page(&page, &linked);
    let imported = world.hydration.importer.import(data, asked, found).await.unwrap();
    assert_eq!(imported, Import::Whole, "the whiteout hides what was removed");
    assert_eq!(names(&world, "/data").await, ["new"]);
}

#[tokio::test]
async fn when_a_directory_was_modified_says_nothing_as_users_set_that() {
    for modified in [Timestamp(1), Timestamp(i64::MAX)] {
        let world = World::propagating().await;
        world.put("file", b"before");
        let data = list(&world, "/data").await;
        let linked = world.server.read(move |view| linked(view, data)).await.unwrap().unwrap();
        let importer = &world.hydration.importer;
        let page = async || {
            let asked = world.server.now();
            let page = world.bucket.list_directory("", None).await.unwrap();
            (asked, entries::of_page(&page, &linked))
        };
        let (asked, found) = page().await;
        world.write("/data/file", b"written here").await;
        world.export("/data/file").await;
        remove(&world, "/data/file", false).await;
        set_modified(&world, data, modified).await;
        assert_eq!(importer.import(data, asked, found).await.unwrap(), Import::Partial);
        assert!(names(&world, "/data").await.is_empty(), "it was removed");

        world.put("file", b"somebody else's");
        let (asked, found) = page().await;
        assert_eq!(importer.import(data, asked, found).await.unwrap(), Import::Whole);
        assert_eq!(names(&world, "/data").await, ["file"]);
    }
}
