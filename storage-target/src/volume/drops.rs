//! Which chunks have given up clean bytes since a fetch for them began.
//!
//! A chunk whose clean bytes were dropped may stand against another version of its object by now:
//! bytes that were asked for before must not be stored as that one's. A bounded number of counters
//! serves all chunks, so that rarely a fetch for another chunk is not stored either; it is then
//! fetched once more.

use std::{
    hash::{BuildHasher, BuildHasherDefault, DefaultHasher},
    sync::atomic::{AtomicU64, Ordering},
};

use millrace_types::ChunkKey;

/// Counters of one target: 32 KiB. While a thousand chunks a second are dropped, a fetch of 100 ms
/// meets the counter of another with one chance in 40.
const COUNTERS: usize = 4096;

/// How often each chunk has dropped something, or one that shares its counter.
#[derive(Debug)]
pub(super) struct Drops {
    counters: Box<[AtomicU64]>,
}

/// What a chunk's counter showed at some moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct DropMark(u64);

impl Default for Drops {
    fn default() -> Self {
        Self { counters: (0..COUNTERS).map(|_| AtomicU64::new(0)).collect() }
    }
}

impl Drops {
    /// To be taken before a fetch asks the bucket for anything.
    pub(super) fn mark(&self, chunk: &ChunkKey) -> DropMark {
        DropMark(self.counter(chunk).load(Ordering::Acquire))
    }

    /// To be called before clean bytes of a chunk go, at the latest with the locks of their
    /// sections: with these held it is also looked at.
    pub(super) fn note(&self, chunk: &ChunkKey) {
        self.counter(chunk).fetch_add(1, Ordering::AcqRel);
    }

    fn counter(&self, chunk: &ChunkKey) -> &AtomicU64 {
        let hash = BuildHasherDefault::<DefaultHasher>::new().hash_one(chunk);
        let at = usize::try_from(hash % COUNTERS as u64).unwrap_or_default();
        &self.counters[at]
    }
}
