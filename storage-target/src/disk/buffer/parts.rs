//! What each target's disk, and what buckets, may have of a pool in hand.
//!
//! Half of the pool is divided among the targets, the other half goes to who comes first. A buffer
//! counts from before it is taken until the disk is done with it: a disk that hangs keeps what is
//! its target's and what is common, and the others have their own. What waits only for its reader
//! does not count.
//!
//! Segments from buckets count until they are stored, and come to a half of each part at most:
//! whatever the buckets do, the disk reads and writes. Those that a link's bucket has not yet sent
//! come to a third, so that one that stands still leaves others a place.
//!
//! Shares, of who holds memory while a bucket is waited for, are an eighth of each part.
//!
//! Who has room here waits for memory, for the disk, or for bytes of an answer that has begun, and
//! never for who waits for room.

use std::sync::Arc;

use millrace_types::LinkId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::{ALIGNMENT, BUFFER_SIZE_MAX};
use crate::shares::Shares;

/// Pages of the largest buffer.
const BUFFER_PAGES: usize = BUFFER_SIZE_MAX / ALIGNMENT;

/// The least of a part, in pages: a buffer for a segment, and one for something else.
const PAGES_MIN: usize = 2 * BUFFER_PAGES;

/// The least that is common to all, likewise.
const COMMON_MIN: usize = 8 * BUFFER_PAGES;

/// The parts that a target has.
#[derive(Debug)]
pub(super) struct Parts {
    own: Part,
    common: Arc<Part>,
    /// How many targets have the pool.
    targets: usize,
}

/// Room for a segment from a bucket, until it is dropped.
#[derive(Debug)]
pub(crate) struct SegmentRoom {
    /// `None` when it has arrived.
    coming: Option<OwnedSemaphorePermit>,
    _segment: OwnedSemaphorePermit,
    _room: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Part {
    /// A permit for each page.
    room: Arc<Semaphore>,
    /// Likewise, for segments.
    segments: Arc<Semaphore>,
    /// Likewise, for those that are coming.
    coming: Shares<LinkId>,
    /// Likewise, for what its holder holds while it waits for more.
    shares: Arc<Semaphore>,
}

impl Parts {
    /// The least that a pool of so many targets needs, in pages.
    pub(super) fn pages_min(targets: usize) -> usize {
        targets.saturating_mul(PAGES_MIN).saturating_add(COMMON_MIN)
    }

    /// Those of the only target, in a pool of so many pages.
    pub(super) fn of_one(pool_pages: usize) -> Arc<Self> {
        let half = || Part::new(pool_pages / 2);
        Arc::new(Self { own: half(), common: Arc::new(half()), targets: 1 })
    }

    /// Those of each of several targets, in a pool that has the least for them.
    pub(super) fn of_each(targets: usize, pool_pages: usize) -> impl Iterator<Item = Arc<Self>> {
        let own = (pool_pages / 2 / targets.max(1)).max(PAGES_MIN);
        let common = Arc::new(Part::new(pool_pages.saturating_sub(own.saturating_mul(targets))));
        (0..targets).map(move |_| {
            Arc::new(Self { own: Part::new(own), common: Arc::clone(&common), targets })
        })
    }

    /// How many targets have the pool.
    pub(super) fn targets(&self) -> usize {
        self.targets
    }

    /// Waits for room for what the disk is to have. May be dropped at its await.
    pub(super) async fn take(&self, pages: u32) -> OwnedSemaphorePermit {
        tokio::select! {
            biased;
            room = self.own.take(pages) => room,
            room = self.common.take(pages) => room,
        }
    }

    /// Waits for room for what a link's bucket is to send. May be dropped at its await.
    pub(super) async fn take_for_segment(&self, link: LinkId, pages: u32) -> SegmentRoom {
        tokio::select! {
            biased;
            room = self.own.take_for_segment(link, pages) => room,
            room = self.common.take_for_segment(link, pages) => room,
        }
    }

    /// Waits for a share, of one buffer at most. May be dropped at its await.
    pub(super) async fn take_share(&self, pages: u32) -> OwnedSemaphorePermit {
        tokio::select! {
            biased;
            share = self.own.take_share(pages) => share,
            share = self.common.take_share(pages) => share,
        }
    }
}

impl SegmentRoom {
    /// The segment has come: the bucket has nothing of it in hand any more.
    pub(crate) fn arrived(&mut self) {
        drop(self.coming.take());
    }
}

impl Part {
    /// Of two buffers at least: one of segments, and one of shares.
    fn new(pages: usize) -> Self {
        let pages = pages.max(PAGES_MIN);
        let count = |pages: usize| u32::try_from(pages).unwrap_or(u32::MAX >> 4);
        Self {
            room: Arc::new(Semaphore::new(pages)),
            segments: Arc::new(Semaphore::new(pages / 2)),
            coming: Shares::new(count(pages / 3)),
            shares: Arc::new(Semaphore::new((pages / 8).max(BUFFER_PAGES))),
        }
    }

