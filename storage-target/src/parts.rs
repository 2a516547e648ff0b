//! What each byte of a read is: stored, zero, to be fetched from the bucket, or lost.
//!
//! The rule that *lost is not a hole* lives here: an absent block that the bucket does not back is
//! zeros only if the capability says that the content may have holes. Pure; no I/O.

use std::ops::Range;

use millrace_types::{BlockState, ErrorKind};

use crate::{
    engine::page_checksum::PAGE,
    format::chunk::{BLOCK_PAGES, ChunkRecord},
};

/// Bytes of a block.
pub(crate) const BLOCK: u32 = 64 * 1024;

/// One stretch of a read, in order; ranges are bytes within the chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Part {
    /// On the disk; lies within consecutive stored pages.
    Stored(Range<u32>),
    /// Zeros.
    Zeros(Range<u32>),
    /// In the bucket only; whole blocks lie around it.
    Missing(Range<u32>),
}

impl Part {
    pub(crate) fn range(&self) -> &Range<u32> {
        match self {
            Self::Stored(range) | Self::Zeros(range) | Self::Missing(range) => range,
        }
    }
}

/// Cuts `range` of a chunk into parts. `backed` bytes from the chunk's start are in the bucket;
/// `sparse` says that the content may have holes.
///
/// # Errors
/// [`ErrorKind::Lost`] when a byte is absent, not backed, and cannot be a hole.
pub(crate) fn parts(
    record: &ChunkRecord,
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
        let block = record.block(u16::try_from(index).expect("a chunk has 1,024 blocks at most"));
        let part = match block.state {
            BlockState::Clean | BlockState::Written => {
                let page_len = u32::try_from(PAGE).expect("4 KiB");
                let stored_end = start + u32::from(block.pages) * page_len;
                if at < stored_end {
                    Part::Stored(at..end.min(stored_end))
                } else {
                    Part::Zeros(at..end)
                }
            }
            BlockState::Zero => Part::Zeros(at..end),
            BlockState::Absent if start < backed => Part::Missing(at..end),
            BlockState::Absent if sparse => Part::Zeros(at..end),
            BlockState::Absent => return Err(ErrorKind::Lost),
        };
        at = part.range().end;
        join(&mut parts, part);
    }
    Ok(parts)
}

fn join(parts: &mut Vec<Part>, part: Part) {
    match (parts.last_mut(), &part) {
        (Some(Part::Stored(last)), Part::Stored(next))
        | (Some(Part::Zeros(last)), Part::Zeros(next))
        | (Some(Part::Missing(last)), Part::Missing(next)) => last.end = next.end,
        _ => parts.push(part),
    }
}

const _: () = assert!(BLOCK as usize == BLOCK_PAGES as usize * PAGE);

#[cfg(test)]
mod tests {
    use millrace_types::{ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, Crc32c, InodeId};

    use super::*;
    use crate::format::chunk::Run;

    fn record(runs: &[Run]) -> ChunkRecord {
        let mut record = ChunkRecord::new(ChunkKey {
            inode: InodeId(1),
            generation: ContentGeneration(0),
            index: ChunkIndex(0),
            copy: CopyIndex(0),
        });
        runs.iter().for_each(|run| record.put(run, 1));
        record
    }

    fn stored(first_block: u16, tail_pages: u8) -> Run {
        Run {
            first_block,
            blocks: 1,
            state: BlockState::Written,
            tail_pages,
            first_page: 0,
            checksums: vec![Crc32c(0); usize::from(tail_pages)],
        }
    }

    #[test]
    fn absent_is_fetched_or_a_hole_or_lost_but_never_silently_zero() {
        let blank = record(&[]);
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
        let record = record(&[stored(0, 16), stored(1, 2)]);
        assert_eq!(
            parts(&record, 100..2 * BLOCK, 0, false),
            Ok(vec![Part::Stored(100..BLOCK + 8192), Part::Zeros(BLOCK + 8192..2 * BLOCK)])
        );
    }
}
