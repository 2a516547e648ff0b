//! Random operations, each compared with a map.

use super::{
    IndexError, Key, Model, assert_sound, blank_disk, change, contents, create, open, options,
    random_key, random_value,
};
use crate::{disk::simulated::SimulatedDisk, format::root::Segment, index::Index};
use bytes::Bytes;
use millrace_runtime::Random;

/// Operations in all runs together.
const OPERATIONS: u64 = 100_000;
const RUNS: u64 = 20;

async fn run(seed: u64) {
    let random = Random::seeded(seed);
    let disk = blank_disk(seed);
    let mut index = create(&disk).await;
    let mut model = Model::new();
    // A few keys that come again and again, or many.
    let keys = [30, 500, 20_000][usize::try_from(seed % 3).unwrap()];
    let mut through = 0;
    for _ in 0..OPERATIONS / RUNS {
        match random.within(0..1000) {
            0..800 => change(&index, &mut model, &random, keys),
            800..980 => {
                let key = random_key(&random, keys);
                assert_eq!(index.get(&key).await.unwrap().as_ref(), model.get(&key), "seed {seed}");
            }
            980..985 => compare_range(&index, &model, &random, keys).await,
            985..988 => remove_range(&index, &mut model, &random, keys),
            988..992 => {
                // The freeze and what it sets aside may be far apart.
                through += 1;
                index.freeze(through);
            }
            992..999 => {
                through += 1;
                index.freeze(through);
                index.checkpoint().await.unwrap();
            }
            _ => {
                index = reopened(&disk, index, through).await;
                through += 2;
            }
        }
    }
    index = reopened(&disk, index, through).await;
    assert_eq!(contents(&index, 100).await.unwrap(), model, "seed {seed}");
    assert_eq!(index.statistics().entries, model.len() as u64);
    assert_sound(&index).await;
}

async fn reopened(disk: &SimulatedDisk, index: Index, through: u64) -> Index {
    // What was set aside earlier goes first.
    index.checkpoint().await.unwrap();
    assert!(index.freeze(through + 2));
    index.checkpoint().await.unwrap();
    drop(index);
    disk.restart();
    let index = open(disk).await.unwrap();
    assert_eq!(index.statistics().through, through + 2);
    assert_sound(&index).await;
    index
}

async fn compare_range(index: &Index, model: &Model, random: &Random, keys: u64) {
    let (one, other) = (random_key(random, keys), random_key(random, keys));
    let (from, until) = (one.min(other), one.max(other));
    let limit = usize::try_from(random.within(1..60)).unwrap();
    let scan = index.scan(from, Some(until), limit).await.unwrap();
    assert!(scan.entries.len() <= limit);
    let end = scan.next.unwrap_or(until);
    let expected: Vec<_> =
        model.range(from..end).map(|(key, value)| (*key, value.clone())).collect();
    assert_eq!(scan.entries, expected);
}

fn remove_range(index: &Index, model: &mut Model, random: &Random, keys: u64) {
    let from = random_key(random, keys);
    let gone: Vec<Key> = model.range(from..).take(200).map(|(key, _)| *key).collect();
    for key in gone {
        index.remove(key);
        model.remove(&key);
    }
}

#[tokio::test]
async fn any_operations_leave_what_a_map_would_hold() {
    for seed in 0..RUNS {
        run(seed).await;
    }
}

#[tokio::test]
async fn an_index_without_entries_has_no_nodes_and_takes_entries_again() {
    let disk = blank_disk(1);
    let index = create(&disk).await;
    let random = Random::seeded(1);
    let mut model = Model::new();
    for round in 1..4 {
        for _ in 0..15_000 {
            change(&index, &mut model, &random, 30_000);
        }
        index.freeze(2 * round - 1);
        index.checkpoint().await.unwrap();
        assert!(index.statistics().height >= 3, "the tree grows levels");
        model.keys().for_each(|&key| index.remove(key));
        model.clear();
        index.freeze(2 * round);
        index.checkpoint().await.unwrap();
        let statistics = index.statistics();
        assert_eq!((statistics.entries, statistics.nodes, statistics.height), (0, 0, 0));
        assert_sound(&index).await;
    }
}

#[tokio::test]
async fn leaves_stay_well_filled_whatever_comes_and_goes() {
    let disk = blank_disk(1);
    let index = create(&disk).await;
    let random = Random::seeded(2);
    let mut model = Model::new();
    for round in 1..40 {
        let growing = round % 8 < 5;
        for _ in 0..2000 {
            let key = random_key(&random, 30_000);
            if growing {
                let value = Bytes::from(vec![1; 70]);
                index.put(key, value.clone());
                model.insert(key, value);
            } else if let Some((&key, _)) = model.range(key..).next() {
                index.remove(key);
                model.remove(&key);
            }
        }
        index.freeze(round);
        index.checkpoint().await.unwrap();
        let checked = index.check().await.unwrap();
        let fill = checked.used_bytes as f64 / checked.room_bytes as f64;
        assert!(fill > 0.5, "round {round}: leaves are filled to {fill:.2}");
    }
    assert_sound(&index).await;
}

#[tokio::test]
async fn without_room_for_nodes_nothing_changes_until_there_is_some() {
    let disk = blank_disk(1);
    let small = Segment { first: 8, pages: 40 };
    let index = Index::create(options(&disk), &[small]).await.unwrap();
    let random = Random::seeded(3);
    let mut model = Model::new();
    let mut through = 0;
    let error = loop {
        for _ in 0..50 {
            let (key, value) = (random_key(&random, 20_000), random_value(&random));
            index.put(key, value.clone());
            model.insert(key, value);
        }
        through += 1;
        assert!(index.freeze(through), "what failed is no longer set aside");
        if let Err(error) = index.checkpoint().await {
            break error;
        }
    };
    assert!(matches!(error, IndexError::Full), "{error}");
    assert_eq!(contents(&index, 64).await.unwrap(), model);
    let statistics = index.statistics();
    assert_eq!(statistics.nodes + statistics.free_nodes, 40, "the pages taken are free again");
    index.extend(Segment { first: 100, pages: 500 }).unwrap();
    index.freeze(through + 1);
    index.checkpoint().await.unwrap();
    drop(index);
    let index = open(&disk).await.unwrap();
    assert_eq!(contents(&index, 64).await.unwrap(), model);
    let statistics = index.statistics();
    assert_eq!(statistics.nodes + statistics.free_nodes, 540, "the new segment is recorded");
}

#[tokio::test]
async fn the_cache_keeps_within_its_budget_and_spares_reads() {
    let disk = blank_disk(1);
    let index = create(&disk).await;
    let random = Random::seeded(4);
    let mut model = Model::new();
    (0..20_000).for_each(|_| change(&index, &mut model, &random, 60_000));
    index.freeze(1);
    index.checkpoint().await.unwrap();
    assert!(index.statistics().nodes * 4096 > 3 * 256 * 1024, "the tree is far above the budget");
    for key in model.keys() {
        index.get(key).await.unwrap();
    }
    let before = index.statistics();
    assert!(before.cache_bytes <= 256 * 1024, "{before:?}");
    let key = *model.first_key_value().unwrap().0;
    for _ in 0..10 {
        index.get(&key).await.unwrap();
    }
    let warm = index.statistics().node_reads;
    for _ in 0..100 {
        index.get(&key).await.unwrap();
    }
    assert_eq!(index.statistics().node_reads, warm, "what is asked for again is in memory");
}
