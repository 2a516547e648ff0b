//! What the bucket said of one file's object, and the decision of a conflict.
//!
//! ```text
//!   the file here        the object        what happens
//!   clean or exported    another version   the file follows: new content generation
//!   clean or exported    gone              its names go, and with the last one the file
//!   dirty or local       another version   conflict; nothing is overwritten
//!   dirty                gone              conflict; nothing is overwritten
//!   conflict, or lost    any               stays until it is resolved
//! ```
//!
//! What a bucket changes is no change of a directory by anybody here: its times stay.

use millrace_protocol::admin::Keep;
use millrace_types::{ErrorKind, FileName, InodeId, Timestamp};

use super::{
    ApplyError, Transaction, commit, import, orphan, pristine,
    remove::{drop_name, take_entry},
};
use crate::{
    command::{DropDirectory, FoundObject, Observation, ObserveObject, Outcome, ResolveConflict},
    namespace::{Inode, ObjectState, permission, tree},
    store::{
        keys,
        records::{Entry, Export},
    },
};

/// Takes what HEAD said of a file's object.
pub(super) fn object(
    tx: &mut Transaction<'_>,
    observe: &ObserveObject,
) -> Result<Outcome, ApplyError> {
    let known = Ok(Outcome::Observed(Observation::Known));
    let Some(inode) = tree::find(tx, observe.inode)? else { return known };
    let file = inode.file()?;
    let recorded = file.origin.as_ref().map(|origin| &origin.tag);
    let found = observe.found.as_ref();
    if recorded != observe.known.as_ref()
        || found.map(|found| &found.origin.tag) == recorded
        // The object may be the one that this file's own upload just made: its end decides.
        || tx.read::<Export>(&keys::export(inode.id))?.is_some()
    {
        return known;
    }
    let observation = match (file.state, found) {
        (ObjectState::Clean | ObjectState::Exported, Some(found)) => {
            import::follow(tx, inode, found.modified, &found.origin)?;
            Observation::Followed
        }
        (ObjectState::Clean | ObjectState::Exported, None) => {
            remove_names(tx, inode.id)?;
            Observation::Removed
        }
        (ObjectState::Dirty | ObjectState::Local, _) => {
            import::become_conflict(tx, inode)?;
            Observation::Conflict
        }
        (ObjectState::Conflict | ObjectState::Lost, _) => Observation::Known,
    };
    Ok(Outcome::Observed(observation))
}

/// Decides a conflict. The bucket's version replaces what somebody might be writing: that waits
/// for the last writer.
pub(super) fn resolve(
    tx: &mut Transaction<'_>,
    resolve: &ResolveConflict,
) -> Result<Outcome, ApplyError> {
    let inode = tx.inode(resolve.inode)?;
    let caller = &resolve.caller;
    if !permission::is_root(caller) && caller.uid != inode.uid {
        return Err(ErrorKind::NotPermitted.into());
    }
    match (inode.file()?.state, resolve.keep) {
        (ObjectState::Conflict, _) => {}
        // The bucket's version is whole, if there is one.
        (ObjectState::Lost, Keep::Bucket) if resolve.found.is_some() => {}
        _ => return Err(ErrorKind::InvalidArgument.into()),
    }
    let written = resolve.keep == Keep::Bucket && orphan::is_open(tx, inode.id)?;
    if written || tx.read::<Export>(&keys::export(inode.id))?.is_some() {
        return Err(ErrorKind::InUse.into());
    }
    tx.delete(keys::conflict(inode.id));
    pristine::forget(tx, &inode)?;
    let observation = match (resolve.keep, &resolve.found) {
        (Keep::Local, found) => {
            keep_local(tx, inode, found.as_ref())?;
            Observation::Kept
        }
        (Keep::Bucket, Some(found)) => {
            import::follow(tx, inode, found.modified, &found.origin)?;
            Observation::Followed
        }
        (Keep::Bucket, None) => {
            remove_names(tx, inode.id)?;
            Observation::Removed
        }
    };
    Ok(Outcome::Observed(observation))
}

/// The present tag is the condition of the next export. The object backs no byte of this content:
/// who decided has made sure that all of it is here.
fn keep_local(
    tx: &mut Transaction<'_>,
    mut inode: Inode,
    found: Option<&FoundObject>,
) -> Result<(), ApplyError> {
    let file = inode.file_mut()?;
    file.origin = found.map(|found| found.origin.clone());
    file.origin_length = 0;
    file.state = if found.is_some() { ObjectState::Dirty } else { ObjectState::Local };
    commit::changed(tx, &mut inode);
    tx.put_inode(&inode);
    Ok(())
}

/// The feature level from which on a directory with the time of its mark counts as imported.
const MARKED_TIMES_LEVEL: u32 = 25;

/// Removes an imported directory of which the bucket has nothing left. One with entries, one that
/// was made here and one in which somebody changed something here stay: their time says so.
pub(super) fn drop_directory(
    tx: &mut Transaction<'_>,
    drop: &DropDirectory,
) -> Result<Outcome, ApplyError> {
    let known = Ok(Outcome::Observed(Observation::Known));
    let Some(parent) = tree::find(tx, drop.parent)? else { return known };
    let entry = tree::entry(tx, parent.id, &drop.name)?;
    let Some(entry) = entry.filter(|entry| entry.inode == drop.inode) else { return known };
    let inode = tree::named(tx, &entry)?;
    let listed = match inode.directory() {
        Ok(body) => body.linked.as_ref().is_some_and(|linked| linked.listed.is_some()),
        Err(_) => false,
    };
    let is_as_imported = match tx.file_system()?.feature_level >= MARKED_TIMES_LEVEL {
        true => inode.is_as_imported(),
        false => inode.modified == Timestamp(0),
    };
    if !listed || inode.size > 0 || !is_as_imported {
        return known;
    }
    remove_name(tx, parent, inode, &drop.name, &entry)?;
    Ok(Outcome::Observed(Observation::Removed))
}

/// Takes every name of a file away, without whiteouts: an object that comes back is imported again.
fn remove_names(tx: &mut Transaction<'_>, id: InodeId) -> Result<(), ApplyError> {
    let Some(inode) = tree::find(tx, id)? else { return Ok(()) };
    // The first one goes last: no other is looked for then to take its place.
    for name in tree::parents(tx, &inode)?.into_iter().rev() {
        let Some(inode) = tree::find(tx, id)? else { break };
        let parent = tx.inode(name.directory)?;
        let entry = tree::entry(tx, parent.id, &name.name)?.ok_or(ErrorKind::Internal)?;
        remove_name(tx, parent, inode, &name.name, &entry)?;
    }
    Ok(())
}

fn remove_name(
    tx: &mut Transaction<'_>,
    mut parent: Inode,
    inode: Inode,
    name: &FileName,
    entry: &Entry,
) -> Result<(), ApplyError> {
    let times = (parent.modified, parent.changed);
    take_entry(tx, &mut parent, &inode, name, entry);
    (parent.modified, parent.changed) = times;
    tx.put_inode(&parent);
    drop_name(tx, inode, parent.id, name, &[])
}
