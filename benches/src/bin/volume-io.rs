//! The storage target's engine by itself: bytes and requests per second, with what they cost.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{
    fs,
    future::Future,
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result};
use bytes::Bytes;
use clap::Parser;
use futures::{StreamExt, TryStreamExt, future::try_join_all, stream};
use millrace_storage_target::{
    disk::{BufferPool, DiskEngine},
    format::batch::BootId,
    volume::{Authority, PlaceOptions, Volume, WriteRequest},
};
use millrace_types::{
    ByteLen, ChunkIndex, ChunkKey, ClusterId, ContentGeneration, CopyIndex, Crc32c, GroupEpoch,
    InodeId, SessionId, TargetId, WriteEpoch, WriteNumber,
};

/// Measures the storage target's engine.
#[derive(Parser, Debug)]
struct Arguments {
    /// Where the target of the bench goes; it is removed afterwards.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// MiB written and read.
    #[arg(long, default_value_t = 512)]
    mib: u32,
    /// Seconds of each part with small requests.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Large requests at a time.
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// Small requests at a time.
    #[arg(long, default_value_t = 32)]
    workers: u32,
}

const CHUNK: u32 = 8 << 20;
const TRANSFER: u32 = 1 << 20;
const PAGE: u32 = 4096;

/// The inode of the large file.
const LARGE: u64 = 1;

struct Bench {
    volume: Volume,
    arguments: Arguments,
    body: Bytes,
}

// As in the daemon: the network's thread serves everything.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let directory = arguments.directory.join("volume-bench");
    fs::create_dir(&directory).context("make the directory of the bench")?;
    let outcome = run(arguments, directory.clone()).await;
    fs::remove_dir_all(&directory).context("remove the directory of the bench")?;
    outcome
}

async fn run(arguments: Arguments, path: PathBuf) -> Result<()> {
    let options = PlaceOptions {
        path,
        cluster: ClusterId([1; 16]),
        new_target: Some(TargetId([2; 8])),
        capacity: Some(ByteLen((u64::from(arguments.mib) * 4 + 1024) << 20)),
        disk_engine: DiskEngine::Auto,
        sync_interval: Duration::from_secs(1),
        boot: BootId([3; 16]),
        cache_bytes: 64 << 20,
    };
    let volume = Volume::open_at(&options, BufferPool::new(160 << 20)).await?;
    let pattern = (0..TRANSFER).map(|at| (at % 251).to_le_bytes()[0]);
    let bench = Arc::new(Bench { volume, body: pattern.collect(), arguments });
    let mib = u64::from(bench.arguments.mib);
    measure("write 1 MiB, fresh", || bench.write_all(mib)).await?;
    measure("write 1 MiB, again", || bench.write_all(mib)).await?;
    measure("read 1 MiB", || bench.read_all(mib)).await?;
    measure("read 4 KiB at random", || bench.small(Bench::read_page)).await?;
    measure("write 4 KiB at random", || bench.small(Bench::overwrite_page)).await?;
    measure("write 16 KiB, durable", || bench.small(Bench::write_durably)).await?;
    Ok(())
}

/// Runs something that tells how often it did what; prints how fast, and the CPU time of each.
async fn measure<F: Future<Output = Result<u64>>>(
    name: &str,
    work: impl FnOnce() -> F,
) -> Result<()> {
    let (begun, cpu) = (Instant::now(), cpu_seconds()?);
    let count = work().await? as f64;
    let rate = count / begun.elapsed().as_secs_f64();
    let cost = (cpu_seconds()? - cpu) / count * 1e6;
    println!("{name:<24}{rate:>10.0} per second {cost:>8.1} us of CPU each");
    Ok(())
}

/// What this process has used so far, with its threads.
fn cpu_seconds() -> Result<f64> {
    let text = fs::read_to_string("/proc/self/stat").context("read /proc/self/stat")?;
    let fields = text.rsplit(')').next().context("a name in brackets")?;
    let ticks: Vec<f64> =
        fields.split_whitespace().skip(11).take(2).map(str::parse).collect::<Result<_, _>>()?;
    Ok(ticks.iter().sum::<f64>() / 100.0)
}

