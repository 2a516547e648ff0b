//! Files that are open for writing and that nobody has written.
//!
//! A file that is opened for writing counts as dirty from then on, since its writers send their
//! bytes to the targets and tell of them later. Many programs open what they only read or lock
//! (databases, `touch`): when the last of them has closed it and none has written, it is again what
//! it was, and neither is it exported nor does it stay here when room is needed.
//!
//! The record of what it was goes with the first word of a write: a commit, a close that does not
//! say that nothing was written, the end of a session that had it open, a restart of the server.
//! What changes the content otherwise leaves the record, which then fits no more.

use super::{ApplyError, Transaction, commit, orphan};
use crate::{
    namespace::{Body, Inode, ObjectState},
    store::{
        keys,
        records::{Export, PristineRecord},
    },
};

/// The feature level from which on a file that was not written is what it was before.
pub(super) const PRISTINE_LEVEL: u32 = 16;

/// A file is about to be opened for writing. One whose export the targets have not heard of is
/// not remembered: they hear of it only while nobody opens the file.
pub(super) fn handle_open(tx: &mut Transaction<'_>, inode: &Inode) -> Result<(), ApplyError> {
    let file = inode.file()?;
    if record(tx, inode)?.is_some() && !orphan::is_written(tx, inode.id, None)? {
        // Only a damaged store has it.
        tx.delete(keys::pristine(inode.id));
    }
    if !matches!(file.state, ObjectState::Clean | ObjectState::Exported)
        || tx.file_system()?.feature_level < PRISTINE_LEVEL
        || tx.read::<Export>(&keys::export(inode.id))?.is_some()
    {
        return Ok(());
    }
    let record = PristineRecord { size: inode.size, file: file.clone() };
    tx.put(keys::pristine(inode.id), &record);
    Ok(())
}

/// The server begins to run. What it was told since it last synced its log may be lost, closes of
/// who wrote among it: all that is open may have been written.
pub(super) fn forget_all(tx: &mut Transaction<'_>) -> Result<(), ApplyError> {
    if tx.file_system()?.feature_level >= PRISTINE_LEVEL {
        tx.delete_all(&keys::pristines())?;
    }
    Ok(())
}

/// Somebody has written the file, or may have.
pub(super) fn forget(tx: &mut Transaction<'_>, inode: &Inode) -> Result<(), ApplyError> {
    if record(tx, inode)?.is_some() {
        tx.delete(keys::pristine(inode.id));
    }
    Ok(())
}

/// An open for writing has ended without a write. After the last one the file is what it was
/// before, where nothing else has changed it: also what seemed to be a conflict was none.
pub(super) fn handle_unwritten(tx: &mut Transaction<'_>, inode: &Inode) -> Result<(), ApplyError> {
    let Some(record) = record(tx, inode)? else { return Ok(()) };
    if orphan::is_written(tx, inode.id, None)? {
        return Ok(());
    }
    tx.delete(keys::pristine(inode.id));
    let mut inode = inode.clone();
    let file = inode.file_mut()?;
    let was_lost = file.state == ObjectState::Lost;
    let was_conflict = file.state == ObjectState::Conflict;
    file.state = record.file.state;
    let is_same = *file == record.file && inode.size == record.size;
    if was_lost || !is_same {
        return Ok(());
    }
    if was_conflict {
        tx.delete(keys::conflict(inode.id));
        commit::changed(tx, &mut inode);
    }
    tx.put_inode(&inode);
    Ok(())
}

/// What a file was, if nobody has written it. That of one that cannot be so is not looked for.
fn record(tx: &Transaction<'_>, inode: &Inode) -> Result<Option<PristineRecord>, ApplyError> {
    let Body::File(file) = &inode.body else { return Ok(None) };
    match file.state {
        ObjectState::Dirty | ObjectState::Conflict | ObjectState::Lost if file.origin.is_some() => {
            Ok(tx.read(&keys::pristine(inode.id))?)
        }
        _ => Ok(None),
    }
}
