//! What targets may drop to make room, and what is pinned.

use std::ops::Bound;

use millrace_protocol::{
    admin::PathBytes,
    release::{
        ASK_RELEASE_MAX, AskRelease, AskReleaseReply, ListPins, PINS_MAX, PinReply, PinsReply,
        ReleaseAnswer, SetPin,
    },
    target::ContentName,
};
use millrace_types::{ErrorKind, Failure, InodeId};

use super::{Client, Step, broken, path};
use crate::{
    command::{self, Command},
    engine::Core,
    leases::touched::writers,
    namespace::{Body, ObjectState, pins, tree},
    store::{StoreError, View, borrow, keys, prefix_end},
};

/// Tells a target what may go. The answer is of this moment: what is opened for writing after it is
/// fetched from the bucket again.
///
/// # Errors
/// [`ErrorKind::InvalidArgument`] for more than [`ASK_RELEASE_MAX`].
pub fn ask(
    core: &mut Core,
    _: &Client,
    request: &AskRelease,
) -> Result<Step<AskReleaseReply>, Failure> {
    if request.contents.len() > ASK_RELEASE_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let mut answers: Vec<ReleaseAnswer> = Vec::with_capacity(request.contents.len());
    for (at, content) in request.contents.iter().enumerate() {
        // Chunks of one file come one after the other.
        let known = match at.checked_sub(1) {
            Some(before) if request.contents[before] == *content => answers.get(before).copied(),
            _ => None,
        };
        let answer = match known {
            Some(answer) => answer,
            None => answer(core.view(), content).map_err(|error| broken(core, error))?,
        };
        answers.push(answer);
    }
    Ok(Step::Done(AskReleaseReply { answers }))
}

fn answer(view: &(impl View + ?Sized), content: &ContentName) -> Result<ReleaseAnswer, StoreError> {
    let Some(inode) = tree::find(view, content.inode)? else {
        return Ok(ReleaseAnswer::Unknown);
    };
    let Body::File(file) = &inode.body else { return Ok(ReleaseAnswer::Unknown) };
    if file.generation != content.generation {
        return Ok(ReleaseAnswer::Unknown);
    }
    if !matches!(file.state, ObjectState::Clean | ObjectState::Exported) {
        return Ok(ReleaseAnswer::Unsaved);
    }
    let exported = view.get(&keys::export(inode.id))?.is_some();
    if exported || !writers(view, inode.id)?.is_empty() {
        return Ok(ReleaseAnswer::InUse);
    }
    Ok(match pins::is_pinned(view, &inode)? {
        true => ReleaseAnswer::Pinned,
        false => ReleaseAnswer::MayGo,
    })
}

/// Pins a file or a tree, or ends that.
///
/// # Errors
/// As [`path::resolve`]; [`ErrorKind::NotPermitted`] for others than the owner and root.
pub fn set_pin(
    core: &mut Core,
    client: &Client,
    request: &SetPin,
) -> Result<Step<PinReply>, Failure> {
    let inode = match path::resolve(core, client, &request.caller, &request.path)? {
        Step::Done(inode) => inode,
        Step::Need(need) => return Ok(Step::Need(need)),
    };
    let was = pins::has_own(core.view(), inode.id).map_err(|error| broken(core, error))?;
    let command = Command::SetPin(command::SetPin {
        caller: client.caller(&request.caller),
        inode: inode.id,
        pinned: request.pinned,
    });
    core.execute(None, command)?;
    let above = pins::above(core.view(), &inode).map_err(|error| broken(core, error))?;
    let mut paths = Vec::new();
    for directory in above {
        paths.extend(path_of(core, directory)?);
    }
    Ok(Step::Done(PinReply { changed: was != request.pinned, above: paths }))
}

/// What is pinned.
///
/// # Errors
/// When the store is broken.
pub fn pins(core: &mut Core, _: &Client, request: &ListPins) -> Result<Step<PinsReply>, Failure> {
    let all = keys::pins();
    let end = prefix_end(&all);
    let after = request.after.map(keys::pin);
    let from = after.as_ref().map_or(Bound::Included(&all), Bound::Excluded);
    let found = core.view().scan(from.map(Vec::as_slice), borrow(&end), PINS_MAX + 1);
    let found = found.map_err(|error| broken(core, error))?;
    let mut pins = Vec::new();
    for (key, _) in found.iter().take(PINS_MAX) {
        let Some(inode) = keys::number_at(key, 1).map(InodeId) else { continue };
        pins.push((inode, path_of(core, inode)?.unwrap_or_default()));
    }
    Ok(Step::Done(PinsReply { pins, more: found.len() > PINS_MAX }))
}

fn path_of(core: &mut Core, inode: InodeId) -> Result<Option<PathBytes>, Failure> {
    let view = core.view();
    let found = tree::find(view, inode)
        .and_then(|found| found.map_or(Ok(None), |inode| tree::path(view, &inode)));
    found.map_err(|error| broken(core, error))
}
