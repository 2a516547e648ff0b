//! Where new bytes of a chunk should lie: behind those before them, with room for those after them.

use std::ops::Range;

use millrace_types::ChunkKey;

use super::sections::Sections;
use crate::{page_checksum::PAGE, space::Spot};

/// The shortest write behind which pages are set aside: 512 KiB. Who writes less at a time writes
/// small files, or to places of no order; those are gathered when it is worth it.
const LEAST_PAGES: u32 = 128;

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
    Some(Spot { chunk, pages: pages.clone(), until: until.max(pages.end) })
}

/// The spot for pages of a chunk that come from a bucket, which backs so many bytes of it.
pub(super) fn of_fill(key: ChunkKey, pages: &Range<u32>, backed: u32) -> Spot {
    Spot { chunk: key, pages: pages.clone(), until: page_count(backed).max(pages.end) }
}

fn page_count(bytes: u32) -> u32 {
    bytes.div_ceil(u32::try_from(PAGE).expect("4 KiB"))
}

#[cfg(test)]
mod tests {
    use millrace_types::{ChunkIndex, ContentGeneration, CopyIndex, InodeId};

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
    fn a_file_has_as_much_set_aside_as_it_has_and_then_whole_chunks() {
        assert_eq!(until(0, 0..256), 512);
        assert_eq!(until(0, 1500..1756), 2048, "the chunk's end");
        assert_eq!(until(0, 0..127), 127, "small ones take no more than they need");
        assert_eq!(until(3, 0..256), 2048);
        assert_eq!(until(3, 1900..2048), 2048);
    }
}
