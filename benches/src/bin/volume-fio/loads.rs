//! The loads: so many requests at once, until the data or the time is at its end.

use std::{
    fs,
    hint::black_box,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use futures::future::try_join_all;
use millrace_types::{Crc32c, MIB};
use rustix::time::{ClockId, clock_gettime};

use super::data::{CHUNK, DataSet, Opened, key, key_elsewhere};

/// Pages of a chunk, and of a MiB.
const CHUNK_PAGES: u64 = CHUNK / 4096;
const MIB_PAGES: u64 = MIB / 4096;

/// Overwrites of which the mean cost is taken: as many as a region has pages, because a new region
/// is written as a whole before durable writes use it.
const OVERWRITES: u64 = 8192;

/// MiB/s of writing all data, the last sync included.
pub(crate) async fn write_large(opened: &Opened, data: &DataSet) -> Result<f64> {
    let count = data.chunks * (CHUNK / MIB);
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let writers = (0..16).map(|_| async {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return anyhow::Ok(());
            }
            opened.volume.write(data.write(at * MIB, 1 << 20)).await?;
        }
    });
    try_join_all(writers).await?;
    opened.volume.sync().await?;
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// MiB/s of reading all data.
pub(crate) async fn read_large(opened: &Opened, data: &DataSet) -> Result<f64> {
    let count = data.chunks * (CHUNK / MIB);
    let started = Instant::now();
    let next = AtomicU64::new(0);
    let readers = (0..16).map(|_| async {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return anyhow::Ok(());
            }
            read(opened, at * MIB_PAGES, MIB_PAGES).await?;
        }
    });
    try_join_all(readers).await?;
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

/// 4 KiB reads at random per second.
pub(crate) async fn read_small(opened: &Opened, data: &DataSet, lasting: Duration) -> Result<f64> {
    let pages = data.chunks * CHUNK_PAGES;
    let started = Instant::now();
    let next = AtomicU64::new(1);
    let readers = (0..32).map(|_| async {
        while started.elapsed() < lasting {
            read(opened, scatter(next.fetch_add(1, Ordering::Relaxed)) % pages, 1).await?;
        }
        anyhow::Ok(())
    });
    try_join_all(readers).await?;
    Ok(next.into_inner() as f64 / started.elapsed().as_secs_f64())
}

/// KiB that reach the disk for each durable overwrite of 4 KiB, one after the other, with the
/// checkpoint at the end.
pub(crate) async fn overwrite(opened: Opened, data: &DataSet) -> Result<f64> {
    let pages = data.chunks * CHUNK_PAGES;
    let before = written_bytes()?;
    for number in 0..OVERWRITES {
        let page = scatter(number) % pages;
        opened.volume.write_durably(data.write(page * 4096, 4096)).await?;
    }
    opened.close().await?;
    Ok((written_bytes()? - before) as f64 / OVERWRITES as f64 / 1024.0)
}

/// Writes as much as the data once more, as another file, and gives it up: what comes next is
/// written where something has been before.
pub(crate) async fn use_room(opened: &Opened, data: &DataSet) -> Result<()> {
    let count = data.chunks * (CHUNK / MIB);
    for at in 0..count {
        opened.volume.write(data.write_elsewhere(at * MIB, 1 << 20)).await?;
    }
    let elsewhere = (key_elsewhere(0).inode, key_elsewhere(0).generation);
    opened.volume.reclaim(&[elsewhere]).await?;
    // What was given up is free when a durable record says so.
    opened.volume.write_durably(data.write(0, 16 * 1024)).await?;
    opened.volume.sync().await?;
    Ok(())
}

/// 16 KiB writes, each durable before the next of the same writer, per second.
pub(crate) async fn write_durably(
    opened: &Opened,
    data: &DataSet,
    writers: u64,
    lasting: Duration,
) -> Result<f64> {
    let places = data.chunks * CHUNK / (16 * 1024);
    let started = Instant::now();
    let done = Arc::new(AtomicU64::new(0));
    let writers = (0..writers).map(|writer| {
        let done = Arc::clone(&done);
        async move {
            let mut number = 0;
            while started.elapsed() < lasting {
                let place = scatter(writer << 32 | number) % places;
                opened.volume.write_durably(data.write(place * 16 * 1024, 16 * 1024)).await?;
                number += 1;
                done.fetch_add(1, Ordering::Relaxed);
            }
            anyhow::Ok(())
        }
    });
    try_join_all(writers).await?;
    Ok(done.load(Ordering::Relaxed) as f64 / started.elapsed().as_secs_f64())
}

/// CPU seconds for the checksums of the pages of one GB that lies in the processor's cache.
pub(crate) fn checksum_cost() -> f64 {
    let bytes = vec![7; 256 * 1024];
    let started = cpu_seconds();
    let mut done = 0;
    while done < 1_000_000_000 {
        for page in bytes.chunks_exact(4096) {
            black_box(Crc32c::of(black_box(page)));
        }
        done += bytes.len();
    }
    (cpu_seconds() - started) * 1e9 / done as f64
}

/// What this thread has used.
fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ThreadCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

/// Reads and checks pages of the data, within one chunk.
async fn read(opened: &Opened, page: u64, pages: u64) -> Result<()> {
    let (first, count) = (page % CHUNK_PAGES, u32::try_from(pages)?);
    let block = |page: u64| u16::try_from(page / 16).expect("a chunk has 1,024 blocks at most");
    let blocks = block(first)..block(first + pages - 1) + 1;
    let snapshot = opened.volume.snapshot(key(page / CHUNK_PAGES), blocks).await?;
    let loaded = opened.volume.load(&snapshot, u32::try_from(first)?, count).await?;
    black_box(loaded.bytes.len());
    Ok(())
}

/// Numbers in no order.
fn scatter(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    (mixed ^ (mixed >> 29)).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 16
}

/// Bytes that this process has sent to disks.
fn written_bytes() -> Result<u64> {
    let text = fs::read_to_string("/proc/self/io").context("read /proc/self/io")?;
    let line = text.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    line.context("write_bytes in /proc/self/io")?.parse().context("a number of bytes")
}
