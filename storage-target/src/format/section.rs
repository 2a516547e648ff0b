//! A section of a chunk: 512 KiB, the part of it that one record of the index describes.
//!
//! Its *key*, with numbers big-endian, so that bytes order as numbers do:
//!
//! | offset | bytes | field      | meaning                                                      |
//! |-------:|------:|------------|--------------------------------------------------------------|
//! |      0 |     1 | table      | 1                                                            |
//! |      1 |     8 | inode      |                                                              |
//! |      9 |     4 | generation | of the content                                               |
//! |     13 |     4 | index      | of the chunk in the file                                     |
//! |     17 |     1 | copy       |                                                              |
//! |     18 |     1 | section    | 0 to 127: in the chunk                                       |
//!
//! Its *value*:
//!
//! | offset | bytes | field       | meaning                                                     |
//! |-------:|------:|-------------|-------------------------------------------------------------|
//! |      0 |    12 | version     | group epoch 4, counter 8; raised by every change            |
//! |     12 |     4 | group epoch | of the newest write                                         |
//! |     16 |     4 | write epoch | of the newest write or trim                                 |
//! |     20 |     4 | length      | one past the last byte stored, counted in the chunk         |
//! |     24 |     4 | chunk size  | a power of two from 65,536 to 67,108,864                    |
//! |     28 |     8 | sequence    | of the journal record that changed it last                  |
//! |     36 |     2 | states      | two bits a block, the first block's lowest: 0 absent,       |
//! |        |       |             | 1 clean, 2 written, 3 zero                                  |
//! |     38 |     1 | extents     | how many follow, 0 to 128                                   |
//! |     39 |     1 | zero        |                                                             |
//! |     40 | 8 x e | extents     | first page in the section 1, pages 1, disk page 6; in order |
//! |        | 4 x p | checksums   | crc32c of each page that an extent covers, in order         |
//!
//! Extents cover pages of stored blocks (clean, written) only, and none that begins at or past
//! `length`; a page of a stored block that none covers is zero. Extents that adjoin both in the
//! section and on the disk are one. Blocks past the chunk's end are absent. So every state has
//! exactly one form, and what decodes is encoded to the same bytes again.
//!
//! **There is no checksum in the record**: the node or batch around it has one and is what finds a
//! flipped bit. Decoding alone refuses what no program writes; a flipped bit of a length, an epoch,
//! a disk page or a checksum passes here.
//!
//! Sizes: 16 KiB in one extent 64 bytes; a full section in one extent 560 (seven to a leaf); the
//! worst, 128 extents, 1,576.

use millrace_protocol::storage::ChunkVersion;
use millrace_types::{
    BlockState, ChunkIndex, ChunkKey, ChunkSize, ContentGeneration, CopyIndex, Crc32c, GroupEpoch,
    InodeId, WriteEpoch,
};

use super::{
    FormatError,
    extent::{PAGE_NUMBER_END, put_page, take_page},
    fields::{Put, Reader},
    node::VALUE_LEN_MAX,
    units::{BLOCK_PAGES, PAGE_SIZE},
};

mod edit;
mod parts;
#[cfg(test)]
mod tests;

pub use parts::{Held, Part, Source};

/// Blocks of a section.
pub const SECTION_BLOCKS: u8 = 8;

/// Pages of a section.
pub const SECTION_PAGES: u8 = SECTION_BLOCKS * BLOCK_PAGES;

/// Bytes of a section.
pub const SECTION_SIZE: u32 = SECTION_PAGES as u32 * PAGE_SIZE;

/// Sections of the largest chunk.
pub const SECTIONS_MAX: u8 = 128;

/// Bytes of a key, with the table's number.
pub const SECTION_KEY_LEN: usize = 19;

/// Bytes of the longest value: every page in an extent of its own.
pub const SECTION_LEN_MAX: usize = FIXED_LEN + SECTION_PAGES as usize * 12;

const FIXED_LEN: usize = 40;
const SEQUENCE_AT: usize = 28;
const WHAT: &str = "a section record";
const KEY: &str = "the key of a section";

const _: () = assert!(SECTION_LEN_MAX <= VALUE_LEN_MAX);
const _: () = assert!(SECTIONS_MAX as u64 * SECTION_SIZE as u64 == 64 << 20);

/// Names a section.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct SectionKey {
    /// The chunk.
    pub chunk: ChunkKey,
    /// Which of its sections, from 0 to 127.
    pub section: u8,
}

