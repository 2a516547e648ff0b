//! The ordered key-value store that holds the namespace: derived state, never the commit point.
//!
//! Owns the contract that every engine fulfils ([`MetaStore`]) and the atomic [`Batch`]. What the
//! keys mean is in [`keys`], what the values hold in [`records`]. The command log decides what
//! happened; a store that is missing, damaged, behind or ahead is brought back from it.

use std::{collections::BTreeMap, fmt, fs, io, ops::Bound, path::Path};

use bytes::Bytes;

pub mod behind;
pub mod conformance;

pub mod keys;
pub mod lsm;
pub mod memory;
pub mod near;
pub mod records;
pub mod sled;

/// One key with its value.
pub type Pair = (Vec<u8>, Vec<u8>);

/// Ordered keys that can be read: a store, or a store with changes on top.
pub trait View {
    /// The value of `key`.
    ///
    /// # Errors
    /// When the engine cannot read.
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError>;

    /// The first `limit` pairs within the bounds, in key order.
    ///
    /// # Errors
    /// When the engine cannot read.
    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError>;
}

/// Ordered keys with an atomic batch.
///
/// # Contract
/// Keys are ordered as byte strings. Reads see every batch committed before them and nothing of
/// one that failed. One thread owns a store; a batch is never committed while a read runs.
///
/// # Durability
/// A committed batch need not survive anything. After a crash the store holds some prefix of the
/// committed batches, each whole, and perhaps bytes of small files ([`keys::CONTENTS`]) of later
/// ones too; [`Self::checkpoint`] returns once everything committed before it survives a loss of
/// power, as far as the engine can tell. The applied index lies in the same
/// batch as the changes, so that the log knows where to go on.
///
/// # Errors
/// [`StoreError`] means that the store can no longer be trusted: the owner stops changing it, and
/// the next start rebuilds it from the log.
pub trait MetaStore: View + Send {
    /// Makes every change of `batch` visible at once, or none.
    ///
    /// # Errors
    /// When the engine cannot write; whether the batch was taken is then unknown.
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError>;

    /// Whether something that was committed could not be kept, which is told of once. An engine
    /// that changes its store while it commits has told by then.
    ///
    /// # Errors
    /// As [`Self::commit`].
    fn poll_failure(&mut self) -> Result<(), StoreError> {
        Ok(())
    }

    /// Brings everything committed so far to stable storage.
    ///
    /// # Errors
    /// When the engine cannot write.
    fn checkpoint(&mut self) -> Result<(), StoreError>;
}

/// Where the engine's store comes from. There is one at a time.
pub trait Stores: fmt::Debug + Send + Sync {
    /// Opens what there is; an empty one if there is nothing.
    ///
    /// # Errors
    /// When it cannot be opened: the caller makes it anew.
    fn open(&self) -> Result<Box<dyn MetaStore>, StoreError>;

    /// Makes an empty one in place of what there is.
    ///
    /// # Errors
    /// When the disk is full or fails.
    fn create(&self) -> Result<Box<dyn MetaStore>, StoreError>;

    /// Whether what is committed is still there when the process has ended.
    fn survives(&self) -> bool;
}

/// Changes that take effect together. The last change of a key counts. Clones share the values.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Batch {
    changes: BTreeMap<Vec<u8>, Option<Bytes>>,
}

impl Batch {
    /// Sets `key` to `value`.
    pub fn put(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.changes.insert(key, Some(value.into()));
    }

    /// Removes `key`, whether or not it exists.
    pub fn delete(&mut self, key: Vec<u8>) {
        self.changes.insert(key, None);
    }

    /// What the batch says about `key`: nothing, a removal, or a value.
    #[must_use]
    pub fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.changes.get(key).map(Option::as_deref)
    }

    /// The changes in key order; `None` removes.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.changes.iter().map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    /// The changes within the bounds, in key order.
    pub fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        self.changes
            .range::<[u8], _>((from, to))
            .map(|(key, value)| (key.as_slice(), value.as_deref()))
    }

    /// Adds the changes of a batch that comes after this one.
    pub fn extend(&mut self, later: &Self) {
        for (key, value) in &later.changes {
            match self.changes.get_mut(key) {
                Some(change) => change.clone_from(value),
                None => drop(self.changes.insert(key.clone(), value.clone())),
            }
        }
    }

    /// Bytes of all keys and values, and eight for each pair.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.iter().map(|(key, value)| bytes(key, value)).sum()
    }

    /// The same without the bytes of small files, which no two batches have in common.
    #[must_use]
    pub fn bytes_that_recur(&self) -> usize {
        self.iter().map(|(key, value)| recurring(key, value)).sum()
    }

    /// How many of these the changes of a later batch replace.
    #[must_use]
    pub fn bytes_replaced(&self, later: &Self) -> usize {
        later.iter().filter_map(|(key, _)| Some(recurring(key, self.get(key)?))).sum()
    }

    /// Whether nothing changes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.changes.is_empty()
    }
}

/// Why a store cannot be trusted any more.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The engine failed to read or write.
    #[error("the metadata store's {engine} engine failed: {source}")]
    Engine {
        /// Which engine.
        engine: &'static str,
        /// What it said.
        source: io::Error,
    },
    /// A value does not decode: the store is damaged.
    #[error("the metadata store is damaged: the {what} at key {} does not decode", hex(key))]
    Damaged {
        /// What the key should hold.
        what: &'static str,
        /// The key.
        key: Vec<u8>,
    },
    /// Two records contradict each other: the store is damaged.
    #[error("the metadata store is damaged: {0}")]
    Inconsistent(String),
}

impl StoreError {
    /// Whether it came of a disk without room.
    #[must_use]
    pub fn is_full_disk(&self) -> bool {
        match self {
            Self::Engine { source, .. } => {
                matches!(source.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
            }
            Self::Damaged { .. } | Self::Inconsistent(_) => false,
        }
    }
}

/// Removes what an engine keeps in `dir`, if anything.
fn remove(dir: &Path, engine: &'static str) -> Result<(), StoreError> {
    match fs::remove_dir_all(dir) {
        Err(source) if source.kind() != io::ErrorKind::NotFound => {
            Err(StoreError::Engine { engine, source })
        }
        _ => Ok(()),
    }
}

/// Where the keys with this prefix end: the smallest key above all of them.
#[must_use]
pub fn prefix_end(prefix: &[u8]) -> Bound<Vec<u8>> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            return Bound::Excluded(end);
        }
    }
    Bound::Unbounded
}

/// A borrowed form of an owned bound.
#[must_use]
pub fn borrow(bound: &Bound<Vec<u8>>) -> Bound<&[u8]> {
    match bound {
        Bound::Included(key) => Bound::Included(key),
        Bound::Excluded(key) => Bound::Excluded(key),
        Bound::Unbounded => Bound::Unbounded,
    }
}

/// What is written once for all batches of a group that have it.
fn recurring(key: &[u8], value: Option<&[u8]>) -> usize {
    let is_content = key.first() == Some(&keys::CONTENTS);
    bytes(key, value.filter(|_| !is_content))
}

fn bytes(key: &[u8], value: Option<&[u8]>) -> usize {
    key.len() + value.map_or(0, <[u8]>::len) + 8
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_prefix_ends_before_the_next_one() {
        assert_eq!(prefix_end(b"ab"), Bound::Excluded(b"ac".to_vec()));
        assert_eq!(prefix_end(b"a\xff"), Bound::Excluded(b"b".to_vec()));
        assert_eq!(prefix_end(b"\xff\xff"), Bound::Unbounded);
    }
}
