//! A store with what is asked for all the time in front of it.
//!
//! A read in a merge tree looks into each of its tables, and a scan opens each of them, however
//! little it finds. But a change looks at the same few records as the one before it (its session,
//! the directory, the file that was just made), and most looks are for who has a file open, of
//! which there is nobody.
//!
//! - *Records that were read lately* are in a cache, with those that are not there. What is only
//!   written stays out of it: the store has that in memory for a while, and whoever brings a
//!   million names in would push out what everybody reads.
//! - *Who has what open* ([`keys::opens`]) is here as a whole, as long as it has a bound.
//! - *Where the reclaim queue of each target begins*, so that no scan goes over what was freed.
//!
//! What is here follows each batch that the store has taken, and is forgotten with one that it may
//! have taken or not. So it never shows anything else than the store does.

use std::{collections::BTreeMap, fmt, ops::Bound};

use bytes::Bytes;
use quick_cache::{Weighter, sync::Cache};

use self::queues::{Queues, queue_of};
use super::{Batch, MetaStore, Pair, StoreError, View, borrow, keys, memory, prefix_end};

mod queues;

/// The store behind it, and what is near.
pub struct Near<S> {
    store: S,
    recent: Cache<Vec<u8>, Option<Bytes>, Weight>,
    /// Records of the table of opens; nothing where there are too many.
    opens: Option<BTreeMap<Vec<u8>, Bytes>>,
    /// How many of them are kept.
    opens_max: usize,
    queues: Queues,
}

#[derive(Clone)]
struct Weight;

impl<S: MetaStore> Near<S> {
    /// In front of `store`, with about so many bytes for what was read lately.
    ///
    /// # Errors
    /// When the store cannot be read.
    pub fn new(store: S, recent_bytes: u64) -> Result<Self, StoreError> {
        Self::with_opens(store, recent_bytes, OPENS_MAX)
    }

    fn with_opens(store: S, recent_bytes: u64, opens_max: usize) -> Result<Self, StoreError> {
        let entries = usize::try_from(recent_bytes / ENTRY_BYTES).unwrap_or(usize::MAX).max(1);
        let end = prefix_end(&OPENS);
        let found = store.scan(Bound::Included(&OPENS), borrow(&end), opens_max + 1)?;
        let opens = (found.len() <= opens_max)
            .then(|| found.into_iter().map(|(key, value)| (key, value.into())).collect());
        let recent = Cache::with_weighter(entries, recent_bytes, Weight);
        Ok(Self { store, recent, opens, opens_max, queues: Queues::default() })
    }

    /// The store has taken this.
    fn follow(&mut self, batch: &Batch) {
        self.queues.follow(batch);
        for (key, value) in batch.iter() {
            if let Some(opens) = self.opens.as_mut().filter(|_| key.starts_with(&OPENS)) {
                match value {
                    Some(value) => drop(opens.insert(key.to_vec(), Bytes::copy_from_slice(value))),
                    None => drop(opens.remove(key)),
                }
            } else if value.is_some_and(|value| value.len() > VALUE_MAX) {
                self.recent.remove(key);
            } else if self.recent.contains_key(key) {
                self.recent.insert(key.to_vec(), value.map(Bytes::copy_from_slice));
            }
        }
        if self.opens.as_ref().is_some_and(|opens| opens.len() > self.opens_max) {
            self.opens = None;
        }
    }

    /// Scans a queue from its beginning.
    fn scan_queue(
        &self,
        queue: &[u8],
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let head = self.queues.head(queue);
        let from = Bound::Included(head.as_slice());
        if limit == 0 || memory::is_empty_range(from, to) {
            return Ok(Vec::new());
        }
        let found = self.store.scan(from, to, limit)?;
        self.queues.handle_found(queue, found.first().map(|(key, _)| key.as_slice()), to);
        Ok(found)
    }
}

impl<S: MetaStore> View for Near<S> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        if let Some(opens) = self.opens.as_ref().filter(|_| key.starts_with(&OPENS)) {
            return Ok(opens.get(key).map(|value| value.to_vec()));
        }
        if let Some(known) = self.recent.get(key) {
            return Ok(known.map(|value| value.to_vec()));
        }
        let value = self.store.get(key)?;
        if value.as_ref().is_none_or(|value| value.len() <= VALUE_MAX) {
            self.recent.insert(key.to_vec(), value.as_deref().map(Bytes::copy_from_slice));
        }
        Ok(value)
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        if let Some(queue) = queue_of(from) {
            return self.scan_queue(queue, to, limit);
        }
        let Some(opens) = self.opens.as_ref().filter(|_| is_of_opens(from, to)) else {
            return self.store.scan(from, to, limit);
        };
        if memory::is_empty_range(from, to) {
            return Ok(Vec::new());
        }
        let found = opens.range::<[u8], _>((from, to)).take(limit);
        Ok(found.map(|(key, value)| (key.clone(), value.to_vec())).collect())
    }
}

