//! Lists directories, a page at a time, with attributes.

use millrace_protocol::metadata::{
    DIRECTORY_PAGE_MAX, DirectoryEntry, DirectoryPage, ReadDirectory,
};
use millrace_types::{ErrorKind, Failure, InodeId};

use super::{Client, Step, broken, need_fresh, need_listing, need_told};
use crate::{
    engine::Core,
    namespace::{
        permission::{self, Access},
        tree,
    },
};

/// One page of a directory.
///
/// # Errors
/// [`ErrorKind::NotDirectory`], [`ErrorKind::PermissionDenied`], [`ErrorKind::InvalidArgument`].
pub fn read(
    core: &mut Core,
    client: &Client,
    request: &ReadDirectory,
) -> Result<Step<DirectoryPage>, Failure> {
    if request.entries_max == 0 {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let directory = client.enter(core, request.inode)?;
    directory.directory()?;
    let caller = client.caller(&request.caller);
    let allowed = permission::check(core.view(), &caller, &directory, Access::Read);
    allowed.map_err(|error| core.failure(error))?;
    if let Some(need) = need_listing(client, &directory) {
        return Ok(Step::Need(need));
    }
    if request.cookie == 0
        && let Some(need) = need_fresh(core, client, &directory, None)?
    {
        return Ok(Step::Need(need));
    }
    if let Some(need) = need_told(core, client, directory.id) {
        return Ok(Step::Need(need));
    }
    let limit = usize::try_from(request.entries_max.min(DIRECTORY_PAGE_MAX)).unwrap_or(1);
    let listed = tree::list(core.view(), directory.id, request.cookie, limit + 1);
    let mut listed = listed.map_err(|error| broken(core, error))?;
    // While the listing runs, more will come behind the last entry.
    let listed_whole =
        directory.directory()?.linked.as_ref().is_none_or(|linked| linked.listed.is_some());
    let last = listed_whole && listed.len() <= limit;
    listed.truncate(limit);
    if core.leases.unheard().is_any_in(directory.id) {
        listed.retain(|(name, _)| core.leases.unheard().of_name(directory.id, name).is_none());
    }
    let mut entries = Vec::with_capacity(listed.len());
    for (name, entry) in listed {
        let inode = tree::named(core.view(), &entry).map_err(|error| broken(core, error))?;
        entries.push(DirectoryEntry { name, cookie: entry.cookie, attributes: inode.attributes() });
    }
    let top = client.top(core)?;
    let parent = match &directory.parent {
        Some(parent) if directory.id != top && parent.directory != top => parent.directory,
        _ => InodeId::ROOT,
    };
    Ok(Step::Done(DirectoryPage { entries, last, parent }))
}
