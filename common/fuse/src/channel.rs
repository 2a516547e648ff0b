//! How requests come from the kernel, and how answers go back.
//!
//! A channel is some [`Receiver`]s, each owned by a thread, and one [`Responder`], used by all
//! threads. There is one channel at present, [`device`]; one over io_uring fits the same traits:
//! what it calls an entry of a queue is an [`Origin`].

pub mod buffer;
pub mod device;
mod ioctl;

use std::{fmt, io::IoSlice};

use rustix::io::Errno;

use buffer::Buffer;

/// From where in its channel a request came. Its answer goes back there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin(pub u32);

/// What came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    /// The buffer holds a request.
    Request(Origin),
    /// Nothing will come any more.
    End(End),
}

/// Why nothing comes any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The file system is unmounted, and nobody uses it.
    Unmounted,
    /// The connection was aborted: by force, or because an answer took too long.
    Aborted,
}

/// One source of requests, owned by one thread.
pub trait Receiver: Send + fmt::Debug {
    /// Waits for the next request and puts it into `buffer`.
    ///
    /// # Errors
    /// When the channel is broken. What only concerns one request is dealt with inside.
    fn receive(&mut self, buffer: &mut Buffer) -> Result<Received, Errno>;
}

/// Takes answers, from any thread.
pub trait Responder: Send + Sync + fmt::Debug {
    /// Answers the request that came from `origin`. The parts are one message, header first, and
    /// are used no longer than the call.
    ///
    /// # Errors
    /// ENOENT when the request is not waited for any more; EINVAL when the kernel does not like the
    /// answer; ENODEV when the file system is unmounted.
    fn respond(&self, origin: Origin, parts: &[IoSlice<'_>]) -> Result<(), Errno>;

    /// Sends a notification. May block: see [`Notifier`](crate::Notifier).
    ///
    /// # Errors
    /// What the kernel says of it.
    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno>;
}
