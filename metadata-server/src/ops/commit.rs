//! A writer's proposal of size and time.

use millrace_protocol::metadata::{Commit, InodeReply};
use millrace_types::{ErrorKind, Failure};

use super::{Client, Need, Step, is_repeated, needs_trim, show, show_again, writes};
use crate::{
    command::{self, Command},
    engine::Core,
};

/// Takes it, and shows the inode as it is then.
///
/// # Errors
/// [`ErrorKind::Stale`] when the file is gone; [`ErrorKind::NotPermitted`] when the session does
/// not have it open for writing: only opening checks whether it may change.
pub fn commit(
    core: &mut Core,
    client: &Client,
    request: &Commit,
) -> Result<Step<InodeReply>, Failure> {
    client.own(core, request.operation)?;
    let inode = client.enter(core, request.inode)?;
    let session = request.operation.session;
    if is_repeated(core, request.operation)? {
        return show(core, client, &inode, Some(session)).map(Step::Done);
    }
    if writes(core, session, inode.id)? == 0 {
        let text = "only who has a file open for writing proposes its size";
        return Err(Failure::new(ErrorKind::NotPermitted, text));
    }
    if needs_trim(core, inode.id)? {
        return Ok(Step::Need(Need::Trim(inode.id)));
    }
    let command = Command::Commit(command::Commit {
        inode: inode.id,
        generation: request.generation,
        write_epoch: request.write_epoch,
        end: request.end,
        written_at: request.written_at,
    });
    core.execute(Some(request.operation), command)?;
    show_again(core, client, inode.id, Some(session)).map(Step::Done)
}
