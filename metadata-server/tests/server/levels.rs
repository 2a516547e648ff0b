//! Feature levels: what came later holds from where the log says so, and an older log replays as it
//! was applied.

use millrace_metadata_server::{
    apply::{self, ApplyError, FEATURE_LEVEL},
    command::{
        AddJob, AddJobByState, AddJobWithOptions, AddLink, AddSelectedJob, AddUnusedJob,
        BeginExport, Command, CompleteExport, Create, Envelope, Format, ImportEntries, ImportEntry,
        ImportKind, Loss, NoteJobDetail, NoteLeftOut, NoteReads, RecordCopy, RegisterHost, Rename,
        SetAttributes, SetAutoExport, SetDeletePropagation, SetFetchPolicy, SetPin,
        SetRefreshInterval, SetXattr,
    },
    engine::{StartError, StoreKind},
    namespace::{Body, ObjectState, pins, tree},
    store::{
        Batch, MetaStore as _, View as _, keys,
        memory::MemoryStore,
        records::{self as store_records, DeletionRecord, FileSystem, Record as _},
    },
};
use millrace_protocol::{
    access::LastRead,
    admin::{FileState, Job, JobKind, JobState},
    ahead::FetchPolicy,
    capability::Origin,
    cluster::{Bucket, LinkMode},
    job_detail::JobDetail,
    job_options::JobOptions,
    left_out::{LeftOutKey, LeftOutReason},
    metadata::{NewNode, RenameMode, XattrMode},
    selection::Selection,
    session::Caller,
};
use millrace_types::{
    ByteLen, ChangeCount, ContentGeneration, ErrorKind, FileName, GIB, HostId, InodeId, JobId,
    LinkId, LogIndex, MIB, TargetId, Timestamp,
};
use tempfile::TempDir;

use crate::engine::{Server, records};

mod growing;

const FILE: InodeId = InodeId(100);
const CAPABILITY: &[u8] = b"security.capability";

/// `user::rw- user:7:r-- group::r-- mask::r-- other::---`, as an extended attribute has it.
const LIST: &[u8] = b"\x02\0\0\0\x01\0\x06\0\xff\xff\xff\xff\x02\0\x04\0\x07\0\0\0\
    \x04\0\x04\0\xff\xff\xff\xff\x10\0\x04\0\xff\xff\xff\xff\x20\0\0\0\xff\xff\xff\xff";

#[derive(Default)]
pub(crate) struct Log {
    pub(crate) store: MemoryStore,
    last: LogIndex,
}

impl Log {
    pub(crate) fn apply(&mut self, command: Command) -> Result<(), ErrorKind> {
        let index = self.last.next();
        let time = Timestamp(i64::try_from(index.0).unwrap());
        let envelope = Envelope { time, operation: None, command };
        match apply::apply(&self.store, index, &envelope) {
            Ok(effect) => self.store.commit(&effect.batch).unwrap(),
            Err(ApplyError::Refused(kind)) => return Err(kind),
            Err(ApplyError::Store(error)) => panic!("{error}"),
        }
        self.last = index;
        Ok(())
    }

    fn set_xattr(&mut self, name: &[u8], value: &[u8]) -> Result<(), ErrorKind> {
        let (name, value) = (name.to_vec(), value.to_vec());
        let caller = Caller::ROOT;
        let mode = XattrMode::Any;
        self.apply(Command::SetXattr(SetXattr { caller, inode: FILE, name, value, mode }))
    }

    fn chown(&mut self, uid: u32) {
        let set = SetAttributes {
            caller: Some(Caller::ROOT),
            inode: FILE,
            uid: Some(uid),
            ..SetAttributes::default()
        };
        self.apply(Command::SetAttributes(set)).unwrap();
    }

    fn has(&self, name: &[u8]) -> bool {
        self.store.get(&keys::xattr(FILE, name)).unwrap().is_some()
    }
}

