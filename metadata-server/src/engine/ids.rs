//! Gives out inode ids from blocks that a synced command reserved.
//!
//! An id that was given out before a loss of power may name chunks on targets although its create
//! is gone, so it must never be given again: ids come only from below a limit that is on stable
//! storage, and a start begins at the limit that it finds.

use millrace_types::{InodeId, LogIndex};

/// Ids of one block: with 64 Ki of them, a reservation comes once in thousands of creates, and a
/// restart wastes few of 2^48.
pub const BLOCK_LEN: u64 = 64 * 1024;

/// Ids of one id space.
const SPACE_LEN: u64 = 1 << 48;

/// The ids that may be given out.
#[derive(Debug)]
pub struct IdBlock {
    next: u64,
    /// One past the last id that may be given out.
    limit: u64,
    /// A reservation that is logged and maybe not synced: its limit and the index of its command.
    reserved: Option<(u64, LogIndex)>,
}

impl IdBlock {
    /// Begins at the limit that the log has reserved so far: nothing below is given out again.
    #[must_use]
    pub fn after(limit: InodeId) -> Self {
        Self { next: limit.0, limit: limit.0, reserved: None }
    }

    /// The limit to reserve next, when it is time to.
    #[must_use]
    pub fn poll_reservation(&self) -> Option<InodeId> {
        let left = self.limit - self.next;
        (self.reserved.is_none() && left < BLOCK_LEN / 2)
            .then(|| InodeId(self.limit.max(self.next) + BLOCK_LEN))
    }

    /// The reservation is in the log at `index`.
    pub fn handle_logged(&mut self, limit: InodeId, index: LogIndex) {
        self.reserved = Some((limit.0, index));
    }

    /// The log is synced up to `index`.
    pub fn handle_synced(&mut self, index: LogIndex) {
        if let Some((limit, of)) = self.reserved
            && of <= index
        {
            self.limit = self.limit.max(limit);
            self.reserved = None;
        }
    }

    /// Skips ids up to and with `highest`, which a target holds chunks of. Returns the limit that
    /// must be reserved and synced for that, if any; `None` also for an id of no use.
    pub fn skip(&mut self, highest: InodeId) -> Option<InodeId> {
        if highest.0 < self.next || highest.0 >= SPACE_LEN - BLOCK_LEN {
            return None;
        }
        self.next = highest.0 + 1;
        self.limit = self.limit.max(self.next);
        Some(InodeId(self.next + BLOCK_LEN))
    }

    /// The next id; `None` until a reservation is synced.
    pub fn take(&mut self) -> Option<InodeId> {
        if self.next >= self.limit {
            return None;
        }
        let id = self.next;
        self.next += 1;
        Some(InodeId(id))
    }

    /// One past the highest id that may have been given out.
    #[must_use]
    pub fn high_water(&self) -> InodeId {
        InodeId(self.next)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_come_only_from_synced_reservations() {
        let mut ids = IdBlock::after(InodeId(2));
        assert_eq!(ids.take(), None);
        let limit = ids.poll_reservation().unwrap();
        ids.handle_logged(limit, LogIndex(7));
        assert_eq!(ids.poll_reservation(), None);
        ids.handle_synced(LogIndex(6));
        assert_eq!(ids.take(), None);
        ids.handle_synced(LogIndex(7));
        assert_eq!(ids.take(), Some(InodeId(2)));
        assert_eq!(ids.skip(InodeId(1)), None);
        assert!(ids.skip(InodeId(99_000_000)).unwrap() > InodeId(99_000_000));
    }
}
