//! Messages about the care for targets.

use millrace_protocol::{
    admin::{TargetState, TargetStatus},
    loss::{LookLoss, LoseTarget, LossPage, LossProgress},
    upkeep::{
        CheckDrain, ControlScrub, DescribeTarget, DescribedTarget, DrainReply, Fault, FindingPlace,
        FindingReport, IndexUse, ListTargets, ScrubAction, ScrubReport, ScrubState, ScrubTargets,
        ScrubsReply, ShowTarget, SpaceUse, TargetDetail, TargetReply, TargetScrub, TargetsReply,
    },
};
use millrace_types::{
    ByteLen, ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, ErrorKind, Failure, InodeId,
    Timestamp,
};

use super::{
    Sample,
    cluster::{HOST, TARGET},
    pair,
};

pub(super) fn all() -> Vec<Sample> {
    let after = Some(place());
    let described = DescribedTarget { status: status(), detail: Ok(detail()) };
    let silent = Failure::new(ErrorKind::Unavailable, "no answer");
    let unknown = DescribedTarget { status: status(), detail: Err(silent.clone()) };
    let drain = DrainReply {
        detail: detail(),
        groups: 64,
        inodes: 4096,
        backed_files: 12,
        lost_files: 2,
        lost: ByteLen(1 << 20),
        paths: vec![b"/out/model.pt".to_vec()],
        next: Some(InodeId(77)),
    };
    let action = ScrubAction::SetRate(32 << 20);
    [
        pair(&DescribeTarget { target: TARGET, after, findings_max: 9 }, &detail()),
        pair(&ControlScrub { target: TARGET, action }, &scrub()),
        pair(
            &ListTargets { after: Some(TARGET) },
            &TargetsReply { targets: vec![described.clone(), unknown], more: true },
        ),
        pair(
            &ShowTarget { target: TARGET, after, findings_max: 9 },
            &TargetReply { target: described, paths: vec![Some(b"/train/a".to_vec()), None] },
        ),
        pair(
            &ScrubTargets { targets: vec![TARGET], action: ScrubAction::Start },
            &ScrubsReply {
                scrubs: vec![
                    TargetScrub { target: TARGET, scrub: Ok(scrub()) },
                    TargetScrub { target: TARGET, scrub: Err(silent) },
                ],
            },
        ),
        pair(&CheckDrain { target: TARGET, after: Some(InodeId(5)) }, &drain),
        pair(
            &LookLoss { target: TARGET, after: Some(InodeId(6)) },
            &LossPage {
                groups: 64,
                given_up: true,
                inodes: 4096,
                files: 2,
                paths: vec![b"/out/model.pt".to_vec()],
                next: Some(InodeId(78)),
            },
        ),
        pair(
            &LoseTarget { target: TARGET },
            &LossProgress {
                groups: 64,
                looked_at: InodeId(9),
                below: InodeId(1 << 20),
                files: 3,
                ended: false,
            },
        ),
    ]
    .into_iter()
    .flatten()
    .collect()
}

fn place() -> FindingPlace {
    let chunk = ChunkKey {
        inode: InodeId(5),
        generation: ContentGeneration(2),
        index: ChunkIndex(3),
        copy: CopyIndex(1),
    };
    FindingPlace { chunk, block: 17 }
}

fn scrub() -> ScrubReport {
    ScrubReport {
        state: ScrubState::Running,
        pass: 3,
        begun: Timestamp(10),
        ended: Some(Timestamp(9)),
        under_way: true,
        due: Timestamp(11),
        checked: ByteLen(1 << 30),
        total: ByteLen(1 << 31),
        findings: 2,
        bytes_per_second: 32 << 20,
        dropped_blocks: 1,
        gathered: ByteLen(4096),
        read: ByteLen(1 << 32),
    }
}

fn detail() -> TargetDetail {
    TargetDetail {
        disk: "io_uring".into(),
        space: SpaceUse {
            capacity: ByteLen(1 << 40),
            fixed: ByteLen(1),
            ungrown: ByteLen(2),
            free: ByteLen(3),
            reserved: ByteLen(4),
            quarantined: ByteLen(5),
            index: ByteLen(6),
            clean: ByteLen(7),
            written: ByteLen(8),
            kept_back: ByteLen(9),
        },
        loss_count: 1,
        blank: true,
        failed: true,
        checksum_failures: 4,
        index: IndexUse {
            entries: 100,
            nodes: 10,
            height: 2,
            cache: ByteLen(1 << 20),
            delta: ByteLen(1 << 10),
            node_reads: 5,
        },
        journal_capacity: ByteLen(256 << 20),
        journal_used: ByteLen(4096),
        scrub: scrub(),
        findings_total: 2,
        findings: vec![
            FindingReport {
                place: place(),
                fault: Fault::Checksum,
                page: 8_193,
                since: Timestamp(12),
            },
            FindingReport { place: place(), fault: Fault::Index, page: 600, since: Timestamp(13) },
        ],
    }
}

fn status() -> TargetStatus {
    TargetStatus {
        id: TARGET,
        host: HOST,
        host_name: "store-1".into(),
        addresses: vec!["10.0.0.1:7000".into()],
        state: TargetState::Online,
        capacity: ByteLen(1 << 40),
        used: ByteLen(1 << 30),
        groups: 64,
        bad_blocks: 2,
        heard: Timestamp(8),
    }
}
