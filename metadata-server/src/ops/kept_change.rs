//! Changes of names by a client that keeps what they change: it need not ask for that again.
//!
//! What the reply shows is read in the turn that made the change. A change of another session
//! comes after it, and takes back what is granted here.

use millrace_protocol::{
    lease::{MadeName, MakeName, RemoveName, RemovedName},
    metadata::{Attributes, Coverage, FileKind, InodeReply},
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId, SessionId};

use super::{
    Client, Step, broken, create,
    lease::{grant, keep},
    remove,
};
use crate::{
    engine::Core,
    leases::Holding,
    namespace::{Inode, tree},
};

/// Makes an inode and its name, or opens what the name has already.
///
/// # Errors
/// As POSIX has it for open, mkdir, symlink and mknod.
pub fn make(
    core: &mut Core,
    client: &Client,
    request: &MakeName,
) -> Result<Step<MadeName>, Failure> {
    let create = &request.make.create;
    let session = create.operation.session;
    let reply = match create::make(core, client, create, request.make.umask)? {
        Step::Done(reply) => reply,
        Step::Need(need) => return Ok(Step::Need(need)),
    };
    shown(core, client, session, (create.parent, &create.name), reply).map(Step::Done)
}

/// What is kept of an inode that a name was made for.
///
/// # Errors
/// When the store is broken.
pub(super) fn shown(
    core: &mut Core,
    client: &Client,
    session: SessionId,
    (parent, name): (InodeId, &FileName),
    reply: InodeReply,
) -> Result<MadeName, Failure> {
    let mut made =
        MadeName { reply, lease: None, coverage: Coverage::None, empty: false, directory: None };
    let Some(parent) = find(core, client, parent)? else {
        return Ok(made);
    };
    if leads_to(core, &parent, name, made.reply.attributes.inode)?
        && grant(core, client, session, &parent, Holding::NAMES)?
    {
        made.coverage = Coverage::Names;
    }
    made.directory = attributes(core, client, session, &parent)?;
    if let Some(inode) = find(core, client, made.reply.attributes.inode)? {
        made.lease = keep(core, client, session, &inode)?.1;
        made.empty = made.reply.attributes.kind == FileKind::Directory
            && inode.attributes().size == 0
            && grant(core, client, session, &inode, Holding::WHOLE)?;
    }
    Ok(made)
}

/// unlink and rmdir.
///
/// # Errors
/// As POSIX has it.
pub fn remove(
    core: &mut Core,
    client: &Client,
    request: &RemoveName,
) -> Result<Step<RemovedName>, Failure> {
    let done = match remove::remove(core, client, &request.remove)? {
        Step::Done(done) => done,
        Step::Need(need) => return Ok(Step::Need(need)),
    };
    let session = request.remove.operation.session;
    let directory = match find(core, client, request.remove.parent)? {
        Some(parent) => attributes(core, client, session, &parent)?,
        None => None,
    };
    Ok(Step::Done(RemovedName { done, directory }))
}

/// The attributes of a directory, where they may be kept.
fn attributes(
    core: &mut Core,
    client: &Client,
    session: SessionId,
    directory: &Inode,
) -> Result<Option<Attributes>, Failure> {
    let kept = grant(core, client, session, directory, Holding::OWN)?;
    Ok(kept.then(|| directory.attributes()))
}

/// Whether the name still leads there: a repeated request comes later than what it made.
fn leads_to(
    core: &mut Core,
    parent: &Inode,
    name: &FileName,
    inode: InodeId,
) -> Result<bool, Failure> {
    let entry = tree::entry(core.view(), parent.id, name);
    let entry = entry.map_err(|error| broken(core, error))?;
    Ok(entry.is_some_and(|entry| entry.inode == inode))
}

/// An inode as it is now; nothing if it went, or moved away, before a repeated request came.
fn find(core: &mut Core, client: &Client, inode: InodeId) -> Result<Option<Inode>, Failure> {
    match client.enter(core, inode) {
        Ok(inode) => Ok(Some(inode)),
        Err(failure) if matches!(failure.kind, ErrorKind::Stale | ErrorKind::Forbidden) => Ok(None),
        Err(failure) => Err(failure),
    }
}
