//! Remembers which version of a file the kernel's page cache holds.
//!
//! An open may tell the kernel to keep its pages only if nothing has changed since they were read.
//! The change count at the last open on this mount says so: pages that were read since are of that
//! count or newer, and any change has raised it.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use millrace_types::{ChangeCount, InodeId};

/// Change counts at the last open of each inode that the kernel may have pages of.
#[derive(Debug, Default)]
pub(crate) struct KeptPages {
    counts: Mutex<HashMap<InodeId, ChangeCount>>,
}

impl KeptPages {
    /// Records an open and says whether the pages of earlier ones may be kept.
    pub(crate) fn handle_open(&self, inode: InodeId, count: ChangeCount) -> bool {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if counts.len() >= INODES_MAX && !counts.contains_key(&inode) {
            // Forgetting costs one more reading of the file; any entry serves, since the kernel
            // drops those that it does not use and says so.
            if let Some(&other) = counts.keys().next() {
                counts.remove(&other);
            }
        }
        counts.insert(inode, count) == Some(count)
    }

    /// The kernel has dropped the inode, and its pages with it.
    pub(crate) fn forget(&self, inode: InodeId) {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).remove(&inode);
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
        assert!(!kept.handle_open(file, ChangeCount(1)), "the first open has no pages");
        assert!(kept.handle_open(file, ChangeCount(1)));
        assert!(!kept.handle_open(file, ChangeCount(2)), "changed");
        assert!(kept.handle_open(file, ChangeCount(2)));
        kept.forget(file);
        assert!(!kept.handle_open(file, ChangeCount(2)));
    }
}
