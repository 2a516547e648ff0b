//! Repairs what does not agree: asks the questions of [`consistency`](crate::consistency) again,
//! and changes what they say.

use millrace_protocol::{fsck::FlawKind, metadata::FileKind};
use millrace_types::{ErrorKind, FileName, InodeId};

use super::{
    ApplyError, Transaction,
    create::{add_name, directory_body, insert_entry, new_inode, touch_directory},
    orphan, pristine,
    remove::take_entry,
};
use crate::{
    command::{LOST_FOUND, Outcome, Repair},
    consistency::{
        entry::{leads_to, verdicts},
        inode::{self, ACCOUNT, Names, attribute_bytes},
        leftover::{self, Verdict},
    },
    namespace::{Body, Inode, ParentLink, tree},
    store::{
        StoreError, View, keys,
        records::{Entry, FileSystem},
    },
};

/// The feature level from which on there are repairs.
const LEVEL: u32 = 3;

/// Makes one repair.
pub(super) fn repair(tx: &mut Transaction<'_>, repair: &Repair) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    match repair {
        Repair::Entry { directory, name } => repair_entry(tx, *directory, name)?,
        Repair::Inode { inode } => repair_inode(tx, *inode)?,
        Repair::Leftover { key } => repair_leftover(tx, key)?,
        Repair::Counts { directory, entries, directories } => {
            repair_counts(tx, *directory, *entries, *directories)?;
        }
        Repair::Totals { inodes, reclaim_entries } => {
            tx.change_file_system(|fs: &mut FileSystem| {
                fs.inodes = *inodes;
                fs.reclaim_entries = *reclaim_entries;
            })?;
        }
        Repair::LostFound { inode } => make_lost_found(tx, *inode)?,
    }
    Ok(Outcome::Done)
}

fn repair_entry(
    tx: &mut Transaction<'_>,
    directory: InodeId,
    name: &FileName,
) -> Result<(), ApplyError> {
    let Some(entry) = tree::entry(tx, directory, name)? else { return Ok(()) };
    for (kind, _) in verdicts(tx, &(directory, name.clone()), &entry)? {
        match kind {
            FlawKind::LostDirectory => {
                tx.delete(keys::entry(directory, name.as_bytes()));
                forget_position(tx, directory, name, entry.cookie)?;
            }
            FlawKind::DeadName | FlawKind::SecondPlace => drop_entry(tx, directory, name, &entry)?,
            FlawKind::WrongParent => learn_name(tx, directory, name, entry.inode)?,
            FlawKind::WrongKind => {
                let kind = tx.inode(entry.inode)?.kind;
                // The position may have been given anew before this.
                let entry = tree::entry(tx, directory, name)?.unwrap_or(entry);
                tx.put(keys::entry(directory, name.as_bytes()), &Entry { kind, ..entry });
            }
            _ => place_anew(tx, directory, name)?,
        }
    }
    Ok(())
}

/// Takes a name away that leads nowhere, or to a directory whose place is another.
fn drop_entry(
    tx: &mut Transaction<'_>,
    directory: InodeId,
    name: &FileName,
    entry: &Entry,
) -> Result<(), ApplyError> {
    forget_position(tx, directory, name, entry.cookie)?;
    tx.delete(keys::entry(directory, name.as_bytes()));
    let mut parent = tx.inode(directory)?;
    parent.size = parent.size.saturating_sub(1);
    if entry.kind == FileKind::Directory {
        parent.links = parent.links.saturating_sub(1);
    }
    touch_directory(tx, &mut parent);
    tx.put_inode(&parent);
    Ok(())
}

/// Removes a position, if it is this name's.
fn forget_position(
    tx: &mut Transaction<'_>,
    directory: InodeId,
    name: &FileName,
    cookie: u64,
) -> Result<(), StoreError> {
    let key = keys::cookie(directory, cookie);
    if tx.get(&key)?.as_deref() == Some(name.as_bytes()) {
        tx.delete(key);
    }
    Ok(())
}

/// Has an inode know of a name that leads to it: as the first, unless it has one that is right.
fn learn_name(
    tx: &mut Transaction<'_>,
    directory: InodeId,
    name: &FileName,
    id: InodeId,
) -> Result<(), ApplyError> {
    let mut inode = tx.inode(id)?;
    let first = match &inode.parent {
        Some(first) => leads_to(tx, first.directory, &first.name, id)?,
        None => false,
    };
    if first && !inode.is_directory() {
        tx.put_bytes(keys::name(id, directory, name.as_bytes()), Vec::new());
        return Ok(());
    }
    inode.parent = Some(ParentLink { directory, name: name.clone() });
    inode.changed = tx.time;
    tx.put_inode(&inode);
    Ok(())
}

