//! The channel over io_uring (Linux 6.14): one queue for each CPU, and one system call for
//! answering a request and waiting for the next.
//!
//! ```text
//!   a program on CPU 0 ─▶ queue 0: entries ─▶ thread 0, bound to CPU 0 ─▶ operation ─▶ reply
//!                            ▲                                                          │
//!                            └──── commit and fetch: at once, or when thread 0 is ◀─────┘
//!                                  woken by whoever answers later
//! ```
//!
//! A request goes to the queue of the CPU that its program runs on, and is handled there: nothing
//! is handed to another CPU, which is most of what a small request costs otherwise. The price is
//! that a program and the operation it waits for share a CPU, also while another one is idle.
//!
//! A queue has a fixed number of *entries*: places in memory for a request and its answer. Whose an
//! entry is can be told from who has its `Entry`: the ring while the kernel may write to it, the
//! queue's desk while its request waits for an answer, whoever answers while doing so. A request
//! that waits keeps its entry, and while a queue has none left the programs of its CPU wait. An
//! operation that blocks its thread has the same effect.
//!
//! So an operation should be answered at once on its thread, or by others without blocking that.
//! Who answers elsewhere wakes the thread, which then commits the answer.
//!
//! The data of a large WRITE is read where the kernel has put it. Who takes it along gets its
//! memory, and other memory is moved to that address, because it is the address that the kernel
//! knows.
//!
//! The device stays in use for INTERRUPT, FORGET and notifications, and it says when all is over:
//! the kernel takes entries that are not with it away without a word. What came over a ring cannot
//! be taken over by another process: the kernel does not send it again (Linux 6.18).
//!
//! Modules: `plan` (how many entries), `memory`, `ring` (the kernel's side), `queue` (the desk
//! where answers are left), `receiver` (the thread).

mod memory;
mod plan;
mod queue;
mod receiver;
mod ring;

use std::{io::IoSlice, os::fd::BorrowedFd, sync::Arc};

use rustix::io::Errno;

use memory::Spares;
pub use plan::Plan;
use queue::Queue;
use receiver::{ClassicReceiver, QueueReceiver};
use ring::Ring;

use super::{
    Origin, Receiver, Responder,
    buffer::Pool,
    device::{DeviceChannel, DeviceResponder},
};

/// The rings of a connection, made and not given to the kernel yet.
#[derive(Debug)]
pub struct UringChannel {
    queues: Arc<[Arc<Queue>]>,
    rings: Vec<Ring>,
    payload_len: usize,
}

impl UringChannel {
    /// Makes everything that can fail: rings and memory for `plan`, over the connection of
    /// `device`. To be called before INIT is answered: when its answer has `OVER_IO_URING`, the
    /// kernel waits for every queue to [begin](Receiver::begin).
    ///
    /// # Errors
    /// When io_uring may not be used, or there is no memory.
    pub fn new(device: &DeviceChannel, plan: &Plan) -> Result<Self, Errno> {
        let mut queues = Vec::new();
        let mut rings = Vec::new();
        for number in 0..plan.queues {
            let entries = memory::entries(plan.entries, plan.payload_len)?;
            let queue = Arc::new(Queue::new(plan.entries)?);
            rings.push(Ring::new(number, device.mounted(), queue.bell(), entries)?);
            queues.push(queue);
        }
        Ok(Self { queues: queues.into(), rings, payload_len: plan.payload_len })
    }

    /// The receivers, each for a thread of its own: first that of the device, then those of the
    /// queues. They read to buffers of `pool`, which are longer than a payload.
    #[must_use]
    pub fn receivers(
        self,
        device: &DeviceChannel,
        pool: &Arc<Pool>,
    ) -> (Box<dyn Receiver>, Vec<Box<dyn Receiver>>) {
        let classic = ClassicReceiver::new(device.receiver(0, pool), Arc::clone(&self.queues));
        let spares = Spares::new(self.payload_len);
        let queues = self.rings.into_iter().zip(self.queues.iter()).map(|(ring, queue)| {
            let (queue, spares) = (Arc::clone(queue), Arc::clone(&spares));
            let receiver = QueueReceiver::new(ring, queue, spares, Arc::clone(pool));
            Box::new(receiver) as Box<dyn Receiver>
        });
        (Box::new(classic), queues.collect())
    }

    /// Where answers go.
    #[must_use]
    pub fn responder(&self, device: &DeviceChannel) -> UringResponder {
        UringResponder { queues: Arc::clone(&self.queues), device: device.responder() }
    }

    /// Bytes of the payload of each entry.
    #[must_use]
    pub fn payload_len(&self) -> usize {
        self.payload_len
    }
}

/// Leaves answers at the desks of the queues, and writes the others to the device.
#[derive(Debug)]
pub struct UringResponder {
    queues: Arc<[Arc<Queue>]>,
    device: DeviceResponder,
}

impl Responder for UringResponder {
    fn respond(&self, origin: Origin, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        let Origin::Entry { queue, entry } = origin else {
            return self.device.respond(origin, parts);
        };
        self.queues.get(usize::from(queue)).ok_or(Errno::NOENT)?.answer(entry, parts)
    }

    fn release(&self, origin: Origin, unique: u64) {
        let Origin::Entry { queue, entry } = origin else { return };
        if let Some(queue) = self.queues.get(usize::from(queue)) {
            queue.release(entry, unique);
        }
    }

    fn notify(&self, parts: &[IoSlice<'_>]) -> Result<(), Errno> {
        self.device.notify(parts)
    }

    fn device(&self) -> BorrowedFd<'_> {
        self.device.device()
    }
}
