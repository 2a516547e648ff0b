//! What a removed name hides of what its bucket has, and which names go with their link.

use millrace_protocol::{
    cluster::{Bucket, LinkMode},
    metadata::{NewNode, RenameMode},
    session::Caller,
};
use millrace_types::{ByteLen, HostId, JobId, LinkId, LogIndex, TargetId};

use super::*;
use crate::{
    apply::apply,
    command::{
        AddLink, BeginExport, Command, CompleteExport, Create, DropDirectory, Envelope,
        ForgetDeletion, ForgetEntries, Format, RegisterHost, Remove, Rename,
    },
    store::{MetaStore as _, View as _, memory::MemoryStore, records::DeletionRecord},
};

/// The directory of the link.
const TOP: InodeId = InodeId(2);

/// The only name there.
const NAME: &[u8] = b"a";

struct Log {
    store: MemoryStore,
    last: LogIndex,
}

impl Log {
    /// A link at this feature level.
    fn linked(level: u32) -> Self {
        let mut log = Self { store: MemoryStore::default(), last: LogIndex(0) };
        log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 }));
        let mut tx = Transaction::new(&log.store, log.last, Timestamp(1));
        tx.change_file_system(|fs| fs.feature_level = level).unwrap();
        let (batch, _) = tx.finish();
        log.store.commit(&batch).unwrap();
        log.apply(Command::RegisterHost(RegisterHost {
            host: HostId([1; 16]),
            name: "store".to_owned(),
            addresses: vec!["127.0.0.1:1".to_owned()],
            targets: vec![(TargetId([1; 8]), ByteLen(1 << 40))],
        }));
        log.create(InodeId::ROOT, b"data", NewNode::Directory, TOP);
        let bucket =
            Bucket { url: "s3://b".to_owned(), endpoint: None, region: None, credentials: None };
        let (prefix, mode) = (String::new(), LinkMode::Import);
        log.apply(Command::AddLink(AddLink { directory: TOP, bucket, prefix, mode }));
        log
    }

    fn apply(&mut self, command: Command) {
        self.try_apply(command).unwrap();
    }

    fn try_apply(&mut self, command: Command) -> Result<(), ApplyError> {
        let index = self.last.next();
        let time = Timestamp(i64::try_from(index.0).unwrap());
        let envelope = Envelope { time, operation: None, command };
        let effect = apply(&self.store, index, &envelope)?;
        self.store.commit(&effect.batch).unwrap();
        self.last = index;
        Ok(())
    }

    /// The object of the name was queued at this moment.
    fn queue(&mut self, queued: Timestamp) {
        let mut tx = Transaction::new(&self.store, self.last, Timestamp(1));
        let record = DeletionRecord { tag: "first".to_owned(), inodes: Vec::new(), queued };
        tx.put(keys::deletion(LinkId(1), "a"), &record);
        let (batch, _) = tx.finish();
        self.store.commit(&batch).unwrap();
    }

    fn import(&mut self, inode: u64, kind: ImportKind) {
        let entry = ImportEntry {
            name: name(NAME),
            inode: InodeId(inode),
            seed: 0,
            mode: 0o644,
            uid: 0,
            gid: 0,
            modified: Timestamp(0),
            kind,
        };
        let import = ImportEntries { directory: TOP, entries: vec![entry] };
        self.apply(Command::ImportEntries(import));
    }

    fn create(&mut self, parent: InodeId, text: &[u8], node: NewNode, inode: InodeId) {
        self.apply(Command::Create(Create {
            caller: Caller::ROOT,
            parent,
            name: name(text),
            node,
            mode: 0o755,
            inode,
            seed: 0,
            open: None,
            exclusive: true,
        }));
    }

    fn remove(&mut self, directory: bool) {
        let (caller, name, readers) = (Caller::ROOT, name(NAME), Vec::new());
        self.apply(Command::Remove(Remove { caller, parent: TOP, name, directory, readers }));
    }

    fn rename(&mut self, from: &[u8], to: &[u8]) {
        self.apply(Command::Rename(Rename {
            caller: Caller::ROOT,
            source_parent: TOP,
            source_name: name(from),
            target_parent: TOP,
            target_name: name(to),
            mode: RenameMode::Replace,
            readers: Vec::new(),
        }));
    }

    /// What has the name.
    fn named(&self) -> Option<u64> {
        let entry = tree::entry(&self.store, TOP, &name(NAME)).unwrap();
        entry.map(|entry| entry.inode.0)
    }

    fn hides(&self) -> bool {
        let whiteout = self.store.get(&keys::whiteout(TOP, NAME)).unwrap();
        let moved = self.store.get(&keys::moved_file(TOP, NAME)).unwrap();
        whiteout.is_some() && moved.is_some()
    }
}

