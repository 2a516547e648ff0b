//! Opens and closes files.

use millrace_protocol::{
    metadata::{CLOSES_MAX, Close, CloseFiles, CloseUnwritten, InodeReply, Open, OpenMode},
    session::{Done, Operation},
};
use millrace_types::{ErrorKind, Failure, InodeId, SessionId};

use super::{
    Client, Need, Step, is_regular, last_name::enter_found, need_spill, needs_trim, read, show,
    show_again, writes,
};
use crate::{
    command::{Command, OpenWrite, Opener},
    engine::Core,
    store::{keys, records::OpenRecord},
};

/// Opens a file.
///
/// # Errors
/// As POSIX has it for open.
pub fn open(core: &mut Core, client: &Client, request: &Open) -> Result<Step<InodeReply>, Failure> {
    client.own(core, request.operation)?;
    let session = request.operation.session;
    let inode = match request.reopen {
        true => client.enter(core, request.inode)?,
        false => enter_found(core, client, Opener { session, inode: request.inode })?,
    };
    if request.mode == OpenMode::Read && !request.truncate {
        if !is_regular(&inode) {
            return Err(ErrorKind::InvalidArgument.into());
        }
        core.readers.handle_open(request.operation, inode.id)?;
        if inode.links == 0 {
            keep(core, Opener { session, inode: inode.id })?;
        }
        return show(core, client, &inode, Some(session)).map(Step::Done);
    }
    // What is emptied has another content then, of which nothing is to be trimmed.
    if !request.truncate && needs_trim(core, inode.id)? {
        return Ok(Step::Need(Need::Trim(inode.id)));
    }
    let trusted = request.reopen && !client.squash_root;
    let caller = (!trusted).then(|| client.caller(&request.caller));
    if !request.truncate
        && let Some(need) = need_spill(core, &inode, caller.as_ref(), session)?
    {
        return Ok(Step::Need(need));
    }
    let command = Command::OpenWrite(OpenWrite {
        caller,
        opener: Opener { session, inode: inode.id },
        truncate: request.truncate,
    });
    core.execute(Some(request.operation), command)?;
    if needs_trim(core, inode.id)? {
        // It is repeated, and the new content was cut since.
        return Ok(Step::Need(Need::Trim(inode.id)));
    }
    if request.truncate
        && let Some(wait) = core.heard_of_cut(inode.id, session)?
    {
        return Ok(Step::Need(Need::Heard(wait)));
    }
    show_again(core, client, inode.id, Some(session)).map(Step::Done)
}

/// Records who reads what has no name any more; readers of what has names are recorded when it
/// loses the last one.
fn keep(core: &mut Core, opener: Opener) -> Result<(), Failure> {
    let record: Option<OpenRecord> = read(core, &keys::open(opener.inode, opener.session))?;
    if !record.is_some_and(|record| record.reads) {
        core.execute(None, Command::KeepReader(opener))?;
    }
    Ok(())
}

/// Ends one open.
///
/// # Errors
/// [`ErrorKind::SessionGone`].
pub fn close(core: &mut Core, client: &Client, request: &Close) -> Result<Step<Done>, Failure> {
    client.own(core, request.operation)?;
    let session = request.operation.session;
    let opener = Opener { session, inode: request.inode };
    match request.mode {
        OpenMode::Write => {
            core.execute(Some(request.operation), Command::CloseWrite(opener))?;
        }
        OpenMode::Read => {
            let gone = core.readers.handle_close(request.operation, request.inode)?;
            // What it has not told again after a restart is looked for when it had time to.
            let gone = gone && !core.readers.is_undeclared(session);
            // What stays for a moment is dropped when that is over.
            let gone = gone && !core.readers.late.is_kept(request.inode, session);
            let record: Option<OpenRecord> = read(core, &keys::open(request.inode, session))?;
            if gone && record.is_some_and(|record| record.reads) {
                core.execute(None, Command::DropReader(opener))?;
            }
        }
    }
    end_locks(core, opener)?;
    let index = core.last_index();
    Ok(Step::Done(Done { index }))
}

/// Ends opens for writing.
///
/// # Errors
/// [`ErrorKind::SessionGone`]; [`ErrorKind::InvalidArgument`] for more than [`CLOSES_MAX`].
pub fn close_files(
    core: &mut Core,
    client: &Client,
    request: &CloseFiles,
) -> Result<Step<Done>, Failure> {
    let CloseFiles { operation, inodes } = request;
    let close = |session, inodes| Command::CloseWrites { session, inodes };
    close_several(core, client, (*operation, inodes), close)
}

/// Ends opens for writing through which nothing was written.
///
/// # Errors
/// As [`close_files`].
pub fn close_unwritten(
    core: &mut Core,
    client: &Client,
    request: &CloseUnwritten,
) -> Result<Step<Done>, Failure> {
    let CloseUnwritten { operation, inodes } = request;
    // What is known from before this run is forgotten once its start is logged.
    let is_believed = core.is_run_logged();
    let close = |session, inodes| match is_believed {
        true => Command::CloseUnwritten { session, inodes },
        false => Command::CloseWrites { session, inodes },
    };
    close_several(core, client, (*operation, inodes), close)
}

fn close_several(
    core: &mut Core,
    client: &Client,
    (operation, inodes): (Operation, &[InodeId]),
    close: impl FnOnce(SessionId, Vec<InodeId>) -> Command,
) -> Result<Step<Done>, Failure> {
    client.own(core, operation)?;
    let session = operation.session;
    if inodes.len() > CLOSES_MAX {
        return Err(Failure::new(ErrorKind::InvalidArgument, "too many files for one request"));
    }
    core.execute(Some(operation), close(session, inodes.to_vec()))?;
    for &inode in inodes {
        end_locks(core, Opener { session, inode })?;
    }
    let index = core.last_index();
    Ok(Step::Done(Done { index }))
}

/// What has no open any more has no locks. A client unlocks before it closes; this is for one that
/// does not. After a restart it may have the file open without having told of that yet.
fn end_locks(core: &mut Core, Opener { session, inode }: Opener) -> Result<(), Failure> {
    if core.readers.is_undeclared(session) {
        return Ok(());
    }
    if !core.readers.is_reading(session, inode) && writes(core, session, inode)? == 0 {
        core.locks.handle_close(session, inode);
    }
    Ok(())
}
