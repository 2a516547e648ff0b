//! Names come from the bucket when somebody looks, once.

use std::{fs, future, mem, sync::Arc, task::Poll};

use millrace_object_source::RequestClass;
use millrace_protocol::{
    admin::{FileState, JobKind, JobState, ShowState, StartJob},
    cluster::LinkMode,
    metadata::FileKind,
};
use millrace_types::{ErrorKind, FileName, InodeId, JobId, MIB};
use tokio::time::timeout;

use super::server::{LIMIT, ROOT, World};
use crate::{
    command::{self, Command},
    hydration::{
        Environment, Listing,
        import::{LISTINGS_MAX, PATIENT_MAX, linked},
    },
    namespace::{Body, tree},
};

async fn names(world: &World, directory: InodeId) -> Vec<String> {
    let query = world.server.read(move |view| Ok(tree::list(view, directory, 0, 1000).unwrap()));
    let mut names: Vec<_> =
        query.await.unwrap().into_iter().map(|(name, _)| name.to_string()).collect();
    names.sort();
    names
}

async fn list_all(world: &World, directory: InodeId) {
    let mut cookie = 0;
    while let Listing::Growing(_) = world.hydration.before_list(directory, cookie).await.unwrap() {
        cookie += 1;
    }
}

#[tokio::test]
async fn a_directory_is_listed_when_somebody_looks_and_only_once() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("a/x.jpg", b"12345");
    world.put("a/y.jpg", b"1");
    world.put("b/deep/z", b"");
    world.put("top", b"hello");
    let data = world.find("/data").await.unwrap();
    assert_eq!((data.size, data.mode), (0, 0o755));
    list_all(&world, data.id).await;
    assert_eq!(names(&world, data.id).await, ["a", "b", "top"]);
    let a = world.find("/data/a").await.unwrap();
    assert_eq!(a.size, 0, "one directory at a time");
    list_all(&world, a.id).await;
    assert_eq!(names(&world, a.id).await, ["x.jpg", "y.jpg"]);
    let file = world.find("/data/a/x.jpg").await.unwrap();
    assert_eq!((file.kind, file.size, file.mode), (FileKind::Regular, 5, 0o644));
    let origin = file.content().unwrap().origin.unwrap();
    assert_eq!(origin.key, "a/x.jpg");
    let asked = world.bucket.counters().requests_total();
    list_all(&world, a.id).await;
    assert!(world.find("/data/a/nothing").await.is_err());
    world.find("/data/a/x.jpg").await.unwrap();
    assert_eq!(world.bucket.counters().requests_total(), asked, "nothing is asked twice");
}

#[tokio::test]
async fn a_name_is_found_before_its_directory_is_listed() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("b/deep/z", b"12");
    let file = world.find("/data/b/deep/z").await.unwrap();
    assert_eq!(file.size, 2);
    let missing = world.find("/data/b/nothing/z").await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn everybody_who_waits_shares_one_listing() {
    let world = World::new(LinkMode::ReadOnly).await;
    for at in 0..2_500 {
        world.put(&format!("{at:04}"), b"x");
    }
    let data = world.find("/data").await.unwrap().id;
    let before = world.bucket.counters().requests_total();
    let lists = (0..20).map(|_| list_all(&world, data));
    futures::future::join_all(lists).await;
    assert_eq!(names(&world, data).await.len(), 1000, "of one query");
    assert_eq!(world.find("/data").await.unwrap().size, 2_500);
    assert_eq!(world.bucket.counters().requests_total() - before, 1);
}

#[tokio::test]
async fn an_unreachable_bucket_is_an_error_and_no_empty_directory() {
    let world = World::new(LinkMode::ReadOnly).await;
    let data = world.find("/data").await.unwrap().id;
    fs::remove_dir_all(world.bucket_dir.path()).unwrap();
    let failure = world.hydration.before_list(data, 0).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::BucketUnavailable);
    let name = FileName::parse(b"x").unwrap();
    assert!(world.hydration.before_lookup(data, &name).await.is_err());
    // It is back whole at once: the listing that the lookup began may look just now.
    let back = tempfile::tempdir_in(world.bucket_dir.path().parent().unwrap()).unwrap();
    fs::write(back.path().join("x"), b"1").unwrap();
    fs::rename(back.path(), world.bucket_dir.path()).unwrap();
    // The listing that the lookup began may still be about to fail; the next look begins another.
    drop(world.hydration.before_list(data, 0).await);
    list_all(&world, data).await;
    assert_eq!(names(&world, data).await, ["x"]);
}

