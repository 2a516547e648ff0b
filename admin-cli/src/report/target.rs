//! What the commands about targets print.

use millrace_protocol::loss::LossPage;
use millrace_protocol::upkeep::{
    DescribedTarget, DrainReply, Fault, FindingReport as ToldFinding, ScrubReport as ToldScrub,
    ScrubState, TargetDetail, TargetScrub,
};
use serde::Serialize;

use super::TargetReport;
use crate::output::{path_text, time_text};

/// A target, as `target list` and `target show` print it.
#[derive(Serialize, Debug)]
pub(crate) struct TargetDetailReport {
    #[serde(flatten)]
    pub(crate) target: TargetReport,
    /// What its daemon tells; null when it does not.
    #[serde(flatten)]
    pub(crate) detail: Option<DetailReport>,
    /// Why its daemon does not tell.
    pub(crate) error: Option<String>,
}

/// What a daemon tells of a target.
#[derive(Serialize, Debug)]
pub(crate) struct DetailReport {
    /// `io_uring` or `blocking`.
    pub(crate) disk: String,
    pub(crate) space: SpaceReport,
    pub(crate) loss_count: u64,
    /// Whether it was made at its daemon's start.
    pub(crate) blank: bool,
    /// Whether it takes no changes until its daemon starts again.
    pub(crate) failed: bool,
    pub(crate) checksum_failures: u64,
    pub(crate) index: IndexReport,
    pub(crate) journal_capacity_bytes: u64,
    pub(crate) journal_used_bytes: u64,
    pub(crate) scrub: ScrubReport,
    pub(crate) findings_total: u64,
}

/// What the bytes of a target are used for; together they are its capacity.
#[derive(Serialize, Debug)]
pub(crate) struct SpaceReport {
    pub(crate) fixed_bytes: u64,
    pub(crate) ungrown_bytes: u64,
    pub(crate) free_bytes: u64,
    pub(crate) reserved_bytes: u64,
    pub(crate) quarantined_bytes: u64,
    pub(crate) index_bytes: u64,
    pub(crate) clean_bytes: u64,
    pub(crate) written_bytes: u64,
    /// Of the free ones.
    pub(crate) kept_back_bytes: u64,
}

/// A target's index.
#[derive(Serialize, Debug)]
pub(crate) struct IndexReport {
    pub(crate) entries: u64,
    pub(crate) nodes: u64,
    pub(crate) height: u8,
    pub(crate) cache_bytes: u64,
    pub(crate) delta_bytes: u64,
    pub(crate) node_reads: u64,
}

/// Where a scrub stands.
#[derive(Serialize, Debug)]
pub(crate) struct ScrubReport {
    /// `off`, `paused`, `running` or `waiting`.
    pub(crate) state: &'static str,
    pub(crate) pass: u64,
    pub(crate) under_way: bool,
    pub(crate) checked_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) findings: u64,
    pub(crate) bytes_per_second: u64,
    pub(crate) begun: Option<String>,
    /// The end of the newest pass that is done.
    pub(crate) ended: Option<String>,
    /// When the next pass begins.
    pub(crate) due: String,
    pub(crate) dropped_blocks: u64,
    pub(crate) gathered_bytes: u64,
    pub(crate) read_bytes: u64,
}

/// What `target show` prints.
#[derive(Serialize, Debug)]
pub(crate) struct TargetShowReport {
    #[serde(flatten)]
    pub(crate) target: TargetDetailReport,
    pub(crate) findings: Vec<FindingReport>,
}

/// A damaged block.
#[derive(Serialize, Debug)]
pub(crate) struct FindingReport {
    pub(crate) inode: u64,
    /// Null where no file has it any more, and of `index`.
    pub(crate) path: Option<String>,
    pub(crate) generation: u32,
    pub(crate) chunk: u32,
    pub(crate) block: u16,
    /// `checksum`, `unreadable` or `index`.
    pub(crate) fault: &'static str,
    /// The 4 KiB page of the disk.
    pub(crate) page: u64,
    pub(crate) since: String,
}

/// What `target scrub` prints of each target.
#[derive(Serialize, Debug)]
pub(crate) struct TargetScrubReport {
    pub(crate) id: String,
    /// Null when the daemon does not answer.
    pub(crate) scrub: Option<ScrubReport>,
    pub(crate) error: Option<String>,
}

/// What `target drain-check` prints.
#[derive(Serialize, Debug, Default)]
pub(crate) struct DrainReport {
    pub(crate) id: String,
    /// Whether nothing would be lost.
    pub(crate) safe: bool,
    /// Bytes that no bucket has, as the target counts them.
    pub(crate) written_bytes: u64,
    /// Bytes that a bucket had when they came from there, or went there.
    pub(crate) clean_bytes: u64,
    /// Placement groups that have nothing but this target.
    pub(crate) groups: u32,
    /// Files that could not be read until it is back, and are not lost.
    pub(crate) backed_files: u64,
    /// Files that would be lost or lose a part.
    pub(crate) lost_files: u64,
    pub(crate) lost_bytes: u64,
    /// The first of them.
    pub(crate) paths: Vec<String>,
    pub(crate) inodes: u64,
}

/// What `target lost` prints.
#[derive(Serialize, Debug, Default)]
pub(crate) struct LossReport {
    pub(crate) id: String,
    /// Whether it is given up; if not, the rest is what that would do.
    pub(crate) given_up: bool,
    /// Placement groups that it serves, or served.
    pub(crate) groups: u32,
    /// Files that are damaged.
    pub(crate) damaged_files: u64,
    /// All of them.
    pub(crate) paths: Vec<String>,
    /// All files that were renamed and not exported since: nobody knows whether their objects are
    /// still there. Told before it is given up.
    pub(crate) renamed_paths: Vec<String>,
    pub(crate) inodes: u64,
}

