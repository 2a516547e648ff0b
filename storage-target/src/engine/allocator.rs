//! Which pages of the data file are free.
//!
//! Owns no I/O. Pages go round: free → allocated → (referenced by the index) → quarantined → free.
//! *Quarantine* keeps pages that the index gave up until that change is durable, so that after a
//! loss of power the older version is still whole, and until no reader that began before the change
//! is left.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::format::chunk::BLOCK_PAGES;

/// Consecutive pages.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Extent {
    /// The first page.
    pub(super) first: u64,
    /// How many.
    pub(super) pages: u64,
}

impl Extent {
    fn end(self) -> u64 {
        self.first + self.pages
    }
}

/// Free pages of a data file of `total` pages, which may grow to `capacity`.
#[derive(Debug)]
pub(super) struct Allocator {
    free: BTreeMap<u64, u64>,
    by_len: BTreeSet<(u64, u64)>,
    free_pages: u64,
    total: u64,
    capacity: u64,
    quarantine: VecDeque<(u64, Extent)>,
    quarantined_pages: u64,
}

impl Allocator {
    /// Builds the free list from what the index uses, which it sorts.
    ///
    /// # Errors
    /// The first page that two chunks claim, or that lies outside the file.
    pub(super) fn new(total: u64, capacity: u64, mut used: Vec<Extent>) -> Result<Self, u64> {
        used.sort_unstable();
        let mut allocator = Self {
            free: BTreeMap::new(),
            by_len: BTreeSet::new(),
            free_pages: 0,
            total,
            capacity: capacity.max(total),
            quarantine: VecDeque::new(),
            quarantined_pages: 0,
        };
        let mut at = 0;
        for extent in used {
            if extent.first < at || extent.end() > total {
                return Err(extent.first);
            }
            allocator.insert(Extent { first: at, pages: extent.first - at });
            at = extent.end();
        }
        allocator.insert(Extent { first: at, pages: total - at });
        Ok(allocator)
    }

    /// Takes `pages` pages: one run if there is one that long, otherwise several that are cut at
    /// multiples of a block, so that no block is ever split. `None` changes nothing.
    pub(super) fn allocate(&mut self, pages: u64) -> Option<Vec<Extent>> {
        assert!(pages > 0, "nothing needs no space");
        let block = u64::from(BLOCK_PAGES);
        let mut taken = Vec::new();
        let mut missing = pages;
        while missing > 0 {
            // The smallest run that fits keeps the long ones for large writes.
            let whole = self.by_len.range((missing, 0)..).next().copied();
            let found = whole.or_else(|| self.by_len.last().copied());
            let take = match found {
                Some((len, _)) if len >= missing => missing,
                Some((len, _)) if len >= block => len / block * block,
                _ => {
                    taken.into_iter().for_each(|extent| self.insert(extent));
                    return None;
                }
            };
            let (len, first) = found.expect("matched above");
            self.remove(Extent { first, pages: len });
            self.insert(Extent { first: first + take, pages: len - take });
            taken.push(Extent { first, pages: take });
            missing -= take;
        }
        Some(taken)
    }

    /// Gives back pages that no index entry ever pointed to.
    pub(super) fn give_back(&mut self, extent: Extent) {
        self.insert(extent);
    }

    /// Takes pages that the index gave up in journal record `sequence`.
    pub(super) fn quarantine(&mut self, sequence: u64, extent: Extent) {
        assert!(
            self.quarantine.back().is_none_or(|&(last, _)| last <= sequence),
            "records are applied in order"
        );
        self.quarantined_pages += extent.pages;
        self.quarantine.push_back((sequence, extent));
    }

    /// Frees what was given up in records up to `through`.
    pub(super) fn release(&mut self, through: u64) {
        while let Some(&(sequence, extent)) = self.quarantine.front() {
            if sequence > through {
                return;
            }
            self.quarantine.pop_front();
            self.quarantined_pages -= extent.pages;
            self.insert(extent);
        }
    }

