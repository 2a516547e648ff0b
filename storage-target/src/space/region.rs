//! The free map of one region.
//!
//! As a value of the index it is 1,024 bytes: bit `n` of byte `m` (counted from the lowest) is set
//! when page `8 * m + n` of the region is in use. A region without a map is free.

use std::ops::Range;

use crate::format::FormatError;

/// Pages of a region: 32 MiB.
pub const REGION_PAGES: u32 = 8192;

/// Bytes of a map.
pub const REGION_MAP_LEN: usize = REGION_PAGES as usize / 8;

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
            return Err(FormatError::Truncated("the free map of a region"));
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

    /// Marks pages as in use.
    ///
    /// # Panics
    /// When one of them is, or lies outside the region.
    pub fn take(&mut self, pages: Range<u32>) {
        self.flip(pages, false);
    }

    /// Marks pages as free.
    ///
    /// # Panics
    /// When one of them is, or lies outside the region.
    pub fn give(&mut self, pages: Range<u32>) {
        self.flip(pages, true);
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
        }
    }
}