impl From<&DescribedTarget> for TargetDetailReport {
    fn from(target: &DescribedTarget) -> Self {
        Self {
            target: TargetReport::from(&target.status),
            detail: target.detail.as_ref().ok().map(DetailReport::from),
            error: target.detail.as_ref().err().map(ToString::to_string),
        }
    }
}

impl TargetDetailReport {
    /// What is wrong with it that its heartbeats do not tell.
    pub(crate) fn problem(&self) -> Option<String> {
        let TargetReport { id, host, state, .. } = &self.target;
        match (&self.detail, &self.error) {
            (Some(detail), _) if detail.failed => {
                Some(format!("target {id} on {host} takes no changes: its journal failed"))
            }
            (None, Some(error)) if *state == "online" => Some(format!(
                "target {id} on {host} is online, and the metadata server cannot ask it: {error}"
            )),
            _ => None,
        }
    }
}

impl From<&TargetDetail> for DetailReport {
    fn from(detail: &TargetDetail) -> Self {
        let (space, index) = (&detail.space, &detail.index);
        Self {
            disk: detail.disk.clone(),
            space: SpaceReport {
                fixed_bytes: space.fixed.0,
                ungrown_bytes: space.ungrown.0,
                free_bytes: space.free.0,
                reserved_bytes: space.reserved.0,
                quarantined_bytes: space.quarantined.0,
                index_bytes: space.index.0,
                clean_bytes: space.clean.0,
                written_bytes: space.written.0,
                kept_back_bytes: space.kept_back.0,
            },
            loss_count: detail.loss_count,
            blank: detail.blank,
            failed: detail.failed,
            checksum_failures: detail.checksum_failures,
            index: IndexReport {
                entries: index.entries,
                nodes: index.nodes,
                height: index.height,
                cache_bytes: index.cache.0,
                delta_bytes: index.delta.0,
                node_reads: index.node_reads,
            },
            journal_capacity_bytes: detail.journal_capacity.0,
            journal_used_bytes: detail.journal_used.0,
            scrub: ScrubReport::from(&detail.scrub),
            findings_total: detail.findings_total,
        }
    }
}

impl From<&ToldScrub> for ScrubReport {
    fn from(scrub: &ToldScrub) -> Self {
        Self {
            state: match scrub.state {
                ScrubState::Off => "off",
                ScrubState::Paused => "paused",
                ScrubState::Running => "running",
                ScrubState::Waiting => "waiting",
            },
            pass: scrub.pass,
            under_way: scrub.under_way,
            checked_bytes: scrub.checked.0,
            total_bytes: scrub.total.0,
            findings: scrub.findings,
            bytes_per_second: scrub.bytes_per_second,
            begun: (scrub.pass > 0).then(|| time_text(scrub.begun)),
            ended: scrub.ended.map(time_text),
            due: time_text(scrub.due),
            dropped_blocks: scrub.dropped_blocks,
            gathered_bytes: scrub.gathered.0,
            read_bytes: scrub.read.0,
        }
    }
}

impl From<&TargetScrub> for TargetScrubReport {
    fn from(told: &TargetScrub) -> Self {
        Self {
            id: told.target.to_string(),
            scrub: told.scrub.as_ref().ok().map(ScrubReport::from),
            error: told.scrub.as_ref().err().map(ToString::to_string),
        }
    }
}

impl FindingReport {
    /// A finding in a file of that path.
    pub(crate) fn new(finding: &ToldFinding, path: Option<&Vec<u8>>) -> Self {
        let chunk = finding.place.chunk;
        Self {
            inode: chunk.inode.0,
            path: path.map(|path| path_text(path)),
            generation: chunk.generation.0,
            chunk: chunk.index.0,
            block: finding.place.block,
            fault: match finding.fault {
                Fault::Checksum => "checksum",
                Fault::Unreadable => "unreadable",
                Fault::Index => "index",
            },
            page: finding.page,
            since: time_text(finding.since),
        }
    }
}

impl DrainReport {
    /// Adds what was found of some of the files.
    pub(crate) fn add(&mut self, reply: &DrainReply, paths_max: usize) {
        self.written_bytes = reply.detail.space.written.0;
        self.clean_bytes = reply.detail.space.clean.0;
        self.groups = reply.groups;
        self.inodes += reply.inodes;
        self.backed_files += reply.backed_files;
        self.lost_files += reply.lost_files;
        self.lost_bytes += reply.lost.0;
        let room = paths_max.saturating_sub(self.paths.len());
        self.paths.extend(reply.paths.iter().take(room).map(|path| path_text(path)));
        // Both must say so: the target knows of files that the metadata has forgotten, and the
        // metadata of zeros that take no bytes, and of files without an object of their own.
        self.safe = self.written_bytes == 0 && self.lost_files == 0;
    }
}

impl LossReport {
    /// Adds what was found of some of the files.
    pub(crate) fn add(&mut self, page: &LossPage) {
        self.given_up = page.given_up;
        self.groups = page.groups;
        self.inodes += page.inodes;
        self.damaged_files += page.files;
        let damaged = usize::try_from(page.files).unwrap_or(usize::MAX).min(page.paths.len());
        let (damaged, renamed) = page.paths.split_at(damaged);
        self.paths.extend(damaged.iter().map(|path| path_text(path)));
        self.renamed_paths.extend(renamed.iter().map(|path| path_text(path)));
    }
}
