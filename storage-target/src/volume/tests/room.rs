//! Regions that are made ready for small durable writes.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use futures::{future::BoxFuture, poll};
use tokio::sync::Mutex;

use super::{BLOCK, assert_holds, key, options, pattern, write, write_request};
use crate::{
    disk::{Backing, DiskError, Operation, simulated::SimulatedDisk},
    format::{free_map::REGION_PAGES, superblock::Layout},
    page_checksum::PAGE,
    volume::{Blank, Growth, Options, Volume},
};

/// A small ring and three regions, of which a start takes the first.
const GROWING: Layout =
    Layout { capacity: 512 + 3 * 8192, roots: 16, journal: 256, journal_pages: 256, regions: 512 };

const REGION: u64 = REGION_PAGES as u64 * PAGE as u64;

async fn growing() -> (SimulatedDisk, Volume) {
    let disk = SimulatedDisk::growing(GROWING.capacity * PAGE as u64, 1);
    let volume = growing_on(&disk, Arc::new(disk.clone())).await;
    (disk, volume)
}

async fn growing_on(disk: &SimulatedDisk, backing: Arc<dyn Backing>) -> Volume {
    let growth = Growth { backing, capacity: GROWING.capacity };
    let blank = options(disk, 1).blank.map(|blank| Blank { layout: GROWING, ..blank });
    let options = Options { blank, growth: Some(growth), ..options(disk, 1) };
    let volume = Volume::open(&options).await.unwrap();
    // Less is left than a region's half.
    for index in 0..8 {
        write(&volume, key(100, index), 0, pattern(0, 0, 1 << 20)).await;
    }
    volume.sync().await.unwrap();
    volume
}

/// What lies under a disk, and grows when the gate is open; it goes on when nobody waits for it.
#[derive(Clone, Debug)]
struct Gated {
    disk: SimulatedDisk,
    gate: Arc<Mutex<()>>,
    /// Growths so far.
    begun: Arc<AtomicU64>,
}

impl Backing for Gated {
    fn len_bytes(&self) -> io::Result<u64> {
        self.disk.len_bytes()
    }

    fn room_bytes(&self) -> io::Result<u64> {
        self.disk.room_bytes()
    }

    fn grow(
        self: Arc<Self>,
        old_len: u64,
        new_len: u64,
    ) -> BoxFuture<'static, Result<(), DiskError>> {
        self.begun.fetch_add(1, Ordering::Relaxed);
        let growth = tokio::spawn(async move {
            let _open = self.gate.lock().await;
            Arc::new(self.disk.clone()).grow(old_len, new_len).await
        });
        Box::pin(async move { growth.await.unwrap() })
    }

    fn unlock(&self) {}

    fn release(&self) {}
}

/// Lets whatever goes on beside get on.
async fn others() {
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_small_durable_write_has_the_next_region_written_once_before() {
    let (disk, volume) = growing().await;
    let regions = volume.shared().space.regions();
    let before = disk.tally().bytes_written;
    write(&volume, key(1, 0), 0, pattern(1, 0, 4 * PAGE)).await;
    volume.sync().await.unwrap();
    let large = write_request(key(2, 0), 0, pattern(2, 0, 2 * BLOCK));
    volume.write_durably(large).await.unwrap();
    others().await;
    assert_eq!(volume.shared().space.regions(), regions, "nobody would gain anything");
    assert!(disk.tally().bytes_written - before < REGION);

    let small = write_request(key(3, 0), 0, pattern(3, 0, 4 * PAGE));
    volume.write_durably(small).await.unwrap();
    others().await;
    assert_eq!(volume.shared().space.regions(), regions + 1);
    assert!(disk.tally().bytes_written - before >= REGION);
    for inode in 1..=3 {
        assert_holds(&volume, key(inode, 0), 0, &pattern(inode, 0, 4 * PAGE)).await;
    }
    // There is room enough now.
    let small = write_request(key(3, 0), 0, pattern(4, 0, 4 * PAGE));
    volume.write_durably(small).await.unwrap();
    others().await;
    assert_eq!(volume.shared().space.regions(), regions + 1);
}

/// The kernel tells of what it could not make durable once, and here it tells the wrong one.
#[tokio::test]
async fn a_sync_that_fails_beside_the_journals_fails_the_journal() {
    let (disk, volume) = growing().await;
    write(&volume, key(2, 0), 0, pattern(2, 0, 4 * PAGE)).await;
    disk.fail(Operation::Sync, 0, libc::EIO);
    volume.shared().prepare_region().await.expect_err("its zeros are not durable");
    assert!(volume.has_failed());
    assert_eq!(volume.loss_count(), 1);
    volume.sync().await.expect_err("what was written before may be gone");
    let request = write_request(key(3, 0), 0, pattern(3, 0, 4 * PAGE));
    volume.write(request).await.expect_err("nothing is taken any more");
    assert_holds(&volume, key(2, 0), 0, &pattern(2, 0, 4 * PAGE)).await;
}

#[tokio::test]
async fn a_region_that_cannot_be_written_to_beforehand_is_used_all_the_same() {
    let (disk, volume) = growing().await;
    let regions = volume.shared().space.regions();
    disk.fail(Operation::Write, 3, libc::EIO);
    assert!(volume.shared().prepare_region().await.is_err());
    assert_eq!(volume.shared().space.regions(), regions + 1);
    assert!(!volume.has_failed());
    write(&volume, key(2, 0), 0, pattern(2, 0, 1 << 20)).await;
    assert_holds(&volume, key(2, 0), 0, &pattern(2, 0, 1 << 20)).await;
}

/// Another process may have the place by then.
#[tokio::test]
async fn nothing_is_taken_any_more_once_a_volume_is_closed() {
    let (disk, volume) = growing().await;
    volume.close().await.unwrap();
    let len = disk.len_bytes().unwrap();
    volume.shared().prepare_region().await.expect_err("it is closed");
    assert_eq!(disk.len_bytes().unwrap(), len);
}

#[tokio::test]
async fn a_growth_that_has_begun_is_over_before_a_closed_place_is_let_go_of() {
    let disk = SimulatedDisk::growing(GROWING.capacity * PAGE as u64, 1);
    let gated = Gated { disk: disk.clone(), gate: Arc::default(), begun: Arc::default() };
    let volume = growing_on(&disk, Arc::new(gated.clone())).await;
    let closed = gated.gate.lock().await;
    let (begun, len) = (gated.begun.load(Ordering::Relaxed), disk.len_bytes().unwrap());
    let small = write_request(key(3, 0), 0, pattern(3, 0, 4 * PAGE));
    volume.write_durably(small).await.unwrap();
    while gated.begun.load(Ordering::Relaxed) == begun {
        tokio::task::yield_now().await;
    }
    let mut closing = Box::pin(volume.close());
    for _ in 0..10_000 {
        assert!(poll!(&mut closing).is_pending(), "the region is still to come");
        tokio::task::yield_now().await;
    }
    drop(closed);
    closing.await.unwrap();
    assert_eq!(disk.len_bytes().unwrap(), len + REGION);
}
