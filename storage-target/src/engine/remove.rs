//! Giving up bytes: shrinking, reclaiming, releasing; and what a target holds of a content.
//!
//! All of these are durable when they return, because others act on them.

use std::{collections::HashMap, sync::Arc};

use millrace_protocol::target::{ContentName, Present};
use millrace_types::{
    BlockState, ByteLen, ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, InodeId, SessionId,
    WriteEpoch, WriteNumber,
};

use super::{
    Engine, EngineError, Purpose, Shared,
    index::state_bytes,
    page_checksum::{PAGE, of_pages},
    read::pieces,
    space::{Reservation, reserve},
    write::{BLOCK, change_of, run, runs},
};
use crate::format::{
    chunk::{BLOCK_PAGES, BLOCKS_MAX, Block, Run},
    record::{BlocksChange, Mark, Record, Removal},
};

/// Reclaim entries journalled at once.
const RECLAIM_BATCH: usize = 512;

/// The version that each block of a chunk had when it was handed to an export.
pub type ExportedBlocks = HashMap<u16, u64>;

impl Engine {
    /// Drops what lies past `size` of one content and refuses older write epochs from then on.
    /// Returns the bytes freed. Doing it again changes nothing, even if the file has grown again.
    ///
    /// # Errors
    /// As [`Engine::write`]; it must then be done again.
    pub async fn trim(
        &self,
        content: ContentName,
        chunk_size: u64,
        size: u64,
        write_epoch: WriteEpoch,
    ) -> Result<ByteLen, EngineError> {
        let shared = Arc::clone(&self.shared);
        let trim = Trim { content, chunk_size, size, write_epoch };
        let freed = run(async move { shared.trim(trim).await }).await?;
        self.sync().await?;
        Ok(freed)
    }

    /// Frees every chunk of each inode up to and with the generation named. Returns the bytes
    /// freed.
    ///
    /// # Errors
    /// A failure of the journal; it must then be done again.
    pub async fn reclaim(
        &self,
        entries: &[(InodeId, ContentGeneration)],
    ) -> Result<ByteLen, EngineError> {
        let mut freed = 0;
        for batch in entries.chunks(RECLAIM_BATCH) {
            freed += self.shared.reclaim(batch)?;
        }
        self.sync().await?;
        Ok(ByteLen(freed))
    }

    /// Drops the clean blocks of a chunk; returns the bytes freed. The caller syncs.
    ///
    /// # Errors
    /// A failure of the journal; nothing is then changed.
    pub async fn release(&self, key: ChunkKey) -> Result<ByteLen, EngineError> {
        let _guard = self.shared.locks.lock(key, 0..=BLOCKS_MAX - 1).await;
        self.shared.restate(key, |_, block| {
            (block.state == BlockState::Clean).then_some(BlockState::Absent)
        })
    }

    /// Drops one clean block, because it is damaged and the bucket has it.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn drop_clean(&self, key: ChunkKey, block: u16) -> Result<(), EngineError> {
        let _guard = self.shared.locks.lock(key, block..=block).await;
        let freed = self.shared.restate(key, |at, found| {
            (at == block && found.state == BlockState::Clean).then_some(BlockState::Absent)
        });
        freed.map(drop)
    }

    /// Turns written blocks clean that are still those of `exported`; returns their bytes. The
    /// caller syncs.
    ///
    /// # Errors
    /// As [`Self::release`].
    pub async fn mark_exported(
        &self,
        key: ChunkKey,
        exported: &ExportedBlocks,
    ) -> Result<ByteLen, EngineError> {
        let _guard = self.shared.locks.lock(key, 0..=BLOCKS_MAX - 1).await;
        self.shared.restate(key, |at, block| {
            let same = exported.get(&at) == Some(&block.sequence);
            (same && block.state == BlockState::Written).then_some(BlockState::Clean)
        })
    }

    /// The chunks of a content that are here, from `first` on, `count` of them at most by index.
    #[must_use]
    pub fn chunks(&self, content: ContentName, first: ChunkIndex, count: u32) -> Vec<ChunkKey> {
        let state = self.shared.state();
        let end = first.0.saturating_add(count);
        state
            .index
            .content(content.inode, content.generation, first)
            .map(|record| record.key)
            .take_while(|key| key.index.0 < end)
            .collect()
    }

    /// What is held of each content.
    #[must_use]
    pub fn presence(&self, contents: &[ContentName]) -> Vec<Present> {
        let state = self.shared.state();
        contents
            .iter()
            .map(|content| {
                let mut present = Present::default();
                let chunks = state.index.content(content.inode, content.generation, ChunkIndex(0));
                for record in chunks {
                    let (bytes, end) = state_bytes(record);
                    present.clean.0 += bytes.clean.0;
                    present.written.0 += bytes.written.0;
                    present.zero.0 += bytes.zero.0;
                    let start =
                        u64::from(record.key.index.0).saturating_mul(u64::from(record.chunk_size));
                    if end > 0 {
                        present.end = present.end.max(start.saturating_add(end));
                    }
                }
                present
            })
            .collect()
    }
}

#[derive(Clone, Copy)]
struct Trim {
    content: ContentName,
    chunk_size: u64,
    size: u64,
    write_epoch: WriteEpoch,
}

