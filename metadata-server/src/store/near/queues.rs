//! Where the reclaim queue of each target begins.
//!
//! What was freed leaves its mark in a merge tree until the tables that it is in are merged, which
//! on a server that has little to do may be hours later. A scan from the beginning of a queue goes
//! over all of them: each heartbeat, and each answer of a target that has freed something.

use std::{
    collections::BTreeMap,
    ops::Bound,
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_types::TargetId;

use super::super::Batch;

/// For each queue a key before which it has nothing, as far as that is known.
#[derive(Debug, Default)]
pub(super) struct Queues {
    heads: Mutex<BTreeMap<Vec<u8>, Vec<u8>>>,
}

impl Queues {
    /// Where a scan of `queue` from its beginning can begin.
    pub(super) fn head(&self, queue: &[u8]) -> Vec<u8> {
        self.lock().get(queue).map_or_else(|| queue.to_vec(), Clone::clone)
    }

    /// Such a scan up to `to` has found this key first, or none.
    pub(super) fn handle_found(&self, queue: &[u8], first: Option<&[u8]>, to: Bound<&[u8]>) {
        let head = match (first, to) {
            (Some(first), _) => first.to_vec(),
            (None, Bound::Excluded(end)) => end.to_vec(),
            // No key is between these two.
            (None, Bound::Included(last)) => [last, &[0]].concat(),
            (None, Bound::Unbounded) => return,
        };
        let mut heads = self.lock();
        // A shorter scan knows less.
        if heads.get(queue).is_none_or(|known| *known < head) {
            heads.insert(queue.to_vec(), head);
        }
    }

    /// The store has taken this.
    pub(super) fn follow(&self, batch: &Batch) {
        let mut heads = self.lock();
        for (key, _) in batch.iter().filter(|(_, value)| value.is_some()) {
            let queue = key.get(..QUEUE_LEN).filter(|_| is_of_queue(key));
            if let Some(head) = queue.and_then(|queue| heads.get_mut(queue))
                && key < head.as_slice()
            {
                *head = key.to_vec();
            }
        }
    }

    /// Nothing is known any more.
    pub(super) fn clear(&self) {
        self.lock().clear();
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Vec<u8>, Vec<u8>>> {
        // Each step leaves the table whole, so that a panic elsewhere cannot have torn it.
        self.heads.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The queue that a scan goes through from its beginning.
pub(super) fn queue_of(from: Bound<&[u8]>) -> Option<&[u8]> {
    match from {
        Bound::Included(key) if key.len() == QUEUE_LEN && is_of_queue(key) => Some(key),
        _ => None,
    }
}

fn is_of_queue(key: &[u8]) -> bool {
    key.first() == Some(&RECLAIMS)
}

/// Begins every key of these queues ([`keys::reclaim`](crate::store::keys::reclaim)).
const RECLAIMS: u8 = b'Q';

/// Bytes of the beginning that the keys of one target's queue have in common.
const QUEUE_LEN: usize = 1 + size_of::<TargetId>();
