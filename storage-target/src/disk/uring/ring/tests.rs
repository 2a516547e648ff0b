//! What the kernel may answer, without the kernel.

use std::fs::File;

use rustix::fs::FlockOperation;
use tokio::sync::oneshot;

use super::*;
use crate::disk::{BufferPool, Held, lock};

async fn in_flight(operation: Operation) -> InFlight {
    let buffer = BufferPool::new(0).acquire(3 * 4096).await;
    let pieces = match operation {
        Operation::Sync => Vec::new(),
        _ => vec![Piece { offset: 0, range: 0..3 * 4096 }],
    };
    let (reply, _) = oneshot::channel();
    let buffer = Held::Exclusive(buffer);
    let request = Request { operation, pieces, buffer, reply, sync: None, _permit: None };
    let runtime = runtime::Handle::current().id();
    let (arena, alone, done) = (None, false, vec![0]);
    InFlight { request, runtime, arena, alone, done, outstanding: 1, error: None }
}

#[tokio::test]
async fn short_transfers_and_interruptions_are_continued_at_whole_pages() {
    let mut read = in_flight(Operation::Read).await;
    let answers = [(-libc::EINTR, 0), (5000, 4096), (-libc::ECANCELED, 4096), (4096, 8192)];
    for (answer, done) in answers {
        assert!(!read.record(0, answer), "{answer}");
        assert_eq!(read.done[0], done);
    }
    assert!(read.record(0, 4096) && read.error.is_none());
    let mut sync = in_flight(Operation::Sync).await;
    assert!(!sync.record(0, -libc::EINTR));
    assert!(sync.record(0, 0) && sync.error.is_none());
}

#[tokio::test]
async fn the_end_and_a_failure_end_a_transfer() {
    for answer in [0, 100] {
        let mut read = in_flight(Operation::Read).await;
        assert!(!read.record(0, 4096));
        assert!(read.record(0, answer), "{answer}");
        assert!(matches!(read.error, Some(DiskError::Io { operation: "read", .. })));
    }
    let mut write = in_flight(Operation::Write).await;
    assert!(write.record(0, -libc::ENOSPC));
    assert!(matches!(write.error, Some(DiskError::NoSpace)));
}

const PAGE: usize = 4096;

/// A ring over a file of its own; `None` where the kernel allows none, as in some containers.
fn ring() -> Option<(tempfile::TempDir, Ring)> {
    let directory = tempfile::tempdir().unwrap();
    let file = DataFile::open(&directory.path().join("store")).unwrap();
    Some((directory, Ring::new(file).ok()?))
}

#[test]
fn a_ring_keeps_the_lock_of_its_file_until_the_kernel_has_taken_it_apart() {
    let Some((directory, mut ring)) = ring() else { return };
    let path = directory.path().join("store");
    lock::lock(ring.file.as_ref().unwrap().file(), &path).unwrap();
    // As at the end of a process, whose descriptors go before its rings.
    ring.file = None;
    let next = File::open(&path).unwrap();
    let early = rustix::fs::flock(&next, FlockOperation::NonBlockingLockExclusive);
    assert!(early.is_err(), "what is registered keeps the description, and that the lock");
    drop(ring);
    lock::lock(&next, &path).unwrap();
}

/// A ring with writes of two pages each that lie one after the other, as one under the kernel.
async fn joined(count: u64) -> Option<(tempfile::TempDir, Ring)> {
    let (directory, mut ring) = ring()?;
    for nth in 0..count {
        let request = write(nth * 2 * PAGE as u64).await;
        drop(ring.admit(request, runtime::Handle::current().id()));
    }
    assert_eq!(ring.joinable() as u64, count);
    let pieces: Vec<_> = ring.backlog.drain(..).collect();
    let _entry = ring.entry_of_joined(pieces);
    Some((directory, ring))
}

async fn write(offset: u64) -> Request {
    let buffer = BufferPool::new(0).acquire(2 * PAGE).await;
    let (reply, _) = oneshot::channel();
    let pieces = vec![Piece { offset, range: 0..2 * PAGE }];
    let (operation, buffer) = (Operation::Write, Held::Exclusive(buffer));
    Request { operation, pieces, buffer, reply, sync: None, _permit: None }
}

