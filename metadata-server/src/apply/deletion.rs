//! What was removed here and is to be removed from its bucket too, where the link says so.
//!
//! An object is queued by the command that takes the last need for it away, so that the queue never
//! has one that something here needs, whatever happens in between: the removal of a file's last
//! name, and the end of an export that put a file under another key. A directory is queued when it
//! is removed or moved; what is deleted of it is its mark, which holds nothing.

use millrace_protocol::{capability::Origin, cluster::LinkMode};
use millrace_types::{ErrorKind, InodeId, LinkId};

use super::{ApplyError, Transaction, export::is_shown_by, place};
use crate::{
    command::{ForgetDeletion, Outcome, SetDeletePropagation},
    namespace::{Body, Inode, tree},
    store::{
        View, keys,
        records::{DeletePropagationRecord, DeletionRecord, LinkRecord, Whiteout},
    },
};

/// The feature level from which on links say whether removals reach the bucket.
const DELETIONS_LEVEL: u32 = 10;

/// Sets whether removals below a link reach its bucket. What waits when that ends stays there.
pub(super) fn set(
    tx: &mut Transaction<'_>,
    set: SetDeletePropagation,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < DELETIONS_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let link: LinkRecord = tx.read(&keys::link(set.link))?.ok_or(ErrorKind::NotFound)?;
    if !set.on {
        forget_link(tx, set.link)?;
    } else if link.mode != LinkMode::ImportExport {
        return Err(ErrorKind::ReadOnly.into());
    } else if !is_on(tx, set.link)? {
        let since = tx.time;
        tx.put(keys::delete_propagation(set.link), &DeletePropagationRecord { since });
    }
    Ok(Outcome::Done)
}

/// An object is gone, or is not to be deleted any more. One that was queued again since stays.
pub(super) fn forget(
    tx: &mut Transaction<'_>,
    forget: &ForgetDeletion,
) -> Result<Outcome, ApplyError> {
    let key = keys::deletion(forget.link, &forget.key);
    let known: Option<DeletionRecord> = tx.read(&key)?;
    if known.is_some_and(|known| known.tag == forget.tag && known.queued == forget.queued) {
        tx.delete(key);
    }
    Ok(Outcome::Done)
}

/// The feature level from which on what hid an object goes with it.
pub(crate) const OBJECT_DELETED_LEVEL: u32 = 21;

/// An object was deleted here. So goes what hid it: who puts it back wants to see it, also when it
/// is the same version. What hides another version stays, and so it does when the object was queued
/// again since, or a file still stands against it that had its name.
pub(super) fn object_deleted(
    tx: &mut Transaction<'_>,
    deleted: &ForgetDeletion,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < OBJECT_DELETED_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    forget(tx, deleted)?;
    let ForgetDeletion { link, key, tag, .. } = deleted;
    // Without a tag it is what a directory or a symbolic link hides: nobody knows of all of that.
    if tag.is_empty() || tx.get(&keys::deletion(*link, key))?.is_some() {
        return Ok(Outcome::Done);
    }
    let Some((directory, name)) = place::of_key(tx, *link, key)? else {
        return Ok(Outcome::Done);
    };
    let whiteout = keys::whiteout(directory, name.as_bytes());
    let is_its = tx.read::<Whiteout>(&whiteout)?.is_some_and(|known| known.tag == *tag);
    if !is_its || !is_shown_by(&tx.inode(directory)?, *link, key, &name) {
        return Ok(Outcome::Done);
    }
    let moved = keys::moved_file(directory, name.as_bytes());
    if let Some(id) = tx.get(&moved)?.and_then(|id| keys::number_at(&id, 0))
        && let Some(Body::File(file)) = tree::find(tx, InodeId(id))?.map(|inode| inode.body)
        && let Some(origin) = &file.origin
        && (origin.link, &origin.key, &origin.tag) == (*link, key, tag)
    {
        return Ok(Outcome::Done);
    }
    tx.delete(whiteout);
    tx.delete(moved);
    Ok(Outcome::Done)
}

/// Nothing of a link is deleted any more.
pub(super) fn forget_link(tx: &mut Transaction<'_>, link: LinkId) -> Result<(), ApplyError> {
    tx.delete(keys::delete_propagation(link));
    Ok(tx.delete_all(&keys::deletions(link))?)
}

/// A user removed a name of this inode, which is as it was before.
pub(super) fn name_removed(tx: &mut Transaction<'_>, inode: &Inode) -> Result<(), ApplyError> {
    match &inode.body {
        Body::File(file) if inode.links == 1 => match &file.origin {
            Some(origin) => queue(tx, origin, Some(inode.id)),
            None => Ok(()),
        },
        Body::Directory(_) => directory_left(tx, inode),
        _ => Ok(()),
    }
}