#[tokio::test]
async fn an_import_job_finds_what_the_bucket_changed() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("a/one", b"1");
    let job = world.job(JobKind::Import, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Succeeded, 0));
    let before = world.find("/data/a/one").await.unwrap();
    world.put("a/one", b"22");
    world.put("a/two", b"");
    world.job(JobKind::Import, "/data").await;
    let after = world.find("/data/a/one").await.unwrap();
    assert_eq!((after.id, after.size), (before.id, 2));
    let generation = |body: &Body| match body {
        Body::File(file) => file.generation,
        _ => panic!("a file"),
    };
    assert!(
        generation(&after.body) > generation(&before.body),
        "readers of the old one get ESTALE"
    );
    world.find("/data/a/two").await.unwrap();
}

#[tokio::test]
async fn an_import_lists_nothing_that_was_listed_since_it_was_asked_for() {
    let mut world = World::new(LinkMode::ImportExport).await;
    for (key, content) in [("a/x", "12345"), ("a/y", "1"), ("b/z", "22"), ("top", "333")] {
        world.put(key, content.as_bytes());
    }
    let data = world.find("/data").await.unwrap().id;
    let start = StartJob { caller: ROOT, kind: JobKind::Import, path: b"/data".to_vec() };
    let id = world.hydration.start_job(b"", &start).await.unwrap().id;
    // As by the job itself, before the server was restarted. What was made here is not counted.
    list_all(&world, data).await;
    let a = world.find("/data/a").await.unwrap().id;
    list_all(&world, a).await;
    world.write("/data/a/new", b"here").await;
    world.restart();
    let before = world.bucket.counters().requests(RequestClass::List);
    let job = world.run_until(|job| job.id == id && job.state.is_final()).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(world.bucket.counters().requests(RequestClass::List) - before, 1, "of b");
    // The directory itself, what it has, and what these have.
    assert_eq!((job.files_done, job.files_total), (7, 7));
    assert_eq!((job.bytes_done, job.bytes_total), (11, 11));
    // The next one lists all of it.
    let job = world.job(JobKind::Import, "/data").await;
    assert!(world.bucket.counters().requests(RequestClass::List) - before >= 4);
    assert_eq!((job.files_done, job.bytes_done), (7, 11));
}

#[tokio::test]
async fn an_import_lists_what_was_made_here_since_it_was_asked_for() {
    let world = World::new(LinkMode::ImportExport).await;
    list_all(&world, world.find("/data").await.unwrap().id).await;
    world.put("run/a", b"1");
    let start = StartJob { caller: ROOT, kind: JobKind::Import, path: b"/data".to_vec() };
    let id = world.hydration.start_job(b"", &start).await.unwrap().id;
    world.make_directory("/data/run").await;
    let job = world.run_until(|job| job.id == id && job.state.is_final()).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(world.find("/data/run/a").await.unwrap().size, 1);
}

/// Lets everything that is ready have its turn.
async fn give_way() {
    let mut is_next = false;
    let turn = future::poll_fn(|context| match mem::replace(&mut is_next, true) {
        true => Poll::Ready(()),
        false => {
            context.waker().wake_by_ref();
            Poll::Pending
        }
    });
    turn.await;
}

async fn is_listed(world: &World, directory: InodeId) -> bool {
    let query = world.server.read(move |view| linked(view, directory));
    query.await.unwrap().unwrap().listed.is_some()
}

/// Lists `/data` for the first time, while `meanwhile` is done over and over.
async fn list_while<F: Future<Output = ()> + Send + 'static>(
    world: &World,
    mut meanwhile: impl FnMut() -> F + Send + 'static,
) -> InodeId {
    let data = world.find("/data").await.unwrap().id;
    let work = tokio::spawn(async move {
        loop {
            meanwhile().await;
            give_way().await;
        }
    });
    let whole = world.hydration.importer.whole(data);
    timeout(LIMIT, whole).await.unwrap().unwrap();
    work.abort();
    data
}

#[tokio::test]
async fn a_first_listing_ends_however_often_imports_are_asked_for() {
    for (refused, passes) in [(None, 2), (Some(ErrorKind::Busy), 1)] {
        let world = World::new(LinkMode::ReadOnly).await;
        world.put("file", b"1");
        let importer = Arc::clone(&world.hydration.importer);
        let before = world.bucket.counters().requests(RequestClass::List);
        let data = list_while(&world, move || {
            let importer = Arc::clone(&importer);
            async move {
                let record = async { refused.map_or(Ok(()), |kind| Err(kind.into())) };
                drop(importer.note_import(InodeId::ROOT, record).await);
            }
        });
        let data = data.await;
        assert_eq!(world.bucket.counters().requests(RequestClass::List) - before, passes);
        // The next look lists it once more where imports were asked for.
        assert_eq!(is_listed(&world, data).await, refused.is_some());
        world.hydration.importer.whole(data).await.unwrap();
        assert!(is_listed(&world, data).await);
    }
}