impl<S: MetaStore> MetaStore for Near<S> {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        match self.store.commit(batch) {
            Ok(()) => {
                self.follow(batch);
                Ok(())
            }
            Err(error) => {
                // Whether it was taken is unknown.
                self.recent.clear();
                self.opens = None;
                self.queues.clear();
                Err(error)
            }
        }
    }

    fn poll_failure(&mut self) -> Result<(), StoreError> {
        self.store.poll_failure()
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.store.checkpoint()
    }
}

impl<S: fmt::Debug> fmt::Debug for Near<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let opens = self.opens.as_ref().map(BTreeMap::len);
        f.debug_struct("Near").field("store", &self.store).field("opens", &opens).finish()
    }
}

impl Weighter<Vec<u8>, Option<Bytes>> for Weight {
    fn weight(&self, key: &Vec<u8>, value: &Option<Bytes>) -> u64 {
        ENTRY_BYTES + (key.len() + value.as_ref().map_or(0, Bytes::len)) as u64
    }
}

/// Whether nothing but opens lies within the bounds.
fn is_of_opens(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    let begins = match from {
        Bound::Included(key) | Bound::Excluded(key) => key.starts_with(&OPENS),
        Bound::Unbounded => false,
    };
    let ends = match to {
        Bound::Included(key) => key.starts_with(&OPENS),
        Bound::Excluded(key) => {
            key.starts_with(&OPENS) || prefix_end(&OPENS) == Bound::Excluded(key.to_vec())
        }
        Bound::Unbounded => false,
    };
    begins && ends
}

/// The table of opens.
const OPENS: [u8; 1] = [keys::OPENS];

/// A record of which is some 150 bytes here: 40 MB. With more, they are looked for in the store
/// until it is opened again.
const OPENS_MAX: usize = 1 << 18;

/// Larger values are not kept: the bytes of small files have a cache of their own in the store.
const VALUE_MAX: usize = 1024;

/// What an entry costs beside its own bytes: two allocations, the map and the queue of the cache.
const ENTRY_BYTES: u64 = 144;

#[cfg(test)]
mod tests {
    use millrace_types::{InodeId, SessionId, TargetId};
    use proptest::prelude::*;

    use super::*;
    use crate::store::{conformance, memory::MemoryStore};

    /// Fails with the next commit, which it takes or not.
    #[derive(Debug, Default)]
    struct Failing {
        store: MemoryStore,
        fails: Option<bool>,
    }

    impl View for Failing {
        fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
            self.store.get(key)
        }

