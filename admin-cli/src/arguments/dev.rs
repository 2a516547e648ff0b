//! `millrace dev ...`

use std::path::PathBuf;

use clap::{Args, Subcommand};
use millrace_types::{ByteLen, MIB};

/// A whole cluster on this machine.
#[derive(Subcommand, Debug)]
pub enum DevCommand {
    /// Start what is not running of the cluster in --dir D; make it when D is empty
    #[command(after_help = DEV_HELP)]
    Up(UpArguments),
    /// Unmount and stop every daemon of the cluster in --dir D; its data stays
    Down,
    /// Show the daemons of the cluster in --dir D
    Status,
}

/// Arguments of `dev up`.
#[derive(Args, Debug)]
pub struct UpArguments {
    /// How many storage targets, 1 to 32 [default: as many as D has, 2 at first]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=32))]
    pub targets: Option<u16>,
    /// Also mount the file system here; the directory is made if missing
    #[arg(long, value_name = "M")]
    pub mount: Option<PathBuf>,
    /// The most bytes of each target, 49MiB at least [default: as it is; at first what the disk
    /// has free]. Targets that run keep theirs: `dev down` comes before another
    #[arg(long, value_name = "SIZE", env = "MILLRACE_TARGET_CAPACITY", value_parser = capacity)]
    pub capacity: Option<ByteLen>,
    /// A file with named keys of buckets, for links with --credentials NAME
    #[arg(long, value_name = "FILE")]
    pub credentials: Option<PathBuf>,
    /// Options of the mount, as for `mount`
    #[arg(long, value_name = "OPTIONS", requires = "mount")]
    pub mount_options: Option<String>,
}

/// What the smallest target takes: journal, superblocks and roots, and one region of 32 MiB. The
/// targets' own `Layout::capacity_min` says the same, which is tested.
pub const CAPACITY_MIN: ByteLen = ByteLen(49 * MIB);

pub(super) fn capacity(text: &str) -> Result<ByteLen, String> {
    let capacity: ByteLen = text.parse().map_err(|error| format!("{error}"))?;
    match capacity < CAPACITY_MIN {
        true => Err(format!("a target needs {CAPACITY_MIN} at least")),
        false => Ok(capacity),
    }
}

const DEV_HELP: &str = "\
State (certificates, settings, data, logs, process ids) lies under D. Run it again to start what has
stopped: the same cluster comes back with its data. AWS_* variables of the caller reach the daemons.

Examples:
  millrace dev up --dir ~/mr
  millrace dev up --dir ~/mr --targets 4 --mount ~/mnt
  millrace dev status --dir ~/mr
  millrace dev down --dir ~/mr";