impl Shared {
    async fn trim(self: Arc<Self>, trim: Trim) -> Result<ByteLen, EngineError> {
        let ContentName { inode, generation } = trim.content;
        let boundary = ChunkIndex(u32::try_from(trim.size / trim.chunk_size).unwrap_or(u32::MAX));
        let within = usize::try_from(trim.size % trim.chunk_size).expect("below 64 MiB");
        let key = ChunkKey { inode, generation, index: boundary, copy: CopyIndex(0) };
        let _guard = self.locks.lock(key, 0..=BLOCKS_MAX - 1).await;
        {
            let state = self.state();
            let (oldest, epoch) = state.index.oldest_accepted(inode);
            if generation < oldest || (generation == oldest && trim.write_epoch <= epoch) {
                return Ok(ByteLen(0));
            }
        }
        let tail = match within {
            0 => None,
            _ => self.cut(key, within, trim.write_epoch).await?,
        };
        let first_gone = if within == 0 { boundary } else { ChunkIndex(boundary.0 + 1) };
        let mut records = Vec::new();
        // Before the lock, because a reservation that is given back takes it.
        let kept = tail.map(|(change, reservation)| {
            records.push(Record::Blocks(change));
            reservation
        });
        let mut state = self.state();
        let before = state.allocator.quarantined();
        let removal = Removal { inode, first: generation, last: generation, index: first_gone };
        if state.index.holds_any(&removal) {
            records.push(Record::Remove(removal));
        }
        // The mark comes last: a trim that was cut short is done again as a whole.
        records.push(Record::Mark(Mark { inode, generation, write_epoch: trim.write_epoch }));
        state.commit(&records, Purpose::Free)?;
        let freed = state.allocator.quarantined() - before;
        drop(state);
        if let Some(Some(reservation)) = kept {
            reservation.keep();
        }
        Ok(ByteLen(freed * PAGE as u64))
    }

    /// Prepares the chunk in which the new size lies: later blocks go, and the bytes of its own
    /// block past the size become zero. The caller holds the lock of the whole chunk.
    async fn cut(
        self: &Arc<Self>,
        key: ChunkKey,
        within: usize,
        write_epoch: WriteEpoch,
    ) -> Result<Option<(BlocksChange, Option<Reservation>)>, EngineError> {
        let snapshot = self.snapshot(key);
        let record = snapshot.record();
        let count = record.blocks.len();
        let (last, kept_bytes) = (within / BLOCK, within % BLOCK);
        let first_gone = within.div_ceil(BLOCK);
        let mut new = Vec::new();
        if first_gone < count {
            let first = u16::try_from(first_gone).expect("within a chunk");
            let blocks = u16::try_from(count - first_gone).expect("within a chunk");
            new.push(Run::unstored(first, blocks, BlockState::Absent));
        }
        let mut reservation = None;
        let block = u16::try_from(last).expect("within a chunk");
        let old = record.block(block);
        if kept_bytes > 0 && usize::from(old.pages) * PAGE > kept_bytes {
            let pages = kept_bytes.div_ceil(PAGE);
            let first = u32::from(block) * u32::from(BLOCK_PAGES);
            let count = u32::try_from(pages).expect("at most 16");
            let buffer = self.pool.acquire(pages * PAGE).await;
            let mut buffer = self.disk.read(pieces(record, first, count, 0), buffer).await?;
            self.verify(record, first, buffer.as_slice())?;
            buffer.as_mut_slice()[kept_bytes..].fill(0);
            let checksums = of_pages(buffer.as_slice());
            let reserved = reserve(self, pages as u64).await?;
            self.disk.write(reserved.pieces(), Arc::new(buffer)).await?;
            new.extend(runs(&reserved, block, &checksums, old.state));
            reservation = Some(reserved);
        }
        if new.is_empty() {
            return Ok(None);
        }
        let mut change = change_of(record, SessionId(0), WriteNumber(0), new);
        change.write_epoch = change.write_epoch.max(write_epoch);
        change.length = change.length.min(u32::try_from(within).expect("below 64 MiB"));
        Ok(Some((change, reservation)))
    }

    fn reclaim(&self, batch: &[(InodeId, ContentGeneration)]) -> Result<u64, EngineError> {
        let mut state = self.state();
        let before = state.allocator.quarantined();
        let mut records = Vec::new();
        for &(inode, last) in batch {
            let first = ContentGeneration(0);
            let index = ChunkIndex(0);
            let removal = Removal { inode, first, last, index };
            if state.index.holds_any(&removal) {
                records.push(Record::Remove(removal));
            }
            // Nothing of these generations is accepted any more, however late it arrives.
            let generation = ContentGeneration(last.0.saturating_add(1));
            let write_epoch = WriteEpoch(0);
            records.push(Record::Mark(Mark { inode, generation, write_epoch }));
        }
        state.commit(&records, Purpose::Free)?;
        Ok((state.allocator.quarantined() - before) * PAGE as u64)
    }

    /// Gives blocks another state without touching their bytes; returns the bytes concerned. The
    /// caller holds the blocks' locks.
    fn restate(
        &self,
        key: ChunkKey,
        new_state: impl Fn(u16, &Block) -> Option<BlockState>,
    ) -> Result<ByteLen, EngineError> {
        let mut state = self.state();
        let record = state.record(key);
        let mut runs = Vec::new();
        let mut bytes = 0;
        for (at, block) in (0_u16..).zip(&record.blocks) {
            let Some(new) = new_state(at, block) else { continue };
            bytes += u64::from(block.pages) * PAGE as u64;
            runs.push(match new.is_stored() {
                false => Run::unstored(at, 1, new),
                true => Run {
                    first_block: at,
                    blocks: 1,
                    state: new,
                    tail_pages: block.pages,
                    first_page: block.first_page,
                    checksums: block.checksums[..usize::from(block.pages)].to_vec(),
                },
            });
        }
        if !runs.is_empty() {
            let change = change_of(&record, SessionId(0), WriteNumber(0), runs);
            state.commit(&[Record::Blocks(change)], Purpose::Free)?;
        }
        Ok(ByteLen(bytes))
    }
}
