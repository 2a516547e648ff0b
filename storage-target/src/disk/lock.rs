//! Having a directory, a device or a file alone.
//!
//! A lock belongs to the description through which it was taken, and ends when the last handle of
//! that is closed. A file that is registered with an io_uring is such a handle, which its ring lets
//! go of when the last of its requests is over; and the kernel takes a ring apart some time after
//! its process has ended, without waiting for it. So a data file that is locked through the very
//! description by which it is written stays locked until nothing of a killed process can reach the
//! disk any more. (Measured: 20 to 30 ms after the end with nothing under way, 60 ms with 64 MiB.)

use std::{
    fs::File,
    io,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use rustix::{fs::FlockOperation, io::Errno};

/// How long a killed process may still leave: its requests to the disk end within tens of
/// milliseconds, and a busy machine is generous. What a disk keeps for longer is no reason to write
/// beside it: the place is refused, and may be opened again later.
const LEAVING_MAX: Duration = Duration::from_secs(5);

/// How often is looked whether it has left.
pub(super) const LEAVING_TICK: Duration = Duration::from_millis(10);

/// Locks a file or directory through this description of it. Blocks for 5 seconds at most while
/// another process has it. `path` is for the log.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when another process keeps it; otherwise what the system says.
pub(super) fn lock(file: &File, path: &Path) -> io::Result<()> {
    patiently(path, || match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(Some(())),
    })
}

/// Lets others have what was locked through this description, which stays open.
///
/// # Errors
/// What the system says.
pub(super) fn unlock(file: &File) -> io::Result<()> {
    Ok(rustix::fs::flock(file, FlockOperation::Unlock)?)
}

/// Repeats what finds another process in the way (`None`): one that was killed keeps its files
/// until the last of its threads and requests has left the disk. `path` is for the log.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when it stays; otherwise those of `attempt`.
pub(super) fn patiently<T>(
    path: &Path,
    attempt: impl Fn() -> io::Result<Option<T>>,
) -> io::Result<T> {
    let begun = Instant::now();
    let mut is_told = false;
    loop {
        match attempt()? {
            Some(done) => {
                if is_told {
                    let waited = begun.elapsed();
                    tracing::info!(path = %path.display(), ?waited, "it has left the disk");
                }
                return Ok(done);
            }
            None if begun.elapsed() >= LEAVING_MAX => {
                return Err(io::ErrorKind::WouldBlock.into());
            }
            None if !is_told => {
                is_told = true;
                tracing::info!(
                    path = %path.display(),
                    seconds_max = LEAVING_MAX.as_secs(),
                    "another process has it, or was killed and has not left the disk yet; waiting"
                );
            }
            None => {}
        }
        thread::sleep(LEAVING_TICK);
    }
}
