//! A volume as operators see it, in the words of the wire.

use std::sync::atomic::Ordering;

use millrace_protocol::upkeep::{
    FINDINGS_PER_REPLY_MAX, Fault as ToldFault, FindingPlace, FindingReport, IndexUse, ScrubAction,
    ScrubReport, ScrubState, SpaceUse, TargetDetail,
};
use millrace_types::ByteLen;

use super::{ScrubActivity, ScrubCommand, ScrubStatus, Volume, sections::split_block};
use crate::{
    format::{
        finding::{BlockKey, Fault, Finding},
        section::SectionKey,
    },
    page_checksum::PAGE,
};

impl Volume {
    /// Everything about the target, with the findings after `after`, at most `findings_max`.
    #[must_use]
    pub fn describe(&self, after: Option<FindingPlace>, findings_max: u32) -> TargetDetail {
        let statistics = self.statistics();
        let shared = self.shared();
        let index = shared.index.statistics();
        let journal = &shared.journal;
        let limit = findings_max.min(FINDINGS_PER_REPLY_MAX) as usize;
        let findings = self.findings(after.map(block_key), limit);
        TargetDetail {
            disk: self.disk_name().to_owned(),
            space: space_use(&statistics.space),
            loss_count: statistics.loss_count,
            blank: statistics.blank,
            failed: self.has_failed(),
            checksum_failures: shared.checksum_failures.load(Ordering::Relaxed),
            index: IndexUse {
                entries: index.entries,
                nodes: index.nodes,
                height: index.height,
                cache: ByteLen(index.cache_bytes),
                delta: ByteLen(index.delta_bytes as u64),
                node_reads: index.node_reads,
            },
            journal_capacity: bytes(journal.ring_pages()),
            journal_used: bytes(journal.used_pages()),
            scrub: report(&self.scrub_status()),
            findings_total: statistics.bad_blocks,
            findings: findings.into_iter().map(told).collect(),
        }
    }

    /// Does what an operator asks of the scrub, and tells where it stands then.
    pub fn act_on_scrub(&self, action: ScrubAction) -> ScrubReport {
        match action {
            ScrubAction::Show => {}
            ScrubAction::Start => self.control_scrub(ScrubCommand::Start),
            ScrubAction::Pause => self.control_scrub(ScrubCommand::Pause),
            ScrubAction::Resume => self.control_scrub(ScrubCommand::Resume),
            ScrubAction::SetRate(rate) => self.control_scrub(ScrubCommand::SetRate(rate)),
        }
        report(&self.scrub_status())
    }
}

fn bytes(pages: u64) -> ByteLen {
    ByteLen(pages * PAGE as u64)
}

fn space_use(totals: &crate::space::Totals) -> SpaceUse {
    SpaceUse {
        capacity: bytes(totals.capacity),
        fixed: bytes(totals.fixed),
        ungrown: bytes(totals.ungrown),
        free: bytes(totals.free),
        reserved: bytes(totals.reserved),
        quarantined: bytes(totals.quarantined),
        index: bytes(totals.index),
        clean: bytes(totals.clean),
        written: bytes(totals.written),
        kept_back: bytes(totals.kept_back),
    }
}

fn report(status: &ScrubStatus) -> ScrubReport {
    let progress = status.progress;
    let under_way = progress.is_under_way();
    // Of pass 0 the end is when the target was first opened.
    let has_ended = progress.pass > 1 || (progress.pass == 1 && !under_way);
    ScrubReport {
        state: match status.activity {
            ScrubActivity::Off => ScrubState::Off,
            ScrubActivity::Paused => ScrubState::Paused,
            ScrubActivity::Running => ScrubState::Running,
            ScrubActivity::Waiting => ScrubState::Waiting,
        },
        pass: progress.pass,
        begun: progress.begun,
        ended: has_ended.then_some(progress.ended),
        under_way,
        due: status.due,
        checked: bytes(progress.pages),
        total: bytes(status.pages),
        findings: progress.findings,
        bytes_per_second: status.bytes_per_second,
        dropped_blocks: status.dropped_blocks,
        gathered: bytes(status.gathered_pages),
        read: ByteLen(status.read_bytes),
    }
}

fn block_key(place: FindingPlace) -> BlockKey {
    let (section, block) = split_block(place.block);
    BlockKey { section: SectionKey { chunk: place.chunk, section }, block }
}

fn told((key, finding): (BlockKey, Finding)) -> FindingReport {
    FindingReport {
        place: FindingPlace { chunk: key.section.chunk, block: key.in_chunk() },
        fault: match finding.fault {
            Fault::Checksum { .. } => ToldFault::Checksum,
            Fault::Unreadable => ToldFault::Unreadable,
            Fault::Index => ToldFault::Index,
        },
        page: finding.page,
        since: finding.time,
    }
}
