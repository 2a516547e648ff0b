//! Removes names: unlink and rmdir.

use millrace_types::{ErrorKind, FileName, InodeId, SessionId};

use super::{
    ApplyError, Transaction,
    create::{REMOVED_STAYS_LEVEL, touch_directory},
    deletion, orphan,
};
use crate::{
    command::{Outcome, Remove},
    namespace::{Body, DirectoryBody, Inode, ParentLink, permission, tree},
    store::{
        View, keys,
        records::{Entry, Whiteout},
    },
};

/// Removes a name; the inode goes with its last one, unless somebody has it open.
pub(super) fn remove(tx: &mut Transaction<'_>, remove: &Remove) -> Result<Outcome, ApplyError> {
    let mut parent = tx.inode(remove.parent)?;
    parent.directory()?;
    permission::check(tx, &remove.caller, &parent, permission::Access::Search)?;
    let entry = tree::entry(tx, parent.id, &remove.name)?.ok_or(ErrorKind::NotFound)?;
    let inode = tree::named(tx, &entry)?;
    permission::check_remove(tx, &remove.caller, &parent, &inode)?;
    match (inode.is_directory(), remove.directory) {
        (true, false) => return Err(ErrorKind::IsDirectory.into()),
        (false, true) => return Err(ErrorKind::NotDirectory.into()),
        (true, true) => check_removable(tx, &inode)?,
        (false, false) => {}
    }
    tx.check_names_writable(&parent)?;
    let id = inode.id;
    leave_whiteout(tx, &parent, &inode, &remove.name)?;
    deletion::name_removed(tx, &inode)?;
    take_entry(tx, &mut parent, &inode, &remove.name, &entry);
    tx.put_inode(&parent);
    drop_name(tx, inode, parent.id, &remove.name, &remove.readers)?;
    Ok(Outcome::Inode(id))
}

/// Checks that a directory may go: it has no entry, shows no link, and nothing is left to be
/// listed.
pub(super) fn check_removable(tx: &Transaction<'_>, inode: &Inode) -> Result<(), ApplyError> {
    let body = inode.directory()?;
    let unlisted = body.linked.as_ref().is_some_and(|linked| linked.listed.is_none());
    if inode.size > 0 || unlisted {
        return Err(ErrorKind::NotEmpty.into());
    }
    check_no_link_root(tx, inode)
}

/// The directory of a link stays until the link is removed.
pub(super) fn check_no_link_root(tx: &Transaction<'_>, inode: &Inode) -> Result<(), ApplyError> {
    match tx.link_of(inode)? {
        Some((_, link)) if link.directory == inode.id => Err(ErrorKind::InUse.into()),
        _ => Ok(()),
    }
}

/// Remembers that an imported name was taken away, so that the next listing does not bring it back.
pub(super) fn leave_whiteout(
    tx: &mut Transaction<'_>,
    parent: &Inode,
    inode: &Inode,
    name: &FileName,
) -> Result<(), ApplyError> {
    let Body::Directory(directory) = &parent.body else {
        return Ok(());
    };
    if directory.linked.is_none() {
        return Ok(());
    }
    let is_new = tx.file_system()?.feature_level >= REMOVED_STAYS_LEVEL;
    let tag = match &inode.body {
        Body::File(file) => file.origin.as_ref().map(|origin| origin.tag.clone()),
        Body::Directory(body) => body.linked.as_ref().map(|_| String::new()),
        // Nobody knows which object it came from, or whether from any. What hides the object of a
        // file that had the name before goes on doing so.
        Body::Symlink(_) if is_new && !hides(tx, parent.id, name)? => Some(String::new()),
        Body::Symlink(_) | Body::Special => None,
    };
    let Some(tag) = tag else { return Ok(()) };
    if is_object_of_another_key(directory, inode, name)
        && tx.file_system()?.feature_level >= KEEPS_WHITEOUTS_LEVEL
        && hides(tx, parent.id, name)?
        && !is_object_of_path(tx, parent, inode, name)?
    {
        // What hides the object of this key, and tells which file may need it, goes on doing so.
        return Ok(());
    }
    tx.put(keys::whiteout(parent.id, name.as_bytes()), &Whiteout { tag });
    // While it has other names, or another one now, it may need the object.
    let moved = keys::moved_file(parent.id, name.as_bytes());
    match &inode.body {
        Body::File(_) if is_new => tx.put_bytes(moved, inode.id.0.to_be_bytes().into()),
        _ => tx.delete(moved),
    }
    Ok(())
}

