//! Which pages of a region are in use, and what is known of a region without its map.
//!
//! A *free map* is a value of the index, of 1,024 bytes, under the key `03` and the region's number
//! (4, big-endian): bit `n` of byte `m` (counted from the lowest) is set when page `8 * m + n` of
//! the region is in use. A region without a map is free.
//!
//! *Summaries* are values too, of 256 regions each, under the key `04` and the number of the first
//! region divided by 256 (4, big-endian): 4 bytes a region, in order, until the last that is not
//! free.
//!
//! | offset | bytes | field   | meaning                                                         |
//! |-------:|------:|---------|-----------------------------------------------------------------|
//! |      0 |     2 | free    | bits 0..14: free pages; 14..16: class, 0 small, 1 medium,       |
//! |        |       |         | 2 large, 3 empty                                                |
//! |      2 |     2 | longest | pages of the longest free run                                   |
//!
//! A region is empty if and only if all its 8,192 pages are free. A group without a value is empty.
//! Both are of the same moment as the records in the same checkpoint: pages that no record names
//! yet count as free, and so do pages that the last record that named them has given up.

use std::ops::Range;

use super::{FormatError, fields::Reader};

/// Pages of a region: 32 MiB.
pub const REGION_PAGES: u32 = 8192;

/// Bytes of a map.
pub const REGION_MAP_LEN: usize = REGION_PAGES as usize / 8;

/// Regions of which one value holds the summaries.
pub const SUMMARY_GROUP: u32 = 256;

const WHAT: &str = "a group of region summaries";
const MAP: &str = "the free map of a region";

const WORDS: usize = REGION_PAGES as usize / 64;

/// Which pages of a region are in use.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RegionMap {
    words: Box<[u64; WORDS]>,
}

impl Default for RegionMap {
    fn default() -> Self {
        Self { words: Box::new([0; WORDS]) }
    }
}

impl RegionMap {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        self.words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`FormatError`] when their length is another.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() != REGION_MAP_LEN {
            return Err(FormatError::Truncated(MAP));
        }
        let mut map = Self::default();
        for (word, bytes) in map.words.iter_mut().zip(bytes.chunks_exact(8)) {
            *word = u64::from_le_bytes(*bytes.first_chunk().expect("eight bytes"));
        }
        Ok(map)
    }

    /// Pages that are free.
    #[must_use]
    pub fn free_pages(&self) -> u32 {
        self.words.iter().map(|word| word.count_zeros()).sum()
    }

    /// The free runs, in order.
    pub fn free_runs(&self) -> impl Iterator<Item = Range<u32>> + '_ {
        let mut at = 0;
        std::iter::from_fn(move || {
            let start = self.next(at, false)?;
            let end = self.next(start, true).unwrap_or(REGION_PAGES);
            at = end;
            Some(start..end)
        })
    }

    /// Pages of the longest free run.
    #[must_use]
    pub fn longest_run(&self) -> u32 {
        self.free_runs().map(|run| run.end - run.start).max().unwrap_or(0)
    }

    /// The shortest free run of at least `pages`; the first of equals.
    #[must_use]
    pub fn best_run(&self, pages: u32) -> Option<Range<u32>> {
        self.free_runs()
            .filter(|run| run.end - run.start >= pages)
            .min_by_key(|run| run.end - run.start)
    }

    /// The free run that a page is part of; `None` when it is in use or outside the region.
    #[must_use]
    pub fn free_run(&self, page: u32) -> Option<Range<u32>> {
        let start = self.next(page, false).filter(|&free| free == page)?;
        let end = self.next(start, true).unwrap_or(REGION_PAGES);
        Some(self.last_in_use(page).map_or(0, |used| used + 1)..end)
    }

    /// Marks pages as in use.
    ///
    /// # Panics
    /// When one of them is, or lies outside the region.
    pub fn take(&mut self, pages: Range<u32>) {
        self.flip(pages, false);
    }

    /// Marks pages as in use, whether they are or not; returns how many were not.
    ///
    /// # Panics
    /// When one of them lies outside the region.
    pub fn cover(&mut self, pages: Range<u32>) -> u32 {
        assert!(pages.start < pages.end && pages.end <= REGION_PAGES, "pages of the region");
        let free: Vec<Range<u32>> = self
            .free_runs()
            .map(|run| run.start.max(pages.start)..run.end.min(pages.end))
            .filter(|run| !run.is_empty())
            .collect();
        free.into_iter()
            .map(|run| {
                let count = run.end - run.start;
                self.take(run);
                count
            })
            .sum()
    }

    /// Marks pages as free.
    ///
    /// # Panics
    /// When one of them is, or lies outside the region.
    pub fn give(&mut self, pages: Range<u32>) {
        self.flip(pages, true);
    }

    /// Whether all pages of a range are in use, or none is.
    ///
    /// # Panics
    /// When the range is empty or leaves the region.
    #[must_use]
    pub fn is_all(&self, used: bool, pages: Range<u32>) -> bool {
        assert!(pages.start < pages.end && pages.end <= REGION_PAGES, "pages of the region");
        self.next(pages.start, !used).is_none_or(|other| other >= pages.end)
    }

    fn flip(&mut self, pages: Range<u32>, were_used: bool) {
        assert!(pages.start < pages.end && pages.end <= REGION_PAGES, "pages of the region");
        let mut at = pages.start;
        while at < pages.end {
            let bit = at % 64;
            let count = (64 - bit).min(pages.end - at);
            let mask = (u64::MAX >> (64 - count)) << bit;
            let word = &mut self.words[usize::try_from(at / 64).expect("at most 127")];
            let expected = if were_used { mask } else { 0 };
            assert_eq!(*word & mask, expected, "a page is taken once and given back once");
            *word ^= mask;
            at += count;
        }
    }

    /// The last page before `end` that is in use.
    fn last_in_use(&self, end: u32) -> Option<u32> {
        let mut end = end;
        while end > 0 {
            let last = end - 1;
            let word = self.words[usize::try_from(last / 64).expect("at most 127")];
            let before = word << (63 - last % 64);
            if before != 0 {
                return Some(last - before.leading_zeros());
            }
            end = last / 64 * 64;
        }
        None
    }

    /// The first page from `at` on that is in use, or is not.
    fn next(&self, at: u32, used: bool) -> Option<u32> {
        let mut at = at;
        while at < REGION_PAGES {
            let word = self.words[usize::try_from(at / 64).expect("at most 127")];
            let wanted = if used { word } else { !word };
            let rest = wanted >> (at % 64);
            if rest != 0 {
                return Some(at + rest.trailing_zeros());
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }
}

/// What a region holds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[repr(u8)]
pub enum Class {
    /// Files below a block.
    Small = 0,
    /// Pictures, records, ends of chunks: from a block on.
    Medium = 1,
    /// From a section on.
    Large = 2,
    /// Nothing yet.
    Empty = 3,
}

/// What is known of a region without its map.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Summary {
    /// Free pages.
    pub free: u32,
    /// Pages of the longest free run.
    pub longest: u32,
    /// What the region holds.
    pub class: Class,
}

