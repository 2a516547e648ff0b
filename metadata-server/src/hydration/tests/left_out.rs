//! Keys that can be no names: left out, counted, named, and never in the way of others.

use std::os::unix::fs::symlink;

use millrace_object_source::{
    Entry, EntryKind, LeftOut, LeftOutReason as Reason, ObjectVersion, Page, Tag,
};
use millrace_protocol::{
    admin::{JobKind, JobState, StartJob},
    cluster::LinkMode,
    job_options::{FetchReport, JobOptions, StartWithOptions},
    left_out::{LeftOutKey, LeftOutReason, LeftOutReply, ShowLeftOut},
    metadata::FileKind,
    selection::Selection,
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, FileName, Timestamp};

use super::server::{ROOT, World};
use crate::{
    hydration::{
        Environment,
        import::{entries, linked},
        left_out::{self, Tray},
    },
    namespace::ObjectState,
};

async fn show(world: &World, caller: &Caller, path: &str) -> Result<LeftOutReply, Failure> {
    let path = path.as_bytes().to_vec();
    let request = ShowLeftOut { caller: caller.clone(), path, after: None };
    world.hydration.show_left_out(b"", &request).await
}

fn entry(name: &str, kind: EntryKind) -> Entry {
    Entry { name: FileName::parse(name.as_bytes()).unwrap(), kind }
}

fn object() -> EntryKind {
    let tag = Tag::new("\"t\"").unwrap();
    EntryKind::Object(ObjectVersion { tag, size: 5, modified: Timestamp(9) })
}

/// Imports one page of a listing of `/data`, asked for now; tells what it left out.
async fn import(world: &World, entries: Vec<Entry>) -> Vec<LeftOutKey> {
    import_page(world, Page { entries, ..Page::default() }).await
}

async fn import_page(world: &World, page: Page) -> Vec<LeftOutKey> {
    let data = world.find("/data").await.unwrap().id;
    let linked = world.server.read(move |view| linked(view, data)).await.unwrap().unwrap();
    let found = entries::of_page(&page, &linked);
    let mut tray = Tray::default();
    tray.add_page(page.skipped, &page.left_out);
    let (importer, asked) = (&world.hydration.importer, world.server.now());
    importer.import_page(&world.bucket, &linked, asked, found, &mut tray).await.unwrap();
    tray.keep(&*world.server, data).await.unwrap();
    let record = left_out::of(&*world.server, data).await.unwrap();
    record.map_or(Vec::new(), |record| record.first)
}

#[tokio::test]
async fn a_directory_takes_the_place_of_the_object_of_its_name_whichever_page_comes_first() {
    let shadowed = [LeftOutKey { key: "a".to_owned(), reason: LeftOutReason::Directory }];
    for pages in [[object(), EntryKind::Directory], [EntryKind::Directory, object()]] {
        let world = World::new(LinkMode::Import).await;
        let [first, second] = pages;
        let told = import(&world, vec![entry("a", first), entry("b", object())]).await;
        assert!(told.is_empty(), "{told:?}");
        assert_eq!(import(&world, vec![entry("a", second)]).await, shadowed);
        let [a, data] = [world.find("/data/a").await.unwrap(), world.find("/data").await.unwrap()];
        assert_eq!(a.kind, FileKind::Directory);
        assert_eq!((data.size, data.links), (2, 3), "a and b");
        // Both together, as by a listing of one page.
        let both = vec![entry("a", object()), entry("a", EntryKind::Directory)];
        assert_eq!(import(&world, both).await, shadowed);
        assert_eq!(world.find("/data/a").await.unwrap().id, a.id, "nothing changes any more");
        assert!(import(&world, vec![entry("a", EntryKind::Directory)]).await.is_empty());
    }
}

#[tokio::test]
async fn the_bytes_of_the_mark_of_a_directory_are_told_until_they_are_gone() {
    let world = World::new(LinkMode::Import).await;
    let mark = LeftOut { key: "data/".to_owned(), reason: Reason::MarkWithBytes };
    let entries = vec![entry("a", object())];
    let page = Page { entries, skipped: 1, left_out: vec![mark], next: None };
    let told = LeftOutKey { key: "data/".to_owned(), reason: LeftOutReason::Directory };
    assert_eq!(import_page(&world, page.clone()).await, std::slice::from_ref(&told));
    let reply = show(&world, &ROOT, "/data").await.unwrap();
    assert_eq!((reply.directories[0].keys, &reply.directories[0].first), (1, &vec![told]));
    assert_eq!(world.find("/data").await.unwrap().size, 1, "what lies beside it is there");
    let entries = page.entries;
    assert!(import_page(&world, Page { entries, ..Page::default() }).await.is_empty());
}

