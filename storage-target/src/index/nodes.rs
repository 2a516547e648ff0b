//! Which pages of the index's segments hold no node.
//!
//! Owns no I/O. Kept in memory only: one bit a page, rebuilt from the tree at each start. Segments
//! that adjoin are one, so that the root record can name as many as possible.

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
        self.areas.insert(at, Area::new(segment));
        self.free += u64::from(segment.pages);
        self.join(at);
        let at = if self.join(at.saturating_sub(1)) { at.saturating_sub(1) } else { at };
        self.cursor = (at, 0);
    }

    /// Makes an area and the one after it one, if they adjoin.
    fn join(&mut self, at: usize) -> bool {
        let [low, high] = [at, at + 1].map(|at| self.areas.get(at).map(|area| area.segment));
        let (Some(low), Some(high)) = (low, high) else { return false };
        let Some(pages) = low.pages.checked_add(high.pages) else { return false };
        if low.end() != high.first {
            return false;
        }
        let mut joined = Area::new(Segment { first: low.first, pages });
        for area in self.areas.drain(at..=at + 1) {
            (0..u64::from(area.segment.pages)).filter(|&nth| area.is_used(nth)).for_each(|nth| {
                joined.set_used(area.segment.first - low.first + nth);
            });
        }
        self.areas.insert(at, joined);
        true
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

impl Area {
    /// Free pages only.
    fn new(segment: Segment) -> Self {
        let pages = usize::try_from(segment.pages).expect("32 bits fit");
        let mut used = vec![0; pages.div_ceil(64)];
        if !pages.is_multiple_of(64) {
            *used.last_mut().expect("not empty") = u64::MAX << (pages % 64);
        }
        Self { segment, used, free: segment.pages }
    }

    /// The word of a page, counted from the first, and its bit.
    fn bit(nth: u64) -> (usize, u64) {
        (usize::try_from(nth / 64).expect("32 bits fit"), 1 << (nth % 64))
    }

    fn is_used(&self, nth: u64) -> bool {
        let (word, bit) = Self::bit(nth);
        self.used[word] & bit != 0
    }

    fn set_used(&mut self, nth: u64) {
        let (word, bit) = Self::bit(nth);
        self.used[word] |= bit;
        self.free -= 1;
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
    fn segments_that_adjoin_become_one_and_keep_what_is_taken() {
        let mut space = NodeSpace::new(&[segment(100, 70), segment(300, 10)]);
        let taken: Vec<_> = (0..75).filter_map(|_| space.allocate()).collect();
        let free = space.free();
        space.add(segment(170, 130));
        assert_eq!(space.segments(), [segment(100, 210)]);
        assert_eq!(space.free(), free + 130);
        assert!(taken.iter().all(|&page| !space.take(page)), "they stay taken");
        let rest: BTreeSet<_> = std::iter::from_fn(|| space.allocate()).collect();
        let expected: BTreeSet<u64> = (100..310).filter(|page| !taken.contains(page)).collect();
        assert_eq!(rest, expected);
        space.add(segment(90, 10));
        space.add(segment(400, 1));
        assert_eq!(space.segments(), [segment(90, 220), segment(400, 1)]);
        let apart = segment(u64::from(u32::MAX), u32::MAX);
        space.add(apart);
        space.add(segment(apart.end(), 1));
        assert_eq!(space.segments().len(), 4, "what no segment can hold is none");
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
