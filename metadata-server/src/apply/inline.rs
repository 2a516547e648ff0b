//! Bytes of small files that live in their inodes.
//!
//! A file has them from its beginning or never: they are what it was published with, whole, and
//! nobody changes them there. Before somebody writes the file or gives it another size than none,
//! they go to the targets, under the write epoch that the content has; from then on another one
//! counts, so that they are never stored over what was written since.

use millrace_protocol::metadata::INLINE_BYTES_MAX;
use millrace_types::{ErrorKind, InodeId, LogIndex, Timestamp, WriteEpoch};

use super::{ApplyError, Transaction, commit, pristine::PRISTINE_LEVEL, restore};
use crate::{
    command::{Outcome, Spilled},
    namespace::{Body, FileBody, tree},
    store::{StoreError, View, keys},
};

/// From this level on the bytes have records of their own.
const APART_LEVEL: u32 = 14;

/// Whether a file of this size can have these bytes in its inode.
pub(super) fn check(bytes: &[u8], size: u64) -> Result<(), ErrorKind> {
    let most = usize::try_from(INLINE_BYTES_MAX).unwrap_or(usize::MAX);
    let is_whole = u64::try_from(bytes.len()) == Ok(size);
    if bytes.is_empty() || bytes.len() > most || !is_whole {
        return Err(ErrorKind::InvalidArgument);
    }
    Ok(())
}

/// Has a file that is made live in its inode. Its bytes have a record of their own, since whoever
/// looks at the inode does not want them.
pub(super) fn put(
    tx: &mut Transaction<'_>,
    inode: InodeId,
    file: &mut FileBody,
    bytes: &[u8],
) -> Result<(), ApplyError> {
    if tx.file_system()?.feature_level < APART_LEVEL {
        file.inline = Some(bytes.to_vec());
        return Ok(());
    }
    file.inline = Some(Vec::new());
    tx.put_bytes(keys::contents(inode), bytes.to_vec());
    Ok(())
}

/// Gives the bytes up that live in an inode, if any do.
pub(super) fn take(tx: &mut Transaction<'_>, inode: InodeId, file: &mut FileBody) -> bool {
    let is_inline = file.inline.take().is_some();
    if is_inline {
        tx.delete(keys::contents(inode));
    }
    is_inline
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
    let Spilled { inode: id, generation, write_epoch } = *spilled;
    let Some(mut inode) = tree::find(tx, id)? else {
        return Ok(Outcome::Done);
    };
    let Body::File(file) = &mut inode.body else {
        return Ok(Outcome::Done);
    };
    let is_current = file.generation == generation && file.write_epoch == write_epoch;
    if is_current && take(tx, id, file) {
        // That under which they were stored, and the one that counts. Nothing is cut: whoever has
        // the file open for writing knows that the bytes were here.
        file.write_epoch = restore::next_write_epoch(tx, file.write_epoch)?.next();
        if tx.file_system()?.feature_level >= PRISTINE_LEVEL {
            // An object may have the same bytes, but the targets do not know that of theirs.
            commit::mark_dirty(file);
        }
        // So that what shows the bytes here is known to be older than this.
        inode.change_count = inode.change_count.next();
        tx.put_inode(&inode);
    }
    Ok(Outcome::Done)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{fsck::FlawKind, metadata::FileKind};
    use millrace_types::{ChunkSize, Layout, PoolId};

    use super::{super::create::file_body, *};
    use crate::{
        command::Format,
        consistency,
        namespace::Inode,
        store::{Batch, MetaStore as _, memory::MemoryStore, records::Record as _},
    };

    const ID: InodeId = InodeId(7);

    /// A store of this feature level.
    fn formatted(feature_level: u32) -> MemoryStore {
        let mut store = MemoryStore::default();
        let mut tx = Transaction::new(&store, LogIndex(1), Timestamp(1));
        super::super::create::format(&mut tx, &Format { uid: 0, gid: 0, mode: 0o755 }).unwrap();
        tx.change_file_system(|fs| fs.feature_level = feature_level).unwrap();
        let (batch, _) = tx.finish();
        store.commit(&batch).unwrap();
        store
    }

    /// A file with a few bytes: its inode as it is then, and the store.
    fn made(feature_level: u32) -> (Inode, MemoryStore) {
        let mut store = formatted(feature_level);
        let mut tx = Transaction::new(&store, LogIndex(2), Timestamp(2));
        let mut file = file_body(Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).unwrap());
        put(&mut tx, ID, &mut file, b"bytes").unwrap();
        let root = tx.inode(InodeId::ROOT).unwrap();
        let (kind, body) = (FileKind::Regular, Body::File(Box::new(file)));
        let inode = Inode { id: ID, kind, size: 5, body, ..root };
        tx.put_inode(&inode);
        let (batch, _) = tx.finish();
        store.commit(&batch).unwrap();
        (tree::inode(&store, ID).unwrap(), store)
    }

    #[test]
    fn bytes_are_beside_the_inode_or_in_it_where_an_older_program_put_them() {
        for (level, apart, within) in [(13, None, &b"bytes"[..]), (14, Some(&b"bytes"[..]), b"")] {
            let (mut inode, mut store) = made(level);
            assert_eq!(store.get(&keys::contents(ID)).unwrap().as_deref(), apart, "level {level}");
            assert_eq!(inode.file().unwrap().inline.as_deref(), Some(within), "level {level}");
            assert_eq!(tree::inline(&store, &inode).unwrap().as_deref(), Some(&b"bytes"[..]));

            let mut tx = Transaction::new(&store, LogIndex(3), Timestamp(3));
            let file = inode.file_mut().unwrap();
            assert!(take(&mut tx, ID, file) && !take(&mut tx, ID, file));
            let (batch, _) = tx.finish();
            store.commit(&batch).unwrap();
            assert_eq!(store.get(&keys::contents(ID)).unwrap(), None);
            assert_eq!(tree::inline(&store, &inode).unwrap(), None);
        }
    }

    #[test]
    fn bytes_that_are_missing_are_lost_and_no_empty_file() {
        let (inode, _) = made(14);
        let error = tree::inline(&formatted(14), &inode).unwrap_err();
        assert!(matches!(error, ApplyError::Refused(ErrorKind::Lost)), "{error}");
    }

    #[test]
    fn a_check_names_an_inode_whose_bytes_are_missing_or_others() {
        let (inode, mut store) = made(14);
        let unsound = |store: &MemoryStore| {
            let flaws = consistency::flaws(store, &keys::inode(ID), &inode.encode()).unwrap();
            flaws.iter().filter(|flaw| flaw.kind == FlawKind::Unsound).count()
        };
        assert_eq!(unsound(&store), 0);
        for bytes in [None, Some(b"byte".to_vec())] {
            let mut batch = Batch::default();
            match bytes {
                Some(bytes) => batch.put(keys::contents(ID), bytes),
                None => batch.delete(keys::contents(ID)),
            }
            store.commit(&batch).unwrap();
            assert_eq!(unsound(&store), 1);
        }
    }
}
