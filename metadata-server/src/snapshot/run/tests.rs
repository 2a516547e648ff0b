//! A run under random changes sees exactly what there was when it began.

use millrace_runtime::Random;

use super::*;
use crate::store::{MetaStore as _, memory::MemoryStore};

fn all(store: &MemoryStore) -> Vec<Pair> {
    store.scan(Bound::Unbounded, Bound::Unbounded, usize::MAX).unwrap()
}

/// Puts and removes keys all over the place, values of up to `value_len_max` bytes.
fn change(random: &Random, value_len_max: u64) -> Batch {
    let mut batch = Batch::default();
    for _ in 0..random.within(1..6) {
        let key = random.within(0..2_000).to_be_bytes()[6..].to_vec();
        if random.within(0..3) == 0 {
            batch.delete(key);
        } else {
            let len = usize::try_from(random.within(0..value_len_max)).unwrap();
            batch.put(key, vec![u8::try_from(random.within(0..256)).unwrap(); len]);
        }
    }
    batch
}

#[test]
fn a_run_sees_the_store_as_it_was_whatever_is_changed_meanwhile() {
    for seed in 1..=300 {
        let random = Random::seeded(seed);
        let mut store = MemoryStore::default();
        for _ in 0..random.within(0..600) {
            store.commit(&change(&random, 40)).unwrap();
        }
        let expected = all(&store);
        let mut run = Run::new(LogIndex(9), None);
        let mut seen = Vec::new();
        // From changes alone to hardly any.
        let changes_a_piece = random.within(1..200);
        loop {
            for _ in 0..random.within(0..changes_a_piece) {
                let batch = change(&random, 40);
                run.before_commit(&store, &batch).unwrap();
                store.commit(&batch).unwrap();
            }
            let piece =
                run.fetch(&store, usize::try_from(random.within(1..5_000)).unwrap()).unwrap();
            if piece.is_empty() {
                break;
            }
            seen.extend(piece);
        }
        assert!(seen == expected, "seed {seed}");
        assert_eq!(run.memory(), 0, "seed {seed}: nothing is left in memory");
    }
}

#[test]
fn keys_that_are_to_be_left_out_are() {
    let mut store = MemoryStore::default();
    let mut batch = Batch::default();
    for key in [&b"J1"[..], b"K1", b"K2", b"L1"] {
        batch.put(key.to_vec(), b"v".to_vec());
    }
    store.commit(&batch).unwrap();
    let mut run = Run::new(LogIndex(1), Some(b"K".to_vec()));
    let mut removal = Batch::default();
    removal.delete(b"K2".to_vec());
    run.before_commit(&store, &removal).unwrap();
    store.commit(&removal).unwrap();
    let keys: Vec<_> =
        run.fetch(&store, usize::MAX).unwrap().into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, [b"J1", b"L1"]);
}

#[test]
fn a_pair_that_no_snapshot_can_hold_is_an_error_and_not_the_end() {
    let mut store = MemoryStore::default();
    let mut batch = Batch::default();
    for (key, len) in [(b'A', 1), (b'J', BODY_LEN_MAX), (b'K', 1)] {
        batch.put(vec![key], vec![1; len]);
    }
    store.commit(&batch).unwrap();
    let mut run = Run::new(LogIndex(1), None);
    let piece = run.fetch(&store, 1).unwrap();
    assert_eq!(piece, [(b"A".to_vec(), vec![1])]);
    let error = run.fetch(&store, 1).unwrap_err();
    assert!(matches!(error, RunError::TooLong { table: b'J', .. }), "{error}");
}

/// Changes every key from the far end on, where the pass comes last, and fetches nothing.
fn change_all(value_len: usize) -> Result<(Run, MemoryStore), RunError> {
    const KEYS: u64 = 10_000;
    let mut store = MemoryStore::default();
    let put = |number: u64, byte: u8| {
        let mut batch = Batch::default();
        batch.put(number.to_be_bytes().to_vec(), vec![byte; value_len]);
        batch
    };
    for number in 0..KEYS {
        store.commit(&put(number, 1)).unwrap();
    }
    let mut run = Run::new(LogIndex(1), None);
    for number in (0..KEYS).rev() {
        let batch = put(number, 2);
        run.before_commit(&store, &batch)?;
        assert!(run.memory() <= MEMORY_MAX);
        store.commit(&batch).unwrap();
    }
    Ok((run, store))
}

