//! Directories that were imported with the time of their mark, and what becomes of them when they
//! are gone from their bucket.

use millrace_metadata_server::{
    command::{
        Command, Create, DropDirectory, ImportEntries, ImportEntry, ImportKind, SetAttributes,
        SetTime,
    },
    namespace::{Inode, tree},
};
use millrace_protocol::{cluster::LinkMode, metadata::NewNode, session::Caller};
use millrace_types::{FileName, InodeId, Timestamp};

use crate::levels::{Log, linked};

const DATA: InodeId = InodeId(2);
const DIRECTORY: InodeId = InodeId(100);

fn name() -> FileName {
    FileName::parse(b"d").unwrap()
}

/// Imports it with a time.
fn import(log: &mut Log, modified: Timestamp) {
    let entry = ImportEntry {
        name: name(),
        inode: DIRECTORY,
        seed: 0,
        mode: 0o755,
        uid: 0,
        gid: 0,
        modified,
        kind: ImportKind::Directory,
    };
    let import = ImportEntries { directory: DATA, entries: vec![entry] };
    log.apply(Command::ImportEntries(import)).unwrap();
    log.apply(Command::MarkDirectoryListed(DIRECTORY)).unwrap();
}

/// It, unless it goes when its bucket has nothing of it any more.
fn gone_there(log: &mut Log) -> Option<Inode> {
    let drop = DropDirectory { parent: DATA, name: name(), inode: DIRECTORY };
    log.apply(Command::DropDirectory(drop)).unwrap();
    tree::find(&log.store, DIRECTORY).unwrap()
}

fn set(log: &mut Log, set: SetAttributes) {
    let set = SetAttributes { inode: DIRECTORY, caller: Some(Caller::ROOT), ..set };
    log.apply(Command::SetAttributes(set)).unwrap();
}

#[test]
fn from_the_twenty_fifth_level_on_an_imported_directory_goes_also_with_the_time_of_its_mark() {
    let mut log = linked(LinkMode::Import);
    log.apply(Command::SetFeatureLevel(24)).unwrap();
    import(&mut log, Timestamp(1));
    assert_eq!(gone_there(&mut log).unwrap().modified, Timestamp(1), "an older log");
    log.apply(Command::SetFeatureLevel(25)).unwrap();
    assert_eq!(gone_there(&mut log), None);
    for later in [Timestamp(i64::MAX), Timestamp(0)] {
        let mut log = linked(LinkMode::Import);
        log.apply(Command::SetFeatureLevel(25)).unwrap();
        import(&mut log, later);
        let inode = tree::find(&log.store, DIRECTORY).unwrap().unwrap();
        assert_eq!(inode.modified, Timestamp(0), "no time from its import on is taken");
        assert_eq!(gone_there(&mut log), None);
    }
}

#[test]
fn a_directory_that_was_changed_or_made_here_stays_whatever_its_time_is() {
    let past = Some(SetTime::At(Timestamp(1)));
    for change in [
        SetAttributes { mode: Some(0o700), ..Default::default() },
        SetAttributes { modified: past, ..Default::default() },
    ] {
        let mut log = linked(LinkMode::Import);
        log.apply(Command::SetFeatureLevel(25)).unwrap();
        import(&mut log, Timestamp(1));
        set(&mut log, change);
        assert!(gone_there(&mut log).is_some());
    }

    let mut log = linked(LinkMode::Import);
    log.apply(Command::SetFeatureLevel(25)).unwrap();
    let directory = Create {
        caller: Caller::ROOT,
        parent: DATA,
        name: name(),
        node: NewNode::Directory,
        mode: 0o755,
        inode: DIRECTORY,
        seed: 0,
        open: None,
        exclusive: true,
    };
    log.apply(Command::Create(directory)).unwrap();
    log.apply(Command::MarkDirectoryListed(DIRECTORY)).unwrap();
    assert!(gone_there(&mut log).is_some());
    set(&mut log, SetAttributes { modified: past, ..Default::default() });
    assert_eq!(gone_there(&mut log).unwrap().modified, Timestamp(1), "as who copies one sets it");
}
