//! Records that belong to something else: whether that is there.

use millrace_protocol::fsck::FlawKind;
use millrace_types::{FileName, InodeId, SessionId, TargetId};

use super::{Flaw, entry::leads_to};
use crate::{
    command::Repair,
    namespace::{Body, Inode, ObjectState, tree},
    store::{
        StoreError, View, keys,
        records::{self, OpenRecord, ReclaimRecord, Record as _},
    },
};

/// What a record should be other than it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// It should not be there.
    Remove(FlawKind, String),
    /// It should be there a second time, as an empty value at this key.
    Complete(Vec<u8>, String),
}

/// The tables that are looked at here, by the first byte of their keys.
pub const TABLES: &[u8] = b"CNOQRUVWXYEabcfpr";

/// What is wrong with one record of [`TABLES`].
pub(super) fn flaw(view: &dyn View, key: &[u8], value: &[u8]) -> Result<Option<Flaw>, StoreError> {
    let Some(verdict) = verdict(view, key, value)? else { return Ok(None) };
    let (kind, text) = match verdict {
        Verdict::Remove(kind, text) => (kind, text),
        Verdict::Complete(_, text) => (FlawKind::Leftover, text),
    };
    let inode = inode_of(key, value).unwrap_or(InodeId(0));
    let repair = Some(Repair::Leftover { key: key.to_owned() });
    Ok(Some(Flaw { kind, inode, place: None, text, repair }))
}

/// What is to be done with a record of [`TABLES`], if it is not as it should be.
///
/// # Errors
/// When the store fails, or the record does not decode.
pub fn verdict(
    view: &(impl View + ?Sized),
    key: &[u8],
    value: &[u8],
) -> Result<Option<Verdict>, StoreError> {
    match key.first() {
        Some(b'C') => position(view, key, value),
        Some(b'N') => further_name(view, key),
        Some(b'O') => open(view, key, value),
        Some(b'Y') => {
            let (session, inode) = (session(key), number(key, 9));
            let open = keys::open(inode, session);
            let text = || format!("session {session} keeps {inode} open in one of two tables");
            remove_unless(view.get(&open)?.is_some(), text)
        }
        Some(b'Q') => reclaim(view, key, value),
        Some(b'R' | b'a') => {
            let session = session(key);
            let known = view.get(&keys::session(session))?.is_some();
            remove_unless(known, || format!("it is of session {session}, which has ended"))
        }
        Some(b'r') => pristine(view, key),
        Some(table @ (b'U' | b'V' | b'E' | b'W' | b'X' | b'b' | b'c' | b'f' | b'p')) => {
            of_inode(view, *table, key)
        }
        _ => Ok(None),
    }
}

fn remove_unless(
    right: bool,
    text: impl FnOnce() -> String,
) -> Result<Option<Verdict>, StoreError> {
    Ok((!right).then(|| Verdict::Remove(FlawKind::Leftover, text())))
}

/// A position in a listing, with the name that is there.
fn position(
    view: &(impl View + ?Sized),
    key: &[u8],
    name: &[u8],
) -> Result<Option<Verdict>, StoreError> {
    let directory = number(key, 1);
    let entry = match FileName::parse(name) {
        Ok(name) => tree::entry(view, directory, &name)?,
        Err(_) => None,
    };
    let right = entry.is_some_and(|entry| Some(entry.cookie) == keys::number_at(key, 9));
    remove_unless(right, || format!("{directory} lists a name that is not there"))
}

/// A further name of an inode.
fn further_name(view: &(impl View + ?Sized), key: &[u8]) -> Result<Option<Verdict>, StoreError> {
    let id = number(key, 1);
    let link = tree::parent_of_key(key)?;
    let inode = tree::find(view, id)?.filter(|inode| !inode.is_directory());
    let is_first = inode.as_ref().is_some_and(|inode| inode.parent.as_ref() == Some(&link));
    let right = inode.is_some() && !is_first && leads_to(view, link.directory, &link.name, id)?;
    remove_unless(right, || format!("{id} is said to have a further name that it has not"))
}

fn open(
    view: &(impl View + ?Sized),
    key: &[u8],
    value: &[u8],
) -> Result<Option<Verdict>, StoreError> {
    let (inode, session) = (number(key, 1), SessionId(number(key, 9).0));
    let record: OpenRecord = records::decode(key, value)?;
    let right = view.get(&keys::inode(inode))?.is_some()
        && view.get(&keys::session(session))?.is_some()
        && record != OpenRecord::default();
    let second = keys::opened(session, inode);
    if right && view.get(&second)?.is_none() {
        let text = format!("session {session} keeps {inode} open in one of two tables");
        return Ok(Some(Verdict::Complete(second, text)));
    }
    remove_unless(right, || format!("session {session} keeps {inode} open, and one is not there"))
}

