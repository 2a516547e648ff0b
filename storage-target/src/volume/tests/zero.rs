//! Zeros in several steps: what a stop between these leaves, and what a repetition meets.

use std::{collections::BTreeSet, ops::Range};

use millrace_types::{SessionId, WriteNumber};

use super::{
    BLOCK, Volume, WriteRequest, ZeroRequest, key, new_disk, open, pattern, read, write_request,
    zero_request,
};
use crate::disk::simulated::SimulatedDisk;

/// Bytes that change with one record.
const STEP: usize = 8 << 20;

/// Bytes of the chunk.
const CHUNK_SIZE: u32 = 32 << 20;

/// Where something is stored, once in each step.
const PIECES: [usize; 3] = [0, STEP, 2 * STEP];

const PIECE: usize = 3 * BLOCK;

const SESSION: SessionId = SessionId(6);
const NUMBER: WriteNumber = WriteNumber(17);

fn request(range: Range<usize>) -> ZeroRequest {
    let request = zero_request(key(1, 0), range);
    ZeroRequest { chunk_size: CHUNK_SIZE, session: SESSION, number: NUMBER, ..request }
}

async fn write(volume: &Volume, at: usize, len: usize) {
    let request = write_request(key(1, 0), at, pattern(1, at, len));
    volume.write(WriteRequest { chunk_size: CHUNK_SIZE, ..request }).await.unwrap();
}

async fn begun(disk: &SimulatedDisk) -> Volume {
    let volume = open(disk).await;
    for at in PIECES {
        write(&volume, at, PIECE).await;
    }
    volume
}

async fn is_applied(volume: &Volume) -> bool {
    volume.applied(SESSION, NUMBER).await.is_some()
}

/// Which of the pieces are zero as far as `range` reaches; the others are as they were.
async fn zeroed(volume: &Volume, range: &Range<usize>) -> [bool; 3] {
    let mut zeroed = [false; 3];
    for (nth, at) in PIECES.into_iter().enumerate() {
        let first = u16::try_from(at / BLOCK).unwrap();
        let found = read(volume, key(1, 0), first..first + 3).await.unwrap();
        let old = pattern(1, at, PIECE);
        let mut new = old.clone();
        new[range.start.max(at) - at..range.end.min(at + PIECE) - at].fill(0);
        let is = |expected: &[u8]| {
            found.iter().zip(expected).all(|(found, expected)| *found == Some(*expected))
        };
        zeroed[nth] = is(&new);
        assert!(zeroed[nth] || is(&old), "the piece at {at} is a mix");
    }
    zeroed
}

#[tokio::test]
async fn after_a_kill_between_the_steps_a_repetition_does_the_rest() {
    let range = 100..2 * STEP + 2 * BLOCK + 100;
    let mut outcomes = BTreeSet::new();
    for (seed, nth) in (0..8).flat_map(|seed| (0..9).map(move |nth| (seed, nth))) {
        let disk = new_disk(seed);
        let volume = begun(&disk).await;
        disk.kill_in(nth);
        let is_told = volume.zero(request(range.clone())).await.is_ok();
        drop(volume);
        disk.resume();

        let volume = open(&disk).await;
        let done = zeroed(&volume, &range).await;
        let context = format!("{done:?}, seed {seed}, change {nth}");
        assert_eq!(is_applied(&volume).await, done == [true; 3], "{context}");
        assert!(!is_told || done == [true; 3], "{context}");
        outcomes.insert(done);
        volume.zero(request(range.clone())).await.unwrap();
        assert_eq!(zeroed(&volume, &range).await, [true; 3]);
        drop(volume);
        let volume = open(&disk).await;
        assert_eq!(zeroed(&volume, &range).await, [true; 3]);
        assert!(is_applied(&volume).await);
    }
    for done in [[false; 3], [true, false, false], [true, true, false], [true; 3]] {
        assert!(outcomes.contains(&done), "{done:?} comes up");
    }
}

#[tokio::test]
async fn the_last_step_that_changes_anything_says_that_all_is_done() {
    // The last step begins with zeros, or with a block of which a later page alone is stored.
    for stored in [0, 4096] {
        let disk = new_disk(1);
        let volume = open(&disk).await;
        write(&volume, 0, PIECE).await;
        write(&volume, 2 * STEP, PIECE).await;
        let before = request(2 * STEP..3 * STEP);
        let before = ZeroRequest { session: SessionId(0), number: WriteNumber(0), ..before };
        volume.zero(before).await.unwrap();
        if stored > 0 {
            write(&volume, 2 * STEP + 10 * 4096, stored).await;
        }
        let version = volume.zero(request(0..2 * STEP + 5 * 4096)).await.unwrap();
        drop(volume);
        let volume = open(&disk).await;
        assert_eq!(volume.applied(SESSION, NUMBER).await, Some(version));
    }
}
