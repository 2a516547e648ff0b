//! What is left of directories that are gone goes by and by, and nothing else goes.

use millrace_protocol::{
    capability::Origin,
    cluster::{Bucket, LinkMode},
    metadata::NewNode,
    session::Caller,
};
use millrace_types::{ByteLen, FileName, HostId, LinkId, LogIndex, TargetId, Timestamp};

use super::*;
use crate::{
    apply::apply,
    command::{
        AddLink, BATCH_MAX, Command, Create, Envelope, ForgetEntries, Format, ImportEntries,
        ImportEntry, ImportKind, RegisterHost, Remove,
    },
    consistency,
    namespace::tree,
    store::{Batch, MetaStore as _, Pair, memory::MemoryStore},
};

/// The directory of the link.
const TOP: InodeId = InodeId(2);

struct Log {
    store: MemoryStore,
    last: LogIndex,
    /// The last inode that was imported.
    imported: u64,
}

impl Log {
    /// A link at this feature level.
    fn linked(level: u32) -> Self {
        let mut log = Self { store: MemoryStore::default(), last: LogIndex(0), imported: 100 };
        log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 }));
        log.apply(Command::SetFeatureLevel(level));
        log.apply(Command::RegisterHost(RegisterHost {
            host: HostId([1; 16]),
            name: "store".to_owned(),
            addresses: vec!["127.0.0.1:1".to_owned()],
            targets: vec![(TargetId([1; 8]), ByteLen(1 << 40))],
        }));
        log.apply(Command::Create(Create {
            caller: Caller::ROOT,
            parent: InodeId::ROOT,
            name: name("data"),
            node: NewNode::Directory,
            mode: 0o755,
            inode: TOP,
            seed: 0,
            open: None,
            exclusive: true,
        }));
        log.link();
        log
    }

    fn link(&mut self) {
        let bucket =
            Bucket { url: "s3://b".to_owned(), endpoint: None, region: None, credentials: None };
        let (prefix, mode) = (String::new(), LinkMode::Import);
        self.apply(Command::AddLink(AddLink { directory: TOP, bucket, prefix, mode }));
    }

    /// Executes a command; returns how many records it changes.
    fn apply(&mut self, command: Command) -> usize {
        self.try_apply(command).unwrap()
    }

    fn try_apply(&mut self, command: Command) -> Result<usize, ApplyError> {
        let index = self.last.next();
        let time = Timestamp(i64::try_from(index.0).unwrap());
        let envelope = Envelope { time, operation: None, command };
        let effect = apply(&self.store, index, &envelope)?;
        self.store.commit(&effect.batch).unwrap();
        self.last = index;
        Ok(effect.batch.iter().count())
    }

    fn import(&mut self, directory: InodeId, name: FileName, kind: ImportKind) -> InodeId {
        self.imported += 1;
        let inode = InodeId(self.imported);
        let entry = ImportEntry {
            name,
            inode,
            seed: 0,
            mode: 0o755,
            uid: 0,
            gid: 0,
            modified: Timestamp(0),
            kind,
        };
        let import = ImportEntries { directory, entries: vec![entry] };
        self.apply(Command::ImportEntries(import));
        inode
    }

    fn remove(&mut self, parent: InodeId, name: FileName, directory: bool) -> usize {
        let (caller, readers) = (Caller::ROOT, Vec::new());
        self.apply(Command::Remove(Remove { caller, parent, name, directory, readers }))
    }

    /// Imports so many names and removes them.
    fn empty(&mut self, directory: InodeId, count: usize) {
        for number in 0..count {
            let text = format!("{number:05}");
            let origin = Origin {
                link: LinkId(1),
                key: text.clone(),
                size: 5,
                tag: "tag".to_owned(),
                modified: Timestamp(0),
            };
            self.import(directory, name(&text), ImportKind::File(origin));
            self.remove(directory, name(&text), false);
        }
    }

    /// A directory below the link from which so many imported names were removed.
    fn emptied(&mut self, text: &str, count: usize) -> InodeId {
        let directory = self.import(TOP, name(text), ImportKind::Directory);
        self.empty(directory, count);
        self.apply(Command::MarkDirectoryListed(directory));
        directory
    }

    /// Records of a directory's whiteouts. Each of a file has two.
    fn left(&self, directory: InodeId) -> usize {
        tables(directory).iter().map(|table| self.pairs(table).len()).sum()
    }

    fn marks(&self) -> usize {
        self.pairs(&[keys::SWEEPS]).len()
    }

    fn pairs(&self, prefix: &[u8]) -> Vec<Pair> {
        let end = prefix_end(prefix);
        self.store.scan(Bound::Included(prefix), borrow(&end), usize::MAX).unwrap()
    }

    /// What a check finds wrong with a directory's whiteouts.
    fn flaws(&self, directory: InodeId) -> usize {
        let pairs = tables(directory).into_iter().flat_map(|table| self.pairs(&table));
        let flaws =
            pairs.map(|(key, value)| consistency::flaws(&self.store, &key, &value).unwrap().len());
        flaws.sum()
    }
}

fn name(text: &str) -> FileName {
    FileName::parse(text.as_bytes()).unwrap()
}

