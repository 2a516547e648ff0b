//! Places in a ring of pages. No I/O.

use millrace_types::Crc32c;

use crate::format::batch::Position;

/// Consecutive pages that are used round and round.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Ring {
    /// The first page.
    pub first: u64,
    /// How many.
    pub pages: u64,
}

impl Ring {
    /// Where a journal without records begins; its first record is 1.
    #[must_use]
    pub fn start(self) -> Position {
        Position { page: self.first, sequence: 1, previous: Crc32c(0) }
    }

    /// Where a batch goes that should follow at `page`: there, or at the ring's start when it does
    /// not fit before the end.
    pub(super) fn place(self, page: u64, pages: u64) -> u64 {
        if page + pages <= self.end() { page } else { self.first }
    }

    /// The page after a batch.
    pub(super) fn after(self, page: u64, pages: u64) -> u64 {
        let after = page + pages;
        assert!(after <= self.end(), "a batch never wraps around");
        if after == self.end() { self.first } else { after }
    }

    /// Pages from one place on to another, round the ring; 0 when they are the same.
    pub(super) fn distance(self, from: u64, to: u64) -> u64 {
        if to >= from { to - from } else { self.pages - (from - to) }
    }

    /// One past the last page.
    pub(super) fn end(self) -> u64 {
        self.first + self.pages
    }

    /// Whether a page is one of the ring's.
    pub(super) fn contains(self, page: u64) -> bool {
        (self.first..self.end()).contains(&page)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_go_round_and_batches_stay_in_one_piece() {
        let ring = Ring { first: 100, pages: 10 };
        assert_eq!((ring.place(105, 5), ring.place(106, 5)), (105, 100));
        assert_eq!((ring.after(100, 3), ring.after(105, 5)), (103, 100));
        assert_eq!((ring.distance(103, 108), ring.distance(108, 103)), (5, 5));
        assert_eq!(ring.distance(104, 104), 0);
        assert!(ring.contains(109) && !ring.contains(110));
    }
}
