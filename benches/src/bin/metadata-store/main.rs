//! The metadata server's store engines side by side: the same commands and the same reads, through
//! the engine's own thread, its command log and `apply`, in rounds that alternate.
//!
//! Each step of a contestant is a process of its own, so that its memory is its own and a start
//! begins with an empty cache in the process (the page cache of the machine stays warm):
//!
//! | step    | does                                                                             |
//! |---------|----------------------------------------------------------------------------------|
//! | `fill`  | makes directories and files, as 64 clients do at once; ends as if it were killed |
//! | `use`   | starts; looks up, lists and removes in random order; stops in order              |
//! | `again` | starts after the stop in order, takes a snapshot, stops                          |
//! | `anew`  | starts without its store: from the snapshot and the log                          |

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{
    collections::BTreeMap,
    env, fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, ValueEnum};
use millrace_benches::{figures::Figures, quiet};
use millrace_metadata_server::engine::StoreKind;
use millrace_types::ClusterId;

mod layout;
mod steps;

use steps::Step;

/// Measures the metadata server's store engines.
#[derive(Parser, Debug)]
struct Arguments {
    /// A directory on the disk to measure; what is made in it goes again.
    #[arg(long)]
    directory: PathBuf,
    /// Inodes to make.
    #[arg(long, default_value_t = 1_000_000)]
    inodes: u64,
    /// Files in each directory.
    #[arg(long, default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    files_a_directory: u64,
    /// Lookups, and at most so many removals.
    #[arg(long, default_value_t = 200_000)]
    operations: u64,
    /// `cache` of the server, in MiB.
    #[arg(long, default_value_t = 128)]
    cache_mib: u64,
    /// Rounds of each engine.
    #[arg(long, default_value_t = 3)]
    rounds: u32,
    /// The engines; the first is what the others are held against.
    #[arg(long, value_enum, default_values_t = [Contestant::Sled, Contestant::Lsm])]
    engine: Vec<Contestant>,
    /// Seconds to wait for a machine that does nothing else, before each step.
    #[arg(long, default_value_t = 0)]
    quiet: u64,
    /// Print JSON.
    #[arg(long)]
    json: bool,
    /// Measures nothing: makes the inodes in the file system with this id, whose metadata server
    /// is stopped and has `--directory` as its data, on the one engine that is named. They stay.
    #[arg(long, value_name = "CLUSTER", value_parser = ClusterId::parse)]
    into: Option<ClusterId>,
    /// What the process is that a round starts.
    #[arg(long, hide = true, value_enum)]
    step: Option<Step>,
}

#[derive(ValueEnum, Clone, Copy, PartialEq, Eq, Debug)]
enum Contestant {
    Sled,
    Lsm,
    Memory,
}

impl Contestant {
    fn store(self) -> StoreKind {
        match self {
            Self::Sled => StoreKind::Sled,
            Self::Lsm => StoreKind::Lsm,
            Self::Memory => StoreKind::Memory,
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    if let Some(cluster) = arguments.into {
        return steps::fill_cluster(&arguments, cluster);
    }
    match arguments.step {
        Some(step) => {
            let [contestant] = arguments.engine[..] else { anyhow::bail!("one engine a step") };
            let figures = steps::run(&arguments, contestant.store(), step)?;
            println!("{}", serde_json::to_string(&figures)?);
            Ok(())
        }
        None => compare(&arguments),
    }
}

fn compare(arguments: &Arguments) -> Result<()> {
    let base = arguments.engine.first().context("no engine")?.store();
    let mut figures = Figures::against(base.name());
    for round in 0..arguments.rounds {
        for contestant in &arguments.engine {
            let name = contestant.store().name();
            let place = arguments.directory.join(format!("metadata-store-{name}"));
            let measured = Round { arguments, contestant: *contestant, place: &place }.run();
            // Also after an error: it takes gigabytes.
            drop(fs::remove_dir_all(&place));
            figures.add(name, measured.with_context(|| format!("{name}, round {round}"))?);
        }
    }
    match arguments.json {
        true => println!("{}", figures.json()),
        false => print!("{}", figures.table()),
    }
    Ok(())
}

/// All steps of one contestant.
struct Round<'a> {
    arguments: &'a Arguments,
    contestant: Contestant,
    place: &'a Path,
}

impl Round<'_> {
    fn run(&self) -> Result<Vec<(&'static str, &'static str, f64)>> {
        ensure!(!self.place.exists(), "{} is there already", self.place.display());
        fs::create_dir_all(self.place)?;
        let mut figures = Vec::new();
        for step in Step::value_variants() {
            quiet::wait(Duration::from_secs(self.arguments.quiet))?;
            let mut measured = self.step(*step)?;
            for (name, unit) in step.figures() {
                let figure = measured.remove(*name).with_context(|| format!("{step:?}: {name}"))?;
                figures.push((*name, *unit, figure));
            }
        }
        Ok(figures)
    }

    fn step(&self, step: Step) -> Result<BTreeMap<String, f64>> {
        let value = |value: &dyn ValueEnumName| value.name();
        let mut command = Command::new(env::current_exe()?);
        command.arg("--directory").arg(self.place);
        command.args(["--inodes", &self.arguments.inodes.to_string()]);
        let a_directory = self.arguments.files_a_directory.to_string();
        command.args(["--files-a-directory", &a_directory]);
        command.args(["--operations", &self.arguments.operations.to_string()]);
        command.args(["--cache-mib", &self.arguments.cache_mib.to_string()]);
        command.args(["--engine", &value(&self.contestant), "--step", &value(&step)]);
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        ensure!(output.status.success(), "{step:?} ended with {}", output.status);
        Ok(serde_json::from_slice(&output.stdout)?)
    }
}

/// The word of an argument's value.
trait ValueEnumName {
    fn name(&self) -> String;
}

impl<T: ValueEnum> ValueEnumName for T {
    fn name(&self) -> String {
        self.to_possible_value().map(|value| value.get_name().to_owned()).unwrap_or_default()
    }
}
