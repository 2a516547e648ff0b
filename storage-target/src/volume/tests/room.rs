//! Regions that are made ready for small durable writes.

use std::sync::Arc;

use super::{BLOCK, assert_holds, key, options, pattern, write, write_request};
use crate::{
    disk::{Operation, simulated::SimulatedDisk},
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
    let growth = Growth { backing: Arc::new(disk.clone()), capacity: GROWING.capacity };
    let blank = options(&disk, 1).blank.map(|blank| Blank { layout: GROWING, ..blank });
    let options = Options { blank, growth: Some(growth), ..options(&disk, 1) };
    let volume = Volume::open(&options).await.unwrap();
    // Less is left than a region's half.
    for index in 0..8 {
        write(&volume, key(100, index), 0, pattern(0, 0, 1 << 20)).await;
    }
    volume.sync().await.unwrap();
    (disk, volume)
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
