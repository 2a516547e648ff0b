//! What is where: every chunk record of a target, in memory.
//!
//! Changed only by applying journal records, live and at recovery alike, so that the two can never
//! disagree. Knows no disk: it tells which pages a change gives up, and the caller frees them.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::Arc,
};

use millrace_types::{
    BLOCK_SIZE, BlockState, ByteLen, ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, InodeId,
    WriteEpoch,
};

use super::allocator::Extent;
use crate::format::{
    chunk::ChunkRecord,
    record::{BlocksChange, Mark, Record, Removal},
};

/// Inodes whose oldest acceptable generation or epoch is remembered. Only replaced and shrunk files
/// need one; past the bound the first remembered go, which costs a late writer's orphan chunk that
/// reconciliation finds.
const MARKS_MAX: usize = 262_144;

/// The chunks of a target.
#[derive(Clone, Debug, Default)]
pub(super) struct Index {
    chunks: BTreeMap<ChunkKey, Arc<ChunkRecord>>,
    marks: BTreeMap<InodeId, Mark>,
    mark_order: VecDeque<InodeId>,
    /// The highest inode id that ever had a chunk or mark here since the last start.
    inode_max: InodeId,
}

/// Bytes of some chunks, by block state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StateBytes {
    /// The bucket's bytes.
    pub clean: ByteLen,
    /// Bytes that somebody wrote.
    pub written: ByteLen,
    /// Zeros that somebody asked for.
    pub zero: ByteLen,
}

impl Index {
    /// The record of a chunk.
    pub(super) fn chunk(&self, key: ChunkKey) -> Option<&Arc<ChunkRecord>> {
        self.chunks.get(&key)
    }

    /// All records in order of their keys.
    pub(super) fn chunks(&self) -> impl Iterator<Item = &Arc<ChunkRecord>> {
        self.chunks.values()
    }

    /// The records of one content from chunk `first` on.
    pub(super) fn content(
        &self,
        inode: InodeId,
        generation: ContentGeneration,
        first: ChunkIndex,
    ) -> impl Iterator<Item = &Arc<ChunkRecord>> {
        let key = |index, copy| ChunkKey { inode, generation, index, copy };
        let last = key(ChunkIndex(u32::MAX), CopyIndex(u8::MAX));
        self.chunks.range(key(first, CopyIndex(0))..=last).map(|(_, record)| record)
    }

    /// Whether a removal finds anything.
    pub(super) fn holds_any(&self, removal: &Removal) -> bool {
        let Removal { inode, first, last, index } = *removal;
        let low = ChunkKey { inode, generation: first, index: ChunkIndex(0), copy: CopyIndex(0) };
        let high = ChunkKey {
            inode,
            generation: last,
            index: ChunkIndex(u32::MAX),
            copy: CopyIndex(u8::MAX),
        };
        self.chunks.range(low..=high).any(|(key, _)| key.index >= index)
    }

    /// All marks.
    pub(super) fn marks(&self) -> impl Iterator<Item = &Mark> {
        self.marks.values()
    }

    /// How many chunks there are.
    pub(super) fn chunk_count(&self) -> usize {
        self.chunks.len()
    }

    /// The highest inode id seen.
    pub(super) fn inode_max(&self) -> InodeId {
        self.inode_max
    }

    /// The oldest generation of `inode` that is accepted, and its oldest write epoch.
    pub(super) fn oldest_accepted(&self, inode: InodeId) -> (ContentGeneration, WriteEpoch) {
        self.marks.get(&inode).map_or((ContentGeneration(0), WriteEpoch(0)), |mark| {
            (mark.generation, mark.write_epoch)
        })
    }

    /// Puts a record of a checkpoint into the index.
    pub(super) fn restore(&mut self, record: ChunkRecord) {
        self.inode_max = self.inode_max.max(record.key.inode);
        self.chunks.insert(record.key, Arc::new(record));
    }

    /// Applies a journal record; returns the pages that it gives up.
    pub(super) fn apply(&mut self, record: &Record, sequence: u64) -> Vec<Extent> {
        match record {
            Record::Blocks(change) => self.apply_blocks(change, sequence),
            Record::Remove(removal) => self.apply_removal(removal),
            Record::Mark(mark) => {
                self.apply_mark(*mark);
                Vec::new()
            }
            Record::Commit(_) | Record::Loss(_) | Record::Stop => Vec::new(),
        }
    }