#[test]
fn lists_and_the_loss_of_capabilities_begin_with_the_second_level() {
    let mut log = Log::default();
    log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 })).unwrap();
    let host = RegisterHost {
        host: HostId([1; 16]),
        name: "store".to_owned(),
        addresses: vec!["127.0.0.1:1".to_owned()],
        targets: vec![(TargetId([1; 8]), ByteLen(1 << 40))],
    };
    log.apply(Command::RegisterHost(host)).unwrap();
    let create = Create {
        caller: Caller::ROOT,
        parent: InodeId::ROOT,
        name: FileName::parse(b"file").unwrap(),
        node: NewNode::Regular,
        mode: 0o644,
        inode: FILE,
        seed: 1,
        open: None,
        exclusive: true,
    };
    log.apply(Command::Create(create)).unwrap();
    log.set_xattr(CAPABILITY, b"1").unwrap();
    log.chown(1);
    assert!(log.has(CAPABILITY), "as an older program left it");
    let list = b"system.posix_acl_access";
    assert_eq!(log.set_xattr(list, LIST), Err(ErrorKind::NotSupported));

    log.apply(Command::SetFeatureLevel(2)).unwrap();
    log.chown(2);
    assert!(!log.has(CAPABILITY));
    log.set_xattr(list, LIST).unwrap();
    assert!(log.has(list));
}

#[test]
fn times_of_access_follow_reads_from_the_fourth_level_on() {
    let mut log = Log::default();
    log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 })).unwrap();
    let read = |at| {
        let read = LastRead { inode: InodeId::ROOT, seen: LastRead::UNSEEN, at: Timestamp(at) };
        Command::NoteReads(NoteReads { reads: vec![read] })
    };
    log.apply(Command::SetFeatureLevel(3)).unwrap();
    assert_eq!(log.apply(read(2)), Err(ErrorKind::NotSupported));
    log.apply(Command::SetFeatureLevel(4)).unwrap();
    log.apply(read(2)).unwrap();
    let root = tree::inode(&log.store, InodeId::ROOT).unwrap();
    assert_eq!(root.accessed, Timestamp(2));
}

/// A file system with a directory that is linked.
pub(crate) fn linked(mode: LinkMode) -> Log {
    let mut log = Log::default();
    log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 })).unwrap();
    let directory = Create {
        caller: Caller::ROOT,
        parent: InodeId::ROOT,
        name: FileName::parse(b"data").unwrap(),
        node: NewNode::Directory,
        mode: 0o755,
        inode: InodeId(2),
        seed: 0,
        open: None,
        exclusive: true,
    };
    log.apply(Command::Create(directory)).unwrap();
    log.apply(link(mode)).unwrap();
    log
}

fn link(mode: LinkMode) -> Command {
    let bucket =
        Bucket { url: "file:///b".to_owned(), endpoint: None, region: None, credentials: None };
    Command::AddLink(AddLink { directory: InodeId(2), bucket, prefix: String::new(), mode })
}

#[test]
fn links_export_by_themselves_from_the_seventh_level_on() {
    let mut log = linked(LinkMode::ImportExport);
    let set =
        |quiet_seconds| Command::SetAutoExport(SetAutoExport { link: LinkId(1), quiet_seconds });
    log.apply(Command::SetFeatureLevel(6)).unwrap();
    assert_eq!(log.apply(set(Some(5))), Err(ErrorKind::NotSupported));
    log.apply(Command::SetFeatureLevel(7)).unwrap();
    log.apply(set(Some(5))).unwrap();
    let key = keys::auto_export(LinkId(1));
    assert!(log.store.get(&key).unwrap().is_some());
    log.apply(set(None)).unwrap();
    assert!(log.store.get(&key).unwrap().is_none());
    log.apply(set(Some(5))).unwrap();
    // The record goes with its link, and a link that does not export has none.
    log.apply(Command::RemoveLink(LinkId(1))).unwrap();
    assert!(log.store.get(&key).unwrap().is_none());
    log.apply(link(LinkMode::Import)).unwrap();
    let refused = SetAutoExport { link: LinkId(2), quiet_seconds: Some(5) };
    assert_eq!(log.apply(Command::SetAutoExport(refused)), Err(ErrorKind::ReadOnly));
}

