//! From a chunk to the daemon that serves it, by the cluster map that this mount holds.

use std::{
    collections::BTreeSet,
    sync::{Arc, PoisonError, RwLock},
};

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

    /// The targets that may have something of the first `size` bytes of a file with this layout, if
    /// the map knows them all.
    pub(crate) fn targets_of(&self, layout: &Layout, size: u64) -> Option<BTreeSet<TargetId>> {
        let map = self.map();
        let chunks = size.div_ceil(layout.chunk_size().bytes());
        let groups = layout.groups().take(usize::try_from(chunks).unwrap_or(usize::MAX));
        let first = |group| map.group(layout.pool(), group)?.targets.first().copied();
        groups.map(first).collect()
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
    fn the_targets_of_a_file_are_those_of_the_chunks_that_it_reaches() {
        let mut map = map(1, 1);
        let group = |target| Group { epoch: GroupEpoch(1), targets: vec![TargetId([target; 8])] };
        map.pools[0].groups = (1..=4).map(group).collect();
        let host = map.hosts[0].id;
        map.targets = (1..=4).map(|target| Target { id: TargetId([target; 8]), host }).collect();
        let routing = Routing::new(map);
        let layout = Layout::new(ChunkSize::DEFAULT, 3, PoolId(0), 4, 0).expect("sound");
        let chunk = ChunkSize::DEFAULT.bytes();
        let counts = [0, 1, chunk, chunk + 1, 3 * chunk, 100 * chunk].map(|size| {
            let targets = routing.targets_of(&layout, size).expect("the map knows all groups");
            for piece in layout.pieces(0, size) {
                let route = routing.route(&layout, piece.index).expect("the map knows the group");
                assert!(targets.contains(&route.target), "{piece:?}");
            }
            targets.len()
        });
        assert_eq!(counts, [0, 1, 1, 2, 3, 3]);
        let wider = Layout::new(ChunkSize::DEFAULT, 5, PoolId(0), 5, 0).expect("sound");
        assert_eq!(routing.targets_of(&wider, 5 * chunk), None);
    }

    #[test]
    fn a_group_that_the_map_does_not_know_has_no_route() {
        let layout = Layout::new(ChunkSize::DEFAULT, 4, PoolId(0), 4, 3).expect("sound");
        assert_eq!(Routing::new(map(1, 1)).route(&layout, ChunkIndex(0)), None);
    }
}
