//! The versions of the protocol: what each changed, and how two peers agree on one.
//!
//! TLS negotiates the version (ALPN): a peer offers the names of all versions that it speaks,
//! newest first, and the server picks the first of its own list that the peer offers too. The frame
//! header repeats the version, so that bytes which were recorded can be read without the
//! connection.

/// A version of the protocol, and with it the changelog of the wire.
///
/// A variant is never changed once released; messages of all variants have golden bytes.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[repr(u16)]
pub enum ProtocolVersion {
    /// The first: 64-byte header, rkyv 0.8 message (little-endian, unaligned, 32-bit offsets), raw
    /// body.
    V1 = 1,
}

impl ProtocolVersion {
    /// Every version that this program speaks, newest first.
    pub const ALL: &[Self] = &[Self::V1];

    /// The newest version.
    pub const NEWEST: Self = Self::ALL[0];

    /// The number in the frame header.
    #[must_use]
    pub fn code(self) -> u16 {
        self as u16
    }

    /// Reads a number from the frame header.
    #[must_use]
    pub fn from_code(code: u16) -> Option<Self> {
        Self::ALL.iter().copied().find(|version| version.code() == code)
    }

    /// The name that TLS negotiates.
    #[must_use]
    pub fn alpn(self) -> &'static [u8] {
        match self {
            Self::V1 => b"millrace/1",
        }
    }

    /// Reads a name that TLS negotiated.
    #[must_use]
    pub fn from_alpn(name: &[u8]) -> Option<Self> {
        Self::ALL.iter().copied().find(|version| version.alpn() == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_version_reads_back_and_the_newest_comes_first() {
        for &version in ProtocolVersion::ALL {
            assert_eq!(ProtocolVersion::from_code(version.code()), Some(version));
            assert_eq!(ProtocolVersion::from_alpn(version.alpn()), Some(version));
        }
        assert!(ProtocolVersion::ALL.is_sorted_by(|newer, older| newer > older));
        assert_eq!(ProtocolVersion::from_code(0), None);
        assert_eq!(ProtocolVersion::from_alpn(b"h3"), None);
    }
}
