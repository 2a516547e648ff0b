//! The rules one by one; then random steps beside a map of bytes.

mod bounds;
mod model;

use millrace_types::{LockKind, LockRange};

use super::*;

const FILE: InodeId = InodeId(5);
const OTHER: InodeId = InodeId(6);

fn table() -> LockTable {
    LockTable::new(Limits::default())
}

fn session(number: u64) -> SessionId {
    SessionId(number)
}

fn range(inode: InodeId, owner: u64, kind: LockKind, start: u64, last: u64) -> Lock {
    let range = LockRange { start, last };
    let (space, kind, process) =
        (LockSpace::Range, Some(kind), 100 + u32::try_from(owner).unwrap());
    Lock { inode, space, owner, kind, range, process }
}

fn flock(owner: u64, kind: Option<LockKind>) -> Lock {
    let (space, range) = (LockSpace::Flock, LockRange::WHOLE);
    Lock { inode: FILE, space, owner, kind, range, process: 1 }
}

fn unlocked(lock: Lock) -> Lock {
    Lock { kind: None, ..lock }
}

use LockKind::{Read, Write};

#[test]
fn readers_share_and_a_writer_excludes_whatever_session_they_are_of() {
    let mut table = table();
    for number in [1, 2] {
        let lock = range(FILE, 7, Read, 0, 99);
        assert_eq!(table.set(session(number), &lock, 0), Ok(true));
    }
    let write = range(FILE, 8, Write, 99, 200);
    assert_eq!(table.set(session(1), &write, 0), Err(ErrorKind::Locked));
    assert_eq!(table.set(session(1), &range(FILE, 8, Write, 100, 200), 0), Ok(true));
    assert_eq!(table.set(session(3), &range(OTHER, 8, Write, 0, 200), 0), Ok(true));
    assert_eq!(table.counts(), Counts { locks: 4, waits: 0 });
}

#[test]
fn what_is_in_the_way_is_told_with_its_process_within_a_session_only() {
    let mut table = table();
    assert_eq!(table.set(session(1), &range(FILE, 7, Write, 10, LockRange::END), 0), Ok(true));
    let conflict = |number, owner| table.test(session(number), &range(FILE, owner, Read, 0, 20));
    let expected = LockConflict {
        range: LockRange { start: 10, last: LockRange::END },
        kind: Write,
        process: 107,
    };
    assert_eq!(conflict(1, 8), Some(expected));
    assert_eq!(conflict(2, 7), Some(LockConflict { process: 0, ..expected }));
    assert_eq!(conflict(1, 7), None, "nobody is in his own way");
}

#[test]
fn waits_are_served_in_the_order_of_arrival_and_claimed_by_their_numbers() {
    let mut table = table();
    assert_eq!(table.set(session(1), &range(FILE, 1, Write, 0, 9), 0), Ok(true));
    for (number, kind) in [(2, Write), (3, Read), (4, Read)] {
        assert_eq!(table.set(session(number), &range(FILE, 1, kind, 0, 9), 40 + number), Ok(false));
    }
    assert!(table.poll_news().is_empty());
    table.set(session(1), &unlocked(range(FILE, 1, Write, 0, 9)), 0).unwrap();
    assert_eq!(table.poll_news(), BTreeSet::from([session(2)]));
    assert_eq!(table.ended(session(2)), [42]);
    let late = range(FILE, 9, Read, 3, 4);
    assert_eq!(table.set(session(9), &late, 0), Err(ErrorKind::Locked), "it is reserved");
    assert_eq!(table.set(session(2), &range(FILE, 1, Write, 0, 9), 42), Ok(true));
    assert!(table.ended(session(2)).is_empty());
    table.handle_end(session(2));
    assert_eq!(table.poll_news(), BTreeSet::from([session(3), session(4)]), "both read");
    assert_eq!(table.set(session(3), &range(FILE, 1, Read, 0, 9), 43), Ok(true));
    assert_eq!(table.counts(), Counts { locks: 1, waits: 1 });
}

