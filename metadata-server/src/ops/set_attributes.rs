//! chmod, chown, utimens, truncate.

use millrace_protocol::metadata::{InodeReply, SetAttributes, SetTime};
use millrace_types::Failure;

use super::{Client, Need, Step, needs_trim, show_again, writes};
use crate::{
    command::{self, Command},
    engine::Core,
};

/// Changes attributes. After a shrink the answer waits for the targets.
///
/// # Errors
/// As POSIX has it.
pub fn set(
    core: &mut Core,
    client: &Client,
    request: &SetAttributes,
) -> Result<Step<InodeReply>, Failure> {
    client.own(core, request.operation)?;
    let inode = client.enter(core, request.inode)?;
    let session = request.operation.session;
    if needs_trim(core, inode.id)? {
        // Also the repeated request of a shrink comes by here: it is answered when the trim is
        // done.
        return Ok(Step::Need(Need::Trim(inode.id)));
    }
    let only_size = request.mode.is_none()
        && request.uid.is_none()
        && request.gid.is_none()
        && request.accessed.is_none()
        && request.modified.is_none();
    let trusted = request.open && only_size && writes(core, session, inode.id)? > 0;
    let command = Command::SetAttributes(command::SetAttributes {
        caller: (!trusted).then(|| client.caller(&request.caller)),
        inode: inode.id,
        mode: request.mode,
        uid: request.uid,
        gid: request.gid,
        size: request.size,
        accessed: request.accessed.map(time),
        modified: request.modified.map(time),
        make_sparse: request.make_sparse,
    });
    core.execute(Some(request.operation), command)?;
    if needs_trim(core, inode.id)? {
        return Ok(Step::Need(Need::Trim(inode.id)));
    }
    show_again(core, client, inode.id, Some(session)).map(Step::Done)
}

fn time(time: SetTime) -> command::SetTime {
    match time {
        SetTime::Now => command::SetTime::Now,
        SetTime::At(time) => command::SetTime::At(time),
    }
}