impl SectionKey {
    /// The bytes, without the table's number in front.
    pub(super) fn put(self, bytes: &mut impl Put) {
        bytes.put_bytes(&self.chunk.inode.0.to_be_bytes());
        bytes.put_bytes(&self.chunk.generation.0.to_be_bytes());
        bytes.put_bytes(&self.chunk.index.0.to_be_bytes());
        bytes.put_u8(self.chunk.copy.0);
        bytes.put_u8(self.section);
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let chunk = ChunkKey {
            inode: InodeId(u64::from_be_bytes(reader.array()?)),
            generation: ContentGeneration(u32::from_be_bytes(reader.array()?)),
            index: ChunkIndex(u32::from_be_bytes(reader.array()?)),
            copy: CopyIndex(reader.u8()?),
        };
        let section = reader.u8()?;
        if section >= SECTIONS_MAX {
            return Err(FormatError::Impossible { what: KEY, field: "section" });
        }
        Ok(Self { chunk, section })
    }
}

/// Everything that is known about a section.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Section {
    /// Raised by every change; a chunk's is the greatest of its sections'.
    pub version: ChunkVersion,
    /// The group's epoch at the newest write.
    pub group_epoch: GroupEpoch,
    /// The write epoch at the newest write or trim.
    pub write_epoch: WriteEpoch,
    /// One past the last byte stored, within the chunk; a chunk's is the greatest of its sections'.
    pub length: u32,
    /// Bytes of the file's chunks.
    pub chunk_size: ChunkSize,
    /// The journal record that changed it last.
    pub sequence: u64,
    states: [BlockState; SECTION_BLOCKS as usize],
    extents: Vec<Placed>,
    checksums: Vec<Crc32c>,
}

/// Consecutive pages of a section that lie one after the other on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Placed {
    first: u8,
    pages: u8,
    page: u64,
}

impl Placed {
    fn end(self) -> u8 {
        self.first + self.pages
    }
}

/// A page of a section that is on the disk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoredPage {
    /// Its number on the disk.
    pub page: u64,
    /// The checksum of its bytes.
    pub checksum: Crc32c,
}

impl Section {
    /// A section of which nothing is present.
    #[must_use]
    pub fn blank(chunk_size: ChunkSize) -> Self {
        Self {
            version: ChunkVersion { group_epoch: GroupEpoch(0), counter: 0 },
            group_epoch: GroupEpoch(0),
            write_epoch: WriteEpoch(0),
            length: 0,
            chunk_size,
            sequence: 0,
            states: [BlockState::Absent; SECTION_BLOCKS as usize],
            extents: Vec::new(),
            checksums: Vec::new(),
        }
    }

    /// The bytes of the value; `number` is the section's in its chunk.
    ///
    /// # Panics
    /// When the section is impossible: pages at or past `length`, or blocks past the chunk's end.
    #[must_use]
    pub fn encode(&self, number: u8) -> Vec<u8> {
        if let Some(field) = self.impossible(number) {
            panic!("a section's {field} is impossible: {self:?}");
        }
        let len = FIXED_LEN + 8 * self.extents.len() + 4 * self.checksums.len();
        let mut bytes = Vec::with_capacity(len);
        bytes.put_u32(self.version.group_epoch.0);
        bytes.put_u64(self.version.counter);
        bytes.put_u32(self.group_epoch.0);
        bytes.put_u32(self.write_epoch.0);
        bytes.put_u32(self.length);
        bytes.put_u32(u32::try_from(self.chunk_size.bytes()).expect("at most 64 MiB"));
        bytes.put_u64(self.sequence);
        let states = self.states.iter().rev();
        bytes.put_u16(states.fold(0, |bits, state| bits << 2 | *state as u16));
        bytes.put_u8(u8::try_from(self.extents.len()).expect("at most 128"));
        bytes.put_u8(0);
        for extent in &self.extents {
            bytes.put_u8(extent.first);
            bytes.put_u8(extent.pages);
            put_page(&mut bytes, extent.page);
        }
        self.checksums.iter().for_each(|checksum| bytes.put_u32(checksum.0));
        bytes
    }

    /// The sequence in a value, without looking at the rest.
    #[must_use]
    pub fn sequence_in(value: &[u8]) -> Option<u64> {
        Some(u64::from_le_bytes(*value.get(SEQUENCE_AT..)?.first_chunk()?))
    }

