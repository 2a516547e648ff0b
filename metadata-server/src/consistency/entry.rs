//! A name in a directory: what it leads to, and whether that knows of it.

use millrace_protocol::fsck::FlawKind;
use millrace_types::{FileName, InodeId};

use super::Flaw;
use crate::{
    command::Repair,
    namespace::{Inode, tree},
    store::{
        StoreError, View, keys,
        records::{self, Entry},
    },
};

/// What is wrong with one name.
pub(super) fn flaws(view: &dyn View, key: &[u8], value: &[u8]) -> Result<Vec<Flaw>, StoreError> {
    let place = place_of_key(key)?;
    let entry: Entry = records::decode(key, value)?;
    let found = verdicts(view, &place, &entry)?;
    let (directory, name) = place;
    let flaw = |(kind, text)| Flaw {
        kind,
        inode: entry.inode,
        place: Some((directory, name.clone())),
        text,
        repair: Some(Repair::Entry { directory, name: name.clone() }),
    };
    Ok(found.into_iter().map(flaw).collect())
}

/// The kinds of flaws of a name, each with a sentence. Where it leads nowhere, that is all.
///
/// # Errors
/// When the store fails.
pub fn verdicts(
    view: &(impl View + ?Sized),
    place: &(InodeId, FileName),
    entry: &Entry,
) -> Result<Vec<(FlawKind, String)>, StoreError> {
    let (directory, name) = place;
    let Some(parent) = tree::find(view, *directory)?.filter(Inode::is_directory) else {
        let text = format!("a name is in {directory}, which is no directory");
        return Ok(vec![(FlawKind::LostDirectory, text)]);
    };
    let Some(inode) = tree::find(view, entry.inode)? else {
        let text = format!("the name leads to {}, which does not exist", entry.inode);
        return Ok(vec![(FlawKind::DeadName, text)]);
    };
    let mut found = Vec::new();
    match how_known(view, place, &inode)? {
        Known::Yes => {}
        Known::No => {
            let text = format!("{} does not know that it has this name", inode.id);
            found.push((FlawKind::WrongParent, text));
        }
        Known::Elsewhere => {
            let text = format!("the directory {} has its place under another name", inode.id);
            return Ok(vec![(FlawKind::SecondPlace, text)]);
        }
    }
    if entry.kind != inode.kind {
        let text = format!("the name says {:?}, and {} is {:?}", entry.kind, inode.id, inode.kind);
        found.push((FlawKind::WrongKind, text));
    }
    let listed = view.get(&keys::cookie(*directory, entry.cookie))?;
    let next = parent.directory().map_or(0, |body| body.next_cookie);
    if entry.cookie == 0 || entry.cookie >= next || listed.as_deref() != Some(name.as_bytes()) {
        let text = format!("listings do not find the name at its position {}", entry.cookie);
        found.push((FlawKind::WrongPosition, text));
    }
    Ok(found)
}

/// Whether an inode knows of a name that leads to it.
enum Known {
    Yes,
    No,
    /// It is a directory, and has its place elsewhere.
    Elsewhere,
}

fn how_known(
    view: &(impl View + ?Sized),
    place: &(InodeId, FileName),
    inode: &Inode,
) -> Result<Known, StoreError> {
    let (directory, name) = place;
    if inode.id == InodeId::ROOT {
        return Ok(Known::Elsewhere);
    }
    if let Some(first) = &inode.parent {
        if (first.directory, &first.name) == (*directory, name) {
            return Ok(Known::Yes);
        }
        if inode.is_directory() && leads_to(view, first.directory, &first.name, inode.id)? {
            return Ok(Known::Elsewhere);
        }
    }
    let further = keys::name(inode.id, *directory, name.as_bytes());
    let known = !inode.is_directory() && view.get(&further)?.is_some();
    Ok(if known { Known::Yes } else { Known::No })
}

/// Whether a name leads to an inode, from a directory that there is.
///
/// # Errors
/// When the store fails.
pub fn leads_to(
    view: &(impl View + ?Sized),
    directory: InodeId,
    name: &FileName,
    inode: InodeId,
) -> Result<bool, StoreError> {
    let leads = tree::entry(view, directory, name)?.is_some_and(|entry| entry.inode == inode);
    Ok(leads && tree::find(view, directory)?.is_some_and(|parent| parent.is_directory()))
}

/// The directory and the name in the key of an entry.
///
/// # Errors
/// [`StoreError::Damaged`] when it is none.
pub fn place_of_key(key: &[u8]) -> Result<(InodeId, FileName), StoreError> {
    let name = key.get(9..).and_then(|name| FileName::parse(name).ok());
    match (keys::number_at(key, 1), name) {
        (Some(directory), Some(name)) => Ok((InodeId(directory), name)),
        _ => Err(StoreError::Damaged { what: "name of an entry", key: key.to_owned() }),
    }
}
