//! Pages set aside behind what chunks have, so that a chunk whose parts are written one after the
//! other lies in one run, whoever else writes meanwhile.
//!
//! A *window* maps pages of one chunk to pages of the disk, in order. Its pages are held like those
//! of a reservation, and count as free: a checkpoint does not know them, and they are given up as
//! soon as somebody lacks pages. So windows cost nothing but the place in which others would have
//! been put.
//!
//! # Bounds
//! [`WINDOWS_MAX`] windows, and an eighth of what is free in all of them; the one used least
//! recently goes first.

use std::{collections::BTreeMap, ops::Range};

use millrace_types::ChunkKey;

use super::{Extent, Spot};

/// Chunks that are written at the same time: as many requests as a disk has under way.
const WINDOWS_MAX: usize = 64;

/// Of what is free, the part that may be set aside.
const PART: u64 = 8;

/// All windows.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    windows: BTreeMap<ChunkKey, Window>,
    pages: u64,
    uses: u64,
}

/// The pages set aside for one chunk.
#[derive(Clone, Debug)]
pub(super) struct Window {
    /// Under which number the pages are held.
    pub(super) owner: u64,
    /// The pages of the chunk that it was made for.
    range: Range<u32>,
    /// Where the first of them lies on the disk.
    first: u64,
    /// Pages of the chunk that have not been written since, in order.
    left: Vec<Range<u32>>,
    used: u64,
}

/// What the windows know of the place for some pages.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Place {
    /// They were set aside, and now belong to who asks; held under this owner's number so far.
    Here(Extent, u64),
    /// Their chunk's window ends right before them, at this page of the disk.
    Behind(u64),
    /// Anywhere; the chunk's window waits for other pages.
    Elsewhere,
    /// Anywhere; nothing is set aside for the chunk.
    Unknown,
}

impl Ahead {
    /// How many pages are set aside.
    pub(super) fn pages(&self) -> u64 {
        self.pages
    }

    /// How many pages a new window may have when so many pages are free.
    pub(super) fn allowance(free: u64) -> u64 {
        free / PART
    }

    /// Finds the place of some pages, and takes it out of the window.
    pub(super) fn take(&mut self, spot: &Spot) -> Place {
        self.uses += 1;
        let Some(window) = self.windows.get_mut(&spot.chunk) else { return Place::Unknown };
        window.used = self.uses;
        if spot.pages.start == window.range.end {
            return Place::Behind(window.place(window.range.end));
        }
        let holds =
            |left: &Range<u32>| left.start <= spot.pages.start && spot.pages.end <= left.end;
        let Some(at) = window.left.iter().position(holds) else {
            return if window.left.is_empty() { Place::Unknown } else { Place::Elsewhere };
        };
        let left = window.left.remove(at);
        let rest = [left.start..spot.pages.start, spot.pages.end..left.end];
        window.left.splice(at..at, rest.into_iter().filter(|part| !part.is_empty()));
        let pages = u64::from(spot.pages.end - spot.pages.start);
        self.pages -= pages;
        Place::Here(Extent { first: window.place(spot.pages.start), pages }, window.owner)
    }

    /// Sets aside the pages of the disk from `first` on for those that follow a spot, under an
    /// owner's number. Returns the window that the chunk had, whose pages are to be given up.
    pub(super) fn open(&mut self, spot: &Spot, first: u64, owner: u64) -> Option<Window> {
        let range = spot.pages.end..spot.until;
        self.pages += u64::from(range.end - range.start);
        self.uses += 1;
        let left = vec![range.clone()];
        let window = Window { owner, range, first, left, used: self.uses };
        let old = self.windows.insert(spot.chunk, window);
        self.removed(old)
    }

    /// Removes the window that was used least recently if there are too many, or too many pages in
    /// them for so many free ones.
    pub(super) fn shrink(&mut self, free: u64) -> Option<Window> {
        match self.windows.len() > WINDOWS_MAX || self.pages > Self::allowance(free) {
            true => self.remove_oldest(),
            false => None,
        }
    }

    /// Removes the window that was used least recently.
    pub(super) fn remove_oldest(&mut self) -> Option<Window> {
        let oldest = self.windows.iter().min_by_key(|(_, window)| window.used);
        let key = *oldest?.0;
        let window = self.windows.remove(&key);
        self.removed(window)
    }

    fn removed(&mut self, window: Option<Window>) -> Option<Window> {
        let window = window?;
        self.pages -= window.extents().map(|extent| extent.pages).sum::<u64>();
        Some(window)
    }
}

impl Window {
    /// The pages of the disk that are left of it.
    pub(super) fn extents(&self) -> impl Iterator<Item = Extent> + '_ {
        self.left.iter().map(|left| Extent {
            first: self.place(left.start),
            pages: u64::from(left.end - left.start),
        })
    }

    fn place(&self, page: u32) -> u64 {
        self.first + u64::from(page - self.range.start)
    }
}
