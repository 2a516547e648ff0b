//! A node of the index: one page of 4,096 bytes.
//!
//! | offset | bytes     | field      | meaning                                                    |
//! |-------:|----------:|------------|------------------------------------------------------------|
//! |      0 |         4 | magic      | `MRND`                                                     |
//! |      4 |         4 | checksum   | crc32c of bytes 8..4096                                    |
//! |      8 |         8 | target     | as in the superblock                                       |
//! |     16 |         8 | page       | where this node lies: finds a misdirected or swapped page  |
//! |     24 |         8 | generation | of the checkpoint that wrote it                            |
//! |     32 |         1 | level      | 0 for a leaf, else one more than its children              |
//! |     33 |         1 | zero       |                                                            |
//! |     34 |         2 | count      | of entries; at least 1                                     |
//! |     36 |         4 | zero       |                                                            |
//! |     40 | 2 x count | offsets    | of each entry, from the page's start                       |
//! |        |           | entries    | one after the other, without gaps, keys strictly ascending |
//! |        |           | zero       | to the end of the page                                     |
//!
//! An entry:
//!
//! | offset | bytes | field        | meaning                                                      |
//! |-------:|------:|--------------|--------------------------------------------------------------|
//! |      0 |     1 | key length   | 1 to 32                                                      |
//! |      1 |     2 | value length | 0 to 1,920; 12 in an inner node                              |
//! |      3 |     k | key          | compared byte by byte                                        |
//! |  3 + k |     v | value        | a leaf: the caller's bytes; an inner node: a *reference*,    |
//! |        |       |              | the child's page (8) and the checksum of the child (4)       |
//!
//! An inner entry's key is not above any key below it, and not below any key of the entry before,
//! except that the first entry also stands for all smaller keys. Because a reference holds the
//! checksum that its child must have, a node that is sound in itself but older than its parent
//! (a lost write, a page restored from elsewhere) is found as well: whoever trusts the root can
//! trust everything below it.
//!
//! Two entries of the greatest size fit one node, so that any node can be split.

use bytes::Bytes;
use millrace_types::{Crc32c, TargetId};

use super::{FormatError, fields::Reader};

/// Bytes of a node.
pub const NODE_LEN: usize = 4096;

/// Bytes in front of the offsets.
const HEADER_LEN: usize = 40;

/// Bytes of an entry in front of its key.
const ENTRY_HEADER_LEN: usize = 3;

/// Bytes of the longest key.
pub const KEY_LEN_MAX: usize = 32;

/// Bytes of the longest value.
pub const VALUE_LEN_MAX: usize = 1920;

/// Bytes of a node that entries and their offsets can take.
pub const ROOM: usize = NODE_LEN - HEADER_LEN;

/// Bytes of a reference.
pub const REFERENCE_LEN: usize = 12;

/// Levels of the highest tree: more pages than any disk has.
pub const LEVELS_MAX: u8 = 12;

const MAGIC: &[u8; 4] = b"MRND";
const WHAT: &str = "an index node";

const _: () = assert!(2 * room_of(KEY_LEN_MAX, VALUE_LEN_MAX) <= ROOM);

/// What an entry takes of a node's [`ROOM`].
#[must_use]
pub const fn room_of(key_len: usize, value_len: usize) -> usize {
    2 + ENTRY_HEADER_LEN + key_len + value_len
}

/// Where a node is, and what it must be.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Reference {
    /// The page.
    pub page: u64,
    /// The checksum that the node there carries.
    pub checksum: Crc32c,
}

impl Reference {
    /// The bytes of an inner entry's value.
    #[must_use]
    pub fn encode(self) -> [u8; REFERENCE_LEN] {
        let mut bytes = [0; REFERENCE_LEN];
        bytes[..8].copy_from_slice(&self.page.to_le_bytes());
        bytes[8..].copy_from_slice(&self.checksum.0.to_le_bytes());
        bytes
    }

