//! What a check tells: counts and findings.

use millrace_protocol::{
    admin::PathBytes,
    fsck::{FSCK_FINDINGS_MAX, FsckCount, FsckFinding, FsckKind, FsckReport, FsckTarget},
};
use millrace_types::{ByteLen, TargetId};

use super::compare::Suspect;

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

fn count_of(report: &mut FsckReport, kind: FsckKind) -> &mut FsckCount {
    match kind {
        FsckKind::Orphan => &mut report.orphans,
        FsckKind::Missing => &mut report.missing,
        FsckKind::Misplaced => &mut report.misplaced,
        FsckKind::Newer => &mut report.newer,
    }
}

/// Counts one more.
pub(super) fn add(count: &mut FsckCount, suspect: &Suspect) {
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
