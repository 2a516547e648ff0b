//! What programs get from a mount: names, small files and streams, for several mounts (or local
//! directories) in rounds that alternate. Ratios are to be trusted, absolute figures of different
//! runs are not.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{fs, path::PathBuf, str::FromStr, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::Parser;
use millrace_benches::{figures::Figures, quiet};

mod loads;
mod standing;

use loads::Loads;
use standing::Standing;

/// Measures what programs get from mounts. Empties the kernel's caches between the steps, for which
/// it needs root.
#[derive(Parser, Debug)]
struct Arguments {
    /// What to measure: directories that may be written to. The others are held against the first.
    #[arg(required = true, value_name = "NAME=DIRECTORY")]
    places: Vec<Place>,
    /// Rounds; each measures every place once.
    #[arg(long, default_value_t = 3)]
    rounds: u64,
    /// Small files.
    #[arg(long, default_value_t = 2000)]
    files: usize,
    /// Bytes of each.
    #[arg(long, default_value_t = 16 * 1024)]
    bytes: usize,
    /// Names in the directory that is listed.
    #[arg(long, default_value_t = 10_000)]
    names: usize,
    /// MiB of the large file.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Looks at one file in each of so many directories, of those that stand in every place before:
    /// `directory-*/sample-*`, as `metadata-store --into` makes them; and at all files of two. Each
    /// round takes others.
    #[arg(long, default_value_t = 0)]
    standing: usize,
    /// Waits before each measurement until the machine does next to nothing else, for so many
    /// seconds at most.
    #[arg(long, default_value_t = 0)]
    quiet: u64,
    /// Prints all figures as JSON instead of a table.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Debug)]
struct Place {
    name: String,
    directory: PathBuf,
}

impl FromStr for Place {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, directory)) if !name.is_empty() && !directory.is_empty() => {
                Ok(Self { name: name.to_owned(), directory: directory.into() })
            }
            _ => Err("expected NAME=DIRECTORY".to_owned()),
        }
    }
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    ensure!(rustix::process::geteuid().is_root(), "needs root, to empty the kernel's caches");
    ensure!(arguments.rounds > 0 && arguments.files > 0 && arguments.mib > 0, "1 or more of each");
    let mut figures = Figures::against(&arguments.places[0].name);
    let standing = |place: &Place| Standing::of(&place.directory, arguments.standing);
    let standing = arguments.places.iter().map(standing).collect::<Result<Vec<_>>>()?;
    for round in 0..arguments.rounds {
        for (place, standing) in arguments.places.iter().zip(&standing) {
            if !quiet::wait(Duration::from_secs(arguments.quiet))? && !arguments.json {
                println!("a round of {} while the machine does other things", place.name);
            }
            // Before anything else is forgotten.
            figures.add(&place.name, standing.measure(round)?);
            let name = format!("mount-rates.{}.{round}", std::process::id());
            let directory = place.directory.join(name);
            fs::create_dir(&directory).with_context(|| format!("make {}", directory.display()))?;
            let loads = Loads {
                directory: &directory,
                files: arguments.files,
                bytes: arguments.bytes,
                names: arguments.names,
                mib: arguments.mib,
                seed: round,
            };
            let measured = loads.measure().with_context(|| place.name.clone());
            let removed = fs::remove_dir_all(&directory);
            figures.add(&place.name, measured?);
            removed.with_context(|| format!("remove {}", directory.display()))?;
        }
    }
    if arguments.json {
        println!("{:#}", figures.json());
    } else {
        print!("{}", figures.table());
    }
    Ok(())
}
