//! Files go to the bucket: whole, under their condition, and whatever becomes of the answers.

use std::{fs, sync::atomic::Ordering, time::Duration};

use millrace_object_source::{EXPORT_ID_KEY, PosixAttributes, RequestClass};
use millrace_protocol::{
    admin::{CancelJob, JobFailure, JobKind, JobState, StartJob},
    cluster::LinkMode,
    metadata::RenameMode,
    session::Caller,
};
use millrace_types::{ErrorKind, FileName, MIB};
use tokio::time::Instant;

use super::server::{Fault, ROOT, World};
use crate::{
    command::{self, Command},
    hydration::Environment,
    namespace::ObjectState,
};

fn large() -> Vec<u8> {
    let len = usize::try_from(20 * MIB).unwrap() + 5;
    (0..=250_u8).cycle().take(len).collect()
}

#[tokio::test]
async fn a_checkpoint_is_exported_by_parts_and_a_small_file_by_one_put() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/ckpt").await;
    world.write("/data/ckpt/model.pt", &large()).await;
    world.write("/data/ckpt/small", b"small").await;
    world.write("/data/ckpt/empty", b"").await;
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!((job.state, job.files_done, job.files_total), (JobState::Succeeded, 3, 3));
    assert_eq!((job.bytes_done, job.bytes_total), (20 * MIB + 10, 20 * MIB + 10));
    assert!(fs::read(world.object("ckpt/model.pt")).unwrap() == large());
    assert_eq!(fs::read(world.object("ckpt/small")).unwrap(), b"small");
    assert_eq!(fs::read(world.object("ckpt/empty")).unwrap(), b"");
    for name in ["model.pt", "small", "empty"] {
        let path = format!("/data/ckpt/{name}");
        assert_eq!(world.state(&path).await, ObjectState::Exported, "{name}");
        let head = world.bucket.head(&format!("ckpt/{name}")).await.unwrap();
        assert!(head.metadata.value(EXPORT_ID_KEY).is_some());
        assert_eq!(PosixAttributes::from_metadata(&head.metadata).mode, Some(0o100_640));
        let origin = world.find(&path).await.unwrap().content().unwrap().origin.unwrap();
        assert_eq!(origin.tag, head.version.tag.as_str());
    }
    assert!(!world.server.items_of("mark").is_empty(), "targets learn that their blocks are clean");
    let sent = world.bucket.counters().bytes_sent();
    world.export("/data").await;
    assert_eq!(world.bucket.counters().bytes_sent(), sent, "what the bucket has is not sent again");
}

#[tokio::test]
async fn a_changed_import_replaces_the_version_it_came_from() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("file", b"before");
    world.write("/data/file", b"after it").await;
    assert_eq!(world.state("/data/file").await, ObjectState::Dirty);
    world.export("/data/file").await;
    assert_eq!(fs::read(world.object("file")).unwrap(), b"after it");
    world.write("/data/file", &large()).await;
    world.export("/data/file").await;
    assert!(fs::read(world.object("file")).unwrap() == large());
}

#[tokio::test]
async fn what_changed_on_both_sides_is_a_conflict_and_nothing_is_overwritten() {
    let world = World::new(LinkMode::ImportExport).await;
    for (name, content) in [("small", b"mine".to_vec()), ("large", large())] {
        world.put(name, b"before");
        world.write(&format!("/data/{name}"), &content).await;
        world.put(name, b"somebody else's");
        let job = world.job(JobKind::Export, &format!("/data/{name}")).await;
        assert_eq!((job.state, job.errors), (JobState::Failed, 1));
        assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict, "{:?}", job.failures);
        assert_eq!(job.failures[0].path, format!("/data/{name}").into_bytes());
        assert_eq!(fs::read(world.object(name)).unwrap(), b"somebody else's");
        assert_eq!(world.state(&format!("/data/{name}")).await, ObjectState::Conflict);
    }
    let left: Vec<_> = fs::read_dir(world.bucket_dir.path()).unwrap().collect();
    assert_eq!(left.len(), 2, "no temporary file stays behind");
}

#[tokio::test]
async fn a_new_file_never_overwrites_an_object_that_nobody_has_seen() {
    let world = World::new(LinkMode::ImportExport).await;
    let data = world.find("/data").await.unwrap().id;
    world.hydration.importer.whole(data).await.unwrap();
    world.write("/data/new", b"mine").await;
    world.put("new", b"theirs");
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict);
    assert_eq!(fs::read(world.object("new")).unwrap(), b"theirs");
}

