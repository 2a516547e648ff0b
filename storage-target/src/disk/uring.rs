//! io_uring: one ring and one thread for each disk, with the data file registered.
//!
//! Requests arrive over a bounded channel; an eventfd that the ring itself reads wakes the thread,
//! so that an idle disk costs nothing. The thread owns every buffer from the moment a request
//! arrives until the kernel has reported the last of its pieces, whatever became of the future
//! that waits. It ends when the handle is dropped, after everything in flight is complete.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, OwnedFd},
    sync::{
        Arc,
        mpsc::{Receiver, SyncSender, TryRecvError, sync_channel},
    },
    thread::{self, JoinHandle},
};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use rustix::event::EventfdFlags;

use super::{
    DataFile, Disk, DiskError, Operation, QUEUE_DEPTH, Request,
    file::{after, is_passing},
};

/// Entries of the submission ring; pieces beyond wait in the thread's own queue.
const RING_ENTRIES: u32 = 128;

/// Marks the completion of the read of the eventfd.
const WAKE: u64 = u64::MAX;

/// The data file's place in the table of registered files.
const DATA_FILE: types::Fixed = types::Fixed(0);

/// The io_uring engine. Dropping it finishes what was submitted and ends its thread.
#[derive(Debug)]
pub struct UringDisk {
    /// `None` only while being dropped.
    requests: Option<SyncSender<Request>>,
    wake: Arc<OwnedFd>,
    thread: Option<JoinHandle<()>>,
}

impl UringDisk {
    /// Makes the ring, checks that the kernel knows the operations, and starts the thread.
    ///
    /// # Errors
    /// When the kernel forbids io_uring or lacks an operation, or gives no thread.
    pub fn start(file: DataFile) -> io::Result<Self> {
        let ring = IoUring::new(RING_ENTRIES)?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        for code in [opcode::Read::CODE, opcode::Write::CODE, opcode::Fsync::CODE] {
            if !probe.is_supported(code) {
                let message = format!("the kernel's io_uring lacks operation {code}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
        }
        ring.submitter().register_files(&[file.file().as_raw_fd()])?;
        let wake = Arc::new(rustix::event::eventfd(0, EventfdFlags::CLOEXEC)?);
        let (requests, queue) = sync_channel(QUEUE_DEPTH + 1);
        let worker = Worker {
            ring,
            queue,
            wake: Arc::clone(&wake),
            wake_count: Box::new(0),
            slots: Vec::new(),
            vacant: Vec::new(),
            backlog: VecDeque::new(),
            stopping: false,
            _file: file,
        };
        let thread =
            thread::Builder::new().name("disk-io-uring".into()).spawn(move || worker.run())?;
        Ok(Self { requests: Some(requests), wake, thread: Some(thread) })
    }

    fn wake(&self) {
        // Fails only when the counter would overflow, and then the thread has a wake-up pending.
        let written = rustix::io::write(&*self.wake, &1_u64.to_ne_bytes());
        debug_assert!(written.is_ok(), "an eventfd takes the number 1");
    }
}

impl Disk for UringDisk {
    fn submit(&self, request: Request) {
        let requests = self.requests.as_ref().expect("present until dropped");
        match requests.send(request) {
            Ok(()) => self.wake(),
            Err(refused) => refused.0.complete(Err(DiskError::Stopped)),
        }
    }

    fn name(&self) -> &'static str {
        "io-uring"
    }
}

impl Drop for UringDisk {
    fn drop(&mut self) {
        self.requests = None;
        self.wake();
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the disk thread ended with a panic");
        }
    }
}

/// What the thread owns. The ring is declared first, so that it is gone before the memory and the
/// file that its entries point to.
struct Worker {
    ring: IoUring,
    queue: Receiver<Request>,
    wake: Arc<OwnedFd>,
    /// Where the kernel puts the eventfd's counter; boxed so that it never moves.
    wake_count: Box<u64>,
    slots: Vec<Option<InFlight>>,
    vacant: Vec<usize>,
    /// Pieces that are still to be submitted, as (slot, piece).
    backlog: VecDeque<(usize, usize)>,
    stopping: bool,
    _file: DataFile,
}