/// A directory is not, or not any more, where the bucket has it.
pub(super) fn directory_left(tx: &mut Transaction<'_>, inode: &Inode) -> Result<(), ApplyError> {
    let Body::Directory(body) = &inode.body else { return Ok(()) };
    let Some(linked) = body.linked.clone() else { return Ok(()) };
    if !is_on(tx, linked.link)? {
        return Ok(());
    }
    // Where it came from, and where it has been exported to since.
    let places = [Some(linked.prefix), path_prefix(tx, inode, linked.link)?];
    for place in places.into_iter().flatten().filter(|place| !place.is_empty()) {
        if !can_be_key(tx, &place)? {
            continue;
        }
        let record = DeletionRecord { tag: String::new(), inodes: Vec::new(), queued: tx.time };
        tx.put(keys::deletion(linked.link, &place), &record);
    }
    Ok(())
}

/// What the keys of a directory's path begin with; `None` where no key can have its names.
pub(super) fn path_prefix(
    tx: &Transaction<'_>,
    directory: &Inode,
    link: LinkId,
) -> Result<Option<String>, ApplyError> {
    let Some(record) = tx.read::<LinkRecord>(&keys::link(link))? else { return Ok(None) };
    let mut names = Vec::new();
    let mut at = directory.clone();
    while at.id != record.directory {
        let Some(parent) = at.parent.filter(|_| names.len() < DEPTH_MAX) else { return Ok(None) };
        let Ok(name) = String::from_utf8(parent.name.as_bytes().to_vec()) else { return Ok(None) };
        names.push(name);
        at = tx.inode(parent.directory)?;
    }
    let Body::Directory(top) = &at.body else { return Ok(None) };
    let Some(mut prefix) = top.linked.as_ref().map(|top| top.prefix.clone()) else {
        return Ok(None);
    };
    for name in names.iter().rev() {
        prefix.push_str(name);
        prefix.push('/');
    }
    Ok(Some(prefix))
}

/// Deeper than any key.
const DEPTH_MAX: usize = 1024;

/// A file has another object now: the one that it had is needed no more.
pub(super) fn object_left(
    tx: &mut Transaction<'_>,
    old: Option<&Origin>,
    new: &Origin,
) -> Result<(), ApplyError> {
    match old.filter(|old| old.link == new.link && old.key != new.key) {
        Some(old) => queue(tx, old, None),
        None => Ok(()),
    }
}

/// An object was made whose file had lost its last name meanwhile; the inode, if it is open still.
pub(super) fn object_lost(
    tx: &mut Transaction<'_>,
    origin: &Origin,
    inode: Option<InodeId>,
) -> Result<(), ApplyError> {
    queue(tx, origin, inode)
}

fn queue(
    tx: &mut Transaction<'_>,
    origin: &Origin,
    inode: Option<InodeId>,
) -> Result<(), ApplyError> {
    if !is_on(tx, origin.link)? || !can_be_key(tx, &origin.key)? {
        return Ok(());
    }
    let key = keys::deletion(origin.link, &origin.key);
    let known: Option<DeletionRecord> = tx.read(&key)?;
    let same = known.filter(|known| known.tag == origin.tag);
    let mut inodes = same.map(|known| known.inodes).unwrap_or_default();
    inodes.extend(inode);
    tx.put(key, &DeletionRecord { tag: origin.tag.clone(), inodes, queued: tx.time });
    Ok(())
}

/// The feature level from which on nothing is queued that no bucket can have.
const KEY_LEN_LEVEL: u32 = 18;

/// The longest key that a bucket may have, in bytes: `az://` takes 1,024 characters, and `file://`
/// what is a path.
pub(super) const KEY_LEN_MAX: usize = 4096;

/// The longest that was queued before: a key of the store has at most 65,535 bytes, six of which
/// stand in front. With a longer one the command came into the log, and the store on disk failed at
/// what it did, also when it was made anew; only one in memory took it.
const STORED_LEN_MAX: usize = 65_535 - 6;

/// Whether there can be anything in a bucket under a key. What lies deep enough here has a path
/// that is none.
fn can_be_key(tx: &Transaction<'_>, key: &str) -> Result<bool, ApplyError> {
    if key.len() <= KEY_LEN_MAX {
        return Ok(true);
    }
    let is_old = tx.file_system()?.feature_level < KEY_LEN_LEVEL;
    Ok(is_old && key.len() <= STORED_LEN_MAX)
}

fn is_on(tx: &Transaction<'_>, link: LinkId) -> Result<bool, ApplyError> {
    Ok(tx.get(&keys::delete_propagation(link))?.is_some())
}
