//! `millrace-fuse`: mounts a Millrace file system and serves it in the foreground.

use std::{path::PathBuf, process::ExitCode};

use clap::Parser;
use millrace_client_fuse::{
    mount,
    settings::{Overrides, Settings, parse_servers},
};
use millrace_service::{
    address::ServerAddress,
    daemon::{self, DaemonArguments},
};

/// Mounts a Millrace file system and serves it until it is unmounted.
///
/// Runs in the foreground; SIGTERM and SIGINT unmount. Everything can come from the settings file;
/// arguments win over it.
#[derive(Parser, Debug)]
#[command(name = "millrace-fuse", version)]
struct Arguments {
    #[command(flatten)]
    daemon: DaemonArguments,
    /// The directory to mount on.
    #[arg(long, value_name = "DIR")]
    mountpoint: Option<PathBuf>,
    /// The identity bundle of this host, as `millrace cluster invite --role client` made it.
    #[arg(long, value_name = "FILE")]
    identity: Option<PathBuf>,
    /// The metadata servers.
    #[arg(long, value_name = "HOST[:PORT],...", value_parser = Servers::parse)]
    metadata: Option<Servers>,
    /// What mount tables show as the source, as fstab has it.
    #[arg(long, value_name = "TEXT")]
    source: Option<String>,
    /// Mount options, as `millrace mount --help` lists them.
    #[arg(short = 'o', long = "options", value_name = "OPTION,...")]
    options: Vec<String>,
    /// Begin a session of its own, which outlives the terminal, once the mount can be used.
    #[arg(long, hide = true)]
    own_session: bool,
    /// Write a line to this descriptor once the mount can be used.
    #[arg(long, value_name = "N")]
    ready_fd: Option<u32>,
}

/// One argument that names several servers.
#[derive(Clone, Debug)]
struct Servers(Vec<ServerAddress>);

impl Servers {
    fn parse(text: &str) -> Result<Self, String> {
        parse_servers(text).map(Self)
    }
}

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    let overrides = Overrides {
        mountpoint: arguments.mountpoint,
        identity: arguments.identity,
        source: arguments.source,
        servers: arguments.metadata.map(|servers| servers.0).unwrap_or_default(),
        options: arguments.options,
    };
    let ready = move || {
        if arguments.own_session {
            mount::begin_session();
        }
        if let Some(descriptor) = arguments.ready_fd {
            mount::tell_ready(descriptor);
        }
    };
    let version = env!("CARGO_PKG_VERSION");
    let complete = |settings: Settings| settings.with(overrides).map_err(|error| error.to_string());
    let run = |settings: Settings| anyhow::Ok(mount::run(&settings, ready)?);
    daemon::main_with("millrace-fuse", version, &arguments.daemon, complete, run)
}
