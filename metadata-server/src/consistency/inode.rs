//! An inode: its names, what lies in it, and what it counts of itself.

use std::ops::Bound;

use millrace_protocol::{fsck::FlawKind, metadata::FileKind};
use millrace_types::InodeId;

use super::{Flaw, census::Counted, cycle::is_first_of_ring, entry::leads_to};
use crate::{
    command::Repair,
    namespace::{
        Body, Inode, ObjectState, ParentLink,
        tree::{self, LINKS_MAX},
    },
    store::{StoreError, View, borrow, keys, prefix_end, records},
};

/// What is wrong with one inode. How many names are in it is another question.
pub(super) fn flaws(view: &dyn View, key: &[u8], value: &[u8]) -> Result<Vec<Flaw>, StoreError> {
    let inode: Inode = records::decode(key, value)?;
    let flaw = |(kind, text)| Flaw {
        kind,
        inode: inode.id,
        place: None,
        text,
        // Nobody knows which half of a record is the right one.
        repair: (kind != FlawKind::Unsound).then_some(Repair::Inode { inode: inode.id }),
    };
    if keys::inode(inode.id) != key {
        let text = format!("the record of {} stands where another's should", inode.id);
        return Ok(vec![Flaw { repair: None, ..flaw((FlawKind::Unsound, text)) }]);
    }
    Ok(verdicts(view, &inode)?.into_iter().map(flaw).collect())
}

/// The kinds of flaws of an inode, each with a sentence.
///
/// # Errors
/// When the store fails.
pub fn verdicts(
    view: &(impl View + ?Sized),
    inode: &Inode,
) -> Result<Vec<(FlawKind, String)>, StoreError> {
    let mut found = Vec::new();
    of_names(view, inode, &mut found)?;
    if inode.accounting != ACCOUNT {
        let text = format!("it is counted for account {}, which there is not", inode.accounting);
        found.push((FlawKind::WrongAccount, text));
    }
    of_body(view, inode, &mut found)?;
    let bytes = attribute_bytes(view, inode.id)?;
    if u64::from(inode.xattr_bytes) != bytes {
        let text = format!("it counts {} bytes of attributes, and has {bytes}", inode.xattr_bytes);
        found.push((FlawKind::WrongAttributes, text));
    }
    Ok(found)
}

/// Where a directory counts other names than the `counted` ones that are in it.
#[must_use]
pub fn counts(inode: &Inode, counted: Counted) -> Option<Flaw> {
    let directories = u32::try_from(counted.directories).unwrap_or(u32::MAX);
    // One that was removed while somebody had it open has no links at all.
    let is_named = inode.id == InodeId::ROOT || inode.parent.is_some();
    let links = if is_named { directories.saturating_add(2) } else { 0 };
    if (inode.size, inode.links) == (counted.records, links) {
        return None;
    }
    let text = format!(
        "it counts {} names and {} links, and has {} names with {directories} directories",
        inode.size, inode.links, counted.records
    );
    let repair = Repair::Counts { directory: inode.id, entries: counted.records, directories };
    let (kind, inode) = (FlawKind::WrongEntries, inode.id);
    Some(Flaw { kind, inode, place: None, text, repair: Some(repair) })
}

/// Whether a repair would put the inode into the directory for what is lost.
///
/// # Errors
/// When the store fails.
pub fn is_lost(view: &(impl View + ?Sized), id: InodeId) -> Result<bool, StoreError> {
    let Some(inode) = tree::find(view, id)? else { return Ok(false) };
    let found = verdicts(view, &inode)?;
    Ok(found.iter().any(|(kind, _)| matches!(kind, FlawKind::Nameless | FlawKind::Cycle)))
}

fn of_names(
    view: &(impl View + ?Sized),
    inode: &Inode,
    found: &mut Vec<(FlawKind, String)>,
) -> Result<(), StoreError> {
    if inode.id == InodeId::ROOT {
        if inode.parent.is_some() {
            found.push((FlawKind::WrongParent, "the root has a name".to_owned()));
        }
        return Ok(());
    }
    let names = Names::of(view, inode)?;
    let count = names.count();
    if count == 0 {
        // It lost its last name while somebody had it open, or never had one.
        let unnamed = inode.parent.is_none() && inode.links == 0;
        if !(unnamed && is_open(view, inode.id)?) {
            found.push((FlawKind::Nameless, "nothing leads to it".to_owned()));
        }
        return Ok(());
    }
    if names.first.is_none() {
        let text = "its first name does not lead to it, and another one does".to_owned();
        found.push((FlawKind::WrongParent, text));
    }
    if inode.is_directory() {
        if is_first_of_ring(view, inode.id)? {
            found.push((FlawKind::Cycle, "the directory lies below itself".to_owned()));
        }
    } else if inode.links != count {
        let text = format!("it counts {} names, and has {count}", inode.links);
        found.push((FlawKind::WrongLinks, text));
    }
    Ok(())
}

