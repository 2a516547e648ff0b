//! Journal records: each is one change of the index.
//!
//! | offset | bytes | field    | meaning                                                        |
//! |-------:|------:|----------|----------------------------------------------------------------|
//! |      0 |     4 | checksum | crc32c of everything after it                                  |
//! |      4 |     4 | length   | bytes after this field: 9 + body                               |
//! |      8 |     8 | sequence | one more than the record before it                             |
//! |     16 |     1 | kind     | see below; numbers are never used again                        |
//! |     17 |       | body     |                                                                |
//!
//! | kind | name   | body                                                                       |
//! |-----:|--------|----------------------------------------------------------------------------|
//! |    1 | blocks | key 17, version 12, group epoch 4, write epoch 4, length 4, chunk size 4,   |
//! |      |        | session 8, write number 8, count of runs 2, runs (`chunk`)                 |
//! |    2 | remove | inode 8, first generation 4, last generation 4, first chunk index 4        |
//! |    3 | mark   | inode 8, lowest generation 4, lowest write epoch 4 that are still accepted |
//! |    4 | commit | sequence 8: everything up to it is durable, with its data                  |
//! |    5 | loss   | the new loss count 8                                                       |
//! |    6 | stop   | nothing: the daemon ended in order, after a commit                         |
//!
//! A record of kind 1 lands in the journal after its data has been written, and counts as *pending*
//! until a later commit names it. Records only ever replace whole blocks, so that leaving one out
//! brings back the older version and never a mix.

use millrace_protocol::storage::ChunkVersion;
use millrace_types::{
    ChunkIndex, ChunkKey, ContentGeneration, Crc32c, GroupEpoch, InodeId, SessionId, WriteEpoch,
    WriteNumber,
};

use super::{
    FormatError,
    chunk::{Run, put_key, put_version, take_key, take_version},
    fields::{Put, Reader},
};

/// Bytes in front of a record's body.
pub const HEADER_LEN: usize = 17;

/// The longest record: a chunk of 1,024 blocks with a run and 16 checksums each, rounded up.
pub const RECORD_LEN_MAX: usize = 128 * 1024;

const WHAT: &str = "a journal record";

/// One change of the index.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Record {
    /// Blocks of one chunk have new states and places.
    Blocks(BlocksChange),
    /// Chunks are gone.
    Remove(Removal),
    /// Older generations and write epochs of an inode are refused from now on.
    Mark(Mark),
    /// Everything up to this sequence is durable, with its data.
    Commit(u64),
    /// The loss count.
    Loss(u64),
    /// The daemon ended in order.
    Stop,
}

/// Blocks of one chunk have new states and places.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BlocksChange {
    /// The chunk.
    pub key: ChunkKey,
    /// Its version from now on.
    pub version: ChunkVersion,
    /// The group's epoch that the change came with.
    pub group_epoch: GroupEpoch,
    /// The write epoch that the change came with.
    pub write_epoch: WriteEpoch,
    /// One past the last byte ever stored, from now on.
    pub length: u32,
    /// Bytes of the file's chunks.
    pub chunk_size: u32,
    /// The session that wrote; 0 for fills and everything else that is no client's write.
    pub session: SessionId,
    /// Its write number; 0 likewise.
    pub number: WriteNumber,
    /// The blocks.
    pub runs: Vec<Run>,
}

/// Chunks of `inode` with a generation from `first` to `last` and an index from `index` on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removal {
    /// The file.
    pub inode: InodeId,
    /// The lowest generation.
    pub first: ContentGeneration,
    /// The highest generation.
    pub last: ContentGeneration,
    /// The lowest chunk index.
    pub index: ChunkIndex,
}

/// The oldest generation and write epoch of an inode that are still accepted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Mark {
    /// The file.
    pub inode: InodeId,
    /// Requests for an older generation are answered `StaleContent`.
    pub generation: ContentGeneration,
    /// Writes of that generation with an older epoch are answered `StaleEpoch`.
    pub write_epoch: WriteEpoch,
}

impl Record {
    /// Appends the whole record to `bytes`.
    pub fn encode(&self, sequence: u64, bytes: &mut Vec<u8>) {
        let start = bytes.len();
        bytes.put_u32(0);
        bytes.put_u32(0);
        bytes.put_u64(sequence);
        bytes.put_u8(self.kind());
        self.encode_body(bytes);
        let len = bytes.len() - start;
        assert!(len <= RECORD_LEN_MAX, "a record fits the bound that readers apply");
        let length = u32::try_from(len - 8).expect("below the bound");
        bytes[start + 4..start + 8].copy_from_slice(&length.to_le_bytes());
        let checksum = Crc32c::of(&bytes[start + 4..]);
        bytes[start..start + 4].copy_from_slice(&checksum.0.to_le_bytes());
    }

    /// Reads the record at the front of `bytes`: the record, its sequence and its length.
    ///
    /// # Errors
    /// [`FormatError`] when there is no whole, sound record: the journal ends here, or is damaged.
    pub fn decode(bytes: &[u8]) -> Result<(Self, u64, usize), FormatError> {
        let mut header = Reader::new(bytes, WHAT);
        let checksum = Crc32c(header.u32()?);
        let length = usize::try_from(header.u32()?).expect("32 bits fit");
        let len = length + 8;
        if !(HEADER_LEN..=RECORD_LEN_MAX).contains(&len) {
            return Err(header.impossible("length"));
        }
        let record = bytes.get(..len).ok_or(FormatError::Truncated(WHAT))?;
        if Crc32c::of(&record[4..]) != checksum {
            return Err(FormatError::Checksum(WHAT));
        }
        let mut reader = Reader::new(&record[8..], WHAT);
        let sequence = reader.u64()?;
        let kind = reader.u8()?;
        let record = Self::decode_body(kind, &mut reader)?;
        reader.finish()?;
        Ok((record, sequence, len))
    }

