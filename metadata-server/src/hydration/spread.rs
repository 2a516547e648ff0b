//! Which target daemons hold which chunks of a file: the layout and the map put together.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::{capability::Content, cluster::Map, target::Item};
use millrace_types::{ChunkIndex, ErrorKind, Failure, HostId, Layout, MIB, TargetId};

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

/// The places that hold chunks of a run of a file of `size` bytes, each once, with the bytes of the
/// run that lie there.
///
/// # Errors
/// As [`place_of`].
pub fn places_of(map: &Map, item: &Item, size: u64) -> Result<BTreeMap<Place, u64>, Failure> {
    let layout = &item.content.layout;
    let chunk_size = layout.chunk_size().bytes();
    let mut places = BTreeMap::new();
    for offset in 0..item.count {
        let chunk = ChunkIndex(item.first.0.saturating_add(offset));
        let bytes = size.saturating_sub(u64::from(chunk.0) * chunk_size).min(chunk_size);
        *places.entry(place_of(map, layout, chunk)?).or_insert(0) += bytes;
    }
    Ok(places)
}

/// The places that hold chunks of a file of `size` bytes, each once.
///
/// # Errors
/// As [`place_of`].
pub fn all_places_of(map: &Map, layout: &Layout, size: u64) -> Result<BTreeSet<Place>, Failure> {
    slots(layout, size).map(|chunk| place_of(map, layout, chunk)).collect()
}

/// The same without groups that nobody serves, since their target was given up: what was there is
/// nowhere any more.
#[must_use]
pub fn places_left(map: &Map, layout: &Layout, size: u64) -> BTreeSet<Place> {
    slots(layout, size).filter_map(|chunk| place_of(map, layout, chunk).ok()).collect()
}

/// One chunk of each slot that the first `size` bytes of a file use: what lies behind repeats them.
fn slots(layout: &Layout, size: u64) -> impl Iterator<Item = ChunkIndex> + use<> {
    (0..chunks_of(layout, size).min(layout.width())).map(ChunkIndex)
}

/// Cuts the first `size` bytes of a content into runs, so that no target gets much more than
/// 32 MiB of one.
pub fn runs(content: &Content, size: u64) -> impl Iterator<Item = Item> + use<> {
    let content = content.clone();
    let chunks = chunks_of(&content.layout, size);
    let each = RUN_BYTES_EACH / content.layout.chunk_size().bytes();
    // Beyond some targets a run is long enough; the width may count groups of one target.
    let step = u32::try_from(each).unwrap_or(1).max(1) * content.layout.width().min(RUN_TARGETS);
    (0..chunks).step_by(step as usize).map(move |first| Item {
        content: content.clone(),
        first: ChunkIndex(first),
        count: step.min(chunks - first),
    })
}

/// How many chunks `size` bytes have.
#[must_use]
pub fn chunks_of(layout: &Layout, size: u64) -> u32 {
    u32::try_from(size.div_ceil(layout.chunk_size().bytes())).unwrap_or(u32::MAX)
}

/// What one request moves on one target: long enough to keep a disk and a connection busy, short
/// enough to show progress and to be repeated.
const RUN_BYTES_EACH: u64 = 32 * MIB;

/// Groups that a run goes round.
const RUN_TARGETS: u32 = 16;

#[cfg(test)]
mod tests {
    use millrace_protocol::cluster::{Group, Host, Pool, Target};
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
        let places = |count, size| places_of(&map, &item(layout, count), size).unwrap();
        assert_eq!(places(1, MIB).into_values().collect::<Vec<_>>(), [MIB]);
        assert_eq!(places(1000, u64::MAX).len(), 3);
        assert_eq!(places(1000, u64::MAX).into_values().sum::<u64>(), 8000 * MIB);
        assert_eq!(places(0, MIB).len(), 0);
        assert_eq!(chunks_of(&layout, 8 * MIB), 1);
        assert_eq!(chunks_of(&layout, 8 * MIB + 1), 2);
    }

    #[test]
    fn runs_cover_a_file_once_and_in_order() {
        let layout = Layout::new(ChunkSize::DEFAULT, 3, PoolId(0), 12, 5).unwrap();
        let content = item(layout, 0).content;
        for size in [0, 1, 8 * MIB, 100 * MIB, 5000 * MIB + 1] {
            let mut at = 0;
            for run in runs(&content, size) {
                assert_eq!(run.first.0, at);
                assert!((1..=12).contains(&run.count));
                at += run.count;
            }
            assert_eq!(at, chunks_of(&layout, size));
        }
    }

    #[test]
    fn a_group_that_the_map_lacks_is_told() {
        let layout = Layout::new(ChunkSize::DEFAULT, 64, PoolId(0), 64, 63).unwrap();
        let failure = places_of(&map(3, 4), &item(layout, 64), MIB).unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Unavailable);
        let served = places_left(&map(3, 4), &layout, u64::MAX);
        assert_eq!(served.len(), 3, "of the others it is known where they are");
    }
}
