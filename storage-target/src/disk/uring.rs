//! io_uring: one ring for each disk, with the data file registered, and no thread of its own.
//!
//! Who submits a request puts it into the ring's list; a small task of the runtime that it runs on,
//! the *driver*, hands all that has gathered to the kernel with one call, and takes what the kernel
//! has finished as soon as the ring's descriptor says so. So a disk costs no switch between
//! threads, many requests share a call, and an idle disk costs nothing.
//!
//! The ring owns every buffer from the moment a request arrives until the kernel has reported the
//! last of its pieces, whatever became of the future that waits.
//!
//! Any runtime with I/O enabled may submit, each through a driver of its own; a runtime must go on
//! running as long as its requests are out. A driver that ends early, because its runtime does,
//! finishes what is in flight first; so does dropping the disk.
//!
//! Modules: `ring` (the requests and the kernel), `driver` (the task).

use std::{
    fmt, io,
    os::fd::{AsRawFd, RawFd},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use tokio::runtime::Handle;

use super::{BufferPool, DataFile, Disk, DiskError, Request};

mod driver;
mod ring;

use driver::Driver;
use ring::Ring;

/// The io_uring engine. Dropping it finishes what was submitted.
#[derive(Debug)]
pub struct UringDisk {
    shared: Arc<Shared>,
}

/// What the disk and its drivers share.
struct Shared {
    ring: Mutex<Ring>,
    /// The ring's; readable when the kernel has finished something.
    descriptor: RawFd,
}

impl UringDisk {
    /// Makes the ring and checks that the kernel knows the operations.
    ///
    /// # Errors
    /// When the kernel forbids io_uring or lacks an operation.
    pub fn start(file: DataFile) -> io::Result<Self> {
        let ring = Ring::new(file)?;
        let descriptor = ring.as_raw_fd();
        Ok(Self { shared: Arc::new(Shared { ring: Mutex::new(ring), descriptor }) })
    }
}

impl Disk for UringDisk {
    fn submit(&self, request: Request) {
        let Ok(runtime) = Handle::try_current() else {
            // Nobody would ever look at the ring.
            return request.complete(Err(DiskError::Stopped));
        };
        let operation = request.operation;
        let woken = {
            let mut ring = self.shared.ring();
            let woken = ring.admit(request, runtime.id());
            ring.hand_over_early(operation);
            woken
        };
        match woken {
            ring::Woken::Already => {}
            ring::Woken::By(waker) => waker.wake(),
            ring::Woken::Absent => {
                drop(runtime.spawn(Driver::new(Arc::clone(&self.shared), runtime.id())));
            }
        }
    }

    fn expect_buffers(&self, pool: &BufferPool) {
        if let Some(arena) = pool.arena() {
            let _place = self.shared.ring().place_of(arena);
        }
    }

    fn name(&self) -> &'static str {
        "io-uring"
    }
}

impl Drop for UringDisk {
    fn drop(&mut self) {
        let (finished, drivers) = {
            let mut ring = self.shared.ring();
            let finished = ring.drain();
            (finished, ring.close())
        };
        finished.into_iter().for_each(ring::Finished::tell);
        drivers.into_iter().for_each(std::task::Waker::wake);
    }
}

impl Shared {
    fn ring(&self) -> MutexGuard<'_, Ring> {
        match self.ring.lock() {
            Ok(ring) => ring,
            // The buffers belong to the kernel: freeing them after a panic could corrupt memory.
            Err(PoisonError { .. }) => {
                tracing::error!("the state of an io_uring is inconsistent; aborting");
                std::process::abort();
            }
        }
    }
}

impl fmt::Debug for Shared {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Shared").field("descriptor", &self.descriptor).finish_non_exhaustive()
    }
}
