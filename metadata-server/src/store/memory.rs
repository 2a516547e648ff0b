//! A store in memory: for tests, and for trying things without a disk. Nothing survives it.

use std::{collections::BTreeMap, ops::Bound};

use super::{Batch, MetaStore, Pair, StoreError, Stores, View};

/// An ordered map behind the store's contract.
#[derive(Debug, Default)]
pub struct MemoryStore {
    pairs: BTreeMap<Vec<u8>, Vec<u8>>,
}

/// Stores in memory: each is a new one.
#[derive(Debug)]
pub struct MemoryStores;

impl Stores for MemoryStores {
    fn open(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        self.create()
    }

    fn create(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        Ok(Box::new(MemoryStore::default()))
    }

    fn survives(&self) -> bool {
        false
    }
}

impl View for MemoryStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Ok(self.pairs.get(key).cloned())
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        if is_empty_range(from, to) {
            return Ok(Vec::new());
        }
        let range = self.pairs.range::<[u8], _>((from, to)).take(limit);
        Ok(range.map(|(key, value)| (key.clone(), value.clone())).collect())
    }
}

impl MetaStore for MemoryStore {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        for (key, value) in batch.iter() {
            match value {
                Some(value) => self.pairs.insert(key.to_vec(), value.to_vec()),
                None => self.pairs.remove(key),
            };
        }
        Ok(())
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        Ok(())
    }
}

/// Whether no key can lie within the bounds (a `BTreeMap` panics on such a range).
pub(super) fn is_empty_range(from: Bound<&[u8]>, to: Bound<&[u8]>) -> bool {
    match (from, to) {
        (Bound::Unbounded, _) | (_, Bound::Unbounded) => false,
        (Bound::Included(from), Bound::Included(to)) => from > to,
        (Bound::Included(from) | Bound::Excluded(from), Bound::Excluded(to))
        | (Bound::Excluded(from), Bound::Included(to)) => from >= to,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::conformance, *};

    #[test]
    fn the_memory_store_fulfils_the_contract() {
        conformance::check(|| Box::new(MemoryStore::default()));
    }
}
