//! The volume on a simulated disk: against plain bytes, through kills and cuts of power, on a full
//! disk, and with damage.

mod beside;
mod clean;
mod contents;
mod cuts;
mod index;
mod memory;
mod model;
mod reopen;
mod room;
mod runs;
mod scrub;
mod stops;
mod unread;
mod zero;

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use futures::poll;
use millrace_protocol::target::ContentName;
use millrace_runtime::{Clock, VirtualTime};
use millrace_types::{
    BlockState, ChunkIndex, ChunkKey, ClusterId, ContentGeneration, CopyIndex, Crc32c, GroupEpoch,
    InodeId, SessionId, TargetId, WriteEpoch, WriteNumber,
};
use tokio::task::JoinHandle;

use super::{
    Authority, Blank, EngineError, ExportedBlocks, Fill, OpenError, Options, Volume, WriteRequest,
    ZeroRequest, reopen::Live,
};
use crate::{
    disk::{BufferPool, Piece, simulated::SimulatedDisk},
    format::{batch::BootId, superblock::Layout},
    page_checksum::of_pages,
};

const BLOCK: usize = 64 * 1024;
const CHUNK_SIZE: u32 = 1 << 20;

/// One region behind a small ring, so that checkpoints are frequent.
const LAYOUT: Layout =
    Layout { capacity: 512 + 8192, roots: 16, journal: 256, journal_pages: 256, regions: 512 };

fn new_disk(seed: u64) -> SimulatedDisk {
    SimulatedDisk::new(LAYOUT.capacity * 4096, seed)
}

fn options(disk: &SimulatedDisk, boot: u8) -> Options {
    Options {
        cluster: ClusterId([9; 16]),
        blank: Some(Blank { target: TargetId([7; 8]), layout: LAYOUT }),
        disk: disk.queue(),
        growth: None,
        pool: BufferPool::new(16 << 20),
        cache_bytes: 1 << 20,
        // Long, so that only explicit syncs make anything durable.
        sync_interval: Duration::from_secs(3600),
        boot: BootId([boot; 16]),
    }
}

async fn open(disk: &SimulatedDisk) -> Volume {
    Volume::open(&options(disk, 1)).await.unwrap()
}

/// Opens a target by a clock that the test moves.
async fn open_by(clock: Clock, options: Options) -> Volume {
    let live = Live::open_by(clock, &options, None).await.unwrap();
    Volume::of(live, options.pool)
}

/// Lets two minutes pass, slowly.
async fn two_minutes(time: &VirtualTime) {
    for _ in 0..120 {
        time.advance(Duration::from_secs(1));
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
    }
}

/// Lets time pass until a task has ended.
async fn ended<T>(task: JoinHandle<T>, time: &VirtualTime) -> T {
    while !task.is_finished() {
        time.advance(Duration::from_secs(1));
        tokio::task::yield_now().await;
    }
    task.await.unwrap()
}

