//! Links that export by themselves.

use std::{fs, sync::atomic::Ordering, time::Duration};

use millrace_protocol::{
    admin::{AddLink, CancelJob, JobKind, JobState, RemoveLink, StartJob},
    bucket::{AutoExport, QUIET_SECONDS_MAX, SetAutoExport},
    cluster::LinkMode,
};
use millrace_types::{ErrorKind, FileName};

use super::{
    moved::{remove, rename},
    server::{Fault, ROOT, World, bucket_of},
};
use crate::{
    command::{self, Command},
    hydration::Environment,
    namespace::ObjectState,
    store::keys,
};

async fn set(world: &World, quiet_seconds: Option<u32>) -> Vec<AutoExport> {
    let request = SetAutoExport { path: b"/data".to_vec(), quiet_seconds };
    world.hydration.set_auto_export(&request).await.unwrap()
}

/// A link that exports as soon as nobody has a file open.
async fn exporting() -> World {
    let world = World::new(LinkMode::ImportExport).await;
    set(&world, Some(0)).await;
    world
}

async fn status(world: &World) -> AutoExport {
    world.hydration.list_auto_exports().await.unwrap().remove(0)
}

/// Until a file is in its bucket, in this version.
async fn arrived(world: &World, path: &str, bytes: &[u8]) {
    let object = world.object(path.strip_prefix("/data/").unwrap());
    while world.state(path).await != ObjectState::Exported
        || fs::read(&object).ok().as_deref() != Some(bytes)
    {
        tokio::task::yield_now().await;
    }
}

