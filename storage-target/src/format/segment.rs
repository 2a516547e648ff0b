//! The first 64 bytes of a journal segment; records follow one after the other.
//!
//! | offset | bytes | field          | meaning                                                   |
//! |-------:|------:|----------------|-----------------------------------------------------------|
//! |      0 |     8 | magic          | `MRJOURNL`                                                |
//! |      8 |     4 | checksum       | crc32c of bytes 12..64                                    |
//! |     12 |     4 | version        | 1                                                         |
//! |     16 |    16 | cluster        | as in the superblock                                      |
//! |     32 |     8 | target         | as in the superblock                                      |
//! |     40 |     8 | first sequence | of the first record; also in the file's name              |
//! |     48 |    16 | boot id        | of the kernel that ran when the segment was begun         |
//!
//! The boot id tells a killed process from a machine that lost its memory: with the same boot id,
//! everything that was written is there, synced or not.

use millrace_types::{ClusterId, Crc32c, TargetId};

use super::{
    FormatError,
    fields::{Put, Reader},
};

/// Bytes in front of the first record.
pub const SEGMENT_HEADER_LEN: usize = 64;

const MAGIC: &[u8; 8] = b"MRJOURNL";
const VERSION: u32 = 1;
const WHAT: &str = "a journal segment";

/// Names one boot of a machine.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BootId(pub [u8; 16]);

/// Whose segment it is, and where it begins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SegmentHeader {
    /// The cluster.
    pub cluster: ClusterId,
    /// The target.
    pub target: TargetId,
    /// The sequence of the first record.
    pub first_sequence: u64,
    /// Under which boot it was begun.
    pub boot: BootId,
}

impl SegmentHeader {
    /// The bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SEGMENT_HEADER_LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.put_u32(0);
        bytes.put_u32(VERSION);
        bytes.extend_from_slice(&self.cluster.0);
        bytes.extend_from_slice(&self.target.0);
        bytes.put_u64(self.first_sequence);
        bytes.extend_from_slice(&self.boot.0);
        let checksum = Crc32c::of(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.0.to_le_bytes());
        bytes
    }

    /// Reads the bytes.
    ///
    /// # Errors
    /// [`FormatError`] when they are damaged, foreign or of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        let bytes = bytes.get(..SEGMENT_HEADER_LEN).ok_or(FormatError::Truncated(WHAT))?;
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
            first_sequence: reader.u64()?,
            boot: BootId(reader.array()?),
        };
        reader.finish()?;
        Ok(header)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bytes_never_change() {
        let header = SegmentHeader {
            cluster: ClusterId([1; 16]),
            target: TargetId([2; 8]),
            first_sequence: 3,
            boot: BootId([4; 16]),
        };
        let bytes = header.encode();
        assert_eq!(bytes.len(), SEGMENT_HEADER_LEN);
        assert_eq!(Crc32c::of(&bytes), Crc32c(0xeecd_63c3));
        assert_eq!(SegmentHeader::decode(&bytes), Ok(header));
        for at in 0..bytes.len() {
            let mut bad = bytes.clone();
            bad[at] ^= 1;
            assert!(SegmentHeader::decode(&bad).is_err(), "byte {at}");
        }
    }
}
