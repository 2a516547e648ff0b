//! Whose a lock is, and what it is on.

use std::ops::RangeInclusive;

use millrace_protocol::lock::{Lock, LockSpace};
use millrace_types::{LockKind, LockRange, SessionId};

/// Whose a lock is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Owner {
    pub(super) session: SessionId,
    /// As the session numbers its owners.
    pub(super) number: u64,
}

impl Owner {
    /// The first and the last that a session can have.
    pub(super) fn all_of(session: SessionId) -> RangeInclusive<Self> {
        Self { session, number: 0 }..=Self { session, number: u64::MAX }
    }
}

/// What of a file is locked, or shall be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Piece {
    pub(super) space: LockSpace,
    pub(super) kind: LockKind,
    pub(super) range: LockRange,
}

impl Piece {
    /// What a lock asks for; nothing if it unlocks.
    pub(super) fn of(lock: &Lock) -> Option<Self> {
        let Lock { space, kind, range, .. } = *lock;
        Some(Self { space, kind: kind?, range })
    }

    /// Whether two owners cannot have these at the same time.
    pub(super) fn excludes(self, other: Self) -> bool {
        self.space == other.space
            && self.kind.excludes(other.kind)
            && self.range.overlaps(other.range)
    }
}
