//! What targets must keep although a bucket has it.

use millrace_types::ErrorKind;

use super::{ApplyError, Transaction};
use crate::{
    command::{Outcome, SetPin},
    namespace::permission,
    store::keys,
};

/// The feature level from which on there are pins.
const LEVEL: u32 = 5;

/// Pins an inode, or ends that; changes nothing else of it, so that it may be below a link that is
/// read-only.
pub(super) fn set(tx: &mut Transaction<'_>, set: &SetPin) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let inode = tx.inode(set.inode)?;
    permission::check_owner(&set.caller, &inode)?;
    let key = keys::pin(inode.id);
    match set.pinned {
        true => tx.put_bytes(key, Vec::new()),
        false => tx.delete(key),
    }
    Ok(Outcome::Inode(inode.id))
}