        fn scan(
            &self,
            from: Bound<&[u8]>,
            to: Bound<&[u8]>,
            limit: usize,
        ) -> Result<Vec<Pair>, StoreError> {
            self.store.scan(from, to, limit)
        }
    }

    impl MetaStore for Failing {
        fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
            if self.fails != Some(false) {
                self.store.commit(batch)?;
            }
            match self.fails.take() {
                Some(_) => Err(StoreError::Inconsistent("as it was told to".to_owned())),
                None => Ok(()),
            }
        }

        fn checkpoint(&mut self) -> Result<(), StoreError> {
            self.store.checkpoint()
        }
    }

    #[test]
    fn it_does_what_every_store_does() {
        for bytes in [0, 1 << 20] {
            conformance::check(|| Box::new(Near::new(MemoryStore::default(), bytes).unwrap()));
        }
    }

    fn key() -> impl Strategy<Value = Vec<u8>> {
        let (inode, session) = ((0_u64..4).prop_map(InodeId), (0_u64..3).prop_map(SessionId));
        prop_oneof![
            (inode.clone(), session).prop_map(|(inode, session)| keys::open(inode, session)),
            inode.prop_map(keys::inode),
            place().prop_map(|(target, at)| keys::reclaim(target, at)),
            Just(vec![keys::OPENS + 1]),
            Just(vec![keys::OPENS - 1, 7]),
        ]
    }

    fn place() -> impl Strategy<Value = (TargetId, u64)> {
        ((0_u8..2).prop_map(|target| TargetId([target; 8])), 0_u64..6)
    }

    #[derive(Clone, Debug)]
    enum Step {
        Commit(Vec<(Vec<u8>, Option<usize>)>, Option<bool>),
        Get(Vec<u8>),
        Scan(Vec<u8>, Vec<u8>, usize),
        OpensOf(InodeId),
        Queue((TargetId, u64), usize),
    }

    fn step() -> impl Strategy<Value = Step> {
        let value = prop_oneof![Just(None), (0_usize..20).prop_map(Some), Just(Some(2000))];
        let fails = prop_oneof![9 => Just(None), 1 => any::<bool>().prop_map(Some)];
        prop_oneof![
            4 => (prop::collection::vec((key(), value), 1..4), fails)
                .prop_map(|(changes, fails)| Step::Commit(changes, fails)),
            4 => key().prop_map(Step::Get),
            1 => (key(), key(), 0_usize..9).prop_map(|(a, b, n)| Step::Scan(a, b, n)),
            2 => (0_u64..4).prop_map(|inode| Step::OpensOf(InodeId(inode))),
            4 => (place(), 0_usize..4).prop_map(|(place, limit)| Step::Queue(place, limit)),
        ]
    }

    proptest! {
        #[test]
        fn it_shows_what_the_store_has(steps in prop::collection::vec(step(), 1..60)) {
            for opens_max in [3, 100] {
                let mut near = Near::with_opens(Failing::default(), 2000, opens_max).unwrap();
                for step in steps.clone() {
                    match step {
                        Step::Commit(changes, fails) => {
                            let mut batch = Batch::default();
                            for (key, value) in changes {
                                match value {
                                    Some(length) => batch.put(key, vec![7; length]),
                                    None => batch.delete(key),
                                }
                            }
                            near.store.fails = fails;
                            prop_assert_eq!(near.commit(&batch).is_err(), fails.is_some());
                        }
                        Step::Get(key) => {
                            prop_assert_eq!(near.get(&key).unwrap(), near.store.get(&key).unwrap());
                        }
                        Step::Scan(from, to, limit) => {
                            for to in [Bound::Included(&*to), Bound::Excluded(&*to)] {
                                let from = Bound::Included(&*from);
                                let stored = near.store.scan(from, to, limit).unwrap();
                                prop_assert_eq!(near.scan(from, to, limit).unwrap(), stored);
                            }
                        }
                        Step::Queue((target, through), limit) => {
                            let queue = keys::reclaims_of(target);
                            let (end, last) = (prefix_end(&queue), keys::reclaim(target, through));
                            let from = Bound::Included(&*queue);
                            for to in [borrow(&end), Bound::Included(&*last), borrow(&end)] {
                                let stored = near.store.scan(from, to, limit).unwrap();
                                prop_assert_eq!(near.scan(from, to, limit).unwrap(), stored);
                            }
                        }
                        Step::OpensOf(inode) => {
                            let (from, all) = (keys::opens(inode), usize::MAX);
                            let (end, from) = (prefix_end(&from), Bound::Included(&*from));
                            let stored = near.store.scan(from, borrow(&end), all).unwrap();
                            prop_assert_eq!(near.scan(from, borrow(&end), all).unwrap(), stored);
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn what_is_open_is_found_without_the_store_also_after_it_was_opened_again() {
        let mut store = MemoryStore::default();
        let mut batch = Batch::default();
        batch.put(keys::open(InodeId(5), SessionId(1)), b"one".to_vec());
        batch.put(keys::inode(InodeId(5)), b"inode".to_vec());
        store.commit(&batch).unwrap();
        let near = Near::new(store, 1 << 20).unwrap();
        assert_eq!(near.opens.as_ref().map(BTreeMap::len), Some(1));
        assert!(is_of_opens(
            Bound::Included(&keys::opens(InodeId(5))),
            borrow(&prefix_end(&keys::opens(InodeId(u64::MAX))))
        ));
        assert_eq!(near.get(&keys::inode(InodeId(5))).unwrap().unwrap(), b"inode");
        assert_eq!(near.recent.len(), 1);
    }

    #[test]
    fn a_queue_is_looked_through_from_where_it_begins() {
        let mut near = Near::new(MemoryStore::default(), 1 << 20).unwrap();
        let target = TargetId([7; 8]);
        let queue = keys::reclaims_of(target);
        let end = prefix_end(&queue);
        let first = |near: &Near<MemoryStore>| {
            let found = near.scan(Bound::Included(&queue), borrow(&end), 1).unwrap();
            found.into_iter().next().map(|(key, _)| key)
        };
        let change = |near: &mut Near<MemoryStore>, at, value: Option<&[u8]>| {
            let mut batch = Batch::default();
            match value {
                Some(value) => batch.put(keys::reclaim(target, at), value.to_vec()),
                None => batch.delete(keys::reclaim(target, at)),
            }
            near.commit(&batch).unwrap();
        };
        for at in [1, 2] {
            change(&mut near, at, Some(b"content"));
        }
        change(&mut near, 1, None);
        assert_eq!(first(&near), Some(keys::reclaim(target, 2)));
        assert_eq!(near.queues.head(&queue), keys::reclaim(target, 2));
        change(&mut near, 2, None);
        assert_eq!(first(&near), None);
        // Nothing is looked through until something comes.
        assert_eq!(Bound::Excluded(near.queues.head(&queue)), end);
        change(&mut near, 3, Some(b"content"));
        assert_eq!(first(&near), Some(keys::reclaim(target, 3)));
    }

    #[test]
    fn what_is_only_written_pushes_nothing_out_and_what_was_read_is_followed() {
        let mut near = Near::new(MemoryStore::default(), 1 << 20).unwrap();
        assert_eq!(near.get(&keys::inode(InodeId(0))).unwrap(), None);
        let mut batch = Batch::default();
        for inode in 0..100 {
            batch.put(keys::inode(InodeId(inode)), b"inode".to_vec());
        }
        near.commit(&batch).unwrap();
        assert_eq!(near.recent.len(), 1);
        assert_eq!(near.get(&keys::inode(InodeId(0))).unwrap().unwrap(), b"inode");
    }
}
