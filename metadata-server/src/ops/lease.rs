//! Names and attributes that the asking client keeps, and what is taken back from it.

use millrace_protocol::{
    lease::{
        AwaitRecalls, CoveredEntry, DirectoryEnd, EntriesPage, FindEnd, FindName, FoundName,
        ListEntries, ListFrom, MarkedPage, News, Recall, Recalls, ShowInode, ShownInode,
    },
    metadata::{Coverage, DIRECTORY_PAGE_MAX, DirectoryEntry, InodeReply},
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, LogIndex, SessionId};
use tokio::sync::watch;

use super::{
    Client, Step, broken, contents::with_capability, find as find_entry, last_name::enter_found,
    need_fresh, need_listing, need_name, need_told, read,
};
use crate::{
    apply,
    command::{Command, Opener},
    engine::Core,
    leases::{Holding, key_of, touched::writers},
    namespace::{
        Body, Inode,
        permission::{self, Access},
        tree,
    },
    store::{
        keys,
        records::{self, LinkRecord},
    },
};

/// Finds a name in a directory, or that it is not there.
///
/// # Errors
/// [`ErrorKind::NotDirectory`], [`ErrorKind::PermissionDenied`], [`ErrorKind::SessionGone`].
pub fn find(
    core: &mut Core,
    client: &Client,
    request: &FindName,
) -> Result<Step<FoundName>, Failure> {
    client.own_session(core, request.session)?;
    let caller = client.caller(&request.caller);
    let parent = client.enter(core, request.parent)?;
    let fresh = need_fresh(core, client, &parent, Some(&request.name))?;
    let found = find_entry(core, &caller, &parent, &request.name)?;
    let is_unheard =
        found.is_some() && core.leases.unheard().of_name(parent.id, &request.name).is_some();
    if let Some(need) = fresh {
        return Ok(Step::Need(need));
    }
    if found.is_none()
        && let Some(need) = need_name(client, &parent, &request.name)
    {
        return Ok(Step::Need(need));
    }
    if is_unheard && let Some(need) = need_told(core, client, parent.id) {
        return Ok(Step::Need(need));
    }
    let (holding, covered) = match found {
        Some(_) => (Holding::NAMES, Coverage::Names),
        None => (Holding::WHOLE, Coverage::Directory),
    };
    let coverage = match grant(core, client, request.session, &parent, holding)? {
        true => covered,
        false => Coverage::None,
    };
    let Some(inode) = found else {
        return Ok(Step::Done(FoundName { found: None, coverage, lease: None }));
    };
    if is_unheard {
        // It is there when its maker is answered.
        let coverage = Coverage::None;
        return Ok(Step::Done(FoundName { found: None, coverage, lease: None }));
    }
    let (reply, lease) = keep(core, client, request.session, &inode)?;
    let reply = with_capability(core, client, request.session, &inode, reply, lease)?;
    Ok(Step::Done(FoundName { found: Some(reply), coverage, lease }))
}

/// Shows an inode.
///
/// # Errors
/// [`ErrorKind::Stale`] when it does not exist any more; [`ErrorKind::SessionGone`].
pub fn show(
    core: &mut Core,
    client: &Client,
    request: &ShowInode,
) -> Result<Step<ShownInode>, Failure> {
    client.own_session(core, request.session)?;
    let looking = Opener { session: request.session, inode: request.inode };
    let inode = enter_found(core, client, looking)?;
    let (reply, lease) = keep(core, client, request.session, &inode)?;
    Ok(Step::Done(ShownInode { reply, lease }))
}

