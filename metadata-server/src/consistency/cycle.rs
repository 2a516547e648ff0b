//! The way from a directory up to the root.

use millrace_types::InodeId;

use crate::{
    namespace::tree,
    store::{StoreError, View},
};

/// Whether a directory lies below itself, and has the smallest id of those that do so together: of
/// each ring one is named.
///
/// Brent's way to find a ring: whatever its length, the memory is that of two ids, and the looks
/// are at most three times the directories on the way.
///
/// # Errors
/// When the store fails.
pub fn is_first_of_ring(
    view: &(impl View + ?Sized),
    directory: InodeId,
) -> Result<bool, StoreError> {
    let (mut marked, mut at) = (directory, directory);
    let (mut steps, mut limit) = (0_u64, 1_u64);
    loop {
        match above(view, at)? {
            None => return Ok(false),
            Some(above) => at = above,
        }
        if at == marked {
            break;
        }
        steps += 1;
        if steps == limit {
            (marked, steps, limit) = (at, 0, limit * 2);
        }
    }
    // Once round.
    let (mut least, mut has_it) = (at, at == directory);
    while let Some(next) = above(view, at)? {
        at = next;
        if at == marked {
            break;
        }
        least = least.min(at);
        has_it |= at == directory;
    }
    Ok(has_it && least == directory)
}

/// The directory that has this one; `None` for the root, and where there is none.
fn above(view: &(impl View + ?Sized), inode: InodeId) -> Result<Option<InodeId>, StoreError> {
    if inode == InodeId::ROOT {
        return Ok(None);
    }
    Ok(tree::find(view, inode)?.and_then(|inode| inode.parent).map(|parent| parent.directory))
}
