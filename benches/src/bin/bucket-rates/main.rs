//! What Millrace makes of a bucket: first reads, listings and exports, held against a plain client
//! of the same bucket in rounds that alternate, and against other mounts of it. Ratios within a run
//! are to be trusted, absolute figures of different runs are not.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum as _};
use millrace_benches::{figures::Figures, goal_bars};
use millrace_runtime::Shutdown;
use serde_json::json;

mod bench;
mod cluster;
mod goals;
mod jobs;
mod loads;
mod memory;
mod mounted;
mod objects;
mod processes;
mod proxy;
mod raw;
mod reads;
mod rivals;
mod vast;

use bench::Bench;
use loads::Load;
use proxy::Line;
use rivals::Rival;

/// Measures first reads, listings and exports of a bucket through Millrace and without it. Starts a
/// cluster of its own; the S3 server runs already, and `AWS_*` have its credentials. Needs root.
#[derive(Parser, Debug)]
struct Arguments {
    /// Address of the S3 server, such as `http://127.0.0.1:8333`.
    #[arg(long)]
    endpoint: String,
    /// A bucket that exists; what is made in it is removed afterwards.
    #[arg(long)]
    bucket: String,
    /// A directory for the cluster's data; what is made there is removed afterwards.
    #[arg(long)]
    directory: PathBuf,
    /// `millrace`; otherwise the one beside this program.
    #[arg(long)]
    millrace: Option<PathBuf>,
    /// Rounds; each measures every load once, without Millrace and with it.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Puts `cloud-bucket` between the server and everybody: 20 ms to the first byte, 90 MB/s for
    /// a connection, 200 MB/s in all.
    #[arg(long)]
    cloud: bool,
    /// Makes that line so many times slower, and the first byte as much later: who has twice the
    /// time for each byte has what twice as many processors would give.
    #[arg(long, default_value_t = 1, requires = "cloud")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10))]
    slower: u32,
    /// Measures these only; otherwise all but `vast`, which takes half an hour.
    #[arg(long, value_enum, value_delimiter = ',')]
    only: Vec<Load>,
    /// Also measures the first epoch through this mount of the bucket. May be given several times.
    #[arg(long, value_enum)]
    rival: Vec<Rival>,
    /// Process of the S3 server, for its CPU time.
    #[arg(long)]
    server_pid: Option<u32>,
    /// Storage targets of the cluster.
    #[arg(long, default_value_t = 2)]
    targets: u16,
    /// Small files, of 100 to 140 KB each.
    #[arg(long, default_value_t = 4000)]
    files: usize,
    /// Directories that the small files lie in, such as the classes of a set of pictures.
    #[arg(long, default_value_t = 1)]
    directories: usize,
    /// What is fetched behind reads, as for `millrace link add --fetch`.
    #[arg(long, default_value = "ahead")]
    fetch: String,
    /// Programs that read the small files at a time.
    #[arg(long, default_value_t = 8)]
    readers: usize,
    /// MiB of the large file, and of the four files that are hydrated together.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Keys that are imported.
    #[arg(long, default_value_t = 100_000)]
    keys: usize,
    /// Keys of one directory (`--only vast`).
    #[arg(long, default_value_t = 1_200_000)]
    vast_keys: usize,
    /// Waits before each measurement until the machine does next to nothing else, for so many
    /// seconds at most.
    #[arg(long, default_value_t = 0)]
    quiet: u64,
    /// Leaves the objects in the bucket.
    #[arg(long)]
    keep: bool,
    /// Prints all figures as JSON instead of tables.
    #[arg(long)]
    json: bool,
    /// Also draws the figures that have goals, as an SVG file.
    #[arg(long)]
    plot: Option<PathBuf>,
}

impl Arguments {
    /// The line to the bucket, if there is one.
    fn line(&self) -> Option<Line> {
        self.cloud.then_some(Line { slower: self.slower })
    }
}

fn main() -> Result<()> {
    let mut arguments = Arguments::parse();
    ensure!(rustix::process::geteuid().is_root(), "needs root, to mount");
    let some = arguments.rounds > 0 && arguments.readers > 0 && arguments.directories > 0;
    ensure!(arguments.vast_keys >= 8, "--vast-keys is 8 or more");
    ensure!(some && arguments.files >= arguments.directories, "1 or more of each");
    ensure!(arguments.mib >= 4 && arguments.mib.is_multiple_of(4), "--mib is 4 or more, in 4s");
    if arguments.only.is_empty() {
        let all = Load::value_variants().iter().copied();
        arguments.only = all.filter(|load| *load != Load::Vast).collect();
    }
    let name = format!("bucket-rates.{}", std::process::id());
    let directory = arguments.directory.join(&name);
    fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let shutdown = Shutdown::new();
    runtime.block_on(async { shutdown.on_signals() })?;
    let measured = Bench::start(&arguments, &directory, &name, &runtime, shutdown)
        .and_then(|bench| bench.measure());
    fs::remove_dir_all(&directory).context("remove the directory of the bench")?;
    let measured = measured?;
    print(&arguments, &measured);
    match &arguments.plot {
        Some(path) => plot(arguments.line(), &measured, path),
        None => Ok(()),
    }
}

/// A bar for each goal.
fn plot(line: Option<Line>, measured: &[(Load, Figures)], path: &Path) -> Result<()> {
    let bucket = match line {
        None => "on the same machine".to_owned(),
        Some(Line { slower: 1 }) => "as in the cloud".to_owned(),
        Some(Line { slower }) => format!("as in the cloud, {slower} times slower"),
    };
    let title =
        format!("A bucket {bucket}, against the goals: median, and the range of the rounds");
    let verdicts =
        measured.iter().flat_map(|(load, figures)| goals::verdicts(*load, figures, line));
    let bars: Vec<_> = verdicts.map(|verdict| verdict.bar()).collect();
    goal_bars::draw(&title, &bars, path)
}

/// The figures of each load, and which goals they reach.
fn print(arguments: &Arguments, measured: &[(Load, Figures)]) {
    if arguments.json {
        let loads = measured.iter().map(|(load, figures)| {
            let verdicts = goals::verdicts(*load, figures, arguments.line());
            let verdicts: Vec<_> = verdicts.iter().map(goals::Verdict::json).collect();
            (load.name().to_owned(), json!({ "rows": figures.json(), "goals": verdicts }))
        });
        let loads: serde_json::Map<_, _> = loads.collect();
        println!(
            "{:#}",
            json!({ "cloud": arguments.cloud, "slower": arguments.slower, "loads": loads })
        );
        return;
    }
    for (load, figures) in measured {
        println!("\n{}\n\n{}", load.title(), figures.table());
    }
    for (load, figures) in measured {
        for verdict in goals::verdicts(*load, figures, arguments.line()) {
            println!("{verdict}");
        }
    }
}
