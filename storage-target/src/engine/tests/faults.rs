//! Damage, full disks, killed machines.

use std::{
    fs::{self, OpenOptions},
    os::unix::fs::FileExt,
    path::Path,
};

use millrace_types::{
    BlockState, ByteLen, ClusterId, ContentGeneration, Crc32c, InodeId, SessionId, WriteEpoch,
    WriteNumber,
};

use super::{Engine, assert_holds, fill, key, open, options, pattern, read, write, write_request};
use crate::{
    disk::BufferPool,
    engine::{EngineError, ExportedBlocks, OpenError, Purpose, write::change_of},
    format::{
        chunk::{ChunkRecord, Run},
        record::Record,
        segment::BootId,
    },
};

const BLOCK: usize = 64 * 1024;

fn overwrite(path: &Path, offset: u64, bytes: &[u8]) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(bytes, offset).unwrap();
    file.sync_all().unwrap();
}

#[tokio::test]
async fn a_flipped_bit_on_disk_is_an_error_and_never_a_wrong_byte() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&options(dir.path()));
    write(&engine, key(1, 0), 0, pattern(1, 0, 3 * BLOCK)).await;
    engine.sync().await.unwrap();
    let page = engine.snapshot(key(1, 0)).block(1).first_page;
    let data = fs::read(dir.path().join("data")).unwrap();
    let at = page * 4096 + 77;
    overwrite(&dir.path().join("data"), at, &[data[usize::try_from(at).unwrap()] ^ 4]);

    let error = read(&engine, key(1, 0), 0, 3 * BLOCK).await.unwrap_err();
    assert!(matches!(error, EngineError::Corrupt { block: 1, clean: false, .. }), "{error}");
    assert_holds(&engine, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
    let statistics = engine.statistics();
    assert_eq!((statistics.bad_blocks, statistics.checksum_failures), (1, 1));

    write(&engine, key(1, 0), BLOCK, pattern(2, 0, BLOCK)).await;
    assert_eq!(engine.statistics().bad_blocks, 0, "replacing the block mends it");
    assert_holds(&engine, key(1, 0), BLOCK, &pattern(2, 0, BLOCK)).await;
}

#[tokio::test]
async fn bytes_damaged_on_the_way_are_refused_and_change_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&options(dir.path()));
    write(&engine, key(1, 0), 0, pattern(1, 0, 10_000)).await;
    let mut request = write_request(key(1, 0), 5_000, pattern(2, 0, 9_000));
    request.checksum.0 ^= 1;
    assert!(matches!(engine.write(request).await, Err(EngineError::Damaged)));
    assert_holds(&engine, key(1, 0), 0, &pattern(1, 0, 10_000)).await;
}

#[tokio::test]
async fn a_full_target_refuses_without_damage_and_serves_again_when_freed() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.capacity = Some(ByteLen(8 << 20));
    let engine = open(&options);
    let mut stored = 0;
    let error = loop {
        let request = write_request(key(stored, 0), 0, pattern(stored, 0, 1 << 20));
        match engine.write(request).await {
            Ok(_) => stored += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, EngineError::NoSpace), "{error}");
    assert_eq!(stored, 8, "every page can be used");
    assert_eq!(engine.statistics().used, engine.statistics().capacity);
    for inode in 0..stored {
        assert_holds(&engine, key(inode, 0), 0, &pattern(inode, 0, 1 << 20)).await;
    }
    engine.reclaim(&[(InodeId(3), ContentGeneration(1))]).await.unwrap();
    write(&engine, key(100, 0), 0, pattern(9, 0, 1 << 20)).await;
    assert_holds(&engine, key(100, 0), 0, &pattern(9, 0, 1 << 20)).await;
    drop(engine);
    let engine = open(&options);
    assert_holds(&engine, key(4, 0), 0, &pattern(4, 0, 1 << 20)).await;
}

#[tokio::test]
async fn overwriting_on_a_full_target_waits_for_a_barrier_and_not_for_ever() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    options.capacity = Some(ByteLen(4 << 20));
    let engine = open(&options);
    for inode in 0..3 {
        write(&engine, key(inode, 0), 0, pattern(inode, 0, 1 << 20)).await;
    }
    for round in 0..10 {
        write(&engine, key(0, 0), 0, pattern(round, 0, 1 << 20)).await;
        assert_holds(&engine, key(0, 0), 0, &pattern(round, 0, 1 << 20)).await;
    }
}

