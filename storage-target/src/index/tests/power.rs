//! Cuts of power at every kind of moment: afterwards the index is that of the last checkpoint that
//! returned, or of the one that was under way, and nothing in between.
//!
//! A failure names its seed; `MILLRACE_SEED=n` runs that one alone, `MILLRACE_SEEDS=n` as many.

use std::env;

use millrace_runtime::Random;

use super::{Index, IndexError, Model, assert_sound, blank_disk, change, contents, create, open};
use crate::disk::{
    DiskError,
    simulated::{Flush, SimulatedDisk},
};

/// Seeds of an ordinary run.
const SEEDS: u64 = 400;
const ROUNDS: u64 = 12;

/// What is wrong with the index after a cut, if anything.
type Verdict = Result<(), String>;

/// One disk's life: rounds of changes and a checkpoint each, most of them cut.
async fn live(seed: u64, flush: Flush) -> Verdict {
    let random = Random::seeded(seed);
    let disk = blank_disk(seed);
    let mut index = create(&disk).await;
    let keys = [40, 2000, 20_000][usize::try_from(seed % 3).unwrap()];
    let mut promised = Model::new();
    let mut promised_through = 0;
    for round in 1..=ROUNDS {
        let mut model = promised.clone();
        for _ in 0..random.within(1..600) {
            change(&index, &mut model, &random, keys);
        }
        disk.set_flush(flush);
        if random.within(0..4) > 0 {
            disk.cut_power_in(random.within(0..14));
        }
        assert!(index.freeze(round));
        let outcome = index.checkpoint().await;
        match outcome {
            Ok(()) => {
                promised.clone_from(&model);
                promised_through = round;
            }
            Err(IndexError::Disk(DiskError::Stopped)) => {}
            Err(error) => return Err(format!("seed {seed}, round {round}: {error}")),
        }
        drop(index);
        disk.restart();
        let complain = |what: String| format!("seed {seed}, round {round}: {what}");
        index = open(&disk).await.map_err(|error| complain(error.to_string()))?;
        let through = index.statistics().through;
        let expected = match through {
            _ if through == promised_through => &promised,
            _ if through == round => &model,
            _ => return Err(complain(format!("it is as of {through}"))),
        };
        let found = contents(&index, 500).await.map_err(|error| complain(error.to_string()))?;
        if found != *expected {
            return Err(complain("the entries are others".into()));
        }
        assert_sound(&index).await;
        (promised, promised_through) = (found, through);
    }
    Ok(())
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match (number("MILLRACE_SEED"), number("MILLRACE_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(SEEDS),
    }
}

#[tokio::test]
async fn a_cut_at_any_moment_leaves_the_last_checkpoint_or_the_one_under_way() {
    for seed in seeds() {
        if let Err(complaint) = live(seed, Flush::Honest).await {
            panic!("{complaint}; run again with MILLRACE_SEED={seed}");
        }
    }
}

#[tokio::test]
async fn a_disk_that_does_not_sync_is_found_out() {
    let mut found_out = 0;
    for seed in 0..30 {
        found_out += usize::from(live(seed, Flush::Lying).await.is_err());
    }
    assert!(found_out > 15, "the test would not notice lost syncs: {found_out} of 30");
}

#[tokio::test]
async fn a_root_that_is_not_written_after_its_nodes_is_found_out() {
    let mut found_out = 0;
    for seed in 0..30 {
        found_out += usize::from(live(seed, Flush::LyingByTurns).await.is_err());
    }
    assert!(found_out > 5, "the test would not notice a missing first sync: {found_out} of 30");
}

#[tokio::test]
async fn a_cut_while_the_index_is_made_leaves_none_or_an_empty_one() {
    for seed in 0..200 {
        let disk = blank_disk(seed);
        disk.cut_power_in(seed % 3);
        let made = Index::create(super::options(&disk), &[super::SEGMENT]).await;
        assert!(matches!(made, Err(IndexError::Disk(DiskError::Stopped))));
        disk.restart();
        match open(&disk).await {
            Ok(index) => assert!(contents(&index, 10).await.unwrap().is_empty()),
            Err(error) => assert!(matches!(error, IndexError::NoIndex { .. }), "{error}"),
        }
        create_again(&disk).await;
    }
}

async fn create_again(disk: &SimulatedDisk) {
    let index = create(disk).await;
    let mut model = Model::new();
    change(&index, &mut model, &Random::seeded(1), 10);
    index.freeze(1);
    index.checkpoint().await.unwrap();
    let index = open(disk).await.unwrap();
    assert_eq!(contents(&index, 10).await.unwrap(), model);
}

/// A process is killed between writing a root and the sync behind it; the next one begins with that
/// root, and is cut off while it writes over what the root gave up.
#[tokio::test]
async fn what_was_seen_after_a_kill_is_there_after_a_cut() {
    for seed in 0..300 {
        let random = Random::seeded(seed);
        let disk = blank_disk(seed);
        let index = create(&disk).await;
        let mut model = Model::new();
        let mut change_some = |index: &Index, through: u64| {
            (0..random.within(1..60)).for_each(|_| change(index, &mut model, &random, 40));
            assert!(index.freeze(through));
        };
        change_some(&index, 1);
        index.checkpoint().await.unwrap();
        change_some(&index, 2);
        disk.kill_in(random.within(0..8));
        drop(index.checkpoint().await);
        drop(index);
        disk.resume();

        let index = open(&disk).await.unwrap();
        let seen = index.statistics().through;
        let entries = contents(&index, 100).await.unwrap();
        change_some(&index, 3);
        disk.cut_power_in(random.within(0..4));
        drop(index.checkpoint().await);
        drop(index);
        disk.restart();

        let index = open(&disk).await.unwrap_or_else(|error| panic!("seed {seed}: {error}"));
        let through = index.statistics().through;
        assert!(through == seen || through == 3, "seed {seed}: {seen} was seen, now {through}");
        let found = contents(&index, 100).await.unwrap();
        assert!(through == 3 || found == entries, "seed {seed}: the entries are others");
        assert_sound(&index).await;
    }
}
