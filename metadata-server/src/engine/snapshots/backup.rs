//! A backup while it is made, and when it can be read.

use std::sync::{
    Arc, OnceLock,
    atomic::{AtomicU64, Ordering},
};

use millrace_types::{Crc32c, Failure, LogIndex};

use crate::files::OpenFile;

/// A backup that somebody has asked for.
#[derive(Debug, Default)]
pub struct Backup {
    written: AtomicU64,
    outcome: OnceLock<Result<Prepared, Failure>>,
}

/// A backup that can be read.
#[derive(Debug)]
pub struct Prepared {
    /// Its bytes. They are gone when this is dropped.
    pub file: Arc<dyn OpenFile>,
    /// The last command that it shows.
    pub index: LogIndex,
    /// How many bytes.
    pub len: u64,
    /// The checksum of all of them.
    pub checksum: Crc32c,
}

impl Backup {
    /// What has become of it, once that is known.
    #[must_use]
    pub fn outcome(&self) -> Option<&Result<Prepared, Failure>> {
        self.outcome.get()
    }

    /// Bytes that are written.
    #[must_use]
    pub fn written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    pub(super) fn note(&self, written: u64) {
        self.written.store(written, Ordering::Relaxed);
    }

    pub(crate) fn end(&self, outcome: Result<Prepared, Failure>) {
        // It ends once.
        drop(self.outcome.set(outcome));
    }
}
