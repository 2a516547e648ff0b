//! chmod, chown, utimens and truncate.

use millrace_protocol::{
    metadata::FileKind,
    session::{Caller, Operation},
};
use millrace_types::{ErrorKind, Timestamp};

use super::{ApplyError, Transaction, acl, commit, xattr};
use crate::{
    command::{Outcome, SetAttributes, SetTime},
    namespace::{
        Inode,
        permission::{self, Access, SETGID, SETUID},
    },
};

/// Changes what the command names, all of it or nothing.
pub(super) fn set(
    tx: &mut Transaction<'_>,
    set: &SetAttributes,
    operation: Option<Operation>,
) -> Result<Outcome, ApplyError> {
    let mut inode = tx.inode(set.inode)?;
    tx.check_writable(&inode)?;
    let mut shrunk = false;
    // Who zeroes past the end as it knew it grows the file to there, and cuts off nothing of what
    // somebody else has written behind meanwhile.
    let only_grows = set.make_sparse && tx.file_system()?.feature_level >= ONLY_GROWS_LEVEL;
    if let Some(size) = set.size.filter(|&size| !only_grows || size > inode.size) {
        inode.file()?;
        check_may_write(tx, set.caller.as_ref(), &inode)?;
        shrunk =
            commit::resize(tx, &mut inode, size, operation.map(|operation| operation.session))?;
    }
    if set.make_sparse {
        check_may_write(tx, set.caller.as_ref(), &inode)?;
        commit::check_whole(inode.file()?)?;
        inode.file_mut()?.sparse = true;
    }
    let names_other = set.mode.is_some()
        || set.uid.is_some()
        || set.gid.is_some()
        || set.accessed.is_some()
        || set.modified.is_some();
    if names_other {
        let caller = set.caller.as_ref().ok_or(ErrorKind::InvalidArgument)?;
        set_owner(tx, &mut inode, caller, set)?;
        set_mode(tx, &mut inode, caller, set)?;
        set_times(tx, &mut inode, caller, set)?;
        commit::changed(tx, &mut inode);
    }
    tx.put_inode(&inode);
    Ok(if shrunk { Outcome::Shrunk(inode.id) } else { Outcome::Inode(inode.id) })
}

/// The feature level from which on a size with which a file may have holes shrinks none.
const ONLY_GROWS_LEVEL: u32 = 26;

fn check_may_write(
    tx: &Transaction<'_>,
    caller: Option<&Caller>,
    inode: &Inode,
) -> Result<(), ApplyError> {
    caller.map_or(Ok(()), |caller| permission::check(tx, caller, inode, Access::Write))
}

fn set_owner(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
    caller: &Caller,
    set: &SetAttributes,
) -> Result<(), ApplyError> {
    if set.uid.is_none() && set.gid.is_none() {
        return Ok(());
    }
    permission::check_owner(caller, inode)?;
    let root = permission::is_root(caller);
    if let Some(uid) = set.uid {
        if uid != inode.uid && !root {
            return Err(ErrorKind::NotPermitted.into());
        }
        inode.uid = uid;
    }
    if let Some(gid) = set.gid {
        if gid != inode.gid && !root && !permission::in_group(caller, gid) {
            return Err(ErrorKind::NotPermitted.into());
        }
        inode.gid = gid;
    }
    if inode.kind == FileKind::Regular {
        inode.mode &= !SETUID;
        if inode.mode & 0o010 != 0 {
            inode.mode &= !SETGID;
        }
        xattr::drop_capability(tx, inode)?;
    }
    Ok(())
}

fn set_mode(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
    caller: &Caller,
    set: &SetAttributes,
) -> Result<(), ApplyError> {
    let Some(mode) = set.mode else {
        return Ok(());
    };
    permission::check_owner(caller, inode)?;
    inode.mode = mode & permission::MODE_MAX;
    if !permission::is_root(caller) && !permission::in_group(caller, inode.gid) {
        inode.mode &= !SETGID;
    }
    acl::follow_mode(tx, inode)
}

fn set_times(
    tx: &Transaction<'_>,
    inode: &mut Inode,
    caller: &Caller,
    set: &SetAttributes,
) -> Result<(), ApplyError> {
    let times = [set.accessed, set.modified];
    if times.iter().flatten().any(|time| matches!(time, SetTime::At(_))) {
        permission::check_owner(caller, inode)?;
    } else if times.iter().any(Option::is_some) {
        permission::check_owner(caller, inode)
            .or_else(|_| permission::check(tx, caller, inode, Access::Write))?;
    }
    let at = |time: SetTime| -> Timestamp {
        match time {
            SetTime::Now => tx.time,
            SetTime::At(time) => time,
        }
    };
    if let Some(time) = set.accessed {
        inode.accessed = at(time);
    }
    if let Some(time) = set.modified {
        inode.modified = at(time);
    }
    Ok(())
}
