//! A target that will not come back is given up: it is none any more, what it alone had is marked
//! as lost, and then others take its groups over.
//!
//! Between the first step and the last nobody serves the groups, so that no absent byte is taken
//! for a hole, nor for the bucket's, before every file has been looked at.

use std::collections::BTreeMap;

use millrace_types::{ErrorKind, GroupId, InodeId, PoolId, TargetId};

use super::{ApplyError, Transaction, commit, orphan};
use crate::{
    command::{BATCH_MAX, Loss, Outcome},
    namespace::{Body, ObjectState, loss, tree},
    store::{
        StoreError, keys,
        records::{FileSystem, GroupRecord, LostTarget, PoolRecord, TargetRecord},
    },
};

/// The feature level from which on targets can be given up.
const LEVEL: u32 = 6;

/// Takes one step.
pub(super) fn step(tx: &mut Transaction<'_>, loss: &Loss) -> Result<Outcome, ApplyError> {
    if tx.file_system()?.feature_level < LEVEL {
        return Err(ErrorKind::NotSupported.into());
    }
    match loss {
        Loss::Begin { target, below } => begin(tx, *target, *below)?,
        Loss::Mark { target, inodes, through } => mark(tx, *target, inodes, *through)?,
        Loss::End(target) => end(tx, *target)?,
    }
    Ok(Outcome::Done)
}

fn begin(tx: &mut Transaction<'_>, target: TargetId, below: InodeId) -> Result<(), ApplyError> {
    if tx.read::<LostTarget>(&keys::lost_target(target))?.is_some() {
        return Ok(());
    }
    let Some(known) = tx.read::<TargetRecord>(&keys::target(target))? else {
        return Err(ErrorKind::NotFound.into());
    };
    let pools = tree::scan::<PoolRecord>(tx, &keys::pools(), usize::MAX)?;
    if pools.iter().any(|(_, pool)| pool.targets == [target]) {
        // Nobody is left to take over.
        return Err(ErrorKind::Unavailable.into());
    }
    let mut groups = Vec::new();
    for (key, mut pool) in pools {
        let id = keys::pool_of(&key).ok_or_else(|| damaged(&key))?;
        groups.extend(take_out(tx, id, target)?);
        pool.targets.retain(|&known| known != target);
        tx.put(key, &pool);
    }
    tx.delete(keys::target(target));
    tx.delete(keys::shown(target));
    let targets = tree::scan::<TargetRecord>(tx, &keys::targets(), usize::MAX)?;
    if !targets.iter().any(|(_, other)| other.host == known.host) {
        tx.delete(keys::host(known.host));
    }
    let record = LostTarget {
        host: known.host,
        begun: tx.time,
        groups,
        below,
        looked_at: InodeId(0),
        files: 0,
        ended: None,
    };
    tx.put(keys::lost_target(target), &record);
    tx.change_file_system(raise_map)
}

/// Takes a target out of the groups of a pool; returns those that it served.
fn take_out(
    tx: &mut Transaction<'_>,
    pool: PoolId,
    target: TargetId,
) -> Result<Vec<(PoolId, GroupId)>, ApplyError> {
    let mut served = Vec::new();
    for (number, (key, mut group)) in (0..).zip(groups_of(tx, pool)?) {
        if group.targets.contains(&target) {
            group.targets.retain(|&known| known != target);
            group.epoch = group.epoch.next();
            tx.put(key, &group);
            served.push((pool, GroupId(number)));
        }
    }
    Ok(served)
}

fn mark(
    tx: &mut Transaction<'_>,
    target: TargetId,
    inodes: &[InodeId],
    through: InodeId,
) -> Result<(), ApplyError> {
    if inodes.len() > BATCH_MAX {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let Some(mut lost) = under_way(tx, target)? else { return Ok(()) };
    let groups = lost.groups.iter().copied().collect();
    for &id in inodes {
        if mark_one(tx, id, &groups)? {
            lost.files += 1;
        }
    }
    lost.looked_at = lost.looked_at.max(through);
    tx.put(keys::lost_target(target), &lost);
    Ok(())
}

fn mark_one(
    tx: &mut Transaction<'_>,
    id: InodeId,
    groups: &loss::Groups,
) -> Result<bool, ApplyError> {
    let Some(mut inode) = tree::find(tx, id)? else { return Ok(false) };
    let Body::File(file) = &mut inode.body else { return Ok(false) };
    let written = orphan::is_written(tx, id, None)?;
    if !loss::is_damaged(file, inode.size, groups, written) {
        return Ok(false);
    }
    file.state = ObjectState::Lost;
    // From here on what is absent is an error: no hole, and not for the object to stand in for.
    file.sparse = false;
    file.origin_length = 0;
    tx.delete(keys::conflict(id));
    commit::changed(tx, &mut inode);
    tx.put_inode(&inode);
    Ok(true)
}

fn end(tx: &mut Transaction<'_>, target: TargetId) -> Result<(), ApplyError> {
    let Some(mut lost) = under_way(tx, target)? else { return Ok(()) };
    let mut pools: BTreeMap<PoolId, Vec<GroupId>> = BTreeMap::new();
    for &(pool, group) in &lost.groups {
        pools.entry(pool).or_default().push(group);
    }
    for (pool, groups) in pools {
        hand_over(tx, pool, &groups)?;
    }
    lost.ended = Some(tx.time);
    tx.put(keys::lost_target(target), &lost);
    tx.change_file_system(raise_map)
}

/// Gives groups that nobody serves to the targets of their pool, each to the one that has fewest.
fn hand_over(tx: &mut Transaction<'_>, pool: PoolId, groups: &[GroupId]) -> Result<(), ApplyError> {
    let record = tx.read::<PoolRecord>(&keys::pool(pool))?;
    let targets = record.map(|record| record.targets).unwrap_or_default();
    let mut loads: BTreeMap<TargetId, u32> = targets.iter().map(|&target| (target, 0)).collect();
    let mut all = groups_of(tx, pool)?;
    for target in all.iter().flat_map(|(_, group)| &group.targets) {
        *loads.entry(*target).or_default() += 1;
    }
    for group in groups {
        let at = usize::try_from(group.0).ok().and_then(|at| all.get_mut(at));
        let Some((key, record)) = at.filter(|(_, record)| record.targets.is_empty()) else {
            continue;
        };
        let least = loads.iter_mut().min_by_key(|(_, load)| **load);
        let (target, load) = least.ok_or(ErrorKind::Unavailable)?;
        *load += 1;
        record.targets.push(*target);
        record.epoch = record.epoch.next();
        tx.put(key.clone(), record);
    }
    Ok(())
}

/// The target, if it is given up and others have not yet taken over.
fn under_way(tx: &Transaction<'_>, target: TargetId) -> Result<Option<LostTarget>, ApplyError> {
    let lost = tx.read::<LostTarget>(&keys::lost_target(target))?.ok_or(ErrorKind::NotFound)?;
    Ok(lost.ended.is_none().then_some(lost))
}

/// Every group of a pool, by number.
fn groups_of(
    tx: &Transaction<'_>,
    pool: PoolId,
) -> Result<Vec<(Vec<u8>, GroupRecord)>, StoreError> {
    tree::scan::<GroupRecord>(tx, &keys::groups(pool), usize::MAX)
}

fn raise_map(file_system: &mut FileSystem) {
    file_system.map_epoch = file_system.map_epoch.next();
}

fn damaged(key: &[u8]) -> StoreError {
    StoreError::Damaged { what: "key of the cluster map", key: key.to_owned() }
}
