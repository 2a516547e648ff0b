//! Consecutive sections of one chunk, seen as blocks and pages of the chunk. No I/O.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    ops::{Range, RangeInclusive},
};

use millrace_protocol::storage::ChunkVersion;
use millrace_types::{BlockState, ChunkKey, ChunkSize, GroupEpoch};

use crate::format::{
    section::{SECTION_BLOCKS, SECTION_PAGES, Section, StoredPage},
    units::BLOCK_PAGES,
};

/// Some sections of a chunk as they were at one moment.
#[derive(Clone, Debug)]
pub(super) struct Sections {
    key: ChunkKey,
    /// The number of the first.
    first: u8,
    /// In order; `None` where the index has no record.
    records: Vec<Option<Section>>,
}

impl Sections {
    /// Consecutive sections, from number `first` on.
    pub(super) fn new(key: ChunkKey, first: u8, records: Vec<Option<Section>>) -> Self {
        Self { key, first, records }
    }

    pub(super) fn key(&self) -> ChunkKey {
        self.key
    }

    /// The record of a section.
    ///
    /// # Panics
    /// When the section is none of these; as everything below.
    pub(super) fn record(&self, section: u8) -> Option<&Section> {
        self.get(section).expect("the section was asked for")
    }

    /// `None` when the section is none of these, `Some(None)` when it has no record.
    fn get(&self, section: u8) -> Option<Option<&Section>> {
        let at = usize::from(section.checked_sub(self.first)?);
        self.records.get(at).map(Option::as_ref)
    }

    /// Each section with its record.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u8, Option<&Section>)> {
        (self.first..).zip(&self.records).map(|(number, record)| (number, record.as_ref()))
    }

    /// Whether these are the sections with these numbers.
    pub(super) fn covers(&self, numbers: &RangeInclusive<u8>) -> bool {
        *numbers.start() == self.first && numbers.clone().count() == self.records.len()
    }

    /// The greatest version of these sections.
    pub(super) fn version(&self) -> ChunkVersion {
        let none = ChunkVersion { group_epoch: GroupEpoch(0), counter: 0 };
        self.records.iter().flatten().map(|record| record.version).max().unwrap_or(none)
    }

    /// The newest record that has changed any of these sections; 0 when there is none.
    pub(super) fn sequence(&self) -> u64 {
        self.records.iter().flatten().map(|record| record.sequence).max().unwrap_or(0)
    }

    /// Bytes of the file's chunks; `None` when there is no record.
    pub(super) fn chunk_size(&self) -> Option<ChunkSize> {
        self.records.iter().flatten().map(|record| record.chunk_size).next()
    }

    pub(super) fn state(&self, block: u16) -> BlockState {
        let (section, within) = split_block(block);
        self.record(section).map_or(BlockState::Absent, |record| record.state(within))
    }

    /// Where a page of the chunk lies; `None` when it is not on the disk.
    pub(super) fn page(&self, page: u32) -> Option<StoredPage> {
        let (section, within) = split_page(page);
        self.record(section)?.page(within)
    }

    /// The pages of a block that are on the disk.
    pub(super) fn pages_of(&self, block: u16) -> impl Iterator<Item = StoredPage> {
        let first = u32::from(block) * u32::from(BLOCK_PAGES);
        (first..first + u32::from(BLOCK_PAGES)).filter_map(|page| self.page(page))
    }

    /// One past the last page of a block that is on the disk; 0 when none is.
    pub(super) fn stored_pages(&self, block: u16) -> u32 {
        let first = u32::from(block) * u32::from(BLOCK_PAGES);
        let stored = |within: &u32| self.page(first + within).is_some();
        (0..u32::from(BLOCK_PAGES)).rev().find(stored).map_or(0, |last| last + 1)
    }

    /// A number that follows from what the block holds and where.
    pub(super) fn fingerprint(&self, block: u16) -> u64 {
        let first = u32::from(block) * u32::from(BLOCK_PAGES);
        let mut hasher = DefaultHasher::new();
        for page in first..first + u32::from(BLOCK_PAGES) {
            self.page(page).map(|stored| (stored.page, stored.checksum)).hash(&mut hasher);
        }
        hasher.finish()
    }

    /// Whether some pages are those of other sections, in the same version.
    pub(super) fn are_as(&self, other: &Self, pages: Range<u32>) -> bool {
        let mut numbers = sections_of_pages(&pages);
        numbers.all(|number| match (self.get(number), other.get(number)) {
            (Some(Some(one)), Some(Some(other))) => one.sequence == other.sequence,
            _ => false,
        })
    }
}

/// The section that a block of a chunk lies in, and its number there.
pub(super) fn split_block(block: u16) -> (u8, u8) {
    let blocks = u16::from(SECTION_BLOCKS);
    (byte(u32::from(block / blocks)), byte(u32::from(block % blocks)))
}

/// The section that a page of a chunk lies in, and its number there.
pub(super) fn split_page(page: u32) -> (u8, u8) {
    let pages = u32::from(SECTION_PAGES);
    (byte(page / pages), byte(page % pages))
}

/// The sections that pages of a chunk lie in.
pub(super) fn sections_of_pages(pages: &Range<u32>) -> RangeInclusive<u8> {
    assert!(!pages.is_empty(), "pages of a chunk");
    split_page(pages.start).0..=split_page(pages.end - 1).0
}

/// The part of pages of a chunk that lies in a section, counted there.
pub(super) fn within(section: u8, pages: &Range<u32>) -> Range<u8> {
    let start = u32::from(section) * u32::from(SECTION_PAGES);
    let end = start + u32::from(SECTION_PAGES);
    let low = pages.start.clamp(start, end) - start;
    let high = pages.end.clamp(start, end) - start;
    byte(low)..byte(high)
}

/// The block that a page of a chunk lies in.
pub(super) fn block_of_page(page: u32) -> u16 {
    u16::try_from(page / u32::from(BLOCK_PAGES)).expect("a chunk has 1,024 blocks at most")
}

fn byte(value: u32) -> u8 {
    u8::try_from(value).expect("a chunk has 128 sections at most")
}
