//! What a target knows about a chunk, and how that is written.
//!
//! A *run* says that consecutive blocks have one state and, if stored, lie one after the other:
//!
//! | offset | bytes      | field       | meaning                                                  |
//! |-------:|-----------:|-------------|----------------------------------------------------------|
//! |      0 |          2 | first block | counted from the chunk's start                           |
//! |      2 |          2 | blocks      | 1 to 1,024                                               |
//! |      4 |          1 | state       | 0 absent, 1 clean, 2 written, 3 zero                     |
//! |      5 |          1 | tail pages  | pages stored of the last block: 1 to 16; 0 if not stored |
//! |      6 |          8 | first page  | in the data file; 0 if not stored                        |
//! |     14 | 4 x pages  | checksums   | crc32c of each page stored                               |
//!
//! Every block of a run but the last is stored in full: 16 pages. What a stored block does not
//! store of its 64 KiB is zero.
//!
//! A *chunk record*, in a checkpoint:
//!
//! | offset | bytes | field         | meaning                                                     |
//! |-------:|------:|---------------|-------------------------------------------------------------|
//! |      0 |    17 | key           | inode 8, generation 4, index 4, copy 1                      |
//! |     17 |     1 | flags         | bit 0: pending (not yet known to be durable)                |
//! |     18 |    12 | version       | group epoch 4, counter 8                                    |
//! |     30 |     4 | group epoch   | of the newest write                                         |
//! |     34 |     4 | write epoch   | of the newest write or trim                                 |
//! |     38 |     4 | length        | one past the last byte that was ever stored                 |
//! |     42 |     8 | sequence      | of the journal record that changed it last                  |
//! |     50 |     4 | chunk size    | of the file, so that the chunk's place in it is known       |
//! |     54 |     2 | runs          | how many follow                                             |
//! |     56 |       | the runs      |                                                             |

use millrace_protocol::storage::ChunkVersion;
use millrace_types::{
    BLOCK_SIZE, BlockState, ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, Crc32c, GroupEpoch,
    InodeId, WriteEpoch,
};

use super::{
    FormatError,
    fields::{Put, Reader},
};

/// Bytes of a page: the unit of space and of checksums.
pub const PAGE_SIZE: u32 = 4096;

/// Pages of a full block.
pub const BLOCK_PAGES: u8 = 16;

/// Blocks of the largest chunk (64 MiB).
pub const BLOCKS_MAX: u16 = 1024;

const _: () = assert!(BLOCK_SIZE == PAGE_SIZE as u64 * BLOCK_PAGES as u64);

const WHAT: &str = "a chunk record";

/// One block of a chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Block {
    /// Where its bytes come from.
    pub state: BlockState,
    /// Pages stored, 1 to 16; 0 if the state stores none. The rest of the block is zero.
    pub pages: u8,
    /// The first of them in the data file.
    pub first_page: u64,
    /// crc32c of each page stored.
    pub checksums: [Crc32c; BLOCK_PAGES as usize],
    /// The journal record that put it here. Kept in memory only, where it tells versions apart.
    pub sequence: u64,
}

impl Block {
    /// A block that stores nothing.
    #[must_use]
    pub fn unstored(state: BlockState, sequence: u64) -> Self {
        assert!(!state.is_stored(), "only absent and zero blocks store nothing");
        let checksums = [Crc32c::EMPTY; BLOCK_PAGES as usize];
        Self { state, pages: 0, first_page: 0, checksums, sequence }
    }
}

/// Consecutive blocks of one state, stored one after the other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Run {
    /// The first block.
    pub first_block: u16,
    /// How many.
    pub blocks: u16,
    /// The state of all of them.
    pub state: BlockState,
    /// Pages stored of the last one; 0 if not stored.
    pub tail_pages: u8,
    /// The first page in the data file; 0 if not stored.
    pub first_page: u64,
    /// crc32c of each page stored, in order.
    pub checksums: Vec<Crc32c>,
}

