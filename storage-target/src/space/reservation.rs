//! Pages promised to a change before anything is changed.

use std::ops::Range;

use millrace_types::ChunkKey;

use super::{Extent, Refusal, Space};

/// What pages are wanted for, which decides how far the last of them go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Purpose {
    /// Bytes of clients and buckets: not from the 1/64 that is kept back.
    Store,
    /// To free more than it takes, as the end of a truncation does: down to half of what is kept
    /// back.
    Free,
    /// Nodes of the index: down to the last page.
    Index,
}

/// Pages of a chunk that have no place yet, and how far the chunk will probably reach.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Spot {
    /// The chunk.
    pub chunk: ChunkKey,
    /// Its pages that a place is wanted for; not empty.
    pub pages: Range<u32>,
    /// One past the last page that will probably be written after these, and not before them; at
    /// least the end of `pages`.
    pub until: u32,
    /// Whether small parts of many chunks lie in the run, one after the other. Such a run is only
    /// looked for where small things are, and in empty regions.
    pub is_shared: bool,
}

/// Pages promised to a change, and those of them that it was given. Dropped, it gives back all that
/// no record has taken.
#[derive(Debug)]
pub struct Reservation {
    space: Space,
    /// Under which number its pages are held.
    owner: u64,
    /// Promised, and not given out yet.
    promised: u64,
    extents: Vec<Extent>,
}

impl Reservation {
    pub(super) fn new(space: Space, owner: u64, promised: u64) -> Self {
        Self { space, owner, promised, extents: Vec::new() }
    }

    /// Gives out pages of those promised: in as few extents as can be had.
    ///
    /// # Errors
    /// [`Refusal::Needs`]; nothing is changed.
    ///
    /// # Panics
    /// When fewer are promised, or `pages` is 0.
    pub fn place(&mut self, pages: u64) -> Result<&[Extent], Refusal> {
        assert!(pages <= self.promised, "pages are promised before they are given out");
        let new = self.space.state().place(pages, self.owner)?;
        self.promised -= pages;
        let start = self.extents.len();
        self.extents.extend(new);
        Ok(&self.extents[start..])
    }

    /// Gives out pages of those promised for a part of a chunk: right behind the part before it, if
    /// that can be had, and sets pages aside for what follows.
    ///
    /// # Errors
    /// [`Refusal::Needs`]; nothing is changed.
    ///
    /// # Panics
    /// When fewer are promised, or `spot` is empty or runs backwards.
    pub fn place_at(&mut self, spot: &Spot) -> Result<&[Extent], Refusal> {
        assert!(!spot.pages.is_empty() && spot.until >= spot.pages.end, "a spot: {spot:?}");
        let pages = u64::from(spot.pages.end - spot.pages.start);
        assert!(pages <= self.promised, "pages are promised before they are given out");
        let new = self.space.state().place_at(spot, self.owner)?;
        self.promised -= pages;
        let start = self.extents.len();
        self.extents.extend(new);
        Ok(&self.extents[start..])
    }

    /// All extents given out, in that order.
    #[must_use]
    pub fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Pages promised and not given out yet.
    #[must_use]
    pub fn promised(&self) -> u64 {
        self.promised
    }

    /// Gives back all extents but the longest, of which `count` stay.
    pub fn keep_longest(&mut self, count: usize) {
        self.extents.sort_unstable_by_key(|extent| (std::cmp::Reverse(extent.pages), extent.first));
        let rest = self.extents.split_off(count.min(self.extents.len()));
        self.space.state().give_back(&rest, 0, self.owner);
    }

    /// The pages become nodes of the index; returns them. What is only promised is given back.
    #[must_use]
    pub fn into_index(mut self) -> Vec<Extent> {
        let extents = std::mem::take(&mut self.extents);
        self.space.state().hand_to_index(&extents, self.owner);
        extents
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.space.state().give_back(&self.extents, self.promised, self.owner);
    }
}
