//! Giving out pages of all regions.

use std::collections::{BTreeMap, BTreeSet, btree_map::Entry};

use super::region::Region;
use crate::format::{
    extent::Extent,
    free_map::{Class, REGION_PAGES, RegionMap, Summary},
};

/// Pages of a block: below it a run is worth nothing to large reads.
const BLOCK_PAGES: u32 = 16;

/// Pages of a section, the largest part of a chunk that one index record describes.
const SECTION_PAGES: u32 = 128;

/// Empty regions looked at for one that stands alone.
const LOOK_AT: usize = 64;

impl Class {
    fn of(pages: u64) -> Self {
        match pages {
            _ if pages < u64::from(BLOCK_PAGES) => Self::Small,
            _ if pages < u64::from(SECTION_PAGES) => Self::Medium,
            _ => Self::Large,
        }
    }

    /// Where to look for a run of this class: among its own, in an empty region, then where it does
    /// the least harm.
    fn order(self) -> [Self; 4] {
        match self {
            Self::Small => [Self::Small, Self::Empty, Self::Medium, Self::Large],
            Self::Medium => [Self::Medium, Self::Empty, Self::Small, Self::Large],
            Self::Large | Self::Empty => [Self::Large, Self::Empty, Self::Medium, Self::Small],
        }
    }
}

/// Why no pages were given out or taken back.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Refusal {
    /// There are not as many free pages. Nothing was changed.
    #[error("no space left")]
    Full,
    /// The map of this region is not in memory: bring it ([`Allocator::bring`]), then ask again.
    /// Nothing was changed.
    #[error("the map of region {0} is not in memory")]
    Needs(u32),
}

/// The regions of a disk.
#[derive(Debug)]
pub struct Allocator {
    /// The first page of the first region.
    first_page: u64,
    summaries: Vec<Summary>,
    /// Every region that has free pages, by class, longest run and number.
    order: BTreeSet<(Class, u32, u32)>,
    /// Empty regions whose next one is empty too: where a chunk of 64 MiB is in one piece.
    pairs: BTreeSet<u32>,
    maps: BTreeMap<u32, Region>,
    free_pages: u64,
}

impl Allocator {
    /// So many regions from a page of the disk on, all free.
    #[must_use]
    pub fn new(first_page: u64, regions: u32) -> Self {
        Self::restore(first_page, &vec![Summary::EMPTY; index_of(regions)])
    }

    /// Regions of which the summaries are known, and no map is in memory.
    ///
    /// # Panics
    /// When there are more than 2^32.
    #[must_use]
    pub fn restore(first_page: u64, summaries: &[Summary]) -> Self {
        let numbered = || summaries.iter().zip(0_u32..);
        let is_empty = |summary: &Summary| summary.class == Class::Empty;
        let pairs = summaries.windows(2).zip(0..).filter(|(pair, _)| pair.iter().all(is_empty));
        // Collected, and so sorted once: half a million regions are 16 TiB.
        Self {
            first_page,
            summaries: summaries.to_vec(),
            order: numbered()
                .filter(|(summary, _)| summary.longest > 0)
                .map(|(summary, region)| (summary.class, summary.longest, region))
                .collect(),
            pairs: pairs.map(|(_, region)| region).collect(),
            maps: BTreeMap::new(),
            free_pages: summaries.iter().map(|summary| u64::from(summary.free)).sum(),
        }
    }

    /// Adds regions behind the last one, all free.
    ///
    /// # Panics
    /// When there are more than 2^32.
    pub fn grow(&mut self, regions: u32) {
        for region in self.regions()..self.regions() + regions {
            self.summaries.push(Summary::EMPTY);
            self.order.insert((Class::Empty, REGION_PAGES, region));
            self.free_pages += u64::from(REGION_PAGES);
            self.pair(region);
        }
    }

    /// How many regions there are.
    #[must_use]
    pub fn regions(&self) -> u32 {
        u32::try_from(self.summaries.len()).expect("numbers of regions have 32 bits")
    }

    /// What is known of a region now.
    ///
    /// # Panics
    /// When there is no such region.
    #[must_use]
    pub fn summary(&self, region: u32) -> Summary {
        self.summaries[index_of(region)]
    }