#[tokio::test]
async fn after_a_loss_of_power_synced_writes_stand_and_torn_ones_leave_the_older_version() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    let engine = open(&options);
    write(&engine, key(1, 0), 0, pattern(1, 0, 4 * BLOCK)).await;
    write(&engine, key(2, 0), 0, pattern(2, 0, BLOCK)).await;
    engine.sync().await.unwrap();
    write(&engine, key(1, 0), BLOCK, pattern(3, 0, 2 * BLOCK)).await;
    write(&engine, key(3, 0), 0, pattern(4, 0, BLOCK)).await;
    let torn = engine.snapshot(key(1, 0)).block(2).first_page * 4096 + 8192;
    drop(engine);
    // The journal record of the write reached the disk, one page of its data did not.
    overwrite(&dir.path().join("data"), torn, &[0; 4096]);

    options.boot = BootId([2; 16]);
    let engine = open(&options);
    assert_eq!(engine.loss_count(), 1);
    assert_holds(&engine, key(1, 0), 0, &pattern(1, 0, 4 * BLOCK)).await;
    assert_holds(&engine, key(2, 0), 0, &pattern(2, 0, BLOCK)).await;
    assert_holds(&engine, key(3, 0), 0, &pattern(4, 0, BLOCK)).await;
    // A kill right after the recovery must not bring the torn record back.
    drop(engine);
    let engine = open(&options);
    assert_eq!(engine.loss_count(), 1);
    assert_holds(&engine, key(1, 0), 0, &pattern(1, 0, 4 * BLOCK)).await;
}

#[tokio::test]
async fn a_journal_tail_that_never_reached_the_disk_is_a_loss_and_no_damage() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    let engine = open(&options);
    write(&engine, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    engine.sync().await.unwrap();
    write(&engine, key(1, 0), 0, pattern(2, 0, BLOCK)).await;
    drop(engine);
    let segment = newest_segment(dir.path());
    let bytes = fs::read(&segment).unwrap();
    overwrite(&segment, bytes.len() as u64 - 30, &[0xEE; 30]);

    options.boot = BootId([2; 16]);
    let engine = open(&options);
    assert_eq!(engine.loss_count(), 1);
    assert_holds(&engine, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
}

fn newest_segment(dir: &Path) -> std::path::PathBuf {
    let mut segments: Vec<_> = fs::read_dir(dir.join("journal"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "log"))
        .collect();
    segments.sort();
    segments.pop().unwrap()
}

#[tokio::test]
async fn damage_in_the_middle_of_the_journal_is_refused_in_words() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let engine = open(&options);
    write(&engine, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    engine.sync().await.unwrap();
    let segment = newest_segment(dir.path());
    drop(engine);
    drop(open(&options));
    overwrite(&segment, 528, &[0xEE; 4]);
    let error = Engine::open(&options, BufferPool::new(0)).unwrap_err();
    assert!(matches!(error, OpenError::JournalGap { .. }), "{error}");
}

#[tokio::test]
async fn a_clean_stop_loses_nothing_whatever_the_boot() {
    let dir = tempfile::tempdir().unwrap();
    let mut options = options(dir.path());
    let engine = open(&options);
    write(&engine, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    engine.close().await.unwrap();
    drop(engine);
    options.boot = BootId([2; 16]);
    let engine = open(&options);
    assert_eq!(engine.loss_count(), 0);
    assert_holds(&engine, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
    drop(engine);
    // The run that was just killed wrote nothing, but nobody can prove that after a reboot.
    options.boot = BootId([3; 16]);
    assert_eq!(open(&options).loss_count(), 1);
}

#[tokio::test]
async fn a_disk_of_another_cluster_a_second_process_and_lost_superblocks_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let good = options(dir.path());
    let engine = open(&good);
    let open_error = |options| Engine::open(options, BufferPool::new(0)).unwrap_err();
    assert!(matches!(open_error(&good), OpenError::InUse { .. }));
    drop(engine);
    let mut other = good.clone();
    other.cluster = ClusterId([8; 16]);
    assert!(matches!(open_error(&other), OpenError::OtherCluster { .. }));
    let blank = tempfile::tempdir().unwrap();
    let mut expecting = options(blank.path());
    expecting.new_target = None;
    assert!(matches!(open_error(&expecting), OpenError::Blank { .. }));
    fs::remove_file(dir.path().join("superblock")).unwrap();
    assert!(matches!(open_error(&good), OpenError::NoSuperblock { .. }));
}

#[tokio::test]
async fn a_fill_never_replaces_what_somebody_wrote() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&options(dir.path()));
    write(&engine, key(1, 0), BLOCK, pattern(2, 0, BLOCK)).await;
    let stored = fill(&engine, key(1, 0), 0, &pattern(1, 0, 2 * BLOCK + 100)).await.unwrap();
    assert_eq!(stored, BLOCK as u64 + 4096);
    let mut expected = pattern(1, 0, 2 * BLOCK + 100);
    expected[BLOCK..2 * BLOCK].copy_from_slice(&pattern(2, 0, BLOCK));
    assert_holds(&engine, key(1, 0), 0, &expected).await;
    let used = engine.statistics().used.0;
    assert_eq!(used, 2 * BLOCK as u64 + 4096, "the pages not needed were given back");
}

