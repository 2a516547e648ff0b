//! The storage target's engine through churn: it is filled to 90 %, a random half is deleted, and
//! it is filled again, ten times. What does that cost in space, and in speed?
//!
//! Objects have the sizes of what a training cluster stores: four tenths below 60 KB, four tenths
//! pictures of 60 to 200 KB, two tenths parts of large files, 0.5 to 8 MiB. The first filling also
//! takes the space from the file system. With `--bytes` all objects have one size; with `--durable`
//! each write waits until it is durable, as those of programs that sync each small file do.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{fs, path::PathBuf, time::Instant};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use clap::Parser;
use futures::{TryStreamExt as _, stream};
use millrace_benches::target;
use millrace_runtime::Random;
use millrace_storage_target::{disk::BufferPool, volume::Volume};
use millrace_types::{ByteLen, ChunkKey, ContentGeneration, Crc32c, InodeId, MIB};

/// Measures the storage target's engine through churn.
#[derive(Parser, Debug)]
struct Arguments {
    /// Where the target of the bench goes; it is removed afterwards.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// The target's capacity in MiB.
    #[arg(long, default_value_t = 4096)]
    mib: u64,
    /// How often a half is deleted and written anew.
    #[arg(long, default_value_t = 10)]
    rounds: u32,
    /// Objects written or read at a time.
    #[arg(long, default_value_t = 16)]
    depth: usize,
    /// All objects have this many bytes.
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=i64::from(CHUNK)))]
    bytes: Option<u32>,
    /// Waits for each write until it is durable.
    #[arg(long)]
    durable: bool,
    /// The same one gives the same objects.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

const CHUNK: u32 = 8 << 20;
const TRANSFER: u32 = 1 << 20;
const PAGE: u32 = 4096;

/// Of the capacity, what objects take.
const FILL_PERCENT: u64 = 90;

/// Contents deleted with one request.
const DELETED_AT_ONCE: usize = 256;

/// A file of one chunk.
#[derive(Clone, Copy, Debug)]
struct Object {
    inode: u64,
    len: u32,
}

struct Bench {
    arguments: Arguments,
    volume: Volume,
    random: Random,
    body: Bytes,
    objects: Vec<Object>,
    made: u64,
}

// As in the daemon: one thread serves everything.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let directory = arguments.directory.join("volume-churn");
    fs::create_dir(&directory).context("make the directory of the bench")?;
    let outcome = run(arguments, directory.clone()).await;
    fs::remove_dir_all(&directory).context("remove the directory of the bench")?;
    outcome
}

async fn run(arguments: Arguments, directory: PathBuf) -> Result<()> {
    let mut bench = Bench::open(arguments, directory).await?;
    let fresh = bench.refill().await?;
    println!("first filling: {fresh:.0} MiB/s, {}", bench.space());
    let fresh_reads = bench.read_all().await?;
    println!("read in no order: {fresh_reads:.0} MiB/s");
    let mut rates = Vec::new();
    for round in 1..=bench.arguments.rounds {
        bench.delete_half().await?;
        let rate = bench.refill().await?;
        println!(
            "round {round}: {rate:.0} MiB/s, {:.2} of the first; {}",
            rate / fresh,
            bench.space()
        );
        rates.push(rate);
    }
    let reads = bench.read_all().await?;
    println!("read in no order: {reads:.0} MiB/s, {:.2} of the first", reads / fresh_reads);
    rates.sort_by(f64::total_cmp);
    let median = rates.get(rates.len() / 2).context("there are rounds")?;
    println!("fillings after churn, median: {:.2} of the first", median / fresh);
    Ok(())
}

impl Bench {
    async fn open(arguments: Arguments, path: PathBuf) -> Result<Self> {
        let options = target::place(path, Some(ByteLen(arguments.mib * MIB)), 64 << 20)?;
        let volume = Volume::open_at(&options, BufferPool::new(160 << 20)).await?;
        let random = Random::seeded(arguments.seed);
        let body = (0..TRANSFER).map(|at| (at % 251).to_le_bytes()[0]).collect();
        Ok(Self { arguments, volume, random, body, objects: Vec::new(), made: 0 })
    }

