//! The JSON of `millrace fsck`.

use millrace_protocol::fsck::{
    FlawCount, FlawFinding, FsckCount, FsckFinding, FsckReport, FsckTarget, NamespaceReport,
};
use serde::Serialize;

use crate::output::{path_text, time_text};

/// What `fsck` prints.
#[derive(Serialize, Debug)]
pub(crate) struct CheckReport {
    /// Which check since the server's start; 0: none yet.
    pub(crate) run: u64,
    /// `never`, `listing`, `waiting`, `confirming`, `done`, `cancelled` or `failed`.
    pub(crate) state: &'static str,
    pub(crate) failure: Option<String>,
    pub(crate) automatic: bool,
    pub(crate) report_only: bool,
    /// Why nothing is freed, whatever was asked for.
    pub(crate) distrust: Option<String>,
    pub(crate) distrusted_since: Option<String>,
    pub(crate) started: Option<String>,
    pub(crate) ended: Option<String>,
    pub(crate) next: Option<String>,
    /// Ids compared, and the id at which the first pass ends.
    pub(crate) position: u64,
    pub(crate) high_water: u64,
    pub(crate) files: u64,
    pub(crate) chunks: u64,
    pub(crate) targets: Vec<CheckedTarget>,
    pub(crate) orphans: CountReport,
    pub(crate) queued: CountReport,
    pub(crate) missing: CountReport,
    pub(crate) misplaced: CountReport,
    pub(crate) newer: CountReport,
    pub(crate) findings: Vec<FindingReport>,
    /// Whether the next check may find more.
    pub(crate) truncated: bool,
    pub(crate) namespace: NamespaceSection,
}

/// What a check found of the namespace by itself.
#[derive(Serialize, Debug)]
pub(crate) struct NamespaceSection {
    /// The check that it belongs to; 0: none yet.
    pub(crate) run: u64,
    /// `never`, `names`, `inodes`, `counts`, `done`, `cancelled` or `failed`.
    pub(crate) state: &'static str,
    pub(crate) failure: Option<String>,
    /// Whether what can be repaired safely is repaired.
    pub(crate) repair: bool,
    pub(crate) started: Option<String>,
    pub(crate) ended: Option<String>,
    pub(crate) records: u64,
    pub(crate) inodes: u64,
    pub(crate) flaws: Vec<FlawCountReport>,
    pub(crate) findings: Vec<FlawReport>,
}

/// How many flaws of one kind there were.
#[derive(Serialize, Debug)]
pub(crate) struct FlawCountReport {
    pub(crate) kind: &'static str,
    pub(crate) found: u64,
    pub(crate) repaired: u64,
}

/// One flaw of the namespace.
#[derive(Serialize, Debug)]
pub(crate) struct FlawReport {
    pub(crate) kind: &'static str,
    /// 0 where it is about none.
    pub(crate) inode: u64,
    pub(crate) path: Option<String>,
    pub(crate) text: String,
    pub(crate) repaired: bool,
}

/// What a check did with one target.
#[derive(Serialize, Debug)]
pub(crate) struct CheckedTarget {
    pub(crate) id: String,
    pub(crate) host: String,
    pub(crate) chunks: u64,
    /// Why it was not looked at to the end.
    pub(crate) not_checked: Option<String>,
    pub(crate) orphans: CountReport,
    /// Why they are not freed: they are too many.
    pub(crate) held_back: Option<String>,
}

/// A number of contents.
#[derive(Serialize, Debug)]
pub(crate) struct CountReport {
    pub(crate) contents: u64,
    pub(crate) chunks: u64,
    pub(crate) size_bytes: u64,
}

/// What is wrong with one content on one target.
#[derive(Serialize, Debug)]
pub(crate) struct FindingReport {
    /// `orphan`, `missing`, `misplaced` or `newer`.
    pub(crate) kind: &'static str,
    pub(crate) target: String,
    pub(crate) inode: u64,
    pub(crate) generation: u32,
    pub(crate) path: Option<String>,
    pub(crate) chunks: u64,
    pub(crate) first_chunk: u32,
    pub(crate) size_bytes: u64,
}

impl CheckReport {
    /// Both parts of a check.
    pub(crate) fn of(report: &FsckReport, namespace: &NamespaceReport) -> Self {
        let distrust = report.distrust.as_ref();
        Self {
            run: report.run,
            state: report.state.name(),
            failure: report.failure.as_ref().map(ToString::to_string),
            automatic: report.automatic,
            report_only: report.report_only,
            distrust: distrust.map(|distrust| distrust.reason.clone()),
            distrusted_since: distrust.map(|distrust| time_text(distrust.since)),
            started: report.started.map(time_text),
            ended: report.ended.map(time_text),
            next: report.next.map(time_text),
            position: report.position.0,
            high_water: report.high_water.0,
            files: report.files,
            chunks: report.chunks,
            targets: report.targets.iter().map(CheckedTarget::from).collect(),
            orphans: report.orphans.into(),
            queued: report.queued.into(),
            missing: report.missing.into(),
            misplaced: report.misplaced.into(),
            newer: report.newer.into(),
            findings: report.findings.iter().map(FindingReport::from).collect(),
            truncated: report.truncated,
            namespace: namespace.into(),
        }
    }
}

impl From<&NamespaceReport> for NamespaceSection {
    fn from(report: &NamespaceReport) -> Self {
        Self {
            run: report.run,
            state: report.state.name(),
            failure: report.failure.as_ref().map(ToString::to_string),
            repair: report.repair,
            started: report.started.map(time_text),
            ended: report.ended.map(time_text),
            records: report.records,
            inodes: report.inodes,
            flaws: report.flaws.iter().map(FlawCountReport::from).collect(),
            findings: report.findings.iter().map(FlawReport::from).collect(),
        }
    }
}

impl From<&FlawCount> for FlawCountReport {
    fn from(count: &FlawCount) -> Self {
        let FlawCount { kind, found, repaired } = *count;
        Self { kind: kind.name(), found, repaired }
    }
}

impl From<&FlawFinding> for FlawReport {
    fn from(finding: &FlawFinding) -> Self {
        Self {
            kind: finding.kind.name(),
            inode: finding.inode.0,
            path: finding.path.as_deref().map(path_text),
            text: finding.text.clone(),
            repaired: finding.repaired,
        }
    }
}

impl From<&FsckTarget> for CheckedTarget {
    fn from(target: &FsckTarget) -> Self {
        Self {
            id: target.target.to_string(),
            host: target.host_name.clone(),
            chunks: target.chunks,
            not_checked: target.not_checked.clone(),
            orphans: target.orphans.into(),
            held_back: target.held_back.clone(),
        }
    }
}

impl From<FsckCount> for CountReport {
    fn from(count: FsckCount) -> Self {
        let FsckCount { contents, chunks, bytes } = count;
        Self { contents, chunks, size_bytes: bytes.0 }
    }
}

impl From<&FsckFinding> for FindingReport {
    fn from(finding: &FsckFinding) -> Self {
        Self {
            kind: finding.kind.name(),
            target: finding.target.to_string(),
            inode: finding.content.inode.0,
            generation: finding.content.generation.0,
            path: finding.path.as_deref().map(path_text),
            chunks: finding.chunks,
            first_chunk: finding.first.0,
            size_bytes: finding.bytes.0,
        }
    }
}
