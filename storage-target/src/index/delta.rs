//! Changes that no checkpoint contains yet, in memory.

use std::{
    collections::{BTreeMap, btree_map},
    ops::Bound,
};

use bytes::Bytes;

use super::Key;

/// A new value, or `None` for a key that is gone.
pub(super) type Change = Option<Bytes>;

/// What an entry costs beside the bytes of its value: key and handle in a map that is half full,
/// the count of the value's handles, and what the allocator adds.
const ENTRY_BYTES: usize = 192;

/// Changes in the order of their keys.
#[derive(Clone, Debug, Default)]
pub(super) struct Delta {
    changes: BTreeMap<Key, Change>,
    bytes: usize,
}

impl Delta {
    pub(super) fn get(&self, key: &Key) -> Option<&Change> {
        self.changes.get(key)
    }

    pub(super) fn insert(&mut self, key: Key, change: Change) {
        self.bytes += ENTRY_BYTES + len(&change);
        if let Some(old) = self.changes.insert(key, change) {
            self.bytes -= ENTRY_BYTES + len(&old);
        }
    }

    pub(super) fn iter(&self) -> btree_map::Iter<'_, Key, Change> {
        self.changes.iter()
    }

    /// The changes from `from` on, below `until`.
    pub(super) fn range(&self, from: Key, until: Option<Key>) -> btree_map::Range<'_, Key, Change> {
        let end = until.map_or(Bound::Unbounded, |until| Bound::Excluded(until.max(from)));
        self.changes.range((Bound::Included(from), end))
    }

    /// Puts `newer` changes over these.
    pub(super) fn overlay(&mut self, newer: Self) {
        for (key, change) in newer.changes {
            self.insert(key, change);
        }
    }

    /// Memory, about.
    pub(super) fn bytes(&self) -> usize {
        self.bytes
    }
}

fn len(change: &Change) -> usize {
    change.as_ref().map_or(0, Bytes::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_memory_is_counted_through_replacements_and_overlays() {
        let key = |byte: u8| Key::new(&[byte]).unwrap();
        let mut delta = Delta::default();
        delta.insert(key(1), Some(Bytes::from_static(b"12345")));
        delta.insert(key(1), Some(Bytes::from_static(b"12")));
        delta.insert(key(2), None);
        assert_eq!(delta.bytes(), 2 * ENTRY_BYTES + 2);
        let mut newer = Delta::default();
        newer.insert(key(2), Some(Bytes::from_static(b"1")));
        delta.overlay(newer);
        assert_eq!(delta.bytes(), 2 * ENTRY_BYTES + 3);
        assert_eq!(delta.get(&key(2)), Some(&Some(Bytes::from_static(b"1"))));
        assert_eq!(delta.range(key(2), Some(key(1))).count(), 0, "an empty range is no panic");
    }
}
