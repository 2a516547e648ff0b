//! Which pages of a disk are free, in regions of 32 MiB, and what the others are used for.
//!
//! Owns no I/O. The free maps of regions are values of the index; here a summary of each region is
//! kept (12 bytes, 4 more, and its place in an ordered set), and the maps of regions in use. Who
//! asks for space or gives some back may be told to bring a map first ([`Refusal::Needs`]).
//!
//! # The way of a page
//!
//! ```text
//!            reserve        place             commit (taken)
//!   free ──▶ promised ──▶ held ──────────────────▶ used: clean, written
//!    ▲ ▲         │          │  └─ into_index ─▶ index   │
//!    │ └─────────┴──────────┘ drop                      │ commit (given up)
//!    └────────────────────────── release ◀── quarantined ◀┘
//! ```
//!
//! # What it guarantees
//! - Every free page can be had: an allocation that finds no run long enough is cut, at blocks of
//!   16 pages as long as possible, then anywhere. Fragmentation costs speed and never space.
//! - The counts are exact at every moment: [`Totals`] adds up to the capacity, which is asserted at
//!   each change.
//! - What is promised can be placed; who gets no promise has changed nothing.
//! - What a checkpoint stores ([`Space::checkpoint`]) is what the records up to then say: promised,
//!   held and quarantined pages are free in it. So nothing leaks over a stop.
//!
//! # How it keeps long runs long
//! A region serves one *class* of lengths at a time, so that small files do not riddle the space of
//! large ones; a region that becomes empty serves any. Within a class the region is taken whose
//! longest run is the shortest that suffices. Two empty regions side by side are kept as long as
//! possible for chunks above 32 MiB. Behind what a chunk has got, pages are set aside for what it
//! will probably get next (`ahead`).
//!
//! # Locking
//! One lock of its own, held for memory operations only; nothing else is locked under it. The owner
//! must see to it that [`Space::commit`] happens in the order of sequences, and not between
//! [`Space::checkpoint`] and the freezing of the index.
//!
//! Modules: `region`, `allocator`, `ahead`, `owned` (held and quarantined), `reservation`,
//! `totals`, `stored` (what is kept in the index), `state`.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;

use crate::format::{FormatError, change::Effects, fact::StateTotals, key::Key};

mod ahead;
mod allocator;
mod owned;
mod region;
mod reservation;
mod state;
mod stored;
#[cfg(test)]
mod tests;
mod totals;

pub use crate::format::{
    extent::Extent,
    free_map::{Class, REGION_MAP_LEN, REGION_PAGES, RegionMap, Summary},
    superblock::Layout,
};
pub use allocator::{Allocator, Refusal};
pub use reservation::{Purpose, Reservation, Spot};
pub use stored::StoredSummaries;
pub use totals::{Totals, kept_back};

use state::State;

/// The space of a target. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Space {
    state: Arc<Mutex<State>>,
}

/// Why a record cannot be replayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum ReplayError {
    /// The map of this region is not in memory: bring it ([`Space::bring`]), then ask again.
    /// Nothing was changed.
    #[error("the map of region {0} is not in memory")]
    Needs(u32),
    /// The record takes pages that are in use, gives up pages that are not, or names pages that are
    /// in no region: it is not of this disk's history.
    #[error(
        "a record takes or gives up {} pages from page {}, and cannot", extent.pages, extent.first
    )]
    Impossible {
        /// The pages.
        extent: Extent,
    },
}

impl From<Refusal> for ReplayError {
    fn from(refusal: Refusal) -> Self {
        match refusal {
            Refusal::Needs(region) => Self::Needs(region),
            Refusal::Full => Self::Impossible { extent: Extent { first: 0, pages: 0 } },
        }
    }
}

impl Space {
    /// The space of a blank target. `grown` regions can be used; the others when it has grown.
    ///
    /// # Panics
    /// When there are fewer regions.
    #[must_use]
    pub fn new(layout: Layout, grown: u32) -> Self {
        Self::restore(layout, grown, StoredSummaries::default(), StateTotals::default())
            .expect("nothing is stored, and so nothing is wrong")
    }

    /// The space as the index has it: summaries and totals of its newest checkpoint. Records after
    /// it are then to be replayed, and the index's own pages claimed ([`Self::claim_index`]).
    ///
    /// # Errors
    /// [`FormatError`] when a region is in use that has not grown.
    ///
    /// # Panics
    /// When there are fewer regions than `grown`.
    pub fn restore(
        layout: Layout,
        grown: u32,
        summaries: StoredSummaries,
        totals: StateTotals,
    ) -> Result<Self, FormatError> {
        let state = State::restore(layout, grown, summaries, totals)?;
        Ok(Self { state: Arc::new(Mutex::new(state)) })
    }

