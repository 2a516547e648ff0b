//! Giving out pages of all regions.

use std::collections::{BTreeMap, BTreeSet};

use crate::format::{
    extent::Extent,
    free_map::{Class, REGION_PAGES, RegionMap, Summary},
};

/// Pages of a block: below it a run is worth nothing to large reads.
const BLOCK_PAGES: u32 = 16;

/// Pages of a section, the largest part of a chunk that one index record describes.
const SECTION_PAGES: u32 = 128;

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
    summaries: Vec<Summary>,
    /// Every region that has free pages, by class, longest run and number.
    order: BTreeSet<(Class, u32, u32)>,
    maps: BTreeMap<u32, RegionMap>,
    /// Regions whose map has changed since [`Self::take_changed`].
    changed: BTreeSet<u32>,
    free_pages: u64,
}

impl Allocator {
    /// So many regions, all free.
    #[must_use]
    pub fn new(regions: u32) -> Self {
        Self {
            summaries: vec![Summary::EMPTY; usize::try_from(regions).expect("32 bits fit")],
            order: (0..regions).map(|region| (Class::Empty, REGION_PAGES, region)).collect(),
            maps: BTreeMap::new(),
            changed: BTreeSet::new(),
            free_pages: u64::from(regions) * u64::from(REGION_PAGES),
        }
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

    /// Brings a region's map, as the index has it. What is in memory already is newer and stays.
    pub fn bring(&mut self, region: u32, map: RegionMap) {
        self.maps.entry(region).or_insert(map);
    }

    /// The regions whose maps have changed since the last call, with the maps: what a checkpoint
    /// must store.
    pub fn take_changed(&mut self) -> Vec<(u32, RegionMap)> {
        let changed = std::mem::take(&mut self.changed);
        changed.into_iter().map(|region| (region, self.maps[&region].clone())).collect()
    }

    /// Drops maps that have not changed until at most `count` are left.
    pub fn shrink(&mut self, count: usize) {
        let mut surplus = self.maps.len().saturating_sub(count);
        let changed = &self.changed;
        self.maps.retain(|region, _| {
            let keep = surplus == 0 || changed.contains(region);
            surplus -= usize::from(!keep);
            keep
        });
    }

    /// Takes up to `pages` pages in one run.
    fn take_run(
        &mut self,
        class: Class,
        pages: u64,
        after: Option<u64>,
    ) -> Result<Extent, Refusal> {
        let wanted = u32::try_from(pages).unwrap_or(u32::MAX).min(REGION_PAGES);
        let (region, count) = self.choose(class, wanted, after);
        if self.summaries[index_of(region)].class == Class::Empty {
            // Without a map in the index, and needing none.
            self.maps.entry(region).or_default();
        }
        let map = self.maps.get(&region).ok_or(Refusal::Needs(region))?;
        let run = map.best_run(count).expect("the summary says that there is one");
        let run = run.start..run.start + count;
        let first = u64::from(region) * u64::from(REGION_PAGES) + u64::from(run.start);
        self.change(region, class, |map| map.take(run));
        self.free_pages -= u64::from(count);
        Ok(Extent { first, pages: u64::from(count) })
    }

    /// The region to take a run from, and its length. There are free pages.
    fn choose(&self, class: Class, wanted: u32, after: Option<u64>) -> (u32, u32) {
        // What goes on from region to region stays in one piece.
        let next = after.filter(|after| after.is_multiple_of(u64::from(REGION_PAGES)));
        let next = next.and_then(|after| u32::try_from(after / u64::from(REGION_PAGES)).ok());
        let is_empty = |region: &u32| {
            let summary = self.summaries.get(index_of(*region));
            summary.is_some_and(|summary| summary.class == Class::Empty)
        };
        if let Some(next) = next.filter(is_empty) {
            return (next, wanted);
        }
        let in_class = |among: Class| {
            self.order.range((among, wanted, 0)..=(among, u32::MAX, u32::MAX)).next()
        };
        if let Some(&(_, _, region)) = class.order().into_iter().find_map(in_class) {
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

    /// The pages of each region that an extent lies in.
    fn parts(&self, extent: Extent) -> Vec<(u32, std::ops::Range<u32>)> {
        assert!(extent.pages > 0 && extent.end() <= self.total_pages(), "pages of the disk");
        let size = u64::from(REGION_PAGES);
        let number = |value: u64| u32::try_from(value).expect("within a region");
        let regions = extent.first / size..=(extent.end() - 1) / size;
        regions
            .map(|region| {
                let start = extent.first.max(region * size) - region * size;
                let end = extent.end().min((region + 1) * size) - region * size;
                (number(region), number(start)..number(end))
            })
            .collect()
    }

    fn need(&mut self, parts: &[(u32, std::ops::Range<u32>)]) -> Result<(), Refusal> {
        for &(region, _) in parts {
            if self.summaries[index_of(region)].class == Class::Empty {
                self.maps.entry(region).or_default();
            } else if !self.maps.contains_key(&region) {
                return Err(Refusal::Needs(region));
            }
        }
        Ok(())
    }

    /// Changes a map that is in memory, and everything that follows from it.
    fn change(&mut self, region: u32, class: Class, change: impl FnOnce(&mut RegionMap)) {
        let map = self.maps.get_mut(&region).expect("the caller has looked");
        change(map);
        let summary = &mut self.summaries[index_of(region)];
        self.order.remove(&(summary.class, summary.longest, region));
        let class = if summary.class == Class::Empty { class } else { summary.class };
        *summary = Summary::of(map, class);
        if summary.longest > 0 {
            self.order.insert((summary.class, summary.longest, region));
        }
        self.changed.insert(region);
    }
}

fn index_of(region: u32) -> usize {
    usize::try_from(region).expect("32 bits fit")
}
