//! Moves names: replacing, refusing to replace, or exchanging.

use millrace_protocol::metadata::RenameMode;
use millrace_types::{ErrorKind, FileName, InodeId};

use super::{
    ApplyError, Transaction,
    create::{check_same_realm, insert_entry, insert_entry_at},
    deletion,
    remove::{
        check_no_link_root, check_removable, drop_name, forget_parent, leave_whiteout, take_entry,
    },
};
use crate::{
    command::{Outcome, Rename},
    namespace::{
        Inode, ParentLink,
        permission::{self, Access},
        tree,
    },
    store::{keys, records::Entry},
};

/// One side of a rename.
struct Side {
    parent: InodeId,
    name: FileName,
    entry: Entry,
    inode: Inode,
}

/// Moves a name.
pub(super) fn rename(tx: &mut Transaction<'_>, rename: &Rename) -> Result<Outcome, ApplyError> {
    let source_parent = tx.inode(rename.source_parent)?;
    let target_parent = tx.inode(rename.target_parent)?;
    source_parent.directory()?;
    target_parent.directory()?;
    permission::check(tx, &rename.caller, &source_parent, Access::Search)?;
    permission::check(tx, &rename.caller, &target_parent, Access::Search)?;
    let source = side(tx, source_parent.id, &rename.source_name)?.ok_or(ErrorKind::NotFound)?;
    let target = side(tx, target_parent.id, &rename.target_name)?;
    let id = source.inode.id;
    if target.as_ref().is_some_and(|target| target.inode.id == id) {
        // Two names of one inode, or the same name: POSIX has it do nothing.
        return match rename.mode {
            RenameMode::NoReplace => Err(ErrorKind::Exists.into()),
            RenameMode::Replace | RenameMode::Exchange => Ok(Outcome::Inode(id)),
        };
    }
    permission::check_remove(tx, &rename.caller, &source_parent, &source.inode)?;
    tx.check_names_writable(&source_parent)?;
    tx.check_names_writable(&target_parent)?;
    check_same_realm(tx, &source_parent, &target_parent)?;
    check_movable(tx, rename, &source.inode, target_parent.id)?;
    match (&target, rename.mode) {
        (None, RenameMode::Exchange) => return Err(ErrorKind::NotFound.into()),
        (Some(_), RenameMode::NoReplace) => return Err(ErrorKind::Exists.into()),
        (None, _) => permission::check_add(tx, &rename.caller, &target_parent)?,
        (Some(target), RenameMode::Exchange) => {
            permission::check_remove(tx, &rename.caller, &target_parent, &target.inode)?;
            check_movable_to(tx, rename, &target.inode, source_parent.id, target_parent.id)?;
        }
        (Some(target), RenameMode::Replace) => {
            permission::check_remove(tx, &rename.caller, &target_parent, &target.inode)?;
            check_replaceable(tx, &source.inode, &target.inode)?;
        }
    }
    match (target, rename.mode) {
        (Some(target), RenameMode::Exchange) => exchange(tx, source, target)?,
        (target, _) => replace(tx, rename, source, target)?,
    }
    Ok(Outcome::Inode(id))
}

fn side(
    tx: &Transaction<'_>,
    parent: InodeId,
    name: &FileName,
) -> Result<Option<Side>, ApplyError> {
    let Some(entry) = tree::entry(tx, parent, name)? else {
        return Ok(None);
    };
    Ok(Some(Side { parent, name: name.clone(), inode: tree::named(tx, &entry)?, entry }))
}

fn check_movable(
    tx: &Transaction<'_>,
    rename: &Rename,
    inode: &Inode,
    to: InodeId,
) -> Result<(), ApplyError> {
    check_movable_to(tx, rename, inode, to, rename.source_parent)
}

