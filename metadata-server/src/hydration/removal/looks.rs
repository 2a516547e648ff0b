//! What a removal sees of the store: which there are, how one stands, and what is left to forget.

use millrace_protocol::admin::Removal;
use millrace_types::{Failure, FileName, InodeId, LinkId};

use crate::{
    apply::{DISCARD_LEVEL, FORGET_SAVED_LEVEL},
    command::{BATCH_MAX, Command},
    hydration::{
        destination::{link_of, only_here},
        import::broken,
        links::{LINKS_MAX, link_id},
    },
    namespace::{Inode, tree},
    store::{
        View, keys,
        records::{self, FileSystem, LinkRecord},
    },
};

/// Names that are removed one by one between two looks.
const SINGLY_MAX: usize = 32;

/// A link as its removal finds it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Standing {
    pub(super) top: InodeId,
    /// Whether its removal has begun,
    pub(super) removing: bool,
    /// and is recorded to give up what is only here.
    pub(super) discard: bool,
    /// Whether the log takes commands that record that.
    takes_discard: bool,
}

/// The first names of a directory, as they are to be forgotten.
#[derive(Debug)]
pub(super) struct Page {
    /// With whether they lead to directories.
    pub(super) names: Vec<(FileName, bool)>,
    /// Whether there are no others behind them.
    pub(super) is_last: bool,
    /// Whether the directory shows the link. Below a name that no key can have none does.
    pub(super) is_linked: bool,
    /// A subdirectory that still holds names.
    pub(super) full: Option<InodeId>,
    /// A subdirectory that is another link's.
    pub(super) foreign: Option<Inode>,
    /// Files that no bucket may have as they are.
    pub(super) only_here: Vec<Inode>,
    /// The others that have several names.
    pub(super) shared: Vec<InodeId>,
    /// Whether the log takes commands that look at the files themselves.
    pub(super) is_checked: bool,
    /// Whether it is recorded that what is only here is given up.
    pub(super) discard: bool,
}

impl Standing {
    /// What records that the removal begins, or gives up what is only here; nothing where that is
    /// recorded.
    pub(super) fn beginning(&self, link: LinkId, discard: bool) -> Option<Command> {
        match discard && !self.discard && self.takes_discard {
            true => Some(Command::BeginLinkDiscard(link)),
            false => (!self.removing).then_some(Command::BeginLinkRemoval(link)),
        }
    }
}

/// The links whose removal has begun.
pub(super) fn unended(view: &dyn View) -> Result<Vec<LinkId>, Failure> {
    let all = tree::scan::<LinkRecord>(view, &keys::links(), LINKS_MAX).map_err(broken)?;
    let all = all.into_iter().filter(|(_, record)| record.removing);
    Ok(all.map(|(key, _)| link_id(&key, &keys::links())).collect())
}

/// The same as operators are told.
pub(super) fn removals(view: &dyn View) -> Result<Vec<Removal>, Failure> {
    let removal = |link| Ok(Removal { link, discard: is_discarded(view, link)? });
    unended(view)?.into_iter().map(removal).collect()
}

/// A link as its removal finds it; nothing for one that is removed.
pub(super) fn standing(view: &dyn View, link: LinkId) -> Result<Option<Standing>, Failure> {
    let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
    let Some(LinkRecord { directory: top, removing, .. }) = record else { return Ok(None) };
    let discard = is_discarded(view, link)?;
    let takes_discard = feature_level(view)? >= DISCARD_LEVEL;
    Ok(Some(Standing { top, removing, discard, takes_discard }))
}

/// Whether it is recorded that the removal of a link gives up what is only here.
fn is_discarded(view: &dyn View, link: LinkId) -> Result<bool, Failure> {
    Ok(view.get(&keys::discard(link)).map_err(broken)?.is_some())
}

fn feature_level(view: &dyn View) -> Result<u32, Failure> {
    let file_system: Option<FileSystem> =
        records::read(view, &keys::file_system()).map_err(broken)?;
    Ok(file_system.map_or(0, |found| found.feature_level))
}

/// The first names of a directory, with what stands in the way of forgetting them.
pub(super) fn look(view: &dyn View, link: LinkId, directory: InodeId) -> Result<Page, Failure> {
    let is_checked = feature_level(view)? >= FORGET_SAVED_LEVEL;
    let discard = is_discarded(view, link)?;
    let inode = tree::find(view, directory).map_err(broken)?;
    let shown = inode.map(|inode| link_of(view, &inode)).transpose()?.flatten();
    let is_linked = shown == Some(link);
    let limit = if is_linked { BATCH_MAX } else { SINGLY_MAX };
    let listed = tree::list(view, directory, 0, limit).map_err(broken)?;
    let is_last = listed.len() < limit;
    let mut names = Vec::with_capacity(listed.len());
    let (mut files, mut shared) = (Vec::new(), Vec::new());
    let (mut full, mut foreign) = (None, None);
    for (name, entry) in listed {
        let inode = tree::named(view, &entry).map_err(broken)?;
        names.push((name, inode.is_directory()));
        if !inode.is_directory() {
            if inode.links > 1 {
                shared.push(inode.id);
            }
            files.push(inode);
        } else if is_of_another(view, link, &inode)? {
            foreign.get_or_insert(inode);
        } else if inode.size > 0 {
            full.get_or_insert(inode.id);
        }
    }
    let only_here = only_here(view, files)?;
    shared.retain(|id| only_here.iter().all(|inode| inode.id != *id));
    Ok(Page { names, is_last, is_linked, full, foreign, only_here, shared, is_checked, discard })
}

/// Whether a directory shows a link besides this one.
fn is_of_another(view: &dyn View, link: LinkId, directory: &Inode) -> Result<bool, Failure> {
    let Some(other) = link_of(view, directory)?.filter(|other| *other != link) else {
        return Ok(false);
    };
    let record: Option<LinkRecord> = records::read(view, &keys::link(other)).map_err(broken)?;
    Ok(record.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_removal_is_recorded_once_and_what_it_gives_up_where_the_log_takes_that() {
        let link = LinkId(1);
        let beginning = |removing, discard, takes_discard, wanted| {
            Standing { top: InodeId(2), removing, discard, takes_discard }.beginning(link, wanted)
        };
        let (removal, discard) =
            (Some(Command::BeginLinkRemoval(link)), Some(Command::BeginLinkDiscard(link)));
        assert_eq!(beginning(false, false, true, false), removal);
        assert_eq!(beginning(false, false, true, true), discard);
        assert_eq!(beginning(true, false, true, true), discard);
        for wanted in [false, true] {
            assert_eq!(beginning(true, true, true, wanted), None);
            assert_eq!(beginning(true, false, false, wanted), None);
            assert_eq!(beginning(false, false, false, wanted), removal);
        }
    }
}