fn key(inode: u64, index: u32) -> ChunkKey {
    ChunkKey {
        inode: InodeId(inode),
        generation: ContentGeneration(1),
        index: ChunkIndex(index),
        copy: CopyIndex(0),
    }
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(seed: u64, start: usize, len: usize) -> Vec<u8> {
    (start..start + len)
        .map(|at| {
            let mixed = (at as u64 + 1 + (seed << 32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
            mixed.to_le_bytes()[7]
        })
        .collect()
}

fn write_request(key: ChunkKey, offset: usize, bytes: Vec<u8>) -> WriteRequest {
    WriteRequest {
        key,
        offset: u32::try_from(offset).unwrap(),
        checksum: Crc32c::of(&bytes),
        body: vec![Bytes::from(bytes)],
        group_epoch: GroupEpoch(1),
        write_epoch: WriteEpoch(0),
        chunk_size: CHUNK_SIZE,
        backed: 0,
        session: SessionId(0),
        number: WriteNumber(0),
        authority: Authority::default(),
    }
}

fn zero_request(key: ChunkKey, range: Range<usize>) -> ZeroRequest {
    ZeroRequest {
        key,
        range: u32::try_from(range.start).unwrap()..u32::try_from(range.end).unwrap(),
        group_epoch: GroupEpoch(1),
        write_epoch: WriteEpoch(0),
        chunk_size: CHUNK_SIZE,
        backed: 0,
        session: SessionId(0),
        number: WriteNumber(0),
        authority: Authority::default(),
    }
}

async fn write(volume: &Volume, key: ChunkKey, offset: usize, bytes: Vec<u8>) {
    volume.write(write_request(key, offset, bytes)).await.unwrap();
}

async fn fill(
    volume: &Volume,
    key: ChunkKey,
    first_block: u16,
    bytes: &[u8],
    write_epoch: WriteEpoch,
) -> Result<u64, EngineError> {
    volume.fill(filling(volume, key, first_block, bytes, write_epoch).await).await
}

async fn filling(
    volume: &Volume,
    key: ChunkKey,
    first_block: u16,
    bytes: &[u8],
    write_epoch: WriteEpoch,
) -> Fill {
    let mut buffer = volume.pool().acquire(bytes.len()).await;
    buffer.as_mut_slice().fill(0);
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let checksums = of_pages(buffer.as_slice());
    Fill {
        key,
        first_block,
        buffer: Arc::new(buffer),
        len: u32::try_from(bytes.len()).unwrap(),
        checksums: checksums.into(),
        write_epoch,
        chunk_size: CHUNK_SIZE,
        backed: CHUNK_SIZE,
        mark: volume.drop_mark(&key),
        gathers: false,
    }
}

/// Reads blocks; absent bytes show as `None`.
async fn read(
    volume: &Volume,
    key: ChunkKey,
    blocks: Range<u16>,
) -> Result<Vec<Option<u8>>, EngineError> {
    let snapshot = volume.snapshot(key, blocks.clone()).await?;
    let mut bytes = Vec::new();
    for block in blocks {
        match snapshot.state(block) {
            BlockState::Absent => bytes.extend(vec![None; BLOCK]),
            BlockState::Zero => bytes.extend(vec![Some(0); BLOCK]),
            BlockState::Clean | BlockState::Written => {
                let loaded = volume.load(&snapshot, u32::from(block) * 16, 16).await?;
                assert_eq!(of_pages(&loaded.bytes), *loaded.checksums);
                bytes.extend(loaded.bytes.iter().copied().map(Some));
            }
        }
    }
    Ok(bytes)
}

async fn assert_holds(volume: &Volume, key: ChunkKey, start: usize, expected: &[u8]) {
    let number = |at: usize| u16::try_from(at).unwrap();
    let blocks = number(start / BLOCK)..number((start + expected.len()).div_ceil(BLOCK));
    let skipped = start % BLOCK;
    let found = read(volume, key, blocks).await.unwrap();
    let expected: Vec<_> = expected.iter().copied().map(Some).collect();
    let found = &found[skipped..skipped + expected.len()];
    assert!(found == expected, "the bytes at {start} of {key} are others");
}

async fn erase(disk: &SimulatedDisk, page: u64) {
    let mut buffer = BufferPool::new(0).acquire(4096).await;
    buffer.as_mut_slice().fill(0);
    let piece = Piece { offset: page * 4096, range: 0..4096 };
    disk.queue().write(vec![piece], Arc::new(buffer)).await.unwrap();
}

/// Nothing may be promised, held or quarantined when nothing is under way; returns pages in use.
async fn used_pages(volume: &Volume) -> u64 {
    volume.shared().settle().await.unwrap();
    let space = volume.statistics().space;
    assert_eq!((space.reserved, space.quarantined), (0, 0));
    space.clean + space.written
}

#[tokio::test]
async fn what_was_written_is_read_back_also_after_a_kill_and_an_orderly_end() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    assert!(volume.statistics().blank);
    write(&volume, key(1, 0), 100, pattern(1, 100, 300_000)).await;
    write(&volume, key(1, 0), 5000, pattern(2, 5000, 70_000)).await;
    let mut expected = vec![0; 100];
    expected.extend(pattern(1, 100, 300_000));
    expected[5000..75_000].copy_from_slice(&pattern(2, 5000, 70_000));
    assert_holds(&volume, key(1, 0), 0, &expected).await;
    drop(volume);
    let volume = open(&disk).await;
    assert!(!volume.statistics().blank);
    assert_holds(&volume, key(1, 0), 0, &expected).await;
    volume.close().await.unwrap();
    drop(volume);
    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 0, "an orderly end loses nothing");
    assert_holds(&volume, key(1, 0), 0, &expected).await;
}

#[tokio::test]
async fn an_append_at_a_page_boundary_reads_nothing_and_an_overwrite_costs_a_page() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 8192)).await;
    let before = disk.tally();
    write(&volume, key(1, 0), 8192, pattern(1, 8192, 100)).await;
    assert_eq!(disk.tally().reads, before.reads);
    let before = disk.tally();
    write(&volume, key(1, 0), 4096, pattern(2, 4096, 4096)).await;
    let after = disk.tally();
    assert_eq!((after.reads, after.bytes_written - before.bytes_written), (before.reads, 8192));
    assert_eq!(used_pages(&volume).await, 3);
}

