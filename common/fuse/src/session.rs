//! The life of a mount.
//!
//! ```text
//!   mount point looked at ─▶ mount ─▶ INIT ─▶ threads, one for each CPU ────▶ requests
//!                                                                              │
//!         umount(8), unmount, detach ─▶ last user gone ─▶ ENODEV ──▶ destroy ◀─┤
//!                              abort ─▶ ECONNABORTED ────────────────────────▶─┤
//!                         hand_over ─▶ the threads end, and another process ◀──┘
//!                                      goes on, without mounting and INIT
//! ```

mod hand_over;
mod handshake;
mod interrupt;
mod legacy;
mod mount;
mod mounted;
mod mountpoint;
mod negotiate;
mod threads;

use std::{
    io,
    num::NonZero,
    path::{Path, PathBuf},
    sync::Arc,
    thread,
    time::Duration,
};

use rustix::io::Errno;

pub use hand_over::HandOverError;
pub use handshake::Channel;
pub use legacy::Legacy;
pub use mount::MountOptions;

use mounted::Mounted;
pub use mounted::Mountpoint;
pub use mountpoint::PreparedMountpoint;
pub use negotiate::{Terms, Wishes};
use threads::Threads;

use crate::{
    channel::{End, Responder, buffer::Pool, device::DeviceChannel, uring::UringChannel},
    connection::{Connection, Counts},
    dispatch::Dispatch,
    filesystem::FileSystem,
    notifier::Notifier,
    protocol::init::InitFlags,
};

/// How a session is run.
#[derive(Clone, Copy, Debug, Default)]
pub struct SessionOptions {
    /// What is asked of the kernel.
    pub wishes: Wishes,
    /// How requests come.
    pub channel: Channel,
    /// Threads that read the device; at first one for each CPU, and no more than 8. Over io_uring
    /// there is one for each CPU that the machine may have, and one for the device.
    pub readers: Option<NonZero<usize>>,
    /// Bytes of memory that the requests and answers of a ring may take: it has as many entries as
    /// `max_write` goes into that, divided among its queues, but one in each at least. At first 256
    /// MiB, or 8 entries in each queue if that is more. What was never used is not there; what was
    /// is kept until the session ends.
    pub ring_memory: Option<usize>,
    /// While requests follow one another within this time, two of the readers do not sleep in
    /// between, but look for the next one and offer their CPUs to others; at first 50 µs. Where
    /// waking a CPU takes long, as on virtual machines, small requests are answered several times
    /// as fast. Zero: they always sleep. Not for io_uring.
    pub polling: Option<Duration>,
    /// Mount with the helper even as root.
    pub through_helper: bool,
}

/// Why a session cannot begin.
#[derive(Debug, thiserror::Error)]
pub enum SessionError {
    /// The mount point is no directory, or has a dead mount that cannot be taken away.
    #[error("{path}: cannot be mounted on: {error}", path = path.display())]
    Mountpoint {
        /// The mount point.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The kernel, or the helper, does not mount.
    #[error("{path}: cannot mount: {error}", path = path.display())]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// The kernel speaks no version that is understood here.
    #[error("the kernel speaks FUSE {major}.{minor}; 7.31 (Linux 5.4) is needed at least")]
    Version {
        /// Its major version.
        major: u32,
        /// Its minor version.
        minor: u32,
    },
    /// The first request is not INIT, or none comes.
    #[error("the session does not begin with INIT: {0}")]
    Init(Errno),
}

/// A file system that is mounted. When it is dropped the mount is taken out of sight.
pub struct Session<F: FileSystem> {
    dispatch: Arc<Dispatch<F>>,
    device: DeviceChannel,
    ring: Option<UringChannel>,
    pool: Arc<Pool>,
    terms: Terms,
    mount: Mounted,
}

impl<F: FileSystem> Session<F> {
    /// Mounts `filesystem` on `path` and agrees with the kernel on terms. Requests wait until
    /// [`Self::spawn`] or [`Self::run`].
    ///
    /// A mount there whose server has died is replaced; one that lives is mounted over.
    ///
    /// # Errors
    /// [`SessionError`]. Nothing stays mounted.
    pub fn mount(
        filesystem: F,
        path: &Path,
        mount: &MountOptions,
        options: &SessionOptions,
    ) -> Result<Self, SessionError> {
        Self::mount_on(filesystem, PreparedMountpoint::new(path)?, mount, options)
    }

    /// The same on a directory that was looked at before: it waits for nobody else's server.
    ///
    /// # Errors
    /// [`SessionError`]. Nothing stays mounted.
    pub fn mount_on(
        filesystem: F,
        mountpoint: PreparedMountpoint,
        mount: &MountOptions,
        options: &SessionOptions,
    ) -> Result<Self, SessionError> {
        let PreparedMountpoint { path } = mountpoint;
        let mounted = if options.through_helper {
            mount::mount_with_helper(&path, mount)
        } else {
            mount::mount(&path, mount)
        };
        let refused = |error| SessionError::Mount { path: path.clone(), error };
        let mounted = mounted.map_err(refused)?;
        // From here on it is taken away when something fails.
        let mount = Mounted::new(path.clone()).map_err(refused)?;
        let polling = options.polling.unwrap_or(POLLING);
        let device = DeviceChannel::new(mounted, readers(options), polling);
        let (terms, ring) = handshake::initialise(&device, options)?;
        let responder: Arc<dyn Responder> = match &ring {
            Some(ring) => Arc::new(ring.responder(&device)),
            None => Arc::new(device.responder()),
        };
        let connection = Connection::new(responder);
        let pool = Pool::new(terms.buffer_len(), readers(options).max(SPARES_MAX));
        let filesystem = Arc::new(filesystem);
        filesystem.init(&terms);
        let layout = terms.layout();
        let dispatch = Arc::new(Dispatch { filesystem, connection, layout });
        Ok(Self { dispatch, device, ring, pool, terms, mount })
    }