/// Until everything was looked at that is due.
async fn settled(world: &World) -> AutoExport {
    loop {
        let status = status(world).await;
        if status.waiting == 0 {
            return status;
        }
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn what_is_written_goes_to_the_bucket_by_itself() {
    let world = exporting().await;
    let work = async {
        world.write("/data/new", b"one").await;
        arrived(&world, "/data/new", b"one").await;
        world.write("/data/new", b"another").await;
        arrived(&world, "/data/new", b"another").await;
        world.make_directory("/data/ckpt").await;
        world.write("/data/ckpt/model.pt", &vec![7; 3 << 20]).await;
        arrived(&world, "/data/ckpt/model.pt", &vec![7; 3 << 20]).await;
        settled(&world).await
    };
    let status = world.run_beside(Box::pin(work)).await;
    assert_eq!((status.files, status.bytes, status.failing), (3, 10 + (3 << 20), 0));
    assert!(world.hydration.list_jobs().await.unwrap().is_empty(), "no job was started");
}

#[tokio::test]
async fn what_was_written_before_a_start_or_before_it_was_asked_for_is_found() {
    let mut world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/run").await;
    world.write("/data/run/before", b"before").await;
    set(&world, Some(0)).await;
    Box::pin(world.run_beside(arrived(&world, "/data/run/before", b"before"))).await;
    world.write("/data/run/while", b"nobody looks").await;
    world.restart();
    Box::pin(world.run_beside(arrived(&world, "/data/run/while", b"nobody looks"))).await;
    assert_eq!(status(&world).await.files, 1, "what the bucket has is not sent again");
}

#[tokio::test]
async fn a_file_that_is_open_waits_for_its_writer() {
    let world = exporting().await;
    let inode = world.write("/data/file", b"first").await;
    world.server.open_write(inode).await;
    let work = async {
        while status(&world).await.waiting == 0 {
            tokio::task::yield_now().await;
        }
        // It has been looked at meanwhile, if ever.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(!world.object("file").exists());
        assert_eq!(status(&world).await.waiting, 1);
        world.server.commit(inode, 5).await;
        arrived(&world, "/data/file", b"first").await;
    };
    world.run_beside(Box::pin(work)).await;
    assert_eq!(status(&world).await.failing, 0);
}

#[tokio::test]
async fn what_is_renamed_goes_to_its_new_key_with_all_below_it() {
    let world = exporting().await;
    let work = async {
        world.make_directory("/data/tmp").await;
        world.write("/data/tmp/a", b"a").await;
        arrived(&world, "/data/tmp/a", b"a").await;
        rename(&world, "/data/tmp", "/data/done").await;
        arrived(&world, "/data/done/a", b"a").await;
        rename(&world, "/data/done/a", "/data/b").await;
        arrived(&world, "/data/b", b"a").await;
        // A checkpoint that takes the place of the last one.
        world.write("/data/b.new", b"second").await;
        rename(&world, "/data/b.new", "/data/b").await;
        arrived(&world, "/data/b", b"second").await;
    };
    world.run_beside(Box::pin(work)).await;
}

#[tokio::test]
async fn what_fails_is_tried_again_and_a_change_is_as_good_as_the_next_try() {
    let world = exporting().await;
    let work = async {
        let failed = Fault::Fail(ErrorKind::BucketUnavailable);
        world.server.faults.lock().unwrap().push_back(failed);
        world.write("/data/file", b"content").await;
        while status(&world).await.failing == 0 {
            tokio::task::yield_now().await;
        }
        let failing = status(&world).await;
        assert_eq!((failing.waiting, failing.failing), (1, 1));
        assert_eq!(failing.failures[0].failure.kind, ErrorKind::BucketUnavailable);
        assert_eq!(failing.failures[0].path, b"/data/file");
        world.write("/data/file", b"changed").await;
        arrived(&world, "/data/file", b"changed").await;
        assert_eq!(settled(&world).await.failing, 0);
        world.put("file", b"somebody else's");
        world.write("/data/file", b"mine").await;
        while status(&world).await.failing == 0 {
            tokio::task::yield_now().await;
        }
        let failing = status(&world).await;
        assert_eq!((failing.waiting, failing.failures.len()), (1, 1), "it is tried again, rarely");
        assert_eq!(failing.failures[0].failure.kind, ErrorKind::Conflict);
        assert_eq!(fs::read(world.object("file")).unwrap(), b"somebody else's");
    };
    world.run_beside(Box::pin(work)).await;
}

#[tokio::test]
async fn a_link_whose_bucket_is_away_holds_up_no_other() {
    const FILES: usize = 20;
    let world = exporting().await;
    let other = tempfile::tempdir().unwrap();
    let (path, bucket) = (b"/other".to_vec(), bucket_of(other.path()));
    let add = AddLink { path: path.clone(), bucket, mode: LinkMode::ImportExport };
    world.hydration.add_link(&add).await.unwrap();
    let set = SetAutoExport { path, quiet_seconds: Some(0) };
    world.hydration.set_auto_export(&set).await.unwrap();
    for number in 0..FILES {
        world.write(&format!("/data/{number}"), b"some bytes").await;
    }
    let away = world.bucket_dir.path().with_extension("away");
    fs::rename(world.bucket_dir.path(), &away).unwrap();
    let work = async {
        while status(&world).await.failing < 4 {
            tokio::task::yield_now().await;
        }
        world.write("/other/file", b"content").await;
        while fs::read(other.path().join("file")).ok().as_deref() != Some(&b"content"[..]) {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(Box::pin(work)).await;
    fs::rename(&away, world.bucket_dir.path()).unwrap();
    let status = status(&world).await;
    assert_eq!(status.waiting, FILES as u64);
    assert!(status.failing <= 12 + 3, "others are not tried before the bucket: {status:?}");
}

#[tokio::test]
async fn a_file_that_is_removed_meanwhile_is_no_failure_and_another_name_stays() {
    let world = exporting().await;
    set(&world, Some(1)).await;
    let work = async {
        let inode = world.write("/data/first", b"two names").await;
        let link = command::MakeLink {
            caller: ROOT,
            inode,
            parent: world.find("/data").await.unwrap().id,
            name: FileName::parse(b"second").unwrap(),
        };
        world.server.execute(Command::MakeLink(link), false).await.unwrap();
        world.write("/data/gone", b"gone").await;
        while status(&world).await.waiting < 2 {
            tokio::task::yield_now().await;
        }
        remove(&world, "/data/gone", false).await;
        arrived(&world, "/data/first", b"two names").await;
        settled(&world).await;
        remove(&world, "/data/first", false).await;
        arrived(&world, "/data/second", b"two names").await;
        settled(&world).await
    };
    let status = world.run_beside(Box::pin(work)).await;
    assert_eq!((status.files, status.failing), (2, 0), "{status:?}");
    assert!(!world.object("gone").exists());
}

#[tokio::test]
async fn a_job_that_is_cancelled_before_its_turn_disturbs_nothing() {
    let world = exporting().await;
    world.server.silent.store(true, Ordering::Relaxed);
    let inode = world.write("/data/file", b"content").await;
    let work = async {
        let begun = || world.server.read(move |view| Ok(view.get(&keys::export(inode)).unwrap()));
        while begun().await.unwrap().is_none() {
            tokio::task::yield_now().await;
        }
        let start = StartJob { caller: ROOT, kind: JobKind::Export, path: b"/data".to_vec() };
        let id = world.hydration.start_job(b"", &start).await.unwrap().id;
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        world.hydration.cancel_job(&CancelJob { caller: ROOT, id }).await.unwrap();
        for _ in 0..50 {
            tokio::task::yield_now().await;
        }
        assert!(begun().await.unwrap().is_some(), "the upload is not given up");
        assert_eq!(world.hydration.show_job(id).await.unwrap().state, JobState::Cancelled);
    };
    world.run_beside(Box::pin(work)).await;
}

#[tokio::test]
async fn jobs_and_what_goes_by_itself_take_turns() {
    let world = exporting().await;
    for number in 0..100 {
        world.write(&format!("/data/{number}"), b"some bytes").await;
    }
    // Both send the same files at the same time: each is sent by one of them.
    let start = |kind| StartJob { caller: ROOT, kind, path: b"/data".to_vec() };
    let work = async {
        for kind in [JobKind::Export, JobKind::Release, JobKind::Export] {
            let id = world.hydration.start_job(b"", &start(kind)).await.unwrap().id;
            world.write("/data/7", b"once more!").await;
            loop {
                let job = world.hydration.show_job(id).await.unwrap();
                if job.state.is_final() {
                    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
                    break;
                }
                tokio::task::yield_now().await;
            }
        }
        for number in 0..100 {
            let bytes: &[u8] = if number == 7 { b"once more!" } else { b"some bytes" };
            arrived(&world, &format!("/data/{number}"), bytes).await;
        }
        settled(&world).await
    };
    assert_eq!(world.run_beside(Box::pin(work)).await.failing, 0);
}

#[tokio::test]
async fn it_is_refused_where_it_makes_no_sense_and_ends_with_its_link() {
    let world = World::new(LinkMode::Import).await;
    let ask = |path: &[u8], quiet_seconds| SetAutoExport { path: path.to_vec(), quiet_seconds };
    let refused = async |request| {
        world.hydration.set_auto_export(&request).await.expect_err("it is refused").kind
    };
    assert_eq!(refused(ask(b"/data", Some(5))).await, ErrorKind::ReadOnly);
    assert_eq!(refused(ask(b"/", Some(5))).await, ErrorKind::NotFound);
    let longest = Some(QUIET_SECONDS_MAX + 1);
    assert_eq!(refused(ask(b"/data", longest)).await, ErrorKind::InvalidArgument);
    assert!(set(&world, None).await.is_empty(), "it is off already");

    let world = exporting().await;
    world.write("/data/file", b"content").await;
    assert!(set(&world, None).await.is_empty());
    assert!(world.server.written().take().changed.is_empty(), "nobody listens any more");
    assert_eq!(set(&world, Some(30)).await[0].quiet_seconds, 30);
    assert_eq!(set(&world, Some(40)).await[0].quiet_seconds, 40);
    let remove = RemoveLink { path: b"/data".to_vec(), discard: true };
    world.hydration.remove_link(&remove).await.unwrap();
    assert!(world.hydration.list_auto_exports().await.unwrap().is_empty());
}
