//! Rot, failing requests, and pages in the wrong place: an error, never a wrong answer.

use std::{
    collections::BTreeSet,
    sync::Arc,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_runtime::Random;

use super::{
    Index, IndexError, Key, Model, PAGE, assert_sound, blank_disk, change, contents, create, open,
    random_key,
};
use crate::disk::{BufferPool, DiskError, Operation, Piece, simulated::SimulatedDisk};
use crate::index::NodeDamage;

async fn filled(seed: u64) -> (SimulatedDisk, Model) {
    let disk = blank_disk(seed);
    let index = create(&disk).await;
    let random = Random::seeded(seed);
    let mut model = Model::new();
    for through in 1..4 {
        (0..1500).for_each(|_| change(&index, &mut model, &random, 3000));
        index.freeze(through);
        index.checkpoint().await.unwrap();
    }
    assert_sound(&index).await;
    (disk, model)
}

/// Every key is answered rightly or with an error that says damage; returns the errors.
async fn errors_of_all_keys(index: &Index, model: &Model) -> usize {
    let mut errors = 0;
    for (key, value) in model {
        match index.get(key).await {
            Ok(found) => assert_eq!(found.as_ref(), Some(value)),
            Err(IndexError::Damaged { .. }) => errors += 1,
            Err(error) => panic!("{error}"),
        }
    }
    errors
}

#[tokio::test]
async fn a_flipped_bit_anywhere_is_an_error_and_never_a_wrong_answer() {
    let random = Random::seeded(9);
    let (mut refused, mut found) = (0, 0);
    for seed in 0..60 {
        let (disk, model) = filled(seed).await;
        let nodes = open(&disk).await.unwrap().statistics().nodes;
        // The newest nodes lie behind the older ones; aim at all of them, and at the roots.
        disk.flip(random.within(0..(8 + 3 * nodes) * PAGE), 5);
        match open(&disk).await {
            Err(IndexError::Damaged { .. }) => refused += 1,
            Err(error) => panic!("{error}"),
            Ok(index) => {
                let damages = index.check().await.unwrap().damages.len();
                let errors = errors_of_all_keys(&index, &model).await;
                assert_eq!(errors > 0, damages > 0, "the check finds what lookups find");
                found += usize::from(damages > 0);
            }
        }
    }
    assert!(refused > 0 && found > 5, "both kinds come up: {refused}, {found}");
}

#[tokio::test]
async fn one_copy_of_a_root_record_is_enough() {
    for copy in [0, 1] {
        let (disk, model) = filled(1).await;
        // Three checkpoints after the first record: generation 4, in slots 0 and 1.
        disk.flip(copy * PAGE + 100, 1);
        let index = open(&disk).await.unwrap();
        assert_eq!((index.statistics().generation, index.statistics().through), (4, 3));
        assert_eq!(contents(&index, 100).await.unwrap(), model);
    }
    let (disk, _) = filled(1).await;
    for slot in 0..4 {
        disk.flip(slot * PAGE + 100, 1);
    }
    let error = open(&disk).await.unwrap_err();
    assert!(error.to_string().contains("checksum of an index root"), "{error}");
}

/// Copies a page of the disk over another one.
async fn copy_page(disk: &SimulatedDisk, from: u64, to: u64) {
    let (queue, pool) = (disk.queue(), BufferPool::new(0));
    let piece = |page: u64| vec![Piece { offset: page * PAGE, range: 0..4096 }];
    let buffer = queue.read(piece(from), pool.acquire(4096).await).await.unwrap();
    queue.write(piece(to), Arc::new(buffer)).await.unwrap();
    queue.sync().await.unwrap();
}

#[tokio::test]
async fn a_sound_page_in_the_wrong_place_is_found() {
    let (mut refused, mut errors) = (0, 0);
    // Every page that may hold a node is overwritten in one of three passes.
    for pass in 1..4 {
        let (disk, model) = filled(2).await;
        let first = super::SEGMENT.first;
        let nodes = open(&disk).await.unwrap().statistics().nodes;
        for page in (first + pass..first + 3 * nodes).step_by(3) {
            copy_page(&disk, first, page).await;
        }
        match open(&disk).await {
            Err(error) => {
                assert!(error.to_string().contains("belongs elsewhere"), "{error}");
                refused += 1;
            }
            Ok(index) => {
                assert!(!index.check().await.unwrap().damages.is_empty());
                errors += errors_of_all_keys(&index, &model).await;
            }
        }
    }
    assert!(refused > 0 && errors > 0, "root and leaves are hit: {refused}, {errors}");
}

#[tokio::test]
async fn a_request_that_fails_leaves_the_index_usable_or_says_open_again() {
    let mut uncertain = 0;
    for (operation, nth) in [Operation::Read, Operation::Write, Operation::Sync]
        .into_iter()
        .flat_map(|operation| (0..12).map(move |nth| (operation, nth)))
    {
        let (disk, mut model) = filled(3).await;
        let before = model.clone();
        let mut index = open(&disk).await.unwrap();
        let random = Random::seeded(nth);
        (0..500).for_each(|_| change(&index, &mut model, &random, 3000));
        disk.fail(operation, nth, libc::EIO);
        assert!(index.freeze(4));
        let first = index.checkpoint().await;
        // Whatever happened, what was put is still there.
        disk.fail(Operation::Read, u64::MAX, libc::EIO);
        assert_eq!(contents(&index, 300).await.unwrap(), model);
        match first {
            Ok(()) => {}
            Err(IndexError::Disk(DiskError::Io { .. })) => {
                index.freeze(5);
                match index.checkpoint().await {
                    Ok(()) => {}
                    Err(
                        error @ (IndexError::Uncertain | IndexError::Disk(DiskError::SyncFailed)),
                    ) => {
                        uncertain += usize::from(matches!(error, IndexError::Uncertain));
                        disk.restart();
                        index = open(&disk).await.unwrap();
                        let found = contents(&index, 300).await.unwrap();
                        let through = index.statistics().through;
                        assert_eq!(found, if through == 3 { before } else { model });
                        continue;
                    }
                    Err(error) => panic!("{operation:?} {nth}: {error}"),
                }
            }
            Err(error) => panic!("{operation:?} {nth}: {error}"),
        }
        drop(index);
        disk.restart();
        index = open(&disk).await.unwrap();
        assert_eq!(contents(&index, 300).await.unwrap(), model, "{operation:?} {nth}");
        assert_sound(&index).await;
    }
    assert!(uncertain > 0, "a root record was never hit");
}

#[tokio::test]
async fn a_survey_finds_what_the_cache_hides_and_goes_round_it() {
    let random = Random::seeded(4);
    for seed in 0..30 {
        let (disk, mut model) = filled(seed).await;
        let index = open(&disk).await.unwrap();
        // Over the tree, changes that no checkpoint has.
        (0..200).for_each(|_| change(&index, &mut model, &random, 3000));
        let (found, damages) = surveyed(&index).await;
        assert!(damages.is_empty(), "{damages:?}");
        assert_eq!(found, model);
        let nodes = index.statistics().nodes;
        disk.flip(random.within(8..8 + 3 * nodes) * PAGE + 700, 5);
        // Everything is in the cache by now or can be read; only the disk is looked at.
        contents(&index, 100).await.ok();
        let (found, damages) = surveyed(&index).await;
        for (key, value) in &found {
            assert_eq!(model.get(key), Some(value), "never a wrong answer");
        }
        assert!(found.len() + 150 >= model.len(), "one leaf at most is missing");
        let fresh = open(&disk).await;
        let damaged_leaf = match fresh {
            Ok(fresh) => fresh.check().await.unwrap().damages.len(),
            Err(IndexError::Damaged { .. }) => continue,
            Err(error) => panic!("{error}"),
        };
        assert_eq!(damages.len(), damaged_leaf, "{damages:?}");
    }
}

/// Everything, a leaf at a time.
async fn surveyed(index: &Index) -> (Model, Vec<NodeDamage>) {
    let (mut found, mut damages) = (Model::new(), Vec::new());
    let mut at = Key::new(&[0]);
    while let Some(from) = at {
        let survey = index.survey(from, 50).await.unwrap();
        for (key, value) in survey.entries {
            assert!(found.last_key_value().is_none_or(|(last, _)| *last < key), "keys ascend");
            found.insert(key, value);
        }
        damages.extend(survey.damage);
        at = survey.next;
        assert!(at.is_none_or(|next| next > from), "a survey gets on");
    }
    damages.dedup();
    (found, damages)
}

/// Keys of which the last byte says that a change may be lost.
fn may_lose(key: &Key) -> bool {
    key.as_slice()[3].is_multiple_of(2)
}

#[tokio::test]
async fn a_checkpoint_goes_round_a_leaf_that_cannot_be_read_and_loses_its_changes_alone() {
    let (mut strict, mut round) = (0, 0);
    for seed in 0..40 {
        let (disk, mut model) = filled(seed).await;
        let random = Random::seeded(seed);
        let index = open(&disk).await.unwrap();
        let nodes = index.statistics().nodes;
        // Sometimes all changes may be lost, sometimes not those of the damaged leaf.
        for _ in 0..30 {
            let key = random_key(&random, 3000);
            if seed % 4 == 0 || may_lose(&key) {
                index.put(key, Bytes::from_static(b"new"));
                model.insert(key, Bytes::from_static(b"new"));
            }
        }
        let page = random.within(8..8 + 3 * nodes);
        disk.flip(page * PAGE + 700, 5);
        index.freeze(4);
        let Err(IndexError::Damaged { .. }) = index.checkpoint().await else { continue };
        index.freeze(4);
        let given_up = BTreeSet::from([page]);
        if let Ok(met) = index.obstacles(may_lose, Instant::now()).await {
            assert_eq!((met[0].page, met[0].unread_for), (page, None));
        }
        let Ok(lost) = index.checkpoint_round(&given_up, may_lose).await else {
            disk.flip(page * PAGE + 700, 5);
            assert_eq!(contents(&index, 300).await.unwrap(), model, "nothing is lost");
            strict += 1;
            continue;
        };
        assert_eq!((lost.len(), lost[0].page), (1, page));
        assert!(lost[0].changes > 0 && may_lose(&lost[0].first));
        // Also when the disk has it again.
        disk.flip(page * PAGE + 700, 5);
        assert!(index.get(&lost[0].first).await.is_err());
        drop(index);
        let index = open(&disk).await.unwrap();
        assert_eq!(index.statistics().through, 4);
        let errors = errors_of_all_keys(&index, &model).await;
        assert!((1..150).contains(&errors), "{errors}");
        // Again below the same leaf: it stays lost.
        index.put(lost[0].first, Bytes::new());
        index.freeze(5);
        let again = index.obstacles(may_lose, Instant::now()).await.unwrap();
        assert_eq!((again[0].page, again[0].unread_for), (page, None), "it is damaged for good");
        assert_eq!(index.checkpoint_round(&given_up, may_lose).await.unwrap()[0].page, page);
        assert!(index.get(&lost[0].first).await.is_err());
        round += 1;
    }
    assert!(strict > 0 && round > 2, "both kinds come up: {strict}, {round}");
}

/// A leaf that no inner node is, and a key that it holds.
async fn some_leaf(index: &Index, disk: &SimulatedDisk, model: &Model) -> (u64, Key) {
    let nodes = index.statistics().nodes;
    for page in super::SEGMENT.first..super::SEGMENT.first + 3 * nodes {
        disk.flip(page * PAGE + 700, 5);
        let (_, damages) = surveyed(index).await;
        disk.flip(page * PAGE + 700, 5);
        if let [NodeDamage { level: 0, low: Some(low), .. }] = &damages[..] {
            return (page, *model.range(*low..).next().unwrap().0);
        }
    }
    panic!("there are leaves");
}

#[tokio::test]
async fn a_page_that_is_not_read_is_in_the_way_until_it_is_and_nothing_is_lost() {
    let (disk, mut model) = filled(5).await;
    let (page, key) = some_leaf(&open(&disk).await.unwrap(), &disk, &model).await;
    let index = open(&disk).await.unwrap();
    index.put(key, Bytes::from_static(b"new"));
    model.insert(key, Bytes::from_static(b"new"));
    let begun = Instant::now();
    let minutes = |count| Duration::from_secs(60 * count);
    disk.set_unreadable(page, true);
    for nth in 0..4_u64 {
        index.freeze(4);
        let error = index.checkpoint().await.unwrap_err();
        assert!(error.is_failed_read() && error.is_unreadable(), "{error}");
        let obstacles = index.obstacles(|_| true, begun + minutes(nth)).await.unwrap();
        let [obstacle] = obstacles[..] else { panic!("{obstacles:?}") };
        assert_eq!((obstacle.page, obstacle.unread_for), (page, Some(minutes(nth))));
        assert!(obstacle.may_be_lost);
    }
    disk.set_unreadable(page, false);
    assert!(index.obstacles(|_| true, begun + minutes(5)).await.unwrap().is_empty());
    // Given up and readable again: it is not gone round.
    index.freeze(4);
    let lost = index.checkpoint_round(&BTreeSet::from([page]), |_| true).await.unwrap();
    assert!(lost.is_empty());
    assert_eq!(contents(&index, 300).await.unwrap(), model);
}

#[tokio::test]
async fn a_checkpoint_leaves_a_damaged_leaf_alone_that_it_need_not_write() {
    let (disk, model) = filled(2).await;
    let nodes = open(&disk).await.unwrap().statistics().nodes;
    let mut checked = 0;
    for page in 8..8 + 3 * nodes {
        disk.flip(page * PAGE + 700, 5);
        if let Ok(index) = open(&disk).await
            && let [damage] = &surveyed(&index).await.1[..]
            && let Some(low) = damage.low
        {
            // Everything around it goes: its neighbours become too small to stay alone.
            let mut lost = 0;
            for key in model.keys() {
                match index.get(key).await {
                    Ok(_) => index.remove(*key),
                    Err(_) => lost += 1,
                }
            }
            index.freeze(4);
            index.checkpoint().await.unwrap();
            assert_eq!(index.statistics().entries, lost, "only what cannot be read is left");
            assert!(index.get(&low).await.is_err());
            checked += 1;
            drop(index);
            disk.flip(page * PAGE + 700, 5);
            break;
        }
        disk.flip(page * PAGE + 700, 5);
    }
    assert_eq!(checked, 1);
    assert_sound(&open(&disk).await.unwrap()).await;
}
