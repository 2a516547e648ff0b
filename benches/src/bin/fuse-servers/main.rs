//! What a request costs: the same files in memory, served through FUSE by this repository's crate,
//! by fuser and by libfuse, in rounds that alternate. Ratios are to be trusted, absolute figures of
//! different runs are not.

#![expect(clippy::print_stdout, reason = "the result of the program")]

use std::{fs, num::NonZero, path::PathBuf, thread, time::Duration};

use anyhow::{Context as _, Result, ensure};
use clap::{Parser, Subcommand, ValueEnum as _};
use millrace_benches::{figures::Figures, quiet};

mod contestants;
mod loads;
mod ours;
mod plot;
mod store;
mod theirs;

use contestants::{Kind, Server, Serving};
use store::Store;

/// Measures servers of FUSE file systems against each other. Needs root; for libfuse also Debian's
/// `libfuse3-dev`, `pkg-config` and a C compiler. Another libfuse is taken where `PKG_CONFIG_PATH`
/// names it; over io_uring it is measured from 3.18 on, if the kernel offers that.
#[derive(Parser, Debug)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Role>,
    /// Measures these only; otherwise all that there are. May be given several times.
    #[arg(long, value_enum)]
    server: Vec<Kind>,
    /// Rounds; each measures every server once.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Small files.
    #[arg(long, default_value_t = 3000)]
    files: usize,
    /// MiB of a large file; there are two.
    #[arg(long, default_value_t = 256)]
    mib: usize,
    /// Threads that read requests, of each server; otherwise one for each CPU.
    #[arg(long)]
    readers: Option<NonZero<usize>>,
    /// Waits before each measurement until the machine does next to nothing else, for so many
    /// seconds at most. What wakes a CPU costs shows only then.
    #[arg(long, default_value_t = 0)]
    quiet: u64,
    /// Prints all figures as JSON instead of a table.
    #[arg(long)]
    json: bool,
    /// Draws the figures into this SVG file.
    #[arg(long)]
    plot: Option<PathBuf>,
}

#[derive(Subcommand, Debug)]
enum Role {
    /// Serves, until it is unmounted; the bench starts this.
    #[command(hide = true)]
    Serve {
        /// As whom.
        kind: Kind,
        #[command(flatten)]
        serving: Serving,
    },
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Role::Serve { kind, serving }) => {
            let files = Store::new(serving.files, serving.mib);
            match kind {
                Kind::Fuser => theirs::serve(files, serving),
                _ => ours::serve(files, serving, *kind),
            }
        }
        None => compare(&arguments),
    }
}

fn compare(arguments: &Arguments) -> Result<()> {
    ensure!(rustix::process::geteuid().is_root(), "needs root");
    ensure!(arguments.rounds > 0, "--rounds is 1 or more");
    let directory = std::env::temp_dir().join(format!("fuse-servers.{}", std::process::id()));
    let mountpoint = directory.join("mount");
    fs::create_dir_all(&mountpoint).with_context(|| format!("make {}", mountpoint.display()))?;
    let cpus = thread::available_parallelism().unwrap_or(NonZero::<usize>::MIN);
    let readers = arguments.readers.unwrap_or(cpus);
    let serving = Serving { mountpoint, files: arguments.files, mib: arguments.mib, readers };
    let measured = run(arguments, &serving, &directory);
    fs::remove_dir_all(&directory).context("remove the directory of the bench")?;
    let figures = measured?;
    if arguments.json {
        println!("{:#}", figures.json());
    } else {
        print!("{}", figures.table());
    }
    match &arguments.plot {
        Some(path) => plot::draw(&figures, path),
        None => Ok(()),
    }
}

fn run(arguments: &Arguments, serving: &Serving, directory: &std::path::Path) -> Result<Figures> {
    let mut servers = arguments.server.clone();
    if servers.is_empty() {
        servers = Kind::value_variants().to_vec();
    }
    let libfuse = servers.iter().any(|kind| kind.libfuse_channel().is_some());
    let built = if libfuse { contestants::compile(directory)? } else { None };
    if libfuse && built.is_none() {
        println!("without libfuse: its headers are not there (libfuse3-dev)");
        servers.retain(|kind| kind.libfuse_channel().is_none());
    }
    if built.as_ref().is_some_and(|built| !built.ring) && servers.contains(&Kind::LibfuseUring) {
        println!("without libfuse over io_uring: that needs libfuse 3.18 or newer");
        servers.retain(|kind| *kind != Kind::LibfuseUring);
    }
    let mut figures = Figures::against(Kind::Fuser.name());
    for _ in 0..arguments.rounds {
        for &kind in &servers {
            if !quiet::wait(Duration::from_secs(arguments.quiet))? && !arguments.json {
                println!("a round of {} while the machine does other things", kind.name());
            }
            let server = Server::start(kind, serving, built.as_ref())?;
            let measured = loads::measure(&serving.mountpoint, serving.files, serving.mib);
            let measured = measured.with_context(|| kind.name())?;
            let rows = measured.into_iter().map(|(row, rate)| (row.name(), row.unit(), rate));
            figures.add(kind.name(), rows);
            server.stop()?;
        }
    }
    Ok(figures)
}
