//! What operations look at while there is as much as there may be. The numbers are far below those
//! of whatever goes through all of it, and far above what is needed: what counts is that they do
//! not grow with the rest.

use super::*;
use crate::locks::steps;

const READERS: u64 = 60_000;
const WAITERS: u64 = 4_000;

/// A question about some bytes, and whatever comes with it.
const FEW: usize = 1_000;

/// Sets a lock by looking at few things.
fn set(table: &mut LockTable, number: u64, lock: Lock, wait: u64) -> Result<bool, ErrorKind> {
    let (outcome, looks) = steps::of(|| table.set(session(number), &lock, wait));
    assert!(looks < FEW, "looked at {looks} for {lock:?}");
    outcome
}

#[test]
fn who_takes_or_asks_for_a_few_bytes_does_not_go_through_the_locks_of_a_file() {
    let mut table = table();
    // All but every tenth begin before everything that follows, and the first session has half.
    for number in 0..READERS {
        let last = if number % 10 == 0 { 2 * number } else { 2 * READERS };
        let lock = range(FILE, number, Read, 2 * number, last);
        assert_eq!(set(&mut table, 1 + number % 2, lock, 0), Ok(true));
    }
    for number in 0..READERS / 10 {
        let start = 3 * READERS + 2 * number;
        let lock = range(FILE, number, Write, start, start);
        assert_eq!(set(&mut table, 3, lock, 0), Ok(true));
    }
    for at in [0, READERS, 2 * READERS, 4 * READERS] {
        let lock = range(FILE, 9, Write, at, 5 * READERS);
        let asked = |number| table.test(session(number), &lock).is_some();
        let (is_taken, looks) = steps::of(|| asked(1));
        assert_eq!(is_taken, at < 4 * READERS);
        assert!(looks < FEW, "looked at {looks}");
    }
    let free = range(FILE, 9, Write, 2 * READERS + 1, 3 * READERS - 1);
    assert_eq!(set(&mut table, 4, free, 0), Ok(true));
    assert_eq!(set(&mut table, 4, range(FILE, 9, Write, 0, 0), 0), Err(ErrorKind::Locked));
    assert_eq!(set(&mut table, 4, range(FILE, 9, Read, 0, READERS), 0), Ok(true));
    for number in 0..READERS {
        let unlock = unlocked(range(FILE, number, Read, 0, LockRange::END));
        assert_eq!(set(&mut table, 1 + number % 2, unlock, 0), Ok(true));
    }
    assert_eq!(table.counts().locks as u64, 2 + READERS / 10);
}

#[test]
fn deadlocks_among_very_many_are_looked_for_by_looking_at_each_once() {
    let mut table = table();
    let third = InodeId(7);
    for owner in 0..READERS {
        assert_eq!(set(&mut table, 1, range(FILE, owner, Read, 0, LockRange::END), 0), Ok(true));
    }
    // Those who hold nothing are in nobody's way, for the same bytes or for others.
    for owner in 0..WAITERS {
        let lock = range(FILE, owner, Write, owner % 7, READERS + owner % 1000);
        assert_eq!(set(&mut table, 2, lock, 1 + owner), Ok(false));
    }
    // Each of these waits for bytes of its own, all of the readers are in the way of each, and then
    // it takes what others may wait for.
    for owner in 0..WAITERS {
        let lock = range(FILE, owner, Write, owner, READERS + owner);
        assert_eq!(set(&mut table, 3, lock, 1 + owner), Ok(false));
        assert_eq!(set(&mut table, 3, range(OTHER, owner, Read, 0, LockRange::END), 0), Ok(true));
    }
    let once = usize::try_from(5 * WAITERS).unwrap();
    for owner in 0..3 {
        let lock = range(FILE, owner, Write, READERS, READERS + owner);
        let (outcome, looks) = steps::of(|| table.set(session(3), &lock, 1 + WAITERS + owner));
        assert_eq!(outcome, Ok(false), "one more of its threads");
        assert!(looks < once, "looked at {looks}");
    }
    let wanted = |owner| range(OTHER, owner, Write, 0, LockRange::END);
    assert_eq!(set(&mut table, 4, range(third, 1, Write, 0, 9), 0), Ok(true));
    let (outcome, looks) = steps::of(|| table.set(session(4), &wanted(1), 1));
    assert_eq!(outcome, Ok(false), "nobody waits for it");
    assert!(looks < once, "looked at {looks}");
    assert_eq!(set(&mut table, 4, range(FILE, 2, Read, 9, 9), 0), Ok(true));
    let (outcome, looks) = steps::of(|| table.set(session(4), &wanted(2), 2));
    assert_eq!(outcome, Err(ErrorKind::Deadlock), "all of them wait for it");
    assert!(looks < once, "looked at {looks}");
}

