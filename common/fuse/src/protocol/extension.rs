//! What may follow requests that make an inode: security contexts and groups.
//!
//! The header says how many bytes of the end of a request are extensions, in units of 8. Each
//! begins with its length (4 bytes, this included) and its type (4), and is padded to 8 bytes:
//!
//! | type | extension |
//! |-----:|-----------|
//! | 0-31 | that many security contexts (`SECURITY_CTX`, 7.36) |
//! | 32 | groups (`CREATE_SUPP_GROUP`, 7.38): their number (4 bytes), and 4 bytes each |
//!
//! A security context is the length of its value (4 bytes), 4 bytes of padding, its name, a NUL,
//! its value, padded to 8 bytes.
//!
//! Of the groups the kernel sends one: that of the parent directory, if the caller is in it.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use crate::wire::Wire;

/// The extensions of a request; checked, so that they can be read without failing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Extensions<'request> {
    bytes: &'request [u8],
}

/// One extension.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Extension<'request> {
    /// What the new inode's extended attribute is to be, from a security module.
    SecurityContext {
        /// Name of the attribute, such as `security.selinux`.
        name: &'request OsStr,
        /// Its value.
        value: &'request [u8],
    },
    /// A supplementary group of the caller's.
    Group(u32),
}

impl<'request> Extensions<'request> {
    /// Checks them all; `None` when one of them is not what it says.
    pub(crate) fn decode(bytes: &'request [u8]) -> Option<Self> {
        let mut rest = bytes;
        while !rest.is_empty() {
            let (kind, body, behind) = split(rest)?;
            rest = behind;
            match kind {
                0..=SECURITY_CONTEXTS_MAX => {
                    let mut contexts = body;
                    for _ in 0..kind {
                        contexts = context(contexts)?.1;
                    }
                }
                GROUPS => {
                    groups(body)?;
                }
                // Of a later version: has not been asked for, and is left out.
                _ => {}
            }
        }
        Some(Self { bytes })
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// Calls `found` with one after the other.
    pub fn for_each(self, mut found: impl FnMut(Extension<'request>)) {
        let mut rest = self.bytes;
        while let Some((kind, body, behind)) = split(rest) {
            rest = behind;
            if kind <= SECURITY_CONTEXTS_MAX {
                let mut contexts = body;
                for _ in 0..kind {
                    let Some((extension, behind)) = context(contexts) else { break };
                    found(extension);
                    contexts = behind;
                }
            } else if kind == GROUPS {
                let groups = groups(body).unwrap_or_default();
                groups.iter().filter_map(|group| u32::get(group)).for_each(|group| {
                    found(Extension::Group(group));
                });
            }
        }
    }
}

/// Type and body of the first extension, and what is behind it.
fn split(bytes: &[u8]) -> Option<(u32, &[u8], &[u8])> {
    let len = usize::try_from(u32::get(bytes)?).ok()?;
    let kind = u32::get(bytes.get(4..)?)?;
    let body = bytes.get(HEAD_LEN..len)?;
    // The last one may lack its padding.
    let behind = bytes.get(len.next_multiple_of(ALIGNMENT)..).unwrap_or_default();
    Some((kind, body, behind))
}

fn context(bytes: &[u8]) -> Option<(Extension<'_>, &[u8])> {
    let value_len = usize::try_from(u32::get(bytes)?).ok()?;
    let named = bytes.get(HEAD_LEN..)?;
    let name_len = named.iter().position(|byte| *byte == 0)?;
    let value_start = name_len + 1;
    let value = named.get(value_start..)?.get(..value_len)?;
    let len = (HEAD_LEN + value_start + value_len).next_multiple_of(ALIGNMENT);
    let name = OsStr::from_bytes(&named[..name_len]);
    let behind = bytes.get(len..).unwrap_or_default();
    Some((Extension::SecurityContext { name, value }, behind))
}

fn groups(bytes: &[u8]) -> Option<&[[u8; 4]]> {
    let count = usize::try_from(u32::get(bytes)?).ok()?;
    let (groups, _) = bytes.get(4..)?.as_chunks();
    groups.get(..count)
}

/// Type of the extension with groups; those below count security contexts.
const GROUPS: u32 = 32;
const SECURITY_CONTEXTS_MAX: u32 = 31;
const HEAD_LEN: usize = 8;
const ALIGNMENT: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn both() -> Vec<u8> {
        let mut bytes = Vec::new();
        for number in [8_u32 + 8 + 5, 1, 3, 0] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes.extend(b"n\0abc\0\0\0");
        for number in [16_u32, 32, 1, 1000] {
            bytes.extend(number.to_ne_bytes());
        }
        bytes
    }

    #[test]
    fn contexts_and_groups_are_found() {
        let bytes = both();
        let mut found = Vec::new();
        Extensions::decode(&bytes).unwrap().for_each(|extension| found.push(extension));
        let context = Extension::SecurityContext { name: OsStr::new("n"), value: b"abc" };
        assert_eq!(found, [context, Extension::Group(1000)]);
    }

    #[test]
    fn what_is_longer_than_the_request_is_refused() {
        let good = both();
        for (at, value) in [(0, 255), (0, 7), (4, 2), (8, 200), (24 + 8, 2), (24, 9)] {
            let mut bytes = good.clone();
            bytes[at] = value;
            assert!(Extensions::decode(&bytes).is_none(), "{at} {value}");
        }
    }
}