/// Gives a name a position behind all others, or has the directory know that this one is given.
fn place_anew(
    tx: &mut Transaction<'_>,
    directory: InodeId,
    name: &FileName,
) -> Result<(), ApplyError> {
    let Some(mut entry) = tree::entry(tx, directory, name)? else { return Ok(()) };
    let mut parent = tx.inode(directory)?;
    let end = end_of_positions(tx, directory)?.max(parent.directory()?.next_cookie).max(1);
    let listed = tx.get(&keys::cookie(directory, entry.cookie))?;
    if entry.cookie != 0 && listed.as_deref() == Some(name.as_bytes()) {
        parent.directory_mut()?.next_cookie = end;
    } else {
        entry.cookie = end;
        parent.directory_mut()?.next_cookie = end + 1;
        tx.put(keys::entry(directory, name.as_bytes()), &entry);
        tx.put_bytes(keys::cookie(directory, end), name.as_bytes().to_vec());
    }
    touch_directory(tx, &mut parent);
    tx.put_inode(&parent);
    Ok(())
}

/// One past the highest position that is given: a search by halves.
fn end_of_positions(tx: &Transaction<'_>, directory: InodeId) -> Result<u64, StoreError> {
    use std::ops::Bound;
    let (mut low, mut high) = (0, u64::MAX);
    while low < high {
        let middle = low + (high - low) / 2;
        let (first, end) = (keys::cookie(directory, middle), keys::cookie(directory, high));
        let found = tx.scan(Bound::Included(&first), Bound::Excluded(&end), 1)?;
        match found.first().and_then(|(key, _)| keys::number_at(key, 9)) {
            Some(cookie) => low = cookie + 1,
            None => high = middle,
        }
    }
    Ok(low)
}

fn repair_inode(tx: &mut Transaction<'_>, id: InodeId) -> Result<(), ApplyError> {
    let Some(found) = tree::find(tx, id)? else { return Ok(()) };
    for (kind, _) in inode::verdicts(tx, &found)? {
        match kind {
            FlawKind::Nameless => name_lost(tx, id)?,
            FlawKind::Cycle => {
                if let Some(first) = tx.inode(id)?.parent {
                    leave(tx, id, &first)?;
                    name_lost(tx, id)?;
                }
            }
            _ => {
                let mut inode = tx.inode(id)?;
                correct(tx, &mut inode, kind)?;
                tx.put_inode(&inode);
            }
        }
    }
    Ok(())
}

/// Sets a part of an inode to what is there. The caller stores it.
fn correct(tx: &mut Transaction<'_>, inode: &mut Inode, kind: FlawKind) -> Result<(), ApplyError> {
    match kind {
        FlawKind::WrongParent if inode.id == InodeId::ROOT => inode.parent = None,
        FlawKind::WrongParent => {
            let first = Names::of(tx, inode)?.further.into_iter().next();
            if let Some(first) = &first {
                tx.delete(keys::name(inode.id, first.directory, first.name.as_bytes()));
            }
            inode.parent = first;
        }
        FlawKind::WrongLinks => {
            inode.links = Names::of(tx, inode)?.count();
            inode.changed = tx.time;
            inode.change_count = inode.change_count.next();
        }
        FlawKind::WrongAccount => inode.accounting = ACCOUNT,
        FlawKind::WrongAttributes => {
            let bytes = attribute_bytes(tx, inode.id)?;
            inode.xattr_bytes = u32::try_from(bytes).unwrap_or(u32::MAX);
        }
        FlawKind::WrongSize => {
            if let Body::Symlink(target) = &inode.body {
                inode.size = target.len() as u64;
            }
        }
        FlawKind::WrongConflict => tx.put_bytes(keys::conflict(inode.id), Vec::new()),
        _ => {}
    }
    Ok(())
}

/// Takes a directory out of the place that it has.
fn leave(tx: &mut Transaction<'_>, id: InodeId, place: &ParentLink) -> Result<(), ApplyError> {
    let Some(entry) = tree::entry(tx, place.directory, &place.name)? else { return Ok(()) };
    let inode = tx.inode(id)?;
    let mut parent = tx.inode(place.directory)?;
    take_entry(tx, &mut parent, &inode, &place.name, &entry);
    tx.put_inode(&parent);
    Ok(())
}

