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
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use super::{Client, Step, broken as store_broken, path};
use crate::{
    command::{self, Command},
    engine::Core,
    hydration::{destination::is_saved, import::broken},
    leases::touched::writers,
    namespace::{Body, pins, tree},
    store::{StoreError, View, borrow, keys, prefix_end},
};

/// Tells a target what may go. The answer is of this moment: what is opened for writing after it is
/// fetched from the bucket again. Who still knows a file as it was before its export is no reason
/// to keep it: targets that were told of the export refuse that.
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
            None => answer(core.view(), content)?,
        };
        answers.push(answer);
    }
    Ok(Step::Done(AskReleaseReply { answers }))
}

fn answer(view: &dyn View, content: &ContentName) -> Result<ReleaseAnswer, Failure> {
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
    if exporting || written {
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
    // The caller was let through all of them just now.
    let (top, names) = (client.top(core)?, tree::components(&request.path)?);
    let above = pinned_on_the_way(core.view(), top, &names);
    let above = above.map_err(|error| store_broken(core, error))?;
    Ok(Step::Done(PinReply { changed: was != request.pinned, above }))
}

/// The directories on the way down from `top` that are pinned, as who walks it names them.
fn pinned_on_the_way(
    view: &dyn View,
    top: InodeId,
    names: &[FileName],
) -> Result<Vec<PathBytes>, StoreError> {
    let (mut at, mut path, mut pinned) = (top, PathBytes::new(), Vec::new());
    for name in names {
        if pins::has_own(view, at)? {
            pinned.push(if path.is_empty() { b"/".to_vec() } else { path.clone() });
        }
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
        let Some(entry) = tree::entry(view, at, name)? else { break };
        at = entry.inode;
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

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use millrace_protocol::metadata::FileKind;

    use super::*;
    use crate::store::{
        Batch, MetaStore as _, Pair,
        memory::MemoryStore,
        records::{Entry, Record as _},
    };

    /// A store that counts what is read of it.
    struct Counting {
        store: MemoryStore,
        reads: Cell<usize>,
    }

    impl View for Counting {
        fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
            self.reads.set(self.reads.get() + 1);
            self.store.get(key)
        }

        fn scan(
            &self,
            from: Bound<&[u8]>,
            to: Bound<&[u8]>,
            limit: usize,
        ) -> Result<Vec<Pair>, StoreError> {
            self.reads.set(self.reads.get() + 1);
            self.store.scan(from, to, limit)
        }
    }

    #[test]
    fn a_deep_path_is_walked_once_for_the_pins_above_it() {
        const DEPTH: u64 = 2_000;
        let names = vec![FileName::parse(b"d").unwrap(); usize::try_from(DEPTH).unwrap()];
        let mut batch = Batch::default();
        for depth in 0..DEPTH {
            let (inode, kind, cookie) = (InodeId(2 + depth), FileKind::Directory, 1);
            let entry = Entry { inode, kind, cookie };
            batch.put(keys::entry(InodeId(1 + depth), b"d"), entry.encode());
        }
        for pinned in [InodeId(1), InodeId(3), InodeId(1 + DEPTH)] {
            batch.put(keys::pin(pinned), Vec::new());
        }
        let mut store = MemoryStore::default();
        store.commit(&batch).unwrap();
        let view = Counting { store, reads: Cell::new(0) };
        let above = pinned_on_the_way(&view, InodeId(1), &names).unwrap();
        assert_eq!(above, [&b"/"[..], b"/d/d"], "not the last: it is what the path names");
        assert!(view.reads.get() <= 2 * names.len(), "{} reads", view.reads.get());
    }
}