#[tokio::test]
async fn a_fill_stores_only_what_is_absent() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), BLOCK + 10, pattern(1, 0, 10)).await;
    let bytes = pattern(9, 0, 3 * BLOCK - 5000);
    let stored = fill(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await.unwrap();
    assert_eq!(stored, 2 * BLOCK as u64 - 4096);
    assert_holds(&volume, key(1, 0), 0, &bytes[..BLOCK]).await;
    assert_holds(&volume, key(1, 0), BLOCK + 10, &pattern(1, 0, 10)).await;
    assert_holds(&volume, key(1, 0), 2 * BLOCK, &bytes[2 * BLOCK..]).await;
    assert_eq!(used_pages(&volume).await, 16 + 1 + 15);
    let freed = volume.release(key(1, 0)).await.unwrap();
    assert_eq!(freed.0, stored);
    assert_eq!(used_pages(&volume).await, 1);
}

#[tokio::test]
async fn a_release_that_waits_drops_nothing_once_it_may_not() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    fill(&volume, key(1, 0), 0, &pattern(9, 0, 2 * BLOCK), WriteEpoch(0)).await.unwrap();
    // Somebody writes to a block of the chunk, which takes its time.
    let writer = volume.shared().locks.lock(key(1, 0), 0..=0).await;
    let may_go = Arc::new(AtomicBool::new(true));
    let asked = Arc::clone(&may_go);
    let release = volume.release_while(key(1, 0), move || asked.load(Ordering::Relaxed));
    let mut release = Box::pin(release);
    assert!(poll!(&mut release).is_pending());
    may_go.store(false, Ordering::Relaxed);
    drop(writer);
    assert_eq!(release.await.unwrap().0, 0);
    assert_eq!(used_pages(&volume).await, 32);
}

#[tokio::test]
async fn what_was_asked_for_before_a_release_is_not_stored_after_it() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    let before = volume.drop_mark(&key(1, 0));
    let bytes = pattern(9, 0, 2 * BLOCK);
    fill(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await.unwrap();
    volume.release(key(1, 0)).await.unwrap();
    let late = Fill { mark: before, ..filling(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await };
    assert_eq!(volume.fill(late).await.unwrap(), 0, "its object may be another one by now");
    assert_eq!(used_pages(&volume).await, 0);
    let stored = fill(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await.unwrap();
    assert_eq!(stored, 2 * BLOCK as u64);
    let before = volume.drop_mark(&key(1, 0));
    volume.drop_clean(key(1, 0), 1).await.unwrap();
    let late = Fill { mark: before, ..filling(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await };
    assert_eq!(volume.fill(late).await.unwrap(), 0);
}

#[tokio::test]
async fn a_clean_block_that_another_one_has_replaced_is_not_dropped_for_the_first() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    fill(&volume, key(1, 0), 0, &pattern(9, 0, BLOCK), WriteEpoch(0)).await.unwrap();
    let seen = volume.snapshot(key(1, 0), 0..1).await.unwrap().fingerprint(0);
    volume.release(key(1, 0)).await.unwrap();
    let bytes = pattern(8, 0, BLOCK);
    fill(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await.unwrap();
    let mark = volume.drop_mark(&key(1, 0));
    volume.drop_clean_if(key(1, 0), 0, move |found| found == seen).await.unwrap();
    assert_holds(&volume, key(1, 0), 0, &bytes).await;
    assert_eq!(volume.drop_mark(&key(1, 0)), mark, "what is being fetched will be stored");
    let seen = volume.snapshot(key(1, 0), 0..1).await.unwrap().fingerprint(0);
    volume.drop_clean_if(key(1, 0), 0, move |found| found == seen).await.unwrap();
    assert_eq!(used_pages(&volume).await, 0);
}

#[tokio::test]
async fn what_an_export_has_read_becomes_clean_unless_it_changed_meanwhile() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 2 * BLOCK)).await;
    let snapshot = volume.snapshot(key(1, 0), 0..2).await.unwrap();
    let exported = (0..2).map(|block| (block, snapshot.fingerprint(block))).collect();
    drop(snapshot);
    write(&volume, key(1, 0), BLOCK, pattern(2, 0, 1)).await;
    let bytes = volume.mark_exported(key(1, 0), &exported).await.unwrap();
    assert_eq!(bytes.0, BLOCK as u64);
    let snapshot = volume.snapshot(key(1, 0), 0..2).await.unwrap();
    assert_eq!((snapshot.state(0), snapshot.state(1)), (BlockState::Clean, BlockState::Written));
}

