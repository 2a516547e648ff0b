//! Files that are opened for writing and not written are what they were before.

use millrace_metadata_server::{
    command::{
        BeginExport, Command, Commit, CompleteExport, FoundObject, ImportEntries, ImportEntry,
        ImportKind, ObserveObject, OpenSession, OpenWrite, Opener, RegisterHost, Remove,
        ResolveConflict, SetAttributes,
    },
    namespace::{FileBody, ObjectState, tree},
    store::{View as _, keys},
};
use millrace_protocol::{admin::Keep, capability::Origin, cluster::LinkMode, session::Caller};
use millrace_types::{
    ByteLen, ErrorKind, FileName, HostId, InodeId, JobId, LinkId, MIB, SessionId, TargetId,
    Timestamp,
};

use crate::levels::{Log, linked};

const FILE: InodeId = InodeId(20);
const ONE: SessionId = SessionId(1);
const OTHER: SessionId = SessionId(2);

/// The id of an export.
const EXPORT: u128 = 7;

/// An imported file, and two mounts.
struct World(Log);

impl World {
    fn start() -> Self {
        Self::at_level(16)
    }

    fn at_level(feature_level: u32) -> Self {
        let mut world = Self(linked(LinkMode::ImportExport));
        world.apply(Command::RegisterHost(RegisterHost {
            host: HostId([1; 16]),
            name: "store".to_owned(),
            addresses: vec!["127.0.0.1:1".to_owned()],
            targets: vec![(TargetId([1; 8]), ByteLen(1 << 40))],
        }));
        world.apply(Command::SetFeatureLevel(feature_level));
        for nonce in [1, 2] {
            let (host, host_name) = (HostId([7; 16]), "gpu".to_owned());
            world.apply(Command::OpenSession(OpenSession { host, host_name, nonce }));
        }
        let entry = ImportEntry {
            name: name(),
            inode: FILE,
            seed: 0,
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: Timestamp(0),
            kind: ImportKind::File(origin("1")),
        };
        let import = ImportEntries { directory: InodeId(2), entries: vec![entry] };
        world.apply(Command::ImportEntries(import));
        world
    }

    fn apply(&mut self, command: Command) {
        self.0.apply(command).unwrap();
    }

    fn open_as(&mut self, session: SessionId, truncate: bool) {
        let opener = Opener { session, inode: FILE };
        self.apply(Command::OpenWrite(OpenWrite { caller: None, opener, truncate }));
        assert_ne!(self.state(), ObjectState::Clean, "somebody may be writing it");
    }

    fn open(&mut self, session: SessionId) {
        self.open_as(session, false);
    }

    /// Closes without a write.
    fn close(&mut self, session: SessionId) {
        self.apply(Command::CloseUnwritten { session, inodes: vec![FILE] });
    }

    fn begin_export(&mut self) {
        let (export, link, key) = (EXPORT, LinkId(1), "a".to_owned());
        let (job, replaces, part_size) = (JobId(1), Some("1".to_owned()), 8 * MIB);
        let begin = BeginExport { inode: FILE, job, export, link, key, replaces, part_size };
        self.apply(Command::BeginExport(begin));
    }

    fn complete_export(&mut self) {
        let complete = CompleteExport { inode: FILE, export: EXPORT, origin: origin("2") };
        self.apply(Command::CompleteExport(complete));
    }

    /// Exports it. The targets have not heard of that yet.
    fn export(&mut self) {
        self.begin_export();
        self.complete_export();
    }

    fn file(&self) -> FileBody {
        tree::inode(&self.0.store, FILE).unwrap().file().unwrap().clone()
    }

    fn state(&self) -> ObjectState {
        self.file().state
    }

    /// Whether it is known what the file was.
    fn is_remembered(&self) -> bool {
        self.0.store.get(&keys::pristine(FILE)).unwrap().is_some()
    }

    fn observe(&mut self, tag: &str) {
        let found = Some(found(tag));
        let known = self.file().origin.map(|origin| origin.tag);
        self.apply(Command::ObserveObject(ObserveObject { inode: FILE, known, found }));
    }
}

fn name() -> FileName {
    FileName::parse(b"a").unwrap()
}

fn origin(tag: &str) -> Origin {
    let (link, key, tag) = (LinkId(1), "a".to_owned(), tag.to_owned());
    Origin { link, key, size: 5, tag, modified: Timestamp(0) }
}

fn found(tag: &str) -> FoundObject {
    FoundObject { origin: origin(tag), modified: Timestamp(0) }
}

#[test]
fn after_the_last_close_without_a_write_the_file_is_what_it_was() {
    let mut world = World::start();
    let before = world.file();
    world.open(ONE);
    world.open(OTHER);
    world.open(ONE);
    for session in [ONE, OTHER] {
        world.close(session);
        assert_eq!(world.state(), ObjectState::Dirty, "another one may be writing");
    }
    // What is no open any more changes nothing.
    world.close(OTHER);
    assert_eq!(world.state(), ObjectState::Dirty);
    world.close(ONE);
    assert_eq!(world.file(), before);
    assert!(!world.is_remembered());
}

/// What happens to a file that two mounts have open.
type Event = fn(&mut World);

