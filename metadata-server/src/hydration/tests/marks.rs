//! Targets learn which of their blocks an export has put into the bucket; until they know, nothing
//! of the file can be released.

use std::fs;

use millrace_protocol::{
    admin::{FileState, JobKind, JobState, ShowState, StartJob},
    cluster::LinkMode,
};
use millrace_types::{ErrorKind, InodeId, JobId, MIB, SessionId};

use super::server::{ROOT, World};
use crate::{
    command::{self, Command, Opener, Outcome},
    hydration::{Environment as _, import::origin_of, report},
    namespace::ObjectState,
    store::keys,
};

/// Bytes that were sent to the bucket.
fn sent(world: &World) -> u64 {
    world.bucket.counters().bytes_sent()
}

async fn is_known(world: &World, inode: InodeId) -> bool {
    let query = world.server.read(move |view| Ok(view.get(&keys::export(inode)).unwrap()));
    query.await.unwrap().is_some()
}

async fn shown(world: &World, path: &str) -> Option<FileState> {
    let request = ShowState { caller: ROOT, path: path.as_bytes().to_vec() };
    let importer = &world.hydration.importer;
    let reply = report::show(&*world.server, importer, b"", &request).await.unwrap();
    reply.state
}

async fn released(world: &World) -> (JobState, u64) {
    let job = world.job(JobKind::Release, "/data").await;
    (job.state, job.bytes_total)
}

/// A file whose object stands, and whose server ended before it had told the targets.
async fn cut_short(world: &mut World) -> InodeId {
    let inode = world.write("/data/file", b"content").await;
    let link = world.hydration.list_links().await.unwrap()[0].id;
    let begin = command::BeginExport {
        inode,
        job: JobId(1),
        export: 7,
        link,
        key: "file".to_owned(),
        replaces: None,
        part_size: 8 * MIB,
    };
    world.server.execute(Command::BeginExport(begin), true).await.unwrap();
    world.put("file", b"content");
    let version = world.bucket.head("file").await.unwrap().version;
    let origin = origin_of(link, "file".to_owned(), &version);
    let complete = command::CompleteExport { inode, export: 7, origin };
    let outcome = world.server.execute(Command::CompleteExport(complete), true).await.unwrap();
    assert_eq!(outcome, Outcome::Exported(true));
    world.restart();
    inode
}

#[tokio::test]
async fn an_export_is_known_until_the_targets_are_told_also_after_a_crash() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = cut_short(&mut world).await;
    assert!(is_known(&world, inode).await);
    assert_eq!(shown(&world, "/data").await, Some(FileState::Dirty));
    let told = async {
        while is_known(&world, inode).await {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(told).await;
    assert!(!world.server.items_of("mark").is_empty());
    assert_ne!(shown(&world, "/data").await, Some(FileState::Dirty));
    assert_eq!((world.state("/data/file").await, sent(&world)), (ObjectState::Exported, 0));
}

#[tokio::test]
async fn a_file_of_which_the_targets_have_forgotten_what_was_read_is_sent_again() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = cut_short(&mut world).await;
    world.server.marks.lock().unwrap().push_back(ErrorKind::ObjectChanged);
    let reopened = async {
        while world.state("/data/file").await != ObjectState::Dirty {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(reopened).await;
    assert!(!is_known(&world, inode).await);
    world.export("/data").await;
    assert_eq!((world.state("/data/file").await, sent(&world)), (ObjectState::Exported, 7));
    // Within one job too.
    world.write("/data/other", b"123456").await;
    world.server.marks.lock().unwrap().push_back(ErrorKind::ObjectChanged);
    world.export("/data").await;
    assert_eq!((world.state("/data/other").await, sent(&world)), (ObjectState::Exported, 7 + 12));
    assert_eq!(fs::read(world.object("other")).unwrap(), b"123456");
}

#[tokio::test]
async fn one_with_more_than_a_target_remembers_is_sent_once_and_others_not_for_ever() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/file", b"content").await;
    world.server.marks.lock().unwrap().push_back(ErrorKind::FileTooLarge);
    world.export("/data").await;
    assert_eq!((world.state("/data/file").await, sent(&world)), (ObjectState::Exported, 7));
    assert!(!is_known(&world, inode).await);
    world.write("/data/other", b"123456").await;
    world.server.marks.lock().unwrap().extend([ErrorKind::ObjectChanged; 100]);
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::InUse, "{:?}", job.failures);
    assert_eq!((world.state("/data/other").await, sent(&world)), (ObjectState::Dirty, 7 + 60));
}