/// Names an inode in [`LOST_FOUND`], if that is there.
fn name_lost(tx: &mut Transaction<'_>, id: InodeId) -> Result<(), ApplyError> {
    let Some(mut parent) = lost_found(tx)? else { return Ok(()) };
    let Some(name) = free_name(tx, parent.id, id)? else { return Ok(()) };
    // What it believed of its names is not so.
    tx.delete_all(&keys::names(id))?;
    tx.delete(keys::nameable(id));
    let mut inode = tx.inode(id)?;
    inode.links = if inode.is_directory() { inode.links.max(2) } else { 1 };
    inode.changed = tx.time;
    inode.change_count = inode.change_count.next();
    add_name(tx, &mut parent, &mut inode, &name)?;
    tx.put_inode(&inode);
    tx.put_inode(&parent);
    Ok(())
}

/// The directory for what is lost; `None` where there is none, or something else of this name.
fn lost_found(tx: &Transaction<'_>) -> Result<Option<Inode>, ApplyError> {
    let name = FileName::parse(LOST_FOUND)?;
    let Some(entry) = tree::entry(tx, InodeId::ROOT, &name)? else { return Ok(None) };
    Ok(tree::find(tx, entry.inode)?.filter(Inode::is_directory))
}

/// The number of an inode as a name, with something behind it where somebody has that name.
fn free_name(
    tx: &Transaction<'_>,
    directory: InodeId,
    inode: InodeId,
) -> Result<Option<FileName>, ApplyError> {
    for again in 0..NAMES_TRIED {
        let text = match again {
            0 => inode.0.to_string(),
            again => format!("{}.{again}", inode.0),
        };
        let name = FileName::parse(text.as_bytes())?;
        if tree::entry(tx, directory, &name)?.is_none() {
            return Ok(Some(name));
        }
    }
    Ok(None)
}

fn make_lost_found(tx: &mut Transaction<'_>, id: InodeId) -> Result<(), ApplyError> {
    let name = FileName::parse(LOST_FOUND)?;
    if tree::entry(tx, InodeId::ROOT, &name)?.is_some() {
        return Ok(());
    }
    let mut root = tx.inode(InodeId::ROOT)?;
    let body = directory_body(root.directory()?.defaults, None);
    let mut inode = new_inode(tx, id, FileKind::Directory, (0, 0), body);
    inode.mode = 0o700;
    inode.accounting = root.accounting;
    inode.parent = Some(ParentLink { directory: InodeId::ROOT, name: name.clone() });
    insert_entry(tx, &mut root, &inode, &name)?;
    tx.put_inode(&inode);
    tx.put_inode(&root);
    tx.change_file_system(|fs| fs.inodes += 1)
}

fn repair_leftover(tx: &mut Transaction<'_>, key: &[u8]) -> Result<(), ApplyError> {
    let Some(value) = tx.get(key)? else { return Ok(()) };
    match leftover::verdict(tx, key, &value)? {
        None => return Ok(()),
        Some(Verdict::Complete(second, _)) => {
            tx.put_bytes(second, Vec::new());
            return Ok(());
        }
        Some(Verdict::Remove(..)) => tx.delete(key.to_owned()),
    }
    match key.first() {
        Some(b'Q') => tx.change_file_system(|fs| {
            fs.reclaim_entries = fs.reclaim_entries.saturating_sub(1);
        }),
        // As the end of the session would have done.
        Some(b'O') => {
            let number = |offset| keys::number_at(key, offset).unwrap_or_default();
            let inode = InodeId(number(1));
            tx.delete(keys::opened(millrace_types::SessionId(number(9)), inode));
            let Some(found) = tree::find(tx, inode)? else { return Ok(()) };
            pristine::forget(tx, &found)?;
            if found.links == 0 && found.parent.is_none() {
                orphan::drop_if_unused(tx, &found)?;
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn repair_counts(
    tx: &mut Transaction<'_>,
    directory: InodeId,
    entries: u64,
    directories: u32,
) -> Result<(), ApplyError> {
    let Some(mut inode) = tree::find(tx, directory)?.filter(Inode::is_directory) else {
        return Ok(());
    };
    inode.size = entries;
    if inode.id == InodeId::ROOT || inode.parent.is_some() {
        inode.links = directories.saturating_add(2);
    }
    touch_directory(tx, &mut inode);
    tx.put_inode(&inode);
    Ok(())
}

/// Names that are tried in [`LOST_FOUND`] for one inode.
const NAMES_TRIED: u32 = 100;
