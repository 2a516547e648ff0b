//! Sizes and contents: commits of writers, truncation, and the trims that a shrink leaves behind.

use millrace_types::{ErrorKind, InodeId, SessionId, WriteEpoch};

use super::{
    ApplyError, Transaction, export::OUTDATING_LEVEL, inline, orphan, pristine, restore, xattr,
};
use crate::{
    command::{Commit, Outcome},
    namespace::{Body, FileBody, Inode, ObjectState},
    store::{keys, records::TrimRecord},
};

/// Takes a writer's proposal. One of an older content or epoch changes nothing.
pub(super) fn commit(tx: &mut Transaction<'_>, commit: &Commit) -> Result<Outcome, ApplyError> {
    let mut inode = tx.inode(commit.inode)?;
    let outcome = Ok(Outcome::Inode(inode.id));
    pristine::forget(tx, &inode)?;
    let size = inode.size;
    let file = inode.file_mut()?;
    let current = file.generation == commit.generation && file.write_epoch == commit.write_epoch;
    let grows = commit.end > size;
    if !current || (!grows && commit.written_at.is_none()) {
        return outcome;
    }
    check_whole(file)?;
    inline::check_spilled(file)?;
    if grows {
        check_size(file, commit.end)?;
        check_may_grow(tx, commit.inode)?;
    }
    mark_dirty(file);
    inode.size = size.max(commit.end);
    if let Some(written_at) = commit.written_at {
        inode.modified = written_at.min(tx.time);
    }
    xattr::drop_capability(tx, &mut inode)?;
    changed(tx, &mut inode);
    tx.put_inode(&inode);
    outcome
}

/// Gives a file another size, for a session.
///
/// Returns whether targets must trim before anybody hears of it.
pub(super) fn resize(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
    size: u64,
    by: Option<SessionId>,
) -> Result<bool, ApplyError> {
    let old = inode.size;
    let id = inode.id;
    check_size(inode.file()?, size)?;
    if size == 0 {
        let is_written = orphan::is_written(tx, id, by)?;
        return replace_content(tx, inode, is_written).map(|()| false);
    }
    check_whole(inode.file()?)?;
    inline::check_spilled(inode.file()?)?;
    if size > old {
        check_may_grow(tx, id)?;
        inode.file_mut()?.sparse = true;
    }
    let shrinks = size < old;
    let file = inode.file_mut()?;
    mark_dirty(file);
    if shrinks {
        tx.raise_write_epoch(id, file)?;
        file.origin_length = file.origin_length.min(size);
        tx.put(keys::trim(id), &trim_to(file, size));
    }
    inode.size = size;
    inode.modified = tx.time;
    xattr::drop_capability(tx, inode)?;
    changed(tx, inode);
    Ok(shrinks)
}

/// Replaces the content by a new, empty one; the old one's chunks may go. Others who write the old
/// one may have more of it at the targets than is known here.
pub(super) fn replace_content(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
    is_written: bool,
) -> Result<(), ApplyError> {
    let id = inode.id;
    let is_written = is_written && tx.file_system()?.feature_level >= WRITTEN_LEVEL;
    let empty = inode.size == 0 && !is_written;
    let file = inode.file_mut()?;
    if file.state == ObjectState::Lost {
        file.state = if file.origin.is_some() { ObjectState::Dirty } else { ObjectState::Local };
    }
    mark_dirty(file);
    if !(empty && is_untouched(file)) {
        if !inline::take(tx, id, file) {
            orphan::reclaim(tx, id, file.generation, file.layout)?;
        }
        tx.raise_generation(id, file)?;
        file.origin_length = 0;
        file.sparse = false;
        tx.delete(keys::trim(id));
    }
    inode.size = 0;
    inode.modified = tx.time;
    xattr::drop_capability(tx, inode)?;
    changed(tx, inode);
    Ok(())
}

/// A session has ended that had the file open for writing. It may have more of the content at the
/// targets than is known here, and nobody tells of that any more: the targets drop what lies past
/// the size before anybody writes again. While others write, the content is at least not untouched
/// any more, so that a truncation has another one take its place.
pub(super) fn lose_writer(tx: &mut Transaction<'_>, inode: &mut Inode) -> Result<(), ApplyError> {
    let id = inode.id;
    let Body::File(file) = &mut inode.body else { return Ok(()) };
    // Bytes that live in an inode go to the targets under another epoch than any writer had.
    if file.inline.is_some() || tx.file_system()?.feature_level < LOST_WRITER_LEVEL {
        return Ok(());
    }
    if inode.links == 0 && !orphan::is_open(tx, id)? {
        return Ok(());
    }
    if orphan::is_written(tx, id, None)? {
        // What others have written under this epoch has yet to be committed under it.
        if inode.size > 0 || !is_untouched(file) {
            return Ok(());
        }
        file.sparse = true;
    } else {
        tx.raise_write_epoch(id, file)?;
        // What has lost bytes does not grow before another content takes its place.
        if file.state != ObjectState::Lost {
            tx.put(keys::trim(id), &trim_to(file, inode.size));
        }
    }
    inode.change_count = inode.change_count.next();
    tx.put_inode(inode);
    Ok(())
}