#[tokio::test]
async fn a_target_that_fails_is_told_later_and_meanwhile_nothing_is_released() {
    // The second one is from before epochs were kept, and will be upgraded.
    for answer in [ErrorKind::Disk, ErrorKind::NotSupported] {
        let world = World::new(LinkMode::ImportExport).await;
        world.put("file", b"imports");
        let inode = world.write("/data/file", b"content").await;
        world.server.marks.lock().unwrap().extend([answer; 100]);
        world.export("/data").await;
        assert_eq!((world.state("/data/file").await, sent(&world)), (ObjectState::Exported, 7));
        assert!(is_known(&world, inode).await, "{answer:?}");
        assert_eq!(shown(&world, "/data").await, Some(FileState::Dirty));
        assert_eq!(released(&world).await, (JobState::Succeeded, 0));
        assert!(world.server.items_of("release").is_empty());
        world.server.marks.lock().unwrap().clear();
        let told = async {
            while is_known(&world, inode).await {
                tokio::task::yield_now().await;
            }
        };
        world.run_beside(told).await;
        assert_eq!(released(&world).await, (JobState::Succeeded, 7));
    }
}

#[tokio::test]
async fn targets_that_have_yet_to_cut_a_file_are_told_of_its_export_later() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/file", b"contents").await;
    let cut = command::SetAttributes { inode, size: Some(7), ..Default::default() };
    world.server.execute(Command::SetAttributes(cut), true).await.unwrap();
    world.server.files.lock().unwrap().insert(inode, b"content".to_vec());
    world.export("/data").await;
    assert_eq!((world.state("/data/file").await, sent(&world)), (ObjectState::Exported, 7));
    assert!(is_known(&world, inode).await);
    assert!(world.server.items_of("mark").is_empty(), "they would not cut it any more");
    let write_epoch = world.find("/data/file").await.unwrap().content().unwrap().write_epoch;
    world.server.execute(Command::Trimmed { inode, write_epoch }, true).await.unwrap();
    let told = async {
        while is_known(&world, inode).await {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(told).await;
    let marks = world.server.items_of("mark");
    assert_eq!(marks[0].content.write_epoch, write_epoch, "from there on others are refused");
}

/// Exports a file whose targets cannot be told of it, and changes the file. How often targets are
/// asked from then on, the first time with this answer, until the export is forgotten.
async fn asked_behind(
    world: &World,
    inode: InodeId,
    change: Command,
    answer: Option<ErrorKind>,
) -> usize {
    world.server.marks.lock().unwrap().extend([ErrorKind::Disk; 100]);
    let request = StartJob { caller: ROOT, kind: JobKind::Export, path: b"/data".to_vec() };
    world.hydration.start_job(b"", &request).await.unwrap();
    let asked = || world.server.items_of("mark").len();
    let before = asked();
    // Within one run: the next one would settle what this one left.
    let behind = async {
        while asked() == before {
            tokio::task::yield_now().await;
        }
        world.server.execute(change, true).await.unwrap();
        *world.server.marks.lock().unwrap() = answer.into_iter().collect();
        let before = asked();
        while is_known(world, inode).await {
            tokio::task::yield_now().await;
        }
        asked() - before
    };
    world.run_beside(behind).await
}

#[tokio::test]
async fn what_was_written_since_is_not_taken_for_the_objects() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/file", b"content").await;
    let opener = Opener { session: SessionId(1), inode };
    let open = command::OpenWrite { caller: None, opener, truncate: false };
    assert_eq!(asked_behind(&world, inode, Command::OpenWrite(open), None).await, 0);
    assert_eq!(world.state("/data/file").await, ObjectState::Dirty);
}

#[tokio::test]
async fn what_has_another_mode_since_is_still_the_objects() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/file", b"content").await;
    let (caller, mode) = (Some(ROOT), Some(0o600));
    let set = command::SetAttributes { caller, inode, mode, ..Default::default() };
    assert!(asked_behind(&world, inode, Command::SetAttributes(set), None).await > 0);
    assert_eq!((world.state("/data/file").await, sent(&world)), (ObjectState::Exported, 7));
}

#[tokio::test]
async fn what_has_another_mode_since_is_sent_again_where_targets_have_forgotten_what_was_read() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/file", b"content").await;
    let (caller, mode) = (Some(ROOT), Some(0o600));
    let set = command::SetAttributes { caller, inode, mode, ..Default::default() };
    let forgotten = Some(ErrorKind::ObjectChanged);
    assert!(asked_behind(&world, inode, Command::SetAttributes(set), forgotten).await > 0);
    assert_eq!(world.state("/data/file").await, ObjectState::Dirty);
    world.export("/data").await;
    assert_eq!((world.state("/data/file").await, sent(&world)), (ObjectState::Exported, 14));
}

#[tokio::test]
async fn a_file_that_was_written_to_meanwhile_is_not_touched() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = cut_short(&mut world).await;
    world.server.open_write(inode).await;
    let reopen = || Command::ReopenExport { inode, export: 7 };
    let before = world.find("/data/file").await.unwrap();
    world.server.execute(reopen(), true).await.unwrap();
    assert_eq!(world.find("/data/file").await.unwrap(), before);
    let twice = world.server.execute(reopen(), true).await.unwrap_err();
    assert_eq!(twice.kind, ErrorKind::NotFound);
}
