//! What the volume does when its index gets no room, or meets damage as it is written.

use std::time::Duration;

use millrace_types::{ByteLen, ErrorKind};

use super::{
    BLOCK, CHUNK_SIZE, ContentGeneration, ContentName, EngineError, InodeId, LAYOUT, Options,
    Volume, WriteEpoch, assert_holds, erase, key, new_disk, open, options, pattern, read,
    used_pages, write, write_request,
};
use crate::{
    disk::{Operation, simulated::SimulatedDisk},
    format::{fact::FactNumber, finding::Fault, section::SectionKey, table::TableKey},
    index::IndexError,
    space::Purpose,
};

pub(super) const FILES: u64 = 400;

/// A cache with room for no node: everything comes from the disk again.
async fn open_without_cache(disk: &SimulatedDisk) -> Volume {
    Volume::open(&Options { cache_bytes: 4096, ..options(disk, 1) }).await.unwrap()
}

/// Files enough for several leaves, all in the tree.
pub(super) async fn many_files() -> (SimulatedDisk, Volume) {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    for inode in 1..=FILES {
        write(&volume, key(inode, 0), 0, pattern(inode, 0, 5000)).await;
    }
    volume.close().await.unwrap();
    drop(volume);
    let volume = open_without_cache(&disk).await;
    assert!(volume.shared().index.statistics().nodes > 6, "several leaves");
    (disk, volume)
}

/// The page of the leaf to which a key belongs, found by damaging all of them.
pub(super) async fn leaf_of(disk: &SimulatedDisk, volume: &Volume, name: TableKey) -> u64 {
    let segments = volume.shared().index.segments();
    for page in segments.iter().flat_map(|segment| segment.first..segment.end()) {
        disk.flip(page * 4096 + 1000, 0);
        let survey = volume.shared().index.survey(name.encode(), 1).await.unwrap();
        disk.flip(page * 4096 + 1000, 0);
        // Those on the way to it are damaged at another level.
        if survey.damage.is_some_and(|damage| damage.level == 0) {
            return page;
        }
    }
    panic!("no leaf holds {name:?}");
}

pub(super) fn section_of(inode: u64) -> TableKey {
    TableKey::Section(SectionKey { chunk: key(inode, 0), section: 0 })
}

/// Reads every file; returns those whose leaf is damaged.
pub(super) async fn lost_files(volume: &Volume, seed: impl Fn(u64) -> u64) -> Vec<u64> {
    let mut lost = Vec::new();
    for inode in 1..=FILES {
        match read(volume, key(inode, 0), 0..1).await {
            Ok(found) => assert_eq!(found[0], Some(pattern(seed(inode), 0, 1)[0]), "{inode}"),
            Err(EngineError::Index(error)) => {
                assert!(matches!(*error, IndexError::Damaged { .. }), "{error}");
                lost.push(inode);
            }
            Err(error) => panic!("{error}"),
        }
    }
    lost
}

#[tokio::test]
async fn a_checkpoint_goes_round_a_leaf_that_was_damaged_after_its_keys_were_read() {
    let (disk, volume) = many_files().await;
    let leaf = leaf_of(&disk, &volume, section_of(100)).await;
    write(&volume, key(100, 0), 0, pattern(7, 0, 5000)).await;
    write(&volume, key(300, 0), 0, pattern(7, 0, 5000)).await;
    let seed = |inode| if inode == 100 || inode == 300 { 7 } else { inode };
    assert!(lost_files(&volume, seed).await.is_empty());
    disk.flip(leaf * 4096 + 1000, 0);
    volume.shared().checkpoint().await.unwrap();
    assert_eq!(volume.loss_count(), 1, "what was acknowledged is lost");
    let lost = lost_files(&volume, seed).await;
    assert!(lost.contains(&100) && !lost.contains(&300) && lost.len() < 100, "{lost:?}");
    volume.take_second_looks().await.unwrap();
    let (name, finding) = volume.findings(None, 9)[0];
    assert_eq!((finding.page, finding.fault), (leaf, Fault::Index), "{name:?}");

    // The older version does not come back with the page.
    disk.flip(leaf * 4096 + 1000, 0);
    assert_eq!(lost_files(&volume, seed).await, lost);
    // Many checkpoints further, and after a kill, everything else is as it was.
    for round in 0..3000 {
        write(&volume, key(399, 0), 0, pattern(round, 0, 100)).await;
    }
    drop(volume);
    let volume = open(&disk).await;
    assert_eq!(volume.loss_count(), 1);
    let seed = |inode| if inode == 399 { 2999 } else { seed(inode) };
    assert_eq!(lost_files(&volume, seed).await, lost);
    assert_eq!(volume.findings(None, 9).len(), 1);
}

