//! A checkpoint: the whole index as of one sequence number.
//!
//! | offset | bytes | field          | meaning                                                   |
//! |-------:|------:|----------------|-----------------------------------------------------------|
//! |      0 |     8 | magic          | `MRCHECKP`                                                |
//! |      8 |     4 | checksum       | crc32c of bytes 12..56                                    |
//! |     12 |     4 | version        | 1                                                         |
//! |     16 |    16 | cluster        | as in the superblock                                      |
//! |     32 |     8 | target         | as in the superblock                                      |
//! |     40 |     8 | sequence       | of the newest record that it contains                     |
//! |     48 |     8 | loss count     |                                                           |
//! |     56 |       | entries        |                                                           |
//!
//! An entry is: crc32c of what follows (4), length of kind and body (4), kind (1), body.
//! Kind 1 is a chunk record, kind 2 a mark (`record`), kind 3 the end: the number of entries before
//! it (8). A checkpoint without its end does not exist.
//!
//! Everything in a checkpoint is durable before the checkpoint gets its name.

use millrace_types::{ClusterId, Crc32c, TargetId};

use super::{
    FormatError,
    chunk::ChunkRecord,
    fields::{Put, Reader},
    record::{Mark, RECORD_LEN_MAX},
};

/// Bytes in front of the first entry.
pub const CHECKPOINT_HEADER_LEN: usize = 56;

const MAGIC: &[u8; 8] = b"MRCHECKP";
const VERSION: u32 = 1;
const WHAT: &str = "a checkpoint";

/// Whose index it is, and of when.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct CheckpointHeader {
    /// The cluster.
    pub cluster: ClusterId,
    /// The target.
    pub target: TargetId,
    /// The newest record in it.
    pub sequence: u64,
    /// The target's loss count.
    pub loss_count: u64,
}

impl CheckpointHeader {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(CHECKPOINT_HEADER_LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.put_u32(0);
        bytes.put_u32(VERSION);
        bytes.extend_from_slice(&self.cluster.0);
        bytes.extend_from_slice(&self.target.0);
        bytes.put_u64(self.sequence);
        bytes.put_u64(self.loss_count);
        let checksum = Crc32c::of(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.0.to_le_bytes());
        bytes
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`FormatError`] when they are damaged, foreign or of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..CHECKPOINT_HEADER_LEN).ok_or(FormatError::Truncated(WHAT))?;
        let mut reader = Reader::new(bytes, WHAT);
        if reader.array()? != *MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if Crc32c(reader.u32()?) != Crc32c::of(&bytes[12..]) {
            return Err(FormatError::Checksum(WHAT));
        }
        let version = reader.u32()?;
        if version != VERSION {
            return Err(FormatError::Version { what: WHAT, found: version, known: VERSION });
        }
        let header = Self {
            cluster: ClusterId(reader.array()?),
            target: TargetId(reader.array()?),
            sequence: reader.u64()?,
            loss_count: reader.u64()?,
        };
        reader.finish()?;
        Ok(header)
    }
}

/// One entry.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Entry {
    /// A chunk; checkpoints hold no pending ones.
    Chunk(ChunkRecord),
    /// What is too old to be accepted for an inode.
    Mark(Mark),
    /// The end, with the number of entries before it.
    End(u64),
}

/// Appends a chunk.
pub fn put_chunk(record: &ChunkRecord, bytes: &mut Vec<u8>) {
    put_entry(1, bytes, |bytes| record.encode(false, bytes));
}

/// Appends a mark.
pub fn put_mark(mark: &Mark, bytes: &mut Vec<u8>) {
    put_entry(2, bytes, |bytes| mark.encode(bytes));
}

/// Appends the end.
pub fn put_end(entries: u64, bytes: &mut Vec<u8>) {
    put_entry(3, bytes, |bytes| bytes.put_u64(entries));
}

/// Reads the entry at the front of `bytes`, and its length.
///
/// # Errors
/// [`FormatError`] when there is no whole, sound entry.
pub fn take_entry(bytes: &[u8]) -> Result<(Entry, usize), FormatError> {
    let mut header = Reader::new(bytes, WHAT);
    let checksum = Crc32c(header.u32()?);
    let length = usize::try_from(header.u32()?).expect("32 bits fit");
    if !(1..=RECORD_LEN_MAX).contains(&length) {
        return Err(header.impossible("length"));
    }
    let len = length + 8;
    let entry = bytes.get(..len).ok_or(FormatError::Truncated(WHAT))?;
    if Crc32c::of(&entry[4..]) != checksum {
        return Err(FormatError::Checksum(WHAT));
    }
    let mut reader = Reader::new(&entry[9..], WHAT);
    let entry = match entry[8] {
        1 => return Ok((Entry::Chunk(ChunkRecord::decode(&entry[9..])?), len)),
        2 => Entry::Mark(Mark::decode(&mut reader)?),
        3 => Entry::End(reader.u64()?),
        _ => return Err(reader.impossible("kind")),
    };
    reader.finish()?;
    Ok((entry, len))
}

fn put_entry(kind: u8, bytes: &mut Vec<u8>, body: impl FnOnce(&mut Vec<u8>)) {
    let start = bytes.len();
    bytes.put_u32(0);
    bytes.put_u32(0);
    bytes.put_u8(kind);
    body(bytes);
    let len = bytes.len() - start - 8;
    assert!(len <= RECORD_LEN_MAX, "an entry fits the bound that readers apply");
    let length = u32::try_from(len).expect("below the bound");
    bytes[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
    let checksum = Crc32c::of(&bytes[start + 4..]);
    bytes[start..start + 4].copy_from_slice(&checksum.0.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use millrace_types::{ContentGeneration, InodeId, WriteEpoch};

    use super::*;

    #[test]
    fn the_bytes_never_change() {
        let header = CheckpointHeader {
            cluster: ClusterId([1; 16]),
            target: TargetId([2; 8]),
            sequence: 3,
            loss_count: 4,
        };
        let mut bytes = header.encode();
        assert_eq!(CheckpointHeader::decode(&bytes), Ok(header));
        let mark = Mark {
            inode: InodeId(1),
            generation: ContentGeneration(2),
            write_epoch: WriteEpoch(3),
        };
        put_mark(&mark, &mut bytes);
        put_end(1, &mut bytes);
        assert_eq!((bytes.len(), Crc32c::of(&bytes)), (98, Crc32c(0xf183_bfd9)));
        let (entry, len) = take_entry(&bytes[CHECKPOINT_HEADER_LEN..]).unwrap();
        assert_eq!(entry, Entry::Mark(mark));
        let (end, _) = take_entry(&bytes[CHECKPOINT_HEADER_LEN + len..]).unwrap();
        assert_eq!(end, Entry::End(1));
    }
}
