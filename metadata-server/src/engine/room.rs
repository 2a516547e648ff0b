//! Keeps room on the disk of the state directory: changes are refused before the disk is full.
//!
//! The log stands a full disk; the store's engine does not: sled and fjall stop for good when they
//! cannot write what they have taken already. So the last bytes are left to them.

use std::path::PathBuf;

/// Looks at the disk now and then.
#[derive(Debug)]
pub(super) struct Room {
    dir: PathBuf,
    reserve: u64,
    /// Bytes appended to the log since the last look.
    unseen: u64,
    low: bool,
}

impl Room {
    /// Keeps `reserve` bytes free on the disk of `dir`.
    pub(super) fn new(dir: PathBuf, reserve: u64) -> Self {
        Self { dir, reserve, unseen: LOOK_AFTER, low: false }
    }

    /// Whether `bytes` more may go to the log.
    pub(super) fn admits(&mut self, bytes: usize) -> bool {
        self.unseen += bytes as u64;
        if self.low || self.unseen >= LOOK_AFTER {
            self.unseen = 0;
            self.low = !self.is_enough();
        }
        !self.low
    }

    /// Whether the disk has the reserve. One that does not say counts as one that has: the log
    /// finds out.
    pub(super) fn is_enough(&self) -> bool {
        match rustix::fs::statvfs(&self.dir) {
            Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize) >= self.reserve,
            Err(_) => true,
        }
    }
}

/// A look costs a microsecond; between two of them the store writes about three times as much as
/// the log. With what it is behind, a megabyte at most (`store::behind`), that is far below the
/// reserve.
const LOOK_AFTER: u64 = 64 * 1024;