fn of_body(
    view: &(impl View + ?Sized),
    inode: &Inode,
    found: &mut Vec<(FlawKind, String)>,
) -> Result<(), StoreError> {
    let agrees = match &inode.body {
        Body::File(_) => inode.kind == FileKind::Regular,
        Body::Directory(_) => inode.kind == FileKind::Directory,
        Body::Symlink(_) => inode.kind == FileKind::Symlink,
        Body::Special => {
            !matches!(inode.kind, FileKind::Regular | FileKind::Directory | FileKind::Symlink)
        }
    };
    if !agrees {
        found.push((FlawKind::Unsound, format!("it says {:?}, and is none", inode.kind)));
    }
    match &inode.body {
        Body::Symlink(target) if target.len() as u64 != inode.size => {
            let text = format!("its size is {}, its target has {}", inode.size, target.len());
            found.push((FlawKind::WrongSize, text));
        }
        Body::File(file) => {
            if let Some(bytes) = &file.inline {
                let apart = match bytes.is_empty() {
                    true => view.get(&keys::contents(inode.id))?,
                    false => None,
                };
                let len = apart.as_ref().unwrap_or(bytes).len();
                if len as u64 != inode.size {
                    let text = format!("its size is {}, {len} bytes lie in it", inode.size);
                    found.push((FlawKind::Unsound, text));
                }
            }
            let listed = view.get(&keys::conflict(inode.id))?.is_some();
            if file.state == ObjectState::Conflict && !listed {
                let text = "it is in conflict, and not in the list of those that are".to_owned();
                found.push((FlawKind::WrongConflict, text));
            }
        }
        _ => {}
    }
    Ok(())
}

/// The names by which an inode is reached.
#[derive(Debug)]
pub struct Names {
    /// The first one, if it leads there.
    pub first: Option<ParentLink>,
    /// Further ones that do.
    pub further: Vec<ParentLink>,
}

impl Names {
    /// Looks at every name that the inode knows.
    ///
    /// # Errors
    /// When the store fails.
    pub fn of(view: &(impl View + ?Sized), inode: &Inode) -> Result<Self, StoreError> {
        let leads = |link: &ParentLink| leads_to(view, link.directory, &link.name, inode.id);
        let mut first = None;
        if let Some(link) = &inode.parent
            && leads(link)?
        {
            first = Some(link.clone());
        }
        let mut further = Vec::new();
        let prefix = keys::names(inode.id);
        let end = prefix_end(&prefix);
        let limit = if inode.is_directory() { 0 } else { LINKS_MAX as usize + 1 };
        for (key, _) in view.scan(Bound::Included(&prefix), borrow(&end), limit)? {
            let link = tree::parent_of_key(&key)?;
            if Some(&link) != first.as_ref() && leads(&link)? {
                further.push(link);
            }
        }
        Ok(Self { first, further })
    }

    /// How many there are.
    #[must_use]
    pub fn count(&self) -> u32 {
        let further = u32::try_from(self.further.len()).unwrap_or(u32::MAX);
        further.saturating_add(u32::from(self.first.is_some()))
    }
}

/// Whether anybody keeps the inode open.
fn is_open(view: &(impl View + ?Sized), inode: InodeId) -> Result<bool, StoreError> {
    let opens = keys::opens(inode);
    let end = prefix_end(&opens);
    Ok(!view.scan(Bound::Included(&opens), borrow(&end), 1)?.is_empty())
}

/// Bytes of the names and values of an inode's extended attributes.
///
/// # Errors
/// When the store fails.
pub fn attribute_bytes(view: &(impl View + ?Sized), inode: InodeId) -> Result<u64, StoreError> {
    let prefix = keys::xattrs(inode);
    let end = prefix_end(&prefix);
    let found = view.scan(Bound::Included(&prefix), borrow(&end), usize::MAX)?;
    let bytes =
        |(key, value): &(Vec<u8>, Vec<u8>)| (keys::after(key, &prefix).len() + value.len()) as u64;
    Ok(found.iter().map(bytes).sum())
}

/// The one account that there is: the root's, which everything below it inherits.
pub const ACCOUNT: u32 = 0;
