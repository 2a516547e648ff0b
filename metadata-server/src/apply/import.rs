//! Adds and refreshes the names that a bucket lists.
//!
//! ```text
//!   the name here        object's tag      what happens
//!   none                 any               added, unless a whiteout has the same tag
//!   clean                the same          nothing
//!   clean                another           the file follows: new content generation
//!   dirty or local       the recorded one  nothing
//!   dirty or local       another           conflict; nothing is overwritten
//! ```

use millrace_protocol::{capability::Origin, metadata::FileKind};
use millrace_types::{ErrorKind, InodeId, Timestamp};

use super::{
    ApplyError, Transaction, commit,
    create::{add_name, directory_body, file_body, new_inode},
    layout, orphan,
};
use crate::{
    command::{BATCH_MAX, ImportEntries, ImportEntry, ImportKind, Outcome},
    namespace::{Body, Inode, LinkedDirectory, ObjectState, permission, tree},
    store::{
        keys,
        records::{Entry, Export, Whiteout},
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
    for entry in &import.entries {
        match tree::entry(tx, parent.id, &entry.name)? {
            Some(_) if is_whited_out(tx, parent.id, entry)? => {}
            Some(present) => refresh(tx, entry, &present, &mut counts)?,
            None => add(tx, &mut parent, entry, &mut counts)?,
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

fn add(
    tx: &mut Transaction<'_>,
    parent: &mut Inode,
    entry: &ImportEntry,
    counts: &mut Counts,
) -> Result<(), ApplyError> {
    let whiteout = tx.read::<Whiteout>(&keys::whiteout(parent.id, entry.name.as_bytes()))?;
    if let Some(whiteout) = whiteout {
        let hidden = match &entry.kind {
            ImportKind::File(origin) => whiteout.tag == origin.tag,
            ImportKind::Directory | ImportKind::Symlink(_) => true,
        };
        if hidden {
            return Ok(());
        }
        tx.delete(keys::whiteout(parent.id, entry.name.as_bytes()));
        tx.delete(keys::moved_file(parent.id, entry.name.as_bytes()));
    }
    let mut inode = build(tx, parent, entry)?;
    add_name(tx, parent, &mut inode, &entry.name)?;
    tx.put_inode(&inode);
    counts.added += 1;
    Ok(())
}

fn build(tx: &Transaction<'_>, parent: &Inode, entry: &ImportEntry) -> Result<Inode, ApplyError> {
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
            let layout = layout::place(tx, &directory.defaults, entry.seed)?;
            let mut file = file_body(layout);
            file.origin_length = origin.size;
            file.origin = Some(origin.clone());
            file.state = ObjectState::Clean;
            (FileKind::Regular, Body::File(Box::new(file)))
        }
    };
    let mut inode = new_inode(tx, entry.inode, kind, (entry.uid, entry.gid), body);
    inode.mode = entry.mode & permission::MODE_MAX;
    inode.modified = entry.modified;
    if let ImportKind::File(origin) = &entry.kind {
        inode.size = origin.size;
    }
    Ok(inode)
}

/// Whether the object is the one whose name was taken away here, before the present name was made:
/// replacing it is what its owner wants.
fn is_whited_out(
    tx: &Transaction<'_>,
    parent: InodeId,
    entry: &ImportEntry,
) -> Result<bool, ApplyError> {
    let ImportKind::File(origin) = &entry.kind else {
        return Ok(false);
    };
    let whiteout = tx.read::<Whiteout>(&keys::whiteout(parent, entry.name.as_bytes()))?;
    Ok(whiteout.is_some_and(|whiteout| whiteout.tag == origin.tag))
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
        // A file and a prefix of one name: what was there first stays.
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
    file.inline = None;
    file.state = ObjectState::Clean;
    inode.size = origin.size;
    inode.modified = modified;
    commit::changed(tx, &mut inode);
    tx.delete(keys::trim(id));
    tx.put_inode(&inode);
    Ok(())
}