/// A request under the kernel.
struct InFlight {
    request: Request,
    /// Bytes transferred of each piece.
    done: Vec<usize>,
    /// Pieces not finished yet.
    outstanding: usize,
    error: Option<DiskError>,
}

impl Worker {
    fn run(mut self) {
        self.arm_wake();
        loop {
            self.take_requests();
            self.submit_backlog();
            let idle = self.vacant.len() == self.slots.len();
            if self.stopping && idle {
                return;
            }
            match self.ring.submit_and_wait(1) {
                Ok(_) => {}
                // EINTR: a signal. EBUSY and EAGAIN: reap completions first.
                Err(error)
                    if matches!(
                        error.raw_os_error(),
                        Some(libc::EINTR | libc::EBUSY | libc::EAGAIN)
                    ) => {}
                Err(error) => {
                    // The buffers belong to the kernel: leaving here would free them under it.
                    tracing::error!(%error, "io_uring_enter failed; aborting");
                    std::process::abort();
                }
            }
            self.reap();
        }
    }

    fn take_requests(&mut self) {
        loop {
            match self.queue.try_recv() {
                Ok(request) => self.admit(request),
                Err(TryRecvError::Empty) => return,
                Err(TryRecvError::Disconnected) => {
                    self.stopping = true;
                    return;
                }
            }
        }
    }

    fn admit(&mut self, request: Request) {
        // A sync has no bytes and is one piece all the same.
        let pieces = request.pieces.len().max(1);
        let in_flight =
            InFlight { request, done: vec![0; pieces], outstanding: pieces, error: None };
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        assert!(self.slots[slot].is_none(), "a vacant slot is empty");
        self.slots[slot] = Some(in_flight);
        self.backlog.extend((0..pieces).map(|piece| (slot, piece)));
    }

    fn submit_backlog(&mut self) {
        while let Some(&(slot, piece)) = self.backlog.front() {
            let entry = self.entry(slot, piece);
            if !self.push(&entry) {
                return;
            }
            self.backlog.pop_front();
        }
    }

    fn entry(&self, slot: usize, piece: usize) -> squeue::Entry {
        let in_flight = self.slots[slot].as_ref().expect("a queued piece has its request");
        let request = &in_flight.request;
        let entry = match (request.buffer.buffer(), request.pieces.get(piece)) {
            (Some(buffer), Some(part)) => {
                let done = in_flight.done[piece];
                let at = part.range.start + done;
                let len = u32::try_from(part.range.end - at).expect("below the largest buffer");
                // SAFETY: `at` lies within the buffer, which `DiskQueue` asserts for every piece.
                let start = unsafe { buffer.as_ptr().add(at) };
                let offset = part.offset + done as u64;
                match request.operation {
                    Operation::Read => {
                        opcode::Read::new(DATA_FILE, start.as_ptr(), len).offset(offset).build()
                    }
                    Operation::Write => {
                        opcode::Write::new(DATA_FILE, start.as_ptr(), len).offset(offset).build()
                    }
                    Operation::Sync => unreachable!("a sync has no buffer"),
                }
            }
            _ => opcode::Fsync::new(DATA_FILE).flags(types::FsyncFlags::DATASYNC).build(),
        };
        entry.user_data(((slot as u64) << 32) | piece as u64)
    }

    fn push(&mut self, entry: &squeue::Entry) -> bool {
        // SAFETY: the memory that the entry points to belongs to `slots` (or is `wake_count`) until
        // its completion has been reaped.
        unsafe { self.ring.submission().push(entry) }.is_ok()
    }

    fn arm_wake(&mut self) {
        let target: *mut u64 = &raw mut *self.wake_count;
        let fd = types::Fd(self.wake.as_raw_fd());
        let entry = opcode::Read::new(fd, target.cast(), 8).build().user_data(WAKE);
        while !self.push(&entry) {
            // The ring is full of entries that the kernel has not taken yet: hand them over.
            if let Err(error) = self.ring.submit() {
                tracing::debug!(%error, "io_uring submission is retried");
            }
        }
    }

