//! Keeps room on the disk of the state directory: changes are refused before the disk is full.
//!
//! The log stands a full disk; the store's engine does not: each stops for good when it
//! cannot write what it has taken already. So the last bytes are left to it, but for a few that
//! what only ends something may have: those who are dead keep others waiting no longer for that.

use std::{
    fs,
    os::unix::fs::MetadataExt as _,
    path::{Path, PathBuf},
};

/// Looks at the disk now and then.
#[derive(Debug)]
pub(super) struct Room {
    dir: PathBuf,
    reserve: u64,
    /// What must be free for what only ends something.
    reserve_of_ends: u64,
    /// Bytes appended to the log since the last look.
    unseen: u64,
    low: bool,
}

impl Room {
    /// Keeps `reserve` bytes free on the disk of `dir`.
    pub(super) fn new(dir: PathBuf, reserve: u64) -> Self {
        let reserve_of_ends = reserve.saturating_sub(LEFT_FOR_ENDS);
        Self { dir, reserve, reserve_of_ends, unseen: LOOK_AFTER, low: false }
    }

    /// A disk on which there is room for what only ends something, and for nothing else.
    #[cfg(test)]
    pub(super) fn for_ends(dir: PathBuf) -> Self {
        Self { reserve_of_ends: 0, ..Self::new(dir, u64::MAX) }
    }

    /// Whether `bytes` more may go to the log, of a command that only ends something or of another.
    pub(super) fn admits(&mut self, bytes: usize, only_ends: bool) -> bool {
        self.unseen += bytes as u64;
        if self.low || self.unseen >= LOOK_AFTER {
            self.unseen = 0;
            self.low = !self.is_enough();
        }
        !self.low || (only_ends && self.is_enough_for_ends())
    }

    /// Whether the disk has the reserve. One that does not say counts as one that has: the log
    /// finds out.
    pub(super) fn is_enough(&self) -> bool {
        self.has(self.reserve, 0)
    }

    /// Whether the disk has room for what only ends something.
    pub(super) fn is_enough_for_ends(&self) -> bool {
        self.has(self.reserve_of_ends, 0)
    }

    /// The same when `store` will be gone: one that filled the disk itself must not keep it full.
    pub(super) fn is_enough_after(&self, store: &Path) -> bool {
        self.is_enough() || self.has(self.reserve, bytes_below(store))
    }

    /// Bytes that are kept free.
    pub(super) fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Whether so many bytes are free, with `bytes` more than there are now.
    fn has(&self, reserve: u64, bytes: u64) -> bool {
        match rustix::fs::statvfs(&self.dir) {
            Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize) + bytes >= reserve,
            Err(_) => true,
        }
    }
}

/// What is to be left of the disk of `dir`: a sixty-fourth, from `least` to 256 MiB. A merge tree
/// writes tables anew, some hundred MiB at once, and fails as a whole where they do not fit; a
/// small disk has no store that large.
pub(super) fn reserve(dir: &Path, least: u64) -> u64 {
    // It may be made yet.
    let disk = dir.ancestors().find_map(|dir| rustix::fs::statvfs(dir).ok());
    let bytes = disk.map_or(0, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
    least.max((bytes / 64).min(RESERVE_MAX))
}

/// Bytes on the disk of all files below `dir`; what cannot be looked at counts nothing.
fn bytes_below(dir: &Path) -> u64 {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let bytes = |entry: fs::DirEntry| match entry.metadata() {
        Ok(metadata) if metadata.is_dir() => bytes_below(&entry.path()),
        Ok(metadata) => metadata.blocks().saturating_mul(512),
        Err(_) => 0,
    };
    entries.map(bytes).sum()
}

/// What a merge of the two first levels writes as a rule. One that needs more, after a long rush,
/// may fail: the store is then made anew from the log.
const RESERVE_MAX: u64 = 256 << 20;

/// Of the reserve, for what only ends something: thousands of such commands, with what the store
/// makes of them. The other half of the least reserve, and what a merge tree has in memory, stay
/// with the store.
const LEFT_FOR_ENDS: u64 = 8 << 20;

/// A look costs a microsecond; between two of them the store writes about three times as much as
/// the log. With what sled is behind, a megabyte at most (`store::behind`), that is far below the
/// reserve; what a merge tree has in memory is in it.
const LOOK_AFTER: u64 = 64 * 1024;
