//! `millrace link check` and `millrace conflicts ...`

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::ResolveArguments;

/// Arguments of `link check`.
#[derive(Args, Debug)]
pub struct LinkCheckArguments {
    /// The link's directory; without one, all links are checked
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
}

/// Arguments of `link list`.
#[derive(Args, Debug)]
pub struct LinkListArguments {
    /// What the buckets were asked instead, by kind of request, since the daemons began
    #[arg(long)]
    pub requests: bool,
}

/// Arguments of `link left-out`.
#[derive(Args, Debug)]
pub struct LinkLeftOutArguments {
    /// A linked directory, or one above or below
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// Arguments of `link uploads`.
#[derive(Args, Debug)]
pub struct LinkUploadsArguments {
    /// Abort those that were begun so long ago or earlier, such as 7d, unless an export here is
    /// using them
    #[arg(long, value_name = "AGE", value_parser = super::job::seconds)]
    pub abort_older_than: Option<u64>,
    /// The linked directory
    #[arg(value_name = "PATH")]
    pub path: PathBuf,
}

/// `millrace conflicts ...`
#[derive(Subcommand, Debug)]
pub enum ConflictsCommand {
    /// List them
    #[command(after_help = LIST_HELP)]
    List,
    /// Decide some: as `millrace resolve`
    #[command(after_help = super::resolve::RESOLVE_HELP)]
    Resolve(ResolveArguments),
}

pub(super) const LINK_CHECK_HELP: &str = "\
The metadata server and every target daemon list the first keys under the link's prefix and read the
beginning of an object there; for a link of mode import-export they also begin an upload and give it
up, and with --propagate-deletes the metadata server asks for the deletion of a key that is not
there. Nothing is stored, and nothing deleted. Exit code 1: one of them cannot.

Examples:
  millrace link check
  millrace link check mr:/train --json";

pub(super) const LINK_LEFT_OUT_HELP: &str = "\
Keys such as a//b, a/../b or ones with control characters can be no file names; where a bucket has
both a and a/b, a is a directory here. What the last listing of each directory left out is counted,
and the first keys are named. Directories that nobody has listed yet are not known: see millrace
import.

Examples:
  millrace link left-out mr:/train
  millrace link left-out mr:/ --json";

pub(super) const LINK_UPLOADS_HELP: &str = "\
An upload by parts that nobody ends is kept, and charged, by the bucket for ever. Those of other
programs below the prefix are listed too, and aborted when they are old enough.

Examples:
  millrace link uploads mr:/run7
  millrace link uploads mr:/run7 --abort-older-than 7d";

const LIST_HELP: &str = "\
Nothing is overwritten, here or in the bucket, before a conflict is decided.

Examples:
  millrace conflicts list
  millrace conflicts resolve mr:/run7/model.pt --keep bucket
  millrace conflicts resolve mr:/run7 --recursive --keep local --dry-run";
