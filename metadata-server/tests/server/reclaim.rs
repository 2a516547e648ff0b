//! The reclaim queue: what a target says it has freed leaves it, unless that was said of another
//! run of the server.

use std::time::Duration;

use millrace_metadata_server::{
    command::{Command, CreateUnnamed, Format, OpenSession, ReclaimOrphans, RegisterHost},
    engine::{Core, EngineSettings, StoreKind},
    namespace::tree,
    ops::{self, Client},
    store::{
        keys,
        records::{self, FileSystem, ReclaimRecord},
    },
};
use millrace_protocol::{
    cluster::{AcknowledgeReclaim, FetchReclaim},
    session::{Caller, Role},
    target::ContentName,
};
use millrace_types::{ByteLen, ContentGeneration, HostId, InodeId, SessionId, TargetId};

use crate::{
    engine::{Server, settings},
    levels::Log,
};

const TARGET: TargetId = TargetId([3; 8]);
const HOST: HostId = HostId([4; 16]);

fn daemon() -> Client {
    Client {
        role: Role::Target,
        host: HOST,
        fingerprint: [0; 32],
        subtree: None,
        squash_root: false,
        settled: Vec::new(),
    }
}

fn register(server: &Server) {
    let register = RegisterHost {
        host: HOST,
        name: "store-1".to_owned(),
        addresses: vec!["127.0.0.1:7000".to_owned()],
        targets: vec![(TARGET, ByteLen(1 << 30))],
    };
    server.turn(|core| core.execute(None, Command::RegisterHost(register))).unwrap();
}

/// Puts one content into the queue, which no file has.
fn queue(server: &Server) {
    server.turn(|core| {
        let content =
            ContentName { inode: core.new_inode_id().unwrap(), generation: ContentGeneration(1) };
        let reclaim = ReclaimOrphans { target: TARGET, contents: vec![content] };
        core.execute(None, Command::ReclaimOrphans(reclaim)).unwrap();
        core.syncer().sync_all().unwrap();
    });
}

/// The positions that the target is told.
fn told(server: &Server, entries_max: u32) -> Vec<u64> {
    let fetch = FetchReclaim { target: TARGET, entries_max };
    let work = move |core: &mut _| ops::cluster::reclaim(core, &daemon(), &fetch);
    let (batch, _) = server.turn(work).unwrap();
    batch.entries.iter().map(|entry| entry.position).collect()
}

fn acknowledge(server: &Server, through: u64) {
    let done = AcknowledgeReclaim { target: TARGET, through };
    let work = move |core: &mut _| ops::cluster::acknowledge_reclaim(core, &daemon(), &done);
    drop(server.turn(work).unwrap());
}

#[test]
fn a_target_that_is_full_is_told_of_what_is_not_synced_yet_and_what_to_wait_for() {
    let dir = tempfile::tempdir().unwrap();
    let (settings, time) = settings(dir.path(), StoreKind::Memory);
    // Nothing is synced before somebody waits for it.
    let settings = EngineSettings { sync_interval: Duration::from_secs(3600), ..settings };
    let server = Server::start_with(settings, time);
    register(&server);
    queue(&server);
    server.turn(|core| {
        let content =
            ContentName { inode: core.new_inode_id().unwrap(), generation: ContentGeneration(1) };
        let reclaim = ReclaimOrphans { target: TARGET, contents: vec![content] };
        core.execute(None, Command::ReclaimOrphans(reclaim)).unwrap();
    });
    assert_eq!(told(&server, 100).len(), 1, "the other may be lost with the power");
    let fetch = FetchReclaim { target: TARGET, entries_max: FetchReclaim::AT_ONCE };
    let asked = move |core: &mut Core| {
        let answer = ops::cluster::reclaim(core, &daemon(), &fetch);
        (answer, core.last_index(), core.syncer().state().synced)
    };
    let (answer, last, synced) = server.turn(asked);
    let (batch, index) = answer.unwrap();
    assert_eq!((batch.entries.len(), index), (2, last));
    assert!(synced < last, "the answer waits until it is");
}

#[test]
fn what_was_freed_for_another_run_of_the_server_is_told_once_more_and_never_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), StoreKind::Memory);
    register(&server);
    queue(&server);
    queue(&server);
    // Late, of a log that went on further than this one does.
    acknowledge(&server, u64::MAX);
    let all = told(&server, 100);
    assert_eq!(all.len(), 2);
    server.restart();
    acknowledge(&server, all[1]);
    assert_eq!(told(&server, 1), all[..1], "this run has told nothing yet");
    acknowledge(&server, all[1]);
    assert_eq!(told(&server, 100), all[1..], "no more than was told");
    acknowledge(&server, all[1]);
    assert!(told(&server, 100).is_empty());
}

/// A cluster of so many targets, in which a session has so many files without names open.
fn with_nameless(level: u32, targets: u64, files: u64) -> Log {
    let mut log = Log::default();
    log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 })).unwrap();
    log.apply(Command::SetFeatureLevel(level)).unwrap();
    let targets = (0..targets).map(|number| (target(number), ByteLen(1 << 40)));
    log.apply(Command::RegisterHost(RegisterHost {
        host: HOST,
        name: "store-1".to_owned(),
        addresses: vec!["127.0.0.1:7000".to_owned()],
        targets: targets.collect(),
    }))
    .unwrap();
    let open = OpenSession { host: HOST, host_name: "gpu-1".to_owned(), nonce: 1 };
    log.apply(Command::OpenSession(open)).unwrap();
    for number in 0..files {
        let create = CreateUnnamed {
            caller: Caller::ROOT,
            directory: InodeId::ROOT,
            inode: InodeId(100 + number),
            seed: 0,
            mode: 0o600,
            umask: 0,
            session: SessionId(1),
            nameable: false,
        };
        log.apply(Command::CreateUnnamed(create)).unwrap();
    }
    log
}

fn target(number: u64) -> TargetId {
    TargetId(number.to_be_bytes())
}

/// The places within its command of what a target is to free.
fn places(log: &Log, number: u64) -> Vec<u64> {
    let queue = keys::reclaims_of(target(number));
    let queued = tree::scan::<ReclaimRecord>(&log.store, &queue, usize::MAX).unwrap();
    queued.iter().map(|(key, _)| keys::number_at(key, 9).unwrap() % (1 << 18)).collect()
}

#[test]
fn places_in_the_queues_are_counted_for_each_target_from_the_eighteenth_level_on() {
    for (level, expected) in [(17, [[0, 2], [1, 3]]), (18, [[0, 1], [0, 1]])] {
        let mut log = with_nameless(level, 2, 2);
        log.apply(Command::CloseSession(SessionId(1))).unwrap();
        assert_eq!([places(&log, 0), places(&log, 1)], expected, "level {level}");
    }
}

/// What a restore has put into a log of any level, and the end of a session.
#[test]
fn one_command_frees_what_many_targets_have_of_many_files() {
    const TARGETS: u64 = 512;
    const FILES: u64 = 513;
    let restored = Command::Restored("a backup was put back".to_owned());
    for (level, command) in [(17, restored), (18, Command::CloseSession(SessionId(1)))] {
        let mut log = with_nameless(level, TARGETS, FILES);
        log.apply(command).unwrap();
        let found = records::read::<FileSystem>(&log.store, &keys::file_system());
        assert_eq!(found.unwrap().unwrap().reclaim_entries, TARGETS * FILES);
        for number in [0, TARGETS - 1] {
            assert_eq!(places(&log, number), Vec::from_iter(0..FILES));
        }
    }
}
