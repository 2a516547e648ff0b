//! Looking at a section: where its pages are, and what it holds.

use std::ops::Range;

use millrace_types::{BLOCK_SIZE, BlockState, ByteLen, Crc32c};

use super::{Placed, SECTION_BLOCKS, SECTION_PAGES, SECTION_SIZE, Section, StoredPage};
use crate::format::{
    extent::{Extent, join},
    units::BLOCK_PAGES,
};

/// Consecutive pages of a section that come from one place.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// The pages, counted in the section.
    pub pages: Range<u8>,
    /// Where they come from.
    pub source: Source,
}

/// Where pages come from.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Source {
    /// From the disk, one after the other from this page on.
    Stored {
        /// The first page.
        page: u64,
    },
    /// Zeros.
    Zero,
    /// Not from here.
    Absent,
}

/// Bytes of a section by state, as they count to who asks what a target holds of a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Held {
    /// The bucket's bytes.
    pub clean: ByteLen,
    /// Bytes that somebody wrote.
    pub written: ByteLen,
    /// Zeros that somebody asked for.
    pub zero: ByteLen,
    /// One past the last byte of a block that is present, in the chunk; 0 when there is none.
    pub end: u64,
}

impl Section {
    /// The state of a block.
    ///
    /// # Panics
    /// When there is no such block.
    #[must_use]
    pub fn state(&self, block: u8) -> BlockState {
        self.states[usize::from(block)]
    }

    /// The states of all blocks.
    #[must_use]
    pub fn states(&self) -> [BlockState; SECTION_BLOCKS as usize] {
        self.states
    }

    /// Whether every block is absent: the index then has no record of the section.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.states.iter().all(|&state| state == BlockState::Absent)
    }

    /// Where a page is and what its checksum is; `None` when it is not on the disk.
    #[must_use]
    pub fn page(&self, at: u8) -> Option<StoredPage> {
        let mut rank = 0;
        for extent in &self.extents {
            if at < extent.first {
                break;
            }
            if at < extent.end() {
                let within = at - extent.first;
                let checksum = self.checksums[rank + usize::from(within)];
                return Some(StoredPage { page: extent.page + u64::from(within), checksum });
            }
            rank += usize::from(extent.pages);
        }
        None
    }

    /// Every page that is on the disk, in order, with its place in the section.
    pub fn stored_pages(&self) -> impl Iterator<Item = (u8, StoredPage)> + '_ {
        places(&self.extents)
            .zip(&self.checksums)
            .map(|((at, page), &checksum)| (at, StoredPage { page, checksum }))
    }

    /// The checksums of those pages of a range that are on the disk, in order.
    #[must_use]
    pub fn checksums(&self, pages: Range<u8>) -> &[Crc32c] {
        let rank = |at: u8| -> usize {
            let before = |extent: &Placed| at.min(extent.end()).saturating_sub(extent.first);
            self.extents.iter().map(|extent| usize::from(before(extent))).sum()
        };
        &self.checksums[rank(pages.start)..rank(pages.end).max(rank(pages.start))]
    }

    /// Where the pages of a range come from: as few parts as possible, in order, without gaps.
    ///
    /// # Panics
    /// When the range leaves the section.
    #[must_use]
    pub fn parts(&self, pages: Range<u8>) -> Vec<Part> {
        assert!(pages.end <= SECTION_PAGES, "pages of a section");
        let mut parts: Vec<Part> = Vec::new();
        let mut at = pages.start;
        let mut add = |range: Range<u8>, source: Source| match parts.last_mut() {
            Some(last) if last.source == source && !matches!(source, Source::Stored { .. }) => {
                last.pages.end = range.end;
            }
            _ => parts.push(Part { pages: range, source }),
        };
        while at < pages.end {
            let extent = self.extents.iter().find(|extent| extent.end() > at);
            let covered = extent.filter(|extent| extent.first <= at);
            if let Some(extent) = covered {
                let end = extent.end().min(pages.end);
                add(at..end, Source::Stored { page: extent.page + u64::from(at - extent.first) });
                at = end;
            } else {
                let block_end = (at / BLOCK_PAGES + 1) * BLOCK_PAGES;
                let hole_end = extent.map_or(SECTION_PAGES, |extent| extent.first);
                let end = block_end.min(hole_end).min(pages.end);
                let absent = self.state(at / BLOCK_PAGES) == BlockState::Absent;
                add(at..end, if absent { Source::Absent } else { Source::Zero });
                at = end;
            }
        }
        parts
    }

    /// How many extents the section consists of; many make it slow to read.
    #[must_use]
    pub fn extent_count(&self) -> usize {
        self.extents.len()
    }

    /// The pages on the disk, in the disk's order.
    #[must_use]
    pub fn extents(&self) -> Vec<Extent> {
        join(self.stored_pages().map(|(_, stored)| stored.page).collect())
    }

    /// How many pages of clean and of written blocks are on the disk.
    #[must_use]
    pub fn pages_by_state(&self) -> (u64, u64) {
        let (mut clean, mut written) = (0, 0);
        for extent in &self.extents {
            let mut at = extent.first;
            while at < extent.end() {
                let block = at / BLOCK_PAGES;
                let end = extent.end().min((block + 1) * BLOCK_PAGES);
                match self.state(block) {
                    BlockState::Clean => clean += u64::from(end - at),
                    _ => written += u64::from(end - at),
                }
                at = end;
            }
        }
        (clean, written)
    }

    /// The pages of another version of the section and of this one, in order, each with its place
    /// in the section; without extents at both ends that the two have in common.
    pub(in crate::format) fn changed_places(
        &self,
        other: Option<&Self>,
    ) -> (impl Iterator<Item = (u8, u64)>, impl Iterator<Item = (u8, u64)>) {
        let (mut olds, mut news) = (other.map_or(&[][..], |old| &old.extents), &self.extents[..]);
        while let (Some((old, olds_left)), Some((new, news_left))) =
            (olds.split_first(), news.split_first())
            && old == new
        {
            (olds, news) = (olds_left, news_left);
        }
        while let (Some((old, olds_left)), Some((new, news_left))) =
            (olds.split_last(), news.split_last())
            && old == new
        {
            (olds, news) = (olds_left, news_left);
        }
        (places(olds), places(news))
    }

    /// Bytes by state. A stored block counts up to the section's length, one of zeros whole.
    #[must_use]
    pub fn held(&self, number: u8) -> Held {
        let mut held = Held::default();
        let section_start = u64::from(number) * u64::from(SECTION_SIZE);
        for (at, state) in (0..).zip(self.states) {
            let start = section_start + at * BLOCK_SIZE;
            let stored = u64::from(self.length).saturating_sub(start).min(BLOCK_SIZE);
            let (sum, len) = match state {
                BlockState::Absent => continue,
                BlockState::Clean => (&mut held.clean, stored),
                BlockState::Written => (&mut held.written, stored),
                BlockState::Zero => (&mut held.zero, BLOCK_SIZE),
            };
            sum.0 += len;
            held.end = start + len;
        }
        held
    }
}

/// Each page of some extents, with its place in the section.
fn places(extents: &[Placed]) -> impl Iterator<Item = (u8, u64)> + '_ {
    extents.iter().flat_map(|extent| {
        (0..extent.pages).map(|at| (extent.first + at, extent.page + u64::from(at)))
    })
}
