//! Inodes without a name, and the queues of contents whose chunks targets may free.

use std::{collections::BTreeMap, mem, ops::Bound};

use millrace_protocol::target::ContentName;
use millrace_types::{ContentGeneration, ErrorKind, InodeId, Layout, SessionId, TargetId};

use super::{ApplyError, Transaction, export, pristine, sweep, trust};
use crate::{
    command::{BATCH_MAX, Outcome, ReclaimOrphans},
    namespace::{Body, Inode, tree},
    store::{
        View, borrow, keys, prefix_end,
        records::{
            DistrustRecord, GroupRecord, OpenRecord, PoolRecord, ReclaimRecord, TargetRecord,
        },
    },
};

/// Takes an inode that has just lost its last name: it stays while somebody has it open.
pub(super) fn lost_last_name(
    tx: &mut Transaction<'_>,
    inode: &Inode,
    readers: &[SessionId],
) -> Result<(), ApplyError> {
    assert!(inode.links == 0, "only an inode without names is dropped");
    for &session in readers {
        if tx.read::<crate::store::records::SessionRecord>(&keys::session(session))?.is_none() {
            continue;
        }
        let key = keys::open(inode.id, session);
        let mut open = tx.read::<OpenRecord>(&key)?.unwrap_or_default();
        open.reads = true;
        tx.put(key, &open);
        tx.put_bytes(keys::opened(session, inode.id), Vec::new());
    }
    tx.put_inode(inode);
    drop_if_unused(tx, inode)
}

/// Removes an inode that has neither name nor opener.
pub(super) fn drop_if_unused(tx: &mut Transaction<'_>, inode: &Inode) -> Result<(), ApplyError> {
    if inode.links > 0 || is_open(tx, inode.id)? {
        return Ok(());
    }
    match &inode.body {
        Body::File(file) => {
            // Of one that lives in its inode the targets have nothing; what a spill may have left
            // that never ended is found by a check.
            if file.inline.is_some() {
                tx.delete(keys::contents(inode.id));
            } else {
                reclaim(tx, inode.id, file.generation, file.layout)?;
            }
            tx.delete(keys::trim(inode.id));
            export::file_dropped(tx, inode)?;
            tx.delete(keys::conflict(inode.id));
            tx.delete(keys::nameable(inode.id));
            pristine::forget(tx, inode)?;
        }
        Body::Directory(_) => sweep::forget_by_and_by(tx, inode.id)?,
        Body::Symlink(_) | Body::Special => {}
    }
    if inode.xattr_bytes > 0 {
        tx.delete_all(&keys::xattrs(inode.id))?;
    }
    tx.delete(keys::pin(inode.id));
    tx.delete(keys::inode(inode.id));
    tx.change_file_system(|fs| fs.inodes = fs.inodes.saturating_sub(1))
}

/// Whether anybody keeps the inode open.
pub(super) fn is_open(tx: &Transaction<'_>, inode: InodeId) -> Result<bool, ApplyError> {
    let opens = keys::opens(inode);
    let end = prefix_end(&opens);
    Ok(!tx.scan(Bound::Included(&opens), borrow(&end), 1)?.is_empty())
}

/// Whether anybody else than `by` has the inode open for writing.
pub(super) fn is_written(
    tx: &Transaction<'_>,
    inode: InodeId,
    by: Option<SessionId>,
) -> Result<bool, ApplyError> {
    let own = by.map(|session| keys::open(inode, session));
    let opens = tree::scan::<OpenRecord>(tx, &keys::opens(inode), usize::MAX)?;
    Ok(opens.iter().any(|(key, open)| open.writes > 0 && Some(key) != own.as_ref()))
}

/// Puts a content and all before it into the queue of every target that may hold chunks of it.
pub(super) fn reclaim(
    tx: &mut Transaction<'_>,
    inode: InodeId,
    generation: ContentGeneration,
    layout: Layout,
) -> Result<(), ApplyError> {
    let targets = targets_of(tx, layout)?;
    for target in targets {
        tx.reclaims.push((target, ReclaimRecord { inode, generation }));
    }
    Ok(())
}

/// The feature level from which on the places of one command are counted for each target.
const BY_TARGET_LEVEL: u32 = 18;

/// Gives what a command frees its places in the queues, when all of it is known.
///
/// Up to level 17 the places were counted over all targets, and programs of then ended where they
/// ran out, before such a command was logged or each time that it was replayed: what came of it
/// is in no store, and it is counted as from level 18 on.
pub(super) fn place_reclaims(tx: &mut Transaction<'_>) -> Result<(), ApplyError> {
    let reclaims = mem::take(&mut tx.reclaims);
    if reclaims.is_empty() {
        return Ok(());
    }
    let first = tx.index.0 << POSITION_BITS;
    let by_target =
        reclaims.len() as u64 >= PLACES_MAX || tx.file_system()?.feature_level >= BY_TARGET_LEVEL;
    let mut used: BTreeMap<TargetId, u64> = BTreeMap::new();
    let mut placed = 0;
    for (of_all, (target, record)) in (0..).zip(reclaims) {
        let of_target = used.entry(target).or_default();
        let place = if by_target { *of_target } else { of_all };
        *of_target += 1;
        // What there is no place for stays on the target as an orphan, which a check finds: the
        // command may be one that must not be refused.
        if place < PLACES_MAX {
            tx.put(keys::reclaim(target, first | place), &record);
            placed += 1;
        }
    }
    tx.change_file_system(|fs| fs.reclaim_entries += placed)
}