#[tokio::test]
async fn a_lost_answer_is_settled_by_looking() {
    let world = World::new(LinkMode::ImportExport).await;
    let data = world.find("/data").await.unwrap().id;
    world.hydration.importer.whole(data).await.unwrap();
    world.write("/data/file", b"content").await;
    world.server.faults.lock().unwrap().push_back(Fault::LoseAnswer);
    world.export("/data").await;
    assert_eq!(world.state("/data/file").await, ObjectState::Exported);
    // A part whose answer is lost is just sent again.
    world.write("/data/large", &large()).await;
    world.server.faults.lock().unwrap().extend([Fault::LoseAnswer, Fault::Fail(ErrorKind::Busy)]);
    world.export("/data").await;
    assert!(fs::read(world.object("large")).unwrap() == large());
}

#[tokio::test]
async fn a_refusal_is_told_as_it_was_said_to_the_upload() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/file", b"content").await;
    // Whoever looked what became of it would be told something else.
    let away = world.bucket_dir.path().with_extension("away");
    fs::rename(world.bucket_dir.path(), &away).unwrap();
    for _ in 0..2 {
        world.server.faults.lock().unwrap().push_back(Fault::Fail(ErrorKind::BucketDenied));
        let job = world.job(JobKind::Export, "/data/file").await;
        assert_eq!((job.errors, job.failures[0].failure.kind), (1, ErrorKind::BucketDenied));
    }
    fs::rename(&away, world.bucket_dir.path()).unwrap();
    world.export("/data/file").await;
    assert_eq!(fs::read(world.object("file")).unwrap(), b"content");
}

#[tokio::test]
async fn a_file_that_changes_meanwhile_is_exported_once_more() {
    let world = World::new(LinkMode::ImportExport).await;
    for (name, content) in [("small", b"content".to_vec()), ("large", large())] {
        let path = format!("/data/{name}");
        let inode = world.write(&path, &content).await;
        world.server.faults.lock().unwrap().push_back(Fault::Write(inode));
        world.export(&path).await;
        assert_eq!(world.state(&path).await, ObjectState::Exported);
        assert!(fs::read(world.object(name)).unwrap() == content);
    }
}

#[tokio::test]
async fn a_file_that_goes_before_its_turn_is_not_counted_as_done() {
    let world = World::new(LinkMode::ImportExport).await;
    for at in 0..20 {
        world.write(&format!("/data/{at:02}"), b"content").await;
    }
    let remove = command::Remove {
        caller: ROOT,
        parent: world.find("/data").await.unwrap().id,
        name: FileName::parse(b"19").unwrap(),
        directory: false,
        readers: Vec::new(),
    };
    // It was found already, and is not begun before others have ended.
    let fault = Fault::Meanwhile(Box::new(Command::Remove(remove)));
    world.server.faults.lock().unwrap().push_back(fault);
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Succeeded, 0), "{:?}", job.failures);
    assert!(job.files_done <= job.files_total, "{job:?}");
    assert!(world.object("18").exists());
}

#[tokio::test]
async fn a_file_that_is_open_or_fails_is_reported_and_the_others_are_exported() {
    let world = World::new(LinkMode::ImportExport).await;
    let open = world.write("/data/open", b"1").await;
    world.server.open_write(open).await;
    world.write("/data/other", b"2").await;
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!((job.state, job.files_done, job.errors), (JobState::Failed, 1, 1));
    assert_eq!(job.failures[0].failure.kind, ErrorKind::InUse);
    assert!(!world.object("open").exists());
    assert!(world.object("other").exists());
    world.server.commit(open, 1).await;
    world.server.faults.lock().unwrap().push_back(Fault::Fail(ErrorKind::Lost));
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Lost);
    world.export("/data").await;
    assert!(world.object("open").exists());
}

#[tokio::test]
async fn targets_that_do_not_tell_what_buckets_say_export_as_before() {
    let world = World::new(LinkMode::ImportExport).await;
    world.server.troubles.are_older.store(true, Ordering::Relaxed);
    world.write("/data/file", b"content").await;
    world.export("/data/file").await;
    assert_eq!(world.state("/data/file").await, ObjectState::Exported);
    assert_eq!(fs::read(world.object("file")).unwrap(), b"content");
}