/// One page of a directory, with which of its entries have extended attributes.
///
/// # Errors
/// [`ErrorKind::NotDirectory`], [`ErrorKind::PermissionDenied`], [`ErrorKind::InvalidArgument`],
/// [`ErrorKind::SessionGone`].
pub fn list(
    core: &mut Core,
    client: &Client,
    request: &ListEntries,
) -> Result<Step<MarkedPage>, Failure> {
    if request.entries_max == 0 {
        return Err(ErrorKind::InvalidArgument.into());
    }
    client.own_session(core, request.session)?;
    let session = request.session;
    let directory = client.enter(core, request.inode)?;
    let body = directory.directory()?;
    let caller = client.caller(&request.caller);
    let allowed = permission::check(core.view(), &caller, &directory, Access::Read);
    allowed.map_err(|error| core.failure(error))?;
    let after = match &request.from {
        ListFrom::Cookie(cookie) => {
            if let Some(need) = need_listing(client, &directory) {
                return Ok(Step::Need(need));
            }
            if *cookie == 0
                && let Some(need) = need_fresh(core, client, &directory, None)?
            {
                return Ok(Step::Need(need));
            }
            Some(*cookie)
        }
        // A name that is here already waits for no listing.
        ListFrom::Name(name) => {
            if let Some(need) = need_fresh(core, client, &directory, Some(name))? {
                return Ok(Step::Need(need));
            }
            let entry = tree::entry(core.view(), directory.id, name);
            let entry = entry.map_err(|error| broken(core, error))?;
            entry.map(|entry| entry.cookie.saturating_sub(1))
        }
    };
    if let Some(need) = need_told(core, client, directory.id) {
        return Ok(Step::Need(need));
    }
    let limit = usize::try_from(request.entries_max.min(DIRECTORY_PAGE_MAX)).unwrap_or(1);
    let mut listed = match after {
        Some(after) => {
            let listed = tree::list(core.view(), directory.id, after, limit + 1);
            listed.map_err(|error| broken(core, error))?
        }
        None => Vec::new(),
    };
    // While the listing runs, more will come behind the last entry.
    let listed_whole = body.linked.as_ref().is_none_or(|linked| linked.listed.is_some());
    let last = after.is_some() && listed_whole && listed.len() <= limit;
    listed.truncate(limit);
    let is_whole = after == Some(0) && last;
    let Covered { entries, with_xattrs, coverage } =
        covered(core, client, session, &directory, (listed, is_whole))?;
    let top = client.top(core)?;
    let parent = match &directory.parent {
        Some(parent) if directory.id != top && parent.directory != top => parent.directory,
        _ => InodeId::ROOT,
    };
    let own = grant(core, client, session, &directory, Holding::OWN)?;
    let directory = own.then(|| directory.attributes());
    let page = EntriesPage { entries, last, parent, coverage, directory };
    Ok(Step::Done(MarkedPage { page, with_xattrs }))
}

/// Where the names of a directory end by now.
///
/// # Errors
/// [`ErrorKind::NotDirectory`], [`ErrorKind::PermissionDenied`], [`ErrorKind::SessionGone`].
pub fn find_end(
    core: &mut Core,
    client: &Client,
    request: &FindEnd,
) -> Result<Step<DirectoryEnd>, Failure> {
    client.own_session(core, request.session)?;
    let directory = client.enter(core, request.inode)?;
    let body = directory.directory()?;
    let caller = client.caller(&request.caller);
    let allowed = permission::check(core.view(), &caller, &directory, Access::Read);
    allowed.map_err(|error| core.failure(error))?;
    let listed_whole = body.linked.as_ref().is_none_or(|linked| linked.listed.is_some());
    let level = core.file_system()?.feature_level;
    Ok(Step::Done(DirectoryEnd { cookie: end_at(level, listed_whole, body.next_cookie) }))
}

/// Where a listing ends that begins now, if that is before `next_cookie` for sure: a name must keep
/// its place for as long as it is there, and a bucket must have no more of them.
fn end_at(feature_level: u32, listed_whole: bool, next_cookie: u64) -> Option<u64> {
    (listed_whole && feature_level >= apply::KEEPS_PLACE_LEVEL).then_some(next_cookie)
}

/// Entries of a directory.
struct Covered {
    entries: Vec<CoveredEntry>,
    /// The places of those that have extended attributes.
    with_xattrs: Vec<u32>,
    /// What the session may keep of their names.
    coverage: Coverage,
}

/// These entries of a directory, without those that somebody has not heard of yet. `is_whole` where
/// they are all that there are.
fn covered(
    core: &mut Core,
    client: &Client,
    session: SessionId,
    directory: &Inode,
    (listed, is_whole): (Vec<(FileName, records::Entry)>, bool),
) -> Result<Covered, Failure> {
    // All of it on one page says also what is not there.
    let is_any_unheard = core.leases.unheard().is_any_in(directory.id);
    let (holding, coverage) = match is_whole && !is_any_unheard {
        true => (Holding::NAMES.with(Holding::WHOLE), Coverage::Directory),
        false => (Holding::NAMES, Coverage::Names),
    };
    let names = grant(core, client, session, directory, holding)?;
    let (mut entries, mut with_xattrs) = (Vec::with_capacity(listed.len()), Vec::new());
    for (name, entry) in listed {
        if is_any_unheard && core.leases.unheard().of_name(directory.id, &name).is_some() {
            continue;
        }
        let inode = tree::named(core.view(), &entry).map_err(|error| broken(core, error))?;
        if inode.xattr_bytes > 0 {
            with_xattrs.push(u32::try_from(entries.len()).expect("a page is bounded"));
        }
        // A subdirectory would need a lease of its own.
        let covered = names && key_of(&inode) == directory.id && !written(core, &inode, session)?;
        let lease = covered.then_some(directory.id);
        let entry = DirectoryEntry { name, cookie: entry.cookie, attributes: inode.attributes() };
        entries.push(CoveredEntry { entry, lease });
    }
    let coverage = if names { coverage } else { Coverage::None };
    Ok(Covered { entries, with_xattrs, coverage })
}