#[test]
fn a_directory_takes_few_whiteouts_along_and_many_go_by_and_by() {
    let mut log = Log::linked(SWEEP_LEVEL);
    let few = log.emptied("few", BATCH_MAX / 2);
    log.remove(TOP, name("few"), true);
    assert_eq!((log.left(few), log.marks()), (0, 0));

    let many = log.emptied("many", BATCH_MAX + BATCH_MAX / 5);
    let changed = log.remove(TOP, name("many"), true);
    assert!(changed < 20, "{changed} records are all that anybody waits for");
    assert!(tree::find(&log.store, many).unwrap().is_none());
    let mut left = 2 * (BATCH_MAX + BATCH_MAX / 5);
    assert_eq!((log.left(many), log.marks()), (left, 1));
    while left > 0 {
        let changed = log.apply(Command::SweepWhiteouts);
        // With the mark, and the index of the command.
        assert!(changed <= BATCH_MAX + 2, "{changed}");
        left = left.saturating_sub(BATCH_MAX);
        assert_eq!((log.left(many), log.marks()), (left, usize::from(left > 0)));
    }
    assert_eq!(log.apply(Command::SweepWhiteouts), 1, "there is nothing left to do");
    assert_eq!(log.left(TOP), 2, "the names of both directories stay removed");
}

#[test]
fn below_the_level_they_all_go_with_the_directory() {
    let mut log = Log::linked(SWEEP_LEVEL - 1);
    let many = log.emptied("many", BATCH_MAX);
    log.remove(TOP, name("many"), true);
    assert_eq!((log.left(many), log.marks()), (0, 0));
    let refused = log.try_apply(Command::SweepWhiteouts).unwrap_err();
    assert!(matches!(refused, ApplyError::Refused(ErrorKind::NotSupported)), "{refused}");
}

#[test]
fn all_directories_of_one_command_take_no_more_along_than_one() {
    let mut log = Log::linked(SWEEP_LEVEL);
    let third = BATCH_MAX * 3 / 10;
    let [one, other] = ["one", "other"].map(|text| log.emptied(text, third));
    log.apply(Command::BeginLinkRemoval(LinkId(1)));
    let names = vec![name("one"), name("other")];
    let forget = ForgetEntries { link: LinkId(1), directory: TOP, names };
    let changed = log.apply(Command::ForgetEntries(forget));
    assert!(changed < BATCH_MAX, "{changed}");
    assert_eq!((log.left(one), log.left(other), log.marks()), (0, 2 * third, 1));
    log.apply(Command::SweepWhiteouts);
    assert_eq!((log.left(other), log.marks()), (0, 0));
}

#[test]
fn directories_with_few_whiteouts_leave_none_behind_however_many_they_are() {
    let mut log = Log::linked(SWEEP_LEVEL);
    let texts: Vec<_> = (0..BATCH_MAX / 2 + 10).map(|number| format!("d{number:04}")).collect();
    let emptied: Vec<_> = texts.iter().map(|text| log.emptied(text, 1)).collect();
    log.apply(Command::BeginLinkRemoval(LinkId(1)));
    let names = texts.iter().map(|text| name(text)).collect();
    log.apply(Command::ForgetEntries(ForgetEntries { link: LinkId(1), directory: TOP, names }));
    let left: usize = emptied.iter().map(|directory| log.left(*directory)).sum();
    assert_eq!((left, log.marks()), (0, 0));
}

#[test]
fn a_directory_that_shows_another_link_meanwhile_keeps_the_whiteouts_of_that() {
    let mut log = Log::linked(SWEEP_LEVEL);
    log.empty(TOP, BATCH_MAX);
    log.apply(Command::BeginLinkRemoval(LinkId(1)));
    let changed = log.apply(Command::RemoveLink(LinkId(1)));
    assert!(changed < 20, "{changed}");
    assert_eq!((log.left(TOP), log.marks()), (2 * BATCH_MAX, 1));
    log.apply(Command::SweepWhiteouts);
    assert_eq!((log.left(TOP), log.marks()), (BATCH_MAX, 1));
    log.link();
    assert_eq!((log.left(TOP), log.marks()), (0, 0), "they hide nothing of the other link");
    log.empty(TOP, 3);
    log.apply(Command::SweepWhiteouts);
    assert_eq!(log.left(TOP), 6);
}

#[test]
fn a_directory_of_a_removed_link_goes_while_its_whiteouts_are_still_to_go() {
    let mut log = Log::linked(SWEEP_LEVEL);
    log.empty(TOP, BATCH_MAX);
    log.apply(Command::BeginLinkRemoval(LinkId(1)));
    log.apply(Command::RemoveLink(LinkId(1)));
    log.apply(Command::SweepWhiteouts);
    log.remove(InodeId::ROOT, name("data"), true);
    assert_eq!((log.left(TOP), log.marks()), (BATCH_MAX, 1));
    log.apply(Command::SweepWhiteouts);
    assert_eq!(log.left(TOP), 0);
    log.apply(Command::SweepWhiteouts);
    assert_eq!(log.marks(), 0);
}

#[test]
fn what_is_still_to_go_is_no_damage_and_without_its_mark_it_is() {
    let mut log = Log::linked(SWEEP_LEVEL);
    let many = log.emptied("many", BATCH_MAX);
    log.remove(TOP, name("many"), true);
    assert_eq!(log.flaws(many), 0);
    log.apply(Command::SweepWhiteouts);
    assert_eq!((log.left(many), log.flaws(many)), (BATCH_MAX, 0));
    let mut batch = Batch::default();
    batch.delete(keys::sweep(many));
    log.store.commit(&batch).unwrap();
    assert_eq!(log.flaws(many), BATCH_MAX);
}
