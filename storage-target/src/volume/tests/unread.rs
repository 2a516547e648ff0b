//! Leaves that the disk fails to read: what waits for them, for how long, and what goes round them.

use std::sync::Arc;

use millrace_runtime::Clock;
use millrace_types::{ByteLen, ChunkKey, ContentGeneration, ErrorKind, InodeId, Timestamp};

use super::{
    BLOCK, Fill, LAYOUT, Options, Volume, WriteEpoch, ended, fill, filling,
    index::{FILES, leaf_of, lost_files, many_files, one_changed, section_of},
    key, new_disk, open, open_by, options, pattern, two_minutes,
};
use crate::{
    disk::simulated::SimulatedDisk,
    format::{section::SectionKey, table::TableKey},
};

/// Two files, in different leaves.
const BOTH: [(InodeId, ContentGeneration); 2] =
    [(InodeId(100), ContentGeneration(1)), (InodeId(399), ContentGeneration(1))];

/// What the two take.
const BOTH_BYTES: ByteLen = ByteLen(4 * 4096);

/// A cache with room for no node: everything comes from the disk again.
fn without_cache(disk: &SimulatedDisk) -> Options {
    Options { cache_bytes: 4096, ..options(disk, 1) }
}

async fn clean_chunks(volume: &Volume) -> Vec<(ChunkKey, ByteLen)> {
    let (mut from, mut chunks) = (None, Vec::new());
    loop {
        let page = volume.clean_chunks(from).await.unwrap();
        chunks.extend(page.chunks);
        from = page.next;
        if from.is_none() {
            return chunks;
        }
    }
}

#[tokio::test]
async fn a_leaf_that_is_not_read_any_more_ends_neither_reclaims_nor_releases() {
    let (disk, volume) = many_files().await;
    drop(volume);
    let (clock, time) = Clock::manual(Timestamp(0));
    let volume = Arc::new(open_by(clock, without_cache(&disk)).await);
    let clean = key(FILES + 1, 0);
    fill(&volume, clean, 0, &pattern(9, 0, BLOCK), WriteEpoch(0)).await.unwrap();
    let leaf = leaf_of(&disk, &volume, section_of(100)).await;
    disk.set_unreadable(leaf, true);
    let reclaimer = Arc::clone(&volume);
    let reclaimed = tokio::spawn(async move { reclaimer.reclaim(&BOTH).await });
    assert_eq!(ended(reclaimed, &time).await.unwrap(), ByteLen(2 * 4096), "what can be read");
    let chunks = clean_chunks(&volume).await;
    assert_eq!(chunks, [(clean, ByteLen(BLOCK as u64))], "behind the leaf");
}

#[tokio::test]
async fn a_reclaim_waits_for_a_leaf_that_is_read_minutes_later() {
    let (disk, volume) = many_files().await;
    drop(volume);
    let (clock, time) = Clock::manual(Timestamp(0));
    let volume = Arc::new(open_by(clock, without_cache(&disk)).await);
    let leaf = leaf_of(&disk, &volume, section_of(100)).await;
    disk.set_unreadable(leaf, true);
    // Who cannot wait hears of it, and the entries stay to be done.
    let reclaimer = Arc::clone(&volume);
    let pressed = tokio::spawn(async move { reclaimer.reclaim_soon(&BOTH).await });
    let error = ended(pressed, &time).await.expect_err("it is not read");
    assert_eq!(error.kind(), ErrorKind::Disk, "{error}");

    let reclaimer = Arc::clone(&volume);
    let reclaimed = tokio::spawn(async move { reclaimer.reclaim(&BOTH).await });
    two_minutes(&time).await;
    assert!(!reclaimed.is_finished());
    disk.set_unreadable(leaf, false);
    assert_eq!(ended(reclaimed, &time).await.unwrap(), BOTH_BYTES);
}

