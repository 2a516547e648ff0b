//! Batches that are written while a sync is under way.

use std::{
    pin::{Pin, pin},
    time::Duration,
};

use super::{waiting::Waiting, *};

/// Waits until something is so, for which syncs work that shall not end.
async fn until<F>(is_so: impl Fn() -> bool, syncs: &mut [Pin<&mut F>])
where
    F: Future<Output = Result<(), JournalError>>,
{
    let comes = async {
        while !is_so() {
            for sync in &mut *syncs {
                assert!(futures::poll!(sync.as_mut()).is_pending());
            }
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(120), comes).await.expect("it never comes");
}

#[tokio::test]
async fn the_next_batch_is_written_while_the_disk_syncs_and_promised_by_the_next_sync() {
    let disk = Waiting::new(Operation::Sync);
    let journal = disk.open().await;
    journal.append(record(1, 100)).unwrap();
    let mut first = pin!(journal.sync(1));
    until(|| disk.count() > 0, &mut [first.as_mut()]).await;
    assert_eq!(disk.disk.tally().changes, 1, "the first batch");
    for number in 2..=5 {
        journal.append(record(number, 100)).unwrap();
    }
    let mut second = pin!(journal.sync(5));
    let all_written = || journal.position().sequence > 5;
    until(all_written, &mut [first.as_mut(), second.as_mut()]).await;
    assert_eq!(disk.disk.tally().changes, 2, "those that were appended together went together");
    assert_eq!((disk.count(), journal.durable_end()), (1, 0), "nothing is promised yet");
    disk.release();
    first.await.unwrap();
    assert_eq!(journal.durable_end(), 2, "what was written meanwhile is not");
    until(|| disk.count() > 0, &mut [second.as_mut()]).await;
    disk.release();
    second.await.unwrap();
    assert_eq!(journal.durable_end(), 6);
    assert_eq!(disk.disk.tally().changes, 4, "two batches and two syncs");
}

#[tokio::test]
async fn a_batch_that_fails_while_the_disk_syncs_fails_the_journal() {
    let disk = Waiting::new(Operation::Sync);
    let journal = disk.open().await;
    journal.append(record(1, 100)).unwrap();
    let mut first = pin!(journal.sync(1));
    until(|| disk.count() > 0, &mut [first.as_mut()]).await;
    disk.disk.fail(Operation::Write, 0, libc::EIO);
    journal.append(record(2, 100)).unwrap();
    for _ in 0..20 {
        assert!(futures::poll!(&mut first).is_pending());
        tokio::task::yield_now().await;
    }
    assert!(matches!(journal.append(record(3, 100)), Err(JournalError::Failed)));
    disk.release();
    // Its own record is there; but nobody can say so any more. It is told what the disk said.
    let failed = first.await;
    assert!(matches!(failed, Err(JournalError::Disk(_))), "{failed:?}");
    assert!(matches!(journal.sync(2).await, Err(JournalError::Failed)));
    let (_, replayed) = open(&disk.disk, RING.start()).await.unwrap();
    assert!((1..=2).contains(&replayed.records.len()));
}
