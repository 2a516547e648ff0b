//! The journal by itself, and together with the index through cuts of power.

mod ahead;
mod ended;
mod power;
mod waiting;

use bytes::Bytes;
use millrace_types::TargetId;

use super::{Journal, JournalError, Options, Replayed, Ring};
use crate::{
    disk::{BufferPool, Operation, simulated::SimulatedDisk},
    format::{batch::BootId, batch::Position},
};

const RING: Ring = Ring { first: 8, pages: 256 };

fn options(disk: &SimulatedDisk) -> Options {
    Options {
        target: TargetId([7; 8]),
        boot: BootId([1; 16]),
        disk: disk.queue(),
        pool: BufferPool::new(0),
        ring: RING,
    }
}

async fn open(disk: &SimulatedDisk, start: Position) -> Result<(Journal, Replayed), JournalError> {
    Journal::open(options(disk), start).await
}

fn blank_disk() -> SimulatedDisk {
    SimulatedDisk::new(16 << 20, 1)
}

fn record(number: u64, len: usize) -> Bytes {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.resize(len.max(8), u8::try_from(number % 251).unwrap());
    Bytes::from(bytes)
}

#[tokio::test]
async fn records_come_back_in_order_with_their_sequences() {
    let disk = blank_disk();
    let (journal, replayed) = open(&disk, RING.start()).await.unwrap();
    assert_eq!((replayed.records.len(), replayed.boot), (0, None));
    for number in 1..=100 {
        assert_eq!(journal.append(record(number, 900)).unwrap(), number);
    }
    journal.sync(40).await.unwrap();
    assert_eq!(disk.tally().syncs, 1, "what was appended before comes along");
    journal.append(record(101, 10)).unwrap();
    journal.write(101).await.unwrap();
    drop(journal);
    // Killed: what was written is there, although nobody synced it.
    let (journal, replayed) = open(&disk, RING.start()).await.unwrap();
    let expected: Vec<_> = (1..=101)
        .map(|number| (number, record(number, if number > 100 { 10 } else { 900 })))
        .collect();
    assert_eq!(replayed.records, expected);
    assert_eq!(replayed.committed_end, 101, "the last batch knew of the sync");
    assert_eq!(replayed.boot, Some(BootId([1; 16])));
    assert_eq!(journal.next_sequence(), 102);
}

#[tokio::test]
async fn the_ring_goes_round_as_long_as_it_is_released() {
    let disk = blank_disk();
    let (mut journal, _) = open(&disk, RING.start()).await.unwrap();
    let mut start = RING.start();
    for number in 1..=3000_u64 {
        // Lengths that leave gaps at the ring's end.
        let len = usize::try_from(number * 7919 % 40_000).unwrap();
        journal.append(record(number, len)).unwrap();
        if number % 2 == 0 {
            journal.write(number).await.unwrap();
        }
        if number % 5 == 0 {
            journal.sync(number).await.unwrap();
            start = journal.position();
            journal.release(start);
        }
        if number % 97 == 0 {
            journal.sync(number).await.unwrap();
            let expected_next = journal.next_sequence();
            drop(journal);
            let replayed;
            (journal, replayed) = open(&disk, start).await.unwrap();
            assert_eq!(journal.next_sequence(), expected_next);
            for (sequence, bytes) in replayed.records {
                assert_eq!(bytes[..8], sequence.to_le_bytes());
            }
        }
    }
    assert!(disk.tally().bytes_written > 20 * RING.pages * 4096, "many times round");
}

#[tokio::test]
async fn a_full_ring_refuses_and_takes_records_again_when_released() {
    let disk = blank_disk();
    let (journal, _) = open(&disk, RING.start()).await.unwrap();
    let mut newest = 0;
    let error = loop {
        match journal.append(record(newest + 1, 4000)) {
            Ok(sequence) => newest = sequence,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, JournalError::Full), "{error}");
    journal.sync(newest).await.unwrap();
    let start = journal.position();
    journal.release(start);
    assert_eq!(journal.used_pages(), 0);
    assert_eq!(journal.append(record(newest + 1, 4000)).unwrap(), newest + 1);
    journal.sync(newest + 1).await.unwrap();
    let (_, replayed) = open(&disk, start).await.unwrap();
    assert_eq!(replayed.records, [(newest + 1, record(newest + 1, 4000))]);
}

#[tokio::test]
async fn many_who_wait_share_few_writes_and_syncs() {
    let disk = blank_disk();
    let (journal, _) = open(&disk, RING.start()).await.unwrap();
    let waiting = (1..=100).map(|number| {
        let journal = journal.clone();
        async move {
            let sequence = journal.append(record(number, 100)).unwrap();
            journal.sync(sequence).await.unwrap();
        }
    });
    futures::future::join_all(waiting).await;
    let tally = disk.tally();
    assert!(tally.syncs <= 3 && tally.changes <= 6, "{tally:?}");
}

