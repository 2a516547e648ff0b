//! What the simulated disk may and may not do with writes.

use std::{collections::BTreeSet, sync::Arc};

use crate::disk::{Backing, BufferPool, DiskError, DiskQueue, Operation, Piece};

use super::{Flush, SECTOR, SimulatedDisk};

const PAGE: usize = 4096;

async fn write(queue: &DiskQueue, offset: u64, byte: u8) -> Result<(), DiskError> {
    let mut buffer = BufferPool::new(0).acquire(PAGE).await;
    buffer.as_mut_slice().fill(byte);
    queue.write(vec![Piece { offset, range: 0..PAGE }], Arc::new(buffer)).await
}

async fn read(queue: &DiskQueue, offset: u64) -> Vec<u8> {
    let buffer = BufferPool::new(0).acquire(PAGE).await;
    let piece = Piece { offset, range: 0..PAGE };
    queue.read(vec![piece], buffer).await.unwrap().as_slice().to_vec()
}

#[tokio::test]
async fn what_was_synced_survives_and_what_was_not_is_old_new_or_torn_at_sectors() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..200 {
        let disk = SimulatedDisk::new(1 << 20, seed);
        let queue = disk.queue();
        write(&queue, 0, 1).await.unwrap();
        write(&queue, 4096, 1).await.unwrap();
        queue.sync().await.unwrap();
        write(&queue, 4096, 2).await.unwrap();
        assert_eq!(read(&queue, 4096).await, [2; PAGE], "a reader sees the newest write");
        disk.restart();
        assert_eq!(read(&queue, 0).await, [1; PAGE], "seed {seed}");
        let found = read(&queue, 4096).await;
        let garbage = found[..SECTOR].iter().any(|byte| !(1..=2).contains(byte));
        for sector in found.chunks(SECTOR).skip(usize::from(garbage)) {
            assert!(sector == [1; SECTOR] || sector == [2; SECTOR], "seed {seed}");
        }
        outcomes.insert(match (garbage, found == [1; PAGE], found == [2; PAGE]) {
            (true, ..) => "garbage",
            (_, true, _) => "old",
            (_, _, true) => "new",
            _ => "torn",
        });
    }
    assert_eq!(outcomes.len(), 4, "every outcome comes up: {outcomes:?}");
}

#[tokio::test]
async fn unsynced_writes_may_arrive_in_any_order() {
    let mut only_the_second = 0;
    let mut the_first_won = 0;
    for seed in 0..200 {
        let disk = SimulatedDisk::new(1 << 20, seed);
        let queue = disk.queue();
        write(&queue, 0, 1).await.unwrap();
        write(&queue, 4096, 1).await.unwrap();
        write(&queue, 8192, 1).await.unwrap();
        write(&queue, 8192, 2).await.unwrap();
        disk.restart();
        let (first, second) = (read(&queue, 0).await, read(&queue, 4096).await);
        only_the_second += usize::from(first == [0; PAGE] && second == [1; PAGE]);
        the_first_won += usize::from(read(&queue, 8192).await == [1; PAGE]);
    }
    assert!(only_the_second > 0 && the_first_won > 0);
}

#[tokio::test]
async fn the_same_seed_and_requests_give_the_same_disk() {
    let mut found = Vec::new();
    for _ in 0..2 {
        let disk = SimulatedDisk::new(1 << 20, 77);
        let queue = disk.queue();
        disk.cut_power_in(30);
        let mut at = 0;
        while write(&queue, at % 10 * 4096, u8::try_from(at).unwrap() + 1).await.is_ok() {
            at += 1;
        }
        assert_eq!(at, 30);
        assert!(disk.is_off());
        disk.restart();
        let mut pages = Vec::new();
        for page in 0..10 {
            pages.push(read(&queue, page * 4096).await);
        }
        found.push(pages);
    }
    assert_eq!(found[0], found[1]);
}

