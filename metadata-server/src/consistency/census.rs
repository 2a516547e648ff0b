//! Counts the records of a table, or of a part of it, over many turns, as of the turn of its end.
//!
//! It goes through the keys in their order. A command changes records before the place that it has
//! come to, behind it, or both: what is before it was counted, so the count follows the change;
//! what is behind it is counted when it gets there.

use std::ops::Bound;

use millrace_protocol::metadata::FileKind;

use crate::store::{
    Batch, StoreError, View, borrow, prefix_end,
    records::{Entry, Record as _},
};

/// A count that is under way.
#[derive(Debug)]
pub struct Census {
    prefix: Vec<u8>,
    /// The last key that was counted; `None` before the first.
    at: Option<Vec<u8>>,
    counted: Counted,
}

/// What was counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counted {
    /// Records.
    pub records: u64,
    /// Of names: those of directories.
    pub directories: u64,
}

impl Census {
    /// Of the records whose keys begin with `prefix`.
    #[must_use]
    pub fn new(prefix: Vec<u8>) -> Self {
        Self { prefix, at: None, counted: Counted::default() }
    }

    /// Counts some more; the count is whole when it comes to the end.
    ///
    /// # Errors
    /// When the store fails.
    pub fn count(&mut self, view: &dyn View, limit: usize) -> Result<Option<Counted>, StoreError> {
        let end = prefix_end(&self.prefix);
        let from = match &self.at {
            Some(at) => Bound::Excluded(at.as_slice()),
            None => Bound::Included(self.prefix.as_slice()),
        };
        let found = view.scan(from, borrow(&end), limit)?;
        for (key, value) in &found {
            self.counted.add(Counted::of(key, value));
        }
        let ended = found.len() < limit;
        if let Some((last, _)) = found.into_iter().next_back() {
            self.at = Some(last);
        }
        Ok(ended.then_some(self.counted))
    }

    /// Follows what `batch` is about to change of what was counted.
    ///
    /// # Errors
    /// When the store fails.
    pub fn before_commit(&mut self, view: &dyn View, batch: &Batch) -> Result<(), StoreError> {
        let Some(at) = &self.at else { return Ok(()) };
        let counted = (Bound::Included(self.prefix.as_slice()), Bound::Included(at.as_slice()));
        for (key, value) in batch.range(counted.0, counted.1) {
            if let Some(old) = view.get(key)? {
                self.counted.take(Counted::of(key, &old));
            }
            if let Some(new) = value {
                self.counted.add(Counted::of(key, new));
            }
        }
        Ok(())
    }
}

impl Counted {
    /// One record.
    fn of(key: &[u8], value: &[u8]) -> Self {
        let is_directory = key.first() == Some(&b'D')
            && Entry::decode(value).is_some_and(|entry| entry.kind == FileKind::Directory);
        Self { records: 1, directories: u64::from(is_directory) }
    }

    fn add(&mut self, other: Self) {
        self.records += other.records;
        self.directories += other.directories;
    }

    fn take(&mut self, other: Self) {
        self.records = self.records.saturating_sub(other.records);
        self.directories = self.directories.saturating_sub(other.directories);
    }
}

#[cfg(test)]
mod tests {
    use millrace_runtime::Random;

    use super::*;
    use crate::store::{MetaStore as _, memory::MemoryStore};

    /// Whatever changes between two turns, the count is that of the end.
    #[test]
    fn a_count_is_that_of_its_end_whatever_changes_meanwhile() {
        for seed in 0..200 {
            let random = Random::seeded(seed);
            let mut store = MemoryStore::default();
            let change = |random: &Random| {
                let mut batch = Batch::default();
                for _ in 0..random.within(0..8) {
                    let table = [b'H', b'I', b'J'][usize::try_from(random.within(0..3)).unwrap()];
                    let key = vec![table, u8::try_from(random.within(0..100)).unwrap()];
                    match random.within(0..2) {
                        0 => batch.delete(key),
                        _ => batch.put(key, Vec::new()),
                    }
                }
                batch
            };
            for _ in 0..40 {
                store.commit(&change(&random)).unwrap();
            }
            let mut census = Census::new(b"I".to_vec());
            let counted = loop {
                if let Some(counted) = census.count(&store, 7).unwrap() {
                    break counted;
                }
                let batch = change(&random);
                census.before_commit(&store, &batch).unwrap();
                store.commit(&batch).unwrap();
            };
            let end = prefix_end(b"I");
            let there = store.scan(Bound::Included(b"I"), borrow(&end), usize::MAX).unwrap();
            assert_eq!(counted.records, there.len() as u64, "seed {seed}");
        }
    }
}
