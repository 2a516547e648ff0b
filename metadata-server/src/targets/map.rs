//! The cluster map, as clients and targets get it, read from the store.

use millrace_protocol::cluster::{Group, Host, Map, Pool, Target};
use millrace_types::{GroupId, HostId, PoolId, TargetId};

use crate::{
    namespace::tree,
    store::{
        StoreError, View, keys,
        records::{self, FileSystem, GroupRecord, HostRecord, PoolRecord, TargetRecord},
    },
};

/// Reads the map.
///
/// # Errors
/// When the store is broken.
pub fn read(view: &(impl View + ?Sized)) -> Result<Map, StoreError> {
    let file_system: Option<FileSystem> = records::read(view, &keys::file_system())?;
    let mut map = Map {
        epoch: file_system.map(|fs| fs.map_epoch).unwrap_or_default(),
        hosts: Vec::new(),
        targets: Vec::new(),
        pools: Vec::new(),
    };
    for (key, host) in tree::scan::<HostRecord>(view, &keys::hosts(), usize::MAX)? {
        map.hosts.push(Host { id: HostId(id(&key)?), name: host.name, addresses: host.addresses });
    }
    for (key, target) in tree::scan::<TargetRecord>(view, &keys::targets(), usize::MAX)? {
        map.targets.push(Target { id: TargetId(id(&key)?), host: target.host });
    }
    for (key, pool) in tree::scan::<PoolRecord>(view, &keys::pools(), usize::MAX)? {
        let id = PoolId(u16::from_be_bytes(id(&key)?));
        map.pools.push(Pool { id, name: pool.name, groups: groups(view, id, pool.groups)? });
    }
    Ok(map)
}

fn groups(view: &(impl View + ?Sized), pool: PoolId, count: u32) -> Result<Vec<Group>, StoreError> {
    let found = tree::scan::<GroupRecord>(view, &keys::groups(pool), usize::MAX)?;
    if found.len() != usize::try_from(count).unwrap_or(usize::MAX) {
        let text = format!("{pool} has {} of its {count} groups", found.len());
        return Err(StoreError::Inconsistent(text));
    }
    debug_assert!(
        found.iter().zip(0..).all(|((key, _), n)| *key == keys::group(pool, GroupId(n))),
        "groups are dense"
    );
    let groups =
        found.into_iter().map(|(_, group)| Group { epoch: group.epoch, targets: group.targets });
    Ok(groups.collect())
}

/// The id that makes up the rest of a key.
fn id<const N: usize>(key: &[u8]) -> Result<[u8; N], StoreError> {
    let rest = key.get(1..).and_then(|rest| rest.try_into().ok());
    rest.ok_or_else(|| StoreError::Damaged { what: "key of the cluster map", key: key.to_owned() })
}
