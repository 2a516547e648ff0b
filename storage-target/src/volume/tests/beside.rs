//! Durable writes whose data is under the disk's hands together with their records.

use std::{collections::BTreeSet, sync::Arc};

use millrace_runtime::Clock;
use millrace_types::Timestamp;

use super::{
    BLOCK, EngineError, Volume, assert_holds, ended, key, new_disk, open, open_by, options,
    pattern, read, write_request,
};
use crate::disk::{Operation, simulated::SimulatedDisk};

/// Seeds of each test; on one thread everything follows from them.
const SEEDS: u64 = 200;

const LEN: usize = 3 * 4096;

/// A volume with two files of a block each, durable, on a disk whose requests take their time.
async fn begun(seed: u64) -> (SimulatedDisk, Arc<Volume>) {
    let disk = new_disk(seed);
    let volume = open(&disk).await;
    for inode in [1, 2] {
        let request = write_request(key(inode, 0), 0, pattern(inode, 0, BLOCK));
        volume.write_durably(request).await.unwrap();
    }
    disk.set_delays(true);
    (disk, Arc::new(volume))
}

/// The first bytes of a file, if they are one of two versions.
async fn version(volume: &Volume, inode: u64, versions: [u64; 2]) -> usize {
    let found = read(volume, key(inode, 0), 0..1).await.unwrap();
    let is = |seed: &u64| {
        let mut expected = pattern(inode, 0, BLOCK);
        expected[..LEN].copy_from_slice(&pattern(*seed, 0, LEN));
        found.iter().zip(&expected).all(|(found, expected)| *found == Some(*expected))
    };
    versions.iter().position(is).expect("one of the two versions, and no mix")
}

#[tokio::test]
async fn a_reader_never_sees_bytes_that_are_not_there_yet() {
    let mut seen = BTreeSet::new();
    for seed in 0..SEEDS {
        let (_disk, volume) = begun(seed).await;
        let writing = Arc::clone(&volume);
        let written = tokio::spawn(async move {
            writing.write_durably(write_request(key(1, 0), 0, pattern(7, 0, LEN))).await
        });
        while !written.is_finished() {
            seen.insert(version(&volume, 1, [1, 7]).await);
            tokio::task::yield_now().await;
        }
        written.await.unwrap().unwrap();
        assert_eq!(version(&volume, 1, [1, 7]).await, 1, "seed {seed}");
        assert_eq!(volume.statistics().checksum_failures, 0, "seed {seed}");
    }
    assert_eq!(seen.len(), 2);
}

#[tokio::test]
async fn a_kill_leaves_a_record_without_its_data_out_and_nobody_has_been_told_of_it() {
    let mut outcomes = BTreeSet::new();
    for seed in 0..SEEDS {
        let (disk, volume) = begun(seed).await;
        let before = volume.shared().journal.position().sequence;
        let writing = Arc::clone(&volume);
        let written = tokio::spawn(async move {
            writing.write_durably(write_request(key(1, 0), 0, pattern(7, 0, LEN))).await
        });
        while volume.shared().journal.position().sequence == before {
            tokio::task::yield_now().await;
        }
        // The record is on the disk, the data perhaps not.
        disk.begin_process();
        disk.set_delays(false);
        let is_told = written.await.unwrap().is_ok();
        drop(volume);
        let volume = open(&disk).await;
        let found = version(&volume, 1, [1, 7]).await;
        assert!(found == 1 || !is_told, "seed {seed}");
        assert_eq!(volume.loss_count(), 0, "seed {seed}: nobody was told of it");
        assert_holds(&volume, key(2, 0), 0, &pattern(2, 0, BLOCK)).await;
        // Decided once: what comes later does not bring it back.
        volume.write_durably(write_request(key(2, 0), 0, pattern(8, 0, LEN))).await.unwrap();
        disk.begin_process();
        drop(volume);
        let volume = open(&disk).await;
        assert_eq!(version(&volume, 1, [1, 7]).await, found, "seed {seed}");
        assert_eq!(version(&volume, 2, [2, 8]).await, 1, "seed {seed}");
        outcomes.insert(found);
    }
    assert_eq!(outcomes.len(), 2, "both come up");
}

#[tokio::test]
async fn after_a_kill_a_record_whose_data_the_disk_does_not_read_any_more_is_a_loss() {
    let (disk, volume) = begun(1).await;
    disk.set_delays(false);
    // Whoever wrote it was told.
    let request = write_request(key(1, 0), 0, pattern(7, 0, LEN));
    volume.write_durably(request).await.unwrap();
    let page = volume.snapshot(key(1, 0), 0..1).await.unwrap().disk_page(0).unwrap();
    drop(volume);
    disk.set_unreadable(page, true);
    let (clock, time) = Clock::manual(Timestamp(0));
    let opening = tokio::spawn(open_by(clock, options(&disk, 1)));
    let volume = ended(opening, &time).await;
    assert_eq!(volume.loss_count(), 1);
    assert_eq!(version(&volume, 1, [1, 7]).await, 0, "the older version stands");
    drop(volume);
    disk.set_unreadable(page, false);
    let volume = open(&disk).await;
    assert_eq!(volume.loss_count(), 1, "decided once");
    assert_eq!(version(&volume, 1, [1, 7]).await, 0);
}

#[tokio::test]
async fn data_that_fails_after_its_record_fails_the_journal_and_nothing_is_acknowledged() {
    let (disk, volume) = begun(1).await;
    disk.fail(Operation::Write, 0, libc::EIO);
    let many = (0..3).map(|nth| {
        let bytes = pattern(7, 0, LEN);
        volume.write_durably(write_request(key(1, 0), nth * LEN, bytes))
    });
    for done in futures::future::join_all(many).await {
        let error = done.expect_err("nothing is durable");
        assert!(matches!(error, EngineError::Journal(_) | EngineError::Disk(_)), "{error}");
    }
    assert!(volume.has_failed());
    assert_eq!(volume.loss_count(), 1);
    disk.begin_process();
    disk.set_delays(false);
    drop(volume);
    let volume = open(&disk).await;
    assert_holds(&volume, key(2, 0), 0, &pattern(2, 0, BLOCK)).await;
    assert_eq!(read(&volume, key(1, 0), 0..1).await.unwrap().len(), BLOCK, "old or new, and whole");
}
