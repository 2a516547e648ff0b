//! What the first pass found, within bounds.

use std::collections::BTreeMap;

use millrace_protocol::fsck::FsckKind;
use millrace_types::TargetId;

use super::compare::Suspect;

/// Suspicions of one kind that one check follows up; the next check finds the rest.
const SUSPECTS_MAX: usize = 32_768;

/// What the first pass found.
#[derive(Default)]
pub(super) struct Suspects {
    by_kind: BTreeMap<FsckKind, Vec<Suspect>>,
    /// Chunks that seem to be orphans and are not followed up.
    passed_over: BTreeMap<TargetId, u64>,
    truncated: bool,
}

impl Suspects {
    pub(super) fn add(&mut self, suspect: Suspect) {
        let of_kind = self.by_kind.entry(suspect.kind).or_default();
        if of_kind.len() < SUSPECTS_MAX {
            of_kind.push(suspect);
            return;
        }
        self.truncated = true;
        if suspect.kind == FsckKind::Orphan {
            *self.passed_over.entry(suspect.target).or_default() += suspect.chunks;
        }
    }

    /// Leaves out a target that cannot be checked to its end.
    pub(super) fn forget(&mut self, target: TargetId) {
        self.passed_over.remove(&target);
        for of_kind in self.by_kind.values_mut() {
            of_kind.retain(|suspect| suspect.target != target);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.by_kind.values().all(Vec::is_empty)
    }

    /// Whether there was more than is followed up.
    pub(super) fn is_truncated(&self) -> bool {
        self.truncated
    }

    /// Chunks of one target that seem to be orphans and are not followed up.
    pub(super) fn passed_over(&self, target: TargetId) -> u64 {
        self.passed_over.get(&target).copied().unwrap_or_default()
    }

    /// Those of one target, in the order of their inodes.
    pub(super) fn of(&self, target: TargetId) -> Vec<&Suspect> {
        let all = self.by_kind.values().flatten();
        let mut of_target: Vec<_> = all.filter(|suspect| suspect.target == target).collect();
        of_target.sort_by_key(|suspect| suspect.content.inode);
        of_target
    }
}

/// Cuts suspects, which are in the order of their inodes, into parts of about `limit`; those of one
/// inode stay together, because a list tells it once.
pub(super) fn batches<'a>(suspects: &[&'a Suspect], limit: usize) -> Vec<Vec<&'a Suspect>> {
    let mut batches: Vec<Vec<&Suspect>> = Vec::new();
    for of_inode in suspects.chunk_by(|one, other| one.content.inode == other.content.inode) {
        match batches.last_mut() {
            Some(batch) if batch.len() < limit => batch.extend_from_slice(of_inode),
            _ => batches.push(of_inode.to_vec()),
        }
    }
    batches
}

#[cfg(test)]
mod tests {
    use millrace_protocol::target::ContentName;
    use millrace_types::{ChunkIndex, ContentGeneration, InodeId};

    use super::*;

    const TARGET: TargetId = TargetId([3; 8]);

    fn suspect(kind: FsckKind, inode: u64) -> Suspect {
        Suspect {
            kind,
            target: TARGET,
            content: ContentName { inode: InodeId(inode), generation: ContentGeneration(1) },
            chunks: 2,
            first: ChunkIndex(0),
            bytes: 0,
            seen: None,
        }
    }

    #[test]
    fn past_the_bound_chunks_are_still_counted_for_the_brake_and_other_kinds_are_followed_up() {
        let mut suspects = Suspects::default();
        let max = SUSPECTS_MAX as u64;
        (0..max).rev().for_each(|inode| suspects.add(suspect(FsckKind::Orphan, inode)));
        assert_eq!((suspects.passed_over(TARGET), suspects.is_truncated()), (0, false));
        (max..max + 3).for_each(|inode| suspects.add(suspect(FsckKind::Orphan, inode)));
        suspects.add(suspect(FsckKind::Missing, 5));
        assert_eq!((suspects.passed_over(TARGET), suspects.is_truncated()), (6, true));
        let of_target = suspects.of(TARGET);
        assert_eq!(of_target.len(), SUSPECTS_MAX + 1);
        assert!(of_target.is_sorted_by_key(|suspect| suspect.content.inode));
        let batches = batches(&of_target, 1);
        assert_eq!(batches.len(), SUSPECTS_MAX, "both of inode 5 are in one");
        suspects.forget(TARGET);
        assert!(suspects.is_empty() && suspects.passed_over(TARGET) == 0);
    }
}
