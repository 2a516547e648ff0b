//! The storage target's journal by itself: durable records per second, by one writer and by many.
//!
//! Held against what the disk gives to one writer who writes 16 KiB and syncs, over and over.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use clap::Parser;
use millrace_storage_target::{
    disk::{self, BufferPool, DataFile, DiskEngine, DiskQueue, Piece},
    format::batch::BootId,
    journal::{Journal, JournalError, Options, Ring},
};
use millrace_types::TargetId;

/// Measures the storage target's journal.
#[derive(Parser, Debug)]
struct Arguments {
    /// Where the file with the journal goes; it is removed afterwards.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Writers at once, in the second part.
    #[arg(long, default_value_t = 32)]
    writers: usize,
    /// Seconds of each part.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Bytes of a record. A write of 16 KiB has about 200, one of 512 KiB about 700.
    #[arg(long, default_value_t = 200)]
    record_bytes: usize,
    /// Write the whole file first: on some file systems the first write to allocated space makes
    /// the next sync dear.
    #[arg(long)]
    written: bool,
}

const PAGE: u64 = 4096;
const RING: Ring = Ring { first: 16, pages: 16_384 };
const DATA_BYTES: usize = 16 * 1024;

/// Where the data of each writer goes: 16 MiB behind the ring.
const DATA_START: u64 = (RING.first + RING.pages) * PAGE;
const DATA_EACH: u64 = 16 << 20;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let path = arguments.directory.join("journal-bench.data");
    let outcome = run(&arguments, &path).await;
    fs::remove_file(&path).context("remove the file of the bench")?;
    outcome
}

async fn run(arguments: &Arguments, path: &Path) -> Result<()> {
    let file = DataFile::open(path).context("make the file of the bench")?;
    let writers = u64::try_from(arguments.writers)?;
    file.grow(0, DATA_START + writers * DATA_EACH)?;
    let disk = disk::start(DiskEngine::Auto, &file)?;
    let pool = BufferPool::new(64 << 20);
    let lasting = Duration::from_secs(arguments.seconds);
    if arguments.written {
        let end = DATA_START + writers * DATA_EACH;
        for offset in (0..end).step_by(1 << 20) {
            let len = usize::try_from((end - offset).min(1 << 20))?;
            write_data(&disk, &pool, offset, len).await?;
        }
        disk.sync().await?;
    }

    let plain = plain_syncs(&disk, &pool, lasting).await?;
    println!("write 16 KiB and sync, no journal, 1 writer: {plain:.0} per second");
    let options = Options {
        target: TargetId([1; 8]),
        boot: BootId([1; 16]),
        disk: disk.clone(),
        pool: pool.clone(),
        ring: RING,
    };
    let (journal, _) = Journal::open(options, RING.start()).await?;
    for count in [1, writers] {
        let started = Instant::now();
        let tasks: Vec<_> = (0..count)
            .map(|nth| {
                let writer = Writer {
                    journal: journal.clone(),
                    disk: disk.clone(),
                    pool: pool.clone(),
                    data: DATA_START + nth * DATA_EACH,
                };
                tokio::spawn(writer.run(lasting, arguments.record_bytes))
            })
            .collect();
        let mut commits = 0;
        for task in tasks {
            commits += task.await??;
        }
        let rate = commits as f64 / started.elapsed().as_secs_f64();
        println!(
            "write 16 KiB, journal it, sync, {count} at once: {rate:.0} per second, {:.1} times \
             the plain rate",
            rate / plain
        );
    }
    Ok(())
}

/// Writes and syncs per second of one writer.
async fn plain_syncs(disk: &DiskQueue, pool: &BufferPool, lasting: Duration) -> Result<f64> {
    let started = Instant::now();
    let mut count = 0_u64;
    while started.elapsed() < lasting {
        write_data(disk, pool, DATA_START + count * DATA_BYTES as u64 % DATA_EACH, DATA_BYTES)
            .await?;
        disk.sync().await?;
        count += 1;
    }
    Ok(count as f64 / started.elapsed().as_secs_f64())
}

async fn write_data(disk: &DiskQueue, pool: &BufferPool, offset: u64, len: usize) -> Result<()> {
    let mut buffer = pool.acquire(len).await;
    buffer.as_mut_slice().fill(7);
    disk.write(vec![Piece { offset, range: 0..len }], Arc::new(buffer)).await?;
    Ok(())
}

/// One writer: data to pages of its own, a record, and both durable.
struct Writer {
    journal: Journal,
    disk: DiskQueue,
    pool: BufferPool,
    data: u64,
}

impl Writer {
    async fn run(self, lasting: Duration, record_bytes: usize) -> Result<u64> {
        let started = Instant::now();
        let mut count = 0;
        while started.elapsed() < lasting {
            let offset = self.data + count * DATA_BYTES as u64 % DATA_EACH;
            let record = Bytes::from(vec![7; record_bytes]);
            let sequence = match self.journal.append(record.clone()) {
                Err(JournalError::Full) => {
                    // Nothing needs the older records here; an engine would make a checkpoint.
                    self.journal.release(self.journal.position());
                    self.journal.append(record)?
                }
                other => other?,
            };
            // Together: after a cut, recovery believes a record only if its data is there.
            let data = write_data(&self.disk, &self.pool, offset, DATA_BYTES);
            let (data, record) = futures::future::join(data, self.journal.write(sequence)).await;
            data?;
            record?;
            self.journal.sync(sequence).await?;
            count += 1;
        }
        Ok(count)
    }
}
