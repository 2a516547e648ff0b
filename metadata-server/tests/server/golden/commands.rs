//! One value of every command, with each field different from its default.

use millrace_metadata_server::{
    command::{
        AddJob, AddJobByState, AddJobWithOptions, AddLink, AddSelectedJob, AddUnusedJob,
        BeginExport, Command, Commit, CompleteExport, Create, CreateMasked, CreateUnnamed,
        DropDirectory, Envelope, ForgetDeletion, ForgetEntries, Format, FoundObject, ImportEntries,
        ImportEntry, ImportKind, JobCounts, Loss, MakeLink, NewKey, NoteJobDetail, NoteLeftOut,
        NoteReads, NoteShown, ObserveObject, OpenSession, OpenWrite, Opener, Publish,
        PublishInline, ReclaimOrphans, RecordCopy, RegisterHost, Remove, RemoveXattr, Rename,
        Repair, ResolveConflict, SetAttributes, SetAutoExport, SetDefaults, SetDeletePropagation,
        SetFetchPolicy, SetLinkOptions, SetPin, SetRefreshInterval, SetTime, SetXattr, Spilled,
        UpdateJob,
    },
    namespace::LayoutDefaults,
};
use millrace_protocol::{
    access::LastRead,
    admin::{AttributeSource, FileState, Job, JobFailure, JobKind, JobState, Keep},
    ahead::FetchPolicy,
    capability::Origin,
    cluster::{Bucket, LinkMode},
    file_list::FileListId,
    job_detail::{DirectoryProgress, JobDetail},
    job_options::{Destination, JobOptions},
    left_out::{LeftOutKey, LeftOutReason},
    metadata::{NewNode, RenameMode, XattrMode},
    requests::RequestCounts,
    selection::Selection,
    session::{Caller, Operation},
    target::ContentName,
};
use millrace_types::{
    ByteLen, ChangeCount, ChunkSize, ContentGeneration, ErrorKind, Failure, FileName, HostId,
    InodeId, JobId, Layout, LinkId, LogIndex, PoolId, SessionId, TargetId, Timestamp, WriteEpoch,
};

use super::Sample;
use crate::variants::command_name;

pub(super) fn samples() -> Vec<Sample> {
    let mut counts = std::collections::BTreeMap::<_, u32>::new();
    let named = all().into_iter().map(|envelope| {
        let name = command_name(&envelope.command);
        let count = counts.entry(name).or_default();
        *count += 1;
        Sample::of(format!("{name}.{count}"), &envelope)
    });
    named.collect()
}

/// Every command once or, where a part of it has several shapes, once a shape.
pub(super) fn all() -> Vec<Envelope> {
    let operation =
        Operation { session: SessionId(0x0a0b), sequence: 0x0c0d, lowest_pending: 0x0e0f };
    let families = [
        (of_cluster(), None),
        (of_names(), Some(operation)),
        (of_inline_bytes(), Some(operation)),
        (of_attributes(), Some(operation)),
        (of_buckets(), None),
        (of_jobs(), None),
        (of_changes_in_buckets(), None),
        (of_repairs(), None),
        (of_reads(), None),
        (of_pins(), None),
        (of_losses(), None),
        (of_auto_exports(), None),
        (of_fetches(), None),
        (of_reopened_exports(), None),
        (of_listings(), None),
    ];
    let time = Timestamp(1_700_000_000_123_456_789);
    let enveloped = families.into_iter().flat_map(|(commands, operation)| {
        commands.into_iter().map(move |command| Envelope { time, operation, command })
    });
    enveloped.collect()
}

pub(super) fn name() -> FileName {
    FileName::parse(b"cat \xff.jpg").unwrap()
}

pub(super) fn caller() -> Caller {
    Caller { uid: 1000, gid: 100, groups: vec![7, 8] }
}

pub(super) fn bucket() -> Bucket {
    Bucket {
        url: "s3://photos".to_owned(),
        endpoint: Some("http://127.0.0.1:8333".to_owned()),
        region: Some("eu-central-1".to_owned()),
        credentials: Some("lab".to_owned()),
    }
}

