//! What a command changes of what clients may keep.

use std::ops::Bound;

use millrace_types::{FileName, InodeId, SessionId};

use crate::{
    namespace::{Inode, tree},
    store::{Batch, StoreError, View, borrow, keys, prefix_end, records::OpenRecord},
};

/// One thing that somebody may keep, and that is about to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touch {
    /// A name in a directory.
    Name {
        /// The directory, which is the key of the lease.
        directory: InodeId,
        /// The name.
        name: FileName,
        /// Whether it leads to something now. Only a lease on the whole directory covers that it
        /// does not.
        existed: bool,
    },
    /// The attributes of an inode.
    Attributes {
        /// The key of the lease that covers them.
        key: InodeId,
        /// The inode.
        inode: InodeId,
    },
}

impl Touch {
    /// The key of the lease that covers it.
    #[must_use]
    pub fn key(&self) -> InodeId {
        match self {
            Self::Name { directory, .. } => *directory,
            Self::Attributes { key, .. } => *key,
        }
    }
}

/// The key of the lease that covers the attributes of an inode.
#[must_use]
pub fn key_of(inode: &Inode) -> InodeId {
    match &inode.parent {
        Some(parent) if !inode.is_directory() && inode.links == 1 => parent.directory,
        _ => inode.id,
    }
}

/// Who has a file open for writing. One alone may keep its attributes, several may not: what one
/// of them writes would be taken back from the others each time.
///
/// # Errors
/// When the store is broken.
pub fn writers(view: &(impl View + ?Sized), inode: InodeId) -> Result<Vec<SessionId>, StoreError> {
    let opens = tree::scan::<OpenRecord>(view, &keys::opens(inode), usize::MAX)?;
    let writes = opens.iter().filter(|(_, open)| open.writes > 0);
    Ok(writes.filter_map(|(key, _)| keys::number_at(key, 9)).map(SessionId).collect())
}

/// What `batch` will change of what `view` shows, for `by` if that is a session. Attributes of a
/// file that is being written are left out where nobody else can keep them: those of several
/// writers, and of this one.
///
/// # Errors
/// When the store is broken.
pub fn touched(
    view: &dyn View,
    batch: &Batch,
    by: Option<SessionId>,
) -> Result<Vec<Touch>, StoreError> {
    let mut touches = Vec::new();
    for key in table(batch, &keys::all_entries()) {
        let Some(directory) = keys::number_at(key, 1).map(InodeId) else { continue };
        let Ok(name) = FileName::parse(keys::after(key, &keys::entries(directory))) else {
            return Err(StoreError::Damaged { what: "name", key: key.to_owned() });
        };
        let existed = view.get(key)?.is_some();
        touches.push(Touch::Name { directory, name, existed });
    }
    for key in table(batch, &keys::inodes()) {
        let Some(id) = keys::number_at(key, 1).map(InodeId) else { continue };
        let Some(inode) = tree::find(view, id)? else { continue };
        let may_be_kept = inode.is_directory()
            || match writers(view, id)?[..] {
                [] => true,
                [writer] => Some(writer) != by,
                [_, _, ..] => false,
            };
        if may_be_kept {
            touches.push(Touch::Attributes { key: key_of(&inode), inode: id });
        }
    }
    Ok(touches)
}

/// The keys of one table that change.
fn table<'a>(batch: &'a Batch, prefix: &[u8]) -> Vec<&'a [u8]> {
    let end = prefix_end(prefix);
    batch.range(Bound::Included(prefix), borrow(&end)).map(|(key, _)| key).collect()
}
