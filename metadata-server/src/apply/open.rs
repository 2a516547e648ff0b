//! Opens for writing, which are logged, and the last readers of inodes without names.

use millrace_types::{ErrorKind, InodeId, SessionId};

use super::{
    ApplyError, Transaction, commit, inline, orphan,
    pristine::{self, PRISTINE_LEVEL},
};
use crate::{
    command::{OpenWrite, Opener, Outcome},
    namespace::{Inode, permission, tree},
    store::{
        keys,
        records::{OpenRecord, SessionRecord},
    },
};

/// Opens a file for writing; one with an origin is dirty from now on.
pub(super) fn open_write(
    tx: &mut Transaction<'_>,
    open: &OpenWrite,
) -> Result<Outcome, ApplyError> {
    let inode = tx.inode(open.opener.inode)?;
    if !open.truncate {
        commit::check_whole(inode.file()?)?;
        inline::check_spilled(inode.file()?)?;
    }
    inode.file()?;
    if let Some(caller) = &open.caller {
        permission::check(tx, caller, &inode, permission::Access::Write)?;
    }
    let is_written = orphan::is_written(tx, inode.id, Some(open.opener.session))?;
    begin(tx, inode, open.opener.session)?;
    if open.truncate {
        let mut inode = tx.inode(open.opener.inode)?;
        commit::replace_content(tx, &mut inode, is_written)?;
        tx.put_inode(&inode);
    }
    Ok(Outcome::Inode(open.opener.inode))
}

/// Counts one more writer of an existing file and marks it dirty: from here on there may be bytes
/// of it at the targets of which nobody knows here.
pub(super) fn begin(
    tx: &mut Transaction<'_>,
    mut inode: Inode,
    session: SessionId,
) -> Result<(), ApplyError> {
    tx.check_writable(&inode)?;
    commit::leave_restored_epoch(tx, &mut inode)?;
    pristine::handle_open(tx, &inode)?;
    commit::mark_dirty(inode.file_mut()?);
    inode.change_count = inode.change_count.next();
    tx.put_inode(&inode);
    let opener = Opener { session, inode: inode.id };
    register_writer(tx, opener)
}

/// Counts one more open for writing.
pub(super) fn register_writer(tx: &mut Transaction<'_>, opener: Opener) -> Result<(), ApplyError> {
    record(tx, opener, |open| {
        open.writes = open.writes.checked_add(1).ok_or(ErrorKind::Busy)?;
        Ok(())
    })
}

/// Changes what a session keeps open, in both tables.
fn record(
    tx: &mut Transaction<'_>,
    opener: Opener,
    change: impl FnOnce(&mut OpenRecord) -> Result<(), ErrorKind>,
) -> Result<(), ApplyError> {
    if tx.read::<SessionRecord>(&keys::session(opener.session))?.is_none() {
        return Err(ErrorKind::SessionGone.into());
    }
    let key = keys::open(opener.inode, opener.session);
    let mut open = tx.read::<OpenRecord>(&key)?.unwrap_or_default();
    change(&mut open)?;
    tx.put(key, &open);
    tx.put_bytes(keys::opened(opener.session, opener.inode), Vec::new());
    Ok(())
}

/// Ends one open for writing, through which something may have been written. One that is not known
/// was ended before.
pub(super) fn close_write(tx: &mut Transaction<'_>, opener: Opener) -> Result<Outcome, ApplyError> {
    let is_known = end_write(tx, opener, pristine::forget)?;
    if !is_known && let Some(inode) = tree::find(tx, opener.inode)? {
        // Whoever says so has written, whatever became of the open.
        pristine::forget(tx, &inode)?;
    }
    Ok(Outcome::Done)
}

/// Ends one open for writing, and has what is known of a pristine file follow. Tells whether the
/// open was known.
fn end_write(
    tx: &mut Transaction<'_>,
    opener: Opener,
    follow: impl FnOnce(&mut Transaction<'_>, &Inode) -> Result<(), ApplyError>,
) -> Result<bool, ApplyError> {
    change(tx, opener, |open| open.writes = open.writes.saturating_sub(1), follow)
}

/// Ends opens of one session for writing.
pub(super) fn close_writes(
    tx: &mut Transaction<'_>,
    session: SessionId,
    inodes: &[InodeId],
) -> Result<Outcome, ApplyError> {
    for &inode in inodes {
        close_write(tx, Opener { session, inode })?;
    }
    Ok(Outcome::Done)
}

/// Ends opens of one session through which nothing was written.
pub(super) fn close_unwritten(
    tx: &mut Transaction<'_>,
    session: SessionId,
    inodes: &[InodeId],
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < PRISTINE_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    for &inode in inodes {
        end_write(tx, Opener { session, inode }, pristine::handle_unwritten)?;
    }
    Ok(Outcome::Done)
}

/// The session reads an inode that lost its last name before: it stays while the session does. What
/// has a name needs no record.
pub(super) fn keep_reader(tx: &mut Transaction<'_>, opener: Opener) -> Result<Outcome, ApplyError> {
    if tx.inode(opener.inode)?.links > 0 {
        return Ok(Outcome::Done);
    }
    record(tx, opener, |open| {
        open.reads = true;
        Ok(())
    })?;
    Ok(Outcome::Done)
}

/// The session no longer reads an inode that has lost its last name.
pub(super) fn drop_reader(tx: &mut Transaction<'_>, opener: Opener) -> Result<Outcome, ApplyError> {
    change(tx, opener, |open| open.reads = false, |_, _| Ok(()))?;
    Ok(Outcome::Done)
}

/// Changes what a session has open of an inode; tells whether it has.
fn change(
    tx: &mut Transaction<'_>,
    opener: Opener,
    change: impl FnOnce(&mut OpenRecord),
    follow: impl FnOnce(&mut Transaction<'_>, &Inode) -> Result<(), ApplyError>,
) -> Result<bool, ApplyError> {
    let key = keys::open(opener.inode, opener.session);
    let Some(mut open) = tx.read::<OpenRecord>(&key)? else {
        return Ok(false);
    };
    change(&mut open);
    let is_over = open == OpenRecord::default();
    if is_over {
        tx.delete(key);
        tx.delete(keys::opened(opener.session, opener.inode));
    } else {
        tx.put(key, &open);
    }
    if let Some(inode) = tree::find(tx, opener.inode)? {
        follow(tx, &inode)?;
        if is_over {
            orphan::drop_if_unused(tx, &inode)?;
        }
    }
    Ok(true)
}
