//! Which pages of a disk are free, in regions of 32 MiB.
//!
//! Owns no I/O. The free maps of regions are values of the index; here a summary of each region is
//! kept (12 bytes and its place in an ordered set), and the maps of regions in use. Who asks for
//! space or gives some back may be told to bring a map first ([`Refusal::Needs`]).
//!
//! # What it guarantees
//! - Every free page can be had: an allocation that finds no run long enough is cut, at blocks of
//!   16 pages as long as possible, then anywhere. Fragmentation costs speed and never space.
//! - The counts are exact at every moment.
//!
//! # How it keeps long runs long
//! A region serves one *class* of lengths at a time, so that small files do not riddle the space of
//! large ones; a region that becomes empty serves any. Within a class the region is taken whose
//! longest run is the shortest that suffices.
//!
//! Modules: `region` (one map), `allocator`.

mod allocator;
mod region;
#[cfg(test)]
mod tests;

pub use allocator::{Allocator, Class, Refusal};
pub use region::{REGION_MAP_LEN, REGION_PAGES, RegionMap};

/// Consecutive pages, counted from the first region's start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// The first page.
    pub first: u64,
    /// How many.
    pub pages: u64,
}

impl Extent {
    /// One past the last page.
    #[must_use]
    pub fn end(self) -> u64 {
        self.first + self.pages
    }
}