/// What a file was before it was opened for writing.
fn pristine(view: &(impl View + ?Sized), key: &[u8]) -> Result<Option<Verdict>, StoreError> {
    let id = number(key, 1);
    let opens = tree::scan::<OpenRecord>(view, &keys::opens(id), usize::MAX)?;
    let right = opens.iter().any(|(_, open)| open.writes > 0);
    remove_unless(right, || format!("{id} is said to be open for writing, and is not"))
}

/// A content that a target is told to free.
fn reclaim(
    view: &(impl View + ?Sized),
    key: &[u8],
    value: &[u8],
) -> Result<Option<Verdict>, StoreError> {
    let record: ReclaimRecord = records::decode(key, value)?;
    let target = key.get(1..9).and_then(|bytes| bytes.try_into().ok()).map(TargetId);
    let target = target.unwrap_or(TargetId([0; 8]));
    if let Some(Inode { body: Body::File(file), .. }) = tree::find(view, record.inode)?
        && record.generation >= file.generation
    {
        let text = format!("target {target} is told to free what {} has", record.inode);
        return Ok(Some(Verdict::Remove(FlawKind::LiveReclaim, text)));
    }
    // What was given up gets rid of its queue by and by.
    let known = view.get(&keys::target(target))?.is_some()
        || view.get(&keys::lost_target(target))?.is_some();
    remove_unless(known, || format!("target {target} is told to free something, and is none"))
}

/// What belongs to an inode of some kind.
fn of_inode(
    view: &(impl View + ?Sized),
    table: u8,
    key: &[u8],
) -> Result<Option<Verdict>, StoreError> {
    let id = number(key, 1);
    let inode = tree::find(view, id)?;
    let file = inode.as_ref().and_then(|inode| inode.file().ok());
    let right = match table {
        b'U' => file.is_some_and(|file| file.state == ObjectState::Conflict),
        b'V' => file.is_some(),
        // Of a file that was removed meanwhile it is known until its end.
        b'E' => file.is_some() || inode.is_none(),
        // Those of a directory that is gone go by and by.
        b'W' | b'f' => {
            inode.as_ref().is_some_and(Inode::is_directory) || view.get(&keys::sweep(id))?.is_some()
        }
        b'b' => inode.as_ref().is_some_and(|inode| inode.parent.is_none()),
        b'p' => file.is_some_and(|file| file.inline.as_ref().is_some_and(Vec::is_empty)),
        _ => inode.is_some(),
    };
    let what = match table {
        b'U' => "is listed as in conflict, and is not",
        b'V' => "has a shrink that targets must hear of, and is no file",
        b'E' => "has an upload under way, and is no file",
        b'W' | b'f' => "has removed names of a bucket, and is no directory",
        b'c' => "is pinned, and does not exist",
        b'p' => "has bytes here, and does not live in its inode",
        b'b' => "may get its first name, and has one or does not exist",
        _ => "has an extended attribute, and does not exist",
    };
    remove_unless(right, || format!("{id} {what}"))
}

fn inode_of(key: &[u8], value: &[u8]) -> Option<InodeId> {
    match key.first()? {
        b'R' | b'a' => None,
        b'Q' => ReclaimRecord::decode(value).map(|record| record.inode),
        b'Y' => keys::number_at(key, 9).map(InodeId),
        _ => keys::number_at(key, 1).map(InodeId),
    }
}

fn session(key: &[u8]) -> SessionId {
    SessionId(number(key, 1).0)
}

/// The number at an offset of a key that the engine has written; 0 in one that is too short, which
/// nothing has.
fn number(key: &[u8], offset: usize) -> InodeId {
    InodeId(keys::number_at(key, offset).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{Batch, MetaStore as _, memory::MemoryStore};

    /// A start takes these away, so that nobody can plant them beforehand.
    #[test]
    fn only_a_file_that_is_open_for_writing_may_be_unwritten() {
        let (mut store, key) = (MemoryStore::default(), keys::pristine(InodeId(7)));
        for (open, right) in [
            (None, false),
            (Some(OpenRecord { writes: 0, reads: true }), false),
            (Some(OpenRecord { writes: 1, reads: false }), true),
        ] {
            let mut batch = Batch::default();
            if let Some(open) = &open {
                batch.put(keys::open(InodeId(7), SessionId(1)), open.encode());
            }
            store.commit(&batch).unwrap();
            let found = flaw(&store, &key, &[]).unwrap();
            assert_eq!(found.is_none(), right, "{open:?}: {found:?}");
            assert!(found.is_none_or(|flaw| flaw.inode == InodeId(7)));
        }
    }
}
