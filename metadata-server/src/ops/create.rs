//! Makes files, directories, links and nodes.

use millrace_protocol::{
    metadata::{Create, CreateMasked, CreateUnnamed, InodeReply, MakeLink, NewNode},
    session::Operation,
};
use millrace_types::{ErrorKind, Failure, InodeId, PoolId};

use super::{Client, Need, Step, broken, need_name, need_spill, needs_trim, show_again};
use crate::{
    command::{self, Command, Outcome},
    engine::Core,
    namespace::{Inode, tree},
};

/// Makes an inode and its name, or opens what the name has already.
///
/// # Errors
/// As POSIX has it for open, mkdir, symlink and mknod; [`ErrorKind::NoSpace`] for a file as long as
/// its pool has never had a target.
pub fn create(
    core: &mut Core,
    client: &Client,
    request: &Create,
) -> Result<Step<InodeReply>, Failure> {
    make(core, client, request, 0)
}

/// The same, with the umask apart from the mode.
///
/// # Errors
/// As [`create`].
pub fn create_masked(
    core: &mut Core,
    client: &Client,
    request: &CreateMasked,
) -> Result<Step<InodeReply>, Failure> {
    make(core, client, &request.create, request.umask)
}

/// The same, with what the umask takes away.
///
/// # Errors
/// As [`create`].
pub(super) fn make(
    core: &mut Core,
    client: &Client,
    request: &Create,
    umask: u16,
) -> Result<Step<InodeReply>, Failure> {
    client.own(core, request.operation)?;
    let session = request.operation.session;
    if let Some(inode) = made(core, request.operation)? {
        core.note_repeated(session);
        return show_again(core, client, inode, Some(session)).map(Step::Done);
    }
    let parent = client.enter(core, request.parent)?;
    core.note_name_told(parent.id, &request.name);
    let entry = tree::entry(core.view(), parent.id, &request.name);
    match entry.map_err(|error| broken(core, error))? {
        Some(entry) => {
            if request.open && needs_trim(core, entry.inode)? {
                return Ok(Step::Need(Need::Trim(entry.inode)));
            }
            let is_opened = request.open && !request.exclusive;
            if is_opened {
                let caller = client.caller(&request.caller);
                let found = tree::inode(core.view(), entry.inode);
                let found = found.map_err(|error| core.failure(error))?;
                if let Some(need) = need_spill(core, &found, Some(&caller), session)? {
                    return Ok(Step::Need(need));
                }
            }
        }
        None => {
            if let Some(need) = need_name(client, &parent, &request.name) {
                return Ok(Step::Need(need));
            }
        }
    }
    let id = core.new_inode_id()?;
    let create = command::Create {
        caller: client.caller(&request.caller),
        parent: parent.id,
        name: request.name.clone(),
        node: request.node.clone(),
        mode: request.mode,
        inode: id,
        seed: seed(id),
        open: (request.open && request.node == NewNode::Regular).then_some(session),
        exclusive: request.exclusive,
    };
    let command = match umask {
        0 => Command::Create(create),
        umask => Command::CreateMasked(command::CreateMasked { create, umask }),
    };
    let outcome = core.execute(Some(request.operation), command);
    let Outcome::Inode(inode) = outcome.map_err(|failure| told(core, &parent, failure))? else {
        return Err(reused());
    };
    show_again(core, client, inode, Some(session)).map(Step::Done)
}

/// Makes a file without a name and opens it for writing.
///
/// # Errors
/// As POSIX has it for open, and as [`create`].
pub fn create_unnamed(
    core: &mut Core,
    client: &Client,
    request: &CreateUnnamed,
) -> Result<Step<InodeReply>, Failure> {
    client.own(core, request.operation)?;
    let session = request.operation.session;
    if let Some(inode) = made(core, request.operation)? {
        return show_again(core, client, inode, Some(session)).map(Step::Done);
    }
    let directory = client.enter(core, request.directory)?;
    let inode = core.new_inode_id()?;
    let command = Command::CreateUnnamed(command::CreateUnnamed {
        caller: client.caller(&request.caller),
        directory: directory.id,
        inode,
        seed: seed(inode),
        mode: request.mode,
        umask: request.umask,
        session,
        nameable: request.nameable,
    });
    let outcome = core.execute(Some(request.operation), command);
    outcome.map_err(|failure| told(core, &directory, failure))?;
    show_again(core, client, inode, Some(session)).map(Step::Done)
}

/// Gives a file a further name, or its first one.
///
/// # Errors
/// As POSIX has it for link.
pub fn make_link(
    core: &mut Core,
    client: &Client,
    request: &MakeLink,
) -> Result<Step<InodeReply>, Failure> {
    client.own(core, request.operation)?;
    let session = request.operation.session;
    if let Some(inode) = made(core, request.operation)? {
        core.note_repeated(session);
        return show_again(core, client, inode, Some(session)).map(Step::Done);
    }
    let parent = client.enter(core, request.parent)?;
    core.note_name_told(parent.id, &request.name);
    let inode = client.enter(core, request.inode)?;
    if let Some(need) = need_name(client, &parent, &request.name) {
        return Ok(Step::Need(need));
    }
    let command = Command::MakeLink(command::MakeLink {
        caller: client.caller(&request.caller),
        inode: inode.id,
        parent: parent.id,
        name: request.name.clone(),
    });
    core.execute(Some(request.operation), command)?;
    show_again(core, client, inode.id, Some(session)).map(Step::Done)
}

/// What a client hears that cannot make something in a directory. Where no target has ever
/// registered nothing is away that might come back: who waited would do so until somebody sets
/// targets up. So it is told at once, and as a full disk, which the programs know and `df` shows.
fn told(core: &Core, directory: &Inode, failure: Failure) -> Failure {
    let pool = directory.directory().map(|body| body.defaults.pool);
    match pool {
        Ok(pool) if failure.kind == ErrorKind::Unavailable && !has_groups(core, pool) => {
            let text = "no storage target has registered yet: files have no place";
            Failure::new(ErrorKind::NoSpace, text)
        }
        _ => failure,
    }
}

/// Whether a pool has, or had, a target: from then on there are groups that files lie in.
pub(super) fn has_groups(core: &Core, pool: PoolId) -> bool {
    core.map().0.pools.iter().any(|known| known.id == pool && !known.groups.is_empty())
}

/// What the operation made, if it was executed before.
pub(super) fn made(core: &mut Core, operation: Operation) -> Result<Option<InodeId>, Failure> {
    match core.remembered(Some(operation))? {
        None => Ok(None),
        Some(Outcome::Inode(inode)) => Ok(Some(inode)),
        Some(_) => Err(reused()),
    }
}

/// Where the layout of a new file begins: ids that follow each other begin far apart.
#[must_use]
pub fn seed(inode: InodeId) -> u32 {
    // Fibonacci hashing: the upper half of the product with 2^64 divided by the golden ratio.
    u32::try_from(inode.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32).expect("32 bits are left")
}

/// The client used one operation number for two requests.
pub(crate) fn reused() -> Failure {
    Failure::new(ErrorKind::Protocol, "the operation number was used for another request before")
}
