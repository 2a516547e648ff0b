//! One value of every record of the store, with each field different from its default.

use millrace_metadata_server::{
    command::{Observation, Outcome},
    namespace::{
        Body, DirectoryBody, FileBody, Inode, LayoutDefaults, LinkedDirectory, ObjectState,
        ParentLink,
    },
    store::records::{
        Applied, AutoExportRecord, CopyRecord, DeletePropagationRecord, DeletionRecord,
        DistrustRecord, Entry, Export, FetchRecord, FileSystem, GroupRecord, HostRecord,
        JobDetailRecord, JobOptionsRecord, JobRecord, KeyRecord, LeftOutRecord, LinkRecord,
        LostTarget, OpenRecord, PoolRecord, PristineRecord, ReclaimRecord, RefreshIntervalRecord,
        RestoreRecord, RunRecord, SelectionRecord, SessionRecord, ShownRecord, StatesRecord,
        TargetRecord, TrimRecord, UnusedRecord, Whiteout,
    },
};
use millrace_protocol::{
    admin::{AttributeSource, FileState},
    ahead::FetchPolicy,
    cluster::LinkMode,
    metadata::FileKind,
};
use millrace_types::{
    ByteLen, ChangeCount, ChunkSize, ContentGeneration, GroupEpoch, GroupId, HostId, InodeId,
    JobId, KeyId, Layout, LinkId, LogIndex, MapEpoch, PoolId, SessionId, TargetId, Timestamp,
    WriteEpoch,
};

use super::{
    Sample,
    commands::{bucket, caller, detail, job, left_out, name, options, origin, selection},
};

pub(super) fn samples() -> Vec<Sample> {
    let mut samples = vec![
        Sample::of("Applied", &Applied { index: LogIndex(0x0102_0304), time: Timestamp(-7) }),
        Sample::of("FileSystem", &file_system()),
        Sample::of("Entry", &Entry { inode: InodeId(5), kind: FileKind::Symlink, cookie: 9 }),
        Sample::of("Whiteout", &Whiteout { tag: "\"d41d8cd98f00b204\"".to_owned() }),
        Sample::of("SessionRecord", &session()),
        Sample::of("OpenRecord", &OpenRecord { writes: 3, reads: true }),
        Sample::of("LinkRecord", &link()),
        Sample::of("TrimRecord", &trim()),
        Sample::of("Export", &export()),
        Sample::of("Export.single", &Export { replaces: None, upload_id: None, ..export() }),
        Sample::of(
            "RunRecord",
            &RunRecord {
                incarnation: 0x0102_0304_0506_0708,
                unnamed_from: InodeId(9),
                unnamed_until: InodeId(10),
            },
        ),
        Sample::of(
            "DistrustRecord",
            &DistrustRecord { since: Timestamp(-7), reason: "an older copy".to_owned() },
        ),
        Sample::of("RestoreRecord", &RestoreRecord { restores: 0x0102_0304 }),
        Sample::of("ShownRecord", &ShownRecord { index: LogIndex(0x0102_0304) }),
        Sample::of("JobOptionsRecord", &JobOptionsRecord { options: options() }),
        Sample::of("PristineRecord", &PristineRecord { size: 50, file: file() }),
        Sample::of("UnusedRecord", &UnusedRecord { seconds: 604_800 }),
        Sample::of(
            "StatesRecord",
            &StatesRecord { states: vec![FileState::Released, FileState::Partial] },
        ),
        Sample::of("JobDetailRecord", &JobDetailRecord { detail: detail() }),
        Sample::of(
            "CopyRecord",
            &CopyRecord {
                bucket: bucket(),
                key: "run/model.pt".to_owned(),
                generation: ContentGeneration(86),
                change_count: ChangeCount(87),
                size: 88,
                part_size: 89,
                upload_id: Some("u-90".to_owned()),
            },
        ),
        Sample::of("DeletePropagationRecord", &DeletePropagationRecord { since: Timestamp(97) }),
        Sample::of(
            "DeletionRecord",
            &DeletionRecord {
                tag: "\"98\"".to_owned(),
                inodes: vec![InodeId(99)],
                queued: Timestamp(100),
            },
        ),
        Sample::of("SelectionRecord", &SelectionRecord { selection: selection(), dry_run: true }),
        Sample::of("JobRecord", &JobRecord { job: job(), caller: caller(), root: InodeId(11) }),
    ];
    samples.extend(of_cluster());
    let inodes = inodes().into_iter().map(|(what, inode)| Sample::of(what, &inode));
    samples.extend(inodes);
    let outcomes = outcomes().into_iter().map(|outcome| {
        let name = crate::variants::outcome_name(&outcome);
        Sample::of(format!("Outcome.{name}"), &outcome)
    });
    samples.extend(outcomes);
    samples
}