#[test]
fn links_say_what_is_fetched_behind_reads_from_the_eighth_level_on() {
    let mut log = linked(LinkMode::ReadOnly);
    let set = |link| {
        let policy = FetchPolicy::Asked;
        Command::SetFetchPolicy(SetFetchPolicy { link: LinkId(link), policy })
    };
    log.apply(Command::SetFeatureLevel(7)).unwrap();
    assert_eq!(log.apply(set(1)), Err(ErrorKind::NotSupported));
    log.apply(Command::SetFeatureLevel(8)).unwrap();
    assert_eq!(log.apply(set(2)), Err(ErrorKind::NotFound));
    log.apply(set(1)).unwrap();
    let key = keys::fetch(LinkId(1));
    assert!(log.store.get(&key).unwrap().is_some());
    log.apply(Command::RemoveLink(LinkId(1))).unwrap();
    assert!(log.store.get(&key).unwrap().is_none());
}

const EXPORT: u128 = 7;

/// A file system of this level, with a file whose object stands in its bucket.
fn exported(level: u32) -> Log {
    let mut log = linked(LinkMode::ImportExport);
    log.apply(Command::SetFeatureLevel(level)).unwrap();
    let host = RegisterHost {
        host: HostId([1; 16]),
        name: "store".to_owned(),
        addresses: vec!["127.0.0.1:1".to_owned()],
        targets: vec![(TargetId([1; 8]), ByteLen(1 << 40))],
    };
    log.apply(Command::RegisterHost(host)).unwrap();
    let create = Create {
        caller: Caller::ROOT,
        parent: InodeId(2),
        name: FileName::parse(b"file").unwrap(),
        node: NewNode::Regular,
        mode: 0o644,
        inode: FILE,
        seed: 1,
        open: None,
        exclusive: true,
    };
    log.apply(Command::Create(create)).unwrap();
    let (export, link, key) = (EXPORT, LinkId(1), "file".to_owned());
    log.apply(Command::BeginExport(BeginExport {
        inode: FILE,
        job: JobId(1),
        export,
        link,
        key: key.clone(),
        replaces: None,
        part_size: 8 * MIB,
    }))
    .unwrap();
    let origin = Origin { link, key, tag: "\"1\"".to_owned(), size: 0, modified: Timestamp(1) };
    let complete = CompleteExport { inode: FILE, export, origin };
    log.apply(Command::CompleteExport(complete)).unwrap();
    log
}

fn state(log: &Log) -> ObjectState {
    let inode = tree::inode(&log.store, FILE).unwrap();
    let Body::File(file) = &inode.body else { panic!("a file") };
    file.state
}

#[test]
fn exports_stay_known_until_targets_know_of_them_from_the_ninth_level_on() {
    for level in [8, 9] {
        let mut log = exported(level);
        let stays = log.store.get(&keys::export(FILE)).unwrap().is_some();
        assert_eq!(stays, level == 9);
        let reopened = log.apply(Command::ReopenExport { inode: FILE, export: EXPORT });
        assert_eq!(reopened.is_ok(), level == 9, "{reopened:?}");
        let expected = if level == 9 { ObjectState::Dirty } else { ObjectState::Exported };
        assert_eq!(state(&log), expected);
    }
}

#[test]
fn a_file_whose_mode_changed_after_its_export_is_reopened_from_the_eighteenth_level_on() {
    for level in [17, 18] {
        let mut log = exported(level);
        log.chown(7);
        assert_eq!(state(&log), ObjectState::Exported);
        log.apply(Command::ReopenExport { inode: FILE, export: EXPORT }).unwrap();
        let expected = if level == 18 { ObjectState::Dirty } else { ObjectState::Exported };
        assert_eq!(state(&log), expected);
        assert!(log.store.get(&keys::export(FILE)).unwrap().is_none());
    }
    let mut log = exported(18);
    let set = SetAttributes { inode: FILE, size: Some(5), ..SetAttributes::default() };
    log.apply(Command::SetAttributes(set)).unwrap();
    let before = tree::inode(&log.store, FILE).unwrap();
    log.apply(Command::ReopenExport { inode: FILE, export: EXPORT }).unwrap();
    assert_eq!(tree::inode(&log.store, FILE).unwrap(), before, "it was dirty already");
}

