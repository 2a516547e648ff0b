//! What all threads of a session share: where answers go, and which are still owed.

use std::{
    io::IoSlice,
    os::fd::BorrowedFd,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use rustix::io::Errno;

use crate::{
    channel::{Origin, Responder},
    live::{Cancellation, Current, LiveRequests, Place},
    protocol::{
        header::{Opcode, ReplyHeader},
        notification::Notification,
    },
};

/// A connection to the kernel.
#[derive(Debug)]
pub(crate) struct Connection {
    responder: Arc<dyn Responder>,
    live: LiveRequests,
    /// Nothing is read any more, and nobody waits.
    over: AtomicBool,
    forgotten: AtomicU64,
    too_late: AtomicU64,
}

/// A request that is owed an answer: where that goes, and who waits for it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Debt {
    origin: Origin,
    place: Place,
    pub(crate) unique: u64,
    caller: u32,
}

/// What a session has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were read and want an answer.
    pub read: u64,
    /// Requests that were answered, with what follows included.
    pub answered: u64,
    /// Requests that were answered EIO because their reply was dropped.
    pub forgotten: u64,
    /// Answers that nobody waited for any more.
    pub too_late: u64,
    /// INTERRUPTs that were passed on.
    pub interrupts: u64,
    /// Requests that wait for their answer.
    pub waiting: usize,
}

impl Connection {
    pub(crate) fn new(responder: Arc<dyn Responder>) -> Arc<Self> {
        Arc::new(Self {
            responder,
            live: LiveRequests::new(),
            over: AtomicBool::new(false),
            forgotten: AtomicU64::new(0),
            too_late: AtomicU64::new(0),
        })
    }

    /// The descriptor that was mounted.
    pub(crate) fn device(&self) -> BorrowedFd<'_> {
        self.responder.device()
    }

    pub(crate) fn live(&self) -> &LiveRequests {
        &self.live
    }

    pub(crate) fn counts(&self) -> Counts {
        let count = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let (read, answered) = self.live.counts();
        Counts {
            read,
            answered,
            forgotten: count(&self.forgotten),
            too_late: count(&self.too_late),
            interrupts: self.live.interrupts(),
            waiting: self.live.len(),
        }
    }

    /// Waits until nothing is owed any more, or for so long.
    pub(crate) fn await_answers(&self, patience: Duration) {
        let begun = Instant::now();
        while self.live.len() > 0 && begun.elapsed() < patience {
            thread::sleep(ANSWERS_INTERVAL);
        }
    }

    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    /// The kernel has let go: what is still owed is not waited for.
    pub(crate) fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        self.live.clear();
    }

    /// A request of the thread `caller` was read, and owes an answer. This thread is at it until
    /// what this answers is dropped.
    pub(crate) fn begin(&self, origin: Origin, unique: u64, caller: u32) -> (Debt, Current<'_>) {
        let (place, current) = self.live.begin(unique, caller);
        (Debt { origin, place, unique, caller }, current)
    }

    /// A request that wants no answer is dealt with.
    pub(crate) fn release(&self, origin: Origin, unique: u64) {
        self.responder.release(origin, unique);
    }

    /// A reply was dropped.
    pub(crate) fn count_forgotten(&self) {
        self.forgotten.fetch_add(1, Ordering::Relaxed);
    }

    /// Passes an INTERRUPT of the request `target` on.
    pub(crate) fn interrupt(&self, target: u64) {
        self.live.interrupt(target);
    }

    /// Whether the caller of a request still waits.
    pub(crate) fn cancellation(&self, debt: Debt) -> Cancellation {
        self.live.cancellation(debt.place, debt.unique, debt.caller)
    }

    /// Answers a request with `error`.
    pub(crate) fn fail(&self, debt: Debt, error: Errno) {
        let header = error_header(debt.unique, error);
        let sent = self.responder.respond(debt.origin, &[IoSlice::new(&header)]);
        self.sent(debt, sent);
    }

    /// Answers a request with what `parts` say, whose first is room for the header.
    pub(crate) fn answer(&self, debt: Debt, opcode: Opcode, parts: &[&[u8]]) {
        let unique = debt.unique;
        let len = parts.iter().map(|part| part.len()).sum::<usize>() + ReplyHeader::LEN;
        let Ok(len) = u32::try_from(len) else {
            tracing::error!(?opcode, unique, len, "an answer is longer than any can be");
            return self.fail(debt, Errno::IO);
        };
        let header = ReplyHeader { len, error: 0, unique }.encode();
        let send = |slices: &[IoSlice<'_>]| self.responder.respond(debt.origin, slices);
        match with_slices(&header, parts, send) {
            // The kernel has ended the request with EIO, or it waits for something better.
            Err(error @ (Errno::INVAL | Errno::FAULT | Errno::NOMEM)) => {
                tracing::error!(?opcode, unique, len, %error, "the kernel refuses an answer");
                self.fail(debt, Errno::IO);
            }
            sent => self.sent(debt, sent),
        }
    }

    fn sent(&self, debt: Debt, sent: Result<(), Errno>) {
        let unique = debt.unique;
        self.live.end(debt.place, unique);
        match sent {
            Ok(()) => {}
            // Interrupted before it was read to its end, or aborted; or there is no mount any more.
            Err(Errno::NOENT | Errno::NODEV | Errno::CONNABORTED) => {
                self.too_late.fetch_add(1, Ordering::Relaxed);
            }
            Err(error) => tracing::error!(unique, %error, "an answer cannot be sent"),
        }
    }

    pub(crate) fn notify(&self, notification: Notification, parts: &[&[u8]]) -> Result<(), Errno> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>() + ReplyHeader::LEN;
        let len = u32::try_from(len).map_err(|_| Errno::TOOBIG)?;
        let header = ReplyHeader { len, error: notification.code(), unique: 0 }.encode();
        with_slices(&header, parts, |slices| self.responder.notify(slices))
    }
}

/// Calls `send` with header and parts as one message.
fn with_slices(
    header: &[u8],
    parts: &[&[u8]],
    send: impl FnOnce(&[IoSlice<'_>]) -> Result<(), Errno>,
) -> Result<(), Errno> {
    if let [only] = parts {
        return send(&[IoSlice::new(header), IoSlice::new(only)]);
    }
    let slices = std::iter::once(header).chain(parts.iter().copied());
    send(&slices.map(IoSlice::new).collect::<Vec<_>>())
}

fn error_header(unique: u64, error: Errno) -> [u8; ReplyHeader::LEN] {
    let len = u32::try_from(ReplyHeader::LEN).expect("16");
    let errno = error.raw_os_error();
    // The kernel refuses others, and the request would wait for ever.
    let errno = if (1..ERRNO_END).contains(&errno) { errno } else { Errno::IO.raw_os_error() };
    ReplyHeader { len, error: -errno, unique }.encode()
}

/// Between two looks at what is owed.
const ANSWERS_INTERVAL: Duration = Duration::from_micros(100);
/// What is no errno of a system call any more.
const ERRNO_END: i32 = 512;
