//! The engine against a plain model in memory, through kills and losses of power.

mod faults;
mod model;

use std::{path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use millrace_types::{
    ByteLen, ChunkIndex, ChunkKey, ClusterId, ContentGeneration, CopyIndex, Crc32c, GroupEpoch,
    InodeId, SessionId, TargetId, WriteEpoch, WriteNumber,
};

use super::{
    Authority, Engine, EngineError, Fill, Options, WriteRequest, ZeroRequest, page_checksum,
};
use crate::{
    disk::{BufferPool, DiskEngine},
    format::segment::BootId,
    parts::{Part, parts},
};

const CLUSTER: ClusterId = ClusterId([9; 16]);

fn options(dir: &Path) -> Options {
    Options {
        dir: dir.to_owned(),
        cluster: CLUSTER,
        new_target: Some(TargetId([7; 8])),
        capacity: Some(ByteLen(64 << 20)),
        disk_engine: DiskEngine::Auto,
        // Long, so that only explicit syncs make anything durable.
        barrier_interval: Duration::from_secs(3600),
        boot: BootId([1; 16]),
    }
}

fn open(options: &Options) -> Engine {
    Engine::open(options, BufferPool::new(32 << 20)).unwrap()
}

fn key(inode: u64, index: u32) -> ChunkKey {
    ChunkKey {
        inode: InodeId(inode),
        generation: ContentGeneration(1),
        index: ChunkIndex(index),
        copy: CopyIndex(0),
    }
}

/// Bytes that differ from place to place and from seed to seed.
fn pattern(seed: u64, start: usize, len: usize) -> Vec<u8> {
    (start..start + len)
        .map(|at| {
            let mixed = (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ seed.wrapping_mul(77);
            mixed.to_le_bytes()[5]
        })
        .collect()
}

fn write_request(key: ChunkKey, offset: usize, bytes: Vec<u8>) -> WriteRequest {
    WriteRequest {
        key,
        offset: u32::try_from(offset).unwrap(),
        checksum: Crc32c::of(&bytes),
        body: vec![Bytes::from(bytes)],
        group_epoch: GroupEpoch(1),
        write_epoch: WriteEpoch(0),
        chunk_size: 8 << 20,
        backed: 0,
        session: SessionId(0),
        number: WriteNumber(0),
        authority: Authority::default(),
    }
}

async fn write(engine: &Engine, key: ChunkKey, offset: usize, bytes: Vec<u8>) {
    engine.write(write_request(key, offset, bytes)).await.unwrap();
}

/// Reads as the server does; absent bytes show as `None`.
async fn read(
    engine: &Engine,
    key: ChunkKey,
    start: usize,
    len: usize,
) -> Result<Vec<Option<u8>>, EngineError> {
    let end = u32::try_from(start + len).unwrap();
    let snapshot = engine.snapshot(key);
    let mut bytes = Vec::new();
    let cut = parts(snapshot.record(), u32::try_from(start).unwrap()..end, u32::MAX, true);
    for part in cut.unwrap() {
        match part {
            Part::Stored(range) => {
                let first = range.start / 4096;
                let pages = range.end.div_ceil(4096) - first;
                // One buffer holds 272 pages.
                let mut loaded = Vec::new();
                for at in (0..pages).step_by(256) {
                    let count = (pages - at).min(256);
                    let some = engine.load(&snapshot, first + at, count).await?;
                    assert_eq!(page_checksum::of_pages(&some.bytes), *some.checksums);
                    loaded.extend_from_slice(&some.bytes);
                }
                let skip = (range.start % 4096) as usize;
                bytes.extend(loaded[skip..skip + range.len()].iter().copied().map(Some));
            }
            Part::Zeros(range) => bytes.extend(range.map(|_| Some(0))),
            Part::Missing(range) => bytes.extend(range.map(|_| None)),
        }
    }
    Ok(bytes)
}

async fn assert_holds(engine: &Engine, key: ChunkKey, start: usize, expected: &[u8]) {
    let found = read(engine, key, start, expected.len()).await.unwrap();
    let expected: Vec<_> = expected.iter().copied().map(Some).collect();
    assert!(found == expected, "the bytes at {start} of {key} are others");
}

async fn fill(
    engine: &Engine,
    key: ChunkKey,
    first_block: u16,
    bytes: &[u8],
) -> Result<u64, EngineError> {
    fill_at(engine, key, first_block, bytes, WriteEpoch(0)).await
}

async fn fill_at(
    engine: &Engine,
    key: ChunkKey,
    first_block: u16,
    bytes: &[u8],
    write_epoch: WriteEpoch,
) -> Result<u64, EngineError> {
    let mut buffer = engine.pool().acquire(bytes.len()).await;
    buffer.as_mut_slice().fill(0);
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    let checksums = page_checksum::of_pages(buffer.as_slice());
    engine
        .fill(Fill {
            key,
            first_block,
            buffer: Arc::new(buffer),
            len: u32::try_from(bytes.len()).unwrap(),
            checksums: checksums.into(),
            write_epoch,
            chunk_size: 8 << 20,
        })
        .await
}

fn zero_request(key: ChunkKey, range: std::ops::Range<u32>) -> ZeroRequest {
    ZeroRequest {
        key,
        range,
        group_epoch: GroupEpoch(1),
        write_epoch: WriteEpoch(0),
        chunk_size: 8 << 20,
        backed: 0,
        session: SessionId(0),
        number: WriteNumber(0),
        authority: Authority::default(),
    }
}