#[tokio::test]
async fn blocks_of_an_export_become_clean_wherever_they_lie_and_no_others() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    // Two in each of the chunk's sections.
    let places = [1_u16, 4, 9, 15];
    for block in places {
        write(&volume, key(1, 0), usize::from(block) * BLOCK, pattern(1, 0, BLOCK)).await;
    }
    assert_eq!(volume.mark_exported(key(1, 0), &ExportedBlocks::new()).await.unwrap().0, 0);
    for (exported, clean) in
        [(vec![9], [false, false, true, false]), (vec![4, 15], [false, true, true, true])]
    {
        let snapshot = volume.snapshot(key(1, 0), 0..16).await.unwrap();
        let blocks = exported.iter().map(|&block| (block, snapshot.fingerprint(block))).collect();
        drop(snapshot);
        let bytes = volume.mark_exported(key(1, 0), &blocks).await.unwrap();
        assert_eq!(bytes.0, (exported.len() * BLOCK) as u64);
        let snapshot = volume.snapshot(key(1, 0), 0..16).await.unwrap();
        assert_eq!(places.map(|block| snapshot.state(block) == BlockState::Clean), clean);
    }
}

#[tokio::test]
async fn what_is_older_than_a_trim_or_a_reclaim_is_refused_also_after_a_kill() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    write(&volume, key(1, 1), 0, pattern(2, 0, BLOCK)).await;
    let content = ContentName { inode: InodeId(1), generation: ContentGeneration(1) };
    let size = u64::from(CHUNK_SIZE);
    let freed = volume.trim(content, size, 1000, WriteEpoch(4)).await.unwrap();
    assert_eq!(freed.0, 2 * BLOCK as u64);
    let keys = volume.chunks(content, ChunkIndex(0), 10).await.unwrap();
    assert_eq!(keys, [key(1, 0)]);
    let present = volume.presence(&[content]).await.unwrap();
    assert_eq!((present[0].written.0, present[0].end), (1000, 1000));
    drop(volume);
    let volume = open(&disk).await;
    let mut request = write_request(key(1, 0), 0, vec![1; 10]);
    request.write_epoch = WriteEpoch(3);
    let stale = volume.write(request).await;
    assert!(matches!(stale, Err(EngineError::StaleEpoch)), "{stale:?}");
    volume.reclaim(&[(InodeId(1), ContentGeneration(1))]).await.unwrap();
    let stale = volume.write(write_request(key(1, 0), 0, vec![1; 10])).await;
    assert!(matches!(stale, Err(EngineError::StaleContent)), "{stale:?}");
    assert_eq!(used_pages(&volume).await, 0);
}

#[tokio::test]
async fn a_damaged_page_is_an_error_and_never_bytes_also_under_an_overwrite() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 8192)).await;
    volume.sync().await.unwrap();
    let snapshot = volume.snapshot(key(1, 0), 0..1).await.unwrap();
    let page = snapshot.sections().page(1).unwrap().page;
    disk.flip(page * 4096 + 17, 3);
    let error = volume.load(&snapshot, 0, 2).await.unwrap_err();
    assert!(matches!(error, EngineError::Corrupt { block: 0, clean: false, .. }), "{error}");
    assert_eq!(volume.load(&snapshot, 0, 1).await.unwrap().bytes, pattern(1, 0, 4096));
    let error = volume.write(write_request(key(1, 0), 5000, vec![1; 10])).await.unwrap_err();
    assert!(matches!(error, EngineError::Corrupt { .. }), "{error}");
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    assert_eq!(volume.statistics().bad_blocks, 1);
    // As a whole it can be replaced.
    write(&volume, key(1, 0), 4096, pattern(3, 0, 4096)).await;
    assert_eq!(volume.statistics().bad_blocks, 0);
    assert_holds(&volume, key(1, 0), 4096, &pattern(3, 0, 4096)).await;
}