pub(super) fn origin() -> Origin {
    Origin {
        link: LinkId(3),
        key: "train/cat/0001.jpg".to_owned(),
        size: 123_456,
        tag: "\"d41d8cd98f00b204\"".to_owned(),
        modified: Timestamp(1_600_000_000_000_000_000),
    }
}

pub(super) fn job() -> Job {
    let failure = Failure::new(ErrorKind::Conflict, "changed on both sides");
    Job {
        id: JobId(1),
        kind: JobKind::Export,
        path: b"/train".to_vec(),
        state: JobState::Running,
        files_done: 2,
        files_total: 3,
        bytes_done: 4,
        bytes_total: 5,
        errors: 6,
        failures: vec![JobFailure { path: b"/train/x".to_vec(), failure }],
        started: Timestamp(7),
        ended: Some(Timestamp(8)),
    }
}

fn opener() -> Opener {
    Opener { session: SessionId(17), inode: InodeId(18) }
}

fn of_cluster() -> Vec<Command> {
    let targets = vec![(TargetId([1; 8]), ByteLen(1 << 40)), (TargetId([2; 8]), ByteLen(5))];
    vec![
        Command::Format(Format { uid: 1, gid: 2, mode: 0o1755 }),
        Command::SetFeatureLevel(1),
        Command::ReserveIds(InodeId(65_538)),
        Command::OpenSession(OpenSession {
            host: HostId([5; 16]),
            host_name: "gpu-17".to_owned(),
            nonce: 0x0102_0304_0506_0708,
        }),
        Command::CloseSession(SessionId(9)),
        Command::NewKey(NewKey { secret: [0xab; 32] }),
        Command::RegisterHost(RegisterHost {
            host: HostId([4; 16]),
            name: "storage-4".to_owned(),
            addresses: vec!["10.0.0.4:7441".to_owned(), "[fd00::4]:7441".to_owned()],
            targets,
        }),
        Command::TargetBlank(TargetId([1; 8])),
        Command::Reclaimed { target: TargetId([2; 8]), through: 0x1112_1314 },
        Command::NoteShown(NoteShown { target: TargetId([2; 8]), index: LogIndex(0x1112_1314) }),
        Command::Trimmed { inode: InodeId(10), write_epoch: WriteEpoch(11) },
    ]
}

fn creation(node: NewNode, open: Option<SessionId>) -> Create {
    Create {
        caller: caller(),
        parent: InodeId(12),
        name: name(),
        node,
        mode: 0o2750,
        inode: InodeId(13),
        seed: 0x0e0f_1011,
        open,
        exclusive: true,
    }
}

fn of_inline_bytes() -> Vec<Command> {
    vec![
        Command::PublishInline(Box::new(PublishInline {
            publish: Publish {
                create: creation(NewNode::Regular, Some(SessionId(65))),
                layout: Layout::new(ChunkSize::MIN, 3, PoolId(1), 7, 0x4849_4a4b).unwrap(),
                made_at: Timestamp(69),
                end: 5,
                written_at: Some(Timestamp(71)),
            },
            bytes: b"small".to_vec(),
        })),
        Command::Spilled(Spilled {
            inode: InodeId(72),
            generation: ContentGeneration(73),
            write_epoch: WriteEpoch(74),
        }),
    ]
}

fn of_names() -> Vec<Command> {
    let create = |node, open| Command::Create(creation(node, open));
    let rename = |mode| {
        Command::Rename(Rename {
            caller: caller(),
            source_parent: InodeId(14),
            source_name: name(),
            target_parent: InodeId(15),
            target_name: FileName::parse(b"dog.jpg").unwrap(),
            mode,
            readers: vec![SessionId(16)],
        })
    };
    vec![
        create(NewNode::Regular, Some(SessionId(17))),
        create(NewNode::Directory, None),
        create(NewNode::Symlink(b"../target".to_vec()), None),
        create(NewNode::Fifo, None),
        create(NewNode::Socket, None),
        create(NewNode::CharDevice(0x0103), None),
        create(NewNode::BlockDevice(0x0803), None),
        Command::MakeLink(MakeLink {
            caller: caller(),
            inode: InodeId(18),
            parent: InodeId(19),
            name: name(),
        }),
        Command::Remove(Remove {
            caller: caller(),
            parent: InodeId(20),
            name: name(),
            directory: true,
            readers: vec![SessionId(21), SessionId(22)],
        }),
        rename(RenameMode::Replace),
        rename(RenameMode::NoReplace),
        rename(RenameMode::Exchange),
        Command::CreateMasked(CreateMasked {
            create: creation(NewNode::Regular, Some(SessionId(65))),
            umask: 0o027,
        }),
        Command::Publish(Box::new(Publish {
            create: creation(NewNode::Regular, Some(SessionId(65))),
            layout: Layout::new(ChunkSize::MIN, 3, PoolId(1), 7, 0x4849_4a4b).unwrap(),
            made_at: Timestamp(69),
            end: 70,
            written_at: Some(Timestamp(71)),
        })),
        Command::CreateUnnamed(CreateUnnamed {
            caller: caller(),
            directory: InodeId(66),
            inode: InodeId(67),
            seed: 0x4445_4647,
            mode: 0o640,
            umask: 0o027,
            session: SessionId(68),
            nameable: true,
        }),
    ]
}

