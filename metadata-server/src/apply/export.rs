//! Exports: a file is frozen, uploaded, and becomes exported if it has not changed meanwhile.

use millrace_protocol::capability::Origin;
use millrace_types::{ErrorKind, FileName, InodeId, LinkId};

use super::{ApplyError, Transaction, commit, deletion, orphan, place, remove::hides};
use crate::{
    command::{BeginExport, CompleteExport, Outcome},
    namespace::{Body, FileBody, Inode, ObjectState, tree},
    store::{
        keys,
        records::{Export, Whiteout},
    },
};

/// The feature level from which on a file that was truncated during its export knows the object.
const TRUNCATED_LEVEL: u32 = 6;

/// The feature level from which on an export stays known until all targets know of the object.
const MARKED_LEVEL: u32 = 9;

/// The feature level from which on an object is known whose file was renamed or removed while it
/// was on its way.
const LEFT_BEHIND_LEVEL: u32 = 10;

/// The feature level from which on nothing hides an object that an export has replaced.
const REPLACED_LEVEL: u32 = 26;

/// The feature level from which on an export begins another write epoch: targets refuse what they
/// are asked for by who knows the file from before it, where they may have dropped bytes since.
pub(super) const OUTDATING_LEVEL: u32 = 20;

/// Freezes a file that nobody has open. An upload that was under way is replaced: its job looks for
/// what it left in the bucket.
pub(super) fn begin(tx: &mut Transaction<'_>, begin: &BeginExport) -> Result<Outcome, ApplyError> {
    let inode = tx.inode(begin.inode)?;
    let file = inode.file()?;
    if orphan::is_open(tx, inode.id)? {
        return Err(ErrorKind::InUse.into());
    }
    if file.state == ObjectState::Conflict {
        return Err(ErrorKind::Conflict.into());
    }
    commit::check_whole(file)?;
    let export = Export {
        job: begin.job,
        id: begin.export,
        change_count: inode.change_count,
        generation: file.generation,
        size: inode.size,
        link: begin.link,
        key: begin.key.clone(),
        replaces: begin.replaces.clone(),
        part_size: begin.part_size,
        upload_id: None,
    };
    tx.put(keys::export(inode.id), &export);
    Ok(Outcome::Frozen(inode.change_count))
}

/// Remembers the name that the bucket gave the upload.
pub(super) fn record_upload(
    tx: &mut Transaction<'_>,
    inode: InodeId,
    id: u128,
    upload_id: &str,
) -> Result<Outcome, ApplyError> {
    let mut export = find(tx, inode, id)?;
    export.upload_id = Some(upload_id.to_owned());
    tx.put(keys::export(inode), &export);
    Ok(Outcome::Done)
}

/// The object stands. Only a file that is still the frozen one is exported by it; its export stays
/// known until the targets have taken their blocks for the object's.
pub(super) fn complete(
    tx: &mut Transaction<'_>,
    complete: &CompleteExport,
) -> Result<Outcome, ApplyError> {
    let export = find(tx, complete.inode, complete.export)?;
    tx.delete(keys::export(complete.inode));
    let found = tree::find(tx, complete.inode)?;
    leave_behind(tx, &export, &complete.origin, complete.inode, found.as_ref())?;
    let Some(mut inode) = found else {
        return Ok(Outcome::Exported(false));
    };
    let same = inode.change_count == export.change_count;
    let old = inode.file()?.origin.clone();
    let feature_level = tx.file_system()?.feature_level;
    let file = inode.file_mut()?;
    if file.generation != export.generation || commit::check_whole(file).is_err() {
        if feature_level >= TRUNCATED_LEVEL && file.state != ObjectState::Lost {
            // Truncated meanwhile. The object backs nothing of it, but is its own.
            file.state = ObjectState::Dirty;
            file.origin = Some(complete.origin.clone());
            tx.put_inode(&inode);
            deletion::object_left(tx, old.as_ref(), &complete.origin)?;
        }
        return Ok(Outcome::Exported(false));
    }
    // The tag is the condition of the next upload, whether or not the file changed meanwhile. What
    // was absent then was the bucket's, and the object has it again: it backs as much as before.
    if same {
        file.origin_length = complete.origin.size;
        file.state = ObjectState::Exported;
        outdate(tx, complete.inode, file)?;
    } else {
        file.origin_length = file.origin_length.min(complete.origin.size);
        file.state = ObjectState::Dirty;
    }
    file.origin = Some(complete.origin.clone());
    inode.changed = tx.time;
    tx.put_inode(&inode);
    deletion::object_left(tx, old.as_ref(), &complete.origin)?;
    if same && feature_level >= MARKED_LEVEL {
        tx.put(keys::export(complete.inode), &export);
    }
    Ok(Outcome::Exported(same))
}

/// Whoever knows a file from before its export names another object, or takes for a hole what is
/// absent: from now on that is told by its write epoch. The object has zeros where holes were, so
/// that there are none any more. (Bytes that live in an inode are never dropped.)
fn outdate(
    tx: &mut Transaction<'_>,
    inode: InodeId,
    file: &mut FileBody,
) -> Result<(), ApplyError> {
    if file.inline.is_none() && tx.file_system()?.feature_level >= OUTDATING_LEVEL {
        file.sparse = false;
        tx.raise_write_epoch(inode, file)?;
    }
    Ok(())
}

