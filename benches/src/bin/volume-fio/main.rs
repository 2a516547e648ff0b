//! The storage target's engine by itself, held against what fio gets from the same disk in the same
//! run.
//!
//! Each figure is the median of several rounds; a round measures fio, then the engine. Ratios are
//! to be trusted, absolute figures of different runs are not.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{fs, path::PathBuf, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;

mod data;
mod figures;
mod fio;
mod loads;

use data::{DataSet, Opened};
use figures::{Figure, Goal};
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
}

/// What a round measures.
struct Measured {
    name: &'static str,
    goal: Goal,
    /// Of fio, and of the engine, in the unit of the goal.
    rounds: Vec<(f64, f64)>,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(arguments.mib >= 64 && arguments.mib.is_multiple_of(8), "--mib is 64 or more, in 8s");
    let directory = tempfile_in(&arguments.directory)?;
    // One thread runs all of it, as in the daemon.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let outcome = runtime.block_on(run(&arguments, &directory));
    fs::remove_dir_all(&directory).context("remove the directory of the bench")?;
    for figure in outcome? {
        println!("{figure}");
    }
    Ok(())
}

fn tempfile_in(directory: &std::path::Path) -> Result<PathBuf> {
    let path = directory.join(format!("volume-fio.{}", std::process::id()));
    fs::create_dir(&path).with_context(|| format!("make {}", path.display()))?;
    Ok(path)
}

async fn run(arguments: &Arguments, directory: &std::path::Path) -> Result<Vec<Figure>> {
    let lasting = Duration::from_secs(arguments.seconds);
    let fio = Fio::new(directory, arguments.mib, lasting);
    let data = DataSet::new(arguments.mib);
    let mut all: Vec<Measured> = figures::GOALS
        .iter()
        .map(|&(name, goal)| Measured { name, goal, rounds: Vec::new() })
        .collect();
    for round in 0..arguments.rounds {
        let place = directory.join(format!("target-{round}"));
        let one = measure(&fio, &data, &place, lasting).await?;
        for (measured, pair) in all.iter_mut().zip(one) {
            measured.rounds.push(pair);
        }
        fs::remove_dir_all(&place).context("remove a target")?;
    }
    Ok(all.into_iter().map(|one| Figure::median(one.name, one.goal, one.rounds)).collect())
}

/// One round, in the order of [`figures::GOALS`].
async fn measure(
    fio: &Fio,
    data: &DataSet,
    place: &std::path::Path,
    lasting: Duration,
) -> Result<Vec<(f64, f64)>> {
    let mut pairs = Vec::new();
    let plain = fio.write_large()?;
    let warm = Opened::new(place, data::CACHE_LARGE).await?;
    pairs.push((plain, loads::write_large(&warm, data).await?));
    pairs.push((fio.read_large()?, loads::read_large(&warm, data).await?));
    let plain = fio.read_small()?;
    pairs.push((plain, loads::read_small(&warm, data, lasting).await?));
    warm.close().await?;
    let cold = Opened::new(place, data::CACHE_SMALL).await?;
    pairs.push((plain, loads::read_small(&cold, data, lasting).await?));
    cold.close().await?;
    let warm = Opened::new(place, data::CACHE_LARGE).await?;
    pairs.push((0.0, loads::overwrite_cost(warm, data).await?));
    let warm = Opened::new(place, data::CACHE_LARGE).await?;
    let plain = fio.durable_small()?;
    pairs.push((plain, loads::write_durably(&warm, data, 32, lasting).await?));
    warm.close().await?;
    pairs.push((0.0, loads::checksum_cost()));
    Ok(pairs)
}
