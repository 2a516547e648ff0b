//! The tables of the index: what each key names, and what its value is.
//!
//! | first byte | key after it                                               | value       |
//! |-----------:|------------------------------------------------------------|-------------|
//! |          1 | inode 8, generation 4, index 4, copy 1, section 1          | `section`   |
//! |          2 | inode 8                                                    | `mark`      |
//! |          3 | region 4                                                   | `free_map`  |
//! |          4 | group of regions 4                                         | `free_map`  |
//! |          5 | inode 8, generation 4, index 4, copy 1, section 1, block 1 | `finding`   |
//! |          6 | number 1                                                   | `fact`      |
//! |          7 | placement group 4                                          | `mark`      |
//!
//! Numbers in keys are big-endian, so that bytes order as numbers do.

use bytes::Bytes;
use millrace_types::{ChunkIndex, ChunkKey, ContentGeneration, CopyIndex, GroupId, InodeId};

use super::{
    FormatError,
    fact::{Fact, FactNumber},
    fields::{Put, Reader},
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
        let mut key = Key::of_table(self.table());
        match self {
            Self::Section(section) => section.put(&mut key),
            Self::Mark(inode) => key.put_bytes(&inode.0.to_be_bytes()),
            Self::FreeMap(number) | Self::Summaries(number) | Self::Lost(GroupId(number)) => {
                key.put_bytes(&number.to_be_bytes());
            }
            Self::Finding(block) => block.put(&mut key),
            Self::Fact(number) => key.put_u8(number as u8),
        }
        key
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

#[cfg(test)]
mod tests {
    use millrace_types::{BlockState, ChunkSize, Crc32c, Timestamp, WriteEpoch};
    use proptest::prelude::*;

    use super::*;
    use crate::format::{fact::StateTotals, finding::Fault, free_map::Class};

    fn chunk() -> ChunkKey {
        ChunkKey {
            inode: InodeId(0x0102_0304_0506_0708),
            generation: ContentGeneration(0x1112_1314),
            index: ChunkIndex(0x2122_2324),
            copy: CopyIndex(0x31),
        }
    }

    fn samples() -> Vec<(Entry, Vec<u8>)> {
        let key = SectionKey { chunk: chunk(), section: 0x41 };
        let mut section = Section::blank(ChunkSize::MAX);
        section.set_state(0..1, BlockState::Zero);
        let bytes =
            [1, 2, 3, 4, 5, 6, 7, 8, 0x11, 0x12, 0x13, 0x14, 0x21, 0x22, 0x23, 0x24, 0x31, 0x41];
        let finding = Finding {
            time: Timestamp(1),
            page: 2,
            within: 40,
            expected: Crc32c(3),
            fault: Fault::Unreadable,
        };
        let mark = Mark { generation: ContentGeneration(1), write_epoch: WriteEpoch(2) };
        let summary = Summary { free: 5, longest: 4, class: Class::Medium };
        let mut map = RegionMap::default();
        map.take(4..9);
        let block = BlockKey { section: key, block: 2 };
        vec![
            (Entry::Section(key, section), [&[1][..], &bytes].concat()),
            (Entry::Mark(key.chunk.inode, mark), [&[2], &bytes[..8]].concat()),
            (Entry::FreeMap(0x0102, map), vec![3, 0, 0, 1, 2]),
            (Entry::Summaries(3, vec![summary]), vec![4, 0, 0, 0, 3]),
            (Entry::Finding(block, finding), [&[5][..], &bytes, &[2]].concat()),
            (Entry::Fact(Fact::Totals(StateTotals::default())), vec![6, 2]),
            (Entry::Lost(GroupId(9), LostMark { below: InodeId(8) }), vec![7, 0, 0, 0, 9]),
        ]
    }

    #[test]
    fn the_keys_never_change_and_entries_read_back() {
        for (entry, key) in samples() {
            let (found, value) = entry.encode();
            assert_eq!(found.as_slice(), key, "{entry:?}");
            assert_eq!(TableKey::decode(&key).unwrap().encode(), found);
            assert_eq!(Entry::decode(&key, &value), Ok(entry.clone()));
            for len in 0..key.len() {
                assert!(Entry::decode(&key[..len], &value).is_err(), "{entry:?} {len}");
            }
            assert!(Entry::decode(&[&key[..], &[0]].concat(), &value).is_err(), "{entry:?}");
        }
        assert!(TableKey::decode(&[0]).is_err() && TableKey::decode(&[8, 0]).is_err());
        assert!(TableKey::decode(&[6, 0]).is_err(), "no such fact");
    }

    #[test]
    fn ranges_hold_what_they_name_and_nothing_else() {
        let key = |chunk, section| TableKey::Section(SectionKey { chunk, section }).encode();
        let holds = |range: KeyRange, key: Key| range.from <= key && key < range.until;
        let this = chunk();
        let next = ChunkKey { index: this.index.next(), ..this };
        let other = ChunkKey { generation: this.generation.next(), ..this };
        let last = ChunkKey { index: ChunkIndex(u32::MAX), copy: CopyIndex(u8::MAX), ..this };
        let range = KeyRange::chunk(this);
        assert!(holds(range, key(this, 0)) && holds(range, key(this, 127)));
        assert!(!holds(range, key(next, 0)));
        let range = KeyRange::content(this.inode, this.generation, next.index);
        assert!(!holds(range, key(this, 127)) && holds(range, key(last, 127)));
        assert!(!holds(range, key(other, 0)));
        let range = KeyRange::inode(this.inode, this.generation);
        assert!(holds(range, key(this, 0)) && holds(range, key(last, 127)));
        assert!(!holds(range, key(other, 0)));
        let foreign = ChunkKey { inode: this.inode.next(), ..this };
        let range = KeyRange::inode(this.inode, ContentGeneration(u32::MAX));
        assert!(holds(range, key(other, 0)) && !holds(range, key(foreign, 0)));
        let block = |chunk, section, block| {
            TableKey::Finding(BlockKey { section: SectionKey { chunk, section }, block }).encode()
        };
        let range = KeyRange::findings(this);
        assert!(holds(range, block(this, 0, 0)) && holds(range, block(this, 127, 7)));
        assert!(!holds(range, block(next, 0, 0)) && !holds(range, key(this, 0)));
        assert!(
            holds(KeyRange::table(1), key(this, 0)) && !holds(KeyRange::table(2), key(this, 0))
        );
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            table in 0_u8..9,
            rest in prop::collection::vec(any::<u8>(), 0..24),
            value: Vec<u8>,
        ) {
            let key = [&[table][..], &rest].concat();
            if let Ok(entry) = Entry::decode(&key, &value) {
                let (found, bytes) = entry.encode();
                prop_assert_eq!((found.as_slice(), &bytes[..]), (&key[..], &value[..]));
            }
        }

        #[test]
        fn keys_sort_as_what_they_name(one: (u64, u32, u32, u8), other: (u64, u32, u32, u8)) {
            let chunk = |(inode, generation, index, copy)| ChunkKey {
                inode: InodeId(inode),
                generation: ContentGeneration(generation),
                index: ChunkIndex(index),
                copy: CopyIndex(copy),
            };
            let key = |parts| SectionKey { chunk: chunk(parts), section: 3 };
            let encoded = |parts| TableKey::Section(key(parts)).encode();
            prop_assert_eq!(key(one).cmp(&key(other)), encoded(one).cmp(&encoded(other)));
        }
    }
}