#[tokio::test]
async fn a_lying_flush_is_found_out_by_a_cut() {
    let mut lost = 0;
    for seed in 0..50 {
        let disk = SimulatedDisk::new(1 << 20, seed);
        let queue = disk.queue();
        disk.set_flush(Flush::Lying);
        write(&queue, 0, 1).await.unwrap();
        queue.sync().await.unwrap();
        disk.restart();
        lost += usize::from(read(&queue, 0).await != [1; PAGE]);
    }
    assert!(lost > 0);
}

#[tokio::test]
async fn errors_and_rot_come_where_they_were_asked_for() {
    let disk = SimulatedDisk::new(1 << 20, 1);
    let queue = disk.queue();
    disk.fail(Operation::Write, 1, libc::ENOSPC);
    write(&queue, 0, 1).await.unwrap();
    assert!(matches!(write(&queue, 0, 2).await, Err(DiskError::NoSpace)));
    write(&queue, 0, 3).await.unwrap();
    disk.fail(Operation::Sync, 0, libc::EIO);
    assert!(matches!(queue.sync().await, Err(DiskError::Io { operation: "sync", .. })));
    assert!(matches!(queue.sync().await, Err(DiskError::SyncFailed)), "it proves nothing");
    queue.sync_after_failure().await.unwrap();
    disk.flip(100, 3);
    let mut expected = [3; PAGE];
    expected[100] ^= 8;
    assert_eq!(read(&queue, 0).await, expected);
    assert_eq!(disk.tally().changes, 6);
}

#[tokio::test]
async fn a_sync_that_fails_fails_those_beside_it_and_those_to_come_also_unheard() {
    for seed in 0..50 {
        let disk = SimulatedDisk::new(1 << 20, seed);
        disk.set_delays(true);
        let queue = disk.queue();
        // Which of them that is follows from the seed.
        disk.fail(Operation::Sync, seed % 2, libc::EIO);
        let (first, second) = futures::join!(queue.sync(), queue.sync());
        assert!(first.is_err() && second.is_err(), "seed {seed}: {first:?} {second:?}");
        assert!(matches!(queue.sync().await, Err(DiskError::SyncFailed)), "seed {seed}");

        let queue = disk.queue();
        queue.sync().await.unwrap();
        disk.fail(Operation::Sync, 0, libc::EIO);
        let mut unheard = Box::pin(queue.sync());
        assert!(futures::poll!(&mut unheard).is_pending());
        drop(unheard);
        queue.drain().await;
        assert!(matches!(queue.sync().await, Err(DiskError::SyncFailed)), "seed {seed}");
    }
}

#[tokio::test]
async fn a_queue_whose_changes_have_ended_reads_and_does_nothing_else() {
    let disk = SimulatedDisk::new(1 << 20, 1);
    disk.set_delays(true);
    let (queue, next) = (disk.queue(), disk.queue());
    let mut begun = Box::pin(write(&queue, 0, 1));
    assert!(futures::poll!(&mut begun).is_pending());
    queue.end_changes().await;
    let changes = disk.tally().changes;
    begun.await.unwrap();
    assert!(matches!(write(&queue, 0, 2).await, Err(DiskError::Stopped)));
    assert!(matches!(queue.sync().await, Err(DiskError::Stopped)));
    assert_eq!(disk.tally().changes, changes);
    assert_eq!(read(&queue, 0).await, [1; PAGE]);
    write(&next, 0, 3).await.unwrap();
    next.sync().await.unwrap();
}

