//! What a check tells: counts, findings, and sentences for the state of the cluster.

use millrace_protocol::{
    admin::PathBytes,
    fsck::{
        FSCK_FINDINGS_MAX, FsckCount, FsckFinding, FsckKind, FsckReport, FsckTarget,
        NamespaceReport,
    },
};
use millrace_types::{ByteLen, TargetId};

use super::{compare::Suspect, itself::flaws_left};

/// Counts what both passes agree on, and tells it in full while there is room.
pub(super) fn found(report: &mut FsckReport, suspect: &Suspect, path: Option<PathBytes>) {
    add(count_of(report, suspect.kind), suspect);
    if suspect.kind == FsckKind::Orphan
        && let Some(target) = target_of(report, suspect.target)
    {
        add(&mut target.orphans, suspect);
    }
    if has_room(report, suspect.kind) {
        report.findings.push(finding(suspect, path));
    }
}

/// Whether more findings of a kind are told in full.
pub(super) fn has_room(report: &FsckReport, kind: FsckKind) -> bool {
    let of_kind = report.findings.iter().filter(|finding| finding.kind == kind);
    of_kind.count() < FSCK_FINDINGS_MAX
}

/// Counts orphans that were queued for freeing.
pub(super) fn queued(report: &mut FsckReport, orphans: &[Suspect]) {
    orphans.iter().for_each(|orphan| add(&mut report.queued, orphan));
}

/// What is told about one target.
pub(super) fn target_of(report: &mut FsckReport, target: TargetId) -> Option<&mut FsckTarget> {
    report.targets.iter_mut().find(|shown| shown.target == target)
}

/// What is wrong, in sentences for the state of the cluster.
pub(super) fn problems(report: &FsckReport, namespace: &NamespaceReport) -> Vec<String> {
    let mut problems = Vec::new();
    let left = flaws_left(namespace);
    if left > 0 {
        problems.push(format!(
            "the namespace does not agree with itself in {left} places: see millrace fsck show, \
             and millrace fsck start --repair"
        ));
    }
    if report.missing.contents > 0 {
        problems.push(format!(
            "{} contents lack chunks on their targets (the first: {}): see millrace fsck show",
            report.missing.contents,
            first(report, FsckKind::Missing),
        ));
    }
    if report.newer.contents > 0 {
        problems.push(format!(
            "targets hold {} contents that are newer than the namespace: see millrace fsck show",
            report.newer.contents,
        ));
    }
    let held_back = |target: &FsckTarget| {
        let why = target.held_back.as_ref()?;
        Some(format!("orphans on target {} are kept: {why}", target.target))
    };
    problems.extend(report.targets.iter().filter_map(held_back));
    problems
}

/// The path of the first content with this finding, else its inode.
fn first(report: &FsckReport, kind: FsckKind) -> String {
    let found = report.findings.iter().find(|finding| finding.kind == kind);
    found.map_or_else(String::new, |finding| match &finding.path {
        Some(path) => String::from_utf8_lossy(path).into_owned(),
        None => finding.content.inode.to_string(),
    })
}

fn count_of(report: &mut FsckReport, kind: FsckKind) -> &mut FsckCount {
    match kind {
        FsckKind::Orphan => &mut report.orphans,
        FsckKind::Missing => &mut report.missing,
        FsckKind::Misplaced => &mut report.misplaced,
        FsckKind::Newer => &mut report.newer,
    }
}

fn add(count: &mut FsckCount, suspect: &Suspect) {
    count.contents += 1;
    count.chunks += suspect.chunks;
    count.bytes.0 += suspect.bytes;
}

fn finding(suspect: &Suspect, path: Option<PathBytes>) -> FsckFinding {
    FsckFinding {
        kind: suspect.kind,
        target: suspect.target,
        content: suspect.content,
        path,
        chunks: suspect.chunks,
        first: suspect.first,
        bytes: ByteLen(suspect.bytes),
    }
}
