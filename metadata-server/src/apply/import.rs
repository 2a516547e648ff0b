//! Adds and refreshes the names that a bucket lists.
//!
//! ```text
//!   the name here        object's tag      what happens
//!   none                 any               added, unless a whiteout has the same tag (for a
//!                                          directory: has none; for a symbolic link: is there)
//!   clean                the same          nothing
//!   clean                another           the file follows: new content generation
//!   dirty or local       the recorded one  nothing
//!   dirty or local       another           conflict; nothing is overwritten
//! ```
//!
//! Where a bucket has an object and a directory of one name, the directory is what is here: it
//! takes the place of the object, and an object never that of a directory.

use std::collections::BTreeMap;

use millrace_protocol::{capability::Origin, left_out::LEFT_OUT_KEYS_MAX, metadata::FileKind};
use millrace_types::{ErrorKind, FileName, InodeId, Layout, Timestamp};

use super::{
    ApplyError, Transaction, commit,
    create::{add_name, directory_body, file_body, new_inode},
    inline, layout, orphan,
    remove::{drop_name, take_entry},
};
use crate::{
    command::{BATCH_MAX, ImportEntries, ImportEntry, ImportKind, NoteLeftOut, Outcome},
    namespace::{Body, Inode, LayoutDefaults, LinkedDirectory, ObjectState, permission, tree},
    store::{
        keys,
        records::{Entry, Export, LeftOutRecord, Whiteout},
    },
};

/// What a listing did.
#[derive(Default)]
struct Counts {
    added: u32,
    refreshed: u32,
    conflicts: u32,
}

/// The feature level from which on nothing is imported into a directory that was removed.
const REMOVED_LEVEL: u32 = 5;

/// Takes one page of a listing.
pub(super) fn entries(
    tx: &mut Transaction<'_>,
    import: &ImportEntries,
) -> Result<Outcome, ApplyError> {
    if import.entries.len() > BATCH_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let mut parent = tx.inode(import.directory)?;
    // Removed while somebody had it open: nothing comes into it any more.
    let is_removed = parent.is_directory() && parent.links == 0;
    if is_removed && tx.file_system()?.feature_level >= REMOVED_LEVEL {
        return Err(ErrorKind::NotFound.into());
    }
    match tx.link_of(&parent)? {
        Some((_, link)) if !link.removing => {}
        _ => return Err(ErrorKind::InvalidArgument.into()),
    }
    let (modified, changed) = (parent.modified, parent.changed);
    let mut counts = Counts::default();
    let mut known = Known::of(tx, parent.id, &import.entries)?;
    for entry in &import.entries {
        match known.entry(tx, entry)? {
            Some(_) if is_whited_out(known.whiteout(tx, entry)?.as_ref(), entry) => {}
            Some(file) if takes_place(tx, &parent, entry, &file, &known)? => {
                let inode = tree::named(tx, &file)?;
                take_entry(tx, &mut parent, &inode, &entry.name, &file);
                drop_name(tx, inode, parent.id, &entry.name, &[])?;
                add(tx, &mut parent, entry, &mut known, &mut counts)?;
            }
            Some(present) => refresh(tx, entry, &present, &mut counts)?,
            None => add(tx, &mut parent, entry, &mut known, &mut counts)?,
        }
    }
    if counts.added > 0 {
        // Names that were in the bucket all along are no change of the directory.
        (parent.modified, parent.changed) = (modified, changed);
        tx.put_inode(&parent);
        tx.change_file_system(|fs| fs.inodes += u64::from(counts.added))?;
    }
    Ok(Outcome::Imported {
        added: counts.added,
        refreshed: counts.refreshed,
        conflicts: counts.conflicts,
    })
}

/// The directory shows everything that its prefix had.
pub(super) fn mark_listed(
    tx: &mut Transaction<'_>,
    directory: InodeId,
) -> Result<Outcome, ApplyError> {
    let mut inode = tx.inode(directory)?;
    let time = tx.time;
    match &mut inode.directory_mut()?.linked {
        Some(linked) => linked.listed = Some(time),
        None => return Err(ErrorKind::InvalidArgument.into()),
    }
    tx.put_inode(&inode);
    Ok(Outcome::Done)
}

/// What a directory has under the names of one command.
struct Known {
    directory: InodeId,
    /// `None` where a name comes twice: what it has then depends on what was made of the first.
    read: Option<(BTreeMap<FileName, Entry>, BTreeMap<FileName, Whiteout>)>,
    place: Option<layout::Place>,
}

impl Known {
    fn of(
        tx: &Transaction<'_>,
        directory: InodeId,
        entries: &[ImportEntry],
    ) -> Result<Self, ApplyError> {
        let is_ascending = entries.windows(2).all(|pair| pair[0].name < pair[1].name);
        let names = entries.iter().map(|entry| &entry.name);
        let read = match is_ascending {
            true => {
                let entry = |name: &FileName| keys::entry(directory, name.as_bytes());
                let whiteout = |name: &FileName| keys::whiteout(directory, name.as_bytes());
                let entries = tree::of_names(tx, entry, names.clone())?;
                Some((entries, tree::of_names(tx, whiteout, names)?))
            }
            false => None,
        };
        Ok(Self { directory, read, place: None })
    }

