//! Sessions: beginning and ending them, and executing each of their operations exactly once.

use std::ops::Bound;

use millrace_protocol::session::Operation;
use millrace_types::{ErrorKind, InodeId, SessionId};

use super::{ApplyError, Transaction, commit, orphan, pristine};
use crate::{
    command::{OpenSession, Outcome},
    namespace::tree,
    store::{
        View, borrow, keys, prefix_end,
        records::{self, OpenRecord, SessionRecord},
    },
};

/// Refuses an operation of an unknown session, and one that was executed before.
pub(super) fn check_operation(
    tx: &Transaction<'_>,
    operation: Operation,
) -> Result<(), ApplyError> {
    match remembered(tx, operation)? {
        None => Ok(()),
        // The server answers a repeated operation from memory and never logs it.
        Some(_) => Err(ErrorKind::InvalidArgument.into()),
    }
}

/// What was answered to `operation`, if it was executed.
pub(super) fn remembered(
    view: &(impl View + ?Sized),
    operation: Operation,
) -> Result<Option<Outcome>, ApplyError> {
    let session: Option<SessionRecord> = records::read(view, &keys::session(operation.session))?;
    let session = session.ok_or(ErrorKind::SessionGone)?;
    if operation.sequence < session.lowest_pending || operation.sequence < operation.lowest_pending
    {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let key = keys::outcome(operation.session, operation.sequence);
    Ok(records::read(view, &key)?)
}

/// Keeps the outcome, and forgets those that the client does not wait for any more.
pub(super) fn remember(
    tx: &mut Transaction<'_>,
    operation: Operation,
    outcome: &Outcome,
) -> Result<(), ApplyError> {
    let session = operation.session;
    let key = keys::session(session);
    let Some(mut record) = tx.read::<SessionRecord>(&key)? else {
        // The command was the end of this session: nobody is answered in its name any more.
        return Ok(());
    };
    tx.put(keys::outcome(session, operation.sequence), outcome);
    let (from, to) = (record.lowest_pending, operation.lowest_pending);
    if to <= from {
        return Ok(());
    }
    if to - from <= BLIND_FORGET_MAX {
        for sequence in from..to {
            tx.delete(keys::outcome(session, sequence));
        }
    } else {
        let old = tx.scan(
            Bound::Included(&keys::outcome(session, from)),
            Bound::Excluded(&keys::outcome(session, to)),
            usize::MAX,
        )?;
        for (key, _) in old {
            tx.delete(key);
        }
    }
    record.lowest_pending = to;
    tx.put(key, &record);
    Ok(())
}

/// Begins a session. The same node with the same number gets the same one.
pub(super) fn open(tx: &mut Transaction<'_>, open: &OpenSession) -> Result<Outcome, ApplyError> {
    for (key, record) in tree::scan::<SessionRecord>(tx, &keys::sessions(), usize::MAX)? {
        if record.host == open.host && record.nonce == open.nonce {
            let id = keys::number_at(&key, 1).map(SessionId);
            return Ok(Outcome::Session(id.unwrap_or_default()));
        }
    }
    let session = tx.file_system()?.next_session;
    tx.change_file_system(|fs| fs.next_session = session.next())?;
    let record = SessionRecord {
        host: open.host,
        host_name: open.host_name.clone(),
        nonce: open.nonce,
        opened: tx.time,
        lowest_pending: 0,
    };
    tx.put(keys::session(session), &record);
    Ok(Outcome::Session(session))
}

/// Ends a session: what it kept open is closed, what it was answered is forgotten.
pub(super) fn close(tx: &mut Transaction<'_>, session: SessionId) -> Result<Outcome, ApplyError> {
    let opened = keys::opened_by(session);
    let end = prefix_end(&opened);
    for (key, _) in tx.scan(Bound::Included(&opened), borrow(&end), usize::MAX)? {
        let Some(inode) = keys::number_at(&key, 9).map(InodeId) else {
            continue;
        };
        let open = tx.read::<OpenRecord>(&keys::open(inode, session))?;
        tx.delete(key);
        tx.delete(keys::open(inode, session));
        if let Some(mut inode) = tree::find(tx, inode)? {
            // Whoever had it open for writing may have sent bytes to the targets.
            pristine::forget(tx, &inode)?;
            if open.is_some_and(|open| open.writes > 0) {
                commit::lose_writer(tx, &mut inode)?;
            }
            orphan::drop_if_unused(tx, &inode)?;
        }
    }
    tx.delete_all(&keys::outcomes(session))?;
    tx.delete(keys::keeper(session));
    tx.delete(keys::session(session));
    Ok(Outcome::Done)
}

/// The session may keep names and attributes.
pub(super) fn keep_names(
    tx: &mut Transaction<'_>,
    session: SessionId,
) -> Result<Outcome, ApplyError> {
    if tx.read::<SessionRecord>(&keys::session(session))?.is_none() {
        return Err(ErrorKind::SessionGone.into());
    }
    tx.put_bytes(keys::keeper(session), Vec::new());
    Ok(Outcome::Done)
}

/// A client that waits for everything it sends moves its mark by one; only one that jumps far needs
/// the range read.
const BLIND_FORGET_MAX: u64 = 64;