    /// Reads the bytes of an inner entry's value.
    ///
    /// # Errors
    /// [`FormatError`] when they have another length.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let mut reader = Reader::new(bytes, WHAT);
        let reference = Self { page: reader.u64()?, checksum: Crc32c(reader.u32()?) };
        reader.finish()?;
        Ok(reference)
    }
}

/// A node that has been checked. Cheap to clone.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Node {
    bytes: Bytes,
    level: u8,
    count: usize,
}

impl Node {
    /// Checks the bytes that were found where `reference` points.
    ///
    /// # Errors
    /// [`FormatError`] when they are not that node, or no node at all.
    pub fn decode(
        bytes: Bytes,
        target: TargetId,
        reference: Reference,
        level: u8,
    ) -> Result<Self, FormatError> {
        if bytes.len() != NODE_LEN {
            return Err(FormatError::Truncated(WHAT));
        }
        let mut reader = Reader::new(&bytes[..HEADER_LEN], WHAT);
        if reader.array()? != *MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        let checksum = Crc32c(reader.u32()?);
        if checksum != Crc32c::of(&bytes[8..]) {
            return Err(FormatError::Checksum(WHAT));
        }
        if TargetId(reader.array()?) != target {
            return Err(reader.impossible("target"));
        }
        if reader.u64()? != reference.page {
            return Err(reader.impossible("page number: it belongs elsewhere"));
        }
        reader.u64()?;
        if checksum != reference.checksum {
            return Err(reader.impossible("checksum: it is not the version that its parent names"));
        }
        if reader.u8()? != level {
            return Err(reader.impossible("level"));
        }
        reader.u8()?;
        let count = usize::from(reader.u16()?);
        let node = Self { bytes, level, count };
        node.check_entries()?;
        Ok(node)
    }

    /// Checks what the methods below rely on.
    fn check_entries(&self) -> Result<(), FormatError> {
        let impossible = |field| Err(FormatError::Impossible { what: WHAT, field });
        let entries_start = HEADER_LEN + 2 * self.count;
        if self.count == 0 || entries_start > NODE_LEN {
            return impossible("count of entries");
        }
        let mut due = entries_start;
        let mut before: &[u8] = &[];
        for at in 0..self.count {
            if self.offset(at) != due || due + ENTRY_HEADER_LEN > NODE_LEN {
                return impossible("offset of an entry");
            }
            let (key_len, value_len) = self.lengths(due);
            due += ENTRY_HEADER_LEN + key_len + value_len;
            if due > NODE_LEN || !(1..=KEY_LEN_MAX).contains(&key_len) {
                return impossible("length of a key");
            }
            let value_len_sound = match self.level {
                0 => value_len <= VALUE_LEN_MAX,
                _ => value_len == REFERENCE_LEN,
            };
            if !value_len_sound {
                return impossible("length of a value");
            }
            let key = self.key(at);
            if key <= before {
                return impossible("order of keys");
            }
            before = key;
        }
        Ok(())
    }

    /// 0 for a leaf.
    #[must_use]
    pub fn level(&self) -> u8 {
        self.level
    }

    /// Entries; at least one.
    #[must_use]
    pub fn count(&self) -> usize {
        self.count
    }

    /// The checkpoint that wrote it.
    #[must_use]
    pub fn generation(&self) -> u64 {
        let bytes = self.bytes[24..32].first_chunk().expect("eight bytes");
        u64::from_le_bytes(*bytes)
    }

    /// The key of an entry.
    ///
    /// # Panics
    /// When there is no such entry.
    #[must_use]
    pub fn key(&self, at: usize) -> &[u8] {
        let start = self.offset(at);
        let (key_len, _) = self.lengths(start);
        &self.bytes[start + ENTRY_HEADER_LEN..][..key_len]
    }

    /// The value of an entry, without copying it.
    ///
    /// # Panics
    /// When there is no such entry.
    #[must_use]
    pub fn value(&self, at: usize) -> Bytes {
        let start = self.offset(at);
        let (key_len, value_len) = self.lengths(start);
        let value_start = start + ENTRY_HEADER_LEN + key_len;
        self.bytes.slice(value_start..value_start + value_len)
    }

