//! Extended attributes.

use millrace_protocol::{
    metadata::{FileKind, XATTR_NAME_LEN_MAX, XATTR_VALUE_LEN_MAX, XattrMode},
    session::Caller,
};
use millrace_types::ErrorKind;

use super::{ApplyError, Transaction, commit};
use crate::{
    command::{Outcome, RemoveXattr, SetXattr},
    namespace::{
        Inode,
        permission::{self, Access},
    },
    store::{View, keys},
};

/// Sets one extended attribute.
pub(super) fn set(tx: &mut Transaction<'_>, set: &SetXattr) -> Result<Outcome, ApplyError> {
    let mut inode = tx.inode(set.inode)?;
    check_change(&set.caller, &inode, &set.name)?;
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
    let freed = old.map_or(0, |old| cost(&set.name, &old));
    let bytes = inode.xattr_bytes.saturating_sub(freed) + cost(&set.name, &set.value);
    if bytes > BYTES_MAX {
        return Err(ErrorKind::NoSpace.into());
    }
    inode.xattr_bytes = bytes;
    commit::changed(tx, &mut inode);
    tx.put_bytes(key, set.value.clone());
    tx.put_inode(&inode);
    Ok(Outcome::Inode(inode.id))
}

/// Removes one extended attribute.
pub(super) fn remove(
    tx: &mut Transaction<'_>,
    remove: &RemoveXattr,
) -> Result<Outcome, ApplyError> {
    let mut inode = tx.inode(remove.inode)?;
    check_change(&remove.caller, &inode, &remove.name)?;
    tx.check_writable(&inode)?;
    let key = keys::xattr(inode.id, &remove.name);
    let old = tx.get(&key)?.ok_or(ErrorKind::NoData)?;
    inode.xattr_bytes = inode.xattr_bytes.saturating_sub(cost(&remove.name, &old));
    commit::changed(tx, &mut inode);
    tx.delete(key);
    tx.put_inode(&inode);
    Ok(Outcome::Inode(inode.id))
}

/// Who may change what, as Linux has it.
fn check_change(caller: &Caller, inode: &Inode, name: &[u8]) -> Result<(), ErrorKind> {
    if name.is_empty() || name.len() > XATTR_NAME_LEN_MAX || name.contains(&0) {
        return Err(ErrorKind::InvalidArgument);
    }
    if name.starts_with(b"user.") {
        if !matches!(inode.kind, FileKind::Regular | FileKind::Directory) {
            return Err(ErrorKind::NotPermitted);
        }
        permission::check(caller, inode, Access::Write)
    } else if name.starts_with(b"trusted.") || name.starts_with(b"security.") {
        if permission::is_root(caller) { Ok(()) } else { Err(ErrorKind::NotPermitted) }
    } else {
        Err(ErrorKind::NotSupported)
    }
}

fn cost(name: &[u8], value: &[u8]) -> u32 {
    u32::try_from(name.len() + value.len()).expect("both are bounded")
}

/// The most bytes of all names and values of an inode: Linux's own limit for a list of names, and
/// one value of the largest size.
const BYTES_MAX: u32 = 64 * 1024 + 255;
