//! Cuts files into what targets are asked for at once: runs of chunks, and, for a job that is held
//! to a rate, no more than a portion of that, be it a part of a chunk.
//!
//! A target fetches of a chunk what is absent and what the content says that the bucket backs. So
//! it is asked for the beginning of a chunk by a content whose object seems to end there; what an
//! earlier slice brought is not fetched again.

use millrace_object_source::WHOLE_LEN_MAX;
use millrace_protocol::{capability::Content, target::Item};
use millrace_types::{BLOCK_SIZE, ChunkIndex};

use crate::hydration::spread::runs;

/// What one request asks of a file.
#[derive(Debug)]
pub(super) struct Slice {
    pub(super) item: Item,
    /// Where it ends in the file.
    pub(super) end: u64,
    /// Bytes of its only chunk that the slices before it bring.
    pub(super) skipped: u64,
}

/// Cuts the first `size` bytes of a content into slices of `portion` bytes at most, or of a block
/// if that is more. What is fetched as a whole, to be held against the bucket's checksum of it, is
/// never cut.
pub(super) fn slices(
    content: &Content,
    size: u64,
    portion: u64,
) -> impl Iterator<Item = Slice> + use<> {
    let chunk = content.layout.chunk_size().bytes();
    let portion = if size <= WHOLE_LEN_MAX { u64::MAX } else { portion };
    runs(content, size).flat_map(move |run| {
        let mut at = u64::from(run.first.0) * chunk;
        let run_end = (at + u64::from(run.count) * chunk).min(size);
        std::iter::from_fn(move || {
            let end = end_of(at, chunk, portion).min(run_end);
            if at >= end {
                return None;
            }
            let slice = slice(&run, at, end, size);
            at = end;
            Some(slice)
        })
    })
}

/// Where a slice ends at the latest that begins at a byte of a file: it has some whole chunks, or
/// some blocks of one.
fn end_of(at: u64, chunk: u64, portion: u64) -> u64 {
    match portion / chunk {
        0 => {
            let blocks = (portion / BLOCK_SIZE).max(1);
            (at + blocks * BLOCK_SIZE).min((at / chunk + 1) * chunk)
        }
        chunks => at.saturating_add(chunks * chunk),
    }
}

fn slice(run: &Item, at: u64, end: u64, size: u64) -> Slice {
    let chunk = run.content.layout.chunk_size().bytes();
    let (first, skipped) = (at / chunk, at % chunk);
    let count = end.div_ceil(chunk) - first;
    // The run's own numbers have 32 bits, and these lie within.
    let number = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
    let mut content = run.content.clone();
    if end < size && !end.is_multiple_of(chunk) {
        content.origin_length = end;
    }
    let item = Item { content, first: ChunkIndex(number(first)), count: number(count) };
    Slice { item, end, skipped }
}

#[cfg(test)]
mod tests {
    use millrace_types::{
        ChunkSize, ContentGeneration, InodeId, KIB, Layout, MIB, PoolId, WriteEpoch,
    };

    use super::*;

    const CHUNK: u64 = 8 * MIB;

    fn content(size: u64) -> Content {
        Content {
            inode: InodeId(9),
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(1),
            layout: Layout::new(ChunkSize::DEFAULT, 4, PoolId(0), 12, 5).unwrap(),
            origin: None,
            origin_length: size,
            sparse: false,
        }
    }

    #[test]
    fn slices_cover_a_file_once_in_order_and_none_is_more_than_a_portion() {
        for size in [0, 1, MIB, 3 * CHUNK, 20 * CHUNK + 5 * MIB + 1] {
            for portion in [1, 64 * KIB, 100 * KIB, 4 * MIB, 5 * MIB, CHUNK, 3 * CHUNK, u64::MAX] {
                let (content, mut at) = (content(size), 0);
                for Slice { item, end, skipped } in slices(&content, size, portion) {
                    assert_eq!(u64::from(item.first.0) * CHUNK + skipped, at);
                    assert_eq!(u64::from(item.first.0 + item.count), end.div_ceil(CHUNK));
                    assert!(skipped == 0 || item.count == 1, "a part of a chunk is of one");
                    let most = if size <= WHOLE_LEN_MAX { size } else { portion.max(BLOCK_SIZE) };
                    assert!(end > at && end - at <= most, "{at}..{end}");
                    // The object seems to end with the slice, or its chunk ends there.
                    let backed = item.content.origin_length;
                    assert_eq!(backed.min(end.next_multiple_of(CHUNK)), end);
                    assert!(backed == size || backed.is_multiple_of(BLOCK_SIZE), "{backed}");
                    at = end;
                }
                assert_eq!(at, size);
            }
        }
    }

    #[test]
    fn without_a_rate_slices_are_the_runs() {
        let size = 1000 * CHUNK + 1;
        let slices = slices(&content(size), size, u64::MAX).map(|slice| slice.item);
        assert!(slices.eq(runs(&content(size), size)));
    }
}