pub(super) fn outcomes() -> Vec<Outcome> {
    vec![
        Outcome::Done,
        Outcome::Inode(InodeId(4)),
        Outcome::Shrunk(InodeId(5)),
        Outcome::Session(SessionId(6)),
        Outcome::Key(KeyId(7)),
        Outcome::Link(LinkId(8)),
        Outcome::Job(JobId(9)),
        Outcome::Imported { added: 1, refreshed: 2, conflicts: 3 },
        Outcome::Frozen(ChangeCount(10)),
        Outcome::Exported(true),
        Outcome::Observed(Observation::Removed),
        Outcome::Queued(10),
    ]
}

fn of_cluster() -> Vec<Sample> {
    let addresses = vec!["10.0.0.4:7441".to_owned(), "[fd00::4]:7441".to_owned()];
    let host = HostRecord { name: "storage-4".to_owned(), addresses };
    let target = TargetRecord {
        host: HostId([4; 16]),
        joined: Timestamp(1_700_000_000_000_000_000),
        capacity: ByteLen(1 << 40),
        lost_below: InodeId(77),
    };
    let lost = LostTarget {
        host: HostId([5; 16]),
        begun: Timestamp(1_700_000_000_000_000_001),
        groups: vec![(PoolId(0), GroupId(3)), (PoolId(0), GroupId(9))],
        below: InodeId(78),
        looked_at: InodeId(50),
        files: 2,
        ended: Some(Timestamp(1_700_000_000_000_000_002)),
    };
    let targets = vec![TargetId([1; 8]), TargetId([2; 8])];
    let pool = PoolRecord { name: "default".to_owned(), groups: 128, targets: targets.clone() };
    let group = GroupRecord { epoch: GroupEpoch(3), targets };
    let key = KeyRecord { secret: [0xab; 32], made: Timestamp(5) };
    let reclaim = ReclaimRecord { inode: InodeId(12), generation: ContentGeneration(13) };
    vec![
        Sample::of("HostRecord", &host),
        Sample::of("TargetRecord", &target),
        Sample::of("LostTarget", &lost),
        Sample::of("AutoExportRecord", &AutoExportRecord { quiet_seconds: 30 }),
        Sample::of("FetchRecord", &FetchRecord { policy: FetchPolicy::Asked }),
        Sample::of("LeftOutRecord", &LeftOutRecord { keys: 1 << 33, first: left_out() }),
        Sample::of("RefreshIntervalRecord", &RefreshIntervalRecord { every_seconds: 600 }),
        Sample::of("PoolRecord", &pool),
        Sample::of("GroupRecord", &group),
        Sample::of("KeyRecord", &key),
        Sample::of("ReclaimRecord", &reclaim),
    ]
}

fn file_system() -> FileSystem {
    FileSystem {
        feature_level: 1,
        inodes: 2,
        inode_limit: InodeId(3),
        next_session: SessionId(4),
        next_link: LinkId(5),
        next_job: JobId(6),
        next_key: KeyId(7),
        map_epoch: MapEpoch(8),
        links_version: 9,
        reclaim_entries: 10,
    }
}