    fn apply_blocks(&mut self, change: &BlocksChange, sequence: u64) -> Vec<Extent> {
        self.inode_max = self.inode_max.max(change.key.inode);
        let shared =
            self.chunks.entry(change.key).or_insert_with(|| Arc::new(ChunkRecord::new(change.key)));
        let record = Arc::make_mut(shared);
        let mut freed = Vec::new();
        for run in &change.runs {
            for (at, new) in run.expand(sequence) {
                let old = record.block(at);
                // A change of state alone (written to clean) keeps its place.
                let stays = new.pages > 0 && old.pages > 0 && old.first_page == new.first_page;
                if stays {
                    assert_eq!(old.pages, new.pages, "a block that stays keeps its pages");
                } else {
                    give_up(&mut freed, old.first_page, old.pages);
                }
            }
            record.put(run, sequence);
        }
        record.version = change.version;
        record.group_epoch = change.group_epoch;
        record.write_epoch = change.write_epoch;
        record.length = change.length;
        record.chunk_size = change.chunk_size;
        record.sequence = sequence;
        if record.is_blank() {
            self.chunks.remove(&change.key);
        }
        freed
    }

    fn apply_removal(&mut self, removal: &Removal) -> Vec<Extent> {
        let key = |generation, index, copy| ChunkKey {
            inode: removal.inode,
            generation,
            index: ChunkIndex(index),
            copy: CopyIndex(copy),
        };
        let range = key(removal.first, 0, 0)..=key(removal.last, u32::MAX, u8::MAX);
        let doomed: Vec<ChunkKey> = self
            .chunks
            .range(range)
            .map(|(&key, _)| key)
            .filter(|key| key.index >= removal.index)
            .collect();
        let mut freed = Vec::new();
        for key in doomed {
            let record = self.chunks.remove(&key).expect("found a moment ago");
            for block in &record.blocks {
                give_up(&mut freed, block.first_page, block.pages);
            }
        }
        freed
    }

    /// Raises what is accepted of an inode; never lowers it.
    pub(super) fn apply_mark(&mut self, mark: Mark) {
        self.inode_max = self.inode_max.max(mark.inode);
        let order = &mut self.mark_order;
        let known = self.marks.entry(mark.inode).or_insert_with(|| {
            order.push_back(mark.inode);
            mark
        });
        if mark.generation > known.generation {
            *known = mark;
        } else if mark.generation == known.generation {
            known.write_epoch = known.write_epoch.max(mark.write_epoch);
        }
        while self.marks.len() > MARKS_MAX {
            let oldest = order.pop_front().expect("every mark is in the order");
            self.marks.remove(&oldest);
        }
    }
}

/// Collects pages, joining those that adjoin.
fn give_up(freed: &mut Vec<Extent>, first: u64, pages: u8) {
    if pages == 0 {
        return;
    }
    let pages = u64::from(pages);
    match freed.last_mut() {
        Some(last) if last.first + last.pages == first => last.pages += pages,
        _ => freed.push(Extent { first, pages }),
    }
}

/// The pages that a record uses.
pub(super) fn used_pages(record: &ChunkRecord) -> Vec<Extent> {
    let mut used = Vec::new();
    for block in &record.blocks {
        give_up(&mut used, block.first_page, block.pages);
    }
    used
}

/// Bytes of a chunk by state; a last block counts the bytes up to the chunk's length.
pub(super) fn state_bytes(record: &ChunkRecord) -> (StateBytes, u64) {
    let mut bytes = StateBytes::default();
    let mut end = 0;
    for (at, block) in (0_u64..).zip(&record.blocks) {
        let start = at * BLOCK_SIZE;
        let stored = u64::from(record.length).saturating_sub(start).min(BLOCK_SIZE);
        let (sum, len) = match block.state {
            BlockState::Absent => continue,
            BlockState::Clean => (&mut bytes.clean, stored),
            BlockState::Written => (&mut bytes.written, stored),
            BlockState::Zero => (&mut bytes.zero, BLOCK_SIZE),
        };
        sum.0 += len;
        end = start + len;
    }
    (bytes, end)
}