#[tokio::test]
async fn damage_before_a_durable_record_is_told_from_a_torn_end() {
    let fill = |disk: SimulatedDisk| async move {
        let (journal, _) = open(&disk, RING.start()).await.unwrap();
        for number in 1..=20 {
            journal.append(record(number, 100)).unwrap();
            journal.sync(number).await.unwrap();
        }
        disk
    };
    for batch in 0..20 {
        let disk = fill(blank_disk()).await;
        disk.flip((RING.first + batch) * 4096 + 90, 1);
        match (batch, open(&disk, RING.start()).await) {
            // Nothing tells a durable last record from one that was being written.
            (19, Ok((_, replayed))) => assert_eq!(replayed.records.len(), 19),
            (_, Err(JournalError::Damaged { sequence })) => assert_eq!(sequence, batch + 1),
            (_, other) => panic!("batch {batch}: {other:?}"),
        }
    }
}

#[tokio::test]
async fn an_old_batch_never_follows_a_new_one() {
    let disk = blank_disk();
    let (journal, _) = open(&disk, RING.start()).await.unwrap();
    for number in 1..=3 {
        journal.append(record(number, 100)).unwrap();
        journal.write(number).await.unwrap();
    }
    drop(journal);
    // The second of three batches is gone, as a loss of power may leave it.
    disk.queue().sync().await.unwrap();
    disk.flip((RING.first + 1) * 4096 + 90, 1);
    let (journal, replayed) = open(&disk, RING.start()).await.unwrap();
    assert_eq!(replayed.records.len(), 1);
    assert_eq!(journal.append(record(77, 100)).unwrap(), 2);
    journal.sync(2).await.unwrap();
    let (_, replayed) = open(&disk, RING.start()).await.unwrap();
    assert_eq!(replayed.records, [(1, record(1, 100)), (2, record(77, 100))]);
}

#[tokio::test]
async fn after_a_failed_request_nothing_more_is_promised() {
    for operation in [Operation::Write, Operation::Sync] {
        let disk = blank_disk();
        let (journal, _) = open(&disk, RING.start()).await.unwrap();
        journal.append(record(1, 100)).unwrap();
        journal.sync(1).await.unwrap();
        journal.append(record(2, 100)).unwrap();
        disk.fail(operation, 0, libc::EIO);
        assert!(matches!(journal.sync(2).await, Err(JournalError::Disk(_))));
        assert!(matches!(journal.append(record(3, 100)), Err(JournalError::Failed)));
        assert!(matches!(journal.sync(2).await, Err(JournalError::Failed)));
        let (_, replayed) = open(&disk, RING.start()).await.unwrap();
        assert!((1..=2).contains(&replayed.records.len()));
    }
}

#[tokio::test]
async fn nothing_is_written_or_durable_before_the_data_beside_it_is_there() {
    let disk = blank_disk();
    let (journal, _) = open(&disk, RING.start()).await.unwrap();
    journal.append(record(1, 100)).unwrap();
    let (first, data) = journal.append_beside(record(2, 100)).unwrap();
    let (second, other) = journal.append_beside(record(3, 100)).unwrap();
    journal.write(1).await.unwrap();
    let mut write = std::pin::pin!(journal.write(first));
    let mut sync = std::pin::pin!(journal.sync(first));
    let mut later = std::pin::pin!(journal.data_of(second));
    for _ in 0..20 {
        assert!(futures::poll!(&mut write).is_pending() && futures::poll!(&mut sync).is_pending());
        tokio::task::yield_now().await;
    }
    assert_eq!(disk.tally().syncs, 0, "a sync would not cover the data");
    assert!(futures::poll!(&mut later).is_pending());
    data.done(Ok(())).unwrap();
    journal.data_of(first).await.unwrap();
    write.await.unwrap();
    // The sync may be for both records, and then waits for both.
    other.done(Ok(())).unwrap();
    sync.await.unwrap();
    later.await.unwrap();
    assert!(journal.durable_end() > first);
    let (_, replayed) = open(&disk, RING.start()).await.unwrap();
    assert_eq!(replayed.records.len(), 3);
}

#[tokio::test]
async fn data_that_cannot_be_written_fails_the_journal() {
    for is_told in [true, false] {
        let disk = blank_disk();
        let (journal, _) = open(&disk, RING.start()).await.unwrap();
        let (sequence, data) = journal.append_beside(record(1, 100)).unwrap();
        let (waiting, ()) = futures::join!(journal.sync(sequence), async {
            tokio::task::yield_now().await;
            match is_told {
                true => drop(data.done(Err(crate::disk::DiskError::NoSpace))),
                false => drop(data),
            }
        });
        match (is_told, waiting) {
            (true, Err(JournalError::Disk(_))) | (false, Err(JournalError::Failed)) => {}
            (_, other) => panic!("{other:?}"),
        }
        assert!(matches!(journal.append(record(2, 100)), Err(JournalError::Failed)));
        assert!(matches!(journal.data_of(sequence).await, Err(JournalError::Failed)));
        assert_eq!(disk.tally().syncs, 0);
    }
}