#[test]
fn a_file_that_somebody_may_have_written_stays_dirty() {
    let written: [(&str, Event); 7] = [
        ("a close of who wrote", |world| {
            world.apply(Command::CloseWrites { session: OTHER, inodes: vec![FILE] });
        }),
        ("a close that says nothing", |world| {
            world.apply(Command::CloseWrite(Opener { session: OTHER, inode: FILE }));
        }),
        ("the end of a writer's session", |world| world.apply(Command::CloseSession(OTHER))),
        ("a commit", |world| {
            let FileBody { generation, write_epoch, .. } = world.file();
            let written_at = Some(Timestamp(9));
            let commit = Commit { inode: FILE, generation, write_epoch, end: 5, written_at };
            world.apply(Command::Commit(commit));
        }),
        ("a restart of the server", |world| world.apply(Command::BeginRun(7))),
        ("another size", |world| {
            let set = SetAttributes { inode: FILE, size: Some(6), ..SetAttributes::default() };
            world.apply(Command::SetAttributes(set));
        }),
        ("no size", |world| world.open_as(ONE, true)),
    ];
    for (what, event) in written {
        let mut world = World::start();
        world.open(ONE);
        world.open(OTHER);
        event(&mut world);
        for session in [ONE, ONE, OTHER] {
            world.close(session);
        }
        assert_eq!(world.state(), ObjectState::Dirty, "{what}");
        assert!(!world.is_remembered(), "{what}");
        // Nor is it clean after the next one that does not write.
        world.open(ONE);
        world.close(ONE);
        assert_eq!(world.state(), ObjectState::Dirty, "{what}");
    }
}

#[test]
fn what_seemed_to_be_a_conflict_is_none_when_nobody_has_written() {
    let mut world = World::start();
    world.open(ONE);
    world.observe("2");
    assert_eq!(world.state(), ObjectState::Conflict);
    world.close(ONE);
    assert_eq!(world.state(), ObjectState::Clean);
    assert!(world.0.store.get(&keys::conflict(FILE)).unwrap().is_none());
    world.observe("2");
    assert_eq!(
        (world.state(), world.file().origin.unwrap().tag.as_str()),
        (ObjectState::Clean, "2")
    );

    world.open(ONE);
    world.observe("3");
    let found = Some(found("3"));
    let (caller, keep) = (Caller::ROOT, Keep::Local);
    world.apply(Command::ResolveConflict(ResolveConflict { caller, inode: FILE, keep, found }));
    world.close(ONE);
    assert_eq!(world.state(), ObjectState::Dirty, "somebody has decided");
    assert!(!world.is_remembered());
}

#[test]
fn an_exported_file_is_so_again_once_its_targets_know() {
    for are_told in [false, true] {
        let mut world = World::start();
        world.open(ONE);
        world.apply(Command::CloseWrites { session: ONE, inodes: vec![FILE] });
        world.export();
        assert_eq!(world.state(), ObjectState::Exported);
        if are_told {
            world.apply(Command::AbortExport { inode: FILE, export: EXPORT });
        }
        world.open(ONE);
        world.close(ONE);
        let expected = if are_told { ObjectState::Exported } else { ObjectState::Dirty };
        assert_eq!(world.state(), expected, "told: {are_told}");
        assert!(!world.is_remembered());
    }
}

#[test]
fn an_export_begins_another_write_epoch_and_ends_holes_from_the_twentieth_level_on() {
    for level in [19, 20] {
        let mut world = World::at_level(level);
        world.open(ONE);
        let set = SetAttributes { inode: FILE, make_sparse: true, ..SetAttributes::default() };
        world.apply(Command::SetAttributes(set));
        world.apply(Command::CloseWrites { session: ONE, inodes: vec![FILE] });
        let before = world.file();
        world.export();
        let after = world.file();
        assert_eq!((before.sparse, after.sparse), (true, level < 20), "level {level}");
        let epoch = if level < 20 { before.write_epoch } else { before.write_epoch.next() };
        assert_eq!((after.write_epoch, after.generation), (epoch, before.generation));
    }
    // What is written while it is sent is written in the epoch that its writer knows.
    let mut world = World::at_level(20);
    world.open(ONE);
    world.apply(Command::CloseWrites { session: ONE, inodes: vec![FILE] });
    world.begin_export();
    world.open(OTHER);
    let before = world.file().write_epoch;
    world.complete_export();
    assert_eq!((world.state(), world.file().write_epoch), (ObjectState::Dirty, before));
}

#[test]
fn a_file_that_lost_its_name_meanwhile_leaves_nothing() {
    let mut world = World::start();
    world.open(ONE);
    let (caller, parent, directory) = (Caller::ROOT, InodeId(2), false);
    let remove = Remove { caller, parent, name: name(), directory, readers: Vec::new() };
    world.apply(Command::Remove(remove));
    world.close(ONE);
    assert!(tree::find(&world.0.store, FILE).unwrap().is_none());
    assert!(!world.is_remembered());
}

#[test]
fn before_the_sixteenth_level_an_open_alone_makes_a_file_dirty() {
    let mut world = World::at_level(15);
    world.open(ONE);
    assert!(!world.is_remembered());
    let close = Command::CloseUnwritten { session: ONE, inodes: vec![FILE] };
    assert_eq!(world.0.apply(close), Err(ErrorKind::NotSupported));
    world.apply(Command::CloseWrite(Opener { session: ONE, inode: FILE }));
    assert_eq!(world.state(), ObjectState::Dirty);
}