#[tokio::test]
async fn a_first_listing_whose_second_pass_leaves_something_out_does_not_count() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("file", b"1");
    // An export that has not ended, of a file that is elsewhere by now.
    let data = world.find("/data").await.unwrap().id;
    let link = world.server.read(move |view| linked(view, data)).await.unwrap().unwrap().link;
    let begin = command::BeginExport {
        inode: world.write("/elsewhere", b"late").await,
        job: JobId(1),
        export: 7,
        link,
        key: "late".to_owned(),
        replaces: None,
        part_size: MIB,
    };
    world.server.execute(Command::BeginExport(begin), true).await.unwrap();
    let (server, importer) = (Arc::clone(&world.server), Arc::clone(&world.hydration.importer));
    let late = world.object("late");
    list_while(&world, move || {
        let (server, importer, late) = (Arc::clone(&server), Arc::clone(&importer), late.clone());
        async move {
            let name = FileName::parse(b"file").unwrap();
            let query = server.read(move |view| Ok(tree::entry(view, data, &name).unwrap()));
            // The first pass has found it: its object arrives before the second one.
            match query.await.unwrap() {
                None => importer.note_import(data, future::ready(Ok(()))).await.unwrap(),
                Some(_) if late.exists() => {}
                Some(_) => fs::write(late, b"late").unwrap(),
            }
        }
    })
    .await;
    assert!(!is_listed(&world, data).await);
}

#[tokio::test]
async fn a_link_that_is_refused_inside_another_one_leaves_nothing_there() {
    for mode in [LinkMode::ImportExport, LinkMode::ReadOnly] {
        let world = World::new(mode).await;
        let refused = world.link_at("/data/sub/deep", LinkMode::ImportExport).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InUse, "{mode:?}");
        assert_eq!(refused.message, "/data/sub/deep is part of a link already");
        let sub = world.find("/data/sub").await.unwrap_err();
        assert_eq!(sub.kind, ErrorKind::NotFound, "{mode:?}");
    }
}

#[tokio::test]
async fn what_is_listed_already_waits_for_no_turn() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("a/x", b"1");
    world.put("b/deep/y", b"22");
    world.job(JobKind::Import, "/data").await;
    // All turns are taken, as by imports of a slow bucket.
    let data = world.find("/data").await.unwrap().id;
    let importer = &world.hydration.importer;
    let mut turns = Vec::new();
    for _ in 0..PATIENT_MAX {
        turns.push(importer.turn(data).await.unwrap().unwrap());
    }
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 2), "{:?}", job.failures);
    drop(turns);
}

#[tokio::test]
async fn a_bucket_whose_turns_are_all_taken_keeps_nobody_from_another() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.link_at("/other", LinkMode::ReadOnly).await.unwrap();
    world.put("x", b"1");
    let [data, other] =
        [world.find("/data").await.unwrap().id, world.find("/other").await.unwrap().id];
    let importer = &world.hydration.importer;
    let mut turns = Vec::new();
    for _ in 0..PATIENT_MAX {
        turns.push(importer.turn(data).await.unwrap().unwrap());
    }
    let mut others = Box::pin(importer.turn(other));
    let turn = timeout(LIMIT, &mut others).await.expect("it has turns of its own");
    assert!(turn.unwrap().is_some());
    let root = importer.turn(InodeId::ROOT);
    let turn = timeout(LIMIT, root).await.expect("what shows no bucket waits for none");
    assert!(turn.unwrap().is_none());
}

#[tokio::test]
async fn a_job_gives_way_to_a_snapshot_that_is_short_of_memory_and_a_program_does_not() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("sub/x", b"1");
    let data = world.find("/data").await.unwrap().id;
    world.server.troubles.pressed.send_replace(true);
    let start = StartJob { caller: ROOT, kind: JobKind::Import, path: b"/data".to_vec() };
    let id = world.hydration.start_job(b"", &start).await.unwrap().id;
    let work = async {
        world.server.troubles.held_up.notified().await;
        assert!(names(&world, data).await.is_empty(), "the job waits");
        list_all(&world, data).await;
        assert_eq!(names(&world, data).await, ["sub"]);
        world.server.troubles.pressed.send_replace(false);
        loop {
            let job = world.hydration.show_job(id).await.unwrap();
            if job.state.is_final() {
                return job;
            }
            tokio::task::yield_now().await;
        }
    };
    let job = world.run_beside(Box::pin(work)).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(world.find("/data/sub/x").await.unwrap().size, 1);
}

