//! Pages of directories: what READDIR and READDIRPLUS answer.
//!
//! A page is entries one after the other, each padded to a multiple of 8 bytes:
//!
//! | offset | bytes | field | meaning |
//! |-------:|------:|-------|---------|
//! | 0 | 8 | ino | what readdir(3) shows as the inode's number |
//! | 8 | 8 | offset | where the next read begins that has seen this entry |
//! | 16 | 4 | name length | without padding |
//! | 20 | 4 | type | bits 12 to 15 of the mode |
//! | 24 | n | name | any bytes but `/` and NUL |
//!
//! READDIRPLUS has an [`EntryReply`] of 128 bytes in front of each, which takes a reference, unless
//! its node is 0: then the kernel looks the name up when somebody asks for it. `.` and `..` take no
//! reference whatever their node is.

use std::{ffi::OsStr, os::unix::ffi::OsStrExt as _};

use crate::{
    protocol::attr::EntryReply,
    wire::{Wire, wire_struct},
};

wire_struct! {
    /// In front of a name in a page (`fuse_dirent`).
    DirectoryEntry[24] {
        /// What readdir(3) shows as the inode's number.
        0 => ino: u64,
        /// Where the next read begins that has seen this entry.
        8 => offset: u64,
        /// Length of the name.
        16 => name_len: u32,
        /// Type, as `d_type` has it: [`file_type`].
        20 => file_type: u32,
    }
}

/// What `d_type` says of an inode of that mode.
#[must_use]
pub const fn file_type(mode: u32) -> u32 {
    (mode >> 12) & 15
}

/// A page that is being filled.
#[derive(Debug)]
pub struct DirectoryPage {
    bytes: Vec<u8>,
    limit: usize,
}

impl DirectoryPage {
    /// An empty page of at most `limit` bytes: the `size` of the request.
    #[must_use]
    pub fn new(limit: u32) -> Self {
        let limit = usize::try_from(limit).unwrap_or(usize::MAX);
        // What a request may claim is not what is allocated.
        Self { bytes: Vec::with_capacity(limit.min(MOST_RESERVED)), limit }
    }

    /// Adds an entry for READDIR; `entry.name_len` is set here. False when it does not fit: the
    /// page is full, and the next read asks for this entry again.
    pub fn push(&mut self, entry: DirectoryEntry, name: &OsStr) -> bool {
        self.add(None, entry, name)
    }

    /// Adds an entry for READDIRPLUS. False when it does not fit; then it takes no reference.
    pub fn push_plus(&mut self, found: &EntryReply, entry: DirectoryEntry, name: &OsStr) -> bool {
        self.add(Some(found), entry, name)
    }

    fn add(&mut self, found: Option<&EntryReply>, mut entry: DirectoryEntry, name: &OsStr) -> bool {
        let name = name.as_bytes();
        let found_len = if found.is_some() { EntryReply::LEN } else { 0 };
        let len = (found_len + DirectoryEntry::LEN + name.len()).next_multiple_of(ALIGNMENT);
        let (Ok(name_len), true) =
            (u32::try_from(name.len()), len <= self.limit - self.bytes.len())
        else {
            return false;
        };
        entry.name_len = name_len;
        let end = self.bytes.len() + len;
        if let Some(found) = found {
            self.bytes.extend(found.encode());
        }
        self.bytes.extend(entry.encode());
        self.bytes.extend(name);
        self.bytes.resize(end, 0);
        true
    }

    /// Whether nothing was added, which answers *end of the directory*.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// What is answered.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Reads a page of READDIR, as the kernel does; ends at what is no entry.
pub fn entries(page: &[u8]) -> impl Iterator<Item = (DirectoryEntry, &OsStr)> {
    let mut rest = page;
    std::iter::from_fn(move || {
        let entry = DirectoryEntry::get(rest)?;
        let name_len = usize::try_from(entry.name_len).ok()?;
        let name = rest.get(DirectoryEntry::LEN..)?.get(..name_len)?;
        let len = (DirectoryEntry::LEN + name_len).next_multiple_of(ALIGNMENT);
        rest = rest.get(len..)?;
        Some((entry, OsStr::from_bytes(name)))
    })
}

const ALIGNMENT: usize = 8;
/// Bytes reserved for a page before it has any.
const MOST_RESERVED: usize = 64 * 1024;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_takes_what_fits_and_no_more() {
        let mut page = DirectoryPage::new(24 + 8 + 24 + 8 - 1);
        let entry = DirectoryEntry { ino: 5, offset: 1, name_len: 0, file_type: 4 };
        assert!(page.push(entry, OsStr::new("eight by")));
        assert!(!page.push(entry, OsStr::new("n")));
        assert_eq!(page.as_bytes().len(), 32);
        let read: Vec<_> = entries(page.as_bytes()).collect();
        assert_eq!(read, [(DirectoryEntry { name_len: 8, ..entry }, OsStr::new("eight by"))]);
    }

    #[test]
    fn a_page_of_plus_has_the_entry_in_front() {
        let mut page = DirectoryPage::new(4096);
        let found = EntryReply { node: 9, ..EntryReply::default() };
        assert!(page.push_plus(&found, DirectoryEntry::default(), OsStr::new("n")));
        assert_eq!(page.as_bytes().len(), 128 + 32);
        assert_eq!(EntryReply::get(page.as_bytes()), Some(found));
    }

    #[test]
    fn types_are_those_of_readdir() {
        assert_eq!([0o100_644, 0o040_755, 0o120_777].map(file_type), [8, 4, 10]);
    }
}
