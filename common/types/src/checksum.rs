//! crc32c (Castagnoli), and bytes that carry theirs.

use std::fmt;

use bytes::Bytes;
use rkyv::{Archive, Deserialize, Serialize};

use crate::ErrorKind;

/// A crc32c of some bytes.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Crc32c(pub u32);

impl Crc32c {
    /// The checksum of no bytes.
    pub const EMPTY: Self = Self(0);

    /// The checksum of `bytes`.
    #[must_use]
    pub fn of(bytes: &[u8]) -> Self {
        Self(crc32c::crc32c(bytes))
    }

    /// The checksum of the bytes so far followed by `bytes`.
    #[must_use]
    pub fn append(self, bytes: &[u8]) -> Self {
        Self(crc32c::crc32c_append(self.0, bytes))
    }

    /// The checksum of the bytes so far followed by `next_len` bytes whose checksum is `next`,
    /// without reading any of them.
    #[must_use]
    pub fn combine(self, next: Self, next_len: usize) -> Self {
        // Most files are one piece, and to combine takes as long as to read 100 KB.
        if self == Self::EMPTY {
            return next;
        }
        Self(crc32c::crc32c_combine(self.0, next.0, next_len))
    }
}

impl fmt::Debug for Crc32c {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "crc32c:{:08x}", self.0)
    }
}

/// Bytes with the checksum that somebody computed when they were made.
///
/// The bytes can only be taken out through a check, so that damage on the way is always found.
#[derive(Clone, Debug)]
#[must_use]
pub struct Checksummed {
    bytes: Bytes,
    checksum: Crc32c,
}

impl Checksummed {
    /// Computes the checksum of trusted bytes.
    pub fn compute(bytes: Bytes) -> Self {
        let checksum = Crc32c::of(&bytes);
        Self { bytes, checksum }
    }

    /// Joins bytes with the checksum that came with them; nothing is checked yet.
    pub fn claimed(bytes: Bytes, checksum: Crc32c) -> Self {
        Self { bytes, checksum }
    }

    /// The checksum.
    #[must_use]
    pub fn checksum(&self) -> Crc32c {
        self.checksum
    }

    /// Checks and releases the bytes.
    ///
    /// # Errors
    /// [`ErrorKind::Corrupt`] when the bytes are not those that the checksum was computed over.
    pub fn into_bytes(self) -> Result<Bytes, ErrorKind> {
        if Crc32c::of(&self.bytes) == self.checksum {
            Ok(self.bytes)
        } else {
            Err(ErrorKind::Corrupt)
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_flipped_bit_is_found() {
        let good = Checksummed::compute(Bytes::from_static(b"a wrong byte is never returned"));
        let checksum = good.checksum();
        assert!(good.into_bytes().is_ok());
        let bad =
            Checksummed::claimed(Bytes::from_static(b"b wrong byte is never returned"), checksum);
        assert_eq!(bad.into_bytes(), Err(ErrorKind::Corrupt));
    }

    proptest! {
        #[test]
        fn combining_equals_computing(left: Vec<u8>, right: Vec<u8>) {
            let whole = [left.as_slice(), right.as_slice()].concat();
            let combined = Crc32c::of(&left).combine(Crc32c::of(&right), right.len());
            prop_assert_eq!(combined, Crc32c::of(&whole));
            prop_assert_eq!(Crc32c::of(&left).append(&right), Crc32c::of(&whole));
            let alone = Crc32c::EMPTY.combine(Crc32c::of(&right), right.len());
            prop_assert_eq!(alone, Crc32c::of(&right));
        }
    }
}