#[tokio::test]
async fn a_listing_that_gives_way_goes_on_once_a_program_waits_for_it() {
    let world = World::new(LinkMode::ReadOnly).await;
    for at in 0..2_500 {
        world.put(&format!("{at:04}"), b"x");
    }
    let data = world.find("/data").await.unwrap().id;
    world.server.troubles.pressed.send_replace(true);
    let importer = Arc::clone(&world.hydration.importer);
    let whole = tokio::spawn(async move { importer.whole(data).await });
    let work = async {
        world.server.troubles.held_up.notified().await;
        assert_eq!(world.find("/data").await.unwrap().size, 1_000, "what comes first is there");
        list_all(&world, data).await;
        whole.await.unwrap().unwrap();
    };
    timeout(LIMIT, work).await.expect("it is not held up for ever");
    assert_eq!(world.find("/data").await.unwrap().size, 2_500);
}

#[tokio::test]
async fn a_listing_that_gives_way_asks_for_no_further_page_and_leaves_its_permit_to_others() {
    let world = World::new(LinkMode::ReadOnly).await;
    for at in 0..10_500 {
        world.put(&format!("{at:05}"), b"x");
    }
    let data = world.find("/data").await.unwrap().id;
    let troubles = &world.server.troubles;
    troubles.pressed.send_replace(true);
    let before = world.bucket.counters().requests(RequestClass::List);
    let asked = || world.bucket.counters().requests(RequestClass::List) - before;
    let importer = Arc::clone(&world.hydration.importer);
    let listing = Arc::clone(&importer);
    let whole = tokio::spawn(async move { listing.whole(data).await });
    let work = async {
        // Within the first page of 10,000 names, after each thousand.
        for thousands in 1..=9 {
            troubles.held_up.notified().await;
            assert_eq!(world.find("/data").await.unwrap().size, thousands * 1_000);
            troubles.let_on.notify_one();
        }
        troubles.held_up.notified().await;
        assert_eq!(world.find("/data").await.unwrap().size, 10_000);
        let link = world.server.read(move |view| linked(view, data)).await.unwrap().unwrap().link;
        assert_eq!((asked(), importer.listings_left(link)), (1, LISTINGS_MAX));
        list_all(&world, data).await;
        whole.await.unwrap().unwrap();
    };
    timeout(LIMIT, work).await.expect("it is not held up for ever");
    assert_eq!(world.find("/data").await.unwrap().size, 10_500);
    assert_eq!(asked(), 2);
}

#[tokio::test]
async fn an_import_of_one_file_counts_it_as_it_is_then() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"1");
    list_all(&world, world.find("/data").await.unwrap().id).await;
    world.put("file", b"4444");
    let job = world.job(JobKind::Import, "/data/file").await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert_eq!((job.bytes_done, job.bytes_total), (4, 4));
}

#[tokio::test]
async fn states_are_told_for_files_and_summed_for_directories() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("a/one", b"12345");
    world.put("a/two", b"12345");
    let show = |path: &str| {
        let request = ShowState { caller: ROOT, path: path.as_bytes().to_vec() };
        let hydration = world.hydration.clone();
        async move { hydration.show_state(b"", &request).await.unwrap() }
    };
    list_all(&world, world.find("/data").await.unwrap().id).await;
    assert_eq!(show("/data").await.unlisted_directories, 1);
    let one = world.find("/data/a/one").await.unwrap().id;
    world.find("/data/a/two").await.unwrap();
    world.server.present.lock().unwrap().insert(one, 5);
    let state = show("/data/a/one").await;
    assert_eq!((state.state, state.hydrated.0), (Some(FileState::Hydrated), 5));
    assert!(state.origin.unwrap().0.ends_with("/a/one"));
    assert_eq!(show("/data/a/two").await.state, Some(FileState::Released));
    world.write("/data/a/new", b"123").await;
    let sums = show("/data").await;
    assert_eq!((sums.state, sums.directory), (None, true));
    assert_eq!((sums.size.0, sums.hydrated.0), (13, 8));
    let states: Vec<_> = sums.sums.iter().map(|sum| (sum.state, sum.files)).collect();
    let expected = [FileState::Released, FileState::Hydrated, FileState::Dirty];
    assert_eq!(states, expected.map(|state| (state, 1)));
}
