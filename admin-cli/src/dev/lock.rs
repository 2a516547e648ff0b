//! One `dev` command at a time on a directory.

use std::{
    fs::{File, OpenOptions},
    path::Path,
    time::{Duration, Instant},
};

use anyhow::{Context as _, bail};
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::watch::say;

/// Holds the directory until it is dropped; the kernel frees it also when the process dies.
#[derive(Debug)]
pub(crate) struct Lock {
    _file: File,
}

impl Lock {
    /// Takes the lock of `dir`, waiting for another holder at most [`PATIENCE`].
    ///
    /// # Errors
    /// When the directory cannot be written to, or the other holder does not finish.
    pub(crate) fn take(dir: &Path) -> anyhow::Result<Self> {
        let path = dir.join("lock");
        let file = OpenOptions::new()
            .create(true)
            .append(true)
            .open(&path)
            .with_context(|| format!("cannot open {}", path.display()))?;
        let deadline = Instant::now() + PATIENCE;
        let mut told = false;
        loop {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(Self { _file: file }),
                Err(Errno::WOULDBLOCK) if Instant::now() < deadline => {
                    if !told {
                        say(&format!("waits for another `millrace dev` in {}", dir.display()));
                        told = true;
                    }
                    std::thread::sleep(PAUSE);
                }
                Err(Errno::WOULDBLOCK) => bail!(
                    "another `millrace dev` has been at work in {} for {} s; wait, or end it",
                    dir.display(),
                    PATIENCE.as_secs()
                ),
                Err(error) => {
                    return Err(error).with_context(|| format!("cannot lock {}", path.display()));
                }
            }
        }
    }
}

/// Longer than the slowest `dev up`, which waits 60 s for each daemon at most.
const PATIENCE: Duration = Duration::from_secs(180);
const PAUSE: Duration = Duration::from_millis(50);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_second_waits_for_the_first() {
        let directory = tempfile::tempdir().unwrap();
        let first = Lock::take(directory.path()).unwrap();
        let path = directory.path().to_owned();
        let second = std::thread::spawn(move || Lock::take(&path).map(drop));
        drop(first);
        second.join().unwrap().unwrap();
    }
}
