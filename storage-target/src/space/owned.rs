//! Pages that somebody holds for a while, each under a number that says who.

use std::{collections::BTreeMap, ops::Range};

use super::Extent;

/// Extents that do not overlap, each with its owner's number.
#[derive(Debug, Default)]
pub(super) struct Owned {
    /// By first page: one past the last, and the owner.
    extents: BTreeMap<u64, (u64, u64)>,
    pages: u64,
}

impl Owned {
    /// How many pages are held.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds pages.
    ///
    /// # Panics
    /// When one of them is held already.
    pub(super) fn insert(&mut self, extent: Extent, owner: u64) {
        assert!(self.within(extent.numbers()).next().is_none(), "held by one: {extent:?}");
        self.extents.insert(extent.first, (extent.end(), owner));
        self.pages += extent.pages;
    }

    /// Removes those pages of an extent that are held, by `owner` if one is named; returns them.
    pub(super) fn remove(&mut self, extent: Extent, owner: Option<u64>) -> Vec<Extent> {
        let is_meant = |&(_, held_by): &(Extent, u64)| owner.is_none_or(|owner| owner == held_by);
        let found: Vec<_> = self.within(extent.numbers()).filter(is_meant).collect();
        let mut removed = Vec::with_capacity(found.len());
        for (part, held_by) in found {
            let (&first, &(end, _)) =
                self.extents.range(..=part.first).next_back().expect("found a moment ago");
            self.extents.remove(&first);
            if first < part.first {
                self.extents.insert(first, (part.first, held_by));
            }
            if part.end() < end {
                self.extents.insert(part.end(), (end, held_by));
            }
            self.pages -= part.pages;
            removed.push(part);
        }
        removed
    }

    /// The parts of a range that are held, in order, with their owners.
    pub(super) fn within(&self, range: Range<u64>) -> impl Iterator<Item = (Extent, u64)> + '_ {
        let before = self.extents.range(..range.start).next_back();
        let inside = self.extents.range(range.clone());
        before.into_iter().chain(inside).filter_map(move |(&first, &(end, owner))| {
            let (first, end) = (first.max(range.start), end.min(range.end));
            (first < end).then(|| (Extent { first, pages: end - first }, owner))
        })
    }

    /// All extents, in order.
    pub(super) fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.extents.iter().map(|(&first, &(end, _))| Extent { first, pages: end - first })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(first: u64, pages: u64) -> Extent {
        Extent { first, pages }
    }

    #[test]
    fn parts_are_removed_and_the_rest_stays_with_its_owner() {
        let mut owned = Owned::default();
        owned.insert(extent(10, 10), 1);
        owned.insert(extent(20, 5), 2);
        let found: Vec<_> = owned.within(15..22).collect();
        assert_eq!(found, [(extent(15, 5), 1), (extent(20, 2), 2)]);
        assert_eq!(owned.remove(extent(12, 10), Some(1)), [extent(12, 8)]);
        assert_eq!(owned.pages(), 7);
        assert_eq!(owned.remove(extent(0, 100), None), [extent(10, 2), extent(20, 5)]);
        assert_eq!((owned.pages(), owned.iter().count()), (0, 0));
    }

    #[test]
    #[should_panic(expected = "held by one")]
    fn a_page_has_one_owner() {
        let mut owned = Owned::default();
        owned.insert(extent(10, 10), 1);
        owned.insert(extent(19, 1), 2);
    }
}