impl Run {
    /// A run that stores nothing.
    #[must_use]
    pub fn unstored(first_block: u16, blocks: u16, state: BlockState) -> Self {
        assert!(!state.is_stored() && blocks > 0, "only absent and zero blocks store nothing");
        Self { first_block, blocks, state, tail_pages: 0, first_page: 0, checksums: Vec::new() }
    }

    /// Pages stored.
    #[must_use]
    pub fn pages(&self) -> u64 {
        if self.state.is_stored() {
            u64::from(self.blocks - 1) * u64::from(BLOCK_PAGES) + u64::from(self.tail_pages)
        } else {
            0
        }
    }

    /// The blocks of the run, as `sequence` puts them into the index.
    pub fn expand(&self, sequence: u64) -> impl Iterator<Item = (u16, Block)> + '_ {
        (0..self.blocks).map(move |nth| {
            let mut block = Block {
                state: self.state,
                pages: 0,
                first_page: 0,
                checksums: [Crc32c::EMPTY; BLOCK_PAGES as usize],
                sequence,
            };
            if self.state.is_stored() {
                let last = nth + 1 == self.blocks;
                block.pages = if last { self.tail_pages } else { BLOCK_PAGES };
                let skipped = usize::from(nth) * usize::from(BLOCK_PAGES);
                block.first_page = self.first_page + skipped as u64;
                let stored = &self.checksums[skipped..skipped + usize::from(block.pages)];
                block.checksums[..stored.len()].copy_from_slice(stored);
            }
            (self.first_block + nth, block)
        })
    }

    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        assert_eq!(self.checksums.len() as u64, self.pages(), "one checksum for each page");
        bytes.put_u16(self.first_block);
        bytes.put_u16(self.blocks);
        bytes.put_u8(self.state as u8);
        bytes.put_u8(self.tail_pages);
        bytes.put_u64(self.first_page);
        for checksum in &self.checksums {
            bytes.put_u32(checksum.0);
        }
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let first_block = reader.u16()?;
        let blocks = reader.u16()?;
        let end = u32::from(first_block) + u32::from(blocks);
        if blocks == 0 || end > u32::from(BLOCKS_MAX) {
            return Err(reader.impossible("block range"));
        }
        let state =
            BlockState::from_byte(reader.u8()?).ok_or_else(|| reader.impossible("block state"))?;
        let tail_pages = reader.u8()?;
        let tail_sound = match state.is_stored() {
            true => (1..=BLOCK_PAGES).contains(&tail_pages),
            false => tail_pages == 0,
        };
        if !tail_sound {
            return Err(reader.impossible("page count"));
        }
        let first_page = reader.u64()?;
        // The data file of 2^48 pages is far beyond any disk; the bound keeps sums from wrapping.
        if first_page >= 1 << 48 {
            return Err(reader.impossible("page number"));
        }
        let mut run =
            Self { first_block, blocks, state, tail_pages, first_page, checksums: Vec::new() };
        run.checksums =
            (0..run.pages()).map(|_| reader.u32().map(Crc32c)).collect::<Result<_, _>>()?;
        Ok(run)
    }
}

/// Everything that is known about a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ChunkRecord {
    /// Which chunk.
    pub key: ChunkKey,
    /// Raised by every change.
    pub version: ChunkVersion,
    /// The group's epoch at the newest write.
    pub group_epoch: GroupEpoch,
    /// The write epoch at the newest write or trim.
    pub write_epoch: WriteEpoch,
    /// One past the last byte that was ever stored, within the chunk.
    pub length: u32,
    /// The journal record that changed it last.
    pub sequence: u64,
    /// Bytes of the file's chunks; 0 as long as nothing is present.
    pub chunk_size: u32,
    /// Blocks from the start; those beyond the end are absent.
    pub blocks: Vec<Block>,
}

