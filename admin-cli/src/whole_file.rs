//! A file for a result that appears whole or not at all, also when a signal ends the command
//! meanwhile.

use std::{
    future::poll_fn,
    io,
    path::{Path, PathBuf},
    task::Poll,
};

use anyhow::{Context as _, ensure};
use tempfile::NamedTempFile;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::{exit::Signalled, named_file};

/// What happens to a regular file that has the name already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Present {
    /// It is replaced, at once.
    Replaced,
    /// It stays, and the user is told to do this instead.
    Kept(&'static str),
}

/// Has `fill` write a file, which then is on stable storage and gets the name `file`.
///
/// # Errors
/// When something is there that stays, when `fill` fails or the disk does; [`Signalled`]. Nothing
/// is left then.
pub(crate) async fn write<T>(
    file: &Path,
    present: Present,
    fill: impl AsyncFnOnce(&mut NamedTempFile) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    check(file, present)?;
    // Before there is anything that they would leave behind.
    let mut signals = Signals::new()?;
    let parent = parent_of(file);
    let mut name = tempfile::Builder::new();
    let partial = name.prefix(".millrace-").suffix(".part").tempfile_in(&parent);
    let mut partial = partial.with_context(|| format!("cannot write to {}", parent.display()))?;
    let filling = Box::pin(fill(&mut partial));
    let filled = tokio::select! {
        filled = filling => filled?,
        signal = signals.next() => {
            return Err(Signalled { signal, file: file.to_owned() }.into());
        }
    };
    keep(partial, file, &parent, present)?;
    Ok(filled)
}

/// Refuses a place where no result may go.
fn check(file: &Path, present: Present) -> anyhow::Result<()> {
    let is_there = named_file::is_there(file)?;
    if let Present::Kept(instead) = present {
        ensure!(!is_there, "{} exists: {instead}", file.display());
    }
    Ok(())
}

/// The directory of a file that may be named without one.
fn parent_of(file: &Path) -> PathBuf {
    match file.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent.to_owned(),
        _ => PathBuf::from("."),
    }
}

/// Gives the file its name, durably.
fn keep(
    partial: NamedTempFile,
    file: &Path,
    parent: &Path,
    present: Present,
) -> anyhow::Result<()> {
    let failed = || format!("cannot write {}", file.display());
    partial.as_file().sync_all().with_context(failed)?;
    // To fill it may have taken long.
    check(file, present)?;
    let kept = match present {
        Present::Replaced => partial.persist(file),
        Present::Kept(_) => partial.persist_noclobber(file),
    };
    kept.map_err(|error| error.error).with_context(failed)?;
    std::fs::File::open(parent).and_then(|dir| dir.sync_all()).with_context(failed)
}

/// The signals that end a command, but for those that whoever started it has it ignore, as nohup(1)
/// does.
struct Signals(Vec<(i32, Signal)>);

impl Signals {
    /// From here on they end nothing by themselves.
    fn new() -> io::Result<Self> {
        let ignored = ignored(&std::fs::read_to_string("/proc/self/status").unwrap_or_default());
        let mut signals = Vec::new();
        for kind in [SignalKind::hangup(), SignalKind::interrupt(), SignalKind::terminate()] {
            let number = kind.as_raw_value();
            if ignored & (1_u64 << (number - 1)) == 0 {
                signals.push((number, signal(kind)?));
            }
        }
        Ok(Self(signals))
    }

    /// The next of them. May be dropped at any time.
    async fn next(&mut self) -> i32 {
        poll_fn(|context| {
            let mut arrived = self.0.iter_mut().filter_map(|(number, signal)| {
                signal.poll_recv(context).is_ready().then_some(*number)
            });
            arrived.next().map_or(Poll::Pending, Poll::Ready)
        })
        .await
    }
}

/// The signals that a process ignores, a bit for each from the lowest on, by its file `status`.
fn ignored(status: &str) -> u64 {
    let mut lines = status.lines().filter_map(|line| line.strip_prefix("SigIgn:"));
    lines.next().and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEPT: Present = Present::Kept("--force replaces it");

    #[test]
    fn a_result_replaces_a_regular_file_alone_and_only_when_told_to() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("backup");
        let partial = || NamedTempFile::new_in(directory.path()).unwrap();
        keep(partial(), &file, directory.path(), KEPT).unwrap();
        let again = keep(partial(), &file, directory.path(), KEPT).unwrap_err().to_string();
        assert!(again.contains("--force"), "{again}");
        keep(partial(), &file, directory.path(), Present::Replaced).unwrap();
        for present in [KEPT, Present::Replaced] {
            let refused = check(Path::new("/dev/null"), present).unwrap_err().to_string();
            assert!(refused.contains("no regular file"), "{refused}");
        }
        let link = directory.path().join("link");
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
        assert!(keep(partial(), &link, directory.path(), Present::Replaced).is_err());
        assert!(link.is_symlink());
    }

    #[test]
    fn what_the_caller_has_ignored_stays_ignored() {
        let of_nohup = "Name:\tmillrace\nSigBlk:\t0000000000000006\nSigIgn:\t0000000000001001\n";
        assert_eq!(ignored(of_nohup), (1 << 12) | 1, "SIGPIPE and SIGHUP");
        assert_eq!(ignored("SigIgn:\t0000000000000000\n"), 0);
        assert_eq!(ignored(""), 0);
    }
}