    async fn take(&self, pages: u32) -> OwnedSemaphorePermit {
        let room = Arc::clone(&self.room).acquire_many_owned(pages).await;
        room.expect("the room is never closed")
    }

    async fn take_for_segment(&self, link: LinkId, pages: u32) -> SegmentRoom {
        let coming = self.coming.take(link, pages).await;
        let segment = Arc::clone(&self.segments).acquire_many_owned(pages).await;
        let segment = segment.expect("the room is never closed");
        SegmentRoom { coming: Some(coming), _segment: segment, _room: self.take(pages).await }
    }

    async fn take_share(&self, pages: u32) -> OwnedSemaphorePermit {
        let share = Arc::clone(&self.shares).acquire_many_owned(pages).await;
        share.expect("the shares are never closed")
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    /// Pages of the largest buffer.
    const BUFFER: u32 = 272;

    /// The parts of so many targets, of a pool of 160 MiB: 150 buffers.
    fn parts(targets: usize) -> Vec<Arc<Parts>> {
        Parts::of_each(targets, (160 << 20) / ALIGNMENT).collect()
    }

    /// What the disk of a target gets until it has to wait.
    fn take_all(parts: &Parts) -> Vec<OwnedSemaphorePermit> {
        std::iter::from_fn(|| parts.take(BUFFER).now_or_never()).collect()
    }

    /// What the bucket of a link gets likewise.
    fn fetch_all(parts: &Parts, link: u32) -> Vec<SegmentRoom> {
        std::iter::from_fn(|| parts.take_for_segment(LinkId(link), BUFFER).now_or_never()).collect()
    }

    #[test]
    fn the_only_target_has_the_whole_pool() {
        let one = Parts::of_one((160 << 20) / ALIGNMENT);
        assert_eq!(take_all(&one).len(), 150);
        assert_eq!(take_all(&parts(1)[0]).len(), 150);
    }

    #[test]
    fn a_disk_that_keeps_all_that_it_gets_leaves_the_others_their_part() {
        let parts = parts(4);
        let kept = (take_all(&parts[0]), fetch_all(&parts[0], 1));
        assert_eq!(kept.0.len(), 18 + 75, "a quarter of one half, and all of the other");
        assert!(kept.1.is_empty());
        for other in &parts[1..] {
            let mut segments = fetch_all(other, 1);
            assert_eq!(segments.len(), 6, "a link has a third of each part");
            segments.iter_mut().for_each(SegmentRoom::arrived);
            segments.extend(fetch_all(other, 1));
            assert_eq!(segments.len(), 9, "segments have a half");
            assert_eq!(take_all(other).len(), 9);
        }
        drop(kept);
        assert_eq!(take_all(&parts[0]).len(), 18 + 75);
    }

    #[test]
    fn buckets_that_stand_still_leave_room_to_each_other_and_to_the_disks() {
        let parts = parts(2);
        let stopped = fetch_all(&parts[0], 1);
        assert_eq!(stopped.len(), 12 + 25);
        let others = [fetch_all(&parts[0], 2), fetch_all(&parts[1], 1)];
        assert_eq!(others.each_ref().map(Vec::len), [6 + 12, 12], "the first has its third there");
        let more = [fetch_all(&parts[0], 3), fetch_all(&parts[1], 3)];
        assert_eq!(more.each_ref().map(Vec::len), [0, 6], "segments have a half");
        let read = [take_all(&parts[0]), take_all(&parts[1])];
        assert_eq!(read.each_ref().map(Vec::len), [19 + 38, 19]);
    }

    #[test]
    fn with_many_targets_each_has_two_buffers_of_its_own() {
        let parts = parts(64);
        let kept: Vec<_> = parts.iter().map(|parts| take_all(parts)).collect();
        let counts: Vec<_> = kept.iter().map(Vec::len).collect();
        assert_eq!(counts[0], 2 + 22);
        assert_eq!(counts[1..], [2; 63]);
        drop(kept);
        let stopped = fetch_all(&parts[7], 1);
        assert_eq!(stopped.len(), 1 + 7);
        let others = fetch_all(&parts[7], 2);
        assert_eq!((others.len(), take_all(&parts[7]).len()), (4, 1 + 11));
    }

    #[test]
    fn who_waits_with_the_shares_of_a_target_leaves_the_others_theirs() {
        let parts = parts(2);
        let share_all = |parts: &Parts| -> Vec<_> {
            std::iter::from_fn(|| parts.take_share(BUFFER).now_or_never()).collect()
        };
        let kept = share_all(&parts[0]);
        assert_eq!(kept.len(), 4 + 9, "an eighth of each part");
        assert_eq!(share_all(&parts[1]).len(), 4);
        drop(kept);
        assert_eq!(share_all(&parts[1]).len(), 4 + 9);
    }
}