fn of_repairs() -> Vec<Command> {
    let repairs = [
        Repair::Entry { directory: InodeId(71), name: name() },
        Repair::Inode { inode: InodeId(72) },
        Repair::Leftover { key: b"Xkey".to_vec() },
        Repair::Counts { directory: InodeId(73), entries: 74, directories: 75 },
        Repair::Totals { inodes: 76, reclaim_entries: 77 },
        Repair::LostFound { inode: InodeId(78) },
    ];
    repairs.map(Command::Repair).to_vec()
}

fn of_attributes() -> Vec<Command> {
    let defaults = LayoutDefaults {
        chunk_size: ChunkSize::MIN,
        width: Some(4),
        pool: PoolId(1),
        inline_bytes_max: 4096,
    };
    let xattr = |mode| {
        let (name, value) = (b"user.comment".to_vec(), b"value \xff".to_vec());
        Command::SetXattr(SetXattr { caller: caller(), inode: InodeId(31), name, value, mode })
    };
    vec![
        Command::SetAttributes(SetAttributes {
            caller: Some(caller()),
            inode: InodeId(23),
            mode: Some(0o640),
            uid: Some(24),
            gid: Some(25),
            size: Some(26),
            accessed: Some(SetTime::Now),
            modified: Some(SetTime::At(Timestamp(27))),
            make_sparse: true,
        }),
        Command::SetAttributes(SetAttributes { inode: InodeId(28), ..SetAttributes::default() }),
        Command::OpenWrite(OpenWrite { caller: Some(caller()), opener: opener(), truncate: true }),
        Command::OpenWrite(OpenWrite { caller: None, opener: opener(), truncate: false }),
        Command::CloseWrite(opener()),
        Command::CloseWrites { session: SessionId(20), inodes: vec![InodeId(21), InodeId(22)] },
        Command::CloseUnwritten { session: SessionId(20), inodes: vec![InodeId(21)] },
        Command::DropReader(opener()),
        Command::KeepReader(opener()),
        Command::BeginRun(0x0102_0304_0506_0708),
        Command::Distrust("an older copy".to_owned()),
        Command::Trust,
        Command::Restored("a backup was put back".to_owned()),
        Command::KeepNames(SessionId(39)),
        Command::ReclaimOrphans(ReclaimOrphans {
            target: TargetId([36; 8]),
            contents: vec![ContentName { inode: InodeId(37), generation: ContentGeneration(38) }],
        }),
        Command::Commit(Commit {
            inode: InodeId(29),
            generation: ContentGeneration(2),
            write_epoch: WriteEpoch(3),
            end: 30,
            written_at: Some(Timestamp(1_700_000_000_000_000_000)),
        }),
        xattr(XattrMode::Any),
        xattr(XattrMode::Create),
        xattr(XattrMode::Replace),
        Command::RemoveXattr(RemoveXattr {
            caller: caller(),
            inode: InodeId(32),
            name: b"user.comment".to_vec(),
        }),
        Command::SetDefaults(SetDefaults { caller: caller(), directory: InodeId(33), defaults }),
    ]
}

