//! One writer for each block at a time.
//!
//! A write holds its blocks from reading what it keeps of them until the index points to the new
//! version; trims and releases hold whole chunks. Readers and fills hold nothing: they work on a
//! version of the record, and a fill is decided at the moment of installing.

use std::{
    collections::HashMap,
    ops::RangeInclusive,
    sync::{Arc, Mutex, PoisonError},
};

use millrace_types::ChunkKey;
use tokio::sync::Notify;

/// Who holds which blocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct BlockLocks {
    held: Arc<Mutex<HashMap<ChunkKey, Vec<Held>>>>,
}

#[derive(Debug)]
struct Held {
    blocks: RangeInclusive<u16>,
    released: Arc<Notify>,
}

impl BlockLocks {
    /// Waits until no other holder has any of `blocks`. May be dropped at its await.
    pub(crate) async fn lock(&self, key: ChunkKey, blocks: RangeInclusive<u16>) -> BlockGuard {
        loop {
            let conflict = {
                let mut held = self.held.lock().unwrap_or_else(PoisonError::into_inner);
                let holders = held.entry(key).or_default();
                let conflict = holders.iter().find(|holder| overlap(&holder.blocks, &blocks));
                let Some(conflict) = conflict else {
                    let released = Arc::new(Notify::new());
                    holders.push(Held { blocks: blocks.clone(), released: Arc::clone(&released) });
                    return BlockGuard { locks: self.clone(), key, released };
                };
                // Registered under the lock, so that the release cannot be missed.
                Arc::clone(&conflict.released).notified_owned()
            };
            conflict.await;
        }
    }
}

fn overlap(left: &RangeInclusive<u16>, right: &RangeInclusive<u16>) -> bool {
    left.start() <= right.end() && right.start() <= left.end()
}

/// Holds blocks until dropped.
#[derive(Debug)]
pub(crate) struct BlockGuard {
    locks: BlockLocks,
    key: ChunkKey,
    released: Arc<Notify>,
}

impl Drop for BlockGuard {
    fn drop(&mut self) {
        let mut held = self.locks.held.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(holders) = held.get_mut(&self.key) {
            holders.retain(|holder| !Arc::ptr_eq(&holder.released, &self.released));
            if holders.is_empty() {
                held.remove(&self.key);
            }
        }
        drop(held);
        self.released.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use millrace_types::{ChunkIndex, ContentGeneration, CopyIndex, InodeId};

    use super::*;

    #[tokio::test]
    async fn overlapping_blocks_wait_and_others_do_not() {
        let key = ChunkKey {
            inode: InodeId(1),
            generation: ContentGeneration(0),
            index: ChunkIndex(0),
            copy: CopyIndex(0),
        };
        let locks = BlockLocks::default();
        let first = locks.lock(key, 0..=3).await;
        let _beside = locks.lock(key, 4..=5).now_or_never().expect("disjoint");
        let mut overlapping = Box::pin(locks.lock(key, 3..=4));
        assert!(futures::poll!(&mut overlapping).is_pending());
        drop(first);
        assert!(futures::poll!(&mut overlapping).is_pending(), "block 4 is still held");
        drop(_beside);
        drop(overlapping.await);
        assert!(locks.held.lock().unwrap().is_empty(), "nothing is left behind");
    }
}