    /// The map of a region, if it is in memory; an empty region has one without any having been
    /// brought.
    #[must_use]
    pub fn map(&self, region: u32) -> Option<RegionMap> {
        let empty = || (self.summary(region).class == Class::Empty).then(RegionMap::default);
        self.maps.get(&region).map(|known| known.map().clone()).or_else(empty)
    }

    /// Pages that are free.
    #[must_use]
    pub fn free_pages(&self) -> u64 {
        self.free_pages
    }

    /// Pages of all regions.
    #[must_use]
    pub fn total_pages(&self) -> u64 {
        self.summaries.len() as u64 * u64::from(REGION_PAGES)
    }

    /// Gives out `pages` pages: one run if there is one, otherwise as few as can be had.
    ///
    /// # Errors
    /// [`Refusal`]; nothing is changed.
    ///
    /// # Panics
    /// When `pages` is 0.
    pub fn allocate(&mut self, pages: u64) -> Result<Vec<Extent>, Refusal> {
        assert!(pages > 0, "nothing needs no space");
        if pages > self.free_pages {
            return Err(Refusal::Full);
        }
        let class = Class::of(pages);
        let mut taken: Vec<Extent> = Vec::new();
        let mut missing = pages;
        while missing > 0 {
            let after = taken.last().map(|extent| extent.end());
            match self.take_run(class, missing, after) {
                Ok(extent) => {
                    missing -= extent.pages;
                    match taken.last_mut() {
                        Some(last) if last.end() == extent.first => last.pages += extent.pages,
                        _ => taken.push(extent),
                    }
                }
                Err(refusal) => {
                    for extent in taken {
                        self.free(extent).expect("the maps were here a moment ago");
                    }
                    return Err(refusal);
                }
            }
        }
        Ok(taken)
    }

    /// Gives out `pages` pages in one run, if there is one.
    ///
    /// # Errors
    /// [`Refusal::Needs`]; nothing is changed.
    ///
    /// # Panics
    /// When `pages` is 0.
    pub fn allocate_run(&mut self, pages: u64) -> Result<Option<Extent>, Refusal> {
        let extents = match self.allocate(pages) {
            Ok(extents) => extents,
            Err(Refusal::Full) => return Ok(None),
            Err(refusal) => return Err(refusal),
        };
        if let [run] = extents[..] {
            return Ok(Some(run));
        }
        for extent in extents {
            self.free(extent).expect("the maps were here a moment ago");
        }
        Ok(None)
    }

    /// Gives out `pages` pages in one run of a region that serves small things, or of an empty one;
    /// `None`: there is none so long.
    ///
    /// # Errors
    /// [`Refusal::Needs`]; nothing is changed.
    ///
    /// # Panics
    /// When `pages` is 0.
    pub fn allocate_small_run(&mut self, pages: u64) -> Result<Option<Extent>, Refusal> {
        assert!(pages > 0, "nothing needs no space");
        let wanted = u32::try_from(pages).unwrap_or(u32::MAX);
        let has_run = |among: Class| {
            let runs = (among, wanted, 0)..=(among, u32::MAX, u32::MAX);
            self.order.range(runs).next().is_some()
        };
        // In this order they are asked.
        match has_run(Class::Small) || has_run(Class::Empty) {
            true => self.take_run(Class::Small, pages, None).map(Some),
            false => Ok(None),
        }
    }

    /// Takes pages back, which may lie in several regions.
    ///
    /// # Errors
    /// [`Refusal::Needs`]; nothing is changed.
    ///
    /// # Panics
    /// When one of them is free already.
    pub fn free(&mut self, extent: Extent) -> Result<(), Refusal> {
        let parts = self.parts(extent);
        self.need(&parts)?;
        for (region, pages) in parts {
            self.change(region, Class::of(extent.pages), |map| map.give(pages));
        }
        self.free_pages += extent.pages;
        Ok(())
    }

    /// Takes certain pages, as a journal says.
    ///
    /// # Errors
    /// [`Refusal::Needs`]; nothing is changed.
    ///
    /// # Panics
    /// When one of them is taken already.
    pub fn take(&mut self, extent: Extent) -> Result<(), Refusal> {
        let parts = self.parts(extent);
        self.need(&parts)?;
        for (region, pages) in parts {
            self.change(region, Class::of(extent.pages), |map| map.take(pages));
        }
        self.free_pages -= extent.pages;
        Ok(())
    }

