//! What targets must keep although a bucket has it.
//!
//! A pin is a record of its own beside the inode: it is no attribute that a `stat` shows, and it
//! can be set below links that are read-only.

use std::ops::Bound;

use millrace_types::InodeId;

use super::{Inode, tree};
use crate::store::{StoreError, View, keys};

/// Deeper than any path: ends the walk in a store that is damaged.
const DEPTH_MAX: usize = 4096;

/// Of a file with more names nobody looks for all of them: it counts as pinned.
const NAMES_MAX: u32 = 64;

/// Whether the inode is pinned, or any directory above it by any of its names.
///
/// # Errors
/// When the store is broken.
pub fn is_pinned(view: &(impl View + ?Sized), inode: &Inode) -> Result<bool, StoreError> {
    if !any(view)? {
        return Ok(false);
    }
    if has_own(view, inode.id)? || (!inode.is_directory() && inode.links > NAMES_MAX) {
        return Ok(true);
    }
    for parent in tree::parents(view, inode)? {
        let mut at = Some(parent.directory);
        for _ in 0..DEPTH_MAX {
            let Some(directory) = at else { break };
            if has_own(view, directory)? {
                return Ok(true);
            }
            at = tree::find(view, directory)?.and_then(|inode| inode.parent).map(|up| up.directory);
        }
    }
    Ok(false)
}

/// Whether the inode itself is pinned.
///
/// # Errors
/// When the store is broken.
pub fn has_own(view: &(impl View + ?Sized), inode: InodeId) -> Result<bool, StoreError> {
    Ok(view.get(&keys::pin(inode))?.is_some())
}

/// Most file systems have none, and then nobody looks further.
fn any(view: &(impl View + ?Sized)) -> Result<bool, StoreError> {
    let first = keys::pins();
    let end = crate::store::prefix_end(&first);
    let found = view.scan(Bound::Included(&first), crate::store::borrow(&end), 1)?;
    Ok(!found.is_empty())
}
