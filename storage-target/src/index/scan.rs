//! Entries in the order of their keys, a page of them at a time.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;

use super::{
    Index, IndexError, Key, State,
    delta::Change,
    merge::{Entry, entries_of},
};
use crate::format::root::RootRecord;

/// A page of entries.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Scan {
    /// Keys and values, keys ascending.
    pub entries: Vec<(Key, Bytes)>,
    /// Where the next page begins; `None` when there is no more.
    pub next: Option<Key>,
}

impl Index {
    /// The entries from `from` on, below `until`, all as of one moment: at most `limit`, and maybe
    /// fewer although there are more. May be dropped at its await.
    ///
    /// # Errors
    /// [`IndexError::Damaged`], [`IndexError::Disk`].
    ///
    /// # Panics
    /// When `limit` is 0.
    pub async fn scan(
        &self,
        from: Key,
        until: Option<Key>,
        limit: usize,
    ) -> Result<Scan, IndexError> {
        assert!(limit > 0, "a page has entries");
        let (tree, mut overlay, known_until) = self.state().overlay(from, until, limit);
        // Past the changes that were looked at nothing can be said.
        let end = known_until.or(until);
        let below_end = |key: &Key| end.is_none_or(|end| *key < end);
        let mut scan = Scan::default();
        let mut at = from;
        loop {
            let found = self.store.leaf(&tree, at.as_slice()).await?;
            let (leaf, next_leaf) = match found {
                Some((leaf, next)) => (Some(leaf), next.and_then(|key| Key::new(&key))),
                None => (None, None),
            };
            let stored = leaf.iter().flat_map(entries_of);
            for Entry { key, value } in stored.filter(|entry| entry.key >= at) {
                if !below_end(&key) {
                    break;
                }
                take_below(&mut overlay, Some(key), &mut scan.entries);
                match overlay.remove(&key) {
                    Some(change) => scan.entries.extend(change.map(|value| (key, value))),
                    None => scan.entries.push((key, value)),
                }
            }
            let next_leaf = next_leaf.filter(below_end);
            take_below(&mut overlay, next_leaf, &mut scan.entries);
            if scan.entries.len() > limit {
                scan.next = Some(scan.entries[limit].0);
                scan.entries.truncate(limit);
                return Ok(scan);
            }
            let Some(next_leaf) = next_leaf else {
                scan.next = known_until;
                return Ok(scan);
            };
            at = next_leaf;
        }
    }
}

impl State {
    /// The tree, and the changes over it from `from` on: at most `limit` of them, and if there are
    /// more, the key at which they were cut off.
    pub(super) fn overlay(
        &self,
        from: Key,
        until: Option<Key>,
        limit: usize,
    ) -> (Arc<RootRecord>, BTreeMap<Key, Change>, Option<Key>) {
        let mut changes: BTreeMap<Key, Change> = BTreeMap::new();
        let frozen = self.frozen.iter().map(|frozen| &*frozen.delta);
        let mut known_until: Option<Key> = None;
        for delta in frozen.chain([&self.delta]) {
            let mut range = delta.range(from, until);
            for (key, change) in range.by_ref().take(limit) {
                changes.insert(*key, change.clone());
            }
            known_until = match (known_until, range.next()) {
                (Some(known), Some((key, _))) => Some(known.min(*key)),
                (known, next) => known.or_else(|| next.map(|(key, _)| *key)),
            };
        }
        if let Some(known_until) = known_until {
            changes.split_off(&known_until);
        }
        (Arc::clone(&self.root), changes, known_until)
    }
}

/// Moves the changes below `end` to the entries.
pub(super) fn take_below(
    overlay: &mut BTreeMap<Key, Change>,
    end: Option<Key>,
    entries: &mut Vec<(Key, Bytes)>,
) {
    let rest = end.map_or_else(BTreeMap::new, |end| overlay.split_off(&end));
    for (key, change) in std::mem::replace(overlay, rest) {
        entries.extend(change.map(|value| (key, value)));
    }
}
