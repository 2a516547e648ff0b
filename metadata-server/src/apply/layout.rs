//! Where new files go: directory defaults and the layout that they give.

use millrace_types::{ErrorKind, Layout, LogIndex, Timestamp};

use super::{ApplyError, Transaction};
use crate::{
    command::{Outcome, SetDefaults},
    namespace::{LayoutDefaults, permission},
    store::{View, keys, records::PoolRecord},
};

/// The layouts of files with these seeds, as long as neither the directory nor the pool changes.
///
/// # Errors
/// [`ErrorKind::Unavailable`] before any target has registered.
pub(crate) fn layouts(
    view: &dyn View,
    defaults: &LayoutDefaults,
    seeds: impl IntoIterator<Item = u32>,
) -> Result<Vec<Layout>, ApplyError> {
    let tx = Transaction::new(view, LogIndex(0), Timestamp(0));
    let place = Place::of(&tx, defaults)?;
    seeds.into_iter().map(|seed| place.layout(seed)).collect()
}

/// The layout of a new file.
pub(super) fn place(
    tx: &Transaction<'_>,
    defaults: &LayoutDefaults,
    seed: u32,
) -> Result<Layout, ApplyError> {
    Place::of(tx, defaults)?.layout(seed)
}

/// Where the new files of one directory go.
pub(super) struct Place {
    defaults: LayoutDefaults,
    groups: u32,
}

impl Place {
    /// Reads what the layouts of a directory's new files have in common.
    pub(super) fn of(tx: &Transaction<'_>, defaults: &LayoutDefaults) -> Result<Self, ApplyError> {
        let pool = tx.read::<PoolRecord>(&keys::pool(defaults.pool))?;
        let groups = pool.map_or(0, |pool| pool.groups);
        if groups == 0 {
            // No target has registered yet: a file could never hold a byte.
            return Err(ErrorKind::Unavailable.into());
        }
        Ok(Self { defaults: *defaults, groups })
    }

    /// The layout of one of them.
    pub(super) fn layout(&self, seed: u32) -> Result<Layout, ApplyError> {
        let LayoutDefaults { chunk_size, pool, width, .. } = self.defaults;
        Ok(Layout::new(chunk_size, width.unwrap_or(u32::MAX), pool, self.groups, seed)?)
    }
}

/// Sets what new files in a directory get.
pub(super) fn set_defaults(
    tx: &mut Transaction<'_>,
    set: &SetDefaults,
) -> Result<Outcome, ApplyError> {
    let mut inode = tx.inode(set.directory)?;
    permission::check_owner(&set.caller, &inode)?;
    if set.defaults.width == Some(0) {
        return Err(ErrorKind::InvalidArgument.into());
    }
    if tx.read::<PoolRecord>(&keys::pool(set.defaults.pool))?.is_none() {
        return Err(ErrorKind::NotFound.into());
    }
    inode.directory_mut()?.defaults = set.defaults;
    inode.changed = tx.time;
    tx.put_inode(&inode);
    Ok(Outcome::Inode(inode.id))
}
