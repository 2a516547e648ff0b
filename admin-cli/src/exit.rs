//! Exit codes, which scripts rely on; listed in `docs/cli.md`.

use std::{path::PathBuf, process::ExitCode};

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

/// A signal came before a file was whole; ends with 128 and its number, as shells have it.
#[derive(Debug, thiserror::Error)]
#[error("signal {signal} came before {} was whole; nothing of it is left", file.display())]
pub(crate) struct Signalled {
    /// Its number.
    pub(crate) signal: i32,
    /// The file.
    pub(crate) file: PathBuf,
}

/// The exit code of a command that failed.
pub(crate) fn of_error(error: &anyhow::Error) -> ExitCode {
    if error.is::<Misuse>() {
        return ExitCode::from(2);
    }
    match error.downcast_ref::<Signalled>() {
        Some(Signalled { signal, .. }) => ExitCode::from(u8::try_from(128 + *signal).unwrap_or(1)),
        None => Exit::Failed.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_that_a_signal_ended_ends_as_shells_have_it() {
        let code = |signal| of_error(&Signalled { signal, file: "/backup".into() }.into());
        for (signal, expected) in [(1, 129), (2, 130), (15, 143)] {
            assert_eq!(code(signal), ExitCode::from(expected));
        }
        assert_eq!(of_error(&Misuse("--dir".to_owned()).into()), ExitCode::from(2));
        assert_eq!(of_error(&anyhow::anyhow!("it failed")), ExitCode::from(1));
    }
}
