//! The tables of the index: what each key names, and what its value is.
//!
//! | first byte | key after it                                              | value                |
//! |-----------:|-----------------------------------------------------------|----------------------|
//! |          1 | inode 8, generation 4, index 4, copy 1, section 1         | `section`            |
//! |          2 | inode 8                                                   | `mark`               |
//! |          3 | region 4                                                  | free map, `free_map` |
//! |          4 | group of regions 4                                        | summaries, the same  |
//! |          5 | inode 8, generation 4, index 4, copy 1, section 1, block 1 | `finding`           |
//! |          6 | number 1                                                  | `fact`               |
//! |          7 | placement group 4                                         | lost mark, `mark`    |
//!
//! Numbers in keys are big-endian, so that bytes order as numbers do.

use bytes::Bytes;
use millrace_types::{ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, GroupId, InodeId};

use super::{
    FormatError,
    fact::{Fact, FactNumber},
    fields::Reader,
    finding::{BlockKey, Finding},
    free_map::{RegionMap, Summary, decode_summaries, encode_summaries},
    key::Key,
    mark::{LostMark, Mark},
    section::{SECTIONS_MAX, Section, SectionKey},
};

const WHAT: &str = "a key of the index";

/// A key that has been read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum TableKey {
    /// A section's record.
    Section(SectionKey),
    /// What is accepted of an inode.
    Mark(InodeId),
    /// The free map of a region.
    FreeMap(u32),
    /// The summaries of 256 regions.
    Summaries(u32),
    /// A block found bad.
    Finding(BlockKey),
    /// A fact.
    Fact(FactNumber),
    /// The lost mark of a placement group.
    Lost(GroupId),
}

impl TableKey {
    /// The key.
    #[must_use]
    pub fn encode(self) -> Key {
        let mut bytes = vec![self.table()];
        match self {
            Self::Section(section) => section.put(&mut bytes),
            Self::Mark(inode) => bytes.extend_from_slice(&inode.0.to_be_bytes()),
            Self::FreeMap(number) | Self::Summaries(number) | Self::Lost(GroupId(number)) => {
                bytes.extend_from_slice(&number.to_be_bytes());
            }
            Self::Finding(block) => block.put(&mut bytes),
            Self::Fact(number) => bytes.push(number as u8),
        }
        Key::new(&bytes).expect("at most 20 bytes")
    }

    /// Reads a key.
    ///
    /// # Errors
    /// [`FormatError`] when no table has such a key.
    pub fn decode(key: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(key, WHAT);
        let decoded = match reader.u8()? {
            1 => Self::Section(SectionKey::take(&mut reader)?),
            2 => Self::Mark(InodeId(u64::from_be_bytes(reader.array()?))),
            3 => Self::FreeMap(u32::from_be_bytes(reader.array()?)),
            4 => Self::Summaries(u32::from_be_bytes(reader.array()?)),
            5 => Self::Finding(BlockKey::take(&mut reader)?),
            6 => {
                let number = FactNumber::from_byte(reader.u8()?);
                Self::Fact(number.ok_or_else(|| reader.impossible("number of a fact"))?)
            }
            7 => Self::Lost(GroupId(u32::from_be_bytes(reader.array()?))),
            _ => return Err(reader.impossible("table")),
        };
        reader.finish()?;
        Ok(decoded)
    }

    fn table(self) -> u8 {
        match self {
            Self::Section(_) => 1,
            Self::Mark(_) => 2,
            Self::FreeMap(_) => 3,
            Self::Summaries(_) => 4,
            Self::Finding(_) => 5,
            Self::Fact(_) => 6,
            Self::Lost(_) => 7,
        }
    }
}

/// An entry of the index, decoded.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// What is known about a section.
    Section(SectionKey, Section),
    /// What is accepted of an inode.
    Mark(InodeId, Mark),
    /// The free map of a region.
    FreeMap(u32, RegionMap),
    /// The summaries of a group of regions, up to the last that is not empty.
    Summaries(u32, Vec<Summary>),
    /// A block found bad.
    Finding(BlockKey, Finding),
    /// A fact.
    Fact(Fact),
    /// The lost mark of a placement group.
    Lost(GroupId, LostMark),
}

