//! The list of what is on a target.

use millrace_protocol::{
    cluster::LogPoint,
    fsck::{ContentPosition, ContentsPage},
};
use millrace_types::LogIndex;

use super::*;

/// All pages of at most `limit` chunks, chunk by chunk.
async fn listed(volume: &Volume, from: ContentPosition, limit: u32) -> Vec<ContentPosition> {
    let mut found = Vec::new();
    let mut next = Some(from);
    while let Some(at) = next {
        let page: ContentsPage = volume.contents(at, limit).await.unwrap();
        let before = found.len();
        for listed in &page.contents {
            let (inode, generation) = (listed.content.inode, listed.content.generation);
            let of_content = listed.chunks.iter();
            found.extend(of_content.map(|&chunk| ContentPosition { inode, generation, chunk }));
        }
        assert!(found.len() - before <= limit as usize, "a page is bounded");
        assert!(page.next.is_none_or(|next| found.last().is_some_and(|last| next > *last)));
        next = page.next;
    }
    found
}

fn position(key: ChunkKey) -> ContentPosition {
    ContentPosition { inode: key.inode, generation: key.generation, chunk: key.index }
}

/// Small and large chunks, several contents of an inode, and gaps.
fn keys() -> Vec<ChunkKey> {
    let mut keys = Vec::new();
    for inode in (1..60).chain([1 << 40]) {
        for generation in 1..=(1 + inode % 3) {
            for index in (0..(inode % 5)).map(|index| index * 7) {
                let generation = ContentGeneration(u32::try_from(generation).unwrap());
                keys.push(ChunkKey { generation, ..key(inode, u32::try_from(index).unwrap()) });
            }
        }
    }
    keys
}

#[tokio::test]
async fn every_chunk_is_listed_once_in_order_whatever_the_page_before_and_after_a_checkpoint() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    assert_eq!(listed(&volume, ContentPosition::default(), 10).await, []);
    let keys = keys();
    for (number, &key) in keys.iter().enumerate() {
        if number % 3 == 0 {
            // Eighty sections, of which the first tells everything.
            let zero = ZeroRequest { chunk_size: 64 << 20, ..zero_request(key, 0..640 * BLOCK) };
            volume.zero(zero).await.unwrap();
        } else {
            write(&volume, key, 0, pattern(1, 0, 100)).await;
        }
    }
    let mut expected: Vec<_> = keys.into_iter().map(position).collect();
    expected.sort_unstable();
    assert_lists(&volume, &expected).await;
    volume.close().await.unwrap();
    drop(volume);
    assert_lists(&open(&disk).await, &expected).await;
}

async fn assert_lists(volume: &Volume, expected: &[ContentPosition]) {
    for limit in [1, 2, 7, 1000] {
        let all = listed(volume, ContentPosition::default(), limit).await;
        assert_eq!(all, expected, "pages of {limit}");
    }
    let middle = expected[expected.len() / 2];
    assert_eq!(listed(volume, middle, 5).await[0], middle);
    let behind = listed(volume, middle.next().unwrap(), 5).await;
    assert_eq!(behind, expected[expected.len() / 2 + 1..]);
}

#[tokio::test]
async fn what_is_removed_is_listed_no_more() {
    let disk = new_disk(2);
    let volume = open(&disk).await;
    for index in 0..4 {
        write(&volume, key(3, index), 0, pattern(2, 0, 5000)).await;
        write(&volume, key(5, index), 0, pattern(2, 0, 5000)).await;
    }
    volume.reclaim(&[(InodeId(3), ContentGeneration(1))]).await.unwrap();
    let content = ContentName { inode: InodeId(5), generation: ContentGeneration(1) };
    volume.trim(content, CHUNK_SIZE.into(), 1, WriteEpoch(1)).await.unwrap();
    let all = listed(&volume, ContentPosition::default(), 10).await;
    assert_eq!(all, [position(key(5, 0))]);
    // Done twice, as after a lost answer, and of what never was here.
    let again = [(InodeId(3), ContentGeneration(1)), (InodeId(77), ContentGeneration(9))];
    assert_eq!(volume.reclaim(&again).await.unwrap().0, 0);
}

#[tokio::test]
async fn a_file_that_is_gone_leaves_a_mark_of_so_many_bytes_in_the_index() {
    const FILES: u64 = 20_000;
    let disk = new_disk(4);
    let volume = open(&disk).await;
    let nodes = |volume: &Volume| volume.describe(None, 0).index.nodes;
    let gone: Vec<_> = (1..=FILES).map(|inode| (InodeId(inode), ContentGeneration(1))).collect();
    for some in gone.chunks(1000) {
        volume.reclaim(some).await.unwrap();
    }
    volume.close().await.unwrap();
    drop(volume);
    let bytes = nodes(&open(&disk).await) * 4096;
    let of_one = bytes / FILES;
    assert!((22..=33).contains(&of_one), "docs/disk-format.md says at most 32: {of_one}");
}

#[tokio::test]
async fn what_was_seen_of_the_log_survives_a_kill_and_with_a_sync_a_cut() {
    let disk = new_disk(3);
    let volume = open(&disk).await;
    assert_eq!(volume.log_seen().await.unwrap(), None);
    let point = |index| LogPoint { incarnation: 0x0102_0304, index: LogIndex(index) };
    volume.note_log(point(7)).await.unwrap();
    volume.note_log(point(9)).await.unwrap();
    assert_eq!(volume.log_seen().await.unwrap(), Some(point(9)));
    volume.sync().await.unwrap();
    drop(volume);
    let volume = open(&disk).await;
    assert_eq!(volume.log_seen().await.unwrap(), Some(point(9)));
    volume.close().await.unwrap();
    drop(volume);
    assert_eq!(open(&disk).await.log_seen().await.unwrap(), Some(point(9)));
}
