//! Remembers which version of a file the kernel's page cache holds.
//!
//! An open may tell the kernel to keep its pages only if nothing has changed since they were read.
//! The change count at the last open on this mount says so: pages that were read since are of that
//! count or newer, and any change has raised it.
//!
//! Where it says something else, the kernel drops its pages after it has been answered, before the
//! open returns to its program. Until then it has the old ones: whoever opens the file meanwhile
//! must have them dropped as well. That the open has returned is known when it is used.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_types::{ChangeCount, InodeId};

use crate::fs::{FileSystem, handle::FileHandle};

/// What is known of the kernel's pages.
#[derive(Debug, Default)]
pub(crate) struct KeptPages {
    table: Mutex<Table>,
}

#[derive(Debug, Default)]
struct Table {
    /// Change counts at the last open of each inode that the kernel may have pages of.
    counts: HashMap<InodeId, ChangeCount>,
    /// For which of these it may have older ones still.
    renewals: HashMap<InodeId, Renewal>,
    last: u64,
}

/// Opens for which the kernel drops what is older than the file was then. It has done so as soon as
/// one of them has returned.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Renewal(u64);

impl Renewal {
    /// That of this number; none has 0.
    pub(crate) fn from_number(number: u64) -> Option<Self> {
        (number > 0).then_some(Self(number))
    }

    /// Its number.
    pub(crate) fn number(self) -> u64 {
        self.0
    }
}

impl KeptPages {
    /// Records an open. Nothing where the pages of earlier ones may be kept; otherwise this open
    /// has to drop them, and others as well until one of these has returned.
    pub(crate) fn handle_open(&self, inode: InodeId, count: ChangeCount) -> Option<Renewal> {
        let mut table = self.lock();
        if table.counts.len() >= INODES_MAX && !table.counts.contains_key(&inode) {
            // Forgetting costs one more reading of the file; any entry serves, since the kernel
            // drops those that it does not use and says so.
            if let Some(&other) = table.counts.keys().next() {
                table.remove(other);
            }
        }
        if table.counts.insert(inode, count) == Some(count) {
            return table.renewals.get(&inode).copied();
        }
        table.last += 1;
        let renewal = Renewal(table.last);
        table.renewals.insert(inode, renewal);
        Some(renewal)
    }

    /// An open has returned for which the kernel dropped its pages.
    pub(crate) fn handle_returned(&self, inode: InodeId, renewal: Renewal) {
        let mut table = self.lock();
        if table.renewals.get(&inode) == Some(&renewal) {
            table.renewals.remove(&inode);
        }
    }

    /// The kernel has dropped the inode, and its pages with it; or it has some that nobody may see.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.lock().remove(inode);
    }

    /// The server may count anew: another version of a file may get the same count.
    pub(crate) fn forget_all(&self) {
        let mut table = self.lock();
        table.counts.clear();
        table.renewals.clear();
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // Each step leaves less to be kept at worst.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    fn remove(&mut self, inode: InodeId) {
        self.counts.remove(&inode);
        self.renewals.remove(&inode);
    }
}

impl FileSystem {
    /// A read or the close of this handle has come, before which its open has returned.
    pub(super) fn handle_returned(&self, handle: &FileHandle) {
        if let Some(renewal) = handle.end_renewal() {
            self.kept.handle_returned(handle.file.inode, renewal);
        }
    }
}

/// A million files, so that a data set of that many is read from the page cache in its second
/// epoch; costs 36 MiB at most.
const INODES_MAX: usize = 1 << 20;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_kept_while_the_change_count_stands() {
        let kept = KeptPages::default();
        let file = InodeId(7);
        // One that returns at once.
        let renews = |count| {
            let renewal = kept.handle_open(file, ChangeCount(count));
            renewal.map(|renewal| kept.handle_returned(file, renewal)).is_some()
        };
        assert!(renews(1), "the first open has no pages");
        assert!(!renews(1));
        assert!(renews(2), "changed");
        assert!(!renews(2));
        kept.forget(file);
        assert!(renews(2));
        kept.forget_all();
        assert!(renews(2), "the count may be another version's");
    }

    #[test]
    fn pages_are_not_kept_before_an_open_has_returned_that_drops_the_older_ones() {
        let kept = KeptPages::default();
        let file = InodeId(7);
        let open = |count| kept.handle_open(file, ChangeCount(count));
        let first = open(6).expect("there may be older pages");
        assert_eq!(open(6), Some(first), "it has not returned");
        let other = open(7).expect("changed");
        kept.handle_returned(file, first);
        assert_eq!(open(7), Some(other), "what that dropped was older than this");
        kept.handle_returned(file, other);
        assert_eq!(open(7), None);

        let early = open(8).expect("changed");
        kept.forget(file);
        let late = open(8).expect("forgotten");
        kept.handle_returned(file, early);
        assert_eq!(open(8), Some(late), "it may have dropped them before");
    }
}
