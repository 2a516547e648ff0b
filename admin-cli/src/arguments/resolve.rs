//! `millrace resolve`, also as `millrace conflicts resolve`.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

/// Arguments of `resolve`.
#[derive(Args, Debug)]
pub struct ResolveArguments {
    /// Which version stays
    #[arg(long, value_enum)]
    pub keep: KeepName,
    /// Decide all conflicts at and below each PATH; it is for operators, as `conflicts list` is
    #[arg(long)]
    pub recursive: bool,
    /// Decide those of the files that FILE names, one a line, as PATH would; - is standard input
    #[arg(long, value_name = "FILE")]
    pub files_from: Option<PathBuf>,
    /// Names in FILE end in a zero byte instead of a line feed, as `find -print0` writes them
    #[arg(short = '0', long, requires = "files_from")]
    pub null: bool,
    /// Tell which conflicts would be decided, and decide none
    #[arg(long)]
    pub dry_run: bool,
    /// Files in conflict: paths inside a mount, or mr:/... from the file system's root
    #[arg(value_name = "PATH", required_unless_present = "files_from")]
    pub paths: Vec<PathBuf>,
}

/// The two versions of a file in conflict.
#[derive(ValueEnum, Debug, Clone, Copy, PartialEq, Eq)]
pub enum KeepName {
    /// What was written here; the next export replaces the object that is there now
    Local,
    /// What the bucket has; what was written here is given up
    Bucket,
}

pub(super) const RESOLVE_HELP: &str = "\
A file is in conflict when it was changed here and its object in the bucket; `millrace state DIR`
counts such files, `millrace status` names the first. Nothing is overwritten before it is resolved.
Of several files each is decided by itself: one that cannot be does not keep the others from it, and
the exit code is 1 then.

Examples:
  millrace resolve /mnt/data/run7/model.pt --keep local && millrace export /mnt/data/run7/model.pt
  millrace resolve mr:/run7/model.pt mr:/run7/optimizer.pt --keep bucket
  millrace resolve mr:/run7 --recursive --keep local --dry-run
  millrace resolve --files-from decided.txt --keep bucket";
