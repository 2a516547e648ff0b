//! Finds names and shows inodes.

use millrace_protocol::metadata::{GetInode, InodeReply, Lookup};
use millrace_types::{ErrorKind, Failure};

use super::{
    Client, Need, Step, find, need_fresh, need_name, need_spill, need_told, needs_trim, show,
    writes,
};
use crate::engine::Core;

/// Finds a name in a directory.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::NotDirectory`], [`ErrorKind::PermissionDenied`].
pub fn lookup(
    core: &mut Core,
    client: &Client,
    request: &Lookup,
) -> Result<Step<InodeReply>, Failure> {
    let caller = client.caller(&request.caller);
    let parent = client.enter(core, request.parent)?;
    let fresh = need_fresh(core, client, &parent, Some(&request.name))?;
    let found = find(core, &caller, &parent, &request.name)?;
    if let Some(need) = fresh {
        return Ok(Step::Need(need));
    }
    if found.is_some() && core.leases.unheard().of_name(parent.id, &request.name).is_some() {
        let need = need_told(core, client, parent.id);
        return need.map(Step::Need).ok_or_else(|| ErrorKind::NotFound.into());
    }
    match found {
        Some(inode) => show(core, client, &inode, None).map(Step::Done),
        None => match need_name(client, &parent, &request.name) {
            Some(need) => Ok(Step::Need(need)),
            None => Err(ErrorKind::NotFound.into()),
        },
    }
}

/// Shows an inode, with a capability when a session is named. One that may write gets it for bytes
/// that are at the targets.
///
/// # Errors
/// [`ErrorKind::Stale`] when it does not exist any more.
pub fn inode(
    core: &mut Core,
    client: &Client,
    request: &GetInode,
) -> Result<Step<InodeReply>, Failure> {
    if let Some(session) = request.session {
        client.own_session(core, session)?;
        // A writer's new capability would let it write past a size that is still being trimmed.
        if writes(core, session, request.inode)? > 0 && needs_trim(core, request.inode)? {
            return Ok(Step::Need(Need::Trim(request.inode)));
        }
    }
    let inode = client.enter(core, request.inode)?;
    if let Some(session) = request.session
        && writes(core, session, inode.id)? > 0
        && let Some(need) = need_spill(core, &inode, None, session)?
    {
        return Ok(Step::Need(need));
    }
    show(core, client, &inode, request.session).map(Step::Done)
}