impl Summary {
    /// Of a region that is free.
    pub const EMPTY: Self = Self { free: REGION_PAGES, longest: REGION_PAGES, class: Class::Empty };

    /// Of a region that has served this class, unless it is empty.
    #[must_use]
    pub fn of(map: &RegionMap, class: Class) -> Self {
        let free = map.free_pages();
        let class = if free == REGION_PAGES { Class::Empty } else { class };
        Self { free, longest: map.longest_run(), class }
    }

    /// The four bytes.
    ///
    /// # Panics
    /// When the counts are impossible.
    #[must_use]
    pub fn encode(self) -> [u8; 4] {
        assert!(is_possible(self), "counts of a region: {self:?}");
        let free = u16::try_from(self.free).expect("at most 8,192");
        let longest = u16::try_from(self.longest).expect("at most 8,192");
        let [a, b] = (free | (self.class as u16) << 14).to_le_bytes();
        let [c, d] = longest.to_le_bytes();
        [a, b, c, d]
    }

    /// Reads the four bytes; `None` when the counts are impossible.
    #[must_use]
    pub fn decode([a, b, c, d]: [u8; 4]) -> Option<Self> {
        let bits = u16::from_le_bytes([a, b]);
        let class = match bits >> 14 {
            0 => Class::Small,
            1 => Class::Medium,
            2 => Class::Large,
            _ => Class::Empty,
        };
        let longest = u32::from(u16::from_le_bytes([c, d]));
        let summary = Self { free: u32::from(bits & 0x3FFF), longest, class };
        is_possible(summary).then_some(summary)
    }
}

/// The bytes of a group's summaries; `None` when all are empty, and the index has no value then.
///
/// # Panics
/// When there are more than [`SUMMARY_GROUP`], or one is impossible.
#[must_use]
pub fn encode_summaries(summaries: &[Summary]) -> Option<Vec<u8>> {
    assert!(summaries.len() <= index_of(SUMMARY_GROUP), "summaries of a group");
    let count = summaries.iter().rposition(|summary| *summary != Summary::EMPTY)? + 1;
    Some(summaries[..count].iter().flat_map(|summary| summary.encode()).collect())
}

/// Reads the summaries of a group; those that are left out are empty.
///
/// # Errors
/// [`FormatError`] when one is impossible, or there are too many.
pub fn decode_summaries(bytes: &[u8]) -> Result<Vec<Summary>, FormatError> {
    let mut reader = Reader::new(bytes, WHAT);
    let count = bytes.len() / 4;
    if count == 0 || count > index_of(SUMMARY_GROUP) {
        return Err(reader.impossible("count"));
    }
    let mut summaries = Vec::with_capacity(count);
    for _ in 0..count {
        let summary = Summary::decode(reader.array()?);
        summaries.push(summary.ok_or_else(|| reader.impossible("summary"))?);
    }
    if summaries.last() == Some(&Summary::EMPTY) {
        return Err(reader.impossible("summary at the end"));
    }
    reader.finish()?;
    Ok(summaries)
}