    /// Adds the pages by which the file has grown.
    pub(super) fn grow(&mut self, total: u64) {
        assert!(total >= self.total && total <= self.capacity, "a file grows within its capacity");
        let extent = Extent { first: self.total, pages: total - self.total };
        self.total = total;
        self.insert(extent);
    }

    /// Pages of the file.
    pub(super) fn total(&self) -> u64 {
        self.total
    }

    /// Pages that the file may grow to.
    pub(super) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Pages allocated or in quarantine.
    pub(super) fn used(&self) -> u64 {
        self.total - self.free_pages
    }

    /// Pages that the next barrier may free.
    pub(super) fn quarantined(&self) -> u64 {
        self.quarantined_pages
    }

    fn insert(&mut self, mut extent: Extent) {
        if extent.pages == 0 {
            return;
        }
        self.free_pages += extent.pages;
        if let Some((&first, &pages)) = self.free.range(..extent.first).next_back() {
            assert!(first + pages <= extent.first, "a page is freed once");
            if first + pages == extent.first {
                self.forget(Extent { first, pages });
                extent = Extent { first, pages: pages + extent.pages };
            }
        }
        if let Some((&first, &pages)) = self.free.range(extent.first..).next() {
            assert!(extent.end() <= first, "a page is freed once");
            if extent.end() == first {
                self.forget(Extent { first, pages });
                extent.pages += pages;
            }
        }
        self.free.insert(extent.first, extent.pages);
        self.by_len.insert((extent.pages, extent.first));
    }

    fn remove(&mut self, extent: Extent) {
        self.forget(extent);
        self.free_pages -= extent.pages;
    }

    fn forget(&mut self, extent: Extent) {
        let known = self.free.remove(&extent.first);
        assert_eq!(known, Some(extent.pages), "the two orders of the free list agree");
        assert!(self.by_len.remove(&(extent.pages, extent.first)), "the two orders agree");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_full_disk_refuses_and_serves_again_when_freed() {
        let mut allocator = Allocator::new(64, 64, Vec::new()).unwrap();
        let first = allocator.allocate(40).unwrap();
        assert_eq!(allocator.allocate(25), None);
        assert_eq!(allocator.used(), 40, "a refusal changes nothing");
        allocator.quarantine(7, first[0]);
        assert_eq!(allocator.allocate(25), None);
        allocator.release(6);
        assert_eq!(allocator.quarantined(), 40);
        allocator.release(7);
        assert_eq!(allocator.allocate(64).unwrap().len(), 1);
    }

    #[test]
    fn pages_claimed_twice_or_outside_are_refused() {
        let extent = |first, pages| Extent { first, pages };
        assert_eq!(Allocator::new(10, 10, vec![extent(0, 4), extent(3, 2)]).unwrap_err(), 3);
        assert_eq!(Allocator::new(10, 10, vec![extent(8, 4)]).unwrap_err(), 8);
    }

    proptest! {
        #[test]
        fn no_page_is_ever_given_out_twice(
            ops in prop::collection::vec((0_u8..3, 1_u64..300), 1..200)
        ) {
            let mut allocator = Allocator::new(2048, 4096, Vec::new()).unwrap();
            let mut held: Vec<Extent> = Vec::new();
            let mut sequence = 0;
            for (op, size) in ops {
                match op {
                    0 => held.extend(allocator.allocate(size).unwrap_or_default()),
                    1 if !held.is_empty() => {
                        let at = usize::try_from(size).unwrap() % held.len();
                        sequence += 1;
                        allocator.quarantine(sequence, held.swap_remove(at));
                    }
                    _ => allocator.release(sequence),
                }
                let mut sorted = held.clone();
                sorted.sort_unstable();
                prop_assert!(sorted.windows(2).all(|pair| pair[0].end() <= pair[1].first));
                let pages: u64 = held.iter().map(|extent| extent.pages).sum();
                prop_assert_eq!(pages + allocator.quarantined(), allocator.used());
            }
        }
    }
}