impl Bench {
    async fn write_all(&self, count: u64) -> Result<u64> {
        let requests = stream::iter((0..count).map(Ok::<_, anyhow::Error>));
        let write = |nth| async move {
            let (key, at) = place(nth * u64::from(TRANSFER));
            self.write(key, at, self.body.clone()).await
        };
        requests.try_for_each_concurrent(self.arguments.depth, write).await?;
        self.volume.sync().await?;
        Ok(count)
    }

    async fn read_all(&self, count: u64) -> Result<u64> {
        let reads = stream::iter(0..count).map(|nth| self.read(nth * u64::from(TRANSFER), 256));
        reads.buffer_unordered(self.arguments.depth).try_collect::<Vec<_>>().await?;
        Ok(count)
    }

    /// Does something over and over, by many at a time; each call has another number.
    async fn small<F: Future<Output = Result<()>>>(
        self: &Arc<Self>,
        work: impl Fn(Arc<Self>, u32, u64) -> F,
    ) -> Result<u64> {
        let until = Instant::now() + Duration::from_secs(self.arguments.seconds);
        let work = &work;
        let workers = (0..self.arguments.workers).map(|worker| async move {
            let mut count = 0;
            while Instant::now() < until {
                work(Arc::clone(self), worker, count).await?;
                count += 1;
            }
            Ok::<u64, anyhow::Error>(count)
        });
        Ok(try_join_all(workers).await?.into_iter().sum())
    }

    async fn read_page(self: Arc<Self>, worker: u32, nth: u64) -> Result<()> {
        self.read(self.random_page(worker, nth), 1).await
    }

    async fn overwrite_page(self: Arc<Self>, worker: u32, nth: u64) -> Result<()> {
        let (key, at) = place(self.random_page(worker, nth));
        self.write(key, at, self.body.slice(..PAGE as usize)).await
    }

    /// Each worker writes through a chunk of its own.
    async fn write_durably(self: Arc<Self>, worker: u32, nth: u64) -> Result<()> {
        let at = u32::try_from(nth * 16_384 % u64::from(CHUNK))?;
        let key = key(LARGE + 1 + u64::from(worker), 0);
        self.write(key, at, self.body.slice(..16_384)).await?;
        self.volume.sync().await?;
        Ok(())
    }

    /// Where some page of the large file begins.
    fn random_page(&self, worker: u32, nth: u64) -> u64 {
        let seed = nth.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ u64::from(worker) << 40;
        let mixed = (seed ^ seed >> 31).wrapping_mul(0xBF58_476D_1CE4_E5B9) >> 20;
        mixed % (u64::from(self.arguments.mib) * 256) * u64::from(PAGE)
    }

    async fn write(&self, key: ChunkKey, offset: u32, body: Bytes) -> Result<()> {
        let request = WriteRequest {
            key,
            offset,
            checksum: Crc32c::of(&body),
            body: vec![body],
            group_epoch: GroupEpoch(1),
            write_epoch: WriteEpoch(0),
            chunk_size: CHUNK,
            backed: 0,
            session: SessionId(0),
            number: WriteNumber(0),
            authority: Authority::default(),
        };
        self.volume.write(request).await?;
        Ok(())
    }

    async fn read(&self, at: u64, pages: u32) -> Result<()> {
        let (key, at) = place(at);
        let first = at / PAGE;
        let block = |page: u32| u16::try_from(page / 16);
        let blocks = block(first)?..block(first + pages - 1)? + 1;
        let snapshot = self.volume.snapshot(key, blocks).await?;
        self.volume.load(&snapshot, first, pages).await?;
        Ok(())
    }
}

/// Chunk and place in it of a byte of the large file.
fn place(at: u64) -> (ChunkKey, u32) {
    let within = u32::try_from(at % u64::from(CHUNK)).expect("below 8 MiB");
    let index = u32::try_from(at / u64::from(CHUNK)).expect("a file of the bench");
    (key(LARGE, index), within)
}

fn key(inode: u64, index: u32) -> ChunkKey {
    ChunkKey {
        inode: InodeId(inode),
        generation: ContentGeneration(0),
        index: ChunkIndex(index),
        copy: CopyIndex(0),
    }
}