impl ChunkRecord {
    /// A chunk of which nothing is present.
    #[must_use]
    pub fn new(key: ChunkKey) -> Self {
        Self {
            key,
            version: ChunkVersion { group_epoch: GroupEpoch(0), counter: 0 },
            group_epoch: GroupEpoch(0),
            write_epoch: WriteEpoch(0),
            length: 0,
            sequence: 0,
            chunk_size: 0,
            blocks: Vec::new(),
        }
    }

    /// The block at `index`, absent or not.
    #[must_use]
    pub fn block(&self, index: u16) -> Block {
        self.blocks
            .get(usize::from(index))
            .copied()
            .unwrap_or_else(|| Block::unstored(BlockState::Absent, 0))
    }

    /// Whether every block is absent.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        self.blocks.iter().all(|block| block.state == BlockState::Absent)
    }

    /// The present blocks as runs, in order.
    #[must_use]
    pub fn runs(&self) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        for (at, block) in (0_u16..).zip(&self.blocks) {
            if block.state == BlockState::Absent {
                continue;
            }
            let stored = &block.checksums[..usize::from(block.pages)];
            if let Some(last) = runs.last_mut() {
                let adjoins = last.first_block + last.blocks == at
                    && last.state == block.state
                    && (!block.state.is_stored()
                        || (last.tail_pages == BLOCK_PAGES
                            && last.first_page + last.pages() == block.first_page));
                if adjoins {
                    last.blocks += 1;
                    last.tail_pages = block.pages;
                    last.checksums.extend_from_slice(stored);
                    continue;
                }
            }
            runs.push(Run {
                first_block: at,
                blocks: 1,
                state: block.state,
                tail_pages: block.pages,
                first_page: block.first_page,
                checksums: stored.to_vec(),
            });
        }
        runs
    }

    /// Appends the record to `bytes`.
    pub fn encode(&self, pending: bool, bytes: &mut Vec<u8>) {
        put_key(bytes, self.key);
        bytes.put_u8(u8::from(pending));
        put_version(bytes, self.version);
        bytes.put_u32(self.group_epoch.0);
        bytes.put_u32(self.write_epoch.0);
        bytes.put_u32(self.length);
        bytes.put_u64(self.sequence);
        bytes.put_u32(self.chunk_size);
        let runs = self.runs();
        bytes.put_u16(u16::try_from(runs.len()).expect("at most one run a block"));
        runs.iter().for_each(|run| run.encode(bytes));
    }

    /// Reads a whole record.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are no chunk record.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, WHAT);
        let mut record = Self::new(take_key(&mut reader)?);
        if reader.u8()? > 1 {
            return Err(reader.impossible("flag"));
        }
        record.version = take_version(&mut reader)?;
        record.group_epoch = GroupEpoch(reader.u32()?);
        record.write_epoch = WriteEpoch(reader.u32()?);
        record.length = reader.u32()?;
        record.sequence = reader.u64()?;
        record.chunk_size = reader.u32()?;
        for _ in 0..reader.u16()? {
            record.put(&Run::decode(&mut reader)?, record.sequence);
        }
        reader.finish()?;
        Ok(record)
    }

    /// Replaces the blocks of a run.
    pub fn put(&mut self, run: &Run, sequence: u64) {
        let end = usize::from(run.first_block + run.blocks);
        assert!(end <= usize::from(BLOCKS_MAX), "a run lies within the largest chunk");
        if run.state != BlockState::Absent && self.blocks.len() < end {
            self.blocks.resize(end, Block::unstored(BlockState::Absent, 0));
        }
        for (at, block) in run.expand(sequence) {
            if let Some(slot) = self.blocks.get_mut(usize::from(at)) {
                *slot = block;
            }
        }
        while self.blocks.last().is_some_and(|block| block.state == BlockState::Absent) {
            self.blocks.pop();
        }
    }
}

