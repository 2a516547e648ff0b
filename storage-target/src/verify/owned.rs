//! Which pages of the regions are in use, a bit each. Memory is 1 KiB for each region in use: 512
//! MiB for 16 TiB.

use std::collections::BTreeMap;

use crate::format::{
    extent::{Extent, join},
    free_map::{REGION_PAGES, RegionMap},
    superblock::Layout,
};

/// The pages in use.
#[derive(Debug)]
pub(super) struct Owned {
    layout: Layout,
    regions: BTreeMap<u32, RegionMap>,
    pages: u64,
}

impl Owned {
    pub(super) fn new(layout: Layout) -> Self {
        Self { layout, regions: BTreeMap::new(), pages: 0 }
    }

    /// Whether all pages of an extent lie in regions.
    pub(super) fn contains(&self, extent: Extent) -> bool {
        let end =
            self.layout.regions + u64::from(self.layout.region_count()) * u64::from(REGION_PAGES);
        extent.first >= self.layout.regions && extent.end() <= end
    }

    /// Marks pages of regions as in use; returns those that were already.
    pub(super) fn take(&mut self, extent: Extent) -> Vec<Extent> {
        self.flip(extent, true)
    }

    /// Marks pages of regions as free; returns those that were already.
    pub(super) fn give(&mut self, extent: Extent) -> Vec<Extent> {
        self.flip(extent, false)
    }

    fn flip(&mut self, extent: Extent, used: bool) -> Vec<Extent> {
        let mut twice = Vec::new();
        let mut at = extent.first;
        while at < extent.end() {
            let (region, within) = self.place(at);
            let end = (at - u64::from(within) + u64::from(REGION_PAGES)).min(extent.end());
            let count = u32::try_from(end - at).expect("within a region");
            let map = self.regions.entry(region).or_default();
            let range = within..within + count;
            if map.is_all(!used, range.clone()) {
                if used {
                    map.take(range)
                } else {
                    map.give(range)
                }
                self.pages = count_after(self.pages, u64::from(count), used);
            } else {
                for page in at..end {
                    let within = within + u32::try_from(page - at).expect("within a region");
                    if map.is_all(used, within..within + 1) {
                        twice.push(page);
                        continue;
                    }
                    if used {
                        map.take(within..within + 1)
                    } else {
                        map.give(within..within + 1)
                    }
                    self.pages = count_after(self.pages, 1, used);
                }
            }
            at = end;
        }
        join(twice)
    }

    /// Pages in use.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// The map of a region.
    pub(super) fn map(&self, region: u32) -> RegionMap {
        self.regions.get(&region).cloned().unwrap_or_default()
    }

    /// Regions of which any page was ever taken, in order.
    pub(super) fn regions(&self) -> impl Iterator<Item = u32> + '_ {
        self.regions.keys().copied()
    }

    /// The first page of a region.
    pub(super) fn first_page(&self, region: u32) -> u64 {
        self.layout.regions + u64::from(region) * u64::from(REGION_PAGES)
    }

    /// Pages in use from `page` on, and the first of them.
    pub(super) fn used_from(&self, page: u64) -> (u64, Option<u64>) {
        let (mut count, mut first) = (0, None);
        for (&region, map) in &self.regions {
            let start = self.first_page(region);
            if start + u64::from(REGION_PAGES) <= page {
                continue;
            }
            for at in bits(map).map(|bit| start + u64::from(bit)).filter(|&at| at >= page) {
                count += 1;
                first = first.or(Some(at));
            }
        }
        (count, first)
    }

    /// Region and place in it of a page.
    fn place(&self, page: u64) -> (u32, u32) {
        let from_start = page - self.layout.regions;
        let region = from_start / u64::from(REGION_PAGES);
        let within = from_start % u64::from(REGION_PAGES);
        (u32::try_from(region).expect("a region"), u32::try_from(within).expect("below 8,192"))
    }
}

fn count_after(pages: u64, more: u64, used: bool) -> u64 {
    if used { pages + more } else { pages - more }
}

/// Pages of a region that are in use, in order.
pub(super) fn bits(map: &RegionMap) -> impl Iterator<Item = u32> {
    let bytes = map.encode();
    (0..REGION_PAGES).filter(move |at| {
        let byte = bytes[usize::try_from(at / 8).expect("below 1,024")];
        byte >> (at % 8) & 1 == 1
    })
}

/// Pages in use in `one` and not in `other`, as extents of the disk.
pub(super) fn difference(one: &RegionMap, other: &RegionMap, first_page: u64) -> Vec<Extent> {
    if one == other {
        return Vec::new();
    }
    let others: Vec<u32> = bits(other).collect();
    let missing = bits(one).filter(|bit| others.binary_search(bit).is_err());
    join(missing.map(|bit| first_page + u64::from(bit)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LAYOUT: Layout = Layout {
        capacity: 512 + 3 * 8192,
        roots: 16,
        journal: 256,
        journal_pages: 256,
        regions: 512,
    };

    #[test]
    fn pages_are_counted_once_across_regions() {
        let mut owned = Owned::new(LAYOUT);
        let extent = |first, pages| Extent { first, pages };
        assert!(owned.contains(extent(512, 3 * 8192)) && !owned.contains(extent(511, 1)));
        assert!(!owned.contains(extent(512 + 3 * 8192 - 1, 2)));
        assert!(owned.take(extent(8700, 10)).is_empty());
        assert_eq!(owned.take(extent(8695, 20)), [extent(8700, 10)]);
        assert_eq!(owned.pages(), 20);
        assert_eq!(owned.regions().collect::<Vec<_>>(), [0, 1]);
        assert_eq!(owned.used_from(8710), (5, Some(8710)));
        assert_eq!(owned.give(extent(8714, 2)), [extent(8715, 1)]);
        assert_eq!(owned.pages(), 19);
        let (one, other) = (owned.map(1), owned.map(0));
        assert_eq!(difference(&one, &other, 8704), [extent(8704, 10)]);
        assert!(difference(&one, &one, 8704).is_empty());
    }
}