fn is_possible(summary: Summary) -> bool {
    let Summary { free, longest, class } = summary;
    let empty = class == Class::Empty;
    longest <= free
        && free <= REGION_PAGES
        && (longest > 0) == (free > 0)
        && (empty == (free == REGION_PAGES))
        && (!empty || longest == REGION_PAGES)
}

fn index_of(number: u32) -> usize {
    usize::try_from(number).expect("32 bits fit")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_bytes_never_change() {
        let mut map = RegionMap::default();
        map.take(1..3);
        map.take(8..20);
        let bytes = map.encode();
        assert_eq!(bytes.len(), REGION_MAP_LEN);
        assert_eq!(bytes[..4], [0b110, 0xFF, 0x0F, 0]);
        assert!(bytes[4..].iter().all(|&byte| byte == 0));
        assert_eq!(RegionMap::decode(&bytes), Ok(map));
        assert!(RegionMap::decode(&bytes[1..]).is_err());
    }

    #[test]
    fn the_bytes_of_summaries_never_change() {
        let small = Summary { free: 0x0203, longest: 0x0102, class: Class::Small };
        let full = Summary { free: 0, longest: 0, class: Class::Large };
        let bytes = encode_summaries(&[small, Summary::EMPTY, full, Summary::EMPTY]).unwrap();
        assert_eq!(bytes, [0x03, 0x02, 0x02, 0x01, 0, 0xE0, 0, 0x20, 0, 0x80, 0, 0]);
        assert_eq!(decode_summaries(&bytes), Ok(vec![small, Summary::EMPTY, full]));
        assert_eq!(encode_summaries(&[Summary::EMPTY; 256]), None);
        assert_eq!(encode_summaries(&[full; 256]).unwrap().len(), 1024);
    }

    #[test]
    fn impossible_summaries_are_refused() {
        let bad: [&[u8]; 8] = [
            &[],
            &[0; 3],
            &[0; 5],
            &[0; 1028],
            &[1, 0, 2, 0],       // longer than what is free
            &[1, 0, 0, 0],       // free, and no run
            &[1, 0xC0, 1, 0],    // empty, and not free
            &[0, 0xE0, 0, 0x20], // empty, at the end
        ];
        for bytes in bad {
            assert!(decode_summaries(bytes).is_err(), "{bytes:?}");
        }
        assert_eq!(Summary::decode([0, 0x20, 0, 0x20]), None, "free, and not empty");
    }

    #[test]
    fn covering_takes_what_is_free() {
        let mut map = RegionMap::default();
        map.take(100..200);
        assert_eq!(map.cover(50..250), 100);
        assert_eq!(map.cover(50..250), 0);
        assert!(map.is_all(true, 50..250) && map.is_all(false, 0..50));
        assert!(!map.is_all(true, 49..51) && !map.is_all(false, 249..251));
    }

    #[test]
    #[should_panic(expected = "taken once")]
    fn a_page_in_use_is_not_taken() {
        let mut map = RegionMap::default();
        map.take(100..200);
        map.take(60..101);
    }

    proptest! {
        #[test]
        fn runs_and_counts_are_those_of_a_list_of_pages(
            taken in prop::collection::vec((0_u32..REGION_PAGES, 1_u32..700), 0..40),
            wanted in 1_u32..500,
        ) {
            let mut map = RegionMap::default();
            let mut pages = vec![false; REGION_PAGES as usize];
            for (start, len) in taken {
                let end = (start + len).min(REGION_PAGES);
                let range = start as usize..end as usize;
                if pages[range.clone()].iter().all(|&used| !used) {
                    map.take(start..end);
                    pages[range].fill(true);
                }
            }
            let mut runs = Vec::new();
            let mut at = 0;
            for group in pages.chunk_by(|one, other| one == other) {
                let len = u32::try_from(group.len()).unwrap();
                if !group[0] {
                    runs.push(at..at + len);
                }
                at += len;
            }
            prop_assert_eq!(map.free_runs().collect::<Vec<_>>(), runs.clone());
            let lens = || runs.iter().map(|run| run.end - run.start);
            prop_assert_eq!(map.free_pages(), lens().sum::<u32>());
            prop_assert_eq!(map.longest_run(), lens().max().unwrap_or(0));
            let best = lens().filter(|&len| len >= wanted).min();
            prop_assert_eq!(map.best_run(wanted).map(|run| run.end - run.start), best);
            for page in (0..REGION_PAGES).step_by(61) {
                let run = runs.iter().find(|run| run.contains(&page));
                prop_assert_eq!(map.free_run(page), run.cloned());
            }
        }
    }
}