/// Otherwise all would stay, and be forgotten by who has asked.
#[tokio::test]
async fn a_reclaim_on_a_disk_that_reads_nothing_is_an_error() {
    let (disk, volume) = many_files().await;
    drop(volume);
    let (clock, time) = Clock::manual(Timestamp(0));
    let volume = Arc::new(open_by(clock, without_cache(&disk)).await);
    let set_unreadable = |unreadable| {
        (0..LAYOUT.capacity).for_each(|page| disk.set_unreadable(page, unreadable));
    };
    set_unreadable(true);
    let reclaimer = Arc::clone(&volume);
    let reclaimed = tokio::spawn(async move { reclaimer.reclaim(&BOTH).await });
    let error = ended(reclaimed, &time).await.expect_err("nothing is read");
    assert_eq!(error.kind(), ErrorKind::Disk, "{error}");
    set_unreadable(false);
    assert_eq!(volume.reclaim(&BOTH).await.unwrap(), BOTH_BYTES);
}

/// A chunk of the usual size.
const LARGE: u32 = 8 << 20;

/// A clean chunk whose records are more than a leaf holds, all in the tree.
async fn large_chunk() -> (SimulatedDisk, Volume) {
    const SECTION: usize = 8 * BLOCK;
    let disk = new_disk(1);
    let volume = open(&disk).await;
    for section in 0..16 {
        let bytes = pattern(u64::from(section), 0, SECTION);
        let some = filling(&volume, key(1, 0), section * 8, &bytes, WriteEpoch(0)).await;
        let some = Fill { chunk_size: LARGE, backed: LARGE, ..some };
        assert_eq!(volume.fill(some).await.unwrap(), SECTION as u64);
    }
    volume.close().await.unwrap();
    drop(volume);
    let volume = Volume::open(&without_cache(&disk)).await.unwrap();
    (disk, volume)
}

#[tokio::test]
async fn a_release_drops_what_of_a_chunk_lies_beside_a_leaf_that_cannot_be_read() {
    for is_rot in [false, true] {
        let (disk, volume) = large_chunk().await;
        let middle = TableKey::Section(SectionKey { chunk: key(1, 0), section: 8 });
        let leaf = leaf_of(&disk, &volume, middle).await;
        let spoil = |is_spoilt| match is_rot {
            true => disk.flip(leaf * 4096 + 1000, 0),
            false => disk.set_unreadable(leaf, is_spoilt),
        };
        spoil(true);
        let listed: u64 = clean_chunks(&volume).await.iter().map(|(_, bytes)| bytes.0).sum();
        assert!(listed > 0 && listed < u64::from(LARGE), "{listed}");
        volume.release_while(key(1, 0), || true).await.expect_err("not all of it can be read");
        assert_eq!(volume.release(key(1, 0)).await.unwrap(), ByteLen(listed));
        assert!(clean_chunks(&volume).await.is_empty(), "no round meets it again");
        spoil(false);
        let rest = u64::from(LARGE) - listed;
        assert_eq!(volume.release(key(1, 0)).await.unwrap(), ByteLen(rest));
    }
}

/// A start that is refused is made again at once; what was synced must not go with its leaf.
#[tokio::test]
async fn a_start_waits_for_a_leaf_that_is_read_minutes_later() {
    let (disk, volume, leaf) = one_changed().await;
    volume.sync().await.unwrap();
    drop(volume);
    disk.set_unreadable(leaf, true);
    let (clock, time) = Clock::manual(Timestamp(0));
    let opening = tokio::spawn(open_by(clock, options(&disk, 2)));
    two_minutes(&time).await;
    assert!(!opening.is_finished());
    disk.set_unreadable(leaf, false);
    let volume = ended(opening, &time).await;
    assert_eq!(volume.loss_count(), 1, "for the cut");
    let seed = |inode| if inode == 100 { 7 } else { inode };
    assert!(lost_files(&volume, seed).await.is_empty());
}
