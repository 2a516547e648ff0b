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
//! Modules: `allocator`.

mod allocator;
#[cfg(test)]
mod tests;

pub use crate::format::{
    extent::Extent,
    free_map::{Class, REGION_MAP_LEN, REGION_PAGES, RegionMap},
};
pub use allocator::{Allocator, Refusal};
