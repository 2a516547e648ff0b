//! `millrace metadata ...`

use std::path::PathBuf;

use clap::{Args, Subcommand};

/// Backup and restore of everything but the bytes of files.
#[derive(Subcommand, Debug)]
pub enum MetadataCommand {
    /// Write all metadata into one file, while the server goes on
    #[command(after_help = BACKUP_HELP)]
    Backup(BackupArguments),
    /// Put a backup back, into the empty data directory of a server that does not run
    #[command(after_help = RESTORE_HELP)]
    Restore(RestoreArguments),
}

/// Arguments of `metadata backup`.
#[derive(Args, Debug)]
pub struct BackupArguments {
    /// Where to write it (mode 0600); appears whole or not at all
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Replace FILE if it exists
    #[arg(long)]
    pub force: bool,
}

/// Arguments of `metadata restore`.
#[derive(Args, Debug)]
pub struct RestoreArguments {
    /// What `metadata backup` wrote
    #[arg(value_name = "FILE")]
    pub file: PathBuf,
    /// Settings of the metadata server on this host [default: that of --dir D, then
    /// /etc/millrace/metadata-server.toml]
    #[arg(long, value_name = "FILE")]
    pub server_config: Option<PathBuf>,
}

const BACKUP_HELP: &str = "\
The backup shows one moment. It has names, attributes, layouts and links, and neither the bytes of
files nor any secret; who reads it knows every name. The server needs as much room on its disk
meanwhile.

  millrace metadata backup /backup/millrace-$(date +%F)";

const RESTORE_HELP: &str = "\
Run it on the metadata server's host, with the server stopped and what its data directory had moved
away. Afterwards start the server, then all targets, then the clients. Nothing is freed as an orphan
until `millrace fsck trust`: files made since the backup are gone, and their bytes are still on the
targets. docs/operations.md has the whole procedure.

  millrace metadata restore /backup/millrace-2026-01-31";
