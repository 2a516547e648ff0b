//! Extended attributes.

use millrace_protocol::{
    metadata::{FileKind, XATTR_NAME_LEN_MAX, XATTR_VALUE_LEN_MAX, XattrMode},
    session::Caller,
};
use millrace_types::ErrorKind;

use super::{ApplyError, Transaction, acl, commit};
use crate::{
    command::{Outcome, RemoveXattr, SetXattr},
    namespace::{
        Inode,
        acl::List,
        permission::{self, Access},
    },
    store::{View, keys},
};

/// Sets one extended attribute.
pub(super) fn set(tx: &mut Transaction<'_>, set: &SetXattr) -> Result<Outcome, ApplyError> {
    let mut inode = tx.inode(set.inode)?;
    if let Some(list) = List::from_name(&set.name) {
        return set_list(tx, inode, list, &set.caller, Some(&set.value));
    }
    check_change(tx, &set.caller, &inode, &set.name)?;
    tx.check_writable(&inode)?;
    if set.value.len() > XATTR_VALUE_LEN_MAX {
        return Err(ErrorKind::NoSpace.into());
    }
    let key = keys::xattr(inode.id, &set.name);
    let old = tx.get(&key)?;
    match (&old, set.mode) {
        (Some(_), XattrMode::Create) => return Err(ErrorKind::Exists.into()),
        (None, XattrMode::Replace) => return Err(ErrorKind::NoData.into()),
        _ => {}
    }
    put(tx, &mut inode, &set.name, old, set.value.clone())?;
    commit::changed(tx, &mut inode);
    tx.put_inode(&inode);
    Ok(Outcome::Inode(inode.id))
}

/// Removes one extended attribute.
pub(super) fn remove(
    tx: &mut Transaction<'_>,
    remove: &RemoveXattr,
) -> Result<Outcome, ApplyError> {
    let mut inode = tx.inode(remove.inode)?;
    if let Some(list) = List::from_name(&remove.name) {
        return set_list(tx, inode, list, &remove.caller, None);
    }
    check_change(tx, &remove.caller, &inode, &remove.name)?;
    tx.check_writable(&inode)?;
    let old = tx.get(&keys::xattr(inode.id, &remove.name))?.ok_or(ErrorKind::NoData)?;
    take(tx, &mut inode, &remove.name, &old);
    commit::changed(tx, &mut inode);
    tx.put_inode(&inode);
    Ok(Outcome::Inode(inode.id))
}

/// Stores a value in place of the old one. The caller stores the inode.
pub(super) fn put(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
    name: &[u8],
    old: Option<Vec<u8>>,
    value: Vec<u8>,
) -> Result<(), ApplyError> {
    let freed = old.map_or(0, |old| cost(name, &old));
    let bytes = inode.xattr_bytes.saturating_sub(freed) + cost(name, &value);
    if bytes > BYTES_MAX {
        return Err(ErrorKind::NoSpace.into());
    }
    inode.xattr_bytes = bytes;
    tx.put_bytes(keys::xattr(inode.id, name), value);
    Ok(())
}

/// Removes a value. The caller stores the inode.
pub(super) fn take(tx: &mut Transaction<'_>, inode: &mut Inode, name: &[u8], old: &[u8]) {
    inode.xattr_bytes = inode.xattr_bytes.saturating_sub(cost(name, old));
    tx.delete(keys::xattr(inode.id, name));
}

/// Takes the capabilities of a program away whose bytes or owner change. The caller stores the
/// inode.
pub(super) fn drop_capability(
    tx: &mut Transaction<'_>,
    inode: &mut Inode,
) -> Result<(), ApplyError> {
    if inode.xattr_bytes == 0 || tx.file_system()?.feature_level < CAPABILITY_LEVEL {
        return Ok(());
    }
    if let Some(old) = tx.get(&keys::xattr(inode.id, CAPABILITY))? {
        take(tx, inode, CAPABILITY, &old);
    }
    Ok(())
}

fn set_list(
    tx: &mut Transaction<'_>,
    mut inode: Inode,
    list: List,
    caller: &Caller,
    value: Option<&[u8]>,
) -> Result<Outcome, ApplyError> {
    acl::set(tx, &mut inode, list, caller, value)?;
    tx.check_writable(&inode)?;
    commit::changed(tx, &mut inode);
    tx.put_inode(&inode);
    Ok(Outcome::Inode(inode.id))
}

/// Who may change what, as Linux has it.
fn check_change(
    tx: &Transaction<'_>,
    caller: &Caller,
    inode: &Inode,
    name: &[u8],
) -> Result<(), ApplyError> {
    if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX || name.contains(&0) {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let refusal = if name.starts_with(b"user.") {
        if matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            return permission::check(tx, caller, inode, Access::Write);
        }
        ErrorKind::NotPermitted
    } else if name.starts_with(b"trusted.") || name.starts_with(b"security.") {
        if permission::is_root(caller) {
            return Ok(());
        }
        ErrorKind::NotPermitted
    } else {
        ErrorKind::NotSupported
    };
    Err(refusal.into())
}

fn cost(name: &[u8], value: &[u8]) -> u32 {
    u32::try_from(name.len() + value.len()).expect("both are bounded")
}

/// The most bytes of all names and values of an inode: Linux's own limit for a list of names, and
/// one value of the largest size.
const BYTES_MAX: u32 = 64 * 1024 + 255;

/// What a program may do that is not allowed to its user.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// The feature level from which on it goes when the program changes.
const CAPABILITY_LEVEL: u32 = 2;
