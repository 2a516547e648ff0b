//! The storage target's engine with many small chunks: the memory that it takes, and how long a
//! restart takes after a kill.
//!
//! A process of its own fills a target, goes on writing and is killed with SIGKILL; this one then
//! opens the target, and reads some chunks back. On a device that keeps a page of equal words in no
//! memory (zram), ten million chunks need a few gigabytes; see `docs/performance.md`.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{
    env, fs,
    io::{BufRead as _, BufReader, Write as _},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::Arc,
    time::Instant,
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use clap::Parser;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use millrace_benches::target::{self, scramble};
use millrace_storage_target::{disk::BufferPool, volume::Volume};
use millrace_types::{ByteLen, ChunkKey, Crc32c};

/// Measures the storage target's engine with many small chunks.
#[derive(Parser, Debug)]
struct Arguments {
    /// An empty directory, or a blank block device or image file; it stays as it is at the end.
    #[arg(long)]
    place: PathBuf,
    /// Chunks to fill it with, each a file of its own.
    #[arg(long, default_value_t = 1_000_000)]
    chunks: u64,
    /// Bytes of a chunk, in KiB.
    #[arg(long, default_value_t = 4)]
    chunk_kib: u32,
    /// Write them in no order, as many writers at once do.
    #[arg(long)]
    random: bool,
    /// Wait for each write until it is durable.
    #[arg(long)]
    durable: bool,
    /// Memory for the index, in MiB: `index_cache` of the daemon.
    #[arg(long, default_value_t = 64)]
    cache_mib: usize,
    /// Memory for data, in MiB: `buffer_memory` of the daemon.
    #[arg(long, default_value_t = 160)]
    pool_mib: usize,
    /// Writes and reads under way at once.
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Chunks overwritten before the kill, and read after it.
    #[arg(long, default_value_t = 100_000)]
    operations: u64,
    /// What the process does that is killed.
    #[arg(long, hide = true)]
    fill: bool,
}

/// Larger than any chunk here.
const CHUNK_SIZE: u32 = 64 << 20;
const PAGE: usize = 4096;

/// Room for other things than data: journal, index, maps.
const BESIDE_DATA: u64 = 2 << 30;

/// What the filling process says when it has filled the target.
const FILLED: &str = "filled";
/// And when it has overwritten enough; it then goes on.
const OVERWRITTEN: &str = "overwritten";

// As in the daemon: one thread serves everything.
#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match arguments.fill {
        true => fill(arguments).await,
        false => run(arguments).await,
    }
}

async fn run(arguments: Arguments) -> Result<()> {
    let mut filling = Filling::start()?;
    let begun = Instant::now();
    filling.wait_for(FILLED)?;
    let (count, seconds) = (arguments.chunks, begun.elapsed().as_secs_f64());
    println!("filled: {count} chunks in {seconds:.1} s, {:.0} per second", count as f64 / seconds);
    let begun = Instant::now();
    filling.wait_for(OVERWRITTEN)?;
    let (count, seconds) = (arguments.operations, begun.elapsed().as_secs_f64());
    println!("overwritten at random: {count}, {:.0} per second", count as f64 / seconds);
    println!("most memory of the process: {} MiB", filling.memory_mib()?);
    filling.kill()?;

    let begun = Instant::now();
    let volume = open(&arguments).await?;
    println!("opened after the kill: {:.3} s", begun.elapsed().as_secs_f64());
    let begun = Instant::now();
    let numbers = (0..arguments.operations).map(|nth| scramble(nth) % arguments.chunks);
    let reads = stream::iter(numbers.map(Ok::<_, anyhow::Error>));
    let (volume, arguments) = (&volume, &arguments);
    reads
        .try_for_each_concurrent(arguments.depth, |number| check(volume, arguments, number))
        .await?;
    let (count, seconds) = (arguments.operations, begun.elapsed().as_secs_f64());
    println!("read at random: {count}, {:.0} per second, all whole", count as f64 / seconds);
    let used = volume.statistics().used;
    println!("in use: {used}; most memory of this process: {} MiB", memory_mib("self")?);
    Ok(())
}

/// The process that fills the target.
struct Filling {
    child: Child,
    said: std::io::Lines<BufReader<std::process::ChildStdout>>,
}

impl Filling {
    fn start() -> Result<Self> {
        let mut command = Command::new(env::current_exe()?);
        command.args(env::args_os().skip(1)).arg("--fill");
        let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
        let output = child.stdout.take().context("its output was asked for")?;
        Ok(Self { child, said: BufReader::new(output).lines() })
    }