/// Notes durably that the session may keep something; returns what must be synced before it does,
/// if this is the first time.
///
/// # Errors
/// [`ErrorKind::SessionGone`]; [`ErrorKind::Stale`] where the client speaks of another life of the
/// server.
pub fn enrol(
    core: &mut Core,
    client: &Client,
    request: &AwaitRecalls,
) -> Result<Option<LogIndex>, Failure> {
    client.own_session(core, request.session)?;
    if request.incarnation != core.incarnation() {
        let text = "the metadata server was restarted: drop what was kept, then listen";
        return Err(Failure::new(ErrorKind::Stale, text));
    }
    let known = core.view().get(&keys::keeper(request.session));
    if known.map_err(|error| broken(core, error))?.is_some() {
        return Ok(None);
    }
    core.execute(None, Command::KeepNames(request.session))?;
    Ok(Some(core.last_index()))
}

/// The session listens, and has dealt with what it acknowledges; `follows` also for what
/// directories show. Returns what tells of news.
///
/// # Errors
/// [`ErrorKind::SessionGone`].
pub fn listen(
    core: &mut Core,
    client: &Client,
    request: &AwaitRecalls,
    follows: bool,
) -> Result<watch::Receiver<u64>, Failure> {
    client.own_session(core, request.session)?;
    let now = core.now();
    core.leases.handle_follows(request.session, follows);
    Ok(core.leases.handle_listening(request.session, request.acknowledged, now))
}

/// What the session must hear.
///
/// # Errors
/// [`ErrorKind::SessionGone`].
pub fn recalls(core: &mut Core, client: &Client, session: SessionId) -> Result<Recalls, Failure> {
    client.own_session(core, session)?;
    Ok(core.leases.poll_recalls(session).ok_or(ErrorKind::SessionGone)?)
}

/// What the session must hear, with what directories show.
///
/// # Errors
/// [`ErrorKind::SessionGone`].
pub fn news(core: &mut Core, client: &Client, session: SessionId) -> Result<News, Failure> {
    client.own_session(core, session)?;
    let polled = core.leases.poll_news(session);
    let (Recalls { through, mut recalls }, directories) = polled.ok_or(ErrorKind::SessionGone)?;
    let mut shown = Vec::with_capacity(directories.len());
    for directory in directories {
        match client.enter(core, directory) {
            Ok(directory) => shown.push(directory.attributes()),
            // It is gone, or out of the client's sight.
            Err(_) => recalls.push(Recall::Attributes(directory)),
        }
    }
    Ok(News { through, recalls, shown })
}

/// The reply that shows an inode, with the key of the lease that covers its attributes.
pub(super) fn keep(
    core: &mut Core,
    client: &Client,
    session: SessionId,
    inode: &Inode,
) -> Result<(InodeReply, Option<InodeId>), Failure> {
    let reply = super::show(core, client, inode, None)?;
    let key = key_of(inode);
    if written(core, inode, session)? {
        return Ok((reply, None));
    }
    let granted = if key == inode.id {
        grant(core, client, session, inode, Holding::OWN)?
    } else {
        match tree::find(core.view(), key).map_err(|error| broken(core, error))? {
            Some(parent) => grant(core, client, session, &parent, Holding::NAMES)?,
            None => false,
        }
    };
    Ok((reply, granted.then_some(key)))
}

/// Grants a lease on an inode. Not on one whose link's age may change what it shows at any time:
/// what is kept would not be looked at again. And not on the top of what a client may see, which it
/// knows as its root: that is a path, and may be another directory tomorrow.
pub(super) fn grant(
    core: &mut Core,
    client: &Client,
    session: SessionId,
    key: &Inode,
    holding: Holding,
) -> Result<bool, Failure> {
    if client.subtree.is_some() && client.top(core)? == key.id {
        return Ok(false);
    }
    if let Body::Directory(body) = &key.body
        && let Some(linked) = &body.linked
    {
        let link: Option<LinkRecord> = read(core, &keys::link(linked.link))?;
        let unlisted = linked.listed.is_none() && holding.meets(Holding::WHOLE);
        if unlisted || link.is_none_or(|link| link.refresh_seconds > 0) {
            return Ok(false);
        }
    }
    let now = core.now();
    Ok(core.leases.grant(session, key.id, holding, now))
}

/// Whether an inode is a file that others write: its attributes change all the time.
pub(super) fn written(core: &mut Core, inode: &Inode, session: SessionId) -> Result<bool, Failure> {
    if inode.is_directory() {
        return Ok(false);
    }
    let writers = writers(core.view(), inode.id).map_err(|error| broken(core, error))?;
    Ok(writers.iter().any(|writer| *writer != session))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listing_has_an_end_where_names_keep_their_places_and_all_are_here() {
        assert_eq!(end_at(19, true, 12), Some(12));
        assert_eq!(end_at(18, true, 12), None, "a name that was there may come behind it");
        assert_eq!(end_at(19, false, 12), None, "the bucket has more");
    }
}