#[test]
fn changes_move_the_pass_on_and_what_does_not_fit_into_memory_ends_it() {
    let (mut run, store) = change_all(4_096).unwrap();
    assert!(run.passed.is_some() && run.memory() > MEMORY_MAX / 4, "the changes have moved it on");
    let mut seen = 0;
    loop {
        let piece = run.fetch(&store, 1).unwrap();
        if piece.is_empty() {
            break;
        }
        assert!(piece.iter().all(|(_, value)| value[0] == 1));
        assert!(piece.iter().map(pair_len).sum::<usize>() <= BODY_LEN_MAX);
        seen += piece.len();
    }
    assert_eq!(seen, 10_000);
    assert!(matches!(change_all(8_192), Err(RunError::Overrun)), "80 MB do not");
}

#[test]
fn commands_of_a_thousand_new_keys_end_no_run() {
    const KEYS: u64 = 100_000;
    let mut store = MemoryStore::default();
    let mut batch = Batch::default();
    for number in 0..KEYS {
        batch.put(number.to_be_bytes().to_vec(), vec![1; 1_200]);
    }
    store.commit(&batch).unwrap();
    let mut run = Run::new(LogIndex(1), None);
    let (mut seen, mut new, mut most) = (0, KEYS, 0);
    for round in 0.. {
        // So many commands may come between two turns of whoever writes the snapshot.
        let commands = if round < 60 { 12 } else { 0 };
        for _ in 0..commands {
            let mut batch = Batch::default();
            for number in new..new + 1_000 {
                batch.put(number.to_be_bytes().to_vec(), vec![2]);
            }
            new += 1_000;
            run.before_commit(&store, &batch).unwrap();
            most = most.max(run.memory());
            store.commit(&batch).unwrap();
        }
        let blocks = run.fetch_blocks(&store).unwrap();
        if blocks.is_empty() {
            break;
        }
        assert!(
            blocks.iter().all(|block| block.iter().map(pair_len).sum::<usize>() <= BODY_LEN_MAX)
        );
        for (key, value) in blocks.into_iter().flatten() {
            assert_eq!(key, u64::to_be_bytes(seen));
            assert!(value.len() == 1_200 && value[0] == 1, "{seen} is as it was");
            seen += 1;
        }
    }
    assert_eq!(seen, KEYS);
    assert!((MEMORY_MAX / 4..=MEMORY_MAX).contains(&most), "{most} bytes: memory ran short");
    assert_eq!(run.memory(), 0);
}

/// An import of new names beside a run of little memory, which waits where the run is short of it
/// or does not; how many pairs of before come out.
fn import_beside(waits: bool) -> Result<u64, RunError> {
    const KEYS: u64 = 20_000;
    let mut store = MemoryStore::default();
    let mut batch = Batch::default();
    for number in 0..KEYS {
        batch.put(number.to_be_bytes().to_vec(), vec![1; 100]);
    }
    store.commit(&batch).unwrap();
    let mut run = Run::within(256 << 10, LogIndex(1), None);
    let (mut seen, mut new) = (0, KEYS);
    loop {
        // So many commands may come between two turns of whoever writes the snapshot.
        for _ in 0..12 {
            if waits && run.is_short() {
                break;
            }
            let mut batch = Batch::default();
            for number in new..new + 100 {
                batch.put(number.to_be_bytes().to_vec(), vec![2]);
            }
            new += 100;
            run.before_commit(&store, &batch)?;
            store.commit(&batch).unwrap();
        }
        let blocks = run.fetch_blocks(&store)?;
        if blocks.is_empty() {
            assert!(new > KEYS && run.memory() == 0);
            return Ok(seen);
        }
        for (key, value) in blocks.into_iter().flatten() {
            assert_eq!(key, u64::to_be_bytes(seen));
            assert_eq!((value.len(), value[0]), (100, 1), "{seen} is as it was");
            seen += 1;
        }
    }
}

#[test]
fn a_run_that_an_import_would_overrun_comes_to_its_end_where_that_waits() {
    assert!(matches!(import_beside(false), Err(RunError::Overrun)));
    assert_eq!(import_beside(true).unwrap(), 20_000);
}