    /// Takes those pages of an extent that are free; returns how many.
    ///
    /// # Errors
    /// [`Refusal::Needs`]; nothing is changed.
    pub fn cover(&mut self, extent: Extent) -> Result<u64, Refusal> {
        let parts = self.parts(extent);
        self.need(&parts)?;
        let mut covered = 0;
        for (region, pages) in parts {
            self.change(region, Class::of(extent.pages), |map| {
                covered += u64::from(map.cover(pages));
            });
        }
        self.free_pages -= covered;
        Ok(covered)
    }

    /// Brings a region's map. What is in memory already is newer and stays. Returns false, and
    /// takes nothing, when the map has other counts than the summary.
    #[must_use]
    pub fn bring(&mut self, region: u32, map: RegionMap) -> bool {
        let known = self.summary(region);
        if let Entry::Vacant(place) = self.maps.entry(region) {
            let brought = Region::new(map);
            if brought.summary(known.class) != known {
                return false;
            }
            place.insert(brought);
        }
        true
    }

    /// Drops maps until at most `count` are left, or all that are left must be kept: of those the
    /// index has another version, or none.
    pub fn shrink(&mut self, count: usize, keep: impl Fn(u32) -> bool) {
        let mut surplus = self.maps.len().saturating_sub(count);
        self.maps.retain(|&region, _| {
            let kept = surplus == 0 || keep(region);
            surplus -= usize::from(!kept);
            kept
        });
    }

    /// How many maps are in memory.
    #[must_use]
    pub fn maps(&self) -> usize {
        self.maps.len()
    }

    /// Whether all pages of an extent are in use, or none is; an extent beyond the regions is
    /// neither.
    ///
    /// # Errors
    /// [`Refusal::Needs`].
    pub fn is_all(&mut self, used: bool, extent: Extent) -> Result<bool, Refusal> {
        if extent.pages == 0 || extent.first < self.first_page || extent.end() > self.end_page() {
            return Ok(false);
        }
        let parts = self.parts(extent);
        self.need(&parts)?;
        let is_all = |(region, pages): (u32, std::ops::Range<u32>)| {
            self.maps[&region].map().is_all(used, pages)
        };
        Ok(parts.into_iter().all(is_all))
    }

    /// The pages of each region that an extent lies in.
    ///
    /// # Panics
    /// When it is empty or leaves the regions.
    #[must_use]
    pub fn parts(&self, extent: Extent) -> Vec<(u32, std::ops::Range<u32>)> {
        let inside = extent.first >= self.first_page && extent.end() <= self.end_page();
        assert!(extent.pages > 0 && inside, "pages of the regions: {extent:?}");
        let size = u64::from(REGION_PAGES);
        let number = |value: u64| u32::try_from(value).expect("within a region");
        let (first, end) = (extent.first - self.first_page, extent.end() - self.first_page);
        (first / size..=(end - 1) / size)
            .map(|region| {
                let start = first.max(region * size) - region * size;
                let end = end.min((region + 1) * size) - region * size;
                (number(region), number(start)..number(end))
            })
            .collect()
    }

    /// One past the last page of the last region.
    #[must_use]
    pub fn end_page(&self) -> u64 {
        self.first_page + self.total_pages()
    }

    /// The pages of a region.
    #[must_use]
    pub fn region(&self, region: u32) -> Extent {
        let size = u64::from(REGION_PAGES);
        Extent { first: self.first_page + u64::from(region) * size, pages: size }
    }

    /// Takes up to `pages` pages in one run.
    fn take_run(
        &mut self,
        class: Class,
        pages: u64,
        after: Option<u64>,
    ) -> Result<Extent, Refusal> {
        let wanted = u32::try_from(pages).unwrap_or(u32::MAX).min(REGION_PAGES);
        let (region, count) = match self.whole_region(pages, after) {
            Some(region) => (region, wanted),
            None => self.choose(class, wanted),
        };
        if self.summary(region).class == Class::Empty {
            // Without a map in the index, and needing none.
            self.maps.entry(region).or_default();
        }
        let map = self.maps.get(&region).ok_or(Refusal::Needs(region))?;
        let run = map.best_run(count).expect("the summary says that there is one");
        let run = run.start..run.start + count;
        let first = self.region(region).first + u64::from(run.start);
        self.change(region, class, |map| map.take(run));
        self.free_pages -= u64::from(count);
        Ok(Extent { first, pages: u64::from(count) })
    }

