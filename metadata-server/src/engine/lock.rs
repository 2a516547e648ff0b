//! Having a directory alone.

use std::{
    fs::File,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{fs::FlockOperation, io::Errno};

use super::startup::StartError;

/// How long a killed server may still leave. Its process looks dead when its first thread is, and
/// has its files until the last one has ended: 4 to 17 ms later on a machine that is not busy (the
/// kills of docs/reliability.md), and not before the disk has what a thread is syncing. What takes
/// longer than this is for who starts the server to try again.
pub(super) const LEAVING_MAX: Duration = Duration::from_secs(10);

/// How often is looked whether it has left.
const LEAVING_TICK: Duration = Duration::from_millis(10);

/// Keeps a second server off the directory for as long as the file is open. Blocks for `patience`
/// at most while another process has it.
///
/// # Errors
/// [`StartError::InUse`] when that keeps it, [`StartError::Disk`] otherwise.
pub(super) fn lock(dir: &Path, patience: Duration) -> Result<File, StartError> {
    let path = dir.join("lock");
    let failed = |source| StartError::Disk { path: path.clone(), source };
    let file = File::create(&path).map_err(failed)?;
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if begun.elapsed() >= patience => {
                return Err(StartError::InUse(dir.to_owned()));
            }
            Err(Errno::WOULDBLOCK) => {}
            Err(error) => return Err(failed(error.into())),
        }
        if !is_told {
            is_told = true;
            tracing::info!(
                path = %dir.display(),
                seconds_max = patience.as_secs(),
                "another metadata server has it, or was killed and has not ended yet; waiting"
            );
        }
        thread::sleep(LEAVING_TICK);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn who_comes_after_a_killed_server_waits_for_its_end_and_not_forever() {
        let dir = tempfile::tempdir().unwrap();
        let dying = lock(dir.path(), Duration::ZERO).unwrap();
        for patience in [Duration::ZERO, 3 * LEAVING_TICK] {
            let refused = lock(dir.path(), patience);
            assert!(matches!(refused, Err(StartError::InUse(_))), "{refused:?}");
        }
        let (begins, begun) = mpsc::channel();
        let next = thread::spawn({
            let dir = dir.path().to_owned();
            move || {
                begins.send(()).unwrap();
                lock(&dir, LEAVING_MAX).map(drop)
            }
        });
        begun.recv().unwrap();
        drop(dying);
        next.join().unwrap().unwrap();
    }
}
