//! Files that are cut within a page that is damaged, or that the disk fails to read.

use std::time::{Duration, Instant};

use millrace_protocol::target::ContentName;
use millrace_runtime::{Clock, VirtualTime};
use millrace_types::{BlockState, ByteLen, ContentGeneration, InodeId, Timestamp, WriteEpoch};

use super::{
    BLOCK, CHUNK_SIZE, EngineError, SimulatedDisk, Volume, fill, key, new_disk, open, open_by,
    options, pattern, used_pages, write, write_request,
};
use crate::volume::{checkpoint::PATIENCE, ends::UnreadCuts};

const CONTENT: ContentName = ContentName { inode: InodeId(1), generation: ContentGeneration(1) };

/// Within page 20, which is in block 1.
const SIZE: usize = 20 * 4096 + 100;

async fn cut(volume: &Volume, size: usize, epoch: u32) -> Result<ByteLen, EngineError> {
    volume.trim(CONTENT, u64::from(CHUNK_SIZE), size as u64, WriteEpoch(epoch)).await
}

/// Writes under a write epoch.
async fn write_under(volume: &Volume, epoch: u32, offset: usize, bytes: Vec<u8>) {
    let mut request = write_request(key(1, 0), offset, bytes);
    request.write_epoch = WriteEpoch(epoch);
    volume.write(request).await.unwrap();
}

async fn page(volume: &Volume, page: u32) -> Result<Vec<u8>, EngineError> {
    let block = u16::try_from(page / 16).unwrap();
    let snapshot = volume.snapshot(key(1, 0), block..block + 1).await?;
    Ok(volume.load(&snapshot, page, 1).await?.bytes.to_vec())
}

async fn assert_bad(volume: &Volume) {
    let found = page(volume, 20).await;
    assert!(matches!(found, Err(EngineError::Corrupt { block: 1, .. })), "{found:?}");
    assert_eq!(page(volume, 19).await.unwrap(), pattern(1, 19 * 4096, 4096));
    assert_eq!(page(volume, 21).await.unwrap(), [0_u8; 4096]);
}

/// Where page 20 lies, when everything is durable.
async fn place(volume: &Volume) -> u64 {
    volume.sync().await.unwrap();
    volume.snapshot(key(1, 0), 1..2).await.unwrap().disk_page(20).unwrap()
}

#[tokio::test]
async fn a_cut_within_a_damaged_page_is_made_and_the_page_stays_bad_until_it_is_overwritten() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 5 * BLOCK)).await;
    let place = place(&volume).await;
    disk.flip(place * 4096 + 99, 4);
    assert_eq!(cut(&volume, SIZE, 1).await.unwrap(), ByteLen(59 * 4096));
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    assert_eq!(used_pages(&volume).await, 21, "it stays where it is");
    assert_bad(&volume).await;
    // As it was written, it does not come back: not when the disk reads it well, nor with a second
    // cut, nor when the file has grown again.
    disk.flip(place * 4096 + 99, 4);
    assert_bad(&volume).await;
    cut(&volume, SIZE - 50, 2).await.unwrap();
    assert_bad(&volume).await;
    write_under(&volume, 2, 2 * BLOCK, pattern(3, 0, 10)).await;
    assert_bad(&volume).await;
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    drop(volume);
    let volume = open(&disk).await;
    assert_bad(&volume).await;
    assert_eq!(volume.findings(None, 9).len(), 1, "also after a kill");
    write_under(&volume, 2, 20 * 4096, pattern(4, 0, 4096)).await;
    assert_eq!(page(&volume, 20).await.unwrap(), pattern(4, 0, 4096));
    assert!(volume.findings(None, 9).is_empty());
}