    /// Writes new objects until the target is as full as wanted; returns MiB per second.
    async fn refill(&mut self) -> Result<f64> {
        let begun = Instant::now();
        let wanted = self.volume.statistics().capacity.0 / 100 * FILL_PERCENT;
        let mut held: u64 = self.objects.iter().map(|object| object.on_disk()).sum();
        let mut new = Vec::new();
        while held < wanted {
            self.made += 1;
            let object = Object { inode: self.made, len: self.len() };
            held += object.on_disk();
            new.push(object);
        }
        let writes = stream::iter(new.iter().copied().map(Ok::<_, anyhow::Error>));
        let this = &*self;
        writes.try_for_each_concurrent(this.arguments.depth, |object| this.write(object)).await?;
        self.volume.sync().await?;
        let rate = rate(&new, begun);
        self.objects.extend(new);
        Ok(rate)
    }

    async fn delete_half(&mut self) -> Result<()> {
        let mut gone = Vec::new();
        for _ in 0..self.objects.len() / 2 {
            let at = self.random.within(0..self.objects.len() as u64);
            let object = self.objects.swap_remove(usize::try_from(at)?);
            gone.push((InodeId(object.inode), ContentGeneration(0)));
        }
        for contents in gone.chunks(DELETED_AT_ONCE) {
            self.volume.reclaim(contents).await?;
        }
        self.volume.sync().await?;
        Ok(())
    }

    /// Reads every object in no order; returns MiB per second.
    async fn read_all(&mut self) -> Result<f64> {
        let mut order = self.objects.clone();
        for at in (1..order.len()).rev() {
            let other = self.random.within(0..at as u64 + 1);
            order.swap(at, usize::try_from(other)?);
        }
        let begun = Instant::now();
        let reads = stream::iter(order.iter().copied().map(Ok::<_, anyhow::Error>));
        let this = &*self;
        reads.try_for_each_concurrent(this.arguments.depth, |object| this.read(object)).await?;
        Ok(rate(&order, begun))
    }

    /// What is stored, and what that takes beside the bytes themselves.
    fn space(&self) -> String {
        let data: u64 = self.objects.iter().map(|object| u64::from(object.len)).sum();
        let used = self.volume.statistics().used.0;
        let overhead = (used as f64 / data as f64 - 1.0) * 100.0;
        format!("{} objects, {} MiB, {overhead:.2} % overhead", self.objects.len(), data / MIB)
    }

    fn len(&self) -> u32 {
        if let Some(bytes) = self.arguments.bytes {
            return bytes;
        }
        let bytes = match self.random.within(0..10) {
            0..4 => self.random.within(1..60_000),
            4..8 => self.random.within(60_000..200_000),
            _ => self.random.within(512 << 10..u64::from(CHUNK) + 1),
        };
        u32::try_from(bytes).expect("at most a chunk")
    }

    async fn write(&self, object: Object) -> Result<()> {
        for offset in (0..object.len).step_by(TRANSFER as usize) {
            let len = (object.len - offset).min(TRANSFER) as usize;
            let body = self.body.slice(..len);
            let checksum = Crc32c::of(&body);
            let request = target::write(object.key(), offset, body, checksum, CHUNK);
            match self.arguments.durable {
                true => self.volume.write_durably(request).await?,
                false => self.volume.write(request).await?,
            };
        }
        Ok(())
    }

    async fn read(&self, object: Object) -> Result<()> {
        for offset in (0..object.len).step_by(TRANSFER as usize) {
            let (first, end) = (offset / PAGE, object.len.min(offset + TRANSFER).div_ceil(PAGE));
            let blocks = u16::try_from(first / 16)?..u16::try_from(end.div_ceil(16))?;
            let snapshot = self.volume.snapshot(object.key(), blocks).await?;
            let loaded = self.volume.load(&snapshot, first, end - first).await?;
            let (len, expected) = ((object.len - offset).min(TRANSFER) as usize, &self.body);
            ensure!(loaded.bytes[..len] == expected[..len], "{object:?} is not what was written");
        }
        Ok(())
    }
}

impl Object {
    fn on_disk(self) -> u64 {
        u64::from(self.len.next_multiple_of(PAGE))
    }

    fn key(self) -> ChunkKey {
        target::chunk(self.inode, 0)
    }
}

fn rate(objects: &[Object], begun: Instant) -> f64 {
    let bytes: u64 = objects.iter().map(|object| u64::from(object.len)).sum();
    bytes as f64 / MIB as f64 / begun.elapsed().as_secs_f64()
}