#[test]
fn jobs_have_options_from_the_tenth_level_on_and_older_publications_are_replayed() {
    let mut log = linked(LinkMode::ImportExport);
    let add = AddJob { job: export_job(), caller: Caller::ROOT, root: InodeId(2) };
    let with_options = || {
        let add = AddJob { job: export_job(), caller: Caller::ROOT, root: InodeId(2) };
        let selected = AddSelectedJob { add, selection: Selection::default(), dry_run: false };
        let options = JobOptions { priority: 3, ..JobOptions::default() };
        Command::AddJobWithOptions(Box::new(AddJobWithOptions { selected, options }))
    };
    log.apply(Command::SetFeatureLevel(9)).unwrap();
    log.apply(Command::AddPublication(add)).unwrap();
    assert!(log.store.get(&keys::publication(JobId(1))).unwrap().is_some());
    assert_eq!(log.apply(with_options()), Err(ErrorKind::NotSupported));
    let note = |id| {
        let detail = JobDetail::default();
        Command::NoteJobDetail(Box::new(NoteJobDetail { id: JobId(id), detail }))
    };
    assert_eq!(log.apply(note(1)), Err(ErrorKind::NotSupported));
    log.apply(Command::SetFeatureLevel(10)).unwrap();
    log.apply(with_options()).unwrap();
    log.apply(note(1)).unwrap();
    assert!(log.store.get(&keys::job_detail(JobId(1))).unwrap().is_some());
    assert_eq!(log.apply(note(9)), Err(ErrorKind::NotFound));
    assert!(log.store.get(&keys::job_options(JobId(2))).unwrap().is_some());
}

#[test]
fn jobs_look_at_the_last_use_from_the_fifteenth_level_on() {
    let mut log = linked(LinkMode::ImportExport);
    let unused = || {
        let add = AddJob { job: export_job(), caller: Caller::ROOT, root: InodeId(2) };
        let selected = AddSelectedJob { add, selection: Selection::default(), dry_run: false };
        let job = AddJobWithOptions { selected, options: JobOptions::default() };
        Command::AddUnusedJob(Box::new(AddUnusedJob { job, seconds: 60 }))
    };
    log.apply(Command::SetFeatureLevel(14)).unwrap();
    assert_eq!(log.apply(unused()), Err(ErrorKind::NotSupported));
    log.apply(Command::SetFeatureLevel(15)).unwrap();
    log.apply(unused()).unwrap();
    assert!(log.store.get(&keys::unused(JobId(1))).unwrap().is_some());
}

#[test]
fn jobs_look_at_states_from_the_twentieth_level_on() {
    let mut log = linked(LinkMode::ImportExport);
    let by_state = |unused| {
        let add = AddJob { job: export_job(), caller: Caller::ROOT, root: InodeId(2) };
        let selected = AddSelectedJob { add, selection: Selection::default(), dry_run: false };
        let job = AddJobWithOptions { selected, options: JobOptions::default() };
        let states = vec![FileState::Dirty];
        Command::AddJobByState(Box::new(AddJobByState { job, unused, states }))
    };
    log.apply(Command::SetFeatureLevel(19)).unwrap();
    assert_eq!(log.apply(by_state(None)), Err(ErrorKind::NotSupported));
    log.apply(Command::SetFeatureLevel(20)).unwrap();
    for (id, unused) in [(1, None), (2, Some(60))] {
        log.apply(by_state(unused)).unwrap();
        assert!(log.store.get(&keys::states(JobId(id))).unwrap().is_some());
        let looks = log.store.get(&keys::unused(JobId(id))).unwrap().is_some();
        assert_eq!(looks, unused.is_some());
    }
}

