//! What targets may drop to make room, and what is pinned.

use std::{ops::Bound, time::Duration};

use millrace_protocol::{
    admin::PathBytes,
    release::{
        ASK_RELEASE_MAX, AskRelease, AskReleaseReply, ListPins, PINS_MAX, PinReply, PinsReply,
        ReleaseAnswer, SetPin,
    },
    target::ContentName,
};
use millrace_types::{ErrorKind, Failure, InodeId, Timestamp};

use super::{Client, Step, broken as store_broken, path};
use crate::{
    command::{self, Command},
    engine::Core,
    hydration::{destination::is_saved, import::broken},
    leases::touched::writers,
    namespace::{Body, ObjectState, pins, tree},
    store::{View, borrow, keys, prefix_end},
};

/// How long after its export a file stays: longer than a fetch from the object before it can last
/// (a minute without a byte, two with retries).
const SETTLED: Duration = Duration::from_secs(15 * 60);

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
    let now = core.now();
    let mut answers: Vec<ReleaseAnswer> = Vec::with_capacity(request.contents.len());
    for (at, content) in request.contents.iter().enumerate() {
        // Chunks of one file come one after the other.
        let known = match at.checked_sub(1) {
            Some(before) if request.contents[before] == *content => answers.get(before).copied(),
            _ => None,
        };
        let answer = match known {
            Some(answer) => answer,
            None => answer(core.view(), content, now)?,
        };
        answers.push(answer);
    }
    Ok(Step::Done(AskReleaseReply { answers }))
}

fn answer(
    view: &dyn View,
    content: &ContentName,
    now: Timestamp,
) -> Result<ReleaseAnswer, Failure> {
    let Some(inode) = tree::find(view, content.inode).map_err(broken)? else {
        return Ok(ReleaseAnswer::Unknown);
    };
    let Body::File(file) = &inode.body else { return Ok(ReleaseAnswer::Unknown) };
    if file.generation != content.generation {
        return Ok(ReleaseAnswer::Unknown);
    }
    if !is_saved(view, &inode, file)? {
        return Ok(ReleaseAnswer::Unsaved);
    }
    let exporting = view.get(&keys::export(inode.id)).map_err(broken)?.is_some();
    let written = !writers(view, inode.id).map_err(broken)?.is_empty();
    // What was being fetched before the change may arrive yet.
    let young = file.state == ObjectState::Exported && inode.changed.plus(SETTLED) > now;
    if exporting || written || young {
        return Ok(ReleaseAnswer::InUse);
    }
    Ok(match pins::is_pinned(view, &inode).map_err(broken)? {
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
    let was = pins::has_own(core.view(), inode.id).map_err(|error| store_broken(core, error))?;
    let command = Command::SetPin(command::SetPin {
        caller: client.caller(&request.caller),
        inode: inode.id,
        pinned: request.pinned,
    });
    core.execute(None, command)?;
    let above = pinned_on_the_way(core, client, request)?;
    Ok(Step::Done(PinReply { changed: was != request.pinned, above }))
}

/// The directories of a path that are pinned, as the caller names them, who may search them.
fn pinned_on_the_way(
    core: &mut Core,
    client: &Client,
    request: &SetPin,
) -> Result<Vec<PathBytes>, Failure> {
    let names = tree::components(&request.path)?;
    let mut pinned = Vec::new();
    for depth in 0..names.len() {
        let mut path: PathBytes = Vec::new();
        for name in &names[..depth] {
            path.push(b'/');
            path.extend_from_slice(name.as_bytes());
        }
        if path.is_empty() {
            path.push(b'/');
        }
        if let Step::Done(inode) = path::resolve(core, client, &request.caller, &path)?
            && pins::has_own(core.view(), inode.id).map_err(|error| store_broken(core, error))?
        {
            pinned.push(path);
        }
    }
    Ok(pinned)
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
    let found = found.map_err(|error| store_broken(core, error))?;
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
    found.map_err(|error| store_broken(core, error))
}