/// Frees contents that a check found on a target and in no file. The last word is here, where
/// nothing can change any more between the look and the entry: a content that a file has, or may
/// still get, is passed over, whatever the check believed.
pub(super) fn reclaim_orphans(
    tx: &mut Transaction<'_>,
    orphans: &ReclaimOrphans,
) -> Result<Outcome, ApplyError> {
    if orphans.contents.len() > BATCH_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    if tx.read::<TargetRecord>(&keys::target(orphans.target))?.is_none() {
        return Err(ErrorKind::NotFound.into());
    }
    if tx.read::<DistrustRecord>(&keys::distrust())?.is_some() {
        return Err(ErrorKind::NotPermitted.into());
    }
    let unnamed = trust::unnamed(tx)?;
    let is_unnamed = |inode| unnamed.iter().any(|ids| ids.contains(&inode));
    let mut queued = 0;
    for content in &orphans.contents {
        if !is_unnamed(content.inode) && is_orphan(tx, *content)? {
            let ContentName { inode, generation } = *content;
            tx.reclaims.push((orphans.target, ReclaimRecord { inode, generation }));
            queued += 1;
        }
    }
    Ok(Outcome::Queued(queued))
}

/// Whether no file has this content, nor one before it, and none ever will.
fn is_orphan(tx: &Transaction<'_>, content: ContentName) -> Result<bool, ApplyError> {
    // An id from the limit on may yet be given to a new file.
    if content.inode >= tx.file_system()?.inode_limit {
        return Ok(false);
    }
    Ok(match tree::find(tx, content.inode)?.map(|inode| inode.body) {
        // Ids are never used twice.
        None => true,
        Some(Body::File(file)) => content.generation < file.generation,
        // Something that never had chunks has none: the namespace is another one than it was.
        Some(Body::Directory(_) | Body::Symlink(_) | Body::Special) => false,
    })
}

/// A target has freed, durably, what its queue named.
pub(super) fn reclaimed(
    tx: &mut Transaction<'_>,
    target: TargetId,
    through: u64,
) -> Result<Outcome, ApplyError> {
    let queue = keys::reclaims_of(target);
    let last = keys::reclaim(target, through);
    let freed = tx.scan(Bound::Included(&queue), Bound::Included(&last), usize::MAX)?;
    let count = freed.len() as u64;
    for (key, _) in freed {
        tx.delete(key);
    }
    if count > 0 {
        tx.change_file_system(|fs| {
            fs.reclaim_entries = fs.reclaim_entries.saturating_sub(count);
        })?;
    }
    Ok(Outcome::Done)
}

/// Every target that may hold chunks of a layout.
fn targets_of(tx: &Transaction<'_>, layout: Layout) -> Result<Vec<TargetId>, ApplyError> {
    let Some(pool) = tx.read::<PoolRecord>(&keys::pool(layout.pool()))? else {
        return Ok(Vec::new());
    };
    if layout.width() > GROUPS_LOOKED_UP_MAX {
        return Ok(pool.targets);
    }
    let mut targets = Vec::new();
    for group in layout.groups() {
        let record = tx.read::<GroupRecord>(&keys::group(layout.pool(), group))?;
        targets.extend(record.into_iter().flat_map(|record| record.targets));
    }
    targets.sort_unstable();
    targets.dedup();
    Ok(targets)
}

/// Freeing what a target does not hold is harmless, so wide files go into every queue of the pool.
const GROUPS_LOOKED_UP_MAX: u32 = 16;

/// A position in a queue is the log index of the command that made it, then a number within it.
/// Commands free some thousand contents at most of each target: the end of a session with more
/// files without names is made of several.
pub(crate) const POSITION_BITS: u32 = 18;

/// Numbers within one command.
const PLACES_MAX: u64 = 1 << POSITION_BITS;

#[cfg(test)]
mod tests {
    use millrace_types::{LogIndex, Timestamp};

    use super::*;
    use crate::{apply::create, command::Format, store::memory::MemoryStore};

    #[test]
    fn what_there_is_no_place_for_in_a_queue_is_left_to_a_check() {
        let store = MemoryStore::default();
        let mut tx = Transaction::new(&store, LogIndex(7), Timestamp(1));
        create::format(&mut tx, &Format { uid: 0, gid: 0, mode: 0o755 }).unwrap();
        let [full, other] = [1, 2].map(|number| TargetId([number; 8]));
        let record = ReclaimRecord { inode: InodeId(9), generation: ContentGeneration(1) };
        tx.reclaims = vec![(full, record); usize::try_from(PLACES_MAX).unwrap() + 2];
        tx.reclaims.push((other, record));
        place_reclaims(&mut tx).unwrap();
        let queued = |target| {
            let queue = keys::reclaims_of(target);
            tree::scan::<ReclaimRecord>(&tx, &queue, usize::MAX).unwrap()
        };
        let of_full = queued(full);
        assert_eq!((of_full.len() as u64, queued(other).len()), (PLACES_MAX, 1));
        let index = |key: &[u8]| keys::number_at(key, 9).unwrap() >> POSITION_BITS;
        assert!(of_full.iter().all(|(key, _)| index(key) == 7), "no place of another command");
        assert_eq!(tx.file_system().unwrap().reclaim_entries, PLACES_MAX + 1);
    }
}
