//! `millrace-target`: arguments and settings; everything else is the library's.

use std::process::ExitCode;

use clap::Parser;
use millrace_service::daemon::{self, DaemonArguments};

/// The storage target daemon of Millrace: keeps chunks on the local disks of one host.
#[derive(Parser, Debug)]
#[command(name = "millrace-target", version, about)]
struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let version = env!("CARGO_PKG_VERSION");
    daemon::main("millrace-target", version, &arguments.daemon, millrace_storage_target::run)
}
