//! What each byte of a read is: stored, zero, to be fetched from the bucket, or lost.
//!
//! The rule that *lost is not a hole* lives here: an absent block that the bucket does not back is
//! zeros only if the capability says that the content may have holes. Pure; no I/O.

use std::ops::Range;

use millrace_types::{BlockState, ErrorKind};

use crate::{format::units::BLOCK_PAGES, page_checksum::PAGE, volume::Snapshot};

/// Bytes of a block.
pub(crate) const BLOCK: u32 = 64 * 1024;

/// Bytes of a page.
const PAGE_LEN: u32 = BLOCK / BLOCK_PAGES as u32;

/// One stretch of a read, in order; ranges are bytes within the chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// On the disk; lies within stored blocks, and begins and ends in pages that are stored. Pages
    /// between them may be holes, which read as zeros: less than a block of them at a time.
    Stored(Range<u32>),
    /// Zeros.
    Zeros(Range<u32>),
    /// In the bucket only; whole blocks lie around it.
    Missing(Range<u32>),
}

/// What is known of the blocks of a chunk.
pub(crate) trait Blocks {
    /// Where the bytes of a block come from.
    fn state(&self, block: u16) -> BlockState;

    /// Whether a page of the chunk, in a stored block, is on the disk; if not it is zero.
    fn has_page(&self, page: u32) -> bool;
}

impl Blocks for Snapshot {
    fn state(&self, block: u16) -> BlockState {
        Self::state(self, block)
    }

    fn has_page(&self, page: u32) -> bool {
        self.disk_page(page).is_some()
    }
}

/// Cuts `range` of a chunk into parts. `backed` bytes from the chunk's start are in the bucket;
/// `sparse` says that the content may have holes.
///
/// # Errors
/// [`ErrorKind::Lost`] when a byte is absent, not backed, and cannot be a hole.
pub(crate) fn parts(
    blocks: &impl Blocks,
    range: Range<u32>,
    backed: u32,
    sparse: bool,
) -> Result<Vec<Part>, ErrorKind> {
    let mut parts: Vec<Part> = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let index = at / BLOCK;
        let start = index * BLOCK;
        let end = range.end.min(start + BLOCK);
        let state = blocks.state(u16::try_from(index).expect("a chunk has 1,024 blocks at most"));
        match state {
            BlockState::Clean | BlockState::Written => add_pages(&mut parts, blocks, at..end),
            BlockState::Zero => add(&mut parts, Part::Zeros(at..end)),
            BlockState::Absent if start < backed => add(&mut parts, Part::Missing(at..end)),
            BlockState::Absent if sparse => add(&mut parts, Part::Zeros(at..end)),
            BlockState::Absent => return Err(ErrorKind::Lost),
        }
        at = end;
    }
    Ok(parts)
}

/// The first byte of `range` that is a hole, or the first that is none; arguments as of [`parts`].
/// What is lost is no hole: reading it fails, and must not be left out.
pub(crate) fn seek(
    blocks: &impl Blocks,
    range: Range<u32>,
    backed: u32,
    sparse: bool,
    hole: bool,
) -> Option<u32> {
    let mut at = range.start;
    while at < range.end {
        let index = at / BLOCK;
        let start = index * BLOCK;
        let state = blocks.state(u16::try_from(index).expect("a chunk has 1,024 blocks at most"));
        let (is_hole, end) = match state {
            BlockState::Clean | BlockState::Written => {
                let page = at / PAGE_LEN;
                (!blocks.has_page(page), (page + 1) * PAGE_LEN)
            }
            BlockState::Zero => (true, start + BLOCK),
            BlockState::Absent => (sparse && start >= backed, start + BLOCK),
        };
        if is_hole == hole {
            return Some(at);
        }
        at = end;
    }
    None
}

/// Adds bytes of a stored block, page by page.
fn add_pages(parts: &mut Vec<Part>, blocks: &impl Blocks, range: Range<u32>) {
    let mut at = range.start;
    while at < range.end {
        let page = at / PAGE_LEN;
        let end = range.end.min((page + 1) * PAGE_LEN);
        match blocks.has_page(page) {
            true => add(parts, Part::Stored(at..end)),
            false => add(parts, Part::Zeros(at..end)),
        }
        at = end;
    }
}

/// Adds the next part, joined with the last one where that is of the same kind. Stored bytes are
/// also joined over a hole of less than a block: one transfer with a gap costs less than two. Such
/// a hole lies in stored blocks as a whole, because any other is one block long at least.
fn add(parts: &mut Vec<Part>, mut part: Part) {
    match (parts.as_mut_slice(), &mut part) {
        ([.., Part::Stored(last)], Part::Stored(next))
        | ([.., Part::Zeros(last)], Part::Zeros(next))
        | ([.., Part::Missing(last)], Part::Missing(next)) => last.end = next.end,
        ([.., Part::Stored(last), Part::Zeros(hole)], Part::Stored(next))
            if hole.end - hole.start < BLOCK =>
        {
            last.end = next.end;
            parts.pop();
        }
        _ => parts.push(part),
    }
}

