//! What was read on clients.

use millrace_protocol::{
    access::{LastRead, NoteReads, READS_MAX},
    metadata::FileKind,
    session::Done,
};
use millrace_types::{ErrorKind, Failure, InodeId};

use super::{Client, Step, broken, may_read_data};
use crate::{
    command::{self, Command},
    engine::Core,
    namespace::{Inode, tree},
};

/// Raises the times of access that are due. The rest is passed over without a word: files come and
/// go, and move, between a read and the day's batch.
///
/// # Errors
/// [`ErrorKind::SessionGone`]; [`ErrorKind::InvalidArgument`] for more than [`READS_MAX`].
pub fn note(core: &mut Core, client: &Client, request: &NoteReads) -> Result<Step<Done>, Failure> {
    client.own_session(core, request.session)?;
    if request.reads.len() > READS_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let (top, now) = (client.top(core)?, core.now());
    let mut reads = Vec::new();
    for &read in &request.reads {
        let id = if read.inode == InodeId::ROOT { top } else { read.inode };
        let found = tree::find(core.view(), id).map_err(|error| broken(core, error))?;
        if let Some(inode) = found
            && read.raises(&inode.attributes(), now).is_some()
            && may_read(core, client, top, &inode)?
        {
            reads.push(LastRead { inode: id, ..read });
        }
    }
    if !reads.is_empty() {
        core.execute(None, Command::NoteReads(command::NoteReads { reads }))?;
    }
    let index = core.last_index();
    Ok(Step::Done(Done { index }))
}

/// Whether the client can have read it at all.
fn may_read(
    core: &mut Core,
    client: &Client,
    top: InodeId,
    inode: &Inode,
) -> Result<bool, Failure> {
    let shown = client.sees(core, top, inode)?;
    Ok(shown && (inode.kind != FileKind::Regular || may_read_data(core, client, inode)?))
}
