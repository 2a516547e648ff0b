//! The task that hands requests to the kernel and takes what is finished.

use std::{
    io,
    os::fd::{AsRawFd, RawFd},
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
};

use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime,
};

use super::{
    Shared,
    ring::{Finished, Turn},
};

/// The driver of one runtime.
pub(super) struct Driver {
    shared: Arc<Shared>,
    runtime: runtime::Id,
    /// `None` before the first turn, because only a runtime's own thread can register, and while
    /// nothing of the runtime is out: what others have submitted would wake it for nothing.
    readiness: Option<AsyncFd<Descriptor>>,
    finished: Vec<Finished>,
}

/// Keeps the ring open as long as the runtime watches it.
struct Descriptor(Arc<Shared>);

impl AsRawFd for Descriptor {
    fn as_raw_fd(&self) -> RawFd {
        self.0.descriptor
    }
}

impl Driver {
    pub(super) fn new(shared: Arc<Shared>, runtime: runtime::Id) -> Self {
        Self { shared, runtime, readiness: None, finished: Vec::new() }
    }

    fn poll_turns(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            let waker = context.waker();
            let turn = self.shared.ring().turn(self.runtime, waker, &mut self.finished);
            self.finished.drain(..).for_each(Finished::tell);
            match turn {
                Turn::Ended => return Poll::Ready(Ok(())),
                Turn::Busy => {}
                // The next request of this runtime wakes it.
                Turn::Idle => {
                    self.readiness = None;
                    return Poll::Pending;
                }
                // The kernel takes no more now, and has nothing that it could report later.
                Turn::Refused => context.waker().wake_by_ref(),
            }
            if self.readiness.is_none() {
                let descriptor = Descriptor(Arc::clone(&self.shared));
                // SAFETY: the ring is open as long as what is shared is there, and stays the same.
                let readiness =
                    unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) };
                self.readiness = Some(readiness.map_err(io::Error::from)?);
            }
            let readiness = self.readiness.as_ref().expect("registered a moment ago");
            // Taken back before the ring is looked at again, so that nothing is missed.
            ready!(readiness.poll_read_ready(context))?.clear_ready();
        }
    }
}

impl Future for Driver {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        let ended = ready!(self.poll_turns(context));
        if let Err(error) = ended {
            tracing::error!(%error, "the completions of an io_uring cannot be watched");
        }
        Poll::Ready(())
    }
}

impl Drop for Driver {
    /// Who waits elsewhere for a request of this runtime gets an answer all the same.
    fn drop(&mut self) {
        let finished = self.shared.ring().leave(self.runtime);
        finished.into_iter().for_each(Finished::tell);
    }
}