impl Entry {
    /// The key and the value.
    ///
    /// # Panics
    /// When the value is impossible, or holds summaries that are all empty, which have no entry.
    #[must_use]
    pub fn encode(&self) -> (Key, Bytes) {
        let (key, value) = match self {
            Self::Section(key, section) => (TableKey::Section(*key), section.encode(key.section)),
            Self::Mark(inode, mark) => (TableKey::Mark(*inode), mark.encode()),
            Self::FreeMap(region, map) => (TableKey::FreeMap(*region), map.encode()),
            Self::Summaries(group, summaries) => {
                let value = encode_summaries(summaries).expect("one is not empty");
                (TableKey::Summaries(*group), value)
            }
            Self::Finding(key, finding) => (TableKey::Finding(*key), finding.encode()),
            Self::Fact(fact) => (TableKey::Fact(fact.number()), fact.encode()),
            Self::Lost(group, mark) => (TableKey::Lost(*group), mark.encode()),
        };
        (key.encode(), value.into())
    }

    /// Reads an entry.
    ///
    /// # Errors
    /// [`FormatError`] when no program writes these bytes.
    pub fn decode(key: &[u8], value: &[u8]) -> Result<Self, FormatError> {
        Ok(match TableKey::decode(key)? {
            TableKey::Section(key) => Self::Section(key, Section::decode(value, key.section)?),
            TableKey::Mark(inode) => Self::Mark(inode, Mark::decode(value)?),
            TableKey::FreeMap(region) => Self::FreeMap(region, RegionMap::decode(value)?),
            TableKey::Summaries(group) => Self::Summaries(group, decode_summaries(value)?),
            TableKey::Finding(key) => Self::Finding(key, Finding::decode(value, key.block)?),
            TableKey::Fact(number) => Self::Fact(Fact::decode(number, value)?),
            TableKey::Lost(group) => Self::Lost(group, LostMark::decode(value)?),
        })
    }
}

/// Keys from `from` on, below `until`: what a scan of the index asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyRange {
    /// The first key.
    pub from: Key,
    /// One past the last key.
    pub until: Key,
}

impl KeyRange {
    /// The sections of a chunk.
    #[must_use]
    pub fn chunk(chunk: ChunkKey) -> Self {
        Self::sections(chunk, chunk)
    }

    /// The sections of one content, from chunk `first` on.
    #[must_use]
    pub fn content(inode: InodeId, generation: ContentGeneration, first: ChunkIndex) -> Self {
        let from = ChunkKey { inode, generation, index: first, copy: CopyIndex(0) };
        Self::sections(from, last_chunk(inode, generation))
    }

    /// The sections of an inode up to and with a generation.
    #[must_use]
    pub fn inode(inode: InodeId, last: ContentGeneration) -> Self {
        let (generation, index) = (ContentGeneration(0), ChunkIndex(0));
        let from = ChunkKey { inode, generation, index, copy: CopyIndex(0) };
        Self::sections(from, last_chunk(inode, last))
    }

    /// The findings of a chunk.
    #[must_use]
    pub fn findings(chunk: ChunkKey) -> Self {
        let key = |section, block| {
            TableKey::Finding(BlockKey { section: SectionKey { chunk, section }, block }).encode()
        };
        Self { from: key(0, 0), until: after(key(SECTIONS_MAX - 1, 7)) }
    }

    /// A whole table, by the first byte of its keys.
    #[must_use]
    pub fn table(number: u8) -> Self {
        let key = |number: u8| Key::new(&[number]).expect("one byte");
        Self { from: key(number), until: key(number + 1) }
    }

    fn sections(first: ChunkKey, last: ChunkKey) -> Self {
        let key = |chunk, section| TableKey::Section(SectionKey { chunk, section }).encode();
        Self { from: key(first, 0), until: after(key(last, SECTIONS_MAX - 1)) }
    }
}

fn last_chunk(inode: InodeId, generation: ContentGeneration) -> ChunkKey {
    ChunkKey { inode, generation, index: ChunkIndex(u32::MAX), copy: CopyIndex(u8::MAX) }
}

/// The key that comes next.
fn after(key: Key) -> Key {
    let mut bytes = key.as_slice().to_vec();
    bytes.push(0);
    Key::new(&bytes).expect("at most 21 bytes")
}
