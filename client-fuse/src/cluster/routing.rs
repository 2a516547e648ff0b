//! From a chunk to the daemon that serves it, by the cluster map that this mount holds.

use std::sync::{Arc, PoisonError, RwLock};

use millrace_protocol::cluster::{Host, Map};
use millrace_types::{ChunkIndex, GroupEpoch, HostId, Layout, MapEpoch, TargetId};

/// The newest cluster map that this mount has seen.
#[derive(Debug)]
pub(crate) struct Routing {
    map: RwLock<Arc<Map>>,
}

/// Who serves a chunk.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Route {
    /// The target.
    pub(crate) target: TargetId,
    /// The epoch of the chunk's group.
    pub(crate) group_epoch: GroupEpoch,
    /// The daemon.
    pub(crate) host: HostId,
}

impl Routing {
    /// Routes by `map`.
    pub(crate) fn new(map: Map) -> Self {
        Self { map: RwLock::new(Arc::new(map)) }
    }

    /// The map.
    pub(crate) fn map(&self) -> Arc<Map> {
        Arc::clone(&self.map.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// The map's version.
    pub(crate) fn epoch(&self) -> MapEpoch {
        self.map().epoch
    }

    /// Takes a map over unless a newer one is held.
    pub(crate) fn handle_map(&self, map: Map) {
        let mut held = self.map.write().unwrap_or_else(PoisonError::into_inner);
        if map.epoch >= held.epoch {
            *held = Arc::new(map);
        }
    }

    /// Who serves chunk `index` of a file with this layout, if the map knows.
    pub(crate) fn route(&self, layout: &Layout, index: ChunkIndex) -> Option<Route> {
        let map = self.map();
        let group = map.group(layout.pool(), layout.group(index))?;
        let target = *group.targets.first()?;
        let host = map.host_of(target)?.id;
        Some(Route { target, group_epoch: group.epoch, host })
    }

    /// The daemon that serves `target`, if the map knows.
    pub(crate) fn host_of(&self, target: TargetId) -> Option<HostId> {
        self.map().host_of(target).map(|host| host.id)
    }

    /// A daemon's addresses.
    pub(crate) fn host(&self, id: HostId) -> Option<Host> {
        self.map().hosts.iter().find(|host| host.id == id).cloned()
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::cluster::{Group, Pool, Target};
    use millrace_types::{ChunkSize, PoolId};

    use super::*;

    fn map(epoch: u64, target: u8) -> Map {
        let host = HostId([target; 16]);
        let group = Group { epoch: GroupEpoch(1), targets: vec![TargetId([target; 8])] };
        Map {
            epoch: MapEpoch(epoch),
            hosts: vec![Host { id: host, name: "a".to_owned(), addresses: Vec::new() }],
            targets: vec![Target { id: TargetId([target; 8]), host }],
            pools: vec![Pool { id: PoolId(0), name: "default".to_owned(), groups: vec![group] }],
        }
    }

    #[test]
    fn an_older_map_never_replaces_a_newer_one() {
        let layout = Layout::new(ChunkSize::DEFAULT, 1, PoolId(0), 1, 0).expect("sound");
        let routing = Routing::new(map(2, 2));
        routing.handle_map(map(1, 1));
        assert_eq!(routing.epoch(), MapEpoch(2));
        routing.handle_map(map(3, 3));
        let route = routing.route(&layout, ChunkIndex(0)).expect("the map knows the group");
        assert_eq!(route.target, TargetId([3; 8]));
        assert_eq!(routing.host_of(route.target), Some(route.host));
    }

    #[test]
    fn a_group_that_the_map_does_not_know_has_no_route() {
        let layout = Layout::new(ChunkSize::DEFAULT, 4, PoolId(0), 4, 3).expect("sound");
        assert_eq!(Routing::new(map(1, 1)).route(&layout, ChunkIndex(0)), None);
    }
}
