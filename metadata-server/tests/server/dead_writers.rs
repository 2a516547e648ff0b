//! What a writer has sent to the targets and not told of when its session ends.

use millrace_metadata_server::{
    command::{
        Command, Commit, Create, Format, OpenSession, OpenWrite, Opener, RegisterHost, Remove,
        SetAttributes,
    },
    namespace::{Inode, tree},
    store::{
        keys,
        records::{self, TrimRecord},
    },
};
use millrace_protocol::{metadata::NewNode, session::Caller};
use millrace_types::{
    ByteLen, ContentGeneration, ErrorKind, FileName, HostId, InodeId, SessionId, TargetId,
    WriteEpoch,
};

use crate::levels::Log;

const FILE: InodeId = InodeId(100);
const DEAD: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);
const THIRD: SessionId = SessionId(3);

/// Three mounts, of which the first has made a file and writes it.
fn written(level: u32) -> Log {
    let mut log = Log::default();
    log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 })).unwrap();
    log.apply(Command::SetFeatureLevel(level)).unwrap();
    log.apply(Command::RegisterHost(RegisterHost {
        host: HostId([1; 16]),
        name: "store".to_owned(),
        addresses: vec!["127.0.0.1:1".to_owned()],
        targets: vec![(TargetId([1; 8]), ByteLen(1 << 40))],
    }))
    .unwrap();
    for nonce in [1, 2, 3] {
        let (host, host_name) = (HostId([7; 16]), "gpu".to_owned());
        log.apply(Command::OpenSession(OpenSession { host, host_name, nonce })).unwrap();
    }
    let create = Create {
        caller: Caller::ROOT,
        parent: InodeId::ROOT,
        name: FileName::parse(b"file").unwrap(),
        node: NewNode::Regular,
        mode: 0o644,
        inode: FILE,
        seed: 0,
        open: Some(DEAD),
        exclusive: true,
    };
    log.apply(Command::Create(create)).unwrap();
    log
}

fn open(log: &mut Log, session: SessionId, truncate: bool) {
    let opener = Opener { session, inode: FILE };
    log.apply(Command::OpenWrite(OpenWrite { caller: None, opener, truncate })).unwrap();
}

fn commit(log: &mut Log, write_epoch: u32, end: u64) {
    let (generation, write_epoch) = (ContentGeneration(1), WriteEpoch(write_epoch));
    let written_at = None;
    log.apply(Command::Commit(Commit { inode: FILE, generation, write_epoch, end, written_at }))
        .unwrap();
}

fn file(log: &Log) -> Inode {
    tree::inode(&log.store, FILE).unwrap()
}

/// Generation and write epoch.
fn version(log: &Log) -> (u32, u32) {
    let content = file(log).content().unwrap();
    (content.generation.0, content.write_epoch.0)
}

#[test]
fn bytes_of_a_dead_writer_do_not_come_back_after_a_truncation_from_the_nineteenth_level_on() {
    for (level, generation) in [(18, 1), (19, 2)] {
        let mut log = written(level);
        let before = file(&log).change_count;
        log.apply(Command::CloseSession(DEAD)).unwrap();
        assert_eq!(version(&log), (1, if level == 19 { 2 } else { 1 }));
        assert_eq!(file(&log).change_count > before, level == 19, "what is kept of it is old");
        open(&mut log, OTHER, true);
        assert_eq!(version(&log).0, generation, "level {level}");
    }
    let mut log = written(19);
    log.apply(Command::CloseSession(DEAD)).unwrap();
    let set = SetAttributes { inode: FILE, size: Some(0), ..SetAttributes::default() };
    log.apply(Command::SetAttributes(set)).unwrap();
    assert_eq!(version(&log).0, 2, "by its name");
}

#[test]
fn what_others_write_meanwhile_counts_although_a_writer_has_died() {
    let mut log = written(19);
    open(&mut log, OTHER, false);
    log.apply(Command::CloseSession(DEAD)).unwrap();
    commit(&mut log, 1, 5);
    assert_eq!((file(&log).size, version(&log)), (5, (1, 1)));

    let mut log = written(19);
    open(&mut log, OTHER, false);
    log.apply(Command::CloseSession(DEAD)).unwrap();
    let opener = Opener { session: OTHER, inode: FILE };
    log.apply(Command::CloseWrite(opener)).unwrap();
    open(&mut log, THIRD, true);
    assert_eq!(version(&log).0, 2, "nobody has told of a byte");
}

#[test]
fn what_a_dead_writer_has_told_of_stays_and_the_rest_is_trimmed_before_the_file_grows() {
    for size in [0, 7] {
        let mut log = written(19);
        if size > 0 {
            commit(&mut log, 1, size);
        }
        let before = file(&log);
        log.apply(Command::CloseSession(DEAD)).unwrap();
        assert_eq!((file(&log).size, version(&log)), (size, (1, 2)));
        assert_eq!(file(&log).modified, before.modified);
        let trim: TrimRecord = records::read(&log.store, &keys::trim(FILE)).unwrap().unwrap();
        let content = file(&log).content().unwrap();
        let want = (content.generation, content.write_epoch, content.layout, size);
        assert_eq!((trim.generation, trim.write_epoch, trim.layout, trim.size), want);

        let grow = SetAttributes { inode: FILE, size: Some(48), ..SetAttributes::default() };
        let grow = Command::SetAttributes(grow);
        assert_eq!(log.apply(grow.clone()), Err(ErrorKind::Busy), "from {size}");
        open(&mut log, OTHER, false);
        let write_epoch = WriteEpoch(2);
        log.apply(Command::Trimmed { inode: FILE, write_epoch }).unwrap();
        log.apply(grow).unwrap();
        assert_eq!((file(&log).size, version(&log)), (48, (1, 2)));
        open(&mut log, OTHER, true);
        assert_eq!(version(&log).0, 2, "as any content with bytes");
    }
}

#[test]
fn who_has_closed_leaves_nothing() {
    let mut log = written(19);
    log.apply(Command::CloseWrite(Opener { session: DEAD, inode: FILE })).unwrap();
    let before = file(&log);
    log.apply(Command::CloseSession(DEAD)).unwrap();
    assert_eq!(file(&log), before);
    open(&mut log, OTHER, true);
    assert_eq!(version(&log), (1, 1), "it has no byte anywhere");
}

#[test]
fn a_dead_writer_counts_also_for_who_has_the_file_open_without_a_name() {
    for writes in [true, false] {
        let mut log = written(19);
        if writes {
            open(&mut log, OTHER, false);
        }
        let name = FileName::parse(b"file").unwrap();
        log.apply(Command::Remove(Remove {
            caller: Caller::ROOT,
            parent: InodeId::ROOT,
            name,
            directory: false,
            readers: vec![THIRD],
        }))
        .unwrap();
        log.apply(Command::CloseSession(DEAD)).unwrap();
        open(&mut log, OTHER, true);
        assert_eq!(version(&log).0, 2, "another one writes: {writes}");
    }
}
