//! Who may do what: permission bits and access control lists as POSIX and Linux read them, for
//! names and attributes.
//!
//! Data is checked by the client host's kernel and by capabilities; here users are checked for
//! names. Root may do everything, except that it executes only what somebody may execute.

use millrace_protocol::session::Caller;
use millrace_types::ErrorKind;

use super::{Inode, acl::List};
use crate::{apply::ApplyError, store::View};

/// What somebody wants to do with an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u16)]
pub enum Access {
    /// Look names up below a directory, or execute a file.
    Search = 1,
    /// Change it.
    Write = 2,
    /// Read it.
    Read = 4,
}

/// Checks the permission bits, or the access control list of an inode that has one.
///
/// # Errors
/// [`ErrorKind::PermissionDenied`], or when the store is broken.
pub fn check(
    view: &(impl View + ?Sized),
    caller: &Caller,
    inode: &Inode,
    access: Access,
) -> Result<(), ApplyError> {
    let bits = |shift: u16| (inode.mode >> shift) & (access as u16) != 0;
    let allowed = if is_root(caller) {
        access != Access::Search || inode.is_directory() || inode.mode & 0o111 != 0
    } else if caller.uid == inode.uid {
        // The owner's bits are those of any list.
        bits(6)
    } else if let Some(acl) = List::Access.read(view, inode)? {
        acl.allows(caller, (inode.uid, inode.gid), access)
    } else if in_group(caller, inode.gid) {
        bits(3)
    } else {
        bits(0)
    };
    if allowed { Ok(()) } else { Err(ErrorKind::PermissionDenied.into()) }
}

/// Checks that names in `directory` may be added.
///
/// # Errors
/// [`ErrorKind::NotDirectory`], [`ErrorKind::NotFound`] when it was removed, or
/// [`ErrorKind::PermissionDenied`].
pub fn check_add(
    view: &(impl View + ?Sized),
    caller: &Caller,
    directory: &Inode,
) -> Result<(), ApplyError> {
    directory.directory()?;
    if directory.links == 0 {
        return Err(ErrorKind::NotFound.into());
    }
    check(view, caller, directory, Access::Write)?;
    check(view, caller, directory, Access::Search)
}

/// Checks that the name of `inode` in `directory` may be removed or replaced.
///
/// # Errors
/// As [`check_add`]; [`ErrorKind::NotPermitted`] when the sticky bit forbids it.
pub fn check_remove(
    view: &(impl View + ?Sized),
    caller: &Caller,
    directory: &Inode,
    inode: &Inode,
) -> Result<(), ApplyError> {
    check_add(view, caller, directory)?;
    let sticky = directory.mode & STICKY != 0;
    let owner = caller.uid == directory.uid || caller.uid == inode.uid;
    if sticky && !owner && !is_root(caller) {
        return Err(ErrorKind::NotPermitted.into());
    }
    Ok(())
}

/// Checks that the caller owns the inode, or is root.
///
/// # Errors
/// [`ErrorKind::NotPermitted`].
pub fn check_owner(caller: &Caller, inode: &Inode) -> Result<(), ErrorKind> {
    if caller.uid == inode.uid || is_root(caller) { Ok(()) } else { Err(ErrorKind::NotPermitted) }
}

/// Whether the caller is the superuser (after root squash).
#[must_use]
pub fn is_root(caller: &Caller) -> bool {
    caller.uid == 0
}

/// Whether the caller is in the group.
#[must_use]
pub fn in_group(caller: &Caller, gid: u32) -> bool {
    caller.gid == gid || caller.groups.contains(&gid)
}

/// The set-user-id bit.
pub const SETUID: u16 = 0o4000;
/// The set-group-id bit: new entries of such a directory get its group.
pub const SETGID: u16 = 0o2000;
/// The sticky bit: only owners remove names.
pub const STICKY: u16 = 0o1000;
/// Every bit that a mode can have.
pub const MODE_MAX: u16 = 0o7777;
