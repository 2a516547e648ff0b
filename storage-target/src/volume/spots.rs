//! Where new bytes of a chunk should lie: behind those before them, with room for those after them.

use std::{
    ops::Range,
    sync::atomic::{AtomicU64, Ordering},
};

use millrace_types::{ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, InodeId};

use super::sections::Sections;
use crate::{page_checksum::PAGE, space::Spot};

/// The shortest write behind which pages are set aside: 512 KiB. Who writes less at a time writes
/// small files, or to places of no order; those are gathered when it is worth it.
const LEAST_PAGES: u32 = 128;

/// Pages set aside for small durable writes: what some hundred of them take, and few enough to be
/// found on a disk that has been in use.
const RUN_PAGES: u32 = 256;

/// Pages of a sequence that have one name.
const SEQUENCE_PART: u64 = 1 << 24;

/// The name of what belongs to no chunk: no inode has this number.
const NO_CHUNK: ChunkKey = ChunkKey {
    inode: InodeId(u64::MAX),
    generation: ContentGeneration(u32::MAX),
    index: ChunkIndex(0),
    copy: CopyIndex(u8::MAX),
};

/// The spot for pages of a chunk that are written; `None` when some of them replace others, whose
/// order on the disk was decided before.
///
/// How far a file will grow nobody knows: in its first chunk as much is set aside as it has, and
/// whole chunks behind that.
pub(super) fn of_write(sections: &Sections, pages: &Range<u32>, chunk_size: u32) -> Option<Spot> {
    if pages.clone().any(|page| sections.page(page).is_some()) {
        return None;
    }
    let (chunk, all) = (sections.key(), page_count(chunk_size));
    let until = match chunk.index.0 {
        _ if pages.end - pages.start < LEAST_PAGES => pages.end,
        0 => pages.end.saturating_mul(2).min(all),
        _ => all,
    };
    Some(Spot { chunk, pages: pages.clone(), until: until.max(pages.end), is_shared: false })
}

/// The spot for pages of a chunk that come from a bucket, which backs so many bytes of it.
pub(super) fn of_fill(key: ChunkKey, pages: &Range<u32>, backed: u32) -> Spot {
    let until = page_count(backed).max(pages.end);
    Spot { chunk: key, pages: pages.clone(), until, is_shared: false }
}

/// Spots one after the other, whatever they are for: what many write durably at the same time then
/// lies in one run, and goes to the disk as one write instead of one each.
#[derive(Debug, Default)]
pub(super) struct Sequence {
    /// Pages given out so far.
    next: AtomicU64,
}

impl Sequence {
    /// The spot for so many pages.
    pub(super) fn spot(&self, pages: u32) -> Spot {
        let mut next = self.next.load(Ordering::Relaxed);
        loop {
            // No spot lies in two parts.
            let left = SEQUENCE_PART - next % SEQUENCE_PART;
            let start = if u64::from(pages) <= left { next } else { next + left };
            let end = start + u64::from(pages);
            match self.next.compare_exchange(next, end, Ordering::Relaxed, Ordering::Relaxed) {
                Ok(_) => return spot_in_sequence(start, pages),
                Err(newer) => next = newer,
            }
        }
    }
}

fn spot_in_sequence(start: u64, pages: u32) -> Spot {
    let part = u32::try_from(start / SEQUENCE_PART % (1 << 32)).expect("32 bits");
    let first = u32::try_from(start % SEQUENCE_PART).expect("within a part");
    let until = first + pages.max(RUN_PAGES);
    let chunk = ChunkKey { index: ChunkIndex(part), ..NO_CHUNK };
    Spot { chunk, pages: first..first + pages, until, is_shared: true }
}

fn page_count(bytes: u32) -> u32 {
    bytes.div_ceil(u32::try_from(PAGE).expect("4 KiB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CHUNK_SIZE: u32 = 8 << 20;

    fn until(index: u32, pages: Range<u32>) -> u32 {
        let key = ChunkKey {
            inode: InodeId(1),
            generation: ContentGeneration(0),
            index: ChunkIndex(index),
            copy: CopyIndex(0),
        };
        let sections = Sections::new(key, 0, vec![None; 16]);
        of_write(&sections, &pages, CHUNK_SIZE).expect("nothing is replaced").until
    }

    #[test]
    fn a_sequence_has_spots_one_after_the_other_and_none_in_two_parts() {
        let sequence = Sequence::default();
        assert_eq!(sequence.spot(4).pages, 0..4);
        let next = sequence.spot(1);
        assert_eq!((next.pages, next.until, next.is_shared), (4..5, 260, true));
        let last = u32::try_from(SEQUENCE_PART).unwrap() - 6;
        assert_eq!(sequence.spot(last).pages, 5..5 + last);
        let over = sequence.spot(2);
        assert_eq!((over.chunk.index, over.pages), (ChunkIndex(1), 0..2));
    }

    #[test]
    fn a_file_has_as_much_set_aside_as_it_has_and_then_whole_chunks() {
        assert_eq!(until(0, 0..256), 512);
        assert_eq!(until(0, 1500..1756), 2048, "the chunk's end");
        assert_eq!(until(0, 0..127), 127, "small ones take no more than they need");
        assert_eq!(until(3, 0..256), 2048);
        assert_eq!(until(3, 1900..2048), 2048);
    }
}
