//! The store with the changes of one command on top.

use std::{collections::BTreeMap, ops::Bound};

use millrace_protocol::cluster::LinkMode;
use millrace_types::{ErrorKind, InodeId, LinkId, LogIndex, TargetId, Timestamp};

use super::{ApplyError, encode, restore};
use crate::{
    command::BATCH_MAX,
    namespace::{Body, FileBody, Inode, tree},
    store::{
        Batch, Pair, StoreError, View, borrow, keys, prefix_end,
        records::{self, FileSystem, LinkRecord, ReclaimRecord, Record},
    },
};

/// Reads show the changes made so far. Dropped without [`Self::finish`], nothing has happened.
pub(super) struct Transaction<'a> {
    view: &'a dyn View,
    batch: Batch,
    /// The index of the command in the log.
    pub(super) index: LogIndex,
    /// The command's time.
    pub(super) time: Timestamp,
    /// What targets may free because of it: gets its places in their queues at the end.
    pub(super) reclaims: Vec<(TargetId, ReclaimRecord)>,
    /// How many more records of whiteouts it may take along.
    pub(super) sweeps_left: usize,
    /// Inodes whose content got another name.
    raised: Vec<InodeId>,
}

impl<'a> Transaction<'a> {
    pub(super) fn new(view: &'a dyn View, index: LogIndex, time: Timestamp) -> Self {
        let (batch, reclaims, raised) = (Batch::default(), Vec::new(), Vec::new());
        Self { view, batch, index, time, reclaims, sweeps_left: BATCH_MAX, raised }
    }

    /// The changes, and the inodes whose content got another name.
    pub(super) fn finish(self) -> (Batch, Vec<InodeId>) {
        (self.batch, self.raised)
    }

    /// Names another content of the inode: the only place where a generation is raised.
    pub(super) fn raise_generation(
        &mut self,
        inode: InodeId,
        file: &mut FileBody,
    ) -> Result<(), StoreError> {
        file.generation = restore::next_generation(self, file.generation)?;
        self.raised.push(inode);
        Ok(())
    }

    /// Begins another write epoch: the only place where one is.
    pub(super) fn raise_write_epoch(
        &mut self,
        inode: InodeId,
        file: &mut FileBody,
    ) -> Result<(), StoreError> {
        file.write_epoch = restore::next_write_epoch(self, file.write_epoch)?;
        self.raised.push(inode);
        Ok(())
    }

    pub(super) fn put(&mut self, key: Vec<u8>, record: &impl Record) {
        self.batch.put(key, encode(record));
    }

    pub(super) fn put_bytes(&mut self, key: Vec<u8>, value: Vec<u8>) {
        self.batch.put(key, value);
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.batch.delete(key);
    }

    /// Removes every key with this prefix.
    pub(super) fn delete_all(&mut self, prefix: &[u8]) -> Result<(), StoreError> {
        let end = prefix_end(prefix);
        for (key, _) in self.scan(Bound::Included(prefix), borrow(&end), usize::MAX)? {
            self.delete(key);
        }
        Ok(())
    }

    pub(super) fn read<R: Record>(&self, key: &[u8]) -> Result<Option<R>, StoreError> {
        records::read(self, key)
    }

    pub(super) fn inode(&self, inode: InodeId) -> Result<Inode, ApplyError> {
        tree::inode(self, inode)
    }

    pub(super) fn put_inode(&mut self, inode: &Inode) {
        self.put(keys::inode(inode.id), inode);
    }

    pub(super) fn file_system(&self) -> Result<FileSystem, ApplyError> {
        self.read(&keys::file_system())?.ok_or_else(|| {
            StoreError::Inconsistent("there is no file system record".to_owned()).into()
        })
    }

    pub(super) fn change_file_system(
        &mut self,
        change: impl FnOnce(&mut FileSystem),
    ) -> Result<(), ApplyError> {
        let mut file_system = self.file_system()?;
        change(&mut file_system);
        self.put(keys::file_system(), &file_system);
        Ok(())
    }

    /// The link of a directory, if it shows one that still exists.
    pub(super) fn link_of(
        &self,
        directory: &Inode,
    ) -> Result<Option<(LinkId, LinkRecord)>, ApplyError> {
        let Body::Directory(body) = &directory.body else {
            return Ok(None);
        };
        let Some(linked) = &body.linked else {
            return Ok(None);
        };
        let record = self.read::<LinkRecord>(&keys::link(linked.link))?;
        Ok(record.map(|record| (linked.link, record)))
    }

    /// Refuses a change of names in a directory that shows a read-only link.
    pub(super) fn check_names_writable(&self, directory: &Inode) -> Result<(), ApplyError> {
        match self.link_of(directory)? {
            Some((_, link)) if link.mode == LinkMode::ReadOnly => Err(ErrorKind::ReadOnly.into()),
            _ => Ok(()),
        }
    }

    /// Refuses a change of an inode that lies below a read-only link.
    pub(super) fn check_writable(&self, inode: &Inode) -> Result<(), ApplyError> {
        self.check_names_writable(inode)?;
        let Some(parent) = &inode.parent else {
            return Ok(());
        };
        match tree::find(self, parent.directory)? {
            Some(directory) => self.check_names_writable(&directory),
            None => Ok(()),
        }
    }
}

impl View for Transaction<'_> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.batch.get(key) {
            Some(change) => Ok(change.map(<[u8]>::to_vec)),
            None => self.view.get(key),
        }
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let changes: Vec<_> = self
            .batch
            .range(from, to)
            .map(|(key, value)| (key.to_vec(), value.map(<[u8]>::to_vec)))
            .collect();
        // Each change hides at most one pair of the store.
        let enough = limit.saturating_add(changes.len());
        let stored = self.view.scan(from, to, enough)?;
        if changes.is_empty() {
            return Ok(stored);
        }
        let mut merged: BTreeMap<_, _> = stored.into_iter().collect();
        for (key, value) in changes {
            match value {
                Some(value) => merged.insert(key, value),
                None => merged.remove(&key),
            };
        }
        Ok(merged.into_iter().take(limit).collect())
    }
}
