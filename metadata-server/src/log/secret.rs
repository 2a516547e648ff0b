//! What the checksums of a segment's records begin with.
//!
//! Bodies of records hold what users choose: names, attributes, bytes of small files. After a loss
//! of power a start searches everything behind the last good record, bodies too, and believes the
//! records that it finds. So a record's checksums begin with two numbers of 32 bits that are drawn
//! for each segment and stand in its head: who does not read the server's disk makes no bytes that
//! pass for a record.
//!
//! A secret is no key: a record and its checksums give it away. They never leave the server's disk.

use std::fmt;

use millrace_runtime::Random;
use millrace_types::Crc32c;

/// The secret of one segment.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Secret {
    header: Crc32c,
    body: Crc32c,
}

impl Secret {
    /// Bytes of a secret in the head of its segment.
    pub const LEN: usize = 8;

    /// None, as in segments of version 1: their checksums are plain ones.
    pub const NONE: Self = Self { header: Crc32c::EMPTY, body: Crc32c::EMPTY };

    /// Draws a new secret.
    #[must_use]
    pub fn draw(random: &Random) -> Self {
        let mut bytes = [0; Self::LEN];
        random.fill(&mut bytes);
        Self::from_bytes(bytes)
    }

    /// A secret as its segment's head has it.
    #[must_use]
    pub fn from_bytes(bytes: [u8; Self::LEN]) -> Self {
        let half = |at: usize| {
            let half = bytes[at..at + 4].try_into().expect("four bytes");
            Crc32c(u32::from_le_bytes(half))
        };
        Self { header: half(0), body: half(4) }
    }

    /// As [`Self::from_bytes`] takes it.
    #[must_use]
    pub fn to_bytes(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.header.0.to_le_bytes());
        bytes[4..].copy_from_slice(&self.body.0.to_le_bytes());
        bytes
    }

    /// The checksum of a record's header.
    #[must_use]
    pub fn of_header(self, bytes: &[u8]) -> Crc32c {
        self.header.append(bytes)
    }

    /// The checksum of a record's body.
    #[must_use]
    pub fn of_body(self, bytes: &[u8]) -> Crc32c {
        self.body.append(bytes)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(not shown)")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_reads_back_and_both_halves_count() {
        let secret = Secret::draw(&Random::seeded(1));
        assert_eq!(Secret::from_bytes(secret.to_bytes()), secret);
        assert_ne!(secret.of_header(b"same"), secret.of_body(b"same"));
        assert_ne!(secret, Secret::draw(&Random::seeded(2)));
        assert_eq!(Secret::NONE.of_header(b"plain"), Crc32c::of(b"plain"));
        assert_eq!(Secret::NONE.of_body(b"plain"), Crc32c::of(b"plain"));
    }
}
