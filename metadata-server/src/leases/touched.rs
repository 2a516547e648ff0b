//! What a command changes of what clients may keep.

use std::ops::Bound;

use millrace_types::{FileName, InodeId, SessionId};

use crate::{
    namespace::{Inode, tree},
    store::{Batch, StoreError, View, borrow, keys, prefix_end, records::OpenRecord},
};

/// One thing that somebody may keep, and that is about to change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Touch {
    /// A name in a directory.
    Name {
        /// The directory, which is the key of the lease.
        directory: InodeId,
        /// The name.
        name: FileName,
        /// Whether it leads to something now. Only a lease on the whole directory covers that it
        /// does not.
        existed: bool,
    },
    /// The attributes of an inode.
    Attributes {
        /// The key of the lease that covers them.
        key: InodeId,
        /// The inode.
        inode: InodeId,
    },
}

impl Touch {
    /// The key of the lease that covers it.
    #[must_use]
    pub fn key(&self) -> InodeId {
        match self {
            Self::Name { directory, .. } => *directory,
            Self::Attributes { key, .. } => *key,
        }
    }

    /// Whether it may be the content of a file that is shown by who keeps this, or a name that
    /// leads to one.
    #[must_use]
    pub fn shows_file(&self) -> bool {
        match self {
            Self::Name { existed, .. } => *existed,
            Self::Attributes { key, inode } => key != inode,
        }
    }
}

/// The directory in which a change makes names that were not there, if it touches nothing but these
/// and what the directory shows.
#[must_use]
pub fn made_in(touches: &[Touch]) -> Option<InodeId> {
    let directory = touches.first()?.key();
    let is_part = |touch: &Touch| match touch {
        Touch::Name { directory: of, existed, .. } => *of == directory && !existed,
        Touch::Attributes { key, inode } => *key == directory && *inode == directory,
    };
    let makes = touches.iter().any(|touch| matches!(touch, Touch::Name { .. }));
    (makes && touches.iter().all(is_part)).then_some(directory)
}

/// The key of the lease that covers the attributes of an inode.
#[must_use]
pub fn key_of(inode: &Inode) -> InodeId {
    match &inode.parent {
        Some(parent) if !inode.is_directory() && inode.links == 1 => parent.directory,
        _ => inode.id,
    }
}

/// Who has a file open for writing. One alone may keep its attributes, several may not: what one
/// of them writes would be taken back from the others each time.
///
/// # Errors
/// When the store is broken.
pub fn writers(view: &(impl View + ?Sized), inode: InodeId) -> Result<Vec<SessionId>, StoreError> {
    let opens = tree::scan::<OpenRecord>(view, &keys::opens(inode), usize::MAX)?;
    let writes = opens.iter().filter(|(_, open)| open.writes > 0);
    Ok(writes.filter_map(|(key, _)| keys::number_at(key, 9)).map(SessionId).collect())
}

/// What `batch` will change of what `view` shows, for `by` if that is a session. Attributes of a
/// file that is being written are left out where nobody else can keep them: those of several
/// writers, and of this one.
///
/// # Errors
/// When the store is broken.
pub fn touched(
    view: &dyn View,
    batch: &Batch,
    by: Option<SessionId>,
) -> Result<Vec<Touch>, StoreError> {
    let mut touches = Vec::new();
    let names = table(batch, &keys::all_entries());
    for (key, existed) in names.iter().zip(exist(view, &names)?) {
        let Some(directory) = keys::number_at(key, 1).map(InodeId) else { continue };
        let Ok(name) = FileName::parse(keys::after(key, &keys::entries(directory))) else {
            return Err(StoreError::Damaged { what: "name", key: (*key).to_owned() });
        };
        touches.push(Touch::Name { directory, name, existed });
    }
    let inodes = table(batch, &keys::inodes());
    for (key, existed) in inodes.iter().zip(exist(view, &inodes)?) {
        if !existed {
            continue;
        }
        let Some(id) = keys::number_at(key, 1).map(InodeId) else { continue };
        let Some(inode) = tree::find(view, id)? else { continue };
        let may_be_kept = inode.is_directory()
            || match writers(view, id)?[..] {
                [] => true,
                [writer] => Some(writer) != by,
                [_, _, ..] => false,
            };
        if may_be_kept {
            touches.push(Touch::Attributes { key: key_of(&inode), inode: id });
        }
    }
    Ok(touches)
}