/// Notes an object whose file is not where its key is any more: it was renamed, replaced or removed
/// while the upload was on its way. Who takes its name replaces this version of the object, and no
/// listing brings it back.
fn leave_behind(
    tx: &mut Transaction<'_>,
    export: &Export,
    origin: &Origin,
    id: InodeId,
    inode: Option<&Inode>,
) -> Result<(), ApplyError> {
    if tx.file_system()?.feature_level < LEFT_BEHIND_LEVEL {
        return Ok(());
    }
    if let Some((directory, name)) = place::of_key(tx, export.link, &export.key)?
        && (is_shown_by(&tx.inode(directory)?, export.link, &export.key, &name)
            || !hides(tx, directory, &name)?)
    {
        let entry = tree::entry(tx, directory, &name)?;
        if entry.is_some_and(|entry| entry.inode == id) {
            if tx.file_system()?.feature_level >= REPLACED_LEVEL {
                // What it hid is in the bucket no more. Who puts that back wants it to be seen.
                tx.delete(keys::whiteout(directory, name.as_bytes()));
                tx.delete(keys::moved_file(directory, name.as_bytes()));
            }
            return Ok(());
        }
        let tag = origin.tag.clone();
        tx.put(keys::whiteout(directory, name.as_bytes()), &Whiteout { tag });
        let moved = keys::moved_file(directory, name.as_bytes());
        match inode {
            Some(inode) => tx.put_bytes(moved, inode.id.0.to_be_bytes().into()),
            None => tx.delete(moved),
        }
    }
    match inode {
        // It is exported once more, under the key that it has now.
        Some(inode) if inode.links > 0 => Ok(()),
        Some(inode) => deletion::object_lost(tx, origin, Some(inode.id)),
        None => deletion::object_lost(tx, origin, None),
    }
}

/// Whether a directory shows the object of a key under this name. One that was moved to where it is
/// shows others, and what hides those there stays.
pub(super) fn is_shown_by(directory: &Inode, link: LinkId, key: &str, name: &FileName) -> bool {
    let Body::Directory(body) = &directory.body else { return false };
    let linked = body.linked.as_ref().filter(|linked| linked.link == link);
    let rest = linked.and_then(|linked| key.strip_prefix(&linked.prefix));
    rest.map(str::as_bytes) == Some(name.as_bytes())
}

/// A file is gone. An upload of it that is still on its way is known until its end: its object may
/// come to stand.
pub(super) fn file_dropped(tx: &mut Transaction<'_>, inode: &Inode) -> Result<(), ApplyError> {
    let key = keys::export(inode.id);
    let Some(export) = tx.read::<Export>(&key)? else { return Ok(()) };
    let file = inode.file()?;
    let is_made = file.state == ObjectState::Exported
        && file.origin.as_ref().is_some_and(|origin| export.is_of(origin));
    if is_made || tx.file_system()?.feature_level < LEFT_BEHIND_LEVEL {
        tx.delete(key);
    }
    Ok(())
}

/// Whether a file is what this export made of it. One that was written to since is not.
pub(crate) fn has_made(export: &Export, inode: &Inode) -> bool {
    let Body::File(file) = &inode.body else { return false };
    file.state == ObjectState::Exported
        && inode.change_count == export.change_count
        && file.origin.as_ref().is_some_and(|origin| export.is_of(origin))
}

/// The feature level from which on a file is dirty again also when its owner, mode or times changed
/// since its export.
const REOPENED_LEVEL: u32 = 18;

/// Whether a file has the content that this export put into the bucket, as those see it who ask the
/// targets to mark it. Its owner, mode and times may be others, and so its change count.
fn has_content_of(export: &Export, inode: &Inode) -> bool {
    let Body::File(file) = &inode.body else { return false };
    file.state == ObjectState::Exported
        && file.generation == export.generation
        && file.origin.as_ref().is_some_and(|origin| export.is_of(origin))
}

/// The targets do not know which of their blocks the object has: unless the file was written to
/// since, it is dirty again, and its next export sends it once more.
pub(super) fn reopen(
    tx: &mut Transaction<'_>,
    inode: InodeId,
    id: u128,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < MARKED_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let export = find(tx, inode, id)?;
    tx.delete(keys::export(inode));
    let is_its = match tx.file_system()?.feature_level >= REOPENED_LEVEL {
        true => has_content_of,
        false => has_made,
    };
    let Some(mut inode) = tree::find(tx, inode)?.filter(|inode| is_its(&export, inode)) else {
        return Ok(Outcome::Done);
    };
    commit::mark_dirty(inode.file_mut()?);
    tx.put_inode(&inode);
    Ok(Outcome::Done)
}

/// Gives the upload up, or forgets an export that is known everywhere; one that is gone already is
/// no error.
pub(super) fn abort(
    tx: &mut Transaction<'_>,
    inode: InodeId,
    id: u128,
) -> Result<Outcome, ApplyError> {
    match find(tx, inode, id) {
        Ok(_) => tx.delete(keys::export(inode)),
        Err(ApplyError::Refused(_)) => {}
        Err(error) => return Err(error),
    }
    Ok(Outcome::Done)
}

fn find(tx: &Transaction<'_>, inode: InodeId, id: u128) -> Result<Export, ApplyError> {
    let export: Export = tx.read(&keys::export(inode))?.ok_or(ErrorKind::NotFound)?;
    if export.id == id { Ok(export) } else { Err(ErrorKind::NotFound.into()) }
}