#[tokio::test]
async fn a_growth_that_no_sync_covered_may_be_lost_with_what_was_written_there() {
    let mut lengths = BTreeSet::new();
    for seed in 0..100 {
        let disk = Arc::new(SimulatedDisk::growing(4 << 12, seed));
        let queue = disk.queue();
        let grow = |pages: u64| Arc::clone(&disk).grow((pages - 1) << 12, pages << 12);
        grow(1).await.unwrap();
        write(&queue, 0, 1).await.unwrap();
        queue.sync().await.unwrap();
        grow(2).await.unwrap();
        grow(3).await.unwrap();
        write(&queue, 8192, 1).await.unwrap();
        disk.restart();
        let len = disk.len_bytes().unwrap();
        lengths.insert(len >> 12);
        assert_eq!(read(&queue, 0).await, [1; PAGE]);
        if len < 3 << 12 {
            for pages in (len >> 12) + 1..=3 {
                grow(pages).await.unwrap();
            }
            assert_eq!(read(&queue, 8192).await, [0; PAGE], "what is new reads as zeros");
        }
        grow(4).await.unwrap();
        assert_eq!(disk.room_bytes().unwrap(), 0);
        assert!(matches!(grow(5).await, Err(DiskError::NoSpace)));
        assert_eq!(disk.len_bytes().unwrap(), 4 << 12, "nothing is changed");
    }
    assert_eq!(lengths, BTreeSet::from([1, 2, 3]), "each length comes up");
}

/// What a disk whose requests take their time has after some writes, a sync and an end; and in
/// which order the requests were done.
async fn with_delays(seed: u64, is_cut: bool) -> (Vec<usize>, Vec<u8>) {
    let disk = SimulatedDisk::new(1 << 20, seed);
    disk.set_delays(true);
    let queue = disk.queue();
    let order = std::sync::Mutex::new(Vec::new());
    write(&queue, 0, 9).await.unwrap();
    let requests = (1..=6_u8).map(|nth| {
        let (queue, order) = (&queue, &order);
        async move {
            match nth {
                6 => queue.sync().await.unwrap(),
                _ => write(queue, u64::from(nth) * 4096, nth).await.unwrap(),
            }
            order.lock().unwrap().push(usize::from(nth));
        }
    });
    futures::future::join_all(requests).await;
    let late = write(&queue, 6 * 4096, 6);
    let mut late = std::pin::pin!(late);
    assert!(futures::poll!(&mut late).is_pending(), "it takes its time");
    match is_cut {
        true => disk.restart(),
        false => disk.begin_process(),
    }
    assert!(matches!(late.await, Err(DiskError::Stopped)));
    disk.set_delays(false);
    let queue = disk.queue();
    let mut found = Vec::new();
    for page in 0..7 {
        found.push(read(&queue, page * 4096).await[0]);
    }
    (order.into_inner().unwrap(), found)
}

#[tokio::test]
async fn requests_that_take_their_time_overtake_each_other_as_the_seed_says() {
    let (mut orders, mut ends, mut late) = (BTreeSet::new(), BTreeSet::new(), BTreeSet::new());
    for seed in 0..300 {
        let (order, found) = with_delays(seed, true).await;
        assert_eq!((order.clone(), found.clone()), with_delays(seed, true).await, "seed {seed}");
        assert_eq!(found[0], 9, "seed {seed}: it was complete before the sync was made");
        // One that came back before the sync did is not durable by that.
        ends.insert(found[1..6].to_vec());
        orders.insert(order);
        let (_, found) = with_delays(seed, false).await;
        assert_eq!(found[..6], [9, 1, 2, 3, 4, 5], "seed {seed}: what is complete survives a kill");
        late.insert(found[6]);
    }
    assert!(orders.len() > 50, "{}", orders.len());
    assert!(ends.contains(&vec![0; 5]) && ends.contains(&vec![1, 2, 3, 4, 5]), "{ends:?}");
    assert_eq!(late.len(), 2, "what was under way at a kill is done or not");
}

#[tokio::test]
async fn a_process_that_is_gone_does_nothing_to_the_disk() {
    let disk = SimulatedDisk::new(1 << 20, 1);
    let gone = disk.queue();
    disk.begin_process();
    assert!(matches!(write(&gone, 0, 1).await, Err(DiskError::Stopped)));
    assert!(matches!(gone.sync().await, Err(DiskError::Stopped)));
    write(&disk.queue(), 0, 2).await.unwrap();
    assert_eq!(read(&disk.queue(), 0).await[0], 2);
}