#[test]
fn a_wait_that_is_given_up_leaves_what_was_held_before_and_lets_the_next_one_in() {
    let mut table = table();
    let read = |owner| range(FILE, owner, Read, 0, 9);
    let write = |owner| range(FILE, owner, Write, 0, 9);
    assert_eq!(table.set(session(1), &read(1), 0), Ok(true));
    assert_eq!(table.set(session(1), &read(2), 0), Ok(true));
    assert_eq!(table.set(session(1), &write(1), 7), Ok(false), "an upgrade waits");
    table.set(session(1), &unlocked(read(2)), 0).unwrap();
    assert_eq!(table.ended(session(1)), [7], "reserved");
    assert_eq!(table.set(session(2), &read(3), 8), Ok(false));
    table.cancel(session(1), 7);
    table.cancel(session(1), 7);
    assert_eq!(table.ended(session(2)), [8]);
    assert!(table.holds(session(1), &read(1)) && !table.holds(session(1), &write(1)));
}

#[test]
fn a_number_that_waits_for_something_else_is_refused() {
    let mut table = table();
    assert_eq!(table.set(session(1), &range(FILE, 1, Write, 0, 9), 0), Ok(true));
    assert_eq!(table.set(session(2), &range(FILE, 1, Write, 0, 9), 7), Ok(false));
    let other = range(FILE, 1, Write, 0, 8);
    assert_eq!(table.set(session(2), &other, 7), Err(ErrorKind::InvalidArgument));
    assert_eq!(table.set(session(2), &range(FILE, 1, Write, 0, 9), 7), Ok(false), "it waits on");
}

#[test]
fn converting_a_flock_costs_the_old_one_as_on_linux() {
    let mut table = table();
    for owner in [1, 2] {
        assert_eq!(table.set(session(1), &flock(owner, Some(Read)), 0), Ok(true));
    }
    assert_eq!(table.set(session(1), &flock(3, Some(Write)), 9), Ok(false));
    assert_eq!(table.set(session(1), &flock(1, Some(Write)), 0), Err(ErrorKind::Locked));
    assert!(!table.holds(session(1), &flock(1, Some(Read))), "it is gone");
    table.set(session(1), &flock(2, None), 0).unwrap();
    assert_eq!(table.set(session(1), &flock(3, Some(Write)), 9), Ok(true));
    assert_eq!(table.set(session(1), &flock(3, Some(Read)), 0), Ok(true));
    assert_eq!(table.set(session(1), &flock(1, Some(Read)), 0), Ok(true));
    let fcntl = range(FILE, 1, Write, 0, LockRange::END);
    assert_eq!(table.set(session(2), &fcntl, 0), Ok(true), "flock and fcntl do not meet");
}

#[test]
fn a_circle_of_waits_is_a_deadlock_over_files_and_sessions_and_flock_is_left_alone() {
    let mut table = table();
    let files = [InodeId(1), InodeId(2), InodeId(3)];
    for (number, file) in (1..).zip(files) {
        assert_eq!(table.set(session(number), &range(file, 1, Write, 0, 9), 0), Ok(true));
    }
    assert_eq!(table.set(session(1), &range(files[1], 1, Write, 0, 9), 1), Ok(false));
    assert_eq!(table.set(session(2), &range(files[2], 1, Read, 0, 9), 1), Ok(false));
    let last = range(files[0], 1, Read, 5, 5);
    assert_eq!(table.set(session(3), &last, 1), Err(ErrorKind::Deadlock));
    assert_eq!(table.set(session(4), &last, 1), Ok(false), "somebody else may wait");

    let flock = |inode, owner| Lock { inode, ..flock(owner, Some(Write)) };
    assert_eq!(table.set(session(1), &flock(files[0], 1), 0), Ok(true));
    assert_eq!(table.set(session(2), &flock(files[1], 2), 0), Ok(true));
    assert_eq!(table.set(session(1), &flock(files[1], 1), 5), Ok(false));
    assert_eq!(table.set(session(2), &flock(files[0], 2), 5), Ok(false), "as on Linux");
}

