//! The file `superblock`: who a target is. 4,096 bytes, written once and replaced as a whole.
//!
//! | offset | bytes | field           | meaning                                                  |
//! |-------:|------:|-----------------|----------------------------------------------------------|
//! |      0 |     8 | magic           | `MRTARGET`                                               |
//! |      8 |     4 | checksum        | crc32c of bytes 12..4096                                 |
//! |     12 |     4 | version         | of the whole target's format: 1                          |
//! |     16 |    16 | cluster         | a disk of another cluster is refused                     |
//! |     32 |     8 | target          | survives moves between hosts                             |
//! |     40 |     4 | page bytes      | 4,096: unit of space and of data checksums               |
//! |     44 |     4 | block bytes     | 65,536: unit of presence                                 |
//! |     48 |     8 | capacity bytes  | most that `data` may grow to, when it was made           |
//! |     56 |  4040 | zero            |                                                          |
//!
//! Written to a temporary name, synced and renamed, so that it is there as a whole or not at all.

use millrace_types::{BLOCK_SIZE, ClusterId, Crc32c, TargetId};

use super::{
    FormatError,
    fields::{Put, Reader},
};
use crate::format::chunk::PAGE_SIZE;

/// Bytes of the file.
pub const SUPERBLOCK_LEN: usize = 4096;

/// The format that this program reads and writes.
pub const FORMAT_VERSION: u32 = 1;

/// The superblock of format 2, under which a target is one linear space of pages.
pub mod linear;

const MAGIC: &[u8; 8] = b"MRTARGET";
const WHAT: &str = "the superblock";

/// Who a target is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Superblock {
    /// The cluster it belongs to.
    pub cluster: ClusterId,
    /// Its id.
    pub target: TargetId,
    /// The most bytes that its data file was given when it was made.
    pub capacity_bytes: u64,
}

impl Superblock {
    /// The bytes of the file.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(SUPERBLOCK_LEN);
        bytes.extend_from_slice(MAGIC);
        bytes.put_u32(0);
        bytes.put_u32(FORMAT_VERSION);
        bytes.extend_from_slice(&self.cluster.0);
        bytes.extend_from_slice(&self.target.0);
        bytes.put_u32(PAGE_SIZE);
        bytes.put_u32(u32::try_from(BLOCK_SIZE).expect("64 KiB"));
        bytes.put_u64(self.capacity_bytes);
        bytes.resize(SUPERBLOCK_LEN, 0);
        let checksum = Crc32c::of(&bytes[12..]);
        bytes[8..12].copy_from_slice(&checksum.0.to_le_bytes());
        bytes
    }

    /// Reads the file.
    ///
    /// # Errors
    /// [`FormatError`] when the bytes are damaged, foreign, or of a later version.
    pub fn decode(bytes: &[u8]) -> Result<Self, FormatError> {
        if bytes.len() != SUPERBLOCK_LEN {
            return Err(FormatError::Truncated(WHAT));
        }
        let mut reader = Reader::new(&bytes[..56], WHAT);
        if reader.array()? != *MAGIC {
            return Err(FormatError::Magic(WHAT));
        }
        if Crc32c(reader.u32()?) != Crc32c::of(&bytes[12..]) {
            return Err(FormatError::Checksum(WHAT));
        }
        let version = reader.u32()?;
        if version != FORMAT_VERSION {
            let known = FORMAT_VERSION;
            return Err(FormatError::Version { what: WHAT, found: version, known });
        }
        let cluster = ClusterId(reader.array()?);
        let target = TargetId(reader.array()?);
        if reader.u32()? != PAGE_SIZE || u64::from(reader.u32()?) != BLOCK_SIZE {
            return Err(reader.impossible("page or block size"));
        }
        let capacity_bytes = reader.u64()?;
        reader.finish()?;
        Ok(Self { cluster, target, capacity_bytes })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample() -> Superblock {
        Superblock {
            cluster: ClusterId([0xC1; 16]),
            target: TargetId([0x7A; 8]),
            capacity_bytes: 1 << 40,
        }
    }

    #[test]
    fn the_bytes_never_change() {
        let bytes = sample().encode();
        let mut expected = b"MRTARGET".to_vec();
        expected.extend_from_slice(&[3, 140, 175, 61, 1, 0, 0, 0]);
        expected.extend_from_slice(&[0xC1; 16]);
        expected.extend_from_slice(&[0x7A; 8]);
        expected.extend_from_slice(&[0, 0x10, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1, 0, 0]);
        assert_eq!(bytes[..56], expected);
        assert_eq!(Superblock::decode(&bytes), Ok(sample()));
    }

    #[test]
    fn damage_and_foreign_bytes_are_refused() {
        let good = sample().encode();
        for at in [0, 9, 20, 33, 50, 4000] {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(Superblock::decode(&bad).is_err(), "byte {at}");
        }
        assert!(Superblock::decode(&good[..4095]).is_err());
        assert!(Superblock::decode(&[]).is_err());
    }

    #[test]
    fn a_later_version_asks_for_an_upgrade() {
        let mut bytes = sample().encode();
        bytes[12] = 2;
        let checksum = Crc32c::of(&bytes[12..]).0.to_le_bytes();
        bytes[8..12].copy_from_slice(&checksum);
        let error = Superblock::decode(&bytes).unwrap_err();
        assert!(error.to_string().contains("upgrade"), "{error}");
    }
}