/// This version of the object was deleted, as it was queued.
fn deleted(tag: &str, queued: Timestamp) -> Command {
    let (link, key, tag) = (LinkId(1), "a".to_owned(), tag.to_owned());
    Command::ObjectDeleted(Box::new(ForgetDeletion { link, key, tag, queued }))
}

fn name(text: &[u8]) -> FileName {
    FileName::parse(text).unwrap()
}

fn object(tag: &str) -> ImportKind {
    ImportKind::File(Origin {
        link: LinkId(1),
        key: "a".to_owned(),
        size: 5,
        tag: tag.to_owned(),
        modified: Timestamp(0),
    })
}

#[test]
fn a_removed_file_hides_its_object_and_from_the_seventeenth_level_on_no_directory() {
    for level in [16, 17] {
        let mut log = Log::linked(level);
        log.import(20, object("first"));
        log.remove(false);
        log.import(21, ImportKind::Directory);
        assert_eq!(log.named(), (level == 17).then_some(21));
        assert!(log.hides(), "the object may be there still");
        if level == 17 {
            log.apply(Command::MarkDirectoryListed(InodeId(21)));
            let drop = DropDirectory { parent: TOP, name: name(NAME), inode: InodeId(21) };
            log.apply(Command::DropDirectory(drop));
        }
        log.import(22, object("first"));
        assert_eq!(log.named(), None, "what was removed stays removed");
        log.import(23, object("second"));
        assert_eq!(log.named(), Some(23));
        assert!(!log.hides());
    }
}

/// A bucket that gets back what an export has replaced: a version before it, or a copy of that.
#[test]
fn from_the_twenty_sixth_level_on_what_an_export_replaced_is_seen_when_it_comes_back() {
    for level in [25, 26] {
        let mut log = Log::linked(level);
        log.import(20, object("first"));
        log.remove(false);
        log.create(TOP, NAME, NewNode::Regular, InodeId(21));
        let (inode, export, link) = (InodeId(21), 7, LinkId(1));
        log.apply(Command::BeginExport(BeginExport {
            inode,
            job: JobId(1),
            export,
            link,
            key: "a".to_owned(),
            replaces: Some("first".to_owned()),
            part_size: 1 << 20,
        }));
        let ImportKind::File(origin) = object("second") else { panic!("it is one") };
        let origin = Origin { size: 0, ..origin };
        log.apply(Command::CompleteExport(CompleteExport { inode, export, origin }));
        log.apply(Command::AbortExport { inode, export });
        assert_eq!(log.hides(), level == 25);
        log.import(22, object("first"));
        assert_eq!(log.named(), Some(21), "it follows, and stays who it is");
        let found = tree::find(&log.store, inode).unwrap().unwrap();
        let tag = found.file().unwrap().origin.as_ref().unwrap().tag.clone();
        assert_eq!(tag, if level == 25 { "second" } else { "first" });
    }
}

#[test]
fn a_removed_directory_hides_directories_and_a_link_is_hidden_by_whatever_was_removed() {
    let mut log = Log::linked(17);
    log.import(20, ImportKind::Directory);
    log.apply(Command::MarkDirectoryListed(InodeId(20)));
    log.remove(true);
    log.import(21, ImportKind::Directory);
    log.import(22, ImportKind::Symlink(b"target".to_vec()));
    assert_eq!(log.named(), None);
    log.import(23, object("first"));
    assert_eq!(log.named(), Some(23), "no object was removed");
    log.remove(false);
    log.import(24, ImportKind::Symlink(b"target".to_vec()));
    assert_eq!(log.named(), None, "it may be the very object that a listing took for a file");
}

#[test]
fn a_directory_takes_the_place_of_an_object_although_its_name_was_away_for_a_while() {
    for level in [16, 17] {
        let mut log = Log::linked(level);
        log.import(20, object("first"));
        log.rename(NAME, b"b");
        log.rename(b"b", NAME);
        assert_eq!(log.named(), Some(20));
        log.import(21, ImportKind::Directory);
        assert_eq!(log.named(), Some(if level == 17 { 21 } else { 20 }));
    }
}