/// Files of which the 100th is changed, and the page of the leaf to which that belongs.
pub(super) async fn one_changed() -> (SimulatedDisk, Volume, u64) {
    let (disk, volume) = many_files().await;
    let leaf = leaf_of(&disk, &volume, section_of(100)).await;
    write(&volume, key(100, 0), 0, pattern(7, 0, 5000)).await;
    (disk, volume, leaf)
}

/// Nothing is lost, now and after a kill.
async fn assert_all_there(disk: &SimulatedDisk, volume: Volume) {
    let seed = |inode| if inode == 100 { 7 } else { inode };
    assert_eq!(volume.loss_count(), 0);
    assert!(lost_files(&volume, seed).await.is_empty());
    drop(volume);
    let volume = open(disk).await;
    assert_eq!(volume.loss_count(), 0);
    assert!(lost_files(&volume, seed).await.is_empty());
}

#[tokio::test]
async fn a_leaf_that_the_disk_fails_to_read_for_a_moment_is_waited_for() {
    let (disk, volume, leaf) = one_changed().await;
    disk.set_unreadable(leaf, true);
    for _ in 0..3 {
        let error = volume.shared().checkpoint().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Disk, "{error}");
    }
    disk.set_unreadable(leaf, false);
    volume.shared().checkpoint().await.unwrap();
    assert_all_there(&disk, volume).await;
}

#[tokio::test]
async fn a_leaf_that_is_not_read_for_as_long_as_patience_lasts_is_gone_round() {
    let (disk, volume, leaf) = one_changed().await;
    disk.set_unreadable(leaf, true);
    volume.shared().write_checkpoint(Duration::from_secs(3600)).await.unwrap_err();
    assert_eq!(volume.loss_count(), 0);
    volume.shared().write_checkpoint(Duration::ZERO).await.unwrap();
    assert_eq!(volume.loss_count(), 1, "what was acknowledged is lost");
    disk.set_unreadable(leaf, false);
    let lost = lost_files(&volume, |inode| inode).await;
    assert!(lost.contains(&100) && lost.len() < 100, "{lost:?}");
}

#[tokio::test]
async fn writers_whose_ring_is_full_wait_for_a_leaf_and_lose_nothing() {
    let (disk, volume, leaf) = one_changed().await;
    disk.set_unreadable(leaf, true);
    let writing = async {
        // More than the ring takes without a checkpoint; in the end as it was.
        for round in 0..=399 {
            write(&volume, key(399, 0), 0, pattern(round, 0, 5000)).await;
        }
    };
    futures::join!(writing, async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        disk.set_unreadable(leaf, false);
    });
    assert_all_there(&disk, volume).await;
}

#[tokio::test]
async fn a_write_that_fails_in_a_checkpoint_is_no_damage_and_a_sync_fails_the_journal() {
    let (disk, volume, _) = one_changed().await;
    // After the batch with the checkpoint's note.
    disk.fail(Operation::Write, 1, libc::EIO);
    let error = volume.shared().checkpoint().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Disk, "{error}");
    assert_eq!((volume.loss_count(), volume.has_failed()), (0, false));
    volume.shared().checkpoint().await.unwrap();
    write(&volume, key(100, 0), 0, pattern(8, 0, 5000)).await;
    // After that of the journal.
    disk.fail(Operation::Sync, 1, libc::EIO);
    volume.shared().checkpoint().await.unwrap_err();
    assert_eq!((volume.loss_count(), volume.has_failed()), (1, true));
    let request = write_request(key(300, 0), 0, pattern(8, 0, 5000));
    volume.write(request).await.expect_err("nothing is taken any more");
}

#[tokio::test]
async fn a_loss_of_power_and_a_damaged_leaf_together_do_not_refuse_the_start() {
    let (disk, volume) = many_files().await;
    let leaf = leaf_of(&disk, &volume, section_of(100)).await;
    write(&volume, key(100, 0), 0, pattern(7, 0, 5000)).await;
    volume.sync().await.unwrap();
    // One more batch says that the write is durable: replay believes it without a look at the leaf.
    write(&volume, key(300, 0), 0, pattern(300, 0, 5000)).await;
    volume.sync().await.unwrap();
    drop(volume);
    disk.flip(leaf * 4096 + 1000, 0);
    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 2, "for the cut, and for the leaf");
    let lost = lost_files(&volume, |inode| inode).await;
    assert!(lost.contains(&100) && lost.len() < 100, "{lost:?}");
    write(&volume, key(399, 0), 0, pattern(399, 0, 5000)).await;
    volume.shared().checkpoint().await.unwrap();
}

