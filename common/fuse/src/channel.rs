//! How requests come from the kernel, and how answers go back.
//!
//! A channel is some [`Receiver`]s, each owned by a thread, and one [`Responder`], used by all
//! threads. There are two: [`device`], which every kernel has, and [`uring`], which stands beside
//! it where the kernel and the machine allow that. What is above does not know which it is.

pub mod buffer;
pub mod device;
pub(crate) mod ioctl;
pub mod uring;

use std::{fmt, io::IoSlice, os::fd::BorrowedFd};

use rustix::io::Errno;

use buffer::Incoming;

/// From where in its channel a request came. Its answer goes back there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// That descriptor of the device.
    Descriptor(u16),
    /// That entry of that queue of the ring.
    Entry {
        /// The queue's number, from 0.
        queue: u16,
        /// The entry's number in it, from 0.
        entry: u16,
    },
}

/// What came.
#[derive(Debug)]
pub enum Received<'receiver> {
    /// A request.
    Request(Incoming<'receiver>),
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
    /// The receivers were told to end. Requests wait in the kernel for others.
    Stopped,
}

/// One source of requests, owned by one thread.
pub trait Receiver: Send + fmt::Debug {
    /// Does what only the thread itself can do. Called once, before anything is received.
    ///
    /// # Errors
    /// When nothing will come from here. The kernel then uses other ways.
    fn begin(&mut self) -> Result<(), Errno> {
        Ok(())
    }

    /// Waits for the next request. The one before is not used any more: it is answered, or some
    /// other thread will do it.
    ///
    /// # Errors
    /// When the channel is broken. What only concerns one request is dealt with inside.
    fn receive(&mut self) -> Result<Received<'_>, Errno>;
}

/// Takes answers, from any thread.
pub trait Responder: Send + Sync + fmt::Debug {
    /// Answers the request that came from `origin`. The parts are one message, header first and by
    /// itself, and are used no longer than the call.
    ///
    /// # Errors
    /// ENOENT when the request is not waited for any more; EINVAL when the kernel does not like the
    /// answer; ENODEV when the file system is unmounted.
    fn respond(&self, origin: Origin, parts: &[IoSlice<'_>]) -> Result<(), Errno>;

    /// Says that a request which wants no answer is dealt with, in a channel that waits for that.
    fn release(&self, origin: Origin, unique: u64);

    /// Sends a notification. May block: see [`Notifier`](crate::Notifier).
    ///
    /// # Errors
    /// What the kernel says of it.
    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno>;

    /// The descriptor that was mounted, for what is asked of the connection by ioctl.
    fn device(&self) -> BorrowedFd<'_>;
}
