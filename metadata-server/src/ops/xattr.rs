//! Extended attributes.

use std::ops::Bound;

use millrace_protocol::{
    metadata::{
        GetXattr, ListXattrs, RemoveXattr, SetXattr, XATTR_NAME_LEN_MAX, XattrNames, XattrReply,
    },
    session::{Caller, Done},
};
use millrace_types::{ErrorKind, Failure};

use super::{Client, Step, broken, is_repeated};
use crate::{
    apply::{ApplyError, CAPABILITY},
    command::{self, Command},
    engine::Core,
    namespace::{
        Inode,
        acl::List,
        permission::{self, Access},
    },
    store::{View, borrow, keys, prefix_end},
};

/// Reads one.
///
/// # Errors
/// [`ErrorKind::NoData`] when there is none, [`ErrorKind::PermissionDenied`].
pub fn get(
    core: &mut Core,
    client: &Client,
    request: &GetXattr,
) -> Result<Step<XattrReply>, Failure> {
    if request.name.is_empty() || request.name.len() > XATTR_NAME_LEN_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let inode = client.enter(core, request.inode)?;
    let caller = client.caller(&request.caller);
    let allowed = check_read(core.view(), &caller, &inode, &request.name);
    allowed.map_err(|error| core.failure(error))?;
    let value = core.view().get(&keys::xattr(inode.id, &request.name));
    let value = value.map_err(|error| broken(core, error))?;
    let value = value.ok_or(ErrorKind::NoData)?;
    Ok(Step::Done(XattrReply { value }))
}

/// Lists the names.
///
/// # Errors
/// [`ErrorKind::Stale`] when the inode is gone.
pub fn list(
    core: &mut Core,
    client: &Client,
    request: &ListXattrs,
) -> Result<Step<XattrNames>, Failure> {
    let inode = client.enter(core, request.inode)?;
    let caller = client.caller(&request.caller);
    if inode.xattr_bytes == 0 {
        return Ok(Step::Done(XattrNames { names: Vec::new() }));
    }
    let prefix = keys::xattrs(inode.id);
    let end = prefix_end(&prefix);
    let found = core
        .view()
        .scan(Bound::Included(&prefix), borrow(&end), usize::MAX)
        .map_err(|error| broken(core, error))?;
    let names = found
        .iter()
        .map(|(key, _)| keys::after(key, &prefix).to_vec())
        .filter(|name| !name.starts_with(b"trusted.") || permission::is_root(&caller));
    let names = names.collect();
    Ok(Step::Done(XattrNames { names }))
}

/// Sets one.
///
/// # Errors
/// As `setxattr(2)` has it.
pub fn set(core: &mut Core, client: &Client, request: &SetXattr) -> Result<Step<Done>, Failure> {
    client.own(core, request.operation)?;
    if is_repeated(core, request.operation)? {
        return Ok(Step::Done(Done { index: core.last_index() }));
    }
    let inode = client.enter(core, request.inode)?;
    if matches!(&request.name[..], b"user." | b"trusted." | b"security.") {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let command = Command::SetXattr(command::SetXattr {
        caller: client.caller(&request.caller),
        inode: inode.id,
        name: request.name.clone(),
        value: request.value.clone(),
        mode: request.mode,
    });
    core.execute(Some(request.operation), command)?;
    let index = core.last_index();
    Ok(Step::Done(Done { index }))
}

/// Removes one.
///
/// # Errors
/// As `removexattr(2)` has it.
pub fn remove(
    core: &mut Core,
    client: &Client,
    request: &RemoveXattr,
) -> Result<Step<Done>, Failure> {
    client.own(core, request.operation)?;
    if is_repeated(core, request.operation)? {
        return Ok(Step::Done(Done { index: core.last_index() }));
    }
    let inode = client.enter(core, request.inode)?;
    let mut caller = client.caller(&request.caller);
    if may_drop(core.view(), &caller, &inode, &request.name).map_err(|error| core.failure(error))? {
        caller = Caller::ROOT;
    }
    let command = Command::RemoveXattr(command::RemoveXattr {
        caller,
        inode: inode.id,
        name: request.name.clone(),
    });
    core.execute(Some(request.operation), command)?;
    let index = core.last_index();
    Ok(Step::Done(Done { index }))
}

/// Whether it is what a program may do that is to go, of a file that is the caller's to change. A
/// kernel takes it away before somebody cuts or gives away a file, and asks in that one's name; who
/// removes it by hand it has checked by itself.
fn may_drop(
    view: &dyn View,
    caller: &Caller,
    inode: &Inode,
    name: &[u8],
) -> Result<bool, ApplyError> {
    if name != CAPABILITY {
        return Ok(false);
    }
    if permission::check_owner(caller, inode).is_ok() {
        return Ok(true);
    }
    match permission::check(view, caller, inode, Access::Write) {
        Ok(()) => Ok(true),
        Err(ApplyError::Refused(_)) => Ok(false),
        Err(error) => Err(error),
    }
}

fn check_read(
    view: &dyn View,
    caller: &Caller,
    inode: &Inode,
    name: &[u8],
) -> Result<(), ApplyError> {
    if name.starts_with(b"user.") {
        permission::check(view, caller, inode, Access::Read)
    } else if name.starts_with(b"security.") || List::from_name(name).is_some() {
        Ok(())
    } else if name.starts_with(b"trusted.") {
        // Linux hides these from everybody but root.
        if permission::is_root(caller) { Ok(()) } else { Err(ErrorKind::NoData.into()) }
    } else {
        Err(ErrorKind::NotSupported.into())
    }
}
