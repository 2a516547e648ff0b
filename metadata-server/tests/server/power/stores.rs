//! A store that keeps of its batches what sled may keep: after a kill some prefix, after a loss of
//! power anything at all.

use std::{
    ops::Bound,
    sync::{Arc, Mutex},
};

use millrace_metadata_server::store::{
    Batch, MetaStore, Pair, StoreError, Stores, View, memory::MemoryStore,
};
use millrace_runtime::Random;

use super::disk::Ending;
use crate::chance::percent;

/// What lies on the disk, between runs.
#[derive(Clone, Debug)]
pub(crate) struct LossyStores(Arc<Mutex<Kept>>);

#[derive(Debug)]
struct Kept {
    random: Random,
    batches: Vec<Batch>,
    /// So many are certain.
    certain: usize,
}

impl LossyStores {
    pub(crate) fn new(random: Random) -> Self {
        Self(Arc::new(Mutex::new(Kept { random, batches: Vec::new(), certain: 0 })))
    }

    /// Loses what a store may lose.
    pub(crate) fn end(&self, ending: Ending) {
        let mut kept = self.0.lock().unwrap();
        let random = kept.random.clone();
        let (certain, all) = (kept.certain as u64, kept.batches.len() as u64);
        let prefix = usize::try_from(random.within(certain..all + 1)).unwrap();
        match ending {
            Ending::Kill => kept.batches.truncate(prefix),
            // Batches in between are gone too: nothing may be read from it.
            Ending::Power => {
                let mut at = 0..;
                kept.batches.retain(|_| at.next() < Some(certain) || percent(&random, 70));
            }
        }
        kept.certain = kept.batches.len();
    }
}

impl Stores for LossyStores {
    fn open(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        let mut store = MemoryStore::default();
        for batch in &self.0.lock().unwrap().batches {
            store.commit(batch)?;
        }
        Ok(Box::new(Lossy { store, kept: Arc::clone(&self.0) }))
    }

    fn create(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        let mut kept = self.0.lock().unwrap();
        kept.batches.clear();
        kept.certain = 0;
        Ok(Box::new(Lossy { store: MemoryStore::default(), kept: Arc::clone(&self.0) }))
    }

    fn survives(&self) -> bool {
        true
    }
}

#[derive(Debug)]
struct Lossy {
    store: MemoryStore,
    kept: Arc<Mutex<Kept>>,
}

impl View for Lossy {
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

impl MetaStore for Lossy {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.kept.lock().unwrap().batches.push(batch.clone());
        self.store.commit(batch)
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        let mut kept = self.kept.lock().unwrap();
        kept.certain = kept.batches.len();
        Ok(())
    }
}
