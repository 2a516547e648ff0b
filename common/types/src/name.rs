//! Names of directory entries.

use std::fmt;

use rkyv::{
    Archive, Deserialize, Serialize,
    rancor::{Fallible, Source, fail},
};

use crate::ErrorKind;

/// The longest name of one directory entry, in bytes (Linux's `NAME_MAX`).
pub const NAME_LEN_MAX: usize = 255;

/// The longest target of a symbolic link, in bytes (Linux's `PATH_MAX` less the final zero).
pub const SYMLINK_LEN_MAX: usize = 4095;

/// The name of one directory entry: 1 to 255 bytes, no `/`, no zero byte, not `.` or `..`.
///
/// Any other byte is allowed: names are not text. What comes in a message is checked as it is
/// decoded, so that nothing in a process has another one.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Archive, Serialize)]
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

impl<D> Deserialize<FileName, D> for ArchivedFileName
where
    D: Fallible<Error: Source> + ?Sized,
{
    fn deserialize(&self, _: &mut D) -> Result<FileName, D::Error> {
        match FileName::parse(&self.0) {
            Ok(name) => Ok(name),
            Err(_) => fail!(NoName { len: self.0.len() }),
        }
    }
}

/// What no entry of a directory can be called.
#[derive(Debug, thiserror::Error)]
#[error("{len} bytes are no name of a directory entry")]
struct NoName {
    len: usize,
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
    use rkyv::{from_bytes, rancor::Error, to_bytes};

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
    #[test]
    fn what_is_no_name_is_not_decoded() {
        let decoded = |name: &[u8]| {
            let bytes = to_bytes::<Error>(&FileName(name.to_vec())).unwrap();
            from_bytes::<FileName, Error>(&bytes)
        };
        assert_eq!(decoded(b"cat").unwrap().as_bytes(), b"cat");
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0b", &[b'x'; 256], &[b'x'; 70_000]] {
            assert!(decoded(bad).is_err(), "{:?}", bad.escape_ascii());
        }
    }
}
