//! Clean blocks that are damaged, or that the disk fails to read: they go only if their bucket
//! still has them.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU64, Ordering},
};

use futures::future::{BoxFuture, ready};
use millrace_protocol::target::ContentName;
use millrace_runtime::{Clock, VirtualTime};
use millrace_types::Timestamp;

use super::{
    BLOCK, BlockState, EngineError, Fill, SimulatedDisk, Volume, WriteEpoch, assert_holds, fill,
    filling, key, new_disk, open, open_by, options, pattern, read,
    scrub::{damage, listed, name, rest, scrub},
    write,
};
use crate::{
    format::finding::Fault,
    volume::{
        Judge,
        checkpoint::PATIENCE,
        inspect::AGAIN,
        judge::{ANSWER_COUNTS, SILENCE},
    },
};

/// Says the same of every content, or nothing.
#[derive(Debug, Default)]
struct Says {
    answer: Mutex<Option<bool>>,
    asked: AtomicU64,
    /// Passes while it thinks.
    thinks: Mutex<Option<VirtualTime>>,
}

impl Says {
    fn judge_of(volume: &Volume, answer: Option<bool>) -> Arc<Self> {
        let says = Arc::new(Self { answer: Mutex::new(answer), ..Self::default() });
        volume.set_judge(Arc::clone(&says) as Arc<dyn Judge>);
        says
    }

    fn change(&self, answer: Option<bool>) {
        *self.answer.lock().unwrap() = answer;
    }

    fn asked(&self) -> u64 {
        self.asked.load(Ordering::Relaxed)
    }
}

impl Judge for Says {
    fn is_saved(&self, content: ContentName) -> BoxFuture<'_, Option<bool>> {
        assert_eq!(content.generation, key(1, 0).generation);
        self.asked.fetch_add(1, Ordering::Relaxed);
        if let Some(time) = &*self.thinks.lock().unwrap() {
            time.advance(ANSWER_COUNTS);
        }
        Box::pin(ready(*self.answer.lock().unwrap()))
    }
}

/// A volume by a clock of its own, with two clean blocks of chunk 0 of inode 1.
async fn filled() -> (SimulatedDisk, Volume, VirtualTime, Vec<u8>) {
    let (clock, time) = Clock::manual(Timestamp(1_000_000_000_000_000_000));
    let (disk, volume, bytes) = filled_by(clock).await;
    (disk, volume, time, bytes)
}

