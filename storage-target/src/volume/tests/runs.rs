//! The parts of a chunk lie side by side on the disk.

use millrace_types::{ChunkKey, WriteEpoch};

use super::{BLOCK, CHUNK_SIZE, fill, key, new_disk, open, pattern, write};
use crate::{page_checksum::PAGE, volume::Volume};

const HALF: usize = CHUNK_SIZE as usize / 2;

/// In how many runs the pages of a chunk lie on the disk.
async fn runs(volume: &Volume, key: ChunkKey) -> usize {
    let blocks = u16::try_from(CHUNK_SIZE as usize / BLOCK).unwrap();
    let snapshot = volume.snapshot(key, 0..blocks).await.unwrap();
    let pages = u32::try_from(CHUNK_SIZE as usize / PAGE).unwrap();
    let places: Vec<u64> =
        (0..pages).map(|page| snapshot.sections().page(page).unwrap().page).collect();
    1 + places.windows(2).filter(|pair| pair[0] + 1 != pair[1]).count()
}

#[tokio::test]
async fn chunks_that_are_written_or_fetched_at_the_same_time_lie_in_one_run_each() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    let half_in_blocks = u16::try_from(HALF / BLOCK).unwrap();
    for half in 0..2_u16 {
        for file in 0..4 {
            let bytes = pattern(file, usize::from(half) * HALF, HALF);
            write(&volume, key(file, u32::from(file % 2 == 0)), usize::from(half) * HALF, bytes)
                .await;
            let bytes = pattern(file, 0, HALF);
            let fetched = key(100 + file, 0);
            fill(&volume, fetched, half * half_in_blocks, &bytes, WriteEpoch(0)).await.unwrap();
        }
    }
    for file in 0..4 {
        assert_eq!(runs(&volume, key(file, u32::from(file % 2 == 0))).await, 1, "written {file}");
        assert_eq!(runs(&volume, key(100 + file, 0)).await, 1, "fetched {file}");
    }
    // Half a chunk written again goes somewhere else, and what was there is free for others.
    write(&volume, key(0, 1), HALF, pattern(9, HALF, HALF)).await;
    assert_eq!(runs(&volume, key(0, 1)).await, 2);
}
