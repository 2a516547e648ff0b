//! A block that was found bad: a value of the index.
//!
//! The key is that of the section (`section`) with 5 as the table's number, and the block (1) after
//! it. The value:
//!
//! | offset | bytes | field    | meaning                                                        |
//! |-------:|------:|----------|----------------------------------------------------------------|
//! |      0 |     8 | time     | when it was found, nanoseconds since 1970, signed              |
//! |      8 |     6 | page     | on the disk                                                    |
//! |     14 |     1 | within   | the page in the section, 0 to 127                              |
//! |     15 |     1 | kind     | 1 the checksum is another, 2 the disk cannot read the page,    |
//! |        |       | 3 a node of the index                                          |
//! |     16 |     4 | expected | the checksum in the record, or in the node's parent            |
//! |     20 |     4 | seen     | the checksum of what was read; 0 for kinds 2 and 3             |
//!
//! Of several bad pages of a block the first one found is kept.
//!
//! A node of the index that cannot be read (kind 3) is named after the first section that belongs
//! into it, with block 0; one that holds other tables after the section of zeros, with the number
//! of the table as block. `page` is the node's, `within` the first of the block.

use millrace_types::{Crc32c, Timestamp};

use super::{
    FormatError,
    extent::{put_page, take_page},
    fields::{Put, Reader},
    section::{SECTION_BLOCKS, SECTION_PAGES, SectionKey},
    units::BLOCK_PAGES,
};

const WHAT: &str = "a finding";

/// Names a block.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct BlockKey {
    /// The section.
    pub section: SectionKey,
    /// The block in the section, 0 to 7.
    pub block: u8,
}

impl BlockKey {
    /// The block's number in its chunk.
    #[must_use]
    pub fn in_chunk(self) -> u16 {
        u16::from(self.section.section) * u16::from(SECTION_BLOCKS) + u16::from(self.block)
    }

    pub(super) fn put(self, bytes: &mut impl Put) {
        assert!(self.block < SECTION_BLOCKS, "a block of a section");
        self.section.put(bytes);
        bytes.put_u8(self.block);
    }

    pub(super) fn take(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        let (section, block) = (SectionKey::take(reader)?, reader.u8()?);
        if block >= SECTION_BLOCKS {
            return Err(reader.impossible("block"));
        }
        Ok(Self { section, block })
    }
}

/// What is wrong with a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// Its bytes are not those that were written.
    Checksum {
        /// The checksum of what was read.
        seen: Crc32c,
    },
    /// The disk says that it cannot read it.
    Unreadable,
    /// It is a node of the index and cannot be read: whatever is recorded in it is not known.
    Index,
}

/// What was found.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// When.
    pub time: Timestamp,
    /// The page on the disk.
    pub page: u64,
    /// The page in the section.
    pub within: u8,
    /// The checksum that it should have.
    pub expected: Crc32c,
    /// What is wrong with it.
    pub fault: Fault,
}

impl Finding {
    /// The bytes of the value.
    ///
    /// # Panics
    /// When a page number is none.
    #[must_use]
    pub fn encode(self) -> Vec<u8> {
        assert!(self.within < SECTION_PAGES, "a page of a section");
        let mut bytes = Vec::with_capacity(24);
        bytes.extend_from_slice(&self.time.0.to_le_bytes());
        put_page(&mut bytes, self.page);
        bytes.put_u8(self.within);
        let (kind, seen) = match self.fault {
            Fault::Checksum { seen } => (1, seen),
            Fault::Unreadable => (2, Crc32c(0)),
            Fault::Index => (3, Crc32c(0)),
        };
        bytes.put_u8(kind);
        bytes.put_u32(self.expected.0);
        bytes.put_u32(seen.0);
        bytes
    }

    /// Reads the value of a block's finding.
    ///
    /// # Errors
    /// [`FormatError`] when no program writes these bytes.
    pub fn decode(bytes: &[u8], block: u8) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, WHAT);
        let time = Timestamp(i64::from_le_bytes(reader.array()?));
        let page = take_page(&mut reader)?;
        let within = reader.u8()?;
        if within / BLOCK_PAGES != block {
            return Err(reader.impossible("page of another block"));
        }
        let kind = reader.u8()?;
        let (expected, seen) = (Crc32c(reader.u32()?), Crc32c(reader.u32()?));
        let fault = match (kind, seen) {
            (1, seen) => Fault::Checksum { seen },
            (2, Crc32c(0)) => Fault::Unreadable,
            (3, Crc32c(0)) => Fault::Index,
            _ => return Err(reader.impossible("kind")),
        };
        reader.finish()?;
        Ok(Self { time, page, within, expected, fault })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_never_change() {
        let finding = Finding {
            time: Timestamp(0x0102),
            page: 0x0304,
            within: 17,
            expected: Crc32c(0xA1B2_C3D4),
            fault: Fault::Checksum { seen: Crc32c(5) },
        };
        let bytes = finding.encode();
        let expected =
            [2, 1, 0, 0, 0, 0, 0, 0, 4, 3, 0, 0, 0, 0, 17, 1, 0xD4, 0xC3, 0xB2, 0xA1, 5, 0, 0, 0];
        assert_eq!(bytes, expected);
        assert_eq!(Finding::decode(&bytes, 1), Ok(finding));
        assert!(Finding::decode(&bytes, 0).is_err(), "a page of another block");
        let unreadable = Finding { fault: Fault::Unreadable, ..finding };
        assert_eq!(Finding::decode(&unreadable.encode(), 1), Ok(unreadable));
        for cut in 0..bytes.len() {
            assert!(Finding::decode(&bytes[..cut], 1).is_err(), "cut at {cut}");
        }
        let node = Finding { fault: Fault::Index, ..finding };
        assert_eq!(node.encode()[15..], [3, 0xD4, 0xC3, 0xB2, 0xA1, 0, 0, 0, 0]);
        assert_eq!(Finding::decode(&node.encode(), 1), Ok(node));
        for kind in [0, 2, 3, 4] {
            let mut bad = bytes.clone();
            bad[15] = kind;
            assert!(Finding::decode(&bad, 1).is_err(), "kind {kind} with something seen");
        }
    }
}