#[tokio::test]
async fn a_close_that_is_still_on_its_way_is_waited_for() {
    let world = World::new(LinkMode::ImportExport).await;
    let file = world.write("/data/file", b"1").await;
    world.server.open_write(file).await;
    let close = async {
        // The job has found it open by then.
        tokio::time::sleep(Duration::from_millis(150)).await;
        world.server.commit(file, 1).await;
    };
    let (job, ()) = tokio::join!(world.job(JobKind::Export, "/data"), close);
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert!(world.object("file").exists());
}

#[tokio::test(start_paused = true)]
async fn files_that_stay_open_are_waited_for_at_the_same_time_and_hold_up_no_others() {
    let world = World::new(LinkMode::ImportExport).await;
    for at in 0..200 {
        let file = world.write(&format!("/data/{at:03}"), b"1").await;
        world.server.open_write(file).await;
    }
    let closed = world.write("/data/closed", b"1").await;
    world.server.open_write(closed).await;
    world.write("/data/other", b"1").await;
    let start = StartJob { caller: ROOT, kind: JobKind::Export, path: b"/data".to_vec() };
    let id = world.hydration.start_job(b"", &start).await.unwrap().id;
    let begun = Instant::now();
    let ended = world.hydration.job_ends().notified();
    let close = async {
        // The job has found it open by then.
        tokio::time::sleep(Duration::from_millis(150)).await;
        world.server.commit(closed, 1).await;
        ended.await;
    };
    world.run_beside(close).await;
    // Sixteen at a time would take more than seven.
    assert!(begun.elapsed() < Duration::from_secs(2), "{:?}", begun.elapsed());
    let job = world.hydration.show_job(id).await.unwrap();
    assert_eq!((job.state, job.files_done, job.errors), (JobState::Failed, 2, 200));
    let in_use = |failure: &JobFailure| failure.failure.kind == ErrorKind::InUse;
    assert!(job.failures.iter().all(in_use), "{:?}", job.failures);
    assert!(world.object("closed").exists() && world.object("other").exists());
}

#[tokio::test(start_paused = true)]
async fn files_that_stay_open_are_not_waited_for_again_however_long_they_queue_for_a_slot() {
    let world = World::new(LinkMode::ImportExport).await;
    // Fewer than are waited for at the same time: what is behind them is begun beside that.
    for at in 0..1000 {
        let file = world.write(&format!("/data/{at:03}"), b"1").await;
        world.server.open_write(file).await;
    }
    // These have all slots for longer than a wait counts.
    for at in 0..16 {
        world.write(&format!("/data/slow-{at:02}"), b"1").await;
        world.server.faults.lock().unwrap().push_back(Fault::Stall(Duration::from_secs(2)));
    }
    let start = StartJob { caller: ROOT, kind: JobKind::Export, path: b"/data".to_vec() };
    let id = world.hydration.start_job(b"", &start).await.unwrap().id;
    let begun = Instant::now();
    world.run_beside(world.hydration.job_ends().notified()).await;
    // A second wait, in their slots, would take more than half a minute.
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    let job = world.hydration.show_job(id).await.unwrap();
    assert_eq!((job.state, job.files_done, job.errors), (JobState::Failed, 16, 1000));
}

#[tokio::test]
async fn an_export_that_a_crash_interrupted_is_settled_at_the_next_start() {
    let world = World::new(LinkMode::ImportExport).await;
    let stands = world.write("/data/stands", b"1").await;
    let nothing = world.write("/data/nothing", b"2").await;
    let link = world.hydration.list_links().await.unwrap()[0].id;
    for (inode, name, id) in [(stands, "stands", 7_u128), (nothing, "nothing", 8)] {
        let begin = command::BeginExport {
            inode,
            job: millrace_types::JobId(1),
            export: id,
            link,
            key: name.to_owned(),
            replaces: None,
            part_size: 8 * MIB,
        };
        world.server.execute(Command::BeginExport(begin), true).await.unwrap();
    }
    let mark = PosixAttributes::default().to_metadata(Some(&format!("{:032x}", 7))).unwrap();
    let none = millrace_object_source::Condition::Absent;
    world.bucket.put_small("stands", vec!["1".into()], &mark, &none).await.unwrap();
    let upload = world.bucket.create_upload("nothing", &mark).await.unwrap();
    let record =
        Command::RecordUpload { inode: nothing, export: 8, upload_id: upload.as_str().to_owned() };
    world.server.execute(record, true).await.unwrap();
    // Any job makes the queue run; it begins by settling.
    world.job(JobKind::Release, "/data").await;
    assert_eq!(world.state("/data/stands").await, ObjectState::Exported);
    assert_eq!(world.state("/data/nothing").await, ObjectState::Local);
    let left: Vec<_> = fs::read_dir(world.bucket_dir.path()).unwrap().collect();
    assert_eq!(left.len(), 1, "the upload was given up");
}