#[test]
fn removals_reach_buckets_and_copies_are_recorded_from_the_tenth_level_on() {
    let mut log = linked(LinkMode::ImportExport);
    let set = |on| Command::SetDeletePropagation(SetDeletePropagation { link: LinkId(1), on });
    let copy = || {
        Command::RecordCopy(Box::new(RecordCopy {
            job: JobId(1),
            inode: FILE,
            bucket: Bucket {
                url: "s3://other".to_owned(),
                endpoint: None,
                region: None,
                credentials: None,
            },
            key: "file".to_owned(),
            generation: ContentGeneration(1),
            change_count: ChangeCount(1),
            size: 1,
            part_size: 1,
            upload_id: None,
        }))
    };
    let forget = || Command::ForgetCopy { job: JobId(1), inode: FILE };
    log.apply(Command::SetFeatureLevel(9)).unwrap();
    for command in [set(true), copy(), forget()] {
        assert_eq!(log.apply(command), Err(ErrorKind::NotSupported));
    }
    log.apply(Command::SetFeatureLevel(10)).unwrap();
    log.apply(set(true)).unwrap();
    log.apply(copy()).unwrap();
    assert!(log.store.get(&keys::delete_propagation(LinkId(1))).unwrap().is_some());
    assert!(log.store.get(&keys::copy(JobId(1), FILE)).unwrap().is_some());
    log.apply(forget()).unwrap();
    assert!(log.store.get(&keys::copy(JobId(1), FILE)).unwrap().is_none());
    log.apply(Command::BeginLinkRemoval(LinkId(1))).unwrap();
    log.apply(Command::RemoveLink(LinkId(1))).unwrap();
    assert!(log.store.get(&keys::delete_propagation(LinkId(1))).unwrap().is_none());
}

/// Imports one name into the linked directory.
fn import(log: &mut Log, inode: u64, kind: ImportKind) {
    let entry = ImportEntry {
        name: FileName::parse(b"a").unwrap(),
        inode: InodeId(inode),
        seed: 0,
        mode: 0o644,
        uid: 0,
        gid: 0,
        modified: Timestamp(0),
        kind,
    };
    let import = ImportEntries { directory: InodeId(2), entries: vec![entry] };
    log.apply(Command::ImportEntries(import)).unwrap();
}

#[test]
fn from_the_tenth_level_on_a_directory_takes_the_place_of_an_object_and_listings_are_recorded() {
    for level in [9, 10] {
        let mut log = linked(LinkMode::Import);
        let host = RegisterHost {
            host: HostId([1; 16]),
            name: "store".to_owned(),
            addresses: vec!["127.0.0.1:1".to_owned()],
            targets: vec![(TargetId([1; 8]), ByteLen(1 << 40))],
        };
        log.apply(Command::RegisterHost(host)).unwrap();
        log.apply(Command::SetFeatureLevel(level)).unwrap();
        let origin = Origin {
            link: LinkId(1),
            key: "a".to_owned(),
            size: 5,
            tag: "t".to_owned(),
            modified: Timestamp(0),
        };
        import(&mut log, 20, ImportKind::File(origin.clone()));
        import(&mut log, 21, ImportKind::Directory);
        import(&mut log, 22, ImportKind::File(origin));
        let name = FileName::parse(b"a").unwrap();
        let entry = tree::entry(&log.store, InodeId(2), &name).unwrap().unwrap();
        assert_eq!(entry.inode, InodeId(if level == 10 { 21 } else { 20 }));
        let directory = tree::inode(&log.store, InodeId(2)).unwrap();
        assert_eq!((directory.size, directory.links), (1, if level == 10 { 3 } else { 2 }));
        assert_eq!(tree::find(&log.store, InodeId(20)).unwrap().is_some(), level == 9);

        let note = |keys| {
            let first = vec![LeftOutKey { key: "a".into(), reason: LeftOutReason::Directory }];
            Command::NoteLeftOut(NoteLeftOut { directory: InodeId(2), keys, first })
        };
        let every = |every_seconds| {
            Command::SetRefreshInterval(SetRefreshInterval { link: LinkId(1), every_seconds })
        };
        if level == 9 {
            assert_eq!(log.apply(note(1)), Err(ErrorKind::NotSupported));
            assert_eq!(log.apply(every(Some(60))), Err(ErrorKind::NotSupported));
            continue;
        }
        let keys = [keys::left_out(InodeId(2)), keys::refresh_interval(LinkId(1))];
        let are_there =
            |log: &Log| keys.each_ref().map(|key| log.store.get(key).unwrap().is_some());
        for commands in [[note(0), every(None)], [note(1), every(Some(60))]] {
            for command in commands {
                log.apply(command).unwrap();
            }
        }
        assert_eq!(are_there(&log), [true; 2]);
        log.apply(Command::RemoveLink(LinkId(1))).unwrap();
        assert_eq!(are_there(&log), [false; 2]);
        assert_eq!(log.apply(note(1)), Err(ErrorKind::InvalidArgument), "it is no link's");
    }
}