    fn kind(&self) -> u8 {
        match self {
            Self::Blocks(_) => 1,
            Self::Remove(_) => 2,
            Self::Mark(_) => 3,
            Self::Commit(_) => 4,
            Self::Loss(_) => 5,
            Self::Stop => 6,
        }
    }

    fn encode_body(&self, bytes: &mut Vec<u8>) {
        match self {
            Self::Blocks(change) => {
                put_key(bytes, change.key);
                put_version(bytes, change.version);
                bytes.put_u32(change.group_epoch.0);
                bytes.put_u32(change.write_epoch.0);
                bytes.put_u32(change.length);
                bytes.put_u32(change.chunk_size);
                bytes.put_u64(change.session.0);
                bytes.put_u64(change.number.0);
                bytes.put_u16(u16::try_from(change.runs.len()).expect("at most one a block"));
                change.runs.iter().for_each(|run| run.encode(bytes));
            }
            Self::Remove(removal) => {
                bytes.put_u64(removal.inode.0);
                bytes.put_u32(removal.first.0);
                bytes.put_u32(removal.last.0);
                bytes.put_u32(removal.index.0);
            }
            Self::Mark(mark) => mark.encode(bytes),
            Self::Commit(number) | Self::Loss(number) => bytes.put_u64(*number),
            Self::Stop => {}
        }
    }

    fn decode_body(kind: u8, reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        Ok(match kind {
            1 => {
                let mut change = BlocksChange {
                    key: take_key(reader)?,
                    version: take_version(reader)?,
                    group_epoch: GroupEpoch(reader.u32()?),
                    write_epoch: WriteEpoch(reader.u32()?),
                    length: reader.u32()?,
                    chunk_size: reader.u32()?,
                    session: SessionId(reader.u64()?),
                    number: WriteNumber(reader.u64()?),
                    runs: Vec::new(),
                };
                for _ in 0..reader.u16()? {
                    change.runs.push(Run::decode(reader)?);
                }
                Self::Blocks(change)
            }
            2 => Self::Remove(Removal {
                inode: InodeId(reader.u64()?),
                first: ContentGeneration(reader.u32()?),
                last: ContentGeneration(reader.u32()?),
                index: ChunkIndex(reader.u32()?),
            }),
            3 => Self::Mark(Mark::decode(reader)?),
            4 => Self::Commit(reader.u64()?),
            5 => Self::Loss(reader.u64()?),
            6 => Self::Stop,
            _ => return Err(reader.impossible("kind")),
        })
    }
}

impl Mark {
    pub(super) fn encode(&self, bytes: &mut Vec<u8>) {
        bytes.put_u64(self.inode.0);
        bytes.put_u32(self.generation.0);
        bytes.put_u32(self.write_epoch.0);
    }

    pub(super) fn decode(reader: &mut Reader<'_>) -> Result<Self, FormatError> {
        Ok(Self {
            inode: InodeId(reader.u64()?),
            generation: ContentGeneration(reader.u32()?),
            write_epoch: WriteEpoch(reader.u32()?),
        })
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{BlockState, CopyIndex};

    use super::*;

    fn samples() -> Vec<Record> {
        let key = ChunkKey {
            inode: InodeId(1),
            generation: ContentGeneration(2),
            index: ChunkIndex(3),
            copy: CopyIndex(0),
        };
        vec![
            Record::Blocks(BlocksChange {
                key,
                version: ChunkVersion { group_epoch: GroupEpoch(4), counter: 5 },
                group_epoch: GroupEpoch(4),
                write_epoch: WriteEpoch(6),
                length: 7,
                chunk_size: 65_536,
                session: SessionId(8),
                number: WriteNumber(9),
                runs: vec![Run::unstored(0, 2, BlockState::Zero)],
            }),
            Record::Remove(Removal {
                inode: InodeId(1),
                first: ContentGeneration(0),
                last: ContentGeneration(2),
                index: ChunkIndex(3),
            }),
            Record::Mark(Mark {
                inode: InodeId(1),
                generation: ContentGeneration(2),
                write_epoch: WriteEpoch(3),
            }),
            Record::Commit(77),
            Record::Loss(3),
            Record::Stop,
        ]
    }

    #[test]
    fn the_bytes_never_change() {
        let mut bytes = Vec::new();
        Record::Commit(77).encode(5, &mut bytes);
        assert_eq!(
            bytes,
            [
                0xef, 0xea, 0xb9, 0xd8, 17, 0, 0, 0, 5, 0, 0, 0, 0, 0, 0, 0, 4, 77, 0, 0, 0, 0, 0,
                0, 0
            ]
        );
        let mut all = Vec::new();
        for (sequence, record) in (100..).zip(&samples()) {
            record.encode(sequence, &mut all);
        }
        assert_eq!((all.len(), Crc32c::of(&all)), (231, Crc32c(0x3576_2446)));
    }

    #[test]
    fn records_read_back_and_damage_is_found() {
        for (sequence, record) in (100..).zip(samples()) {
            let mut bytes = Vec::new();
            record.encode(sequence, &mut bytes);
            assert_eq!(Record::decode(&bytes), Ok((record, sequence, bytes.len())));
            for at in 0..bytes.len() {
                let mut bad = bytes.clone();
                bad[at] ^= 0x10;
                assert!(Record::decode(&bad).is_err(), "byte {at}");
                assert!(Record::decode(&bytes[..at]).is_err(), "cut at {at}");
            }
        }
    }
}