    fn wait_for(&mut self, word: &str) -> Result<()> {
        let said = self.said.next().context("the filling process has ended")??;
        ensure!(said == word, "the filling process says {said}");
        Ok(())
    }

    fn memory_mib(&self) -> Result<u64> {
        memory_mib(&self.child.id().to_string())
    }

    fn kill(mut self) -> Result<()> {
        // SIGKILL on Unix.
        self.child.kill()?;
        self.child.wait()?;
        Ok(())
    }
}

impl Drop for Filling {
    fn drop(&mut self) {
        // After an error there is nobody who would wait for it.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Fills the target, overwrites, and goes on until it is killed.
async fn fill(arguments: Arguments) -> Result<()> {
    let volume = Arc::new(open(&arguments).await?);
    let (count, step) = (arguments.chunks, step_through(arguments.chunks));
    let step = if arguments.random { step } else { 1 };
    // Ten million times ten million fit.
    write_all(&volume, &arguments, (0..count).map(|nth| nth * step % count)).await?;
    volume.sync().await?;
    say(FILLED)?;
    let overwritten = |nth| scramble(nth + 7) % arguments.chunks;
    write_all(&volume, &arguments, (0..arguments.operations).map(overwritten)).await?;
    say(OVERWRITTEN)?;
    write_all(&volume, &arguments, (arguments.operations..).map(overwritten)).await
}

async fn write_all(
    volume: &Volume,
    arguments: &Arguments,
    numbers: impl Iterator<Item = u64>,
) -> Result<()> {
    let mut writes = stream::iter(numbers)
        .map(|number| write(volume, arguments, number))
        .buffer_unordered(arguments.depth);
    while writes.try_next().await?.is_some() {}
    Ok(())
}

fn say(word: &str) -> Result<()> {
    let mut output = std::io::stdout().lock();
    writeln!(output, "{word}")?;
    Ok(output.flush()?)
}

async fn open(arguments: &Arguments) -> Result<Volume> {
    let data = arguments.chunks * u64::from(arguments.chunk_kib) * 1024;
    let is_directory = fs::metadata(&arguments.place).context("no such place")?.is_dir();
    // A tenth is for pages that wait to be free again.
    let capacity = is_directory.then_some(ByteLen(data + data / 10 + BESIDE_DATA));
    let path = arguments.place.clone();
    let options = target::place(path, capacity, arguments.cache_mib << 20)?;
    Ok(Volume::open_at(&options, BufferPool::new(arguments.pool_mib << 20)).await?)
}

async fn write(volume: &Volume, arguments: &Arguments, number: u64) -> Result<()> {
    let body = Bytes::from(content(number).repeat(arguments.chunk_kib as usize * 128));
    let checksum = Crc32c::of(&body);
    let request = target::write(key(number), 0, body, checksum, CHUNK_SIZE);
    match arguments.durable {
        true => volume.write_durably(request).await?,
        false => volume.write(request).await?,
    };
    Ok(())
}

async fn check(volume: &Volume, arguments: &Arguments, number: u64) -> Result<()> {
    let pages = arguments.chunk_kib * 1024 / u32::try_from(PAGE)?;
    let blocks = 0..u16::try_from(pages.div_ceil(16))?;
    let snapshot = volume.snapshot(key(number), blocks).await?;
    let loaded = volume.load(&snapshot, 0, pages).await?;
    let expected = content(number);
    ensure!(
        loaded.bytes.len() == pages as usize * PAGE
            && loaded.bytes.chunks_exact(8).all(|word| word == expected),
        "chunk {number} is not what was written"
    );
    Ok(())
}

/// The word that a chunk is made of.
fn content(number: u64) -> [u8; 8] {
    (number | 1 << 63).to_le_bytes()
}

fn key(number: u64) -> ChunkKey {
    target::chunk(number + 1, 0)
}

/// Steps of this length meet each number below `count` once, in no order.
fn step_through(count: u64) -> u64 {
    let share = |mut one: u64, mut other: u64| {
        while other != 0 {
            (one, other) = (other, one % other);
        }
        one
    };
    let golden = count / 1000 * 618 + 1;
    (golden..).find(|&step| share(step, count) == 1).unwrap_or(1)
}

/// The most memory that a process has had resident.
fn memory_mib(process: &str) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{process}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmHWM")?;
    Ok(kib.parse::<u64>()? / 1024)
}