async fn filled_by(clock: Clock) -> (SimulatedDisk, Volume, Vec<u8>) {
    let disk = new_disk(1);
    let volume = open_by(clock, options(&disk, 1)).await;
    let bytes = pattern(9, 0, 2 * BLOCK);
    fill(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await.unwrap();
    volume.sync().await.unwrap();
    (disk, volume, bytes)
}

async fn states(volume: &Volume, blocks: u16) -> Vec<BlockState> {
    let snapshot = volume.snapshot(key(1, 0), 0..blocks).await.unwrap();
    (0..blocks).map(|block| snapshot.state(block)).collect()
}

/// Has the disk fail to read a page of chunk 0 of inode 1; returns where it lies.
async fn lose(disk: &SimulatedDisk, volume: &Volume, page: u32) -> u64 {
    let block = u16::try_from(page / 16).unwrap();
    let snapshot = volume.snapshot(key(1, 0), block..block + 1).await.unwrap();
    let place = snapshot.disk_page(page).unwrap();
    disk.set_unreadable(place, true);
    place
}

#[tokio::test]
async fn a_damaged_clean_block_is_dropped_to_be_fetched_again() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    Says::judge_of(&volume, Some(true));
    let bytes = pattern(9, 0, 3 * BLOCK);
    fill(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await.unwrap();
    write(&volume, key(1, 0), 2 * BLOCK, pattern(1, 0, 10)).await;
    damage(&disk, &volume, key(1, 0), 17).await;
    scrub(&volume).await;
    assert!(volume.findings(None, 9).is_empty(), "the bucket has it");
    let status = volume.scrub_status();
    assert_eq!((status.progress.findings, status.dropped_blocks), (1, 1));
    let expected = [BlockState::Clean, BlockState::Absent, BlockState::Written];
    assert_eq!(states(&volume, 3).await, expected);
    fill(&volume, key(1, 0), 1, &bytes[BLOCK..2 * BLOCK], WriteEpoch(0)).await.unwrap();
    assert_holds(&volume, key(1, 0), 0, &bytes[..2 * BLOCK]).await;
}

#[tokio::test]
async fn what_was_asked_for_before_the_scrub_dropped_a_block_is_not_stored_after_it() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    Says::judge_of(&volume, Some(true));
    let bytes = pattern(9, 0, 2 * BLOCK);
    fill(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await.unwrap();
    let before = volume.drop_mark(&key(1, 0));
    damage(&disk, &volume, key(1, 0), 17).await;
    scrub(&volume).await;
    assert_eq!(volume.scrub_status().dropped_blocks, 1);
    let late = Fill { mark: before, ..filling(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await };
    assert_eq!(volume.fill(late).await.unwrap(), 0, "its object may be another one by now");
}

#[tokio::test]
async fn a_damaged_clean_block_that_no_bucket_has_any_more_is_kept_and_listed() {
    let (disk, volume, _time, bytes) = filled().await;
    let says = Says::judge_of(&volume, Some(false));
    damage(&disk, &volume, key(1, 0), 17).await;
    // Readers that meet it cost it nothing, and neither do passes.
    drop(read(&volume, key(1, 0), 1..2).await.unwrap_err());
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    scrub(&volume).await;
    assert_eq!(listed(&volume), [name(key(1, 0), 1)]);
    let status = volume.scrub_status();
    assert_eq!((status.progress.findings, status.dropped_blocks), (1, 0));
    assert_eq!(states(&volume, 2).await, [BlockState::Clean; 2]);
    let snapshot = volume.snapshot(key(1, 0), 1..2).await.unwrap();
    for page in (16..32).filter(|page| *page != 17) {
        let start = usize::try_from(page).unwrap() * 4096;
        let loaded = volume.load(&snapshot, page, 1).await.unwrap();
        assert_eq!(loaded.bytes, bytes[start..start + 4096], "page {page}");
    }
    drop(snapshot);
    // Its file has the name of its object again.
    says.change(Some(true));
    scrub(&volume).await;
    assert!(listed(&volume).is_empty());
    assert_eq!(states(&volume, 2).await, [BlockState::Clean, BlockState::Absent]);
}

#[tokio::test]
async fn as_long_as_nobody_answers_everything_is_kept_and_nobody_is_asked_again_and_again() {
    let (disk, volume, time, bytes) = filled().await;
    let says = Says::judge_of(&volume, None);
    for inode in 2..5 {
        fill(&volume, key(inode, 0), 0, &bytes, WriteEpoch(0)).await.unwrap();
    }
    for inode in 1..5 {
        damage(&disk, &volume, key(inode, 0), 17).await;
    }
    scrub(&volume).await;
    assert_eq!((says.asked(), listed(&volume).len()), (1, 4));
    says.change(Some(true));
    scrub(&volume).await;
    assert_eq!((says.asked(), listed(&volume).len()), (1, 4));
    time.advance(SILENCE);
    scrub(&volume).await;
    assert_eq!((says.asked(), listed(&volume).len()), (5, 0));
    assert_eq!(volume.scrub_status().dropped_blocks, 4);
}

#[tokio::test]
async fn without_a_judge_a_damaged_clean_block_is_kept() {
    let (disk, volume, _time, _) = filled().await;
    damage(&disk, &volume, key(1, 0), 17).await;
    scrub(&volume).await;
    assert_eq!(listed(&volume), [name(key(1, 0), 1)]);
    assert_eq!(states(&volume, 2).await, [BlockState::Clean; 2]);
}

#[tokio::test]
async fn an_answer_that_comes_late_drops_nothing() {
    let (disk, volume, time, _) = filled().await;
    let says = Says::judge_of(&volume, Some(true));
    *says.thinks.lock().unwrap() = Some(time);
    damage(&disk, &volume, key(1, 0), 17).await;
    let mark = volume.drop_mark(&key(1, 0));
    scrub(&volume).await;
    assert_eq!((says.asked(), listed(&volume)), (1, vec![name(key(1, 0), 1)]));
    assert_eq!(states(&volume, 2).await, [BlockState::Clean; 2]);
    assert_eq!(volume.drop_mark(&key(1, 0)), mark, "what is being fetched will be stored");
}

#[tokio::test]
async fn where_an_answer_has_come_late_it_is_asked_again_without_another_pass() {
    let (disk, volume, time, _) = filled().await;
    let says = Says::judge_of(&volume, Some(true));
    *says.thinks.lock().unwrap() = Some(time.clone());
    damage(&disk, &volume, key(1, 0), 17).await;
    scrub(&volume).await;
    assert_eq!((says.asked(), listed(&volume)), (1, vec![name(key(1, 0), 1)]));
    *says.thinks.lock().unwrap() = None;
    time.advance(AGAIN);
    rest().await;
    volume.take_second_looks().await.unwrap();
    assert_eq!((says.asked(), listed(&volume)), (2, vec![]));
    assert_eq!(states(&volume, 2).await, [BlockState::Clean, BlockState::Absent]);
}

#[tokio::test]
async fn a_clean_page_that_the_disk_fails_to_read_for_a_moment_stays() {
    let (disk, volume, time, bytes) = filled().await;
    let says = Says::judge_of(&volume, Some(true));
    let place = lose(&disk, &volume, 17).await;
    let failed = read(&volume, key(1, 0), 1..2).await;
    assert!(matches!(failed, Err(EngineError::Disk(_))), "{failed:?}");
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    time.advance(PATIENCE / 2);
    scrub(&volume).await;
    let (_, finding) = volume.findings(None, 1)[0];
    assert_eq!((finding.within, finding.fault), (17, Fault::Unreadable));
    assert_eq!((says.asked(), states(&volume, 2).await), (0, vec![BlockState::Clean; 2]));
    disk.set_unreadable(place, false);
    scrub(&volume).await;
    assert!(listed(&volume).is_empty());
    assert_eq!(volume.scrub_status().dropped_blocks, 0);
    assert_holds(&volume, key(1, 0), 0, &bytes).await;
}

#[tokio::test]
async fn a_clean_page_that_is_not_read_for_minutes_goes_without_another_pass() {
    let (disk, volume, time, _) = filled().await;
    Says::judge_of(&volume, Some(true));
    lose(&disk, &volume, 17).await;
    drop(read(&volume, key(1, 0), 1..2).await.unwrap_err());
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    time.advance(PATIENCE / 2);
    rest().await;
    assert_eq!(states(&volume, 2).await, [BlockState::Clean; 2]);
    time.advance(PATIENCE);
    rest().await;
    volume.take_second_looks().await.unwrap();
    assert!(listed(&volume).is_empty());
    assert_eq!(states(&volume, 2).await, [BlockState::Clean, BlockState::Absent]);
    assert_eq!(volume.scrub_status().dropped_blocks, 1);
}

#[tokio::test]
async fn a_clean_page_that_was_not_read_before_a_restart_goes_without_another_pass() {
    let (clock, time) = Clock::manual(Timestamp(1_000_000_000_000_000_000));
    let (disk, volume, _) = filled_by(clock.clone()).await;
    lose(&disk, &volume, 17).await;
    drop(read(&volume, key(1, 0), 1..2).await.unwrap_err());
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    drop(volume);
    let volume = open_by(clock, options(&disk, 1)).await;
    Says::judge_of(&volume, Some(true));
    assert_eq!(listed(&volume), [name(key(1, 0), 1)]);
    time.advance(AGAIN);
    rest().await;
    volume.take_second_looks().await.unwrap();
    assert!(listed(&volume).is_empty());
    assert_eq!(states(&volume, 2).await, [BlockState::Clean, BlockState::Absent]);
}

#[tokio::test]
async fn where_nobody_has_answered_it_is_asked_again_without_another_pass() {
    let (disk, volume, time, _) = filled().await;
    let says = Says::judge_of(&volume, None);
    damage(&disk, &volume, key(1, 0), 17).await;
    scrub(&volume).await;
    assert_eq!((says.asked(), listed(&volume)), (1, vec![name(key(1, 0), 1)]));
    says.change(Some(true));
    time.advance(AGAIN);
    rest().await;
    volume.take_second_looks().await.unwrap();
    assert!(listed(&volume).is_empty());
    assert_eq!(states(&volume, 2).await, [BlockState::Clean, BlockState::Absent]);
}

#[tokio::test]
async fn a_change_over_a_page_that_the_disk_fails_to_read_has_it_looked_at() {
    let (disk, volume, _time, _) = filled().await;
    lose(&disk, &volume, 17).await;
    let range = 17 * 4096 + 100..17 * 4096 + 200;
    let written = volume.write(super::write_request(key(1, 0), range.start, vec![1; 100])).await;
    assert!(matches!(written, Err(EngineError::Disk(_))), "{written:?}");
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    lose(&disk, &volume, 3).await;
    let zeroed = volume.zero(super::zero_request(key(1, 0), 3 * 4096 + 100..3 * 4096 + 200)).await;
    assert!(matches!(zeroed, Err(EngineError::Disk(_))), "{zeroed:?}");
    assert_eq!(volume.take_second_looks().await.unwrap(), 2);
    assert_eq!(listed(&volume), [name(key(1, 0), 0), name(key(1, 0), 1)]);
}