/// The feature level from which on a file whose object has another key leaves whiteouts alone.
const KEEPS_WHITEOUTS_LEVEL: u32 = 10;

/// Whether a file has an object, and that is not the one of its name in this directory.
fn is_object_of_another_key(directory: &DirectoryBody, inode: &Inode, name: &FileName) -> bool {
    let (Body::File(file), Some(linked)) = (&inode.body, &directory.linked) else { return false };
    let Some(origin) = &file.origin else { return false };
    let name = std::str::from_utf8(name.as_bytes()).ok();
    let key = name.and_then(|name| origin.key.strip_prefix(&linked.prefix)?.strip_prefix(name));
    key != Some("") || origin.link != linked.link
}

/// Whether a file has the object that its path has the key of, in a directory that was moved after
/// it was listed: nothing is imported there any more, and what takes the name replaces that object.
fn is_object_of_path(
    tx: &Transaction<'_>,
    parent: &Inode,
    inode: &Inode,
    name: &FileName,
) -> Result<bool, ApplyError> {
    let (Body::File(file), Body::Directory(directory)) = (&inode.body, &parent.body) else {
        return Ok(false);
    };
    let linked = directory.linked.as_ref().filter(|linked| linked.listed.is_some());
    let (Some(origin), Some(linked)) = (&file.origin, linked) else { return Ok(false) };
    if origin.link != linked.link {
        return Ok(false);
    }
    let prefix = deletion::path_prefix(tx, parent, origin.link)?;
    let rest = prefix.and_then(|prefix| origin.key.strip_prefix(&prefix));
    Ok(rest.map(str::as_bytes) == Some(name.as_bytes()))
}

/// Whether something hides an object under this name.
pub(super) fn hides(
    tx: &Transaction<'_>,
    directory: InodeId,
    name: &FileName,
) -> Result<bool, ApplyError> {
    Ok(tx.get(&keys::whiteout(directory, name.as_bytes()))?.is_some())
}

/// Forgets which imported names of a directory were removed, and which keys were left out there,
/// all at once.
pub(super) fn forget_whiteouts(
    tx: &mut Transaction<'_>,
    directory: InodeId,
) -> Result<(), ApplyError> {
    tx.delete(keys::left_out(directory));
    tx.delete(keys::sweep(directory));
    tx.delete_all(&keys::whiteouts(directory))?;
    Ok(tx.delete_all(&keys::moved_files(directory))?)
}

/// Takes an entry out of a directory and counts it there; the caller stores the directory.
pub(super) fn take_entry(
    tx: &mut Transaction<'_>,
    parent: &mut Inode,
    inode: &Inode,
    name: &FileName,
    entry: &Entry,
) {
    tx.delete(keys::entry(parent.id, name.as_bytes()));
    tx.delete(keys::cookie(parent.id, entry.cookie));
    parent.size = parent.size.saturating_sub(1);
    if inode.is_directory() {
        parent.links = parent.links.saturating_sub(1);
    }
    touch_directory(tx, parent);
}

/// Takes a name away from an inode, whose entry is gone already.
pub(super) fn drop_name(
    tx: &mut Transaction<'_>,
    mut inode: Inode,
    parent: InodeId,
    name: &FileName,
    readers: &[SessionId],
) -> Result<(), ApplyError> {
    inode.changed = tx.time;
    inode.change_count = inode.change_count.next();
    inode.links = if inode.is_directory() { 0 } else { inode.links.saturating_sub(1) };
    if inode.links == 0 {
        inode.parent = None;
        return orphan::lost_last_name(tx, &inode, readers);
    }
    forget_parent(tx, &mut inode, parent, name)?;
    tx.put_inode(&inode);
    Ok(())
}

/// Forgets one of several names; the next one becomes the first.
pub(super) fn forget_parent(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
    parent: InodeId,
    name: &FileName,
) -> Result<(), ApplyError> {
    let gone = ParentLink { directory: parent, name: name.clone() };
    if inode.parent.as_ref() != Some(&gone) {
        tx.delete(keys::name(inode.id, parent, name.as_bytes()));
        return Ok(());
    }
    let prefix = keys::names(inode.id);
    let end = crate::store::prefix_end(&prefix);
    let next = tx.scan(std::ops::Bound::Included(&prefix), crate::store::borrow(&end), 1)?;
    inode.parent = match next.into_iter().next() {
        Some((key, _)) => {
            let next = tree::parent_of_key(&key)?;
            tx.delete(key);
            Some(next)
        }
        None => None,
    };
    Ok(())
}