fn of_buckets() -> Vec<Command> {
    let entry = |kind| ImportEntry {
        name: name(),
        inode: InodeId(41),
        seed: 42,
        mode: 0o640,
        uid: 1000,
        gid: 100,
        modified: Timestamp(43),
        kind,
    };
    let link = |mode| {
        Command::AddLink(AddLink {
            directory: InodeId(44),
            bucket: bucket(),
            prefix: "train/".to_owned(),
            mode,
        })
    };
    vec![
        link(LinkMode::ReadOnly),
        link(LinkMode::Import),
        link(LinkMode::ImportExport),
        Command::BeginLinkRemoval(LinkId(45)),
        Command::BeginLinkDiscard(LinkId(98)),
        Command::ForgetEntries(forgotten()),
        Command::ForgetSaved(forgotten()),
        Command::RemoveLink(LinkId(48)),
        Command::ImportEntries(ImportEntries {
            directory: InodeId(49),
            entries: vec![
                entry(ImportKind::Directory),
                entry(ImportKind::File(origin())),
                entry(ImportKind::Symlink(b"../target".to_vec())),
            ],
        }),
        Command::MarkDirectoryListed(InodeId(50)),
    ]
}

fn forgotten() -> ForgetEntries {
    ForgetEntries {
        link: LinkId(46),
        directory: InodeId(47),
        names: vec![name(), FileName::parse(b"dog.jpg").unwrap()],
    }
}

pub(super) fn selection() -> Selection {
    Selection {
        include: vec!["*.jpg".into()],
        exclude: vec!["old/**".into()],
        size_min: Some(1),
        size_max: Some(2),
        age_min: Some(3),
        age_max: Some(4),
    }
}

fn of_jobs() -> Vec<Command> {
    let counts =
        JobCounts { files_done: 1, files_total: 2, bytes_done: 3, bytes_total: 4, errors: 5 };
    let export = 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10;
    vec![
        Command::AddJob(AddJob { job: job(), caller: caller(), root: InodeId(51) }),
        Command::AddSelectedJob(Box::new(AddSelectedJob {
            add: AddJob { job: job(), caller: caller(), root: InodeId(51) },
            selection: selection(),
            dry_run: true,
        })),
        Command::UpdateJob(UpdateJob {
            id: JobId(52),
            state: Some(JobState::Failed),
            counts,
            failures: job().failures,
        }),
        Command::BeginExport(BeginExport {
            inode: InodeId(53),
            job: JobId(54),
            export,
            link: LinkId(55),
            key: "out/checkpoint.pt".to_owned(),
            replaces: Some("\"d41d8cd98f00b204\"".to_owned()),
            part_size: 8 << 20,
        }),
        Command::RecordUpload { inode: InodeId(56), export, upload_id: "upload-57".to_owned() },
        Command::CompleteExport(CompleteExport { inode: InodeId(58), export, origin: origin() }),
        Command::AbortExport { inode: InodeId(59), export },
    ]
}

fn of_changes_in_buckets() -> Vec<Command> {
    vec![
        Command::ObserveObject(ObserveObject {
            inode: InodeId(60),
            known: Some("\"t60\"".to_owned()),
            found: Some(found()),
        }),
        Command::ResolveConflict(ResolveConflict {
            caller: caller(),
            inode: InodeId(61),
            keep: Keep::Bucket,
            found: Some(found()),
        }),
        Command::SetLinkOptions(SetLinkOptions {
            link: LinkId(62),
            refresh_seconds: Some(300),
            attributes: Some(AttributeSource::Objects),
        }),
        Command::DropDirectory(DropDirectory {
            parent: InodeId(63),
            name: name(),
            inode: InodeId(64),
        }),
    ]
}

fn found() -> FoundObject {
    FoundObject { origin: origin(), modified: Timestamp(1_700_000_000_000_000_065) }
}

fn of_auto_exports() -> Vec<Command> {
    let set =
        |quiet_seconds| Command::SetAutoExport(SetAutoExport { link: LinkId(80), quiet_seconds });
    vec![set(Some(30)), set(None)]
}

fn of_fetches() -> Vec<Command> {
    let set = SetFetchPolicy { link: LinkId(80), policy: FetchPolicy::File };
    vec![Command::SetFetchPolicy(set)]
}

