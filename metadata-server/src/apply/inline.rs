//! Bytes of small files that live in their inodes.
//!
//! A file has them from its beginning or never: they are what it was published with, whole, and
//! nobody changes them there. Before somebody writes the file or gives it another size than none,
//! they go to the targets, under the write epoch that the content has; from then on another one
//! counts, so that they are never stored over what was written since.

use millrace_protocol::metadata::INLINE_BYTES_MAX;
use millrace_types::{ErrorKind, LogIndex, Timestamp, WriteEpoch};

use super::{ApplyError, Transaction, restore};
use crate::{
    command::{Outcome, Spilled},
    namespace::{Body, FileBody, tree},
    store::{StoreError, View},
};

/// Whether a file of this size can have these bytes in its inode.
pub(super) fn check(bytes: &[u8], size: u64) -> Result<(), ErrorKind> {
    let most = usize::try_from(INLINE_BYTES_MAX).unwrap_or(usize::MAX);
    let is_whole = u64::try_from(bytes.len()) == Ok(size);
    if bytes.is_empty() || bytes.len() > most || !is_whole {
        return Err(ErrorKind::InvalidArgument);
    }
    Ok(())
}

/// Refuses to change a file whose bytes are not at the targets.
pub(super) fn check_spilled(file: &FileBody) -> Result<(), ErrorKind> {
    if file.inline.is_some() { Err(ErrorKind::Busy) } else { Ok(()) }
}

/// The write epoch under which the targets get the bytes of a content: later than that under which
/// its maker might have written there, and than all that they saw before a backup was put back.
/// From then on the one behind it counts.
pub(crate) fn spill_epoch(view: &dyn View, content: WriteEpoch) -> Result<WriteEpoch, StoreError> {
    let tx = Transaction::new(view, LogIndex(0), Timestamp(0));
    restore::next_write_epoch(&tx, content)
}

/// The targets have the bytes of this content, durably. Where it is another one by now, they have
/// them for nothing.
pub(super) fn spilled(tx: &mut Transaction<'_>, spilled: &Spilled) -> Result<Outcome, ApplyError> {
    let Spilled { inode, generation, write_epoch } = *spilled;
    let Some(mut inode) = tree::find(tx, inode)? else {
        return Ok(Outcome::Done);
    };
    let Body::File(file) = &mut inode.body else {
        return Ok(Outcome::Done);
    };
    let is_current = file.generation == generation && file.write_epoch == write_epoch;
    if is_current && file.inline.take().is_some() {
        // That under which they were stored, and the one that counts. Nothing is cut: whoever has
        // the file open for writing knows that the bytes were here.
        file.write_epoch = restore::next_write_epoch(tx, file.write_epoch)?.next();
        // So that what shows the bytes here is known to be older than this.
        inode.change_count = inode.change_count.next();
        tx.put_inode(&inode);
    }
    Ok(Outcome::Done)
}
