//! `millrace pin` and `millrace unpin`.

use std::path::PathBuf;

use clap::Args;

/// Arguments of `pin`.
#[derive(Args, Debug)]
pub struct PinArguments {
    /// A path inside a mount, or mr:/... for a path from the file system's root; without one, what
    /// is pinned is listed
    #[arg(value_name = "PATH")]
    pub path: Option<PathBuf>,
}

pub(super) const PIN_HELP: &str = "\
What is pinned is never dropped to make room on the targets, nor by `millrace release`; of a
directory that holds for everything below it, now and later. Nothing is fetched by it.

Examples:
  millrace pin /mnt/data/val && millrace hydrate /mnt/data/val --wait
  millrace pin mr:/train/index.bin
  millrace pin                             lists what is pinned";

pub(super) const UNPIN_HELP: &str = "\
Nothing is dropped by it; that happens when room is needed, or with `millrace release`.

Example:
  millrace unpin /mnt/data/val";
