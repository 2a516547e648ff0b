//! Messages of operators and of people at a mount.

use millrace_protocol::admin::{
    AddLink, AttributeSource, AwaitJob, CancelJob, ChunkPlace, ClusterStatus, ClusterStatusReply,
    FileState, Health, Job, JobFailure, JobKind, JobReply, JobState, JobsReply, Keep, LayoutReply,
    LinkOptions, LinkOptionsReply, LinkReply, LinkStatus, LinksReply, ListJobs, ListLinkOptions,
    ListLinks, ListRemovals, LogStatus, Removal, RemovalsReply, RemoveLink, ResolveConflict,
    ResolveReply, SessionStatus, SetLayout, SetLinkOptions, ShowJob, ShowLayout, ShowState,
    StartJob, StateReply, StateSum, TargetState, TargetStatus,
};
use millrace_protocol::{
    cluster::LinkMode,
    known_state::{KnownStateReply, ShowKnownState, SilentTarget},
};
use millrace_types::{
    ByteLen, ChunkIndex, ChunkSize, ErrorKind, Failure, GroupId, InodeId, JobId, LinkId, LogIndex,
    MapEpoch, SessionId, Timestamp,
};

use super::{
    Sample, caller,
    cluster::{HOST, TARGET, bucket},
    done, pair,
};

pub(super) fn all() -> Vec<Sample> {
    [cluster(), layouts(), jobs(), following()].into_iter().flatten().collect()
}

fn cluster() -> Vec<Sample> {
    let session = SessionStatus {
        session: SessionId(7),
        host: HOST,
        host_name: "gpu-1".into(),
        expires: Timestamp(9),
        write_opens: 3,
    };
    let target = TargetStatus {
        id: TARGET,
        host: HOST,
        host_name: "store-1".into(),
        addresses: vec!["10.0.0.1:7000".into()],
        state: TargetState::Suspect,
        capacity: ByteLen(1 << 40),
        used: ByteLen(1 << 30),
        groups: 64,
        bad_blocks: 1,
        heard: Timestamp(8),
    };
    let status = ClusterStatusReply {
        health: Health::Degraded,
        problems: vec!["target 0102030405060708 does not answer".into()],
        cluster: "00ff".into(),
        version: "0.1.0".into(),
        started: Timestamp(1),
        server_time: Timestamp(2),
        log: LogStatus { applied: LogIndex(5), synced: LogIndex(4), size: ByteLen(1 << 20) },
        map_epoch: MapEpoch(3),
        inodes: 100,
        sessions: vec![session],
        targets: vec![target],
        links: vec![link()],
        jobs: vec![job()],
        reclaim_entries: 6,
    };
    let removals = RemovalsReply { links: vec![Removal { link: LinkId(3), discard: true }] };
    let add = AddLink { path: path(), bucket: bucket(), mode: LinkMode::Import };
    [
        pair(&ClusterStatus {}, &status),
        pair(&add, &LinkReply { link: link() }),
        pair(&ListLinks {}, &LinksReply { links: vec![link()] }),
        pair(&RemoveLink { path: path(), discard: true }, &done()),
        pair(&ListRemovals {}, &removals),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn layouts() -> Vec<Sample> {
    let reply = LayoutReply {
        inode: InodeId(9),
        directory: true,
        chunk_size: ChunkSize::DEFAULT,
        stripe_count: -1,
        pool: "default".into(),
        size: 1 << 33,
        inline_bytes: 4096,
        chunks: vec![ChunkPlace {
            index: ChunkIndex(1),
            group: GroupId(44),
            targets: vec![TARGET],
        }],
        truncated: true,
    };
    let set = SetLayout {
        caller: caller(),
        path: path(),
        chunk_size: Some(ChunkSize::MIN),
        stripe_count: Some(-1),
        pool: Some("default".into()),
        inline_bytes_max: Some(16_384),
    };
    let state = StateReply {
        state: Some(FileState::Partial),
        directory: true,
        size: ByteLen(10),
        hydrated: ByteLen(4),
        sums: vec![StateSum { state: FileState::Exported, files: 3, size: ByteLen(10) }],
        unlisted_directories: 2,
        origin: Some(("s3://data/train/a".into(), "\"t\"".into())),
    };
    let of = ShowState { caller: caller(), path: path() };
    let known = KnownStateReply {
        state: state.clone(),
        unknown_files: 4,
        unknown_size: ByteLen(1 << 30),
        silent: vec![SilentTarget { target: TARGET, files: 5, reason: "it is offline".into() }],
    };
    [
        pair(&ShowLayout { caller: caller(), path: path() }, &reply),
        pair(&set, &reply),
        pair(&ShowState { caller: caller(), path: path() }, &state),
        pair(&ShowKnownState { of }, &known),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn jobs() -> Vec<Sample> {
    let start = StartJob { caller: caller(), kind: JobKind::Export, path: path() };
    let reply = JobReply { job: job() };
    [
        pair(&start, &reply),
        pair(&ListJobs {}, &JobsReply { jobs: vec![job()] }),
        pair(&ShowJob { id: JobId(4) }, &reply),
        pair(&AwaitJob { id: JobId(4), patience_ms: 250 }, &reply),
        pair(&CancelJob { caller: caller(), id: JobId(4) }, &reply),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn following() -> Vec<Sample> {
    let resolve = ResolveConflict { caller: caller(), path: path(), keep: Keep::Bucket };
    let resolved = ResolveReply {
        removed: true,
        size: ByteLen(10),
        origin: Some(("s3://data/train/a".into(), "\"t\"".into())),
    };
    let set = SetLinkOptions {
        path: path(),
        refresh_seconds: Some(300),
        attributes: Some(AttributeSource::Objects),
    };
    let options =
        LinkOptions { id: LinkId(3), refresh_seconds: 300, attributes: AttributeSource::Objects };
    let options = LinkOptionsReply { links: vec![options] };
    [pair(&resolve, &resolved), pair(&set, &options), pair(&ListLinkOptions {}, &options)]
        .into_iter()
        .flatten()
        .collect()
}

fn path() -> Vec<u8> {
    b"/data/train".to_vec()
}

fn link() -> LinkStatus {
    LinkStatus { id: LinkId(3), path: path(), bucket: bucket(), mode: LinkMode::ReadOnly }
}

pub(super) fn job() -> Job {
    Job {
        id: JobId(4),
        kind: JobKind::Hydrate,
        path: path(),
        state: JobState::Running,
        files_done: 1,
        files_total: 2,
        bytes_done: 3,
        bytes_total: 4,
        errors: 5,
        failures: vec![JobFailure {
            path: path(),
            failure: Failure::new(ErrorKind::ObjectChanged, "why"),
        }],
        started: Timestamp(6),
        ended: Some(Timestamp(7)),
    }
}
