//! Which target daemons hold which chunks of a file: the layout and the map put together.

use std::collections::BTreeMap;

use millrace_protocol::{cluster::Map, target::Item};
use millrace_types::{ChunkIndex, ErrorKind, Failure, HostId, Layout, TargetId};

/// A target and the daemon that serves it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Place {
    /// The daemon.
    pub host: HostId,
    /// The target.
    pub target: TargetId,
}

/// The place of one chunk.
///
/// # Errors
/// [`ErrorKind::Unavailable`] when the map does not know it: the file is older than what is left of
/// the map, which a person must look at.
pub fn place_of(map: &Map, layout: &Layout, chunk: ChunkIndex) -> Result<Place, Failure> {
    let group = layout.group(chunk);
    let unknown = |what: &str| {
        Failure::new(ErrorKind::Unavailable, format!("no {what} serves placement group {group}"))
    };
    let target = map
        .group(layout.pool(), group)
        .and_then(|group| group.targets.first())
        .copied()
        .ok_or_else(|| unknown("target"))?;
    let host = map.host_of(target).ok_or_else(|| unknown("daemon"))?.id;
    Ok(Place { host, target })
}

/// The places that hold chunks of a run of a file, each once.
///
/// # Errors
/// As [`place_of`].
pub fn places_of(map: &Map, item: &Item) -> Result<Vec<Place>, Failure> {
    let layout = &item.content.layout;
    let mut places = BTreeMap::new();
    // The groups repeat after the width.
    for offset in 0..item.count.min(layout.width()) {
        let chunk = ChunkIndex(item.first.0.saturating_add(offset));
        places.insert(place_of(map, layout, chunk)?, ());
    }
    Ok(places.into_keys().collect())
}

/// How many chunks `size` bytes have.
#[must_use]
pub fn chunks_of(layout: &Layout, size: u64) -> u32 {
    u32::try_from(size.div_ceil(layout.chunk_size().bytes())).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use millrace_protocol::{
        capability::Content,
        cluster::{Group, Host, Pool, Target},
    };
    use millrace_types::{
        ChunkSize, ContentGeneration, GroupEpoch, InodeId, MIB, MapEpoch, PoolId, WriteEpoch,
    };

    use super::*;

    fn map(targets: u8, groups_each: u8) -> Map {
        let target = |n: u8| TargetId([n; 8]);
        let host = |n: u8| HostId([n; 16]);
        let group = |n: u8| Group { epoch: GroupEpoch(1), targets: vec![target(n % targets)] };
        Map {
            epoch: MapEpoch(1),
            hosts: (0..targets)
                .map(|n| Host { id: host(n), name: String::new(), addresses: Vec::new() })
                .collect(),
            targets: (0..targets).map(|n| Target { id: target(n), host: host(n) }).collect(),
            pools: vec![Pool {
                id: PoolId(0),
                name: "default".to_owned(),
                groups: (0..targets * groups_each).map(group).collect(),
            }],
        }
    }

    fn item(layout: Layout, count: u32) -> Item {
        let content = Content {
            inode: InodeId(9),
            generation: ContentGeneration(1),
            write_epoch: WriteEpoch(1),
            layout,
            origin: None,
            origin_length: 0,
            sparse: false,
        };
        Item { content, first: ChunkIndex(0), count }
    }

    #[test]
    fn a_run_names_each_of_its_targets_once() {
        let map = map(3, 4);
        let layout = Layout::new(ChunkSize::DEFAULT, 12, PoolId(0), 12, 5).unwrap();
        assert_eq!(places_of(&map, &item(layout, 1)).unwrap().len(), 1);
        assert_eq!(places_of(&map, &item(layout, 1_000_000)).unwrap().len(), 3);
        assert_eq!(places_of(&map, &item(layout, 0)).unwrap().len(), 0);
        assert_eq!(chunks_of(&layout, 8 * MIB), 1);
        assert_eq!(chunks_of(&layout, 8 * MIB + 1), 2);
    }

    #[test]
    fn a_group_that_the_map_lacks_is_told() {
        let layout = Layout::new(ChunkSize::DEFAULT, 64, PoolId(0), 64, 63).unwrap();
        let failure = places_of(&map(3, 4), &item(layout, 64)).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Unavailable);
    }
}