    /// Reads the value of the section with this number.
    ///
    /// # Errors
    /// [`FormatError`] when no program writes these bytes for that section. That no bit is flipped
    /// is for the node or batch around them to say.
    pub fn decode(bytes: &[u8], number: u8) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, WHAT);
        let version =
            ChunkVersion { group_epoch: GroupEpoch(reader.u32()?), counter: reader.u64()? };
        let (group_epoch, write_epoch) = (GroupEpoch(reader.u32()?), WriteEpoch(reader.u32()?));
        let length = reader.u32()?;
        let chunk_size = ChunkSize::new(u64::from(reader.u32()?));
        let chunk_size = chunk_size.map_err(|_| reader.impossible("chunk size"))?;
        let sequence = reader.u64()?;
        let bits = reader.u16()?;
        let mut states = [BlockState::Absent; SECTION_BLOCKS as usize];
        for (at, state) in states.iter_mut().enumerate() {
            let [low, _] = (bits >> (2 * at) & 3).to_le_bytes();
            *state = BlockState::from_byte(low).expect("two bits");
        }
        let count = reader.u8()?;
        if count > SECTION_PAGES || reader.u8()? != 0 {
            return Err(reader.impossible("count of extents"));
        }
        let mut extents = Vec::with_capacity(usize::from(count));
        for _ in 0..count {
            let (first, pages) = (reader.u8()?, reader.u8()?);
            extents.push(Placed { first, pages, page: take_page(&mut reader)? });
        }
        if !follow_each_other(&extents) {
            return Err(reader.impossible("extent"));
        }
        let stored: usize = extents.iter().map(|extent| usize::from(extent.pages)).sum();
        let checksums = reader.slice(4 * stored)?.as_chunks().0;
        let checksums = checksums.iter().map(|&sum| Crc32c(u32::from_le_bytes(sum))).collect();
        reader.finish()?;
        let section = Self {
            version,
            group_epoch,
            write_epoch,
            length,
            chunk_size,
            sequence,
            states,
            extents,
            checksums,
        };
        match section.impossible(number) {
            Some(field) => Err(FormatError::Impossible { what: WHAT, field }),
            None => Ok(section),
        }
    }

    /// The field that contradicts another one, or the section's number.
    fn impossible(&self, number: u8) -> Option<&'static str> {
        if number >= SECTIONS_MAX {
            return Some("number");
        }
        let start = u64::from(number) * u64::from(SECTION_SIZE);
        let chunk_size = self.chunk_size.bytes();
        if u64::from(self.length) > chunk_size {
            return Some("length");
        }
        let block_size = u64::from(PAGE_SIZE) * u64::from(BLOCK_PAGES);
        let past_end = |at: u64| start + at * block_size >= chunk_size;
        if (0..).zip(&self.states).any(|(at, &state)| past_end(at) && state != BlockState::Absent) {
            return Some("block past the chunk's end");
        }
        let end = self.extents.last().map_or(0, |extent| u64::from(extent.end()));
        if end > 0 && start + (end - 1) * u64::from(PAGE_SIZE) >= u64::from(self.length) {
            return Some("page past the length");
        }
        let is_stored = |block: u8| self.states[usize::from(block)].is_stored();
        let covered = |extent: &Placed| {
            let last = (extent.end() - 1) / BLOCK_PAGES;
            (extent.first / BLOCK_PAGES..=last).all(is_stored)
        };
        if !self.extents.iter().all(covered) {
            return Some("page of a block that stores nothing");
        }
        overlap_on_disk(&self.extents).then_some("page that stands for two")
    }
}

/// First and end of an extent on the disk.
fn on_disk(extent: &Placed) -> (u64, u64) {
    (extent.page, extent.page + u64::from(extent.pages))
}

fn overlap_on_disk(extents: &[Placed]) -> bool {
    // Most sections are in one piece, or in pieces that follow each other.
    if extents.windows(2).all(|pair| on_disk(&pair[0]).1 <= pair[1].page) {
        return false;
    }
    // A number each, which is sorted faster than a pair: the first page, and how many below it.
    let mut places = [0; SECTION_PAGES as usize];
    let places = &mut places[..extents.len()];
    for (place, extent) in places.iter_mut().zip(extents) {
        *place = extent.page << 8 | u64::from(extent.pages);
    }
    places.sort_unstable();
    let (first, end) = (|place: u64| place >> 8, |place: u64| (place >> 8) + (place & 0xFF));
    places.windows(2).any(|pair| end(pair[0]) > first(pair[1]))
}

/// Whether extents lie in the section, in order and apart, and none could be joined with the next.
fn follow_each_other(extents: &[Placed]) -> bool {
    let fits = |extent: &Placed| {
        let end = u16::from(extent.first) + u16::from(extent.pages);
        extent.pages > 0 && end <= u16::from(SECTION_PAGES) && on_disk(extent).1 <= PAGE_NUMBER_END
    };
    let apart = |pair: &[Placed]| {
        let (one, next) = (pair[0], pair[1]);
        let adjoins = one.end() == next.first && on_disk(&one).1 == next.page;
        one.end() <= next.first && !adjoins
    };
    extents.iter().all(fits) && extents.windows(2).all(apart)
}