#[tokio::test]
async fn a_full_disk_refuses_without_damage_and_works_again_when_emptied() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    let mut written = 0;
    let error = loop {
        let bytes = pattern(written.into(), 0, 1 << 20);
        match volume.write(write_request(key(5, written), 0, bytes)).await {
            Ok(_) => written += 1,
            Err(error) => break error,
        }
    };
    assert!(matches!(error, EngineError::NoSpace), "{error}");
    assert!(written >= 22, "{written} MiB of 24");
    for index in 0..written {
        assert_holds(&volume, key(5, index), 0, &pattern(index.into(), 0, 1 << 20)).await;
    }
    drop(volume);
    let volume = open(&disk).await;
    let content = ContentName { inode: InodeId(5), generation: ContentGeneration(1) };
    // The end of a truncation takes a page, also on a full disk.
    let size = u64::from(CHUNK_SIZE);
    volume.trim(content, size, 8 * size + 10, WriteEpoch(1)).await.unwrap();
    assert_eq!(used_pages(&volume).await, 8 * 256 + 1);
    write(&volume, key(6, 0), 0, pattern(1, 0, 1 << 20)).await;
    volume.reclaim(&[(InodeId(5), ContentGeneration(1))]).await.unwrap();
    assert_eq!(used_pages(&volume).await, 256);
}

#[tokio::test]
async fn writes_are_remembered_over_a_kill_so_that_a_repetition_is_only_answered() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    let mut request = write_request(key(1, 0), BLOCK * 7, pattern(1, 0, 2 * BLOCK));
    (request.session, request.number) = (SessionId(6), WriteNumber(17));
    let version = volume.write(request).await.unwrap();
    drop(volume);
    let volume = open(&disk).await;
    assert_eq!(volume.applied(SessionId(6), WriteNumber(17)).await, Some(version));
    assert_eq!(volume.applied(SessionId(6), WriteNumber(18)).await, None);
}

#[tokio::test]
async fn many_writers_of_one_section_lose_nothing_and_share_syncs() {
    let disk = new_disk(1);
    let volume = Arc::new(open(&disk).await);
    let before = disk.tally().syncs;
    let writers = (0..32_usize).map(|nth| {
        let volume = Arc::clone(&volume);
        tokio::spawn(async move {
            write(&volume, key(1, 0), nth * 16_384, pattern(nth as u64, 0, 16_384)).await;
            volume.sync().await.unwrap();
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    assert!(disk.tally().syncs - before < 32, "{} syncs", disk.tally().syncs - before);
    for nth in 0..32_usize {
        assert_holds(&volume, key(1, 0), nth * 16_384, &pattern(nth as u64, 0, 16_384)).await;
    }
    assert_eq!(used_pages(&volume).await, 128);
}

#[tokio::test]
async fn a_reader_keeps_its_version_while_others_write_and_sync() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    let snapshot = volume.snapshot(key(1, 0), 0..1).await.unwrap();
    for round in 2..200 {
        write(&volume, key(1, 0), 0, pattern(round, 0, BLOCK)).await;
        volume.sync().await.unwrap();
    }
    let loaded = volume.load(&snapshot, 0, 16).await.unwrap();
    assert_eq!(loaded.bytes, pattern(1, 0, BLOCK));
    drop(snapshot);
    assert_eq!(used_pages(&volume).await, 16);
}

#[tokio::test]
async fn other_disks_are_refused() {
    let disk = new_disk(1);
    drop(open(&disk).await);
    let other = Options { cluster: ClusterId([8; 16]), ..options(&disk, 1) };
    assert!(matches!(Volume::open(&other).await, Err(OpenError::Superblock(_))));
    let lost = new_disk(3);
    drop(open(&lost).await);
    for page in [0, 32] {
        erase(&lost, page).await;
    }
    let error = Volume::open(&options(&lost, 1)).await.unwrap_err();
    assert!(matches!(error, OpenError::NoSuperblock), "{error}");
    let blank = Options { blank: None, ..options(&new_disk(2), 1) };
    assert!(matches!(Volume::open(&blank).await, Err(OpenError::Blank)));
    disk.flip(32 * 4096 + 100, 1);
    drop(open(&disk).await);
    disk.flip(100, 1);
    drop(open(&disk).await);
}
