//! What becomes of a file when the groups go that only one target serves.

use millrace_types::Failure;

use crate::{
    hydration::{destination::is_backed, import::broken},
    leases::touched::writers,
    namespace::{Body, Inode, ObjectState, loss, loss::Groups},
    store::{StoreError, View},
};

/// What goes with the groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    /// Nothing of it lies there.
    Untouched,
    /// It can be read again when others serve the groups: a bucket has it as it is.
    Backed,
    /// It was renamed and not exported since: nobody knows whether its object is still there. It is
    /// not marked when the target is given up, because the object may be.
    Renamed,
    /// It is marked as lost when the target is given up.
    Damaged,
    /// It is marked already, and what is left of it there goes as well.
    Lost,
}

/// What becomes of a file; of anything else nothing does.
///
/// # Errors
/// When the store is broken.
pub(super) fn fate(view: &dyn View, inode: &Inode, groups: &Groups) -> Result<Fate, Failure> {
    if is_damaged(view, inode, groups).map_err(broken)? {
        return Ok(Fate::Damaged);
    }
    let Body::File(file) = &inode.body else { return Ok(Fate::Untouched) };
    if file.inline.is_some() || !loss::touches(&file.layout, inode.size, groups) {
        return Ok(Fate::Untouched);
    }
    Ok(match file.state {
        ObjectState::Lost => Fate::Lost,
        // Nobody gets back what was removed; who has it open reads it from its object.
        _ if inode.parent.is_none() => Fate::Backed,
        _ if is_backed(view, inode, file)? => Fate::Backed,
        _ => Fate::Renamed,
    })
}

/// Whether it is marked as lost when the target is given up.
///
/// # Errors
/// When the store is broken.
pub(super) fn is_damaged(
    view: &dyn View,
    inode: &Inode,
    groups: &Groups,
) -> Result<bool, StoreError> {
    let Body::File(file) = &inode.body else { return Ok(false) };
    let written = !writers(view, inode.id)?.is_empty();
    Ok(loss::is_damaged(file, inode.size, groups, written))
}
