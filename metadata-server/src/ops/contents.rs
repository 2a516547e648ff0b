//! What lets a client read files without asking when it opens them.
//!
//! What is shown is covered by the lease on the directory. While that holds, the client may open
//! these files for reading and tell nobody: before it gives the lease back, it says what it has
//! open.

use millrace_protocol::{
    lease::{CONTENTS_MAX, ShowContents, ShownContent, ShownContents},
    metadata::InodeReply,
};
use millrace_types::{ErrorKind, Failure, InodeId, SessionId};

use super::{
    Client, Step, broken, is_inline, is_regular,
    lease::{grant, written},
    show as show_with,
};
use crate::{
    engine::Core,
    leases::{Holding, key_of},
    namespace::{Inode, tree},
};

/// Shows what lets the session read a file, and files behind it in its directory.
///
/// # Errors
/// [`ErrorKind::Stale`] when the file does not exist any more; [`ErrorKind::InvalidArgument`] for
/// what is no file; [`ErrorKind::SessionGone`].
pub fn show(
    core: &mut Core,
    client: &Client,
    request: &ShowContents,
) -> Result<Step<ShownContents>, Failure> {
    client.own_session(core, request.session)?;
    let inode = client.enter(core, request.inode)?;
    if !is_regular(&inode) || request.entries_max == 0 {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let mut shown = ShownContents { directory: key_of(&inode), contents: Vec::new() };
    let Some(parent) = inode.parent.as_ref().filter(|_| shown.directory != inode.id) else {
        return Ok(Step::Done(shown));
    };
    let directory = tree::inode(core.view(), shown.directory);
    let directory = directory.map_err(|error| core.failure(error))?;
    if !grant(core, client, request.session, &directory, Holding::NAMES)? {
        return Ok(Step::Done(shown));
    }
    let entry = tree::entry(core.view(), directory.id, &parent.name);
    let Some(entry) = entry.map_err(|error| broken(core, error))? else {
        return Ok(Step::Done(shown));
    };
    let wanted = usize::try_from(request.entries_max.min(CONTENTS_MAX)).unwrap_or(1);
    let listed = tree::list(core.view(), directory.id, entry.cookie.saturating_sub(1), wanted);
    let mut bytes = 0;
    for (_, entry) in listed.map_err(|error| broken(core, error))? {
        let other = tree::named(core.view(), &entry).map_err(|error| broken(core, error))?;
        if key_of(&other) != directory.id {
            continue;
        }
        let content = match content(core, client, request.session, &other) {
            // Whoever opens that file hears of it.
            Err(failure) if failure.kind == ErrorKind::Lost => None,
            other => other?,
        };
        let Some(content) = content else { continue };
        bytes += ENTRY_BYTES + content.capability.body.len();
        bytes += content.inline.as_ref().map_or(0, Vec::len);
        if bytes > BYTES_MAX {
            break;
        }
        shown.contents.push(content);
    }
    Ok(Step::Done(shown))
}

/// The reply that shows a file which the session may keep under the lease with this key, with what
/// lets it read that. Not of what has several names: whoever removes one of them does not know the
/// others.
pub(super) fn with_capability(
    core: &mut Core,
    client: &Client,
    session: SessionId,
    inode: &Inode,
    reply: InodeReply,
    lease: Option<InodeId>,
) -> Result<InodeReply, Failure> {
    if !is_regular(inode) || lease.is_none_or(|key| key == inode.id) {
        return Ok(reply);
    }
    // Who only looks shall not pay for the bytes: they come with an open, for many files at once.
    if is_inline(inode) {
        return Ok(reply);
    }
    let capability = content(core, client, session, inode)?.map(|content| content.capability);
    Ok(InodeReply { capability, ..reply })
}

/// Nothing where the session may not keep it, or has no right to it.
fn content(
    core: &mut Core,
    client: &Client,
    session: SessionId,
    inode: &Inode,
) -> Result<Option<ShownContent>, Failure> {
    if !is_regular(inode) || written(core, inode, session)? {
        return Ok(None);
    }
    let reply = show_with(core, client, inode, Some(session))?;
    let InodeReply { attributes, capability, inline, .. } = reply;
    Ok(capability.map(|capability| ShownContent { attributes, capability, inline }))
}

/// What an answer has at most: half of a message.
const BYTES_MAX: usize = millrace_protocol::codec::MESSAGE_LEN_MAX / 2;

/// What a file takes of an answer besides the body of its capability.
const ENTRY_BYTES: usize = 256;
