//! A writer's proposal of size and time.

use millrace_protocol::metadata::{Commit, InodeReply};
use millrace_types::Failure;

use super::{Client, Need, Step, needs_trim, show_again};
use crate::{
    command::{self, Command},
    engine::Core,
};

/// Takes it, and shows the inode as it is then.
///
/// # Errors
/// [`millrace_types::ErrorKind::Stale`] when the file is gone.
pub fn commit(
    core: &mut Core,
    client: &Client,
    request: &Commit,
) -> Result<Step<InodeReply>, Failure> {
    client.own(core, request.operation)?;
    let inode = client.enter(core, request.inode)?;
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
    show_again(core, client, inode.id, Some(request.operation.session)).map(Step::Done)
}
