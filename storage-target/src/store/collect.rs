//! Bringing together what a read asks for: from the disk, from the bucket, and zeros.
//!
//! Everything that is on the disk comes with one transfer into one buffer, over what is not there
//! in between. So a read waits for memory while it holds some only for what the bucket has to
//! bring, and then it takes a share of the pool before it begins.

use std::ops::Range;

use bytes::Bytes;
use millrace_protocol::storage::TRANSFER_LEN_MAX;
use millrace_types::{BlockState, Crc32c, Failure};

use super::{ReadBytes, Reader, Store, block_of};
use crate::{
    disk::Charge,
    hydration::{Fetched, Segment, Wanted},
    page_checksum::{PAGE, of_range},
    parts::{BLOCK, Part},
    view::ChunkView,
    volume::{EngineError, Loaded, Snapshot},
};

#[cfg(test)]
mod tests;

/// The largest buffers that the segments of missing parts take at most while a read waits for
/// another one. A read touches 17 blocks, so these lie before the 16th: two segments of 5 blocks,
/// one at each end that reaches beyond, and 3 blocks, for which a smaller one is enough.
const SEGMENTS_MAX: usize = 5;

/// Why a read failed.
pub(super) enum ReadError {
    Volume(EngineError),
    Bucket(Failure),
}

impl Store {
    /// Refuses a content that was given up, if any of the blocks looked at from byte `backed` on is
    /// absent: it may have been anything before, and zeros are not the answer. Below that the
    /// bucket is asked for it, under its tag: after an older metadata directory was put back that
    /// is how files of it are found to have changed.
    pub(super) async fn check_absent(
        &self,
        backed: u32,
        snapshot: &Snapshot,
        mut blocks: Range<u16>,
    ) -> Result<(), EngineError> {
        let is_gone = |block: u16| {
            u32::from(block) * BLOCK >= backed && snapshot.state(block) == BlockState::Absent
        };
        match blocks.any(is_gone) {
            true => self.volume.check_content(snapshot.key()).await,
            false => Ok(()),
        }
    }

    /// Brings the bytes of all parts together; `None` when the chunk changed meanwhile.
    pub(super) async fn collect(
        &self,
        view: &ChunkView,
        snapshot: &Snapshot,
        cut: Vec<Part>,
        reader: Reader,
        charge: Option<&Charge>,
    ) -> Result<Option<ReadBytes>, ReadError> {
        let pages = stored_pages(&cut);
        let held = held_while_waiting(&cut, pages.as_ref());
        let _share = match held.is_empty() {
            true => None,
            false => Some(self.volume.pool().share(&held).await),
        };
        let stored = match pages {
            Some(pages) => {
                let loaded = self.load(snapshot, &pages, charge).await;
                Some(loaded.map_err(ReadError::Volume)?)
            }
            None => None,
        };
        let mut read = ReadBytes { body: Vec::new(), checksum: Crc32c::EMPTY, fetched: 0 };
        for part in cut {
            match part {
                Part::Zeros(range) => read.push_zeros(range.len()),
                Part::Stored(range) => {
                    let stored = stored.as_ref().expect("what is stored has been loaded");
                    read.push_stored(stored, &range);
                }
                Part::Missing(range) => {
                    let first = block_of(range.start);
                    let end = block_of(range.end - 1) + 1;
                    let sequential = reader != Reader::Random;
                    let wanted = Wanted { first, end, sequential };
                    let fetched = self.hydrator.fetch(view, wanted).await;
                    match fetched.map_err(ReadError::Bucket)? {
                        Fetched::Present => return Ok(None),
                        Fetched::Segments(segments) => read.push_segments(&segments, &range),
                    }
                }
            }
        }
        Ok(Some(read))
    }

    async fn load(
        &self,
        snapshot: &Snapshot,
        pages: &Range<u32>,
        charge: Option<&Charge>,
    ) -> Result<Stored, EngineError> {
        let count = pages.end - pages.start;
        let loaded = self.volume.load_charged(snapshot, pages.start, count, charge).await?;
        Ok(Stored { start: pages.start as usize * PAGE, loaded })
    }
}

/// What was loaded of a chunk.
struct Stored {
    /// The byte of the chunk at which it begins.
    start: usize,
    loaded: Loaded,
}

/// The pages from the first one that is stored to the last one.
fn stored_pages(cut: &[Part]) -> Option<Range<u32>> {
    let mut stored = cut.iter().filter_map(|part| match part {
        Part::Stored(range) => Some(page_of(range.start)..page_of(range.end - 1) + 1),
        Part::Zeros(_) | Part::Missing(_) => None,
    });
    let first = stored.next()?;
    let end = stored.next_back().map_or(first.end, |last| last.end);
    Some(first.start..end)
}

/// The buffers that a read of these parts holds at most while it waits for the bucket.
fn held_while_waiting(cut: &[Part], stored: Option<&Range<u32>>) -> Vec<usize> {
    let missing = cut.iter().filter(|part| matches!(part, Part::Missing(_))).count();
    let mut held = Vec::new();
    if missing > 0 {
        held.extend(stored.map(|pages| pages.len() * PAGE));
    }
    if missing > 1 {
        held.extend([TRANSFER_LEN_MAX as usize; SEGMENTS_MAX]);
    }
    held
}

impl ReadBytes {
    fn push(&mut self, bytes: Bytes, skipped: usize, checksums: &[Crc32c]) {
        let checksum = of_range(&bytes, skipped, checksums);
        self.checksum = match self.body.is_empty() {
            true => checksum,
            false => self.checksum.combine(checksum, bytes.len()),
        };
        self.body.push(bytes);
    }

    fn push_zeros(&mut self, mut len: usize) {
        static ZEROS: [u8; BLOCK as usize] = [0; BLOCK as usize];
        while len > 0 {
            let some = &ZEROS[..len.min(ZEROS.len())];
            self.checksum = self.checksum.append(some);
            self.body.push(Bytes::from_static(some));
            len -= some.len();
        }
    }

    /// Adds `range` of the chunk out of what was loaded of it.
    fn push_stored(&mut self, stored: &Stored, range: &Range<u32>) {
        let skipped = range.start as usize - stored.start;
        let bytes = stored.loaded.bytes.slice(skipped..skipped + range.len());
        self.push(bytes, skipped % PAGE, &stored.loaded.checksums[skipped / PAGE..]);
    }

    /// Adds `range` of the chunk out of segments that cover it, in order.
    fn push_segments(&mut self, segments: &[Segment], range: &Range<u32>) {
        let mut at = range.start;
        for segment in segments {
            let start = u32::from(segment.first_block) * BLOCK;
            let stored_end = start + segment.len;
            let end = (u32::from(segment.end()) * BLOCK).min(range.end);
            if at >= end || at < start {
                continue;
            }
            let bytes_end = stored_end.min(end);
            if at < bytes_end {
                let from = (at - start) as usize;
                let bytes = segment.bytes.slice(from..(bytes_end - start) as usize);
                self.fetched += bytes_end - at;
                self.push(bytes, from % PAGE, &segment.checksums[from / PAGE..]);
                at = bytes_end;
            }
            self.push_zeros((end - at) as usize);
            at = end;
        }
        assert_eq!(at, range.end, "the segments cover what was asked for");
    }
}

fn page_of(at: u32) -> u32 {
    at / u32::try_from(PAGE).expect("4 KiB")
}
