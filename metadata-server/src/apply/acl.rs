//! Access control lists: setting them, keeping mode and list in agreement, and inheritance.

use millrace_protocol::{metadata::FileKind, session::Caller};
use millrace_types::ErrorKind;

use super::{ApplyError, Transaction, xattr};
use crate::{
    namespace::{
        Inode,
        acl::{Acl, List},
        permission::{self, SETGID},
    },
    store::{View as _, keys},
};

/// The feature level from which on there are lists.
const LEVEL: u32 = 2;

/// Sets a list of an inode to the bytes of the extended attribute, or takes it away. The caller
/// stores the inode.
pub(super) fn set(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
    list: List,
    caller: &Caller,
    bytes: Option<&[u8]>,
) -> Result<(), ApplyError> {
    if tx.file_system()?.feature_level < LEVEL || inode.kind == FileKind::Symlink {
        return Err(ErrorKind::NotSupported.into());
    }
    permission::check_owner(caller, inode)?;
    let acl = bytes.map_or(Ok(None), Acl::parse)?;
    match (list, &acl) {
        (List::Default, Some(_)) if !inode.is_directory() => {
            return Err(ErrorKind::PermissionDenied.into());
        }
        (List::Default, _) | (List::Access, None) => {}
        (List::Access, Some(acl)) => {
            inode.mode = (inode.mode & !PERMISSIONS) | acl.mode();
            if !permission::is_root(caller) && !permission::in_group(caller, inode.gid) {
                inode.mode &= !SETGID;
            }
        }
    }
    put(tx, inode, list, acl.as_ref())
}

/// Has the access list agree with permission bits that were just set.
pub(super) fn follow_mode(tx: &mut Transaction<'_>, inode: &mut Inode) -> Result<(), ApplyError> {
    if let Some(mut acl) = List::Access.read(tx, inode)? {
        acl.set_mode(inode.mode);
        put(tx, inode, List::Access, Some(&acl))?;
    }
    Ok(())
}

/// Gives a new inode what the default list of its directory says; without one, the umask takes
/// permissions away. The mode is as the program asked for it; the caller stores the inode.
pub(super) fn inherit(
    tx: &mut Transaction<'_>,
    parent: &Inode,
    inode: &mut Inode,
    umask: u16,
) -> Result<(), ApplyError> {
    if inode.kind == FileKind::Symlink {
        return Ok(());
    }
    let Some(default) = List::Default.read(tx, parent)? else {
        inode.mode &= !(umask & PERMISSIONS);
        return Ok(());
    };
    let mut access = default.clone();
    inode.mode = (inode.mode & !PERMISSIONS) | access.restrict(inode.mode);
    put(tx, inode, List::Access, Some(&access))?;
    if inode.is_directory() {
        put(tx, inode, List::Default, Some(&default))?;
    }
    Ok(())
}

/// Stores a list, unless it says no more than permission bits do, or takes it away.
fn put(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
    list: List,
    acl: Option<&Acl>,
) -> Result<(), ApplyError> {
    let said_by_mode = |acl: &&Acl| list == List::Access && acl.is_mode();
    let bytes = acl.filter(|acl| !said_by_mode(acl)).map(Acl::to_bytes);
    let old = tx.get(&keys::xattr(inode.id, list.name()))?;
    match bytes {
        Some(bytes) => xattr::put(tx, inode, list.name(), old, bytes),
        None => {
            if let Some(old) = old {
                xattr::take(tx, inode, list.name(), &old);
            }
            Ok(())
        }
    }
}

/// What of a mode a list has a say in.
const PERMISSIONS: u16 = 0o777;
