//! chmod, chown, utimens, truncate.

use millrace_protocol::{
    metadata::{FileKind, InodeReply, SetAttributes, SetTime},
    session::Caller,
};
use millrace_types::Failure;

use super::{Client, Need, Step, need_spill, needs_trim, show_again, writes};
use crate::{
    command::{self, Command},
    engine::Core,
    namespace::{
        Inode,
        permission::{self, SETGID, SETUID},
    },
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
    // What is emptied has another content then, of which nothing is to be trimmed: the way out
    // where a target cannot.
    if request.size != Some(0) && needs_trim(core, inode.id)? {
        // Also the repeated request of a shrink comes by here: it is answered when the trim is
        // done.
        return Ok(Step::Need(Need::Trim(inode.id)));
    }
    let needs_targets = request.make_sparse || request.size.is_some_and(|size| size > 0);
    let only_size = request.mode.is_none()
        && request.uid.is_none()
        && request.gid.is_none()
        && request.accessed.is_none()
        && request.modified.is_none();
    let is_writer = request.open && writes(core, session, inode.id)? > 0;
    let trusted = is_writer && only_size;
    let caller = match is_writer && names_owner(request, &inode) {
        // A write takes setuid and setgid from any file, whoever writes, and whoever root is there.
        true => Caller { uid: inode.uid, gid: inode.gid, groups: Vec::new() },
        false => client.caller(&request.caller),
    };
    let checked = (!trusted).then_some(&caller);
    if needs_targets && let Some(need) = need_spill(core, &inode, checked, session)? {
        return Ok(Step::Need(need));
    }
    let gives_away = request.uid.is_some() || request.gid.is_some();
    let left = gives_away.then(|| mode_given_away(&inode, &caller)).flatten();
    let command = Command::SetAttributes(command::SetAttributes {
        caller: (!trusted).then_some(caller),
        inode: inode.id,
        mode: request.mode.or(left),
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
    if request.size.is_some()
        && let Some(wait) = core.heard_of_cut(inode.id, session)?
    {
        return Ok(Step::Need(Need::Heard(wait)));
    }
    show_again(core, client, inode.id, Some(session)).map(Step::Done)
}

/// Whether it names the owner that the file has, and nothing else: that takes setuid and setgid
/// from it, and what its program may do.
fn names_owner(request: &SetAttributes, inode: &Inode) -> bool {
    request.uid == Some(inode.uid)
        && request.mode.is_none()
        && request.gid.is_none()
        && request.size.is_none()
        && request.accessed.is_none()
        && request.modified.is_none()
        && !request.make_sparse
}

/// The mode that a change of owner or group leaves, as Linux has it, if that is another: a program
/// never runs with rights that its new owner did not give it. A directory keeps its bits.
fn mode_given_away(inode: &Inode, caller: &Caller) -> Option<u16> {
    if inode.kind == FileKind::Directory {
        return None;
    }
    let keeps_group = inode.mode & 0o010 == 0
        && (permission::is_root(caller) || permission::in_group(caller, inode.gid));
    let lost = if keeps_group { SETUID } else { SETUID | SETGID };
    (inode.mode & lost != 0).then_some(inode.mode & !lost)
}

fn time(time: SetTime) -> command::SetTime {
    match time {
        SetTime::Now => command::SetTime::Now,
        SetTime::At(time) => command::SetTime::At(time),
    }
}
