//! `millrace-target`: arguments and settings; everything else is the library's.

use std::process::ExitCode;

use clap::{Parser, Subcommand};
use millrace_service::daemon::{self, DaemonArguments};
use millrace_storage_target::{dump, verify};

/// The storage target daemon of Millrace: keeps chunks on the local disks of one host. Without a
/// command it serves.
#[derive(Parser, Debug)]
#[command(name = "millrace-target", version, about, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Subcommand, Debug)]
enum Command {
    /// Serve the targets that the settings name (the default).
    Serve(DaemonArguments),
    Verify(verify::command::Arguments),
    Dump(dump::command::Arguments),
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match arguments.command {
        None => serve(&arguments.daemon),
        Some(Command::Serve(arguments)) => serve(&arguments),
        Some(Command::Verify(arguments)) => verify::command::run(&arguments),
        Some(Command::Dump(arguments)) => dump::command::run(&arguments),
    }
}

fn serve(arguments: &DaemonArguments) -> ExitCode {
    let version = env!("CARGO_PKG_VERSION");
    daemon::main("millrace-target", version, arguments, millrace_storage_target::run)
}