/// A directory goes neither into itself nor, without write permission on it, under another parent.
fn check_movable_to(
    tx: &Transaction<'_>,
    rename: &Rename,
    inode: &Inode,
    to: InodeId,
    from: InodeId,
) -> Result<(), ApplyError> {
    if !inode.is_directory() {
        return Ok(());
    }
    check_no_link_root(tx, inode)?;
    if to == from {
        return Ok(());
    }
    permission::check(tx, &rename.caller, inode, Access::Write)?;
    let directory = tx.inode(to)?;
    if tree::is_below(tx, &directory, inode.id)? {
        return Err(ErrorKind::InvalidArgument.into());
    }
    Ok(())
}

fn check_replaceable(
    tx: &Transaction<'_>,
    source: &Inode,
    target: &Inode,
) -> Result<(), ApplyError> {
    match (source.is_directory(), target.is_directory()) {
        (true, false) => Err(ErrorKind::NotDirectory.into()),
        (false, true) => Err(ErrorKind::IsDirectory.into()),
        (true, true) => check_removable(tx, target),
        (false, false) => Ok(()),
    }
}

fn replace(
    tx: &mut Transaction<'_>,
    rename: &Rename,
    source: Side,
    target: Option<Side>,
) -> Result<(), ApplyError> {
    let kept = match &target {
        Some(target) => kept_place(tx, target)?,
        None => None,
    };
    if let Some(target) = target {
        take(tx, &target)?;
        deletion::name_removed(tx, &target.inode)?;
        drop_name(tx, target.inode, target.parent, &target.name, &rename.readers)?;
    }
    take(tx, &source)?;
    let mut inode = source.inode;
    let from = (source.parent, &source.name);
    give(tx, &mut inode, from, (rename.target_parent, &rename.target_name), kept)
}

fn exchange(tx: &mut Transaction<'_>, source: Side, target: Side) -> Result<(), ApplyError> {
    let (left_place, right_place) = (kept_place(tx, &target)?, kept_place(tx, &source)?);
    take(tx, &source)?;
    take(tx, &target)?;
    let (mut left, mut right) = (source.inode, target.inode);
    let from = (source.parent, &source.name);
    let to = (target.parent, &target.name);
    give(tx, &mut left, from, to, left_place)?;
    give(tx, &mut right, to, from, right_place)
}

/// The feature level from which on a name keeps its place in the listing when another file takes
/// it: it is there throughout, and a listing that has begun shows it once.
pub(crate) const KEEPS_PLACE_LEVEL: u32 = 19;

/// The place that a side's name keeps, whatever it leads to next.
fn kept_place(tx: &Transaction<'_>, side: &Side) -> Result<Option<u64>, ApplyError> {
    let keeps = tx.file_system()?.feature_level >= KEEPS_PLACE_LEVEL;
    Ok(keeps.then_some(side.entry.cookie))
}

/// Takes a side's entry out of its directory.
fn take(tx: &mut Transaction<'_>, side: &Side) -> Result<(), ApplyError> {
    let mut parent = tx.inode(side.parent)?;
    leave_whiteout(tx, &parent, &side.inode, &side.name)?;
    deletion::directory_left(tx, &side.inode)?;
    take_entry(tx, &mut parent, &side.inode, &side.name, &side.entry);
    tx.put_inode(&parent);
    Ok(())
}

/// Gives an inode, whose old entry is gone, its new name: at `place`, or behind all others.
fn give(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
    from: (InodeId, &FileName),
    to: (InodeId, &FileName),
    place: Option<u64>,
) -> Result<(), ApplyError> {
    let mut parent = tx.inode(to.0)?;
    match place {
        Some(cookie) => insert_entry_at(tx, &mut parent, inode, to.1, cookie),
        None => insert_entry(tx, &mut parent, inode, to.1)?,
    }
    tx.put_inode(&parent);
    let old = ParentLink { directory: from.0, name: from.1.clone() };
    if inode.parent.as_ref() == Some(&old) {
        inode.parent = Some(ParentLink { directory: to.0, name: to.1.clone() });
    } else {
        forget_parent(tx, inode, from.0, from.1)?;
        tx.put_bytes(keys::name(inode.id, to.0, to.1.as_bytes()), Vec::new());
    }
    inode.changed = tx.time;
    inode.change_count = inode.change_count.next();
    tx.put_inode(inode);
    Ok(())
}