#[test]
fn a_queue_of_thousands_moves_on_by_looking_at_few_of_them() {
    let write = |owner| range(FILE, owner, Write, 0, LockRange::END);
    let flocks = |owner| flock(owner, Some(Write));
    for lock in [write as fn(u64) -> Lock, flocks] {
        let mut table = table();
        let waits = WAITS_PER_SESSION_MAX as u64;
        assert_eq!(set(&mut table, 1, lock(1), 0), Ok(true));
        for number in 1..=waits {
            assert_eq!(set(&mut table, 2, lock(number), number), Ok(false));
        }
        for number in (2..=waits).step_by(2) {
            let ((), looks) = steps::of(|| table.cancel(session(2), number));
            assert!(looks < FEW, "looked at {looks}");
        }
        assert_eq!(set(&mut table, 1, unlocked(lock(1)), 0), Ok(true));
        for number in (1..=waits).step_by(2) {
            assert_eq!(table.ended(session(2)), [number], "in the order of arrival");
            assert_eq!(set(&mut table, 2, lock(number), number), Ok(true));
            assert_eq!(set(&mut table, 2, unlocked(lock(number)), 0), Ok(true));
        }
        assert_eq!(table.counts(), Counts::default());
    }
}

#[test]
fn waits_of_one_owner_for_others_bytes_do_not_go_through_its_own() {
    let mut table = table();
    let (own, waits) = (20_000, 500);
    for number in 0..own {
        assert_eq!(set(&mut table, 1, range(FILE, 1, Read, 2 * number, 2 * number), 0), Ok(true));
    }
    let all = range(FILE, 2, Read, 0, LockRange::END);
    assert_eq!(set(&mut table, 2, all, 0), Ok(true));
    assert_eq!(set(&mut table, 3, range(FILE, 3, Read, 5, 5), 0), Ok(true));
    for number in 1..=waits {
        let lock = range(FILE, 1, Write, 0, 2 * own + number);
        assert_eq!(table.set(session(1), &lock, number), Ok(false));
    }
    // Each of them can be had as far as that one is concerned.
    let unlock = unlocked(range(FILE, 3, Read, 5, 5));
    let (outcome, looks) = steps::of(|| table.set(session(3), &unlock, 0));
    assert_eq!(outcome, Ok(true));
    assert!(looks < 300 * usize::try_from(waits).unwrap(), "looked at {looks}");
    assert!(table.ended(session(1)).is_empty());
}

#[test]
fn the_end_of_a_session_looks_at_what_it_has_and_not_at_it_all_for_each_file() {
    let mut table = table();
    let (files, pieces) = (4_000, 20_000);
    for number in 0..files {
        let inode = InodeId(100 + number);
        assert_eq!(table.set(session(2), &range(inode, 1, Read, 0, 9), 0), Ok(true));
        assert_eq!(table.set(session(1), &range(inode, 1, Read, 0, 9), 0), Ok(true));
        let wanted = range(inode, number, Write, 0, 9);
        assert_eq!(table.set(session(1), &wanted, 1 + number), Ok(false));
    }
    for number in 0..pieces {
        for of in [1, 2] {
            let lock = range(FILE, number, Read, 2 * number, 2 * number);
            assert_eq!(table.set(session(of), &lock, 0), Ok(true));
        }
    }
    let ((), looks) = steps::of(|| table.handle_close(session(2), InodeId(100)));
    assert!(looks < FEW, "looked at {looks}");
    let ((), looks) = steps::of(|| table.handle_end(session(1)));
    let has = usize::try_from(2 * files + pieces).unwrap();
    assert!(looks < 20 * has, "looked at {looks}");
    assert_eq!(table.counts().locks as u64, files - 1 + pieces);
}

#[test]
fn a_search_for_a_deadlock_that_takes_too_long_finds_none() {
    let owners = 200;
    let wait_in_a_circle = |looks: usize| {
        let mut table = LockTable::new(Limits { looks, ..Limits::default() });
        let byte = |owner, byte| range(FILE, owner, Write, byte, byte);
        for owner in 0..owners {
            assert_eq!(table.set(session(1), &byte(owner, owner), 0), Ok(true));
        }
        let mut wait = |owner| {
            let lock = byte(owner, (owner + 1) % owners);
            steps::of(|| table.set(session(1), &lock, 1 + owner))
        };
        for owner in 1..owners {
            assert_eq!(wait(owner).0, Ok(false));
        }
        let (outcome, looks) = wait(0);
        table.cancel(session(1), 1);
        assert_eq!(table.counts().waits as u64, owners - 1, "it can be given up");
        (outcome, looks)
    };
    assert_eq!(wait_in_a_circle(Limits::default().looks).0, Err(ErrorKind::Deadlock));
    let (outcome, looks) = wait_in_a_circle(50);
    assert_eq!(outcome, Ok(false), "it waits");
    assert!(looks < 50 * 140, "looked at {looks}");
}