pub(crate) fn export_job() -> Job {
    Job {
        id: JobId(0),
        kind: JobKind::Export,
        path: b"/data".to_vec(),
        state: JobState::Queued,
        files_done: 0,
        files_total: 0,
        bytes_done: 0,
        bytes_total: 0,
        errors: 0,
        failures: Vec::new(),
        started: Timestamp(0),
        ended: None,
    }
}

#[test]
fn there_are_pins_from_the_fifth_level_on() {
    let mut log = Log::default();
    log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 })).unwrap();
    let pin = || SetPin { caller: Caller::ROOT, inode: InodeId::ROOT, pinned: true };
    log.apply(Command::SetFeatureLevel(4)).unwrap();
    assert_eq!(log.apply(Command::SetPin(pin())), Err(ErrorKind::NotSupported));
    assert!(!pins::has_own(&log.store, InodeId::ROOT).unwrap());
    log.apply(Command::SetFeatureLevel(5)).unwrap();
    log.apply(Command::SetPin(pin())).unwrap();
    assert!(pins::has_own(&log.store, InodeId::ROOT).unwrap());
}

#[test]
fn targets_are_given_up_from_the_sixth_level_on() {
    let mut log = Log::default();
    log.apply(Command::Format(Format { uid: 0, gid: 0, mode: 0o755 })).unwrap();
    let targets = [TargetId([1; 8]), TargetId([2; 8])];
    log.apply(Command::RegisterHost(RegisterHost {
        host: HostId([1; 16]),
        name: "storage".to_owned(),
        addresses: vec!["10.0.0.1:1".to_owned()],
        targets: targets.map(|target| (target, ByteLen(GIB))).into(),
    }))
    .unwrap();
    let begin = || Command::Loss(Loss::Begin { target: targets[0], below: InodeId(9) });
    log.apply(Command::SetFeatureLevel(5)).unwrap();
    assert_eq!(log.apply(begin()), Err(ErrorKind::NotSupported));
    log.apply(Command::SetFeatureLevel(6)).unwrap();
    log.apply(begin()).unwrap();
    assert!(log.store.get(&keys::lost_target(targets[0])).unwrap().is_some());
}

#[test]
fn a_server_goes_on_with_the_newest_level_and_says_so_once() {
    let dir = TempDir::new().unwrap();
    let mut server = Server::start(&dir.path().join("metadata"), StoreKind::Memory);
    let raised = |server: &Server| {
        let records = records(&server.log_dir());
        let commands = records.iter().map(|(_, body)| Envelope::from_bytes(body).unwrap().command);
        commands.filter(|command| *command == Command::SetFeatureLevel(FEATURE_LEVEL)).count()
    };
    for _ in 0..2 {
        let level = server.turn(|core| core.file_system().unwrap().feature_level);
        assert_eq!(level, FEATURE_LEVEL);
        server.restart();
        assert_eq!(raised(&server), 1);
    }
}

#[test]
fn a_server_does_not_go_on_with_what_a_newer_one_has_left() {
    let dir = TempDir::new().unwrap();
    let mut server = Server::start(&dir.path().join("metadata"), StoreKind::default());
    server.stop();
    set_level(&server, FEATURE_LEVEL + 1);
    let refused = server.try_begin().unwrap_err();
    assert!(matches!(refused, StartError::NewerLevel { .. }), "{refused}");
    assert!(refused.to_string().contains("only a backup"), "{refused}");
    set_level(&server, FEATURE_LEVEL);
    server.begin();
}

/// Changes the level behind the back of a server that does not run.
fn set_level(server: &Server, feature_level: u32) {
    let mut store = server.open_store();
    let found = store_records::read::<FileSystem>(&*store, &keys::file_system()).unwrap().unwrap();
    let mut batch = Batch::default();
    batch.put(keys::file_system(), FileSystem { feature_level, ..found }.encode());
    store.commit(&batch).unwrap();
    store.checkpoint().unwrap();
}
