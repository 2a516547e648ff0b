//! Copies that targets make into the file: what of them is not acknowledged yet.
//!
//! Their bytes never come here. But until they are there, no more may be told of the file's end
//! than of bytes that wait here.

use std::{collections::BTreeMap, ops::Range};

use super::WriteBuffer;

/// Those that have begun and not ended.
#[derive(Debug, Default)]
pub(super) struct Copies {
    all: BTreeMap<CopyNumber, OnItsWay>,
    last: u64,
}

/// Tells copies into one file apart.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct CopyNumber(u64);

#[derive(Debug)]
struct OnItsWay {
    /// What is not acknowledged, by its start: ranges that do not overlap, with their ends.
    left: BTreeMap<u64, u64>,
    /// Where the file ended without it.
    size: u64,
}

impl Copies {
    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// The first byte at or behind `offset` that is not acknowledged.
    pub(super) fn first_behind(&self, offset: u64) -> Option<u64> {
        self.all.values().filter_map(|copy| copy.first_behind(offset)).min()
    }

    /// The first that is not, and lies behind the end that the file had.
    pub(super) fn first_growth(&self) -> Option<u64> {
        self.all.values().filter_map(|copy| copy.first_behind(copy.size)).min()
    }

    /// The file is found to end at `size`.
    pub(super) fn renew_growth(&mut self, size: u64) {
        self.all.values_mut().for_each(|copy| copy.size = size);
    }
}

impl OnItsWay {
    fn first_behind(&self, offset: u64) -> Option<u64> {
        let before = self.left.range(..offset).next_back();
        if before.is_some_and(|(_, &end)| end > offset) {
            return Some(offset);
        }
        self.left.range(offset..).next().map(|(&start, _)| start)
    }
}

impl WriteBuffer {
    /// Targets are about to copy to these ranges, which do not overlap; the file ends at `size`.
    pub(crate) fn begin_copy(
        &mut self,
        ranges: impl Iterator<Item = Range<u64>>,
        size: u64,
    ) -> CopyNumber {
        let left = ranges.map(|range| (range.start, range.end)).collect();
        self.copies.last += 1;
        let number = CopyNumber(self.copies.last);
        self.copies.all.insert(number, OnItsWay { left, size });
        number
    }

    /// The range that begins at `start` is there.
    pub(crate) fn handle_copied(&mut self, number: CopyNumber, start: u64) {
        if let Some(copy) = self.copies.all.get_mut(&number) {
            copy.left.remove(&start);
        }
    }

    /// The first byte that targets are to copy and have not, behind the end that the file had.
    pub(crate) fn first_uncopied(&self) -> Option<u64> {
        self.copies.first_growth()
    }

    /// A copy has ended. Returns the ranges that are not there.
    pub(crate) fn end_copy(&mut self, number: CopyNumber) -> Vec<Range<u64>> {
        let left = self.copies.all.remove(&number).map(|copy| copy.left).unwrap_or_default();
        left.into_iter().map(|(start, end)| start..end).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_targets_have_not_copied_bounds_what_is_told_of_the_end() {
        let mut buffer = WriteBuffer::new(64);
        let number = buffer.begin_copy([0..64, 64..128, 128..150].into_iter(), 100);
        assert!(buffer.has_flights() && buffer.held_bytes() == 0 && buffer.end() == 0);
        assert_eq!((buffer.first_growth(), buffer.first_behind(10)), (Some(100), Some(10)));
        buffer.handle_copied(number, 128);
        assert_eq!((buffer.first_growth(), buffer.first_behind(128)), (Some(100), None));
        buffer.handle_copied(number, 64);
        assert_eq!((buffer.first_growth(), buffer.first_behind(63)), (None, Some(63)));
        buffer.renew_growth(20);
        assert_eq!(buffer.first_uncopied(), Some(20), "the file was cut");
        // What a program has written behind it counts as well.
        buffer.insert(200, &[7; 8]);
        buffer.record_growth(&(200..208), 150);
        assert_eq!((buffer.first_growth(), buffer.first_uncopied()), (Some(20), Some(20)));
        assert_eq!(buffer.end_copy(number).first(), Some(&(0..64)));
        assert_eq!((buffer.first_growth(), buffer.first_uncopied()), (Some(200), None));
        assert!(!buffer.has_flights());
    }

    #[test]
    fn copies_at_the_same_time_are_told_apart() {
        let mut buffer = WriteBuffer::new(64);
        let first = buffer.begin_copy(std::iter::once(0..64), 0);
        let second = buffer.begin_copy(std::iter::once(0..64), 0);
        buffer.handle_copied(first, 0);
        assert_eq!(buffer.first_uncopied(), Some(0));
        assert!(buffer.end_copy(first).is_empty());
        assert_eq!(buffer.end_copy(second).first(), Some(&(0..64)));
        assert!(buffer.end_copy(second).is_empty(), "it has ended");
    }

    #[test]
    fn a_copy_behind_a_new_end_leaves_a_hole() {
        let mut buffer = WriteBuffer::new(64);
        let number = buffer.begin_copy([0..64, 64..128].into_iter(), 0);
        assert!(buffer.leaves_hole(10));
        buffer.handle_copied(number, 64);
        assert!(!buffer.leaves_hole(64), "all that is left lies before it");
    }
}