    fn reap(&mut self) {
        let mut woken = false;
        let completions: Vec<(u64, i32)> =
            self.ring.completion().map(|entry| (entry.user_data(), entry.result())).collect();
        for (user_data, result) in completions {
            if user_data == WAKE {
                woken = true;
            } else {
                let slot = usize::try_from(user_data >> 32).expect("a slot");
                let piece = usize::try_from(user_data & 0xffff_ffff).expect("a piece");
                self.finish_piece(slot, piece, result);
            }
        }
        if woken {
            self.arm_wake();
        }
    }

    fn finish_piece(&mut self, slot: usize, piece: usize, result: i32) {
        let in_flight = self.slots[slot].as_mut().expect("a completion has its request");
        if !in_flight.record(piece, result) {
            self.backlog.push_back((slot, piece));
            return;
        }
        in_flight.outstanding -= 1;
        if in_flight.outstanding > 0 {
            return;
        }
        let InFlight { request, error, .. } =
            self.slots[slot].take().expect("present a moment ago");
        self.vacant.push(slot);
        request.complete(error.map_or(Ok(()), Err));
    }
}

impl InFlight {
    /// Takes one completion; returns whether the piece is finished, well or not.
    fn record(&mut self, piece: usize, result: i32) -> bool {
        let operation = self.request.operation;
        let (offset, len) = match self.request.pieces.get(piece) {
            Some(part) => (part.offset, part.range.len()),
            None => (0, 0),
        };
        let failure = match usize::try_from(result) {
            Ok(_) if operation == Operation::Sync => return true,
            Ok(count) => match after(self.done[piece], count, len) {
                Ok(done) => {
                    self.done[piece] = done;
                    return done == len;
                }
                Err(error) => error,
            },
            Err(_) => io::Error::from_raw_os_error(-result),
        };
        if is_passing(&failure) {
            return false;
        }
        self.error = Some(DiskError::from_io(operation, offset, len, failure));
        true
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::disk::{BufferPool, Held, Piece, Reply};

    async fn in_flight(operation: Operation) -> InFlight {
        let buffer = BufferPool::new(0).acquire(3 * 4096).await;
        let pieces = match operation {
            Operation::Sync => Vec::new(),
            _ => vec![Piece { offset: 0, range: 0..3 * 4096 }],
        };
        let (reply, _) = oneshot::channel();
        let (buffer, reply) = (Held::Exclusive(buffer), Reply::Task(reply));
        let request = Request { operation, pieces, buffer, reply, _permit: None };
        InFlight { request, done: vec![0], outstanding: 1, error: None }
    }

    #[tokio::test]
    async fn short_transfers_and_interruptions_are_continued_at_whole_pages() {
        let mut read = in_flight(Operation::Read).await;
        let answers = [(-libc::EINTR, 0), (5000, 4096), (-libc::EAGAIN, 4096), (4096, 8192)];
        for (answer, done) in answers {
            assert!(!read.record(0, answer), "{answer}");
            assert_eq!(read.done[0], done);
        }
        assert!(read.record(0, 4096) && read.error.is_none());
        let mut sync = in_flight(Operation::Sync).await;
        assert!(!sync.record(0, -libc::EINTR));
        assert!(sync.record(0, 0) && sync.error.is_none());
    }

    #[tokio::test]
    async fn the_end_and_a_failure_end_a_transfer() {
        for answer in [0, 100] {
            let mut read = in_flight(Operation::Read).await;
            assert!(!read.record(0, 4096));
            assert!(read.record(0, answer), "{answer}");
            assert!(matches!(read.error, Some(DiskError::Io { operation: "read", .. })));
        }
        let mut write = in_flight(Operation::Write).await;
        assert!(write.record(0, -libc::ENOSPC));
        assert!(matches!(write.error, Some(DiskError::NoSpace)));
    }
}