#[tokio::test]
async fn a_file_that_was_changed_here_stays_and_what_is_below_its_name_is_left_out() {
    let world = World::new(LinkMode::Import).await;
    import(&world, vec![entry("a", object()), entry("b", object())]).await;
    let a = world.find("/data/a").await.unwrap().id;
    world.server.open_write(a).await;
    world.server.commit(a, 7).await;
    for page in [
        vec![entry("a", EntryKind::Directory)],
        vec![entry("a", object()), entry("a", EntryKind::Directory)],
    ] {
        let told = import(&world, page).await;
        assert_eq!(told, [LeftOutKey { key: "a/".to_owned(), reason: LeftOutReason::File }]);
    }
    assert_eq!(world.state("/data/a").await, ObjectState::Dirty);
    assert_eq!(world.find("/data/a").await.unwrap().size, 7);
}

#[tokio::test]
async fn a_file_beside_a_directory_of_its_name_goes_with_its_object_and_the_directory_comes() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/a", b"written here").await;
    world.export("/data/a").await;
    world.job(JobKind::Import, "/data").await;
    let file = world.find("/data/a").await.unwrap();
    assert_eq!(world.state("/data/a").await, ObjectState::Exported);

    std::fs::remove_file(world.object("a")).unwrap();
    world.put("a/b", b"below");
    world.job(JobKind::Import, "/data").await;
    let directory = world.find("/data/a").await.unwrap();
    assert_eq!((directory.kind, directory.id == file.id), (FileKind::Directory, false));
    assert!(show(&world, &ROOT, "/data").await.unwrap().directories.is_empty());
    world.job(JobKind::Import, "/data").await;
    assert_eq!(world.find("/data/a/b").await.unwrap().size, 5);
}

#[tokio::test]
async fn what_listings_leave_out_is_told_to_the_owner_and_in_the_report_of_an_import() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("set/good", b"12345");
    for nth in 0..20 {
        symlink("good", world.object(&format!("set/link-{nth:02}"))).unwrap();
    }
    let start = StartJob { caller: ROOT, kind: JobKind::Import, path: b"/data".to_vec() };
    let options = JobOptions { report: true, ..JobOptions::default() };
    let request =
        StartWithOptions { start, selection: Selection::default(), dry_run: false, options };
    let id = world.hydration.start_with_options(b"", &request).await.unwrap().id;
    let job = world.run_until(|job| job.id == id && job.state.is_final()).await;
    assert_eq!((job.state, job.errors, job.files_done), (JobState::Succeeded, 0, 3));
    assert_eq!((job.bytes_done, job.bytes_total), (5, 5));

    let reply = show(&world, &ROOT, "/data").await.unwrap();
    assert_eq!((reply.directories.len(), reply.next), (1, None));
    let set = &reply.directories[0];
    assert_eq!((set.path.as_slice(), set.keys, set.first.len()), (&b"/data/set"[..], 20, 16));
    assert!(set.first.iter().all(|out| out.reason == LeftOutReason::SpecialFile));
    assert_eq!(show(&world, &ROOT, "/data/set").await.unwrap(), reply);
    let stranger = Caller { uid: 7, gid: 7, groups: Vec::new() };
    let refused = show(&world, &stranger, "/data").await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotPermitted);

    let fetch = FetchReport { caller: ROOT, id, offset: 0 };
    let lines = world.hydration.fetch_report(&fetch).await.unwrap().lines;
    let lines = String::from_utf8(lines).unwrap();
    let told = lines.lines().filter(|line| line.contains("\"left out\"")).count();
    assert_eq!(told, 17, "16 and how many more: {lines}");
    assert!(lines.contains("and 4 more keys"), "{lines}");
    let good = "{\"path\":\"/data/set/good\",\"outcome\":\"done\",\"bytes\":5}";
    assert!(lines.contains(good), "{lines}");

    // What has become sound is left out no more.
    for nth in 0..20 {
        std::fs::remove_file(world.object(&format!("set/link-{nth:02}"))).unwrap();
    }
    world.job(JobKind::Import, "/data").await;
    assert!(show(&world, &ROOT, "/data").await.unwrap().directories.is_empty());
}