    fn entry(
        &self,
        tx: &Transaction<'_>,
        entry: &ImportEntry,
    ) -> Result<Option<Entry>, ApplyError> {
        match &self.read {
            Some((entries, _)) => Ok(entries.get(&entry.name).copied()),
            None => Ok(tree::entry(tx, self.directory, &entry.name)?),
        }
    }

    fn whiteout(
        &self,
        tx: &Transaction<'_>,
        entry: &ImportEntry,
    ) -> Result<Option<Whiteout>, ApplyError> {
        match &self.read {
            Some((_, whiteouts)) => Ok(whiteouts.get(&entry.name).cloned()),
            None => Ok(tx.read(&keys::whiteout(self.directory, entry.name.as_bytes()))?),
        }
    }

    /// The layout of a new file.
    fn layout(
        &mut self,
        tx: &Transaction<'_>,
        defaults: &LayoutDefaults,
        seed: u32,
    ) -> Result<Layout, ApplyError> {
        let place = match &self.place {
            Some(place) => place,
            None => self.place.insert(layout::Place::of(tx, defaults)?),
        };
        place.layout(seed)
    }
}

/// The feature level from which on a directory takes the place of an object of its name.
const DIRECTORY_LEVEL: u32 = 10;

/// Whether a directory is to be where the object of its name is. Both are in the bucket: which of
/// them its listing showed first must make no difference. A file that has become more than the
/// object of that name stays.
fn takes_place(
    tx: &Transaction<'_>,
    parent: &Inode,
    entry: &ImportEntry,
    present: &Entry,
    known: &Known,
) -> Result<bool, ApplyError> {
    let is_directory = entry.kind == ImportKind::Directory && present.kind == FileKind::Regular;
    if !is_directory || tx.file_system()?.feature_level < DIRECTORY_LEVEL {
        return Ok(false);
    }
    if let Some(whiteout) = known.whiteout(tx, entry)?
        && is_hidden(tx, &whiteout, entry)?
    {
        return Ok(false);
    }
    let inode = tree::named(tx, present)?;
    let is_exporting = tx.read::<Export>(&keys::export(inode.id))?.is_some();
    let Some(linked) = &parent.directory()?.linked else { return Ok(false) };
    Ok(!is_exporting && inode.is_object_of(linked, &entry.name))
}

/// The feature level from which on it is recorded what listings leave out.
const LEFT_OUT_LEVEL: u32 = 10;

/// What the last listing of a directory left out.
pub(super) fn note_left_out(
    tx: &mut Transaction<'_>,
    note: &NoteLeftOut,
) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < LEFT_OUT_LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    let directory = tx.inode(note.directory)?;
    let is_linked = tx.link_of(&directory)?.is_some() && directory.links > 0;
    if note.first.len() > LEFT_OUT_KEYS_MAX || !is_linked {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let key = keys::left_out(directory.id);
    match note.keys {
        0 => tx.delete(key),
        keys => tx.put(key, &LeftOutRecord { keys, first: note.first.clone() }),
    }
    Ok(Outcome::Done)
}

fn add(
    tx: &mut Transaction<'_>,
    parent: &mut Inode,
    entry: &ImportEntry,
    known: &mut Known,
    counts: &mut Counts,
) -> Result<(), ApplyError> {
    if let Some(whiteout) = known.whiteout(tx, entry)? {
        if is_hidden(tx, &whiteout, entry)? {
            return Ok(());
        }
        // The object that it hides may be in the bucket still, beside what is below its name.
        if entry.kind != ImportKind::Directory {
            tx.delete(keys::whiteout(parent.id, entry.name.as_bytes()));
            tx.delete(keys::moved_file(parent.id, entry.name.as_bytes()));
        }
    }
    let mut inode = build(tx, parent, entry, known)?;
    add_name(tx, parent, &mut inode, &entry.name)?;
    tx.put_inode(&inode);
    counts.added += 1;
    Ok(())
}

/// The feature level from which on what was removed as a file hides no directory.
const FILES_HIDE_FILES_LEVEL: u32 = 17;

/// Whether what was found may be what was removed here under its name.
fn is_hidden(
    tx: &Transaction<'_>,
    whiteout: &Whiteout,
    entry: &ImportEntry,
) -> Result<bool, ApplyError> {
    Ok(match &entry.kind {
        ImportKind::File(origin) => whiteout.tag == origin.tag,
        // Those of directories and of symbolic links have no tag.
        ImportKind::Directory => {
            whiteout.tag.is_empty() || tx.file_system()?.feature_level < FILES_HIDE_FILES_LEVEL
        }
        // Nothing tells of which version it is: its object may have been removed as the small file
        // that a listing takes it for, or as a link while another version was hidden already.
        ImportKind::Symlink(_) => true,
    })
}

