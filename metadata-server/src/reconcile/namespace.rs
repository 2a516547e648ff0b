//! What the namespace says of inodes: short turns of the engine.

use std::ops::Bound;

use millrace_protocol::{admin::PathBytes, target::ContentName};
use millrace_types::{InodeId, TargetId};

use super::compare::{FileContent, Known};
use crate::{
    namespace::{Body, Inode, ObjectState, tree},
    store::{
        StoreError, View, borrow, keys, prefix_end,
        records::{self, ReclaimRecord},
    },
};

/// Some inodes in the order of their ids.
#[derive(Debug)]
pub(super) struct InodePage {
    pub(super) inodes: Vec<(InodeId, Known)>,
    /// All inodes below this one, from where the page begins, are in it.
    pub(super) complete_below: InodeId,
}

/// The inodes from `from` on, below `end`: at most `limit`.
pub(super) fn page(
    view: &dyn View,
    from: InodeId,
    end: InodeId,
    limit: usize,
) -> Result<InodePage, StoreError> {
    let (first, last) = (keys::inode(from), keys::inode(end));
    let found = view.scan(Bound::Included(&first), Bound::Excluded(&last), limit)?;
    let mut inodes = Vec::with_capacity(found.len());
    for (key, bytes) in &found {
        let inode: Inode = records::decode(key, bytes)?;
        inodes.push((inode.id, known(&inode)));
    }
    let complete_below = match inodes.last() {
        Some((last, _)) if inodes.len() >= limit => last.next(),
        _ => end,
    };
    Ok(InodePage { inodes, complete_below })
}

/// What the namespace says of one inode, and its path if it has one and `with_path` asks for it.
pub(super) fn look_up(
    view: &dyn View,
    inode: InodeId,
    with_path: bool,
) -> Result<(Known, Option<PathBytes>), StoreError> {
    let Some(found) = tree::find(view, inode)? else { return Ok((Known::Nothing, None)) };
    let path = if with_path { tree::path(view, &found)? } else { None };
    Ok((known(&found), path))
}

/// A part of a target's reclaim queue: contents that are being freed.
pub(super) fn reclaims(
    view: &dyn View,
    target: TargetId,
    after: Option<u64>,
    limit: usize,
) -> Result<Vec<(u64, ContentName)>, StoreError> {
    let first = match after {
        Some(position) => Bound::Excluded(keys::reclaim(target, position)),
        None => Bound::Included(keys::reclaims_of(target)),
    };
    let end = prefix_end(&keys::reclaims_of(target));
    let found = view.scan(borrow(&first), borrow(&end), limit)?;
    let mut entries = Vec::with_capacity(found.len());
    for (key, bytes) in &found {
        let record: ReclaimRecord = records::decode(key, bytes)?;
        let name = ContentName { inode: record.inode, generation: record.generation };
        entries.push((keys::number_at(key, 9).unwrap_or_default(), name));
    }
    Ok(entries)
}

fn known(inode: &Inode) -> Known {
    match &inode.body {
        Body::File(file) => Known::File(FileContent {
            generation: file.generation,
            write_epoch: file.write_epoch,
            layout: file.layout,
            size: inode.size,
            origin_length: file.origin_length,
            may_lack: file.sparse || file.inline.is_some(),
            is_lost: file.state == ObjectState::Lost,
            changed: inode.changed,
        }),
        Body::Directory(_) | Body::Symlink(_) | Body::Special => Known::Other,
    }
}
