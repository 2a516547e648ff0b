//! The storage target's index by itself: rates, memory, and how long a restart takes.
//!
//! Fills an index with entries of the size of a small chunk's record, through the disk engine that
//! a target would use, with a checkpoint whenever the changes since the last one reach the bound;
//! then overwrites some, looks some up, ends as a kill would (nothing is closed) and opens again.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use bytes::Bytes;
use clap::Parser;
use millrace_benches::target::scramble;
use millrace_storage_target::{
    disk::{self, BufferPool, DataFile, DiskEngine},
    format::root::Segment,
    index::{Index, IndexError, Key, Options},
};
use millrace_types::TargetId;

/// Measures the storage target's index.
#[derive(Parser, Debug)]
struct Arguments {
    /// Entries to fill it with.
    #[arg(long, default_value_t = 1_000_000)]
    entries: u64,
    /// Where the file with the index goes; it is removed afterwards.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// Memory for nodes, in MiB.
    #[arg(long, default_value_t = 96)]
    cache_mib: usize,
    /// Changes gathered before a checkpoint, in MiB.
    #[arg(long, default_value_t = 32)]
    delta_mib: usize,
    /// Bytes of a value. A chunk of 16 KiB needs 72.
    #[arg(long, default_value_t = 72)]
    value_bytes: usize,
    /// Keys in random order instead of ascending.
    #[arg(long)]
    random: bool,
    /// Lookups and overwrites of each kind.
    #[arg(long, default_value_t = 200_000)]
    operations: u64,
    /// Lookups under way at once.
    #[arg(long, default_value_t = 32)]
    depth: u64,
}

/// The pages in front of the nodes.
const FIRST_NODE: u64 = 8;
const PAGE: u64 = 4096;

#[tokio::main(flavor = "multi_thread", worker_threads = 2)]
async fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let path = arguments.directory.join("index-bench.data");
    let outcome = run(&arguments, &path).await;
    fs::remove_file(&path).context("remove the file of the bench")?;
    outcome
}

async fn run(arguments: &Arguments, path: &Path) -> Result<()> {
    let options = make_file(arguments, path)?;
    let segment = segment_of(arguments);
    let index = Arc::new(Index::create(options, &[segment]).await?);
    let mut writer = Writer::new(index, arguments);

    let started = Instant::now();
    for number in 0..arguments.entries {
        writer.put(number).await?;
    }
    writer.checkpoint().await?;
    report("insert", arguments.entries, started);
    writer.describe(path)?;

    let started = Instant::now();
    for nth in 0..arguments.operations {
        writer.put(scramble(nth) % arguments.entries).await?;
    }
    writer.checkpoint().await?;
    report("overwrite at random", arguments.operations, started);
    writer.describe(path)?;

    look_up(arguments, &writer.index, "look up, 1 at a time", 1).await?;
    look_up(arguments, &writer.index, "look up, many at once", arguments.depth).await?;
    println!("memory: {} MiB resident", resident_mib()?);
    drop(writer);

    let options = reopen_file(arguments, path)?;
    let started = Instant::now();
    let index = Arc::new(Index::open(options).await?);
    let took = started.elapsed();
    let reads = index.statistics().node_reads;
    println!("restart: {:.3} s, {reads} nodes read", took.as_secs_f64());
    look_up(arguments, &index, "look up, cold, many at once", arguments.depth).await?;
    let started = Instant::now();
    let checked = index.check().await?;
    ensure!(checked.damages.is_empty(), "the check finds {:?}", checked.damages);
    let fill = checked.used_bytes as f64 / checked.room_bytes.max(1) as f64;
    println!("check: {:.3} s, leaves filled to {fill:.2}", started.elapsed().as_secs_f64());
    Ok(())
}

/// Puts entries, and writes checkpoints when they are due.
struct Writer<'a> {
    index: Arc<Index>,
    arguments: &'a Arguments,
    put_count: u64,
    through: u64,
    checkpoints: u32,
    longest: Duration,
}

impl<'a> Writer<'a> {
    fn new(index: Arc<Index>, arguments: &'a Arguments) -> Self {
        let longest = Duration::ZERO;
        Self { index, arguments, put_count: 0, through: 0, checkpoints: 0, longest }
    }

    async fn put(&mut self, number: u64) -> Result<()> {
        let number = if self.arguments.random { scramble(number) } else { number };
        self.index.put(key(number), Bytes::from(vec![7; self.arguments.value_bytes]));
        self.put_count += 1;
        // The figures are not free: asked for now and then.
        let due = self.put_count.is_multiple_of(256)
            && self.index.statistics().delta_bytes >= self.arguments.delta_mib << 20;
        if due {
            self.checkpoint().await?;
        }
        Ok(())
    }

