//! When chunks were last used.
//!
//! Kept in memory, for so many chunks; what is not known was used before all that is. A restart
//! forgets all of it.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Instant,
};

use millrace_types::ChunkKey;

/// When each chunk was last used. Cheap to ask and to note.
#[derive(Debug)]
pub(super) struct Recency {
    began: Instant,
    shards: Box<[Mutex<HashMap<ChunkKey, Used>>]>,
}

/// When something was used: whole seconds since the daemon began, and one more.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(super) struct Used(u32);

/// Enough for threads not to meet often.
const SHARDS: usize = 16;

/// Chunks of a shard: a million in all, in some 60 MB.
const SHARD_CHUNKS_MAX: usize = 65_536;

impl Used {
    /// Before all that is known.
    pub(super) const UNKNOWN: Self = Self(0);
}

impl Recency {
    pub(super) fn new(began: Instant) -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { began, shards }
    }

    /// A chunk is used now.
    pub(super) fn note(&self, chunk: ChunkKey, now: Instant) {
        let seconds = now.saturating_duration_since(self.began).as_secs();
        let used = Used(u32::try_from(seconds).unwrap_or(u32::MAX).saturating_add(1));
        let mut shard = self.shard(chunk);
        if shard.len() >= SHARD_CHUNKS_MAX && !shard.contains_key(&chunk) {
            forget_half(&mut shard);
        }
        shard.insert(chunk, used);
    }

    /// When it was used last.
    pub(super) fn of(&self, chunk: ChunkKey) -> Used {
        self.shard(chunk).get(&chunk).copied().unwrap_or(Used::UNKNOWN)
    }

    /// It is not there any more.
    pub(super) fn forget(&self, chunk: ChunkKey) {
        self.shard(chunk).remove(&chunk);
    }

    fn shard(&self, chunk: ChunkKey) -> MutexGuard<'_, HashMap<ChunkKey, Used>> {
        let mut hasher = DefaultHasher::new();
        chunk.hash(&mut hasher);
        let shard = usize::try_from(hasher.finish() % SHARDS as u64).expect("a few");
        // Each step leaves it whole.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Forgets the older half.
fn forget_half(shard: &mut HashMap<ChunkKey, Used>) {
    let mut all: Vec<_> = shard.values().copied().collect();
    let middle = all.len() / 2;
    let (_, &mut median, _) = all.select_nth_unstable(middle);
    let mut surplus = middle;
    shard.retain(|_, used| {
        let goes = *used <= median && surplus > 0;
        surplus -= usize::from(goes);
        !goes
    });
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use millrace_types::{ChunkIndex, ContentGeneration, CopyIndex, InodeId};

    use super::*;

    fn chunk(inode: u64) -> ChunkKey {
        ChunkKey {
            inode: InodeId(inode),
            generation: ContentGeneration(1),
            index: ChunkIndex(0),
            copy: CopyIndex(0),
        }
    }

    #[test]
    fn what_was_used_later_is_younger_and_what_is_unknown_the_oldest() {
        let began = Instant::now();
        let recency = Recency::new(began);
        recency.note(chunk(1), began);
        recency.note(chunk(2), began + Duration::from_secs(2));
        assert!(recency.of(chunk(1)) < recency.of(chunk(2)));
        assert!(recency.of(chunk(3)) < recency.of(chunk(1)));
        recency.note(chunk(1), began + Duration::from_secs(3));
        assert!(recency.of(chunk(2)) < recency.of(chunk(1)));
        recency.forget(chunk(1));
        assert_eq!(recency.of(chunk(1)), Used::UNKNOWN);
    }

    #[test]
    fn the_older_half_is_forgotten_when_there_are_too_many() {
        let began = Instant::now();
        let recency = Recency::new(began);
        let all = 2 * (SHARDS * SHARD_CHUNKS_MAX) as u64;
        for number in 0..all {
            recency.note(chunk(number), began + Duration::from_secs(number / 1000));
        }
        let kept: usize = recency.shards.iter().map(|shard| shard.lock().unwrap().len()).sum();
        assert!((SHARDS * SHARD_CHUNKS_MAX / 2..=SHARDS * SHARD_CHUNKS_MAX).contains(&kept));
        assert_eq!(recency.of(chunk(0)), Used::UNKNOWN);
        assert!((all - 1000..all).all(|number| recency.of(chunk(number)) > Used::UNKNOWN));
    }

    #[test]
    fn a_moment_of_many_is_not_forgotten_as_a_whole() {
        let began = Instant::now();
        let recency = Recency::new(began);
        for number in 0..2 * (SHARDS * SHARD_CHUNKS_MAX) as u64 {
            recency.note(chunk(number), began);
        }
        let kept: usize = recency.shards.iter().map(|shard| shard.lock().unwrap().len()).sum();
        assert!(kept >= SHARDS * SHARD_CHUNKS_MAX / 2, "{kept}");
    }
}