    /// An empty region for what should go on from region to region in one piece: the one after the
    /// last, or one whose next is empty too.
    fn whole_region(&self, pages: u64, after: Option<u64>) -> Option<u32> {
        let size = u64::from(REGION_PAGES);
        let place = after.map(|after| after - self.first_page);
        if let Some(place) = place.filter(|place| place.is_multiple_of(size)) {
            let next = u32::try_from(place / size).ok()?;
            let summary = self.summaries.get(index_of(next));
            if summary.is_some_and(|summary| summary.class == Class::Empty) {
                return Some(next);
            }
        }
        if pages > size { self.pairs.first().copied() } else { None }
    }

    /// The region to take a run from, and its length. There are free pages.
    fn choose(&self, class: Class, wanted: u32) -> (u32, u32) {
        let in_class = |among: Class| {
            let mut found =
                self.order.range((among, wanted, 0)..=(among, u32::MAX, u32::MAX)).map(|e| e.2);
            let first = found.next()?;
            if among != Class::Empty {
                return Some(first);
            }
            // One that stands alone, if it is near: pairs are kept for what needs two.
            let alone = |region: &u32| {
                !self.pairs.contains(region)
                    && region.checked_sub(1).is_none_or(|before| !self.pairs.contains(&before))
            };
            Some(std::iter::once(first).chain(found).take(LOOK_AT).find(alone).unwrap_or(first))
        };
        if let Some(region) = class.order().into_iter().find_map(in_class) {
            return (region, wanted);
        }
        // None is long enough: the longest there is, in whole blocks while there are any.
        let longest = |among: Class| {
            self.order.range((among, 0, 0)..=(among, u32::MAX, u32::MAX)).next_back()
        };
        let found = class.order().into_iter().filter_map(longest).max_by_key(|entry| entry.1);
        let &(_, longest, region) = found.expect("there are free pages");
        let blocks = longest / BLOCK_PAGES * BLOCK_PAGES;
        (region, if blocks > 0 { blocks } else { longest })
    }

    fn need(&mut self, parts: &[(u32, std::ops::Range<u32>)]) -> Result<(), Refusal> {
        for &(region, _) in parts {
            if self.summary(region).class == Class::Empty {
                self.maps.entry(region).or_default();
            } else if !self.maps.contains_key(&region) {
                return Err(Refusal::Needs(region));
            }
        }
        Ok(())
    }

    /// Changes a map that is in memory, and everything that follows from it.
    fn change(&mut self, region: u32, class: Class, change: impl FnOnce(&mut Region)) {
        let map = self.maps.get_mut(&region).expect("the caller has looked");
        change(map);
        let summary = &mut self.summaries[index_of(region)];
        let before = *summary;
        let class = if before.class == Class::Empty { class } else { before.class };
        *summary = map.summary(class);
        let now = *summary;
        if (before.class, before.longest) == (now.class, now.longest) {
            return;
        }
        self.order.remove(&(before.class, before.longest, region));
        if now.longest > 0 {
            self.order.insert((now.class, now.longest, region));
        }
        if before.class != now.class {
            self.pair(region);
        }
    }

    /// Notes whether a region and its neighbours are pairs of empty ones.
    fn pair(&mut self, region: u32) {
        let is_empty = |region: Option<u32>| {
            let summary = region.and_then(|region| self.summaries.get(index_of(region)));
            summary.is_some_and(|summary| summary.class == Class::Empty)
        };
        for first in [region.checked_sub(1), Some(region)].into_iter().flatten() {
            match is_empty(Some(first)) && is_empty(first.checked_add(1)) {
                true => self.pairs.insert(first),
                false => self.pairs.remove(&first),
            };
        }
    }
}

fn index_of(region: u32) -> usize {
    usize::try_from(region).expect("32 bits fit")
}