#[tokio::test]
async fn older_generations_and_epochs_are_refused_also_after_a_restart() {
    let dir = tempfile::tempdir().unwrap();
    let mut engine = open(&options(dir.path()));
    engine.reclaim(&[(InodeId(1), ContentGeneration(1))]).await.unwrap();
    let content = millrace_protocol::target::ContentName {
        inode: InodeId(2),
        generation: ContentGeneration(1),
    };
    engine.trim(content, 8 << 20, 100, WriteEpoch(4)).await.unwrap();
    for _ in 0..2 {
        let stale = engine.write(write_request(key(1, 0), 0, vec![1])).await;
        assert!(matches!(stale, Err(EngineError::StaleContent)));
        let mut request = write_request(key(2, 0), 0, vec![1]);
        request.write_epoch = WriteEpoch(3);
        assert!(matches!(engine.write(request.clone()).await, Err(EngineError::StaleEpoch)));
        request.write_epoch = WriteEpoch(4);
        engine.write(request).await.unwrap();
        engine.close().await.unwrap();
        drop(engine);
        engine = open(&options(dir.path()));
    }
}

#[tokio::test]
async fn exported_blocks_become_clean_unless_they_changed_meanwhile() {
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&options(dir.path()));
    write(&engine, key(1, 0), 0, pattern(1, 0, 3 * BLOCK)).await;
    let snapshot = engine.snapshot(key(1, 0));
    let exported: ExportedBlocks =
        (0..3).map(|block| (block, snapshot.block(block).sequence)).collect();
    drop(snapshot);
    write(&engine, key(1, 0), BLOCK, pattern(2, 0, BLOCK)).await;
    let marked = engine.mark_exported(key(1, 0), &exported).await.unwrap();
    assert_eq!(marked.0, 2 * BLOCK as u64);
    engine.sync().await.unwrap();
    // The pages of the marked blocks must not have been freed.
    write(&engine, key(2, 0), 0, pattern(5, 0, 8 * BLOCK)).await;
    assert_holds(&engine, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
    assert_eq!(engine.release(key(1, 0)).await.unwrap().0, 2 * BLOCK as u64);
    assert_holds(&engine, key(1, 0), BLOCK, &pattern(2, 0, BLOCK)).await;
}

#[tokio::test]
async fn writes_are_remembered_over_a_kill_so_that_a_repetition_is_only_answered() {
    use crate::engine::sessions::Admission;
    let dir = tempfile::tempdir().unwrap();
    let engine = open(&options(dir.path()));
    let mut request = write_request(key(1, 0), 0, pattern(1, 0, 100));
    (request.session, request.number) = (SessionId(6), WriteNumber(17));
    let version = engine.write(request).await.unwrap();
    drop(engine);
    let engine = open(&options(dir.path()));
    let number = WriteNumber(17);
    let admission = engine.applied().admit(SessionId(6), number, number).await;
    assert!(matches!(admission, Admission::Repeated(known) if known == version));
}

#[test]
fn a_hundred_thousand_chunks_open_in_well_under_a_second() {
    let dir = tempfile::tempdir().unwrap();
    let options = options(dir.path());
    let engine = open(&options);
    for inode in 0..100_000 {
        // The records of files of 80 KB; their data is not looked at when a target is opened.
        let record = ChunkRecord::new(key(inode, 0));
        let run = Run {
            first_block: 0,
            blocks: 2,
            state: BlockState::Written,
            tail_pages: 4,
            first_page: 20 * inode,
            checksums: vec![Crc32c(7); 20],
        };
        let change = change_of(&record, SessionId(0), WriteNumber(0), vec![run]);
        engine.shared.state().commit(&[Record::Blocks(change)], Purpose::Store).unwrap();
    }
    // The data file as it would be.
    let data = OpenOptions::new().write(true).open(dir.path().join("data")).unwrap();
    data.set_len(100_000 * 20 * 4096).unwrap();
    drop(engine);
    let begun = cpu_time();
    let engine = open(&options);
    let taken = cpu_time() - begun;
    assert_eq!(engine.statistics().chunks, 100_000);
    assert!(taken < 1.0, "{taken} s of CPU");
}

/// Seconds of CPU that this thread has used: a busy machine must not fail the test.
fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
