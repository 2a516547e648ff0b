//! A mount that was made, and the ways in which it ends.

use std::{
    fs, io,
    ops::Deref,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use super::mountpoint;

/// Where a session is mounted. Copies are of the same mount, and can be used from any thread, also
/// while another one waits for its end.
///
/// What lies below the mount, or was mounted over it since, is never taken away.
#[derive(Clone, Debug)]
pub struct Mountpoint(Arc<Place>);

#[derive(Debug)]
struct Place {
    path: PathBuf,
    /// Major and minor number.
    device: (u32, u32),
    gone: AtomicBool,
}

impl Mountpoint {
    /// The directory, without symbolic links.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0.path
    }

    /// Major and minor number of the mount, which stat(2) shows of every file in it.
    #[must_use]
    pub fn device(&self) -> (u32, u32) {
        self.0.device
    }

    /// Raises the kernel's read-ahead, which no option of the mount or of INIT does.
    ///
    /// # Errors
    /// When the setting may not be written, as in most containers; then it stays at 128 KiB.
    pub fn raise_read_ahead(&self, kib: u32) -> io::Result<()> {
        let (major, minor) = self.0.device;
        fs::write(format!("/sys/class/bdi/{major}:{minor}/read_ahead_kb"), kib.to_string())
    }

    /// Unmounts, if nobody uses it. It is no failure if somebody was faster.
    ///
    /// # Errors
    /// EBUSY when somebody does.
    pub fn unmount(&self) -> io::Result<()> {
        self.take_away(mountpoint::unmount)
    }

    /// Takes the mount out of sight. Its users go on; with the last of them it ends.
    ///
    /// # Errors
    /// When that is not permitted.
    pub fn detach(&self) -> io::Result<()> {
        self.take_away(mountpoint::detach)
    }

    /// Ends the connection now, whoever uses it: waiting calls and all that follow fail with
    /// ECONNABORTED. Then takes the mount out of sight.
    ///
    /// # Errors
    /// When that is not permitted. A mount that is out of sight already cannot be aborted.
    pub fn abort(&self) -> io::Result<()> {
        self.take_away(|path| mountpoint::abort(path, self.0.device))
    }

    /// Whether the mount point still shows this mount, and not what lies below or was mounted over.
    fn is_there(&self) -> bool {
        let Place { path, device, gone } = &*self.0;
        !gone.load(Ordering::Acquire)
            // Where the table cannot be read, what is at the path has to tell.
            && mountpoint::is_listed(*device).unwrap_or(true)
            && mountpoint::device(path).is_ok_and(|seen| seen == *device)
    }

    fn take_away(&self, how: impl FnOnce(&Path) -> io::Result<()>) -> io::Result<()> {
        if self.is_there() {
            match how(&self.0.path) {
                // Somebody was faster.
                Err(_) if !self.is_there() => {}
                outcome => outcome?,
            }
        }
        self.0.gone.store(true, Ordering::Release);
        Ok(())
    }
}

/// A mount that is taken out of sight when this is dropped.
#[derive(Debug)]
pub(super) struct Mounted(Mountpoint);

impl Mounted {
    /// What was mounted on `path` just now.
    ///
    /// # Errors
    /// When it cannot be looked at; then it is gone.
    pub(super) fn new(path: PathBuf) -> io::Result<Self> {
        match mountpoint::device(&path) {
            Ok(device) => Ok(Self::inherited(path, device)),
            Err(error) => {
                drop(mountpoint::detach(&path));
                Err(error)
            }
        }
    }

    /// What another process has mounted on `path`, with this device number.
    pub(super) fn inherited(path: PathBuf, device: (u32, u32)) -> Self {
        Self(Mountpoint(Arc::new(Place { path, device, gone: AtomicBool::new(false) })))
    }

    /// Leaves the mount to another process.
    pub(super) fn leave(&self) {
        self.0.0.gone.store(true, Ordering::Release);
    }
}

impl Deref for Mounted {
    type Target = Mountpoint;

    fn deref(&self) -> &Mountpoint {
        &self.0
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = self.detach() {
            tracing::warn!(path = %self.path().display(), %error, "a mount cannot be taken away");
        }
    }
}
