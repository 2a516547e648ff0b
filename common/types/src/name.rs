//! Names of directory entries.

use std::fmt;

use rkyv::{Archive, Deserialize, Serialize};

use crate::ErrorKind;

/// The longest name of one directory entry, in bytes (Linux's `NAME_MAX`).
pub const NAME_LEN_MAX: usize = 255;

/// The longest target of a symbolic link, in bytes (Linux's `PATH_MAX` less the final zero).
pub const SYMLINK_LEN_MAX: usize = 4095;

/// The name of one directory entry: 1 to 255 bytes, no `/`, no zero byte, not `.` or `..`.
///
/// Any other byte is allowed: names are not text.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Archive, Serialize, Deserialize)]
pub struct FileName(Vec<u8>);

impl FileName {
    /// Checks and takes a name.
    ///
    /// # Errors
    /// [`ErrorKind::NameTooLong`] past 255 bytes; [`ErrorKind::InvalidArgument`] for an empty name,
    /// `.`, `..`, or one that holds `/` or a zero byte.
    pub fn parse(name: &[u8]) -> Result<Self, ErrorKind> {
        if name.len() > NAME_LEN_MAX {
            return Err(ErrorKind::NameTooLong);
        }
        let special = name.is_empty() || name == b"." || name == b"..";
        if special || name.iter().any(|&byte| byte == b'/' || byte == 0) {
            return Err(ErrorKind::InvalidArgument);
        }
        Ok(Self(name.to_vec()))
    }

    /// The bytes of the name.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Debug for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", String::from_utf8_lossy(&self.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_any_bytes_but_the_reserved_ones() {
        assert!(FileName::parse(b"cat \xff.jpg").is_ok());
        assert!(FileName::parse(&[b'x'; 255]).is_ok());
        assert_eq!(FileName::parse(&[b'x'; 256]), Err(ErrorKind::NameTooLong));
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b"] {
            assert_eq!(FileName::parse(bad), Err(ErrorKind::InvalidArgument), "{bad:?}");
        }
    }
}