/// Each request to it may take a minute, and no job begins before all exports were looked at.
#[tokio::test]
async fn a_bucket_that_is_away_is_asked_once_about_the_exports_of_all_its_links() {
    let world = World::new(LinkMode::ImportExport).await;
    world.link_at("/again", LinkMode::ImportExport).await.unwrap();
    for (at, link) in world.hydration.list_links().await.unwrap().iter().enumerate() {
        let path = format!("{}/file", String::from_utf8_lossy(&link.path));
        let begin = command::BeginExport {
            inode: world.write(&path, b"1").await,
            job: millrace_types::JobId(1),
            export: at as u128,
            link: link.id,
            key: format!("{at}"),
            replaces: None,
            part_size: 8 * MIB,
        };
        world.server.execute(Command::BeginExport(begin), true).await.unwrap();
    }
    let looks = || world.bucket.counters().requests(RequestClass::Head);
    let (before, aside) = (looks(), world.unmount());
    world.job(JobKind::Release, "/data").await;
    world.mount_again(&aside);
    assert_eq!(looks() - before, 1);
}

#[tokio::test]
async fn an_upload_whose_name_was_not_recorded_any_more_does_not_stay_behind() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/large", &large()).await;
    let link = world.hydration.list_links().await.unwrap()[0].id;
    let begin = command::BeginExport {
        inode,
        job: millrace_types::JobId(1),
        export: 7,
        link,
        key: "large".to_owned(),
        replaces: None,
        part_size: 8 * MIB,
    };
    world.server.execute(Command::BeginExport(begin), true).await.unwrap();
    let metadata = PosixAttributes::default().to_metadata(None).unwrap();
    world.bucket.create_upload("large", &metadata).await.unwrap();
    world.bucket.create_upload("large-too", &metadata).await.unwrap();
    world.job(JobKind::Release, "/data").await;
    assert!(world.bucket.list_uploads("large").await.unwrap().is_empty());
    assert_eq!(world.bucket.list_uploads("large-too").await.unwrap().len(), 1, "of another key");
}

#[tokio::test]
async fn a_renamed_file_goes_to_the_key_of_its_new_path() {
    let world = World::new(LinkMode::ImportExport).await;
    let data = world.find("/data").await.unwrap().id;
    world.write("/data/file.tmp", b"1").await;
    world.export("/data").await;
    let rename = command::Rename {
        caller: ROOT,
        source_parent: data,
        source_name: FileName::parse(b"file.tmp").unwrap(),
        target_parent: data,
        target_name: FileName::parse(b"file").unwrap(),
        mode: RenameMode::Replace,
        readers: Vec::new(),
    };
    world.server.execute(Command::Rename(rename), false).await.unwrap();
    world.export("/data").await;
    assert_eq!(fs::read(world.object("file")).unwrap(), b"1");
    world.job(JobKind::Import, "/data").await;
    assert_eq!(world.state("/data/file").await, ObjectState::Exported);
    assert!(world.find("/data/file.tmp").await.is_err(), "the old object stays hidden");
}

#[tokio::test]
async fn a_checkpoint_renamed_over_the_last_one_replaces_its_object() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("model.pt", b"first");
    let data = world.find("/data").await.unwrap().id;
    world.find("/data/model.pt").await.unwrap();
    for content in [b"second", b"third!"] {
        world.write("/data/model.tmp", content).await;
        let rename = command::Rename {
            caller: ROOT,
            source_parent: data,
            source_name: FileName::parse(b"model.tmp").unwrap(),
            target_parent: data,
            target_name: FileName::parse(b"model.pt").unwrap(),
            mode: RenameMode::Replace,
            readers: Vec::new(),
        };
        world.server.execute(Command::Rename(rename), false).await.unwrap();
        world.job(JobKind::Import, "/data").await;
        assert_eq!(world.state("/data/model.pt").await, ObjectState::Local, "no conflict");
        world.export("/data").await;
        assert_eq!(fs::read(world.object("model.pt")).unwrap(), content);
    }
}

