//! Bringing together what a read asks for: from the disk, from the bucket, and zeros.
//!
//! Everything that is on the disk comes with one transfer into one buffer, over what is not there
//! in between. So a read waits for memory while it holds some only for what the bucket has to
//! bring, and then it takes a share of the pool before it begins. Of segments it keeps none while
//! it waits for others: it copies what it needs of them. Nor does it keep the snapshot, which holds
//! back pages of the whole target, once it has loaded what that has.

use std::ops::Range;

use bytes::Bytes;
use millrace_types::{BlockState, Crc32c, Failure};
use tokio::sync::OwnedSemaphorePermit;

use super::{ReadBytes, Reader, Store, block_of};
use crate::{
    disk::{BufferPool, Charge},
    hydration::{Fetched, Segment, Wanted},
    page_checksum::{PAGE, of_range},
    parts::{BLOCK, Part},
    view::ChunkView,
    volume::{EngineError, Loaded, Snapshot},
};

#[cfg(test)]
mod tests;

/// Why a read failed.
pub(super) enum ReadError {
    Volume(EngineError),
    Bucket(Failure),
}

/// The right to hold so many bytes, those of a whole buffer, while a bucket is waited for.
pub(super) struct Share {
    pub(super) len: usize,
    _permit: OwnedSemaphorePermit,
}

impl Share {
    /// Waits for it; to be asked for by who has none. May be dropped at its await.
    pub(super) async fn take(pool: &BufferPool, len: usize) -> Self {
        Self { len: BufferPool::size_for(len), _permit: pool.share(len).await }
    }
}

/// How many bytes a read holds while it waits for a bucket, for which it has to have a share.
pub(super) fn held_len(cut: &[Part]) -> usize {
    match stored_pages(cut) {
        Some(pages) if cut.iter().any(is_missing) => pages.len() * PAGE,
        _ => 0,
    }
}

impl Store {
    /// Refuses a content that was given up, if any of the blocks looked at from byte `backed` on is
    /// absent: it may have been anything before, and zeros are not the answer. Below that the
    /// bucket is asked for it, under its tag: after an older metadata directory was put back that
    /// is how files of it are found to have changed.
    ///
    /// Refuses also what is known of a content from before an export, if any block is absent: it
    /// may have been dropped since, and its bytes are in another object than the one known, which
    /// may still be there, or where a hole was.
    pub(super) async fn check_absent(
        &self,
        view: &ChunkView,
        backed: u32,
        snapshot: &Snapshot,
        mut blocks: Range<u16>,
    ) -> Result<(), EngineError> {
        let is_absent = |block: &u16| snapshot.state(*block) == BlockState::Absent;
        let Some(last) = blocks.rfind(is_absent) else { return Ok(()) };
        let is_backed = u32::from(last) * BLOCK < backed;
        self.volume.check_content(view.key, view.write_epoch, is_backed).await
    }

    /// Brings the bytes of all parts together; `None` when the chunk changed meanwhile. Of the
    /// snapshot it lets go before it waits for a bucket.
    pub(super) async fn collect(
        &self,
        view: &ChunkView,
        snapshot: Snapshot,
        cut: Vec<Part>,
        reader: Reader,
        charge: Option<&Charge>,
    ) -> Result<Option<ReadBytes>, ReadError> {
        let missing = cut.iter().filter(|part| is_missing(part)).count();
        let stored = match stored_pages(&cut) {
            Some(pages) => {
                let loaded = self.load(&snapshot, &pages, charge).await;
                Some(loaded.map_err(ReadError::Volume)?)
            }
            None => None,
        };
        drop(snapshot);
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
                    if reader.is_client() {
                        self.misses.begin(view);
                    }
                    let fetched = self.hydrator.fetch(view, wanted).await;
                    if reader.is_client() {
                        self.misses.end(view, fetched.as_ref().err());
                    }
                    match fetched.map_err(ReadError::Bucket)? {
                        Fetched::Present => return Ok(None),
                        Fetched::Segments(segments) => {
                            read.push_segments(&segments, &range, missing > 1);
                        }
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

fn is_missing(part: &Part) -> bool {
    matches!(part, Part::Missing(_))
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

    /// Adds `range` of the chunk out of segments that cover it, in order: the segments' own memory
    /// or a copy.
    fn push_segments(&mut self, segments: &[Segment], range: &Range<u32>, copied: bool) {
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
                let within = from..(bytes_end - start) as usize;
                let bytes = match copied {
                    true => Bytes::copy_from_slice(&segment.bytes[within]),
                    false => segment.bytes.slice(within),
                };
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