    /// Where a child is.
    ///
    /// # Panics
    /// When the node is a leaf, or there is no such entry.
    #[must_use]
    pub fn child(&self, at: usize) -> Reference {
        assert!(self.level > 0, "a leaf has no children");
        let start = self.offset(at);
        let (key_len, _) = self.lengths(start);
        let bytes = &self.bytes[start + ENTRY_HEADER_LEN + key_len..][..REFERENCE_LEN];
        Reference::decode(bytes).expect("its length was checked")
    }

    /// The place of a key, or the place where it would be.
    ///
    /// # Errors
    /// The place where it would be.
    pub fn find(&self, key: &[u8]) -> Result<usize, usize> {
        let (mut low, mut high) = (0, self.count);
        while low < high {
            let middle = low.midpoint(high);
            match self.key(middle).cmp(key) {
                std::cmp::Ordering::Less => low = middle + 1,
                std::cmp::Ordering::Equal => return Ok(middle),
                std::cmp::Ordering::Greater => high = middle,
            }
        }
        Err(low)
    }

    /// The child below which a key belongs.
    #[must_use]
    pub fn route(&self, key: &[u8]) -> usize {
        match self.find(key) {
            Ok(at) => at,
            Err(at) => at.saturating_sub(1),
        }
    }

    fn offset(&self, at: usize) -> usize {
        assert!(at < self.count, "the node has that many entries");
        usize::from(self.u16_at(HEADER_LEN + 2 * at))
    }

    fn lengths(&self, entry: usize) -> (usize, usize) {
        (usize::from(self.bytes[entry]), usize::from(self.u16_at(entry + 1)))
    }

    fn u16_at(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.bytes[at], self.bytes[at + 1]])
    }
}

/// Whose node it becomes, and where.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodeHeader {
    /// The target.
    pub target: TargetId,
    /// The page.
    pub page: u64,
    /// The checkpoint that writes it.
    pub generation: u64,
    /// 0 for a leaf.
    pub level: u8,
}

/// Writes a node into `page`, which has [`NODE_LEN`] bytes; returns its checksum.
///
/// # Panics
/// When there is no entry, or they do not fit, or their keys do not ascend, or a length is beyond
/// its bound: the caller has measured them with [`room_of`].
pub fn encode_node<'a>(
    header: NodeHeader,
    entries: impl ExactSizeIterator<Item = (&'a [u8], &'a [u8])>,
    page: &mut [u8],
) -> Crc32c {
    assert_eq!(page.len(), NODE_LEN, "a node is a page");
    page.fill(0);
    page[..4].copy_from_slice(MAGIC);
    page[8..16].copy_from_slice(&header.target.0);
    page[16..24].copy_from_slice(&header.page.to_le_bytes());
    page[24..32].copy_from_slice(&header.generation.to_le_bytes());
    page[32] = header.level;
    let count = entries.len();
    assert!(count > 0, "a node has entries");
    put_u16(page, 34, count);
    let mut end = HEADER_LEN + 2 * count;
    let mut before: &[u8] = &[];
    for (at, (key, value)) in entries.enumerate() {
        assert!((1..=KEY_LEN_MAX).contains(&key.len()) && before < key, "keys ascend");
        assert!(value.len() <= VALUE_LEN_MAX, "a value fits half a node");
        put_u16(page, HEADER_LEN + 2 * at, end);
        page[end] = u8::try_from(key.len()).expect("at most 32");
        put_u16(page, end + 1, value.len());
        let key_start = end + ENTRY_HEADER_LEN;
        let value_start = key_start + key.len();
        end = value_start + value.len();
        page[key_start..value_start].copy_from_slice(key);
        page[value_start..end].copy_from_slice(value);
        before = key;
    }
    let checksum = Crc32c::of(&page[8..]);
    page[4..8].copy_from_slice(&checksum.0.to_le_bytes());
    checksum
}

fn put_u16(page: &mut [u8], at: usize, value: usize) {
    let value = u16::try_from(value).expect("below 4,096");
    page[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests;