#[test]
fn a_circle_that_a_grant_closes_fails_the_wait_that_is_in_it() {
    let mut table = table();
    let lock = |file, owner, kind| range(file, owner, kind, 0, 9);
    // One owner has two threads: one waits for what owner 2 has, the other for what owner 3 has.
    assert_eq!(table.set(session(2), &lock(FILE, 2, Write), 0), Ok(true));
    assert_eq!(table.set(session(3), &lock(OTHER, 3, Write), 0), Ok(true));
    assert_eq!(table.set(session(1), &lock(FILE, 1, Write), 1), Ok(false));
    assert_eq!(table.set(session(1), &lock(OTHER, 1, Write), 2), Ok(false));
    assert_eq!(table.set(session(2), &lock(OTHER, 2, Write), 1), Ok(false));
    table.handle_end(session(3));
    assert_eq!(table.ended(session(1)), [1, 2]);
    assert_eq!(table.set(session(1), &lock(OTHER, 1, Write), 2), Ok(true));
    assert_eq!(table.set(session(1), &lock(FILE, 1, Write), 1), Err(ErrorKind::Deadlock));
    assert!(table.ended(session(1)).is_empty());
}

#[test]
fn what_a_session_may_hold_and_wait_for_is_bounded_and_unlocking_always_works() {
    let (locks_per_session, locks, waits_per_session, waits) = (6, 10, 2, 3);
    let limits = Limits { locks_per_session, locks, waits_per_session, waits, ..Limits::default() };
    let mut table = LockTable::new(limits);
    for place in 0..5 {
        let lock = range(FILE, 1, Write, 10 * place, 10 * place + 5);
        assert_eq!(table.set(session(1), &lock, 0), Ok(true));
    }
    let more = range(FILE, 1, Write, 90, 95);
    assert_eq!(table.set(session(1), &more, 0), Err(ErrorKind::NoLocks));
    let split = unlocked(range(FILE, 1, Write, 2, 3));
    assert_eq!(table.set(session(1), &split, 0), Ok(true), "there is room for one more");
    let split = unlocked(range(FILE, 1, Write, 12, 13));
    assert_eq!(table.set(session(1), &split, 0), Err(ErrorKind::NoLocks));
    for (number, outcome) in [(1, Ok(false)), (2, Ok(false)), (3, Err(ErrorKind::NoLocks))] {
        let lock = range(FILE, number, Write, 0, 9);
        assert_eq!(table.set(session(2), &lock, number), outcome);
    }
    assert_eq!(table.set(session(3), &range(FILE, 1, Write, 0, 9), 1), Ok(false));
    let all = range(FILE, 1, Write, 0, 9);
    assert_eq!(table.set(session(4), &all, 1), Err(ErrorKind::NoLocks));
    for place in 0..5 {
        let lock = unlocked(range(FILE, 1, Write, 10 * place, 10 * place + 5));
        assert_eq!(table.set(session(1), &lock, 0), Ok(true));
    }
    assert_eq!(table.counts(), Counts { locks: 0, waits: 3 });
}

#[test]
fn nothing_is_left_of_a_session_or_of_a_file_that_is_closed_for_good() {
    let mut table = table();
    assert_eq!(table.set(session(1), &range(FILE, 1, Write, 0, 9), 0), Ok(true));
    assert_eq!(table.set(session(1), &range(OTHER, 1, Write, 0, 9), 0), Ok(true));
    assert_eq!(table.set(session(1), &flock(1, Some(Read)), 0), Ok(true));
    assert_eq!(table.set(session(2), &range(FILE, 1, Write, 0, 9), 3), Ok(false));
    table.handle_close(session(1), FILE);
    assert_eq!(table.ended(session(2)), [3]);
    table.handle_close(session(2), FILE);
    assert_eq!(table.counts(), Counts { locks: 1, waits: 0 });
    table.handle_end(session(1));
    table.handle_end(session(1));
    assert!(table.inodes.is_empty() && table.sessions.is_empty() && table.owners.is_empty());
    assert_eq!((table.pieces, table.waits), (0, 0));
}