pub(super) fn detail() -> JobDetail {
    let directory = DirectoryProgress {
        name: b"val".to_vec(),
        files_total: 11,
        files_done: 12,
        bytes_total: 13,
        bytes_done: 14,
        errors: 15,
    };
    let others = DirectoryProgress { name: Vec::new(), files_total: 16, ..directory.clone() };
    let requests = RequestCounts::new([1, 2, 3, 4, 5, 6, 7], 8, 1 << 40, 1 << 30);
    JobDetail { requests, directories: vec![directory], others }
}

pub(super) fn options() -> JobOptions {
    JobOptions {
        atomic: true,
        priority: -3,
        bytes_per_second: Some(1 << 28),
        report: true,
        files: Some(FileListId(0x0102_0304_0506_0708)),
        destination: Some(Destination { bucket: bucket(), overwrite: true }),
    }
}

fn of_reopened_exports() -> Vec<Command> {
    let job = Job { kind: JobKind::Export, ..job() };
    let add = AddJob { job, caller: caller(), root: InodeId(83) };
    let publication = Command::AddPublication(add.clone());
    let selected = AddSelectedJob { add, selection: Selection::default(), dry_run: false };
    let options = options();
    vec![
        Command::ReopenExport { inode: InodeId(81), export: 82 << 64 },
        publication,
        Command::AddUnusedJob(Box::new(AddUnusedJob {
            job: AddJobWithOptions { selected: selected.clone(), options: options.clone() },
            seconds: 604_800,
        })),
        Command::AddJobByState(Box::new(AddJobByState {
            job: AddJobWithOptions { selected: selected.clone(), options: options.clone() },
            unused: Some(604_800),
            states: vec![FileState::Released, FileState::Partial],
        })),
        Command::AddJobWithOptions(Box::new(AddJobWithOptions { selected, options })),
        Command::NoteJobDetail(Box::new(NoteJobDetail { id: JobId(84), detail: detail() })),
        Command::RecordCopy(Box::new(RecordCopy {
            job: JobId(84),
            inode: InodeId(85),
            bucket: bucket(),
            key: "run/model.pt".to_owned(),
            generation: ContentGeneration(86),
            change_count: ChangeCount(87),
            size: 88,
            part_size: 89,
            upload_id: Some("u-90".to_owned()),
        })),
        Command::ForgetCopy { job: JobId(91), inode: InodeId(92) },
        Command::SetDeletePropagation(SetDeletePropagation { link: LinkId(93), on: true }),
        Command::ForgetDeletion(Box::new(deletion())),
        Command::ObjectDeleted(Box::new(deletion())),
    ]
}

fn deletion() -> ForgetDeletion {
    ForgetDeletion {
        link: LinkId(94),
        key: "run/model.pt".to_owned(),
        tag: "\"95\"".to_owned(),
        queued: Timestamp(96),
    }
}

fn of_listings() -> Vec<Command> {
    let note = NoteLeftOut { directory: InodeId(77), keys: 1 << 33, first: left_out() };
    let set = SetRefreshInterval { link: LinkId(80), every_seconds: Some(600) };
    vec![Command::NoteLeftOut(note), Command::SetRefreshInterval(set), Command::SweepWhiteouts]
}

pub(super) fn left_out() -> Vec<LeftOutKey> {
    vec![LeftOutKey { key: "train/a//b".to_owned(), reason: LeftOutReason::EmptyPart }]
}

fn of_losses() -> Vec<Command> {
    let target = TargetId([1; 8]);
    let inodes = vec![InodeId(77), InodeId(78)];
    let steps = [
        Loss::Begin { target, below: InodeId(79) },
        Loss::Mark { target, inodes, through: InodeId(78) },
        Loss::End(target),
    ];
    steps.map(Command::Loss).into()
}

fn of_pins() -> Vec<Command> {
    let pinned = SetPin { caller: caller(), inode: InodeId(75), pinned: true };
    vec![Command::SetPin(pinned)]
}

fn of_reads() -> Vec<Command> {
    let read = LastRead {
        inode: InodeId(71),
        seen: Timestamp(1_700_000_000_000_000_072),
        at: Timestamp(1_700_000_000_000_000_073),
    };
    let unseen = LastRead { inode: InodeId(74), seen: LastRead::UNSEEN, ..read };
    vec![Command::NoteReads(NoteReads { reads: vec![read, unseen] })]
}