    /// What was agreed on.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// The file system.
    #[must_use]
    pub fn filesystem(&self) -> &Arc<F> {
        &self.dispatch.filesystem
    }

    /// Tells the kernel what has changed.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.dispatch.connection))
    }

    /// Where it is mounted, and how it is taken away.
    #[must_use]
    pub fn mountpoint(&self) -> &Mountpoint {
        &self.mount
    }

    /// Serves until the file system is unmounted.
    ///
    /// # Errors
    /// When a thread cannot be started, or the channel breaks.
    pub fn run(self) -> io::Result<Ended> {
        self.spawn()?.join()
    }

    /// Begins to serve, on threads of its own.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub fn spawn(self) -> io::Result<Running<F>> {
        let Self { dispatch, device, ring, pool, mut terms, mount } = self;
        let threads = match ring {
            None => Threads::over_device(&dispatch, &device, &pool)?,
            Some(ring) => {
                let (threads, in_use) = Threads::over_ring(&dispatch, &device, ring, &pool)?;
                if !in_use {
                    terms.flags = terms.flags.without(InitFlags::OVER_IO_URING);
                }
                threads
            }
        };
        Ok(Running { dispatch, threads, device, pool, terms, mount })
    }
}

impl<F: FileSystem> std::fmt::Debug for Session<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session").field("mount", &self.mount).field("terms", &self.terms).finish()
    }
}

/// How a session has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Ended {
    /// Why.
    pub end: End,
    /// What it has done. Requests that wait at the end of an aborted session get no answer.
    pub counts: Counts,
}

/// A session that is being served. When it is dropped the mount is taken out of sight.
pub struct Running<F: FileSystem> {
    dispatch: Arc<Dispatch<F>>,
    threads: Threads,
    // For a successor.
    device: DeviceChannel,
    pool: Arc<Pool>,
    terms: Terms,
    mount: Mounted,
}

impl<F: FileSystem> Running<F> {
    /// The file system.
    #[must_use]
    pub fn filesystem(&self) -> &Arc<F> {
        &self.dispatch.filesystem
    }

    /// Tells the kernel what has changed.
    #[must_use]
    pub fn notifier(&self) -> Notifier {
        Notifier::new(Arc::clone(&self.dispatch.connection))
    }

    /// What was agreed on; and [how requests come](Terms::channel), in the end.
    #[must_use]
    pub fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What was done so far.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.dispatch.connection.counts()
    }

    /// Whether all threads have ended, so that [`Self::join`] does not wait.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.threads.are_over()
    }

    /// Where it is mounted, and how it is taken away.
    #[must_use]
    pub fn mountpoint(&self) -> &Mountpoint {
        &self.mount
    }

    /// Waits until the kernel has let go of the mount, and all threads have ended.
    ///
    /// # Errors
    /// When the channel broke before.
    pub fn join(mut self) -> io::Result<Ended> {
        let ended = self.threads.join();
        self.dispatch.connection.await_answers(LAST_ANSWERS_MAX);
        let counts = self.counts();
        self.dispatch.connection.end();
        self.dispatch.filesystem.destroy();
        ended.map(|end| Ended { end, counts })
    }
}

impl<F: FileSystem> std::fmt::Debug for Running<F> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Running")
            .field("mount", &self.mount)
            .field("counts", &self.counts())
            .finish_non_exhaustive()
    }
}

/// An answer that has reached the kernel may not be counted yet. One that is not there by now is
/// waited for by nobody.
const LAST_ANSWERS_MAX: Duration = Duration::from_millis(100);

fn readers(options: &SessionOptions) -> usize {
    let cpus = || thread::available_parallelism().map_or(1, NonZero::get).min(READERS_MAX);
    options.readers.map_or_else(cpus, NonZero::get)
}

/// Buffers that came back and are kept. What is new has to be filled with zeros, which takes longer
/// than to copy it.
const SPARES_MAX: usize = 16;
/// More meet at the connection's own lock.
const READERS_MAX: usize = 8;
/// Longer than answering a small request takes, and as long as waking a CPU.
const POLLING: Duration = Duration::from_micros(50);

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::channel::{device, uring::Plan};

    /// Nothing works on it.
    struct Nothing;

    impl FileSystem for Nothing {}

    #[test]
    fn a_ring_that_the_kernel_refuses_leaves_the_device() {
        let parameter = fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
        let is_offered = parameter.is_ok_and(|text| text.trim() == "Y");
        if !rustix::process::geteuid().is_root() || device::open().is_err() || !is_offered {
            return;
        }
        let directory = tempfile::TempDir::new().unwrap();
        let options = SessionOptions { channel: Channel::Uring, ..SessionOptions::default() };
        let mount = MountOptions::new("test");
        let mut session = Session::mount(Nothing, directory.path(), &mount, &options).unwrap();
        assert_eq!(session.terms().channel(), Channel::Uring);
        // Shorter than what was agreed on.
        let plan = Plan { entries: 1, payload_len: 8192, queues: Plan::possible_cpus().unwrap() };
        session.ring = Some(UringChannel::new(&session.device, &plan).unwrap());
        let running = session.spawn().unwrap();
        assert_eq!(running.terms().channel(), Channel::Device);
        // Answered, and so it was asked.
        let error = fs::read_dir(directory.path()).unwrap_err();
        assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSYS));
        running.mountpoint().unmount().unwrap();
        assert_eq!(running.join().unwrap().end, End::Unmounted);
    }
}