pub(super) fn put_key(bytes: &mut Vec<u8>, key: ChunkKey) {
    bytes.put_u64(key.inode.0);
    bytes.put_u32(key.generation.0);
    bytes.put_u32(key.index.0);
    bytes.put_u8(key.copy.0);
}

pub(super) fn take_key(reader: &mut Reader<'_>) -> Result<ChunkKey, FormatError> {
    Ok(ChunkKey {
        inode: InodeId(reader.u64()?),
        generation: ContentGeneration(reader.u32()?),
        index: ChunkIndex(reader.u32()?),
        copy: CopyIndex(reader.u8()?),
    })
}

pub(super) fn put_version(bytes: &mut Vec<u8>, version: ChunkVersion) {
    bytes.put_u32(version.group_epoch.0);
    bytes.put_u64(version.counter);
}

pub(super) fn take_version(reader: &mut Reader<'_>) -> Result<ChunkVersion, FormatError> {
    Ok(ChunkVersion { group_epoch: GroupEpoch(reader.u32()?), counter: reader.u64()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(crate) fn sample() -> ChunkRecord {
        let key = ChunkKey {
            inode: InodeId(0x0102),
            generation: ContentGeneration(3),
            index: ChunkIndex(4),
            copy: CopyIndex(0),
        };
        let mut record = ChunkRecord::new(key);
        record.version = ChunkVersion { group_epoch: GroupEpoch(5), counter: 6 };
        record.group_epoch = GroupEpoch(5);
        record.write_epoch = WriteEpoch(7);
        record.length = 4097;
        record.sequence = 8;
        record.chunk_size = 65_536;
        let stored = Run {
            first_block: 0,
            blocks: 1,
            state: BlockState::Written,
            tail_pages: 2,
            first_page: 9,
            checksums: vec![Crc32c(0xAABB_CCDD), Crc32c(0x1122_3344)],
        };
        record.put(&stored, 8);
        record.put(&Run::unstored(2, 3, BlockState::Zero), 8);
        record
    }

    #[test]
    fn the_bytes_never_change() {
        let mut bytes = Vec::new();
        sample().encode(true, &mut bytes);
        let expected: &[u8] = &[
            2, 1, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 0, // key
            1, // pending
            5, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, // version
            5, 0, 0, 0, 7, 0, 0, 0, 1, 16, 0, 0, // epochs, length
            8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 2, 0, // sequence, chunk size, runs
            0, 0, 1, 0, 2, 2, 9, 0, 0, 0, 0, 0, 0, 0, // stored run
            0xDD, 0xCC, 0xBB, 0xAA, 0x44, 0x33, 0x22, 0x11, //
            2, 0, 3, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 0, // zero run
        ];
        assert_eq!(bytes, expected);
        assert_eq!(ChunkRecord::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic() {
        let mut bytes = Vec::new();
        sample().encode(false, &mut bytes);
        for cut in 0..bytes.len() {
            assert!(ChunkRecord::decode(&bytes[..cut]).is_err());
        }
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] = 0xFF;
            drop(ChunkRecord::decode(&bad));
        }
    }

    #[test]
    fn stored_blocks_that_adjoin_become_one_run() {
        let mut record = ChunkRecord::new(sample().key);
        for block in 0..3_u16 {
            let run = Run {
                first_block: block,
                blocks: 1,
                state: BlockState::Clean,
                tail_pages: if block == 2 { 5 } else { 16 },
                first_page: 100 + 16 * u64::from(block),
                checksums: vec![Crc32c(u32::from(block)); if block == 2 { 5 } else { 16 }],
            };
            record.put(&run, 1);
        }
        let runs = record.runs();
        assert_eq!(runs.len(), 1);
        assert_eq!((runs[0].blocks, runs[0].pages(), runs[0].tail_pages), (3, 37, 5));
        let blocks: Vec<_> = runs[0].expand(1).map(|(_, block)| block).collect();
        assert_eq!(blocks, record.blocks);
    }
}
