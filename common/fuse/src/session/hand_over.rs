//! Another process goes on with a session, and programs do not notice.
//!
//! ```text
//!   predecessor                                        successor
//!   readers end ─▶ operations end, or a time is over
//!   ─▶ requests that were read and not answered
//!      go back to the kernel (NOTIFY_RESEND)
//!   ─▶ device, terms, mount, state ──────────────────▶ everything is made again
//!   it lets go ◀───────────────────────────── ready ── and waits
//!   ─── go ──────────────────────────────────────────▶ serves
//! ```
//!
//! **Each request is answered once**: the kernel takes an answer only on the descriptor that its
//! request was read from, and forgets that when it is sent back. What the predecessor answers later
//! nobody gets.
//!
//! **But it may be done twice**: an operation that has changed something and was not answered when
//! its request went back is asked for again, with
//! [`UNIQUE_RESENT`](crate::protocol::header::UNIQUE_RESENT), and a file that it made is there
//! already. So operations get time to end (`drain`). Those that are still going on then must be
//! such that they can be done again, as reads and waits for locks are, or the file system must
//! remember in its state what it has done. From the end of that time on it must change nothing any
//! more.

use std::{
    fmt, io,
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    Mounted, POLLING, Running, Session, SessionOptions, Terms,
    legacy::{self, Estate, Legacy},
    readers,
};
use crate::{
    channel::{buffer::Pool, device::DeviceChannel},
    connection::{Connection, Counts},
    dispatch::Dispatch,
    filesystem::FileSystem,
    notifier::Notifier,
    protocol::init::InitFlags,
};

/// A session that could not be handed over. It can go on here.
pub struct HandOverError<F: FileSystem> {
    /// The session: [`Session::spawn`] goes on with it. When it is dropped the mount is taken away.
    pub session: Session<F>,
    /// Why.
    pub error: io::Error,
}

impl<F: FileSystem> fmt::Debug for HandOverError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HandOverError").field(&self.error).finish()
    }
}

impl<F: FileSystem> fmt::Display for HandOverError<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the session cannot be handed over: {}", self.error)
    }
}

impl<F: FileSystem> std::error::Error for HandOverError<F> {}

impl<F: FileSystem> Running<F> {
    /// Has the process at the other end of `socket`, which calls [`Session::take_over`], go on with
    /// this session. Programs wait meanwhile, and see no error.
    ///
    /// Nothing is read any more; the operations that are going on get `drain` to end, and `legacy`
    /// is asked for what the file system leaves. What is unanswered then is asked for again, of the
    /// successor. [`FileSystem::destroy`] is not called. To bound how long the successor may take,
    /// give the socket timeouts.
    ///
    /// Threads that sleep are woken with SIGURG, which interrupts system calls of operations too.
    ///
    /// # Errors
    /// When the successor does not take it, or the session is of a kind that cannot be handed over:
    /// over io_uring, without cloned descriptors, or with unanswered requests and without
    /// `HAS_RESEND`. Then it can go on here.
    pub fn hand_over(
        self,
        socket: &UnixStream,
        drain: Duration,
        legacy: impl FnOnce(&F) -> io::Result<Legacy>,
    ) -> Result<Counts, Box<HandOverError<F>>> {
        let Self { dispatch, mut threads, device, pool, terms, mount } = self;
        let go = || -> io::Result<()> {
            if terms.flags.contains(InitFlags::OVER_IO_URING) || !device.has_clones() {
                let said = "only a session over cloned descriptors of the device has a successor";
                return Err(io::Error::new(io::ErrorKind::Unsupported, said));
            }
            let deadline = Instant::now() + drain;
            let mut unanswered = threads.stop(&device, deadline)?;
            while dispatch.connection.live().len() > 0 && Instant::now() < deadline {
                thread::sleep(DRAIN_INTERVAL);
            }
            unanswered += dispatch.connection.live().len();
            if unanswered > 0 {
                if !terms.flags.contains(InitFlags::HAS_RESEND) {
                    let said = "requests are unanswered, and the kernel does not send them again";
                    return Err(io::Error::new(io::ErrorKind::ResourceBusy, said));
                }
                tracing::info!(unanswered, "requests go back to the kernel for the successor");
                Notifier::new(Arc::clone(&dispatch.connection)).resend()?;
            }
            let left = legacy(&dispatch.filesystem)?;
            let (number, mountpoint) = (mount.device(), mount.path().to_owned());
            let estate = Estate { terms, device: number, mountpoint };
            legacy::send(socket, dispatch.connection.device(), &estate, &left)?;
            legacy::let_go(socket)
        };
        match go() {
            Ok(()) => {
                mount.leave();
                dispatch.connection.end();
                Ok(dispatch.connection.counts())
            }
            Err(error) => {
                device.resume();
                let session = Session { dispatch, device, ring: None, pool, terms, mount };
                Err(Box::new(HandOverError { session, error }))
            }
        }
    }
}

impl<F: FileSystem> Session<F> {
    /// Goes on with the session that the process at the other end of `socket` hands over with
    /// [`Running::hand_over`]. `filesystem` makes the file system from what that one has left; it
    /// must know every inode that the kernel has references of, and every open file. Of `options`
    /// those about readers count.
    ///
    /// When this returns, the other has let go. Requests wait until [`Self::spawn`].
    ///
    /// # Errors
    /// When the other is gone, speaks another version, or goes on by itself.
    pub fn take_over(
        socket: &UnixStream,
        options: &SessionOptions,
        filesystem: impl FnOnce(Legacy, &Terms) -> io::Result<F>,
    ) -> io::Result<Self> {
        let (mounted, Estate { terms, device: number, mountpoint }, left) =
            legacy::receive(socket)?;
        let filesystem = Arc::new(filesystem(left, &terms)?);
        filesystem.init(&terms);
        let polling = options.polling.unwrap_or(POLLING);
        let device = DeviceChannel::new(mounted, readers(options), polling);
        let connection = Connection::new(Arc::new(device.responder()));
        let pool = Pool::new(terms.buffer_len(), readers(options));
        let layout = terms.layout();
        let dispatch = Arc::new(Dispatch { filesystem, connection, layout });
        // It is not ours yet: nothing is taken away when this fails.
        legacy::accept(socket)?;
        let mount = Mounted::inherited(mountpoint, number);
        Ok(Self { dispatch, device, ring: None, pool, terms, mount })
    }
}

/// How often it is looked whether the last operations have ended.
const DRAIN_INTERVAL: Duration = Duration::from_millis(1);