    /// Promises pages to a change, before anything of it is done.
    ///
    /// # Errors
    /// [`Refusal::Full`]: there are not as many, now. More there may be when the quarantine is
    /// released or the space has grown.
    pub fn reserve(&self, pages: u64, purpose: Purpose) -> Result<Reservation, Refusal> {
        let owner = self.state().promise(pages, purpose)?;
        Ok(Reservation::new(self.clone(), owner, pages))
    }

    /// Applies a record: pages taken are no longer held, pages given up go into quarantine.
    ///
    /// # Panics
    /// When a page taken was not held, or one given up lies in no region, or the sequence is below
    /// that of an earlier call.
    pub fn commit(&self, sequence: u64, effects: &Effects) {
        self.state().commit(sequence, effects);
    }

    /// Frees the pages given up by records below `end`, which no later start asks for any more, nor
    /// any reader. Returns how many.
    ///
    /// # Errors
    /// [`Refusal::Needs`]: what was freed before that stays free; ask again.
    pub fn release(&self, end: u64) -> Result<u64, Refusal> {
        let mut freed = 0;
        loop {
            let (some, all) = self.state().release(end)?;
            freed += some;
            if all {
                return Ok(freed);
            }
        }
    }

    /// Applies a record of the journal at a start. Pages that it gives up are in quarantine as
    /// after [`Self::commit`], unless a later record takes them again.
    ///
    /// # Errors
    /// [`ReplayError`]; nothing is then changed.
    ///
    /// # Panics
    /// When the sequence is below that of an earlier call.
    pub fn replay(&self, sequence: u64, effects: &Effects) -> Result<(), ReplayError> {
        self.state().replay(sequence, effects)
    }

    /// Marks the pages in which nodes of the index lie, whether the maps have them or not: the
    /// index may have got them after the checkpoint. To be called for each of its segments after
    /// all records were replayed, and never for what [`Reservation::into_index`] has returned.
    ///
    /// # Errors
    /// [`ReplayError`]; nothing is then changed.
    pub fn claim_index(&self, extent: Extent) -> Result<(), ReplayError> {
        self.state().claim_index(extent)
    }

    /// Brings the map of a region, as the index has it; `None`: it has none. What is in memory
    /// already is newer and stays.
    ///
    /// # Errors
    /// [`FormatError`] when it contradicts the region's summary.
    pub fn bring(&self, region: u32, stored: Option<RegionMap>) -> Result<(), FormatError> {
        self.state().bring(region, stored)
    }

    /// What the index must hold of the space as of the records committed so far: values to put, and
    /// keys to remove (`None`). To be put into the index right before it is frozen, with no
    /// [`Self::commit`] in between.
    ///
    /// # Errors
    /// [`Refusal::Needs`]; nothing is changed.
    pub fn checkpoint(&self) -> Result<Vec<(Key, Option<Bytes>)>, Refusal> {
        self.state().checkpoint()
    }

    /// Drops maps from memory that the index has in the same version, until at most `count` are
    /// left.
    pub fn shrink(&self, count: usize) {
        self.state().shrink(count);
    }

    /// How many pages a promise of so many lacks; 0 when it would be given.
    #[must_use]
    pub fn missing(&self, pages: u64, purpose: Purpose) -> u64 {
        self.state().missing(pages, purpose)
    }

    /// Whether no more pages are free than the place for `spot` takes away, with those set aside
    /// for what comes after it: then growing is better than looking for it in what is left.
    #[must_use]
    pub fn is_cramped(&self, spot: &Spot) -> bool {
        self.state().is_cramped(spot)
    }

    /// Says how many more regions can be taken from the file system now, for the figures. Before
    /// it is said, all can.
    pub fn set_growable(&self, regions: u32) {
        self.state().set_growable(regions);
    }

    /// Adds regions that have been taken from the file system.
    ///
    /// # Panics
    /// When there are not as many.
    pub fn grow(&self, regions: u32) {
        self.state().grow(regions);
    }

    /// Regions that can be used.
    #[must_use]
    pub fn regions(&self) -> u32 {
        self.state().regions()
    }

    /// What every page is used for, now.
    #[must_use]
    pub fn totals(&self) -> Totals {
        self.state().totals()
    }

    /// Regions that a checkpoint must store: 1 KiB of the index's changes each.
    #[must_use]
    pub fn changed_regions(&self) -> usize {
        self.state().changed_regions()
    }

    /// A panic elsewhere leaves the state whole: what it asserts, it asserts before it changes
    /// anything, or nobody goes on.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