fn session() -> SessionRecord {
    SessionRecord {
        host: HostId([5; 16]),
        host_name: "gpu-17".to_owned(),
        nonce: 0x0102_0304_0506_0708,
        opened: Timestamp(1_700_000_000_000_000_000),
        lowest_pending: 41,
    }
}

fn link() -> LinkRecord {
    let mode = LinkMode::ImportExport;
    LinkRecord {
        directory: InodeId(21),
        bucket: bucket(),
        mode,
        removing: true,
        refresh_seconds: 300,
        attributes: AttributeSource::Objects,
    }
}

fn layout() -> Layout {
    Layout::new(ChunkSize::MIN, 3, PoolId(1), 128, 0x0a0b_0c0d).unwrap()
}

fn trim() -> TrimRecord {
    TrimRecord {
        generation: ContentGeneration(2),
        write_epoch: WriteEpoch(3),
        layout: layout(),
        size: 4,
    }
}

fn export() -> Export {
    Export {
        job: JobId(31),
        id: 0x0102_0304_0506_0708_090a_0b0c_0d0e_0f10,
        change_count: ChangeCount(32),
        generation: ContentGeneration(33),
        size: 34,
        link: LinkId(35),
        key: "out/checkpoint.pt".to_owned(),
        replaces: Some("\"d41d8cd98f00b204\"".to_owned()),
        part_size: 8 << 20,
        upload_id: Some("upload-36".to_owned()),
    }
}

fn file() -> FileBody {
    FileBody {
        generation: ContentGeneration(51),
        write_epoch: WriteEpoch(52),
        layout: layout(),
        origin: Some(origin()),
        origin_length: 53,
        sparse: true,
        inline: Some(b"small".to_vec()),
        state: ObjectState::Dirty,
    }
}

fn inodes() -> Vec<(&'static str, Inode)> {
    let file = file();
    let plain = FileBody { origin: None, inline: None, state: ObjectState::Local, ..file.clone() };
    let defaults = LayoutDefaults {
        chunk_size: ChunkSize::MIN,
        width: Some(54),
        pool: PoolId(1),
        inline_bytes_max: 4096,
    };
    let linked = LinkedDirectory {
        link: LinkId(55),
        prefix: "train/cat/".to_owned(),
        listed: Some(Timestamp(56)),
    };
    let directory = DirectoryBody { next_cookie: 57, defaults, linked: Some(linked) };
    let root = DirectoryBody { linked: None, ..directory.clone() };
    let directories = [Body::Directory(Box::new(directory)), Body::Directory(Box::new(root))];
    let [linked, root] = directories;
    vec![
        ("Inode.file", inode(FileKind::Regular, Body::File(Box::new(file)))),
        ("Inode.local", inode(FileKind::Regular, Body::File(Box::new(plain)))),
        ("Inode.linked", inode(FileKind::Directory, linked)),
        ("Inode.root", Inode { parent: None, ..inode(FileKind::Directory, root) }),
        ("Inode.symlink", inode(FileKind::Symlink, Body::Symlink(b"../target".to_vec()))),
        ("Inode.device", inode(FileKind::BlockDevice, Body::Special)),
    ]
}

fn inode(kind: FileKind, body: Body) -> Inode {
    Inode {
        id: InodeId(0x0102_0304_0506_0708),
        kind,
        mode: 0o6754,
        uid: 1000,
        gid: 100,
        device: 0x0803,
        links: 2,
        size: 61,
        accessed: Timestamp(62),
        modified: Timestamp(63),
        changed: Timestamp(64),
        born: Timestamp(65),
        change_count: ChangeCount(66),
        parent: Some(ParentLink { directory: InodeId(67), name: name() }),
        accounting: 68,
        xattr_bytes: 69,
        body,
    }
}