/// Opens a target after a loss of power, while the disk reads a page of it only a moment later.
async fn open_with_patience(disk: &SimulatedDisk, page: u64) -> Volume {
    disk.set_unreadable(page, true);
    let opening = async { Volume::open(&options(disk, 2)).await.unwrap() };
    let (volume, ()) = futures::join!(opening, async {
        tokio::time::sleep(Duration::from_millis(250)).await;
        disk.set_unreadable(page, false);
    });
    volume
}

/// Nobody knows that the record is durable, so replay holds it against what the disk has.
#[tokio::test]
async fn a_pending_record_over_a_damaged_leaf_does_not_refuse_the_start() {
    let (disk, volume, leaf) = one_changed().await;
    volume.sync().await.unwrap();
    drop(volume);
    disk.flip(leaf * 4096 + 1000, 0);
    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 2, "for the cut, and for the leaf");
    let lost = lost_files(&volume, |inode| inode).await;
    assert!(lost.contains(&100) && lost.len() < 100, "{lost:?}");
}

#[tokio::test]
async fn a_pending_record_over_a_leaf_that_is_read_a_moment_later_is_believed() {
    let (disk, volume, leaf) = one_changed().await;
    drop(volume);
    let volume = open_with_patience(&disk, leaf).await;
    assert_eq!(volume.loss_count(), 1, "for the cut");
    let seed = |inode| if inode == 100 { 7 } else { inode };
    assert!(lost_files(&volume, seed).await.is_empty());
}

/// A file with two records that nobody knows to be durable, of which the first has lost its data;
/// and the page of the leaf against which the second must be held.
async fn changed_twice() -> (SimulatedDisk, u64) {
    let (disk, volume, leaf) = one_changed().await;
    let page = volume.snapshot(key(100, 0), 0..1).await.unwrap().disk_page(0).unwrap();
    write(&volume, key(100, 0), 0, pattern(8, 0, 5000)).await;
    drop(volume);
    erase(&disk, page).await;
    (disk, leaf)
}

#[tokio::test]
async fn behind_a_dropped_record_one_over_a_leaf_that_cannot_be_read_is_dropped_as_well() {
    let (disk, leaf) = changed_twice().await;
    disk.flip(leaf * 4096 + 1000, 0);
    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 1, "for the cut; nothing is stored in the leaf");
    let lost = lost_files(&volume, |inode| inode).await;
    assert!(lost.contains(&100) && lost.len() < 100, "{lost:?}");

    let (disk, leaf) = changed_twice().await;
    let volume = open_with_patience(&disk, leaf).await;
    let seed = |inode| if inode == 100 { 8 } else { inode };
    assert!(lost_files(&volume, seed).await.is_empty());
}

#[tokio::test]
async fn a_finding_whose_section_cannot_be_read_does_not_refuse_the_start() {
    let (disk, volume) = many_files().await;
    let page = volume.snapshot(key(100, 0), 0..1).await.unwrap().disk_page(0).unwrap();
    disk.flip(page * 4096 + 9, 0);
    read(&volume, key(100, 0), 0..1).await.expect_err("it is damaged");
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    let leaf = leaf_of(&disk, &volume, section_of(100)).await;
    drop(volume);
    disk.set_unreadable(leaf, true);
    let volume = open(&disk).await;
    assert_eq!(volume.findings(None, 9).len(), 1, "nobody can tell that it is none any more");
}

#[tokio::test]
async fn a_damaged_leaf_of_marks_does_not_end_reclaims() {
    let (disk, volume) = many_files().await;
    let size = u64::from(CHUNK_SIZE);
    for inode in (1..=FILES).map(InodeId) {
        let content = ContentName { inode, generation: ContentGeneration(1) };
        volume.trim(content, size, size, WriteEpoch(1)).await.unwrap();
    }
    volume.close().await.unwrap();
    drop(volume);
    let volume = open_without_cache(&disk).await;
    let leaf = leaf_of(&disk, &volume, TableKey::Mark(InodeId(200))).await;
    disk.flip(leaf * 4096 + 1000, 0);
    let both = [200, 399].map(|inode| (InodeId(inode), ContentGeneration(1)));
    assert_eq!(volume.reclaim(&both).await.unwrap(), ByteLen(4 * 4096));
    let late = volume.write(write_request(key(399, 0), 0, vec![1])).await;
    assert!(matches!(late, Err(EngineError::StaleContent)), "{late:?}");
}

