//! Which pages of the index's segments hold no node.
//!
//! Owns no I/O. Kept in memory only: one bit a page, rebuilt from the tree at each start.

use crate::format::root::{SEGMENTS_MAX, Segment};

/// The pages of all segments.
#[derive(Debug)]
pub(super) struct NodeSpace {
    /// In the order of their pages.
    areas: Vec<Area>,
    free: u64,
    /// Where the search for a free page goes on, so that the nodes of one checkpoint lie together:
    /// area and word.
    cursor: (usize, usize),
}

#[derive(Debug)]
struct Area {
    segment: Segment,
    /// A bit for each page; those beyond the end are set.
    used: Vec<u64>,
    free: u32,
}

impl NodeSpace {
    /// Free pages only.
    ///
    /// # Panics
    /// When segments overlap, are empty, or are too many.
    pub(super) fn new(segments: &[Segment]) -> Self {
        let mut space = Self { areas: Vec::new(), free: 0, cursor: (0, 0) };
        segments.iter().for_each(|&segment| space.add(segment));
        space
    }

    /// Adds pages.
    ///
    /// # Panics
    /// As [`Self::new`].
    pub(super) fn add(&mut self, segment: Segment) {
        assert!(self.areas.len() < SEGMENTS_MAX, "the segments fit the root record");
        assert!(segment.pages > 0, "a segment has pages");
        let at = self.areas.partition_point(|area| area.segment.first < segment.first);
        let before = at.checked_sub(1).map(|at| self.areas[at].segment);
        assert!(before.is_none_or(|before| before.end() <= segment.first), "segments are apart");
        let after = self.areas.get(at).map(|area| area.segment);
        assert!(after.is_none_or(|after| segment.end() <= after.first), "segments are apart");
        let pages = usize::try_from(segment.pages).expect("32 bits fit");
        let mut used = vec![0; pages.div_ceil(64)];
        if !pages.is_multiple_of(64) {
            *used.last_mut().expect("not empty") = u64::MAX << (pages % 64);
        }
        self.areas.insert(at, Area { segment, used, free: segment.pages });
        self.free += u64::from(segment.pages);
        self.cursor = (at, 0);
    }

    /// The segments, in order.
    pub(super) fn segments(&self) -> Vec<Segment> {
        self.areas.iter().map(|area| area.segment).collect()
    }

    /// Pages that are free.
    pub(super) fn free(&self) -> u64 {
        self.free
    }

    /// Notes that a node lies there; false when the page is in no segment, or taken already.
    pub(super) fn take(&mut self, page: u64) -> bool {
        let Some((area, word, bit)) = self.place(page) else { return false };
        let area = &mut self.areas[area];
        if area.used[word] & bit != 0 {
            return false;
        }
        area.used[word] |= bit;
        area.free -= 1;
        self.free -= 1;
        true
    }

    /// Takes a free page, if there is one.
    pub(super) fn allocate(&mut self) -> Option<u64> {
        if self.free == 0 {
            return None;
        }
        let (mut at, mut from) = self.cursor;
        loop {
            let area = &mut self.areas[at];
            let rest = if area.free == 0 { &[] } else { &area.used[from..] };
            if let Some(word) = rest.iter().position(|&word| word != u64::MAX) {
                let word = from + word;
                let bit = area.used[word].trailing_ones();
                area.used[word] |= 1 << bit;
                area.free -= 1;
                self.free -= 1;
                self.cursor = (at, word);
                return Some(area.segment.first + 64 * word as u64 + u64::from(bit));
            }
            // Every area is entered at its start after the first, and one of them has a free page.
            at = (at + 1) % self.areas.len();
            from = 0;
        }
    }

    /// Gives a page back.
    ///
    /// # Panics
    /// When it was not taken.
    pub(super) fn release(&mut self, page: u64) {
        let (area, word, bit) = self.place(page).expect("only pages of segments are taken");
        let area = &mut self.areas[area];
        assert!(area.used[word] & bit != 0, "a page is freed once");
        area.used[word] &= !bit;
        area.free += 1;
        self.free += 1;
    }

    /// Area, word and bit of a page.
    fn place(&self, page: u64) -> Option<(usize, usize, u64)> {
        let after = self.areas.partition_point(|area| area.segment.first <= page);
        let at = after.checked_sub(1)?;
        let segment = self.areas[at].segment;
        if page >= segment.end() {
            return None;
        }
        let within = usize::try_from(page - segment.first).ok()?;
        Some((at, within / 64, 1 << (within % 64)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    const fn segment(first: u64, pages: u32) -> Segment {
        Segment { first, pages }
    }

    #[test]
    fn every_page_is_given_out_once_and_again_when_released() {
        let mut space = NodeSpace::new(&[segment(1000, 70), segment(10, 3)]);
        assert_eq!(space.segments(), [segment(10, 3), segment(1000, 70)]);
        let mut taken = BTreeSet::new();
        while let Some(page) = space.allocate() {
            assert!(taken.insert(page), "page {page} twice");
        }
        let expected: BTreeSet<u64> = (10..13).chain(1000..1070).collect();
        assert_eq!(taken, expected);
        assert_eq!(space.free(), 0);
        space.release(11);
        space.release(1069);
        assert_eq!(space.free(), 2);
        let again: BTreeSet<_> = [space.allocate(), space.allocate(), space.allocate()].into();
        assert_eq!(again, [None, Some(11), Some(1069)].into());
        space.add(segment(500, 1));
        assert_eq!((space.allocate(), space.allocate()), (Some(500), None));
    }

    #[test]
    fn pages_outside_or_taken_are_not_taken_again() {
        let mut space = NodeSpace::new(&[segment(10, 64)]);
        assert!(space.take(10) && space.take(73));
        assert!(!space.take(10) && !space.take(9) && !space.take(74));
        assert_eq!(space.free(), 62);
    }

    #[test]
    #[should_panic(expected = "segments are apart")]
    fn overlapping_segments_are_a_mistake() {
        drop(NodeSpace::new(&[segment(10, 5), segment(14, 1)]));
    }
}
