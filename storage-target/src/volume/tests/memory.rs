//! What waits for memory, and what has some and waits.

use std::sync::Arc;

use millrace_protocol::target::ContentName;
use millrace_types::{ContentGeneration, InodeId, WriteEpoch};

use super::{CHUNK_SIZE, assert_holds, filling, key, new_disk, open, options, pattern, write};
use crate::{
    disk::BufferPool,
    volume::{INODE_TURNS, Options, Volume},
};

/// Buffers of the largest size that the smallest pool has.
const BUFFERS: u32 = 8;

/// Lets everything get on that can.
async fn others() {
    for _ in 0..10_000 {
        tokio::task::yield_now().await;
    }
}

#[tokio::test]
async fn a_truncation_within_a_page_goes_on_beside_fills_that_have_all_the_memory() {
    let disk = new_disk(1);
    let options = Options { pool: BufferPool::new(0), ..options(&disk, 1) };
    let volume = Arc::new(Volume::open(&options).await.unwrap());
    write(&volume, key(1, 0), 0, pattern(1, 0, 10_000)).await;
    // Of another file that has the same turn.
    let inode = 1 + INODE_TURNS as u64;
    let bytes = pattern(9, 0, 1 << 20);
    let mut fills = Vec::new();
    for index in 0..BUFFERS {
        let fill = filling(&volume, key(inode, index), 0, &bytes, WriteEpoch(0)).await;
        // As readers have it until it is stored.
        fills.push((Arc::clone(&fill.buffer), fill));
    }
    let trimming = Arc::clone(&volume);
    let trimmed = tokio::spawn(async move {
        let content = ContentName { inode: InodeId(1), generation: ContentGeneration(1) };
        trimming.trim(content, u64::from(CHUNK_SIZE), 5_000, WriteEpoch(1)).await
    });
    others().await;
    assert!(!trimmed.is_finished(), "there is no memory");
    let fills = fills.into_iter().map(|(held, fill)| {
        let volume = Arc::clone(&volume);
        tokio::spawn(async move {
            let stored = volume.fill(fill).await;
            drop(held);
            stored
        })
    });
    let fills: Vec<_> = fills.collect();
    others().await;
    assert!(fills.iter().all(|fill| fill.is_finished()), "nobody has the turn and waits");
    for fill in fills {
        assert_eq!(fill.await.unwrap().unwrap(), 1 << 20);
    }
    assert!(trimmed.is_finished());
    assert_eq!(trimmed.await.unwrap().unwrap().0, 8192);
    let mut expected = pattern(1, 0, 8192);
    expected[5_000..].fill(0);
    assert_holds(&volume, key(1, 0), 0, &expected).await;
    assert_holds(&volume, key(inode, 0), 0, &bytes).await;
}

#[tokio::test]
async fn a_fill_that_nobody_else_holds_waits_for_its_turn_without_memory() {
    let disk = new_disk(1);
    let volume = Arc::new(open(&disk).await);
    let fill = filling(&volume, key(1, 0), 0, &pattern(9, 0, 1 << 20), WriteEpoch(0)).await;
    let shared = volume.shared();
    let turn = shared.inode_turn(InodeId(1)).write().await;
    let filler = Arc::clone(&volume);
    let filled = tokio::spawn(async move { filler.fill(fill).await });
    others().await;
    assert!(!filled.is_finished(), "it waits for the turn");
    assert_eq!(volume.pool().used_bytes(), 0);
    drop(turn);
    assert_eq!(filled.await.unwrap().unwrap(), 1 << 20);
}
