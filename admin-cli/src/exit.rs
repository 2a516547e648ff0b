//! Exit codes, which scripts rely on; listed in `docs/cli.md`.

use std::process::ExitCode;

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Exit {
    /// It did what it was asked; `status`: healthy.
    Done,
    /// It failed; `status`: degraded; with `--wait`: the job did not do every file.
    Failed,
    /// `status`: nobody answers. (Wrong use ends with the same number, from the argument parser.)
    Unreachable,
    /// Ctrl-C ended the wait for a job, which goes on.
    Interrupted,
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        match exit {
            Exit::Done => Self::SUCCESS,
            Exit::Failed => Self::from(1),
            Exit::Unreachable => Self::from(2),
            // 128 + SIGINT, as shells have it.
            Exit::Interrupted => Self::from(130),
        }
    }
}

/// The command line parses, but makes no sense together; ends with exit code 2.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Misuse(pub(crate) String);
