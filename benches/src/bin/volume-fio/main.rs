//! The storage target's engine by itself, held against what fio gets from the same disk in the same
//! run.
//!
//! Each figure is the median of several rounds; a round measures fio, then the engine. Ratios are
//! to be trusted, absolute figures of different runs are not.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum as _};
use millrace_benches::goal_bars;
use rustix::time::{ClockId, clock_gettime};

mod data;
mod figures;
mod fio;
mod loads;

use data::{DataSet, Opened};
use figures::{Case, Figure};
use fio::Fio;

/// Measures the storage target's engine against fio. Needs fio (Debian package `fio`) and, in the
/// directory, three times the size of the data.
#[derive(Parser, Debug)]
struct Arguments {
    /// A directory on the disk to measure; what is made there is removed afterwards.
    #[arg(long, default_value = ".")]
    directory: PathBuf,
    /// MiB of data, in chunks of 8 MiB; more than the machine's disk cache.
    #[arg(long, default_value_t = 2048)]
    mib: u64,
    /// Rounds of each measurement.
    #[arg(long, default_value_t = 3)]
    rounds: usize,
    /// Seconds of each load that is not bound by the size of the data.
    #[arg(long, default_value_t = 3)]
    seconds: u64,
    /// Measures these only. May be given several times.
    #[arg(long, value_enum)]
    only: Vec<Case>,
    /// Measures the engine and not fio, for profiles.
    #[arg(long)]
    without_fio: bool,
    /// Draws the figures into this SVG file.
    #[arg(long, conflicts_with = "without_fio")]
    plot: Option<PathBuf>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.mib >= 64 && arguments.mib.is_multiple_of(8), "--mib is 64 or more, in 8s");
    ensure!(arguments.rounds > 0, "--rounds is 1 or more");
    let directory = directory_in(&arguments.directory)?;
    // One thread runs all of it, as in the daemon.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(run(&arguments, &directory));
    fs::remove_dir_all(&directory).context("remove the directory of the bench")?;
    let figures = outcome?;
    for figure in &figures {
        println!("{figure}");
    }
    match &arguments.plot {
        Some(path) => {
            let title =
                "The engine of a target against its goals: median, and the range of the rounds";
            let bars: Vec<_> = figures.iter().map(Figure::bar).collect();
            goal_bars::draw(title, &bars, path)
        }
        None => Ok(()),
    }
}

fn directory_in(directory: &Path) -> Result<PathBuf> {
    let path = directory.join(format!("volume-fio.{}", std::process::id()));
    fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
    Ok(path)
}

async fn run(arguments: &Arguments, directory: &Path) -> Result<Vec<Figure>> {
    let cases = if arguments.only.is_empty() { Case::value_variants() } else { &arguments.only };
    let lasting = Duration::from_secs(arguments.seconds);
    let fio = Fio::new(directory, arguments.mib, lasting);
    let bench = Bench {
        fio: (!arguments.without_fio).then_some(fio),
        data: DataSet::new(arguments.mib),
        place: directory.join("target"),
        lasting,
    };
    let mut rounds: Vec<Vec<(f64, f64)>> = vec![Vec::new(); cases.len()];
    for _ in 0..arguments.rounds {
        if cases[0] != Case::LargeWrites {
            // What the others read and overwrite.
            bench.measure(Case::LargeWrites).await?;
        }
        for (&case, pairs) in cases.iter().zip(&mut rounds) {
            pairs.push(bench.measure(case).await?);
        }
        fs::remove_dir_all(&bench.place).context("remove the target")?;
    }
    Ok(cases.iter().zip(rounds).map(|(&case, pairs)| Figure::median(case, pairs)).collect())
}

/// What is measured, and where.
struct Bench {
    fio: Option<Fio>,
    data: DataSet,
    place: PathBuf,
    lasting: Duration,
}

impl Bench {
    /// What fio gets, 0 without it, and what the engine gets.
    async fn measure(&self, case: Case) -> Result<(f64, f64)> {
        let plain = match &self.fio {
            Some(fio) => plain(fio, case)?,
            None => 0.0,
        };
        let cache = if case == Case::ColdReads { data::CACHE_SMALL } else { data::CACHE_LARGE };
        let opened = Opened::new(&self.place, cache).await?;
        if case == Case::DurableWritesUsed {
            loads::use_room(&opened, &self.data).await?;
        }
        let (started, cpu) = (Instant::now(), cpu_seconds());
        let ours = match case {
            Case::LargeWrites => loads::write_large(&opened, &self.data).await?,
            Case::LargeReads => loads::read_large(&opened, &self.data).await?,
            Case::SmallReads | Case::ColdReads => {
                loads::read_small(&opened, &self.data, self.lasting).await?
            }
            Case::DurableWrites | Case::DurableWritesUsed => {
                let groups = opened.count_groups();
                let rate = loads::write_durably(&opened, &self.data, 32, self.lasting).await?;
                println!("{}: {}", case.name(), groups.means()?);
                rate
            }
            Case::Overwrites => return Ok((plain, loads::overwrite(opened, &self.data).await?)),
            Case::Checksums => loads::checksum_cost(),
        };
        let used = (cpu_seconds() - cpu) / started.elapsed().as_secs_f64() / ours * 1e6;
        if case != Case::Checksums {
            println!("{}: the engine takes {used:.1} CPU-us for each", case.name());
        }
        opened.close().await?;
        Ok((plain, ours))
    }
}

/// What this process has used.
fn cpu_seconds() -> f64 {
    let used = clock_gettime(ClockId::ProcessCPUTime);
    used.tv_sec as f64 + used.tv_nsec as f64 / 1e9
}

fn plain(fio: &Fio, case: Case) -> Result<f64> {
    match case {
        Case::LargeWrites => fio.write_large(),
        Case::LargeReads => fio.read_large(),
        Case::SmallReads | Case::ColdReads => fio.read_small(),
        Case::DurableWrites | Case::DurableWritesUsed => {
            let together = fio.durable_together()?;
            println!("fio, 32 at once, a sync after each 32: {together:.0} /s");
            fio.durable_small()
        }
        Case::Overwrites | Case::Checksums => Ok(0.0),
    }
}