fn build(
    tx: &Transaction<'_>,
    parent: &Inode,
    entry: &ImportEntry,
    known: &mut Known,
) -> Result<Inode, ApplyError> {
    let directory = parent.directory()?;
    let Some(linked) = &directory.linked else {
        return Err(ErrorKind::InvalidArgument.into());
    };
    let (kind, body) = match &entry.kind {
        ImportKind::Directory => {
            let name = std::str::from_utf8(entry.name.as_bytes())
                .map_err(|_| ErrorKind::InvalidArgument)?;
            let linked = LinkedDirectory {
                link: linked.link,
                prefix: format!("{}{name}/", linked.prefix),
                listed: None,
            };
            let body = directory_body(directory.defaults, Some(linked));
            (FileKind::Directory, body)
        }
        ImportKind::Symlink(target) => (FileKind::Symlink, Body::Symlink(target.clone())),
        ImportKind::File(origin) => {
            let layout = known.layout(tx, &directory.defaults, entry.seed)?;
            let mut file = file_body(layout);
            file.origin_length = origin.size;
            file.origin = Some(origin.clone());
            file.state = ObjectState::Clean;
            (FileKind::Regular, Body::File(Box::new(file)))
        }
    };
    let mut inode = new_inode(tx, entry.inode, kind, (entry.uid, entry.gid), body);
    inode.mode = entry.mode & permission::MODE_MAX;
    inode.modified = match &entry.kind {
        // From its import on, a time would be that of a change here.
        ImportKind::Directory if entry.modified >= tx.time => Timestamp(0),
        _ => entry.modified,
    };
    if let ImportKind::File(origin) = &entry.kind {
        inode.size = origin.size;
    }
    Ok(inode)
}

/// Whether the object is the one whose name was taken away here, before the present name was made:
/// replacing it is what its owner wants.
fn is_whited_out(whiteout: Option<&Whiteout>, entry: &ImportEntry) -> bool {
    let ImportKind::File(origin) = &entry.kind else {
        return false;
    };
    whiteout.is_some_and(|whiteout| whiteout.tag == origin.tag)
}

fn refresh(
    tx: &mut Transaction<'_>,
    entry: &ImportEntry,
    present: &Entry,
    counts: &mut Counts,
) -> Result<(), ApplyError> {
    let ImportKind::File(origin) = &entry.kind else {
        return Ok(());
    };
    let mut inode = tree::named(tx, present)?;
    if inode.kind != FileKind::Regular {
        // A directory of the object's name, or what was made here.
        return Ok(());
    }
    if tx.read::<Export>(&keys::export(inode.id))?.is_some() {
        // The object may be the one that this file's own upload just made: its end decides.
        return Ok(());
    }
    let file = inode.file_mut()?;
    let settled = file.origin.as_ref().is_some_and(|known| {
        // Under another key it is not this file's object: the file was renamed and exported.
        known.tag == origin.tag || known.key != origin.key
    });
    if settled {
        return Ok(());
    }
    match file.state {
        ObjectState::Clean | ObjectState::Exported => {
            follow(tx, inode, entry.modified, origin)?;
            counts.refreshed += 1;
        }
        ObjectState::Conflict | ObjectState::Lost => {}
        ObjectState::Dirty | ObjectState::Local => {
            become_conflict(tx, inode)?;
            counts.conflicts += 1;
        }
    }
    Ok(())
}

/// The file changed here and in the bucket: nothing is overwritten before somebody decides.
pub(super) fn become_conflict(
    tx: &mut Transaction<'_>,
    mut inode: Inode,
) -> Result<(), ApplyError> {
    inode.file_mut()?.state = ObjectState::Conflict;
    commit::changed(tx, &mut inode);
    tx.put_bytes(keys::conflict(inode.id), Vec::new());
    tx.put_inode(&inode);
    Ok(())
}

/// The file takes the object's new content; readers of the old one get ESTALE.
pub(super) fn follow(
    tx: &mut Transaction<'_>,
    mut inode: Inode,
    modified: Timestamp,
    origin: &Origin,
) -> Result<(), ApplyError> {
    let id = inode.id;
    let file = inode.file_mut()?;
    orphan::reclaim(tx, id, file.generation, file.layout)?;
    tx.raise_generation(id, file)?;
    file.origin = Some(origin.clone());
    file.origin_length = origin.size;
    file.sparse = false;
    inline::take(tx, id, file);
    file.state = ObjectState::Clean;
    inode.size = origin.size;
    inode.modified = modified;
    commit::changed(tx, &mut inode);
    tx.delete(keys::trim(id));
    tx.put_inode(&inode);
    Ok(())
}

#[cfg(test)]
mod tests;