/// Which of some keys of a table, in their order, the view has. Those of many new names, as an
/// import brings them, lie beside each other with nothing between: one scan tells, where each by
/// itself would be looked for.
fn exist(view: &dyn View, keys: &[&[u8]]) -> Result<Vec<bool>, StoreError> {
    let mut exist = Vec::with_capacity(keys.len());
    for run in keys.chunk_by(|one, other| are_close(one, other)) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let limit = run.len() + BETWEEN_MAX;
        if run.len() >= RUN_MIN {
            let found = view.scan(Bound::Included(first), Bound::Included(last), limit)?;
            if found.len() < limit {
                let has = |key: &&[u8]| found.binary_search_by(|(one, _)| (**one).cmp(key)).is_ok();
                exist.extend(run.iter().map(has));
                continue;
            }
        }
        for key in run {
            exist.push(view.get(key)?.is_some());
        }
    }
    Ok(exist)
}

/// Whether two keys may be of one run: names of one directory, or inodes whose numbers are near.
fn are_close(one: &[u8], other: &[u8]) -> bool {
    let [one_number, other_number] = [one, other].map(|key| keys::number_at(key, 1));
    match (one_number, other_number) {
        (Some(one_number), Some(other_number)) if one.len() > 9 || other.len() > 9 => {
            one_number == other_number
        }
        (Some(one_number), Some(other_number)) => other_number - one_number <= BETWEEN_MAX as u64,
        _ => false,
    }
}

/// Keys of which one scan is cheaper than a look for each.
const RUN_MIN: usize = 8;

/// Others that may lie between the keys of a run for it to be worth it.
const BETWEEN_MAX: usize = 64;

/// The keys of one table that change.
fn table<'a>(batch: &'a Batch, prefix: &[u8]) -> Vec<&'a [u8]> {
    let end = prefix_end(prefix);
    batch.range(Bound::Included(prefix), borrow(&end)).map(|(key, _)| key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MetaStore as _, memory::MemoryStore};

    #[test]
    fn a_change_makes_names_in_a_directory_where_it_touches_nothing_else() {
        let name = |directory, existed| Touch::Name {
            directory: InodeId(directory),
            name: FileName::parse(b"n").unwrap(),
            existed,
        };
        let attributes =
            |key, inode| Touch::Attributes { key: InodeId(key), inode: InodeId(inode) };
        let made = |touches: &[Touch]| made_in(touches).map(|directory| directory.0);
        assert_eq!(made(&[name(7, false), attributes(7, 7)]), Some(7));
        assert_eq!(made(&[name(7, false), name(7, false)]), Some(7));
        assert_eq!(made(&[]), None);
        assert_eq!(made(&[attributes(7, 7)]), None, "a change of mode");
        assert_eq!(made(&[name(7, true), attributes(7, 7)]), None, "a removal");
        assert_eq!(made(&[name(7, false), attributes(7, 9)]), None, "of a file there");
        assert_eq!(made(&[name(7, false), name(8, false)]), None, "in two");
        assert_eq!(made(&[name(7, false), attributes(9, 9)]), None, "a link");
    }

    #[test]
    fn names_that_exist_are_told_from_new_ones_however_many_lie_between_them() {
        for between in [0, 3, 500] {
            let mut store = MemoryStore::default();
            let (mut stored, mut batch) = (Batch::default(), Batch::default());
            for nth in 0..between {
                let name = format!("0010-{nth:04}");
                stored.put(keys::entry(InodeId(7), name.as_bytes()), Vec::new());
            }
            for nth in 0..40_u64 {
                let name = format!("{nth:04}");
                let key = keys::entry(InodeId(7 + nth % 2), name.as_bytes());
                if nth % 3 == 0 {
                    stored.put(key.clone(), Vec::new());
                }
                batch.put(key, Vec::new());
            }
            store.commit(&stored).unwrap();
            let touches = touched(&store, &batch, None).unwrap();
            assert_eq!(touches.len(), 40);
            for touch in touches {
                let Touch::Name { name, existed, .. } = touch else { panic!("a name") };
                let number: u64 = name.to_string().parse().unwrap();
                assert_eq!(existed, number.is_multiple_of(3), "{name}, {between} between");
            }
        }
    }
}