/// The requests that are over, by place, and those that go to the kernel again.
fn outcome(ring: &mut Ring, result: i32) -> (Vec<u64>, Vec<(usize, usize)>) {
    let mut finished = Vec::new();
    ring.finish_joined(0, result, &mut finished);
    assert!(finished.iter().all(|one| one.error.is_none()));
    let places = finished.iter().map(|one| one.request.pieces[0].offset / (2 * PAGE) as u64);
    (places.collect(), ring.backlog.iter().copied().collect())
}

#[tokio::test]
async fn writes_that_went_as_one_are_done_together() {
    let Some((_directory, mut ring)) = joined(3).await else { return };
    assert_eq!(outcome(&mut ring, 6 * 4096), (vec![0, 1, 2], vec![]));
    assert!(ring.joined.iter().all(Option::is_none) && ring.vacant.len() == 3);
}

#[tokio::test]
async fn of_writes_that_went_as_one_the_rest_goes_again_by_itself() {
    let Some((_directory, mut ring)) = joined(3).await else { return };
    // The second has one page of two: it goes again as a whole.
    let (done, again) = outcome(&mut ring, 3 * 4096);
    assert_eq!((done, again.len()), (vec![0], 2));
    assert_eq!(ring.joinable(), 1, "each by itself");
    let (slot, piece) = ring.backlog.pop_front().unwrap();
    let over = ring.finish_piece(slot, piece, -libc::EIO).unwrap();
    assert!(matches!(over.error, Some(DiskError::Io { operation: "write", offset: 8192, .. })));
    let (slot, piece) = ring.backlog.pop_front().unwrap();
    assert!(ring.finish_piece(slot, piece, 8192).unwrap().error.is_none());
}

#[tokio::test]
async fn an_error_of_writes_that_went_as_one_is_told_to_none_before_it_is_known_whose_it_is() {
    for answer in [-libc::EIO, -libc::ENOSPC, -libc::EINTR, 0] {
        let Some((_directory, mut ring)) = joined(4).await else { return };
        let (done, again) = outcome(&mut ring, answer);
        assert_eq!((done.len(), again.len()), (0, 4), "{answer}");
        assert_eq!(ring.joinable(), 1);
    }
}

#[tokio::test]
async fn reads_gaps_and_what_is_too_much_go_by_themselves() {
    let Some((_directory, mut ring)) = ring() else { return };
    let id = runtime::Handle::current().id();
    for offset in [0, 4 * PAGE as u64, 6 * PAGE as u64] {
        drop(ring.admit(write(offset).await, id));
    }
    assert_eq!(ring.joinable(), 1, "there is a gap behind the first");
    ring.backlog.pop_front();
    assert_eq!(ring.joinable(), 2);
    ring.backlog.clear();
    for nth in 0..200 {
        drop(ring.admit(write(nth * 2 * PAGE as u64).await, id));
    }
    assert_eq!(ring.joinable(), JOINED_PIECES_MAX);
}

#[tokio::test]
async fn much_that_waits_is_handed_over_without_a_turn() {
    let Some((_directory, mut ring)) = ring() else { return };
    let id = runtime::Handle::current().id();
    let mut early = Vec::new();
    for nth in 0..32 {
        drop(ring.admit(write(nth * 2 * PAGE as u64).await, id));
        ring.hand_over_early(Operation::Write);
        if ring.backlog.is_empty() {
            early.push(nth);
        }
    }
    assert_eq!(early, [15, 31], "each time 128 KiB");
    assert_eq!(ring.drain().len(), 32);
    for nth in 0..9 {
        let request = Request { operation: Operation::Read, ..write(nth * 2 * PAGE as u64).await };
        drop(ring.admit(request, id));
        ring.hand_over_early(Operation::Read);
        assert_eq!(ring.backlog.len() as u64, (nth + 1) % 8);
    }
    assert_eq!(ring.drain().len(), 9);
}
