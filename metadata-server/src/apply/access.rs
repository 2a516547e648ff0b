//! Times of access that follow reads.

use millrace_types::ErrorKind;

use super::{ApplyError, Transaction};
use crate::{
    command::{NoteReads, Outcome},
    namespace::tree,
};

/// The feature level from which on reads raise times of access.
const LEVEL: u32 = 4;

/// Raises what is due, and nothing else of the inodes: neither their time of change nor their
/// change count.
pub(super) fn note(tx: &mut Transaction<'_>, note: &NoteReads) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    for read in &note.reads {
        let Some(mut inode) = tree::find(tx, read.inode)? else { continue };
        if let Some(at) = read.raises(&inode.attributes(), tx.time) {
            inode.accessed = at;
            tx.put_inode(&inode);
        }
    }
    Ok(Outcome::Done)
}
