//! One writer for each block at a time, in the order in which they come.
//!
//! A write holds its blocks from reading what it keeps of them until the index points to the new
//! version; trims and releases hold whole chunks. Readers and fills hold nothing: they work on a
//! version of the record, and a fill is decided at the moment of installing.
//!
//! Who comes later waits also for those who wait themselves, so that whole chunks have their turn
//! under writers that keep coming. Nobody may therefore ask for blocks while holding some.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_types::ChunkKey;
use tokio::sync::{Notify, futures::OwnedNotified};

/// Who holds which blocks, and who waits for them.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockLocks {
    /// Those of each chunk, in the order in which they came.
    lines: Arc<Mutex<HashMap<ChunkKey, Vec<Place>>>>,
}

/// Somebody who holds blocks, or waits for them.
#[derive(Debug)]
struct Place {
    blocks: RangeInclusive<u16>,
    /// Told when it is given up.
    gone: Arc<Notify>,
}

impl BlockLocks {
    /// Waits until nobody is left who came before and wants any of `blocks`. May be dropped at its
    /// await.
    pub(crate) async fn lock(&self, key: ChunkKey, blocks: RangeInclusive<u16>) -> BlockGuard {
        let gone = Arc::new(Notify::new());
        let mut before = {
            let mut lines = self.lines();
            let line = lines.entry(key).or_default();
            line.push(Place { blocks, gone: Arc::clone(&gone) });
            last_before(line, &gone)
        };
        let guard = BlockGuard { locks: self.clone(), key, gone };
        while let Some(gone) = before {
            gone.await;
            before = self.lines().get(&key).and_then(|line| last_before(line, &guard.gone));
        }
        guard
    }

    /// A panic elsewhere leaves them whole: every change of them is one step.
    fn lines(&self) -> MutexGuard<'_, HashMap<ChunkKey, Vec<Place>>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The going of the last one before a place who wants some of the same blocks. The caller has the
/// lines locked, so that it cannot be missed.
fn last_before(line: &[Place], gone: &Arc<Notify>) -> Option<OwnedNotified> {
    let own = line.iter().position(|place| Arc::ptr_eq(&place.gone, gone))?;
    let blocks = &line[own].blocks;
    let before = line[..own].iter().rev().find(|place| overlap(&place.blocks, blocks))?;
    Some(Arc::clone(&before.gone).notified_owned())
}

fn overlap(left: &RangeInclusive<u16>, right: &RangeInclusive<u16>) -> bool {
    left.start() <= right.end() && right.start() <= left.end()
}

/// A place in a line: it holds its blocks, once it is handed out, until it is dropped.
#[derive(Debug)]
pub(crate) struct BlockGuard {
    locks: BlockLocks,
    key: ChunkKey,
    gone: Arc<Notify>,
}

impl Drop for BlockGuard {
    fn drop(&mut self) {
        let mut lines = self.locks.lines();
        if let Some(line) = lines.get_mut(&self.key) {
            line.retain(|place| !Arc::ptr_eq(&place.gone, &self.gone));
            if line.is_empty() {
                lines.remove(&self.key);
            }
        }
        drop(lines);
        self.gone.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use millrace_types::{ChunkIndex, ContentGeneration, CopyIndex, InodeId};

    use super::*;

    const KEY: ChunkKey = ChunkKey {
        inode: InodeId(1),
        generation: ContentGeneration(0),
        index: ChunkIndex(0),
        copy: CopyIndex(0),
    };

    #[tokio::test]
    async fn overlapping_blocks_wait_and_others_do_not() {
        let locks = BlockLocks::default();
        let first = locks.lock(KEY, 0..=3).await;
        let _beside = locks.lock(KEY, 4..=5).now_or_never().expect("disjoint");
        let mut overlapping = Box::pin(locks.lock(KEY, 3..=4));
        assert!(futures::poll!(&mut overlapping).is_pending());
        drop(first);
        assert!(futures::poll!(&mut overlapping).is_pending(), "block 4 is still held");
        drop(_beside);
        drop(overlapping.await);
        assert!(locks.lines().is_empty(), "nothing is left behind");
    }

    #[tokio::test]
    async fn a_whole_chunk_has_its_turn_under_writers_that_keep_coming() {
        let locks = BlockLocks::default();
        let mut writer = locks.lock(KEY, 0..=1).await;
        let mut whole = Box::pin(locks.lock(KEY, 0..=1023));
        assert!(futures::poll!(&mut whole).is_pending());
        for block in 1..10 {
            // The next one comes before the last one has gone.
            let mut next = Box::pin(locks.lock(KEY, block..=block + 1));
            assert!(futures::poll!(&mut next).is_pending(), "it came later");
            drop(writer);
            drop(whole.await);
            writer = next.now_or_never().expect("it is the first now");
            whole = Box::pin(locks.lock(KEY, 0..=1023));
            assert!(futures::poll!(&mut whole).is_pending());
        }
        let mut later = Box::pin(locks.lock(KEY, 500..=500));
        assert!(futures::poll!(&mut later).is_pending());
        // Who does not wait any more is in nobody's way.
        drop(whole);
        drop(later.now_or_never().expect("nobody else wants it"));
        drop(writer);
        assert!(locks.lines().is_empty(), "nothing is left behind");
    }
}