/// Somebody is about to write. After a backup was put back targets may have been told of a cut or
/// an export that is unknown here, and refuse the epoch of before. A file with holes keeps it: in
/// another one, what they have dropped since an export would pass for a hole.
pub(super) fn leave_restored_epoch(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
) -> Result<(), ApplyError> {
    let id = inode.id;
    let file = inode.file_mut()?;
    if !restore::is_of_before(tx, file.write_epoch)?
        || tx.file_system()?.feature_level < OUTDATING_LEVEL
        || file.inline.is_some()
        || file.sparse
        || orphan::is_written(tx, id, None)?
    {
        return Ok(());
    }
    tx.raise_write_epoch(id, file)?;
    if let Some(trim) = tx.read::<TrimRecord>(&keys::trim(id))? {
        tx.put(keys::trim(id), &TrimRecord { write_epoch: file.write_epoch, ..trim });
    }
    Ok(())
}

/// What targets must drop of a content of this size before it may grow.
fn trim_to(file: &FileBody, size: u64) -> TrimRecord {
    TrimRecord {
        generation: file.generation,
        write_epoch: file.write_epoch,
        layout: file.layout,
        size,
    }
}

/// Every target has heard of the shrink to this epoch.
pub(super) fn trimmed(
    tx: &mut Transaction<'_>,
    inode: InodeId,
    write_epoch: WriteEpoch,
) -> Result<Outcome, ApplyError> {
    let key = keys::trim(inode);
    match tx.read::<TrimRecord>(&key)? {
        Some(trim) if trim.write_epoch <= write_epoch => tx.delete(key),
        _ => {}
    }
    Ok(Outcome::Done)
}

/// The file differs from its object from now on. Without an object there is nothing to differ from.
pub(super) fn mark_dirty(file: &mut FileBody) {
    file.state = match file.state {
        ObjectState::Clean | ObjectState::Exported | ObjectState::Dirty => ObjectState::Dirty,
        ObjectState::Local => ObjectState::Local,
        ObjectState::Conflict => ObjectState::Conflict,
        ObjectState::Lost => ObjectState::Lost,
    };
}

/// Refuses to change what has lost bytes: next to a change they could pass for a hole. Another
/// content may take its place.
pub(super) fn check_whole(file: &FileBody) -> Result<(), ErrorKind> {
    if file.state == ObjectState::Lost { Err(ErrorKind::Lost) } else { Ok(()) }
}

/// The inode changed: its change time and count say so.
pub(super) fn changed(tx: &Transaction<'_>, inode: &mut Inode) {
    inode.changed = tx.time;
    inode.change_count = inode.change_count.next();
}

/// The feature level from which on what a writer may have at the targets counts, although nobody
/// knows here of it.
const WRITTEN_LEVEL: u32 = 12;

/// The feature level from which on it counts also when its session has ended.
const LOST_WRITER_LEVEL: u32 = 19;

/// A content that has no byte anywhere needs no successor: it is the first one, made here, nobody
/// writes it but who replaces it, and nobody did whose session has ended.
fn is_untouched(file: &FileBody) -> bool {
    file.generation.0 == 1 && file.write_epoch.0 == 1 && file.origin.is_none() && !file.sparse
}

/// Growth waits until the targets have dropped what lay past the smaller size.
fn check_may_grow(tx: &Transaction<'_>, inode: InodeId) -> Result<(), ApplyError> {
    match tx.read::<TrimRecord>(&keys::trim(inode))? {
        None => Ok(()),
        Some(_) => Err(ErrorKind::Busy.into()),
    }
}

/// Refuses a size that no file of this layout can have.
pub(super) fn check_size(file: &FileBody, size: u64) -> Result<(), ErrorKind> {
    // A chunk's index has 32 bits, an offset of the kernel 63.
    let largest = file.layout.chunk_size().bytes().saturating_mul(1 << 32).min(i64::MAX as u64);
    if size > largest {
        return Err(ErrorKind::FileTooLarge);
    }
    Ok(())
}
