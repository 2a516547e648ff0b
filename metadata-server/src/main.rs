//! The metadata server's program: arguments, settings, run.

use std::{path::PathBuf, process::ExitCode};

use clap::{Parser, Subcommand};
use millrace_metadata_server::{daemon::Daemon, memory, settings::Settings};
use millrace_runtime::Drained;
use millrace_service::{
    daemon::{self, DaemonArguments, Ended, StopSignals},
    systemd,
};

/// The store's engine makes and drops many small pieces for each change. With the C library's
/// allocator, half of the time of importing a hundred thousand names went into that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// The Millrace metadata server: names, layouts, sessions, links and jobs of one file system.
#[derive(Parser, Debug)]
#[command(name = "millrace-metadata", version)]
struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,
    #[command(subcommand)]
    task: Option<Task>,
}

/// What there is to do besides serving.
#[derive(Subcommand, Debug)]
enum Task {
    /// Put a backup back into the data directory of the settings, which must be empty.
    Restore {
        /// The backup, or a snapshot of the same cluster.
        file: PathBuf,
    },
}

fn main() -> ExitCode {
    let pages = memory::in_small_pages();
    let arguments = Arguments::parse();
    daemon::main(
        "millrace-metadata",
        env!("CARGO_PKG_VERSION"),
        &arguments.daemon,
        |settings: Settings| -> anyhow::Result<Ended> {
            if let Err(error) = pages {
                tracing::warn!(%error, "memory may come in huge pages, and is more then");
            }
            if let Some(Task::Restore { file }) = &arguments.task {
                let restored = millrace_metadata_server::daemon::restore(&settings, file)?;
                tracing::info!(index = %restored.index, data = %settings.data.display(),
                    "the backup is in place: start the server, then the targets, then the clients");
                return Ok(Ended::Drained);
            }
            // Two threads: one for buckets and jobs, one so that leases are never behind them. The
            // engine, the log and each socket have threads of their own.
            let runtime = tokio::runtime::Builder::new_multi_thread()
                .worker_threads(2)
                .enable_all()
                .build()?;
            runtime.block_on(run(&settings))
        },
    )
}

async fn run(settings: &Settings) -> anyhow::Result<Ended> {
    let mut signals = StopSignals::install()?;
    // A store that is made anew takes as long as there are inodes.
    let starting = systemd::during_start(Box::pin(Daemon::start(settings)));
    let server = tokio::select! {
        started = starting => started?,
        // Recovery changes nothing that a second start would miss.
        _ = signals.next() => return Ok(Ended::Drained),
    };
    systemd::ready(&format!("serves on {}", server.address()));
    let why = signals.next().await;
    systemd::stopping();
    let stopped = tokio::select! {
        stopped = server.stop() => stopped?,
        _ = signals.next() => return Ok(Ended::Abandoned),
    };
    tracing::info!(why, "log and store are closed");
    Ok(match stopped {
        Drained::Cleanly => Ended::Drained,
        Drained::GaveUp(_) => Ended::Abandoned,
    })
}
