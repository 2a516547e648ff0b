//! The root record of the index: one page of 4,096 bytes, in two copies for each of two
//! generations.
//!
//! | offset | bytes  | field           | meaning                                                  |
//! |-------:|-------:|-----------------|----------------------------------------------------------|
//! |      0 |      8 | magic           | `MRIXROOT`                                               |
//! |      8 |      4 | checksum        | crc32c of bytes 12..4096                                 |
//! |     12 |      4 | version         | 1                                                        |
//! |     16 |      8 | target          | as in the superblock                                     |
//! |     24 |      8 | generation      | one more than the record before it; the first is 1       |
//! |     32 |      8 | through         | the newest journal record that is contained              |
//! |     40 |     12 | root            | reference to the highest node (`node`); zero when empty  |
//! |     52 |      1 | height          | levels of the tree; 0 when it is empty                   |
//! |     53 |      1 | zero            |                                                          |
//! |     54 |      2 | segments        | how many follow                                          |
//! |     56 |      8 | entries         | in all leaves                                            |
//! |     64 |      8 | nodes           | in the tree                                              |
//! |     72 | 12 x n | the segments    | first page 8, pages 4: where nodes lie; apart, not empty |
//! |        |        | zero            | to the end of the page                                   |
//!
//! There are four slots of one page. Generation `g` goes to slots `2 * (g % 2)` and the one after
//! it, the same bytes twice, after everything that it refers to has been synced. A loss of power
//! while it is written leaves both copies of generation `g - 1`, whose nodes are still untouched;
//! rot of one copy leaves the other. The highest generation that can be read counts.

use millrace_types::{Crc32c, TargetId};

use super::{
    FormatError,
    fields::{Put, Reader},
    node::{LEVELS_MAX, REFERENCE_LEN, Reference},
};

/// Bytes of a record.
pub const ROOT_LEN: usize = 4096;

/// Slots for records.
pub const ROOT_SLOTS: u64 = 4;

/// Segments at most: what fits the page.
pub const SEGMENTS_MAX: usize = (ROOT_LEN - FIXED_LEN) / SEGMENT_LEN;

const FIXED_LEN: usize = 72;
const SEGMENT_LEN: usize = 12;
/// What every root record begins with.
pub const ROOT_MAGIC: &[u8; 8] = b"MRIXROOT";
const VERSION: u32 = 1;
const WHAT: &str = "an index root";

/// Consecutive pages that hold nodes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Segment {
    /// The first page.
    pub first: u64,
    /// How many; not 0.
    pub pages: u32,
}

impl Segment {
    /// One past the last page.
    #[must_use]
    pub fn end(self) -> u64 {
        self.first + u64::from(self.pages)
    }
}

/// One version of the index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RootRecord {
    /// Whose index it is.
    pub target: TargetId,
    /// Which version.
    pub generation: u64,
    /// The newest journal record contained.
    pub through: u64,
    /// The highest node; `None` when there are no entries.
    pub root: Option<Reference>,
    /// Levels of the tree; 0 when there are no entries.
    pub height: u8,
    /// Entries in all leaves.
    pub entries: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Where nodes lie, in order.
    pub segments: Vec<Segment>,
}

impl RootRecord {
    /// The first of the two slots that a generation is written to.
    #[must_use]
    pub fn slot(generation: u64) -> u64 {
        2 * (generation % 2)
    }