/// It is for others to say whether the bucket has its block.
#[tokio::test]
async fn a_damaged_clean_page_within_which_a_file_is_cut_stays_clean_and_bad() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    fill(&volume, key(1, 0), 0, &pattern(1, 0, 3 * BLOCK), WriteEpoch(0)).await.unwrap();
    disk.flip(place(&volume).await * 4096 + 99, 4);
    cut(&volume, SIZE, 1).await.unwrap();
    assert_bad(&volume).await;
    let found = page(&volume, 20).await;
    assert!(matches!(found, Err(EngineError::Corrupt { clean: true, .. })), "{found:?}");
    let snapshot = volume.snapshot(key(1, 0), 0..3).await.unwrap();
    let states = [0, 1, 2].map(|block| snapshot.state(block));
    assert_eq!(states, [BlockState::Clean, BlockState::Clean, BlockState::Absent]);
}

/// A file whose page 20 the disk fails to read, the time that passes, and the page's place.
async fn unreadable() -> (SimulatedDisk, Volume, VirtualTime, u64) {
    let disk = new_disk(1);
    let (clock, time) = Clock::manual(Timestamp(0));
    let volume = open_by(clock, options(&disk, 1)).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 5 * BLOCK)).await;
    let place = place(&volume).await;
    disk.set_unreadable(place, true);
    (disk, volume, time, place)
}

async fn assert_cut_fails(volume: &Volume) {
    let cut = cut(volume, SIZE, 1).await;
    assert!(matches!(cut, Err(EngineError::Disk(_))), "{cut:?}");
}

#[tokio::test]
async fn a_cut_fails_until_its_page_is_read_minutes_later_and_holds_nobody_up() {
    let (disk, volume, time, place) = unreadable().await;
    for _ in 0..3 {
        assert_cut_fails(&volume).await;
        time.advance(PATIENCE / 4);
    }
    write_under(&volume, 0, 0, pattern(1, 0, 100)).await;
    disk.set_unreadable(place, false);
    cut(&volume, SIZE, 1).await.unwrap();
    let mut expected = pattern(1, 20 * 4096, 4096);
    expected[100..].fill(0);
    assert_eq!(page(&volume, 20).await.unwrap(), expected);
    // For the next one the time begins anew.
    disk.set_unreadable(self::place(&volume).await, true);
    time.advance(PATIENCE);
    let next = cut(&volume, SIZE - 50, 2).await;
    assert!(matches!(next, Err(EngineError::Disk(_))), "{next:?}");
}

#[tokio::test]
async fn a_cut_within_a_page_that_is_not_read_any_more_is_made_after_some_minutes() {
    let (disk, volume, time, place) = unreadable().await;
    assert_cut_fails(&volume).await;
    time.advance(PATIENCE - Duration::from_secs(1));
    assert_cut_fails(&volume).await;
    time.advance(Duration::from_secs(1));
    cut(&volume, SIZE, 1).await.unwrap();
    // What lies there is from before the cut.
    disk.set_unreadable(place, false);
    assert_bad(&volume).await;
}

#[tokio::test]
async fn a_cut_on_a_disk_that_reads_nothing_is_waited_for_anew() {
    let (disk, volume, time, _) = unreadable().await;
    assert_cut_fails(&volume).await;
    time.advance(PATIENCE);
    // Whether it reads anything is tried on its first page.
    disk.set_unreadable(0, true);
    assert_cut_fails(&volume).await;
    disk.set_unreadable(0, false);
    assert_cut_fails(&volume).await;
    time.advance(PATIENCE);
    cut(&volume, SIZE, 1).await.unwrap();
}

#[test]
fn how_long_cuts_have_failed_is_remembered_of_a_bounded_number_for_a_bounded_time() {
    let (cuts, start) = (UnreadCuts::default(), Instant::now());
    let content = |inode| ContentName { inode: InodeId(inode), ..CONTENT };
    for inode in 0..4100 {
        assert_eq!(cuts.note(content(inode), start), Duration::ZERO);
    }
    assert_eq!(cuts.note(content(0), start + PATIENCE), PATIENCE);
    assert_eq!(cuts.note(content(4099), start + PATIENCE), Duration::ZERO, "no room");
    assert_eq!(cuts.note(content(4099), start + 4 * PATIENCE), Duration::ZERO, "room again");
    assert_eq!(cuts.note(content(4099), start + 5 * PATIENCE), PATIENCE);
}