const _: () = assert!(PAGE_LEN as usize == PAGE);

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// The state of each block with the pages that are stored, by bit. What is not named is absent.
    struct Known(BTreeMap<u16, (BlockState, u16)>);

    impl Blocks for Known {
        fn state(&self, block: u16) -> BlockState {
            self.0.get(&block).map_or(BlockState::Absent, |&(state, _)| state)
        }

        fn has_page(&self, page: u32) -> bool {
            let block = u16::try_from(page / 16).unwrap();
            self.0[&block].1 >> (page % 16) & 1 == 1
        }
    }

    fn written(pages: u16) -> (BlockState, u16) {
        (BlockState::Written, pages)
    }

    #[test]
    fn absent_is_fetched_or_a_hole_or_lost_but_never_silently_zero() {
        let blank = Known(BTreeMap::new());
        let all = 0..2 * BLOCK;
        assert_eq!(parts(&blank, all.clone(), 0, false), Err(ErrorKind::Lost));
        assert_eq!(parts(&blank, all.clone(), 0, true), Ok(vec![Part::Zeros(all.clone())]));
        assert_eq!(
            parts(&blank, all.clone(), 2 * BLOCK, true),
            Ok(vec![Part::Missing(all.clone())])
        );
        assert_eq!(parts(&blank, all, 1, false), Err(ErrorKind::Lost));
    }

    #[test]
    fn what_a_stored_block_does_not_store_is_zero() {
        let two = Known(BTreeMap::from([(0, written(0xFFFF)), (1, written(0b11))]));
        assert_eq!(
            parts(&two, 100..2 * BLOCK, 0, false),
            Ok(vec![Part::Stored(100..BLOCK + 8192), Part::Zeros(BLOCK + 8192..2 * BLOCK)])
        );
        let middle = Known(BTreeMap::from([(0, written(0b100)), (1, written(0))]));
        assert_eq!(
            parts(&middle, 100..2 * BLOCK, 0, false),
            Ok(vec![
                Part::Zeros(100..8192),
                Part::Stored(8192..12_288),
                Part::Zeros(12_288..2 * BLOCK)
            ])
        );
    }

    #[test]
    fn only_what_reads_as_zeros_is_a_hole() {
        let zero = (BlockState::Zero, 0);
        let known = Known(BTreeMap::from([(0, written(0b1)), (1, zero), (3, written(0xFFFF))]));
        let all = 0..5 * BLOCK;
        let find = |from, backed, sparse, hole| seek(&known, from..all.end, backed, sparse, hole);
        assert_eq!(find(0, 0, true, false), Some(0));
        assert_eq!(find(100, 0, true, true), Some(PAGE_LEN), "a page of a block that is stored");
        assert_eq!(find(PAGE_LEN, 0, true, false), Some(3 * BLOCK));
        assert_eq!(find(3 * BLOCK, 0, true, true), Some(4 * BLOCK));
        assert_eq!(find(4 * BLOCK, 0, true, false), None);
        assert_eq!(find(BLOCK, 0, false, false), Some(2 * BLOCK), "what is lost");
        assert_eq!(find(4 * BLOCK, 0, false, true), None);
        assert_eq!(find(BLOCK, 3 * BLOCK, true, false), Some(2 * BLOCK), "what the bucket has");
        assert_eq!(find(2 * BLOCK, 5 * BLOCK, true, true), None);
        for (from, hole) in
            (0..80).flat_map(|page| [(page * PAGE_LEN, true), (page * PAGE_LEN, false)])
        {
            let cut = parts(&known, from..all.end, 0, true).unwrap();
            let zeros = |part: &&Part| matches!(part, Part::Zeros(_)) == hole;
            let first = cut.iter().find(zeros).map(|part| match part {
                Part::Stored(range) | Part::Zeros(range) | Part::Missing(range) => range.start,
            });
            assert_eq!(find(from, 0, true, hole), first, "as a read of it shows");
        }
    }

    #[test]
    fn a_short_hole_is_read_over_and_a_block_of_zeros_is_not() {
        let short = Known(BTreeMap::from([(0, written(1 << 4)), (1, written(1 << 3))]));
        assert_eq!(
            parts(&short, 16_384..2 * BLOCK, 0, false),
            Ok(vec![Part::Stored(16_384..BLOCK + 16_384), Part::Zeros(BLOCK + 16_384..2 * BLOCK)])
        );
        let zero = (BlockState::Zero, 0);
        let long = Known(BTreeMap::from([(0, written(1 << 15)), (1, zero), (2, written(1))]));
        assert_eq!(
            parts(&long, 61_440..2 * BLOCK + 10, 0, false),
            Ok(vec![
                Part::Stored(61_440..BLOCK),
                Part::Zeros(BLOCK..2 * BLOCK),
                Part::Stored(2 * BLOCK..2 * BLOCK + 10)
            ])
        );
    }
}
