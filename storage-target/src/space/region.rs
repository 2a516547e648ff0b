//! The map of one region, with its free runs counted by length, so that who gives out pages many
//! times a second need not count them each time.

use std::{collections::BTreeMap, ops::Range};

use super::{Class, REGION_PAGES, RegionMap, Summary};

/// A region's map in memory.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Region {
    map: RegionMap,
    free: u32,
    /// How many free runs there are of each length.
    runs: BTreeMap<u32, u32>,
}

impl Default for Region {
    fn default() -> Self {
        Self::new(RegionMap::default())
    }
}

impl Region {
    pub(super) fn new(map: RegionMap) -> Self {
        let (mut free, mut runs) = (0, BTreeMap::new());
        for run in map.free_runs() {
            free += len(&run);
            *runs.entry(len(&run)).or_default() += 1;
        }
        Self { map, free, runs }
    }

    pub(super) fn map(&self) -> &RegionMap {
        &self.map
    }

    /// What is known of it as one that has served this class, unless it is empty.
    pub(super) fn summary(&self, class: Class) -> Summary {
        let longest = self.runs.last_key_value().map_or(0, |(&len, _)| len);
        let class = if self.free == REGION_PAGES { Class::Empty } else { class };
        Summary { free: self.free, longest, class }
    }

    /// The shortest free run of at least `pages`; the first of equals.
    pub(super) fn best_run(&self, pages: u32) -> Option<Range<u32>> {
        let (&wanted, _) = self.runs.range(pages..).next()?;
        self.map.free_runs().find(|run| len(run) == wanted)
    }

    /// Marks pages as in use.
    ///
    /// # Panics
    /// When one of them is.
    pub(super) fn take(&mut self, pages: Range<u32>) {
        let run = self.map.free_run(pages.start).expect("a page is taken once");
        self.map.take(pages.clone());
        self.free -= len(&pages);
        self.remove(&run);
        self.add(&(run.start..pages.start));
        self.add(&(pages.end..run.end));
    }

    /// Marks pages as free.
    ///
    /// # Panics
    /// When one of them is.
    pub(super) fn give(&mut self, pages: Range<u32>) {
        self.map.give(pages.clone());
        self.free += len(&pages);
        let run = self.map.free_run(pages.start).expect("free a moment ago");
        self.remove(&(run.start..pages.start));
        self.remove(&(pages.end..run.end));
        self.add(&run);
    }

    /// Marks pages as in use, whether they are or not; returns how many were not.
    pub(super) fn cover(&mut self, pages: Range<u32>) -> u32 {
        let covered = self.map.cover(pages);
        if covered > 0 {
            *self = Self::new(std::mem::take(&mut self.map));
        }
        covered
    }

    fn add(&mut self, run: &Range<u32>) {
        if !run.is_empty() {
            *self.runs.entry(len(run)).or_default() += 1;
        }
    }

    fn remove(&mut self, run: &Range<u32>) {
        if run.is_empty() {
            return;
        }
        let count = self.runs.get_mut(&len(run)).expect("every run is counted");
        *count -= 1;
        if *count == 0 {
            self.runs.remove(&len(run));
        }
    }
}

fn len(run: &Range<u32>) -> u32 {
    run.end - run.start
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn counts_follow_every_change(
            changes in
                prop::collection::vec((0_u32..REGION_PAGES, 1_u32..500, any::<bool>()), 0..60),
            wanted in 1_u32..300,
        ) {
            let mut region = Region::default();
            for (start, pages, covers) in changes {
                let range = start..(start + pages).min(REGION_PAGES);
                if covers {
                    region.cover(range);
                } else if region.map().is_all(true, range.clone()) {
                    region.give(range);
                } else if region.map().is_all(false, range.clone()) {
                    region.take(range);
                }
                prop_assert_eq!(&region, &Region::new(region.map().clone()));
            }
            let summary = Summary::of(region.map(), Class::Small);
            prop_assert_eq!(region.summary(Class::Small), summary);
            prop_assert_eq!(region.best_run(wanted), region.map().best_run(wanted));
        }
    }
}