#[tokio::test]
async fn an_upload_that_the_bucket_ends_is_begun_again() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/large", &large()).await;
    world.server.faults.lock().unwrap().push_back(Fault::Fail(ErrorKind::Stale));
    world.export("/data").await;
    assert_eq!(world.state("/data/large").await, ObjectState::Exported);
    assert!(fs::read(world.object("large")).unwrap() == large());
    // One that never lasts is told, and not taken for done.
    world.write("/data/large", &large()[1..]).await;
    let stale = || Fault::Fail(ErrorKind::Stale);
    world.server.faults.lock().unwrap().extend([stale(), stale(), stale(), stale(), stale()]);
    world.server.faults.lock().unwrap().extend([stale(), stale(), stale(), stale(), stale()]);
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 1), "{:?}", job.failures);
    assert_eq!(world.state("/data/large").await, ObjectState::Dirty);
}

#[tokio::test]
async fn a_file_of_two_names_is_one_object() {
    let world = World::new(LinkMode::ImportExport).await;
    let data = world.find("/data").await.unwrap().id;
    for (name, content) in [("small", b"content".to_vec()), ("large", large())] {
        let inode = world.write(&format!("/data/{name}"), &content).await;
        let link = command::MakeLink {
            caller: ROOT,
            inode,
            parent: data,
            name: FileName::parse(format!("{name}-too").as_bytes()).unwrap(),
        };
        world.server.execute(Command::MakeLink(link), false).await.unwrap();
    }
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 2), "{:?}", job.failures);
    assert!(fs::read(world.object("large")).unwrap() == large());
    assert_eq!(fs::read(world.object("small")).unwrap(), b"content");
    assert!(!world.object("small-too").exists());
    assert_eq!(world.state("/data/large-too").await, ObjectState::Exported);
}

#[tokio::test]
async fn a_file_in_the_place_of_one_that_is_gone_on_both_sides_is_exported() {
    let world = World::new(LinkMode::ImportExport).await;
    for name in ["small", "large"] {
        world.put(name, b"before");
    }
    for (name, content) in [("small", b"mine".to_vec()), ("large", large())] {
        let (path, data) = (format!("/data/{name}"), world.find("/data").await.unwrap().id);
        world.find(&path).await.unwrap();
        let name_of = FileName::parse(name.as_bytes()).unwrap();
        let remove = command::Remove {
            caller: ROOT,
            parent: data,
            name: name_of,
            directory: false,
            readers: Vec::new(),
        };
        world.server.execute(Command::Remove(remove), false).await.unwrap();
        fs::remove_file(world.object(name)).unwrap();
        world.write(&path, &content).await;
        world.export(&path).await;
        assert!(fs::read(world.object(name)).unwrap() == content);
    }
}

#[tokio::test]
async fn a_file_that_is_truncated_meanwhile_still_knows_its_object() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/file", b"content").await;
    world.export("/data/file").await;
    world.write("/data/file", b"changed").await;
    world.server.faults.lock().unwrap().push_back(Fault::Truncate(inode));
    world.export("/data/file").await;
    assert_eq!(fs::read(world.object("file")).unwrap(), b"", "as it is since");
    assert_eq!(world.state("/data/file").await, ObjectState::Exported);
}

#[tokio::test]
async fn only_a_link_that_exports_exports() {
    let world = World::new(LinkMode::Import).await;
    world.write("/data/file", b"1").await;
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::ReadOnly);
    world.write("/outside", b"1").await;
    let job = world.job(JobKind::Export, "/outside").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn only_the_owner_starts_and_cancels() {
    let world = World::new(LinkMode::ImportExport).await;
    let stranger = Caller { uid: 1000, gid: 1000, groups: Vec::new() };
    let start =
        |caller: &Caller, kind| StartJob { caller: caller.clone(), kind, path: b"/data".to_vec() };
    let refused =
        world.hydration.start_job(b"", &start(&stranger, JobKind::Export)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotPermitted);
    let job = world.hydration.start_job(b"", &start(&stranger, JobKind::Hydrate)).await.unwrap();
    let other = Caller { uid: 1001, ..stranger.clone() };
    let cancel = |caller: &Caller| CancelJob { caller: caller.clone(), id: job.id };
    let refused = world.hydration.cancel_job(&cancel(&other)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotPermitted);
    let cancelled = world.hydration.cancel_job(&cancel(&stranger)).await.unwrap();
    assert_eq!(cancelled.state, JobState::Cancelled);
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!(job.state, JobState::Succeeded, "a cancelled job does not stand in the way");
}
