//! Having a directory, a device or a file alone.

use std::{
    fs::File,
    io, thread,
    time::{Duration, Instant},
};

use rustix::{fs::FlockOperation, io::Errno};

/// How long a killed process may still leave: its requests to the disk end within tens of
/// milliseconds, and a busy machine is generous.
const LEAVING_MAX: Duration = Duration::from_secs(5);

/// How often is looked whether it has left.
pub(super) const LEAVING_TICK: Duration = Duration::from_millis(10);

/// Locks a file or directory, which stays locked until it is closed, however the process ends.
/// Blocks for 5 seconds at most while another process has it.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when another process keeps it; otherwise what the system says.
pub(super) fn lock(file: &File) -> io::Result<()> {
    patiently(|| match rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive) {
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(error.into()),
        Ok(()) => Ok(Some(())),
    })
}

/// Repeats what finds another process in the way (`None`): one that was killed keeps its files
/// until the last of its threads has left the disk.
///
/// # Errors
/// [`io::ErrorKind::WouldBlock`] when it stays; otherwise those of `attempt`.
pub(super) fn patiently<T>(attempt: impl Fn() -> io::Result<Option<T>>) -> io::Result<T> {
    let deadline = Instant::now() + LEAVING_MAX;
    loop {
        match attempt()? {
            Some(done) => return Ok(done),
            None if Instant::now() < deadline => thread::sleep(LEAVING_TICK),
            None => return Err(io::ErrorKind::WouldBlock.into()),
        }
    }
}