    /// The bytes.
    ///
    /// # Panics
    /// When there are more than [`SEGMENTS_MAX`] segments.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        assert!(self.segments.len() <= SEGMENTS_MAX, "the segments fit the page");
        assert_eq!(self.root.is_some(), self.height > 0, "an empty tree has no levels");
        let mut bytes = Vec::with_capacity(ROOT_LEN);
        bytes.extend_from_slice(ROOT_MAGIC);
        bytes.put_u32(0);
        bytes.put_u32(VERSION);
        bytes.extend_from_slice(&self.target.0);
        bytes.put_u64(self.generation);
        bytes.put_u64(self.through);
        bytes.extend_from_slice(&self.root.map_or([0; REFERENCE_LEN], Reference::encode));
        bytes.put_u8(self.height);
        bytes.put_u8(0);
        bytes.put_u16(u16::try_from(self.segments.len()).expect("at most 335"));
        bytes.put_u64(self.entries);
        bytes.put_u64(self.nodes);
        for segment in &self.segments {
            bytes.put_u64(segment.first);
            bytes.put_u32(segment.pages);
        }
        bytes.resize(ROOT_LEN, 0);
        let checksum = Crc32c::of(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.0.to_le_bytes());
        bytes
    }

    /// Reads the bytes of a slot.
    ///
    /// # Errors
    /// [`FormatError`] when they are damaged, foreign, of a later version, or impossible.
    pub fn decode(bytes: &[u8], target: TargetId) -> Result<Self, FormatError> {
        let bytes = bytes.get(..ROOT_LEN).ok_or(FormatError::Truncated(WHAT))?;
        let mut reader = Reader::new(bytes, WHAT);
        if reader.array()? != *ROOT_MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if Crc32c(reader.u32()?) != Crc32c::of(&bytes[12..]) {
            return Err(FormatError::Checksum(WHAT));
        }
        let version = reader.u32()?;
        if version != VERSION {
            return Err(FormatError::Version { what: WHAT, found: version, known: VERSION });
        }
        if TargetId(reader.array()?) != target {
            return Err(reader.impossible("target"));
        }
        let (generation, through) = (reader.u64()?, reader.u64()?);
        let reference = Reference::decode(&reader.array::<REFERENCE_LEN>()?)?;
        let height = reader.u8()?;
        if generation == 0 || height > LEVELS_MAX {
            return Err(reader.impossible("generation or height"));
        }
        reader.u8()?;
        let count = usize::from(reader.u16()?);
        let (entries, nodes) = (reader.u64()?, reader.u64()?);
        if count > SEGMENTS_MAX {
            return Err(reader.impossible("count of segments"));
        }
        let mut segments = Vec::with_capacity(count);
        let mut before = 0;
        for _ in 0..count {
            let segment = Segment { first: reader.u64()?, pages: reader.u32()? };
            // A page number of 2^48 is far beyond any disk; the bound keeps sums from wrapping.
            if segment.first < before || segment.pages == 0 || segment.first >= 1 << 48 {
                return Err(reader.impossible("segment"));
            }
            before = segment.end();
            segments.push(segment);
        }
        let root = (height > 0).then_some(reference);
        Ok(Self { target, generation, through, root, height, entries, nodes, segments })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const TARGET: TargetId = TargetId([7; 8]);

    fn sample() -> RootRecord {
        RootRecord {
            target: TARGET,
            generation: 3,
            through: 4,
            root: Some(Reference { page: 5, checksum: Crc32c(6) }),
            height: 2,
            entries: 8,
            nodes: 9,
            segments: vec![Segment { first: 10, pages: 11 }, Segment { first: 30, pages: 12 }],
        }
    }

    fn resign(bytes: &mut [u8]) {
        let checksum = Crc32c::of(&bytes[12..]).0.to_le_bytes();
        bytes[8..12].copy_from_slice(&checksum);
    }

    #[test]
    fn the_bytes_never_change() {
        let bytes = sample().encode();
        let mut expected = b"MRIXROOT".to_vec();
        expected.extend_from_slice(&[0xe2, 0x5e, 0x37, 0x00, 1, 0, 0, 0]);
        expected.extend_from_slice(&[7; 8]);
        expected.extend_from_slice(&[3, 0, 0, 0, 0, 0, 0, 0, 4, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 2, 0, 2, 0]);
        expected.extend_from_slice(&[8, 0, 0, 0, 0, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0]);
        expected.extend_from_slice(&[10, 0, 0, 0, 0, 0, 0, 0, 11, 0, 0, 0]);
        expected.extend_from_slice(&[30, 0, 0, 0, 0, 0, 0, 0, 12, 0, 0, 0]);
        assert_eq!(bytes[..expected.len()], expected, "{:x?}", &bytes[8..12]);
        assert_eq!(bytes.len(), ROOT_LEN);
        assert_eq!(RootRecord::decode(&bytes, TARGET), Ok(sample()));
        let empty = RootRecord { root: None, height: 0, segments: Vec::new(), ..sample() };
        assert_eq!(RootRecord::decode(&empty.encode(), TARGET), Ok(empty));
    }

    #[test]
    fn generations_take_turns_and_never_touch_each_others_slots() {
        assert_eq!([1, 2, 3, 4].map(RootRecord::slot), [2, 0, 2, 0]);
    }

    #[test]
    fn damage_other_targets_and_later_versions_are_refused() {
        let good = sample().encode();
        for at in 0..ROOT_LEN {
            let mut bad = good.clone();
            bad[at] ^= 2;
            assert!(RootRecord::decode(&bad, TARGET).is_err(), "byte {at}");
        }
        assert!(RootRecord::decode(&good, TargetId([8; 8])).is_err());
        assert!(RootRecord::decode(&good[..4000], TARGET).is_err());
        let mut later = good;
        later[12] = 2;
        resign(&mut later);
        let error = RootRecord::decode(&later, TARGET).unwrap_err();
        assert!(error.to_string().contains("upgrade"), "{error}");
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_decoder_panic(
            noise in prop::collection::vec((24_usize..200, any::<u8>()), 0..20),
        ) {
            let mut bytes = sample().encode();
            for (at, byte) in noise {
                bytes[at] = byte;
            }
            resign(&mut bytes);
            if let Ok(record) = RootRecord::decode(&bytes, TARGET) {
                prop_assert!(record.segments.windows(2).all(|pair| pair[0].end() <= pair[1].first));
            }
        }
    }
}
