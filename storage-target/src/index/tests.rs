//! The index against a plain map: in memory, through cuts of power, and on a damaged disk.

mod damage;
mod model;
mod power;
mod readers;

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_runtime::Random;
use millrace_types::TargetId;

use super::{Index, IndexError, Key, Options};
use crate::{
    disk::{BufferPool, simulated::SimulatedDisk},
    format::root::Segment,
};

const PAGE: u64 = 4096;
const DISK_PAGES: u64 = 16_384;
const SEGMENT: Segment = Segment { first: 8, pages: 4096 };

/// What the index should hold.
type Model = BTreeMap<Key, Bytes>;

/// A cache of a few nodes only, so that most of them are read from the disk.
fn options(disk: &SimulatedDisk) -> Options {
    Options {
        target: TargetId([7; 8]),
        disk: disk.queue(),
        pool: BufferPool::new(0),
        first_root_page: 0,
        cache_bytes: 256 * 1024,
    }
}

fn blank_disk(seed: u64) -> SimulatedDisk {
    SimulatedDisk::new(DISK_PAGES * PAGE, seed)
}

async fn create(disk: &SimulatedDisk) -> Index {
    Index::create(options(disk), &[SEGMENT]).await.unwrap()
}

async fn open(disk: &SimulatedDisk) -> Result<Index, IndexError> {
    Index::open(options(disk)).await
}

/// A key of a small set, so that the same ones come again; of different lengths.
fn random_key(random: &Random, keys: u64) -> Key {
    let number = random.within(0..keys);
    let mut bytes = number.to_be_bytes()[4..].to_vec();
    bytes.resize(4 + usize::try_from(number % 7).unwrap(), 0xAB);
    Key::new(&bytes).unwrap()
}

/// Mostly the size of a small chunk's record, now and then up to the greatest.
fn random_value(random: &Random) -> Bytes {
    let len = match random.within(0..40) {
        0 => random.within(0..1921),
        1 => 0,
        _ => random.within(40..120),
    };
    let mut bytes = vec![0; usize::try_from(len).unwrap()];
    random.fill(&mut bytes);
    Bytes::from(bytes)
}

/// Changes index and model alike.
fn change(index: &Index, model: &mut Model, random: &Random, keys: u64) {
    let key = random_key(random, keys);
    if random.within(0..10) < 7 {
        let value = random_value(random);
        index.put(key, value.clone());
        model.insert(key, value);
    } else {
        index.remove(key);
        model.remove(&key);
    }
}

/// All entries, by pages of `limit`.
async fn contents(index: &Index, limit: usize) -> Result<Model, IndexError> {
    let mut found = Model::new();
    let mut from = Key::new(&[0]).unwrap();
    loop {
        let scan = index.scan(from, None, limit).await?;
        for (key, value) in scan.entries {
            assert!(found.last_key_value().is_none_or(|(last, _)| *last < key), "keys ascend");
            found.insert(key, value);
        }
        let Some(next) = scan.next else { return Ok(found) };
        assert!(next > from || found.is_empty(), "a scan gets on");
        from = next;
    }
}

/// Every node is right, and every page of the segments is a node of the tree or free.
async fn assert_sound(index: &Index) {
    let checked = index.check().await.unwrap();
    assert!(checked.damages.is_empty(), "{:?}", checked.damages);
    let statistics = index.statistics();
    assert_eq!(
        statistics.nodes + statistics.free_nodes,
        u64::from(SEGMENT.pages),
        "no page is lost or used twice"
    );
}
