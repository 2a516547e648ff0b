//! Messages about the check of targets against the namespace.

use millrace_protocol::{
    fsck::{
        CancelFsck, ContentPosition, ContentsPage, Distrust, FlawCount, FlawFinding, FlawKind,
        FsckCount, FsckFinding, FsckKind, FsckReply, FsckReport, FsckState, FsckTarget,
        ListContents, ListedContent, NamespaceReply, NamespaceReport, NamespaceState, ShowFsck,
        ShowNamespace, StartFsck, StartRepair, TrustNamespace,
    },
    target::ContentName,
};
use millrace_types::{
    ByteLen, ChunkIndex, ContentGeneration, ErrorKind, Failure, InodeId, Timestamp,
};

use super::{Sample, cluster::TARGET, pair};

pub(super) fn all() -> Vec<Sample> {
    let position = ContentPosition {
        inode: InodeId(9),
        generation: ContentGeneration(5),
        chunk: ChunkIndex(7),
    };
    let listed = ListedContent { content: content(), chunks: vec![ChunkIndex(1), ChunkIndex(4)] };
    let page = ContentsPage { contents: vec![listed], next: Some(position) };
    let reply = FsckReply { report: report() };
    let start = StartFsck { targets: vec![TARGET], report_only: true, free_many: false };
    [
        pair(&ListContents { target: TARGET, from: position, chunks_max: 100 }, &page),
        pair(&start, &reply),
        pair(&ShowFsck {}, &reply),
        pair(&CancelFsck {}, &reply),
        pair(&TrustNamespace {}, &reply),
        pair(&StartRepair { start: StartFsck { targets: Vec::new(), ..start } }, &reply),
        pair(&ShowNamespace {}, &NamespaceReply { report: namespace() }),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn namespace() -> NamespaceReport {
    NamespaceReport {
        run: 31,
        state: NamespaceState::Inodes,
        failure: Some(Failure::new(ErrorKind::Disk, "why")),
        repair: true,
        started: Some(Timestamp(32)),
        ended: Some(Timestamp(33)),
        records: 34,
        inodes: 35,
        flaws: vec![FlawCount { kind: FlawKind::WrongLinks, found: 36, repaired: 37 }],
        findings: vec![FlawFinding {
            kind: FlawKind::Unsound,
            inode: InodeId(38),
            path: Some(b"/data".to_vec()),
            text: "it says another kind".into(),
            repaired: true,
        }],
    }
}

fn content() -> ContentName {
    ContentName { inode: InodeId(9), generation: ContentGeneration(5) }
}

fn report() -> FsckReport {
    let count = |contents| FsckCount { contents, chunks: contents + 1, bytes: ByteLen(4096) };
    FsckReport {
        run: 3,
        state: FsckState::Confirming,
        failure: Some(Failure::new(ErrorKind::Unavailable, "why")),
        automatic: true,
        report_only: true,
        distrust: Some(Distrust { since: Timestamp(5), reason: "an older copy".into() }),
        started: Some(Timestamp(6)),
        ended: Some(Timestamp(7)),
        next: Some(Timestamp(8)),
        position: InodeId(9),
        high_water: InodeId(10),
        files: 11,
        chunks: 12,
        targets: vec![FsckTarget {
            target: TARGET,
            host_name: "store-1".into(),
            chunks: 13,
            not_checked: Some("it does not answer".into()),
            orphans: count(22),
            held_back: Some("it is too much".into()),
        }],
        orphans: count(14),
        queued: count(15),
        missing: count(16),
        misplaced: count(17),
        newer: count(18),
        findings: vec![FsckFinding {
            kind: FsckKind::Missing,
            target: TARGET,
            content: content(),
            path: Some(b"/data/train".to_vec()),
            chunks: 19,
            first: ChunkIndex(20),
            bytes: ByteLen(21),
        }],
        truncated: true,
    }
}