#[tokio::test]
async fn without_the_leaf_of_its_facts_a_checkpoint_fails_and_names_the_page() {
    let (disk, volume) = many_files().await;
    let leaf = leaf_of(&disk, &volume, TableKey::Fact(FactNumber::JournalPosition)).await;
    write(&volume, key(300, 0), 0, pattern(7, 0, 5000)).await;
    let seed = |inode| if inode == 300 { 7 } else { inode };
    assert!(lost_files(&volume, seed).await.is_empty());
    disk.flip(leaf * 4096 + 1000, 0);
    for _ in 0..2 {
        let error = volume.shared().checkpoint().await.unwrap_err();
        assert!(error.to_string().contains(&format!("page {leaf} ")), "{error}");
    }
    assert_holds(&volume, key(300, 0), 0, &pattern(7, 0, 5000)).await;
    // Readable again, nothing is missing.
    disk.flip(leaf * 4096 + 1000, 0);
    volume.shared().checkpoint().await.unwrap();
    drop(volume);
    let volume = open(&disk).await;
    assert_holds(&volume, key(300, 0), 0, &pattern(7, 0, 5000)).await;
}

/// Gives the index single pages that are apart, until its root record can name no more.
async fn scatter(volume: &Volume) {
    let mut between = Vec::new();
    while volume.shared().index.segments_left() > 0 {
        let reservation = volume.shared().reserve_for_index(1).await.unwrap();
        for extent in reservation.into_index() {
            let segment = crate::format::root::Segment { first: extent.first, pages: 1 };
            volume.shared().index.extend(segment).unwrap();
        }
        between.push(volume.shared().reserve(1, Purpose::Store).await.unwrap());
    }
}

fn index_pages(volume: &Volume) -> (u64, u64) {
    let segments = volume.shared().index.segments();
    let named = segments.iter().map(|segment| u64::from(segment.pages)).sum();
    (named, volume.shared().space.totals().index)
}

#[tokio::test]
async fn an_index_in_as_many_places_as_can_be_named_takes_no_page_that_it_cannot_name() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    scatter(&volume).await;
    let (named, taken) = index_pages(&volume);
    assert_eq!(named, taken);
    for _ in 0..3 {
        let error = volume.shared().grow_index().await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NoSpace);
        assert!(error.to_string().contains("fragmented"), "{error}");
        assert_eq!(index_pages(&volume), (named, taken));
    }
    // What it has does for long: writes and checkpoints go on.
    for inode in 0..200 {
        write(&volume, key(inode, 0), 0, pattern(inode, 0, BLOCK)).await;
        volume.shared().checkpoint().await.unwrap();
    }
    assert_eq!(used_pages(&volume).await, 200 * 16);
    drop(volume);
    let volume = open(&disk).await;
    assert_eq!(index_pages(&volume), (named, taken));
    assert_holds(&volume, key(199, 0), 0, &pattern(199, 0, BLOCK)).await;
}

#[tokio::test]
async fn an_index_grows_in_few_places_where_the_space_is_in_pieces() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    let before = volume.shared().index.segments().len();
    // Every second page is free.
    let mut pages = Vec::new();
    while let Ok(reservation) = volume.shared().reserve(1, Purpose::Store).await {
        pages.push(reservation);
    }
    pages.sort_by_key(|reservation| reservation.extents()[0].first);
    let mut nth = 0;
    pages.retain(|_| {
        nth += 1;
        nth % 2 == 0
    });
    let free = LAYOUT.capacity - 512 - pages.len() as u64;
    assert!(free > 4000, "{free}");
    for _ in 0..3 {
        volume.shared().grow_index().await.unwrap();
        let (named, taken) = index_pages(&volume);
        assert_eq!(named, taken);
    }
    let left = volume.shared().index.segments_left();
    assert!(left >= 30, "{left} of {before} are left");
    drop(pages);
    // Where the space is whole again, one place is enough.
    volume.shared().grow_index().await.unwrap();
    assert!(volume.shared().index.segments_left() >= left - 1);
}