#[test]
fn from_the_twenty_first_level_on_what_hid_an_object_that_was_deleted_goes_with_it() {
    for level in [20, 21] {
        let mut log = Log::linked(level);
        log.import(20, object("first"));
        log.remove(false);
        let applied = log.try_apply(deleted("first", Timestamp(0)));
        let refused = matches!(applied, Err(ApplyError::Refused(ErrorKind::NotSupported)));
        assert_eq!((refused, log.hides()), (level == 20, level == 20));
        log.import(21, object("first"));
        assert_eq!(log.named(), (level == 21).then_some(21), "somebody put it back");
    }
}

#[test]
fn what_hides_another_version_or_one_that_is_queued_again_or_needed_stays() {
    let mut log = Log::linked(21);
    log.import(20, object("first"));
    log.remove(false);
    log.apply(deleted("second", Timestamp(0)));
    assert!(log.hides(), "another version was deleted");
    log.queue(Timestamp(7));
    log.apply(deleted("first", Timestamp(6)));
    assert!(log.hides(), "it was queued again since");
    log.apply(deleted("first", Timestamp(7)));
    assert!(!log.hides());

    log.import(21, object("first"));
    log.rename(NAME, b"b");
    log.apply(deleted("first", Timestamp(0)));
    assert!(log.hides(), "the file that had the name stands against it");

    let mut log = Log::linked(21);
    log.import(20, ImportKind::Directory);
    log.apply(Command::MarkDirectoryListed(InodeId(20)));
    log.remove(true);
    log.apply(deleted("", Timestamp(0)));
    log.import(21, ImportKind::Directory);
    assert_eq!(log.named(), None, "what a directory hides is more than an object");
}

#[test]
fn from_the_twenty_first_level_on_names_of_a_link_go_only_while_their_files_are_its_objects() {
    for level in [20, 21] {
        let mut log = Log::linked(level);
        log.import(20, object("first"));
        log.create(TOP, b"new", NewNode::Regular, InodeId(21));
        log.apply(Command::BeginLinkRemoval(LinkId(1)));
        let forget = |names: &[&[u8]]| {
            let names = names.iter().map(|text| name(text)).collect();
            ForgetEntries { link: LinkId(1), directory: TOP, names }
        };
        let all = forget(&[NAME, b"new"]);
        let refused = log.try_apply(Command::ForgetSaved(all.clone())).unwrap_err();
        let expected = if level == 20 { ErrorKind::NotSupported } else { ErrorKind::Conflict };
        assert!(matches!(refused, ApplyError::Refused(kind) if kind == expected), "{refused:?}");
        assert_eq!(log.named(), Some(20), "none of them goes");
        if level == 21 {
            log.apply(Command::ForgetSaved(forget(&[NAME])));
            assert_eq!(log.named(), None);
        }
        log.apply(Command::ForgetEntries(all));
        let left = tree::list(&log.store, TOP, 0, 1).unwrap();
        assert!(left.is_empty(), "also what is only here");
    }
}

#[test]
fn from_the_twenty_second_level_on_it_is_recorded_what_the_removal_of_a_link_gives_up() {
    let link = LinkId(1);
    let is_recorded = |log: &Log| log.store.get(&keys::discard(link)).unwrap().is_some();
    let mut log = Log::linked(21);
    let refused = log.try_apply(Command::BeginLinkDiscard(link)).unwrap_err();
    assert!(matches!(refused, ApplyError::Refused(ErrorKind::NotSupported)), "{refused:?}");
    let mut log = Log::linked(22);
    log.apply(Command::BeginLinkRemoval(link));
    assert!(!is_recorded(&log));
    log.apply(Command::BeginLinkDiscard(link));
    assert!(is_recorded(&log), "also when it has begun");
    log.apply(Command::BeginLinkRemoval(link));
    assert!(is_recorded(&log), "who goes on takes nothing back");
    log.apply(Command::RemoveLink(link));
    assert!(!is_recorded(&log), "it goes with the link");

    let mut log = Log::linked(22);
    log.create(TOP, b"new", NewNode::Regular, InodeId(21));
    log.apply(Command::BeginLinkDiscard(link));
    let names = vec![name(b"new")];
    log.apply(Command::ForgetEntries(ForgetEntries { link, directory: TOP, names }));
    assert!(tree::list(&log.store, TOP, 0, 1).unwrap().is_empty(), "the removal has begun");
}
