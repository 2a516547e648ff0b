//! Which files changed here and in their buckets.

use std::ops::Bound;

use millrace_protocol::bucket::{CONFLICTS_MAX, Conflict, ConflictsReply, ListConflicts};
use millrace_types::{ByteLen, Failure, InodeId};

use super::{Client, Step, broken};
use crate::{
    engine::Core,
    namespace::{Body, tree},
    store::{StoreError, View, borrow, keys, prefix_end},
};

/// A page of conflicts.
///
/// # Errors
/// When the store is broken.
pub fn list(
    core: &mut Core,
    _: &Client,
    request: &ListConflicts,
) -> Result<Step<ConflictsReply>, Failure> {
    let page = page(core.view(), request.after);
    page.map(Step::Done).map_err(|error| broken(core, error))
}

fn page(view: &dyn View, after: Option<InodeId>) -> Result<ConflictsReply, StoreError> {
    let all = keys::conflicts();
    let end = prefix_end(&all);
    let after = after.map(keys::conflict);
    let from = after.as_ref().map_or(Bound::Included(&all), Bound::Excluded);
    let found = view.scan(from.map(Vec::as_slice), borrow(&end), CONFLICTS_MAX + 1)?;
    let mut conflicts = Vec::new();
    for (key, _) in found.iter().take(CONFLICTS_MAX) {
        let Some(id) = keys::number_at(key, 1).map(InodeId) else { continue };
        conflicts.extend(conflict(view, id)?);
    }
    Ok(ConflictsReply { conflicts, more: found.len() > CONFLICTS_MAX })
}

fn conflict(view: &dyn View, id: InodeId) -> Result<Option<Conflict>, StoreError> {
    let Some(inode) = tree::find(view, id)? else { return Ok(None) };
    let key = match &inode.body {
        Body::File(body) => body.origin.as_ref().map(|origin| origin.key.clone()),
        _ => None,
    };
    let path = tree::path(view, &inode)?.unwrap_or_default();
    Ok(Some(Conflict { inode: id, path, size: ByteLen(inode.size), modified: inode.modified, key }))
}