    async fn checkpoint(&mut self) -> Result<()> {
        self.through += 1;
        let started = Instant::now();
        self.index.freeze(self.through);
        self.index.checkpoint().await.map_err(|error| match error {
            IndexError::Full => anyhow::anyhow!("the file was made too small"),
            error => error.into(),
        })?;
        self.checkpoints += 1;
        self.longest = self.longest.max(started.elapsed());
        Ok(())
    }

    /// Says what has been written since the last time.
    fn describe(&mut self, path: &Path) -> Result<()> {
        let statistics = self.index.statistics();
        println!(
            "  {} checkpoints, the longest {:.2} s; {} nodes, {} levels, {:.0} bytes an entry; \
             {} written so far by this process, {} MiB resident",
            self.checkpoints,
            self.longest.as_secs_f64(),
            statistics.nodes,
            statistics.height,
            (statistics.nodes * PAGE) as f64 / statistics.entries as f64,
            written_mib()?,
            resident_mib()?,
        );
        ensure!(path.exists(), "the file is gone");
        (self.checkpoints, self.longest) = (0, Duration::ZERO);
        Ok(())
    }
}

async fn look_up(arguments: &Arguments, index: &Arc<Index>, name: &str, depth: u64) -> Result<()> {
    let before = index.statistics().node_reads;
    let started = Instant::now();
    let (entries, random) = (arguments.entries, arguments.random);
    let each = arguments.operations / depth;
    let tasks: Vec<_> = (0..depth)
        .map(|task| {
            let index = Arc::clone(index);
            tokio::spawn(async move {
                for nth in 0..each {
                    let number = scramble(task * each + nth + 1_000_003) % entries;
                    let number = if random { scramble(number) } else { number };
                    ensure!(index.get(&key(number)).await?.is_some(), "entry {number} is gone");
                }
                Ok(())
            })
        })
        .collect();
    for task in tasks {
        task.await??;
    }
    report(name, each * depth, started);
    println!("  {} nodes read", index.statistics().node_reads - before);
    Ok(())
}

fn report(name: &str, count: u64, started: Instant) {
    let seconds = started.elapsed().as_secs_f64();
    println!("{name}: {count} in {seconds:.2} s, {:.0} per second", count as f64 / seconds);
}

/// A key of the shape that chunks have: table, inode, generation, index, copy, section.
fn key(number: u64) -> Key {
    let mut bytes = [0; 19];
    bytes[0] = 1;
    bytes[1..9].copy_from_slice(&number.to_be_bytes());
    bytes[12] = 1;
    Key::new(&bytes).expect("19 bytes are a key")
}

/// Pages for three versions of every entry at half fill.
fn segment_of(arguments: &Arguments) -> Segment {
    let entry_bytes = (arguments.value_bytes + 24) as u64;
    let pages = 6 * arguments.entries * entry_bytes / PAGE + 4096;
    Segment { first: FIRST_NODE, pages: u32::try_from(pages).expect("below 16 TiB") }
}

fn make_file(arguments: &Arguments, path: &Path) -> Result<Options> {
    let file = DataFile::open(path).context("make the file of the bench")?;
    file.grow(0, segment_of(arguments).end() * PAGE)?;
    options(arguments, &file)
}

fn reopen_file(arguments: &Arguments, path: &Path) -> Result<Options> {
    let file = DataFile::open(path)?;
    println!("transfers bypass the page cache: {}", file.is_direct());
    options(arguments, &file)
}

fn options(arguments: &Arguments, file: &DataFile) -> Result<Options> {
    Ok(Options {
        target: TargetId([1; 8]),
        disk: disk::start(DiskEngine::Auto, file)?,
        pool: BufferPool::new(16 << 20),
        first_root_page: 0,
        cache_bytes: arguments.cache_mib << 20,
    })
}

fn resident_mib() -> Result<u64> {
    let status = fs::read_to_string("/proc/self/status")?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()).context("no VmRSS")?;
    Ok(kib.parse::<u64>()? / 1024)
}

fn written_mib() -> Result<String> {
    let io = fs::read_to_string("/proc/self/io")?;
    let line = io.lines().find_map(|line| line.strip_prefix("write_bytes: "));
    let bytes: u64 = line.context("no write_bytes")?.parse()?;
    Ok(format!("{} MiB", bytes >> 20))
}
