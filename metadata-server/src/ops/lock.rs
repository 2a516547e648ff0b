//! Locks on files, and what sessions declare after a restart.

use millrace_protocol::{
    lock::{
        AwaitAppends, AwaitLocks, CancelLock, Lock, SetLock, SetLockReply, TestLock, TestLockReply,
        WAITS_PER_SESSION_MAX, WANTED_MAX,
    },
    session::{DECLARED_MAX, Declare, DeclareReply, Done, Held},
};
use millrace_types::{ChangeCount, ErrorKind, Failure, InodeId};

use super::{Client, Step};
use crate::{engine::Core, locks::News};

/// Takes, changes or gives back a lock.
///
/// # Errors
/// As [`crate::locks::Locks::set`]; [`ErrorKind::Stale`] when the inode does not exist;
/// [`ErrorKind::Forbidden`] outside of the client's subtree.
pub fn set(
    core: &mut Core,
    client: &Client,
    request: &SetLock,
) -> Result<Step<SetLockReply>, Failure> {
    client.own(core, request.operation)?;
    let lock = request.lock.checked()?;
    // What is not there any more can still be unlocked.
    let change_count = match lock.kind {
        None => ChangeCount(0),
        Some(_) => enter(core, client, &lock)?,
    };
    let granted = core.locks.set(request.operation, &lock, request.wait)?;
    Ok(Step::Done(SetLockReply { granted, change_count }))
}

/// Ends a wait.
///
/// # Errors
/// As [`crate::locks::Locks::cancel`].
pub fn cancel(
    core: &mut Core,
    client: &Client,
    request: &CancelLock,
) -> Result<Step<Done>, Failure> {
    client.own(core, request.operation)?;
    core.locks.cancel(request.operation, request.wait)?;
    Ok(Step::Done(Done::default()))
}

/// Finds a lock that is in the way.
///
/// # Errors
/// As [`set`].
pub fn test(
    core: &mut Core,
    client: &Client,
    request: &TestLock,
) -> Result<Step<TestLockReply>, Failure> {
    client.own_session(core, request.session)?;
    let lock = request.lock.checked()?;
    enter(core, client, &lock)?;
    let conflict = core.locks.test(request.session, &lock)?;
    Ok(Step::Done(TestLockReply { conflict }))
}

/// Looks for waits that have ended.
///
/// # Errors
/// [`ErrorKind::SessionGone`]; [`ErrorKind::InvalidArgument`] when more are said to be known than
/// there can be.
pub fn watch(core: &mut Core, client: &Client, request: &AwaitLocks) -> Result<News<u64>, Failure> {
    client.own_session(core, request.session)?;
    if request.known.len() > WAITS_PER_SESSION_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    Ok(core.locks.watch(request.session, &request.known))
}

/// Looks for rights to append that others wait for.
///
/// # Errors
/// As [`watch`].
pub fn watch_appends(
    core: &mut Core,
    client: &Client,
    request: &AwaitAppends,
) -> Result<News<InodeId>, Failure> {
    client.own_session(core, request.session)?;
    if request.known.len() > WANTED_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    Ok(core.locks.watch_appends(request.session, &request.known))
}

/// Takes over what a session holds from before a restart.
///
/// # Errors
/// [`ErrorKind::SessionGone`]; [`ErrorKind::InvalidArgument`] for too many entries.
pub fn declare(
    core: &mut Core,
    client: &Client,
    request: &Declare,
) -> Result<Step<DeclareReply>, Failure> {
    client.own_session(core, request.session)?;
    if request.held.len() > DECLARED_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let mut lost = Vec::new();
    for (place, held) in (0..).zip(&request.held) {
        let Held::Lock(lock) = held;
        let kept = enter(core, client, lock).is_ok() && core.locks.declare(request.session, held);
        if !kept {
            tracing::warn!(session = %request.session, inode = %lock.inode, owner = lock.owner,
                "a lock that was declared cannot be kept");
            lost.push(place);
        }
    }
    if request.last {
        core.locks.handle_declared(request.session);
    }
    Ok(Step::Done(DeclareReply { lost }))
}

/// The change count of a file that the client may see.
fn enter(core: &mut Core, client: &Client, lock: &Lock) -> Result<ChangeCount, Failure> {
    Ok(client.enter(core, lock.inode)?.change_count)
}
