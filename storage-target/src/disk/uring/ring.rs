//! The requests of one disk, and what the kernel does with them. Nothing here waits, except
//! [`Ring::drain`].

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsRawFd, RawFd},
    sync::Arc,
    task::Waker,
};

use io_uring::{IoUring, Probe, opcode, squeue, types};
use tokio::runtime;

use crate::disk::{
    AlignedBuffer, DataFile, DiskError, Operation, Piece, Request,
    buffer::Arena,
    cuts::Cuts,
    file::{after, is_passing},
};

/// Entries of the submission ring; pieces beyond wait in a list.
const RING_ENTRIES: u32 = 128;

/// What the kernel must know to do.
const OPERATIONS: [u8; 6] = [
    opcode::Read::CODE,
    opcode::ReadFixed::CODE,
    opcode::Write::CODE,
    opcode::WriteFixed::CODE,
    opcode::Writev::CODE,
    opcode::Fsync::CODE,
];

/// Arenas of buffers that the kernel can know: one for data, one for index and journal, and some
/// for pools to come.
const ARENAS_MAX: u32 = 8;

/// Bytes and pieces of writes that go to the kernel as one.
const JOINED_BYTES_MAX: usize = 1 << 20;
const JOINED_PIECES_MAX: usize = 64;

/// What waits when it is handed over at once, instead of at the driver's next turn: the device
/// works on it while others of the same turn are still being made. Small writes wait for more
/// bytes, in which they may go as one.
const EARLY_PIECES: usize = 8;
const EARLY_WRITE_BYTES: usize = 128 * 1024;

/// Marks the completion of writes that went as one; the rest is their place in the list.
const JOINED: u64 = 1 << 63;

/// The data file's place in the table of registered files.
const DATA_FILE: types::Fixed = types::Fixed(0);

/// What a disk has to do. The ring is declared first, so that it is gone before the memory and the
/// file that its entries point to.
pub(super) struct Ring {
    ring: IoUring,
    slots: Vec<Option<InFlight>>,
    vacant: Vec<usize>,
    /// Pieces that are still to be submitted, as (slot, piece).
    backlog: VecDeque<(usize, usize)>,
    /// Admitted since the last time that the kernel was given something.
    new_pieces: usize,
    new_bytes: usize,
    /// Writes under the kernel that went as one.
    joined: Vec<Option<Joined>>,
    /// Entries that the kernel has taken and not reported.
    in_kernel: usize,
    /// Arenas that were shown to the kernel, and whether it took them.
    arenas: Vec<(Arc<Arena>, bool)>,
    drivers: Vec<Registered>,
    cuts: Cuts,
    /// `None` when the disk has been dropped.
    file: Option<DataFile>,
}

/// The driver of a runtime.
struct Registered {
    runtime: runtime::Id,
    /// `None` before its first turn, which comes by itself.
    waker: Option<Waker>,
    /// Whether it has been woken since its last turn.
    woken: bool,
    /// Requests of its runtime that are not finished.
    out: usize,
}

/// A request under the kernel.
struct InFlight {
    request: Request,
    runtime: runtime::Id,
    /// The place of the buffer's arena in the kernel's table.
    arena: Option<u16>,
    /// A write that is not to go together with others: it has once, and not all was written.
    alone: bool,
    /// Bytes transferred of each piece.
    done: Vec<usize>,
    /// Pieces not finished yet.
    outstanding: usize,
    error: Option<DiskError>,
}

/// Writes that lie one after the other on the disk.
struct Joined {
    /// Where their bytes are; the kernel may look here until they are complete.
    parts: Vec<libc::iovec>,
    /// As (slot, piece).
    pieces: Vec<(usize, usize)>,
}

// SAFETY: the addresses are those of buffers that `slots` owns.
unsafe impl Send for Joined {}

/// A request that is over.
pub(super) struct Finished {
    request: Request,
    error: Option<DiskError>,
}

impl Finished {
    /// Tells who waits. The ring must not be locked: whoever gives up here may drop the disk.
    pub(super) fn tell(self) {
        self.request.complete(self.error.map_or(Ok(()), Err));
    }
}

/// Whether the driver of a runtime knows that there is something to do.
pub(super) enum Woken {
    /// It does.
    Already,
    /// It must be woken.
    By(Waker),
    /// There is none; one has been noted down and must be spawned.
    Absent,
}

/// What came of a driver's turn.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Turn {
    /// Requests of its runtime are out, or no other driver is there.
    Busy,
    /// Nothing of its runtime is out, and another driver is there for the rest.
    Idle,
    /// The kernel takes no more, and has nothing to report.
    Refused,
    /// The disk is gone.
    Ended,
}

impl Ring {
    pub(super) fn new(file: DataFile) -> io::Result<Self> {
        // Completions wait until the thread enters the kernel anyway, instead of interrupting it.
        // Kernels before 5.19 do not know that.
        let mut builder = IoUring::builder();
        let cooperative = builder.setup_coop_taskrun().setup_taskrun_flag().build(RING_ENTRIES);
        let ring = cooperative.or_else(|_| IoUring::new(RING_ENTRIES))?;
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe)?;
        for code in OPERATIONS {
            if !probe.is_supported(code) {
                let message = format!("the kernel's io_uring lacks operation {code}");
                return Err(io::Error::new(io::ErrorKind::Unsupported, message));
            }
        }
        ring.submitter().register_files(&[file.file().as_raw_fd()])?;
        if let Err(error) = ring.submitter().register_buffers_sparse(ARENAS_MAX) {
            tracing::debug!(%error, "buffers cannot be registered with the kernel");
        }
        Ok(Self {
            ring,
            slots: Vec::new(),
            vacant: Vec::new(),
            backlog: VecDeque::new(),
            new_pieces: 0,
            new_bytes: 0,
            joined: Vec::new(),
            in_kernel: 0,
            arenas: Vec::new(),
            drivers: Vec::new(),
            cuts: file.cuts().clone(),
            file: Some(file),
        })
    }

    /// Takes a request of a runtime, for the next turn of its driver.
    pub(super) fn admit(&mut self, request: Request, runtime: runtime::Id) -> Woken {
        // A sync has no bytes and is one piece all the same.
        let pieces = request.pieces.len().max(1);
        let bytes: usize = request.pieces.iter().map(|piece| piece.range.len()).sum();
        let arena = request.buffer.buffer().and_then(|buffer| self.arena(buffer));
        let done = vec![0; pieces];
        let (alone, outstanding, error) = (false, pieces, None);
        let in_flight = InFlight { request, runtime, arena, alone, done, outstanding, error };
        let slot = self.vacant.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        });
        assert!(self.slots[slot].is_none(), "a vacant slot is empty");
        self.slots[slot] = Some(in_flight);
        self.backlog.extend((0..pieces).map(|piece| (slot, piece)));
        self.new_pieces += pieces;
        self.new_bytes += bytes;
        let Some(driver) = self.driver(runtime) else {
            self.drivers.push(Registered { runtime, waker: None, woken: true, out: 1 });
            return Woken::Absent;
        };
        driver.out += 1;
        let woken = std::mem::replace(&mut driver.woken, true);
        match &driver.waker {
            Some(waker) if !woken => Woken::By(waker.clone()),
            _ => Woken::Already,
        }
    }

    /// Hands over what waits, if that is much. `operation` is that of the request admitted last.
    pub(super) fn hand_over_early(&mut self, operation: Operation) {
        let is_much = self.new_pieces >= EARLY_PIECES
            && (operation != Operation::Write || self.new_bytes >= EARLY_WRITE_BYTES);
        if is_much {
            self.fill_submissions();
            self.enter(0);
        }
    }

    /// Hands over what waits and takes what is finished.
    pub(super) fn turn(
        &mut self,
        runtime: runtime::Id,
        waker: &Waker,
        finished: &mut Vec<Finished>,
    ) -> Turn {
        let is_alone = self.drivers.len() == 1;
        let is_closed = self.file.is_none();
        let Some(driver) = self.driver(runtime).filter(|_| !is_closed) else { return Turn::Ended };
        let is_busy = driver.out > 0 || is_alone;
        driver.woken = false;
        if !driver.waker.as_ref().is_some_and(|known| known.will_wake(waker)) {
            driver.waker = Some(waker.clone());
        }
        loop {
            self.fill_submissions();
            self.enter(0);
            if !self.reap(finished) || self.backlog.is_empty() {
                break;
            }
        }
        let is_refused = self.in_kernel == 0 && self.is_waiting();
        match is_refused {
            true => Turn::Refused,
            false if is_busy => Turn::Busy,
            false => Turn::Idle,
        }
    }

    /// Takes a driver off the list; finishes what is in flight, in case nobody else does.
    pub(super) fn leave(&mut self, runtime: runtime::Id) -> Vec<Finished> {
        let known = self.drivers.len();
        self.drivers.retain(|driver| driver.runtime != runtime);
        if self.drivers.len() < known { self.drain() } else { Vec::new() }
    }

    /// Waits until nothing is in flight.
    pub(super) fn drain(&mut self) -> Vec<Finished> {
        let mut finished = Vec::new();
        while self.in_kernel > 0 || self.is_waiting() {
            self.fill_submissions();
            self.enter(1);
            self.reap(&mut finished);
        }
        finished
    }

    /// Lets go of the file, when nothing is in flight any more; returns the drivers, to be told.
    pub(super) fn close(&mut self) -> Vec<Waker> {
        assert!(self.in_kernel == 0, "the ring has been drained");
        if let Err(error) = self.ring.submitter().unregister_files() {
            tracing::warn!(%error, "the data file stays open until its io_uring is gone");
        }
        if let Err(error) = self.ring.submitter().unregister_buffers()
            && !self.arenas.is_empty()
        {
            tracing::debug!(%error, "buffers stay pinned until their io_uring is gone");
        }
        self.file = None;
        self.drivers.drain(..).filter_map(|driver| driver.waker).collect()
    }

    /// The place of a buffer's arena in the kernel's table, which it enters when it is first seen.
    fn arena(&mut self, buffer: &AlignedBuffer) -> Option<u16> {
        self.place_of(buffer.arena()?)
    }

    /// The place of an arena in the kernel's table, likewise.
    pub(super) fn place_of(&mut self, arena: &Arc<Arena>) -> Option<u16> {
        let known = self.arenas.iter().position(|(known, _)| Arc::ptr_eq(known, arena));
        let at = known.or_else(|| self.show(arena))?;
        self.arenas[at].1.then(|| u16::try_from(at).expect("below the most arenas"))
    }

    fn show(&mut self, arena: &Arc<Arena>) -> Option<usize> {
        let at = self.arenas.len();
        let place = u32::try_from(at).ok().filter(|&place| place < ARENAS_MAX)?;
        let range = libc::iovec { iov_base: arena.start().as_ptr().cast(), iov_len: arena.len() };
        // SAFETY: the ring holds the arena from now on.
        let taken = unsafe { self.ring.submitter().register_buffers_update(place, &[range], None) };
        if let Err(error) = &taken {
            // Most likely the bound on locked memory; transfers then name their memory each time.
            tracing::info!(%error, bytes = arena.len(), "buffers are not registered with io_uring");
        }
        self.arenas.push((Arc::clone(arena), taken.is_ok()));
        Some(at)
    }

    fn driver(&mut self, runtime: runtime::Id) -> Option<&mut Registered> {
        self.drivers.iter_mut().find(|driver| driver.runtime == runtime)
    }

    /// Whether there are pieces that the kernel has not taken.
    fn is_waiting(&mut self) -> bool {
        !self.backlog.is_empty() || !self.ring.submission().is_empty()
    }

    fn fill_submissions(&mut self) {
        (self.new_pieces, self.new_bytes) = (0, 0);
        while !self.backlog.is_empty() && !self.ring.submission().is_full() {
            let count = self.joinable();
            let pieces: Vec<_> = self.backlog.drain(..count).collect();
            let entry = match pieces[..] {
                [(slot, piece)] => self.entry(slot, piece),
                _ => self.entry_of_joined(pieces),
            };
            // SAFETY: the memory that the entry points to belongs to `slots` and `joined` until its
            // completion has been reaped.
            let pushed = unsafe { self.ring.submission().push(&entry) };
            assert!(pushed.is_ok(), "there was room a moment ago");
        }
    }

    /// How many of the pieces that wait are writes that lie one after the other on the disk; at
    /// least one. What small writes of many are put next to each other goes there in one piece.
    fn joinable(&self) -> usize {
        let mut end = None;
        let mut bytes = 0;
        let fits = |&&(slot, piece): &&(usize, usize)| {
            let Some(part) = self.joinable_part(slot, piece) else { return false };
            bytes += part.range.len();
            let follows = end.is_none_or(|end| end == part.offset);
            end = Some(part.offset + part.range.len() as u64);
            follows && bytes <= JOINED_BYTES_MAX
        };
        self.backlog.iter().take(JOINED_PIECES_MAX).take_while(fits).count().max(1)
    }

    /// A piece of a write of which nothing has been written yet.
    fn joinable_part(&self, slot: usize, piece: usize) -> Option<&Piece> {
        let in_flight = self.slots[slot].as_ref().expect("a queued piece has its request");
        let fresh = in_flight.done[piece] == 0 && !in_flight.alone;
        let is_write = in_flight.request.operation == Operation::Write;
        (fresh && is_write).then(|| &in_flight.request.pieces[piece])
    }

    fn entry_of_joined(&mut self, pieces: Vec<(usize, usize)>) -> squeue::Entry {
        let part = |&(slot, piece): &(usize, usize)| {
            let in_flight = self.slots[slot].as_ref().expect("a queued piece has its request");
            let range = &in_flight.request.pieces[piece].range;
            let buffer = in_flight.request.buffer.buffer().expect("a write has a buffer");
            // SAFETY: the range lies within the buffer, which `DiskQueue` asserts.
            let start = unsafe { buffer.as_ptr().add(range.start) };
            libc::iovec { iov_base: start.as_ptr().cast(), iov_len: range.len() }
        };
        let parts: Vec<libc::iovec> = pieces.iter().map(part).collect();
        let first = self.joinable_part(pieces[0].0, pieces[0].1).expect("just looked at");
        let count = u32::try_from(self.cuts.parts(parts.len())).expect("bounded");
        let entry = opcode::Writev::new(DATA_FILE, parts.as_ptr(), count).offset(first.offset);
        let place = self.joined.iter().position(Option::is_none).unwrap_or(self.joined.len());
        if place == self.joined.len() {
            self.joined.push(None);
        }
        self.joined[place] = Some(Joined { parts, pieces });
        entry.build().user_data(JOINED | place as u64)
    }

    /// Hands the entries over, and waits for as many completions.
    fn enter(&mut self, wanted: usize) {
        let submission = self.ring.submission();
        let is_needed = !submission.is_empty() || submission.taskrun() || submission.cq_overflow();
        drop(submission);
        if !is_needed && wanted == 0 {
            return;
        }
        match self.ring.submit_and_wait(wanted) {
            Ok(taken) => self.in_kernel += taken,
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
    }

    fn entry(&self, slot: usize, piece: usize) -> squeue::Entry {
        let in_flight = self.slots[slot].as_ref().expect("a queued piece has its request");
        let request = &in_flight.request;
        let entry = match (request.buffer.buffer(), request.pieces.get(piece)) {
            (Some(buffer), Some(part)) => {
                let done = in_flight.done[piece];
                let at = part.range.start + done;
                let len = self.cuts.part(part.range.end - at);
                let len = u32::try_from(len).expect("below the largest buffer");
                // SAFETY: `at` lies within the buffer, which `DiskQueue` asserts for every piece.
                let start = unsafe { buffer.as_ptr().add(at) };
                let (start, offset) = (start.as_ptr(), part.offset + done as u64);
                transfer(request.operation, start, len, in_flight.arena, offset)
            }
            _ => opcode::Fsync::new(DATA_FILE).flags(types::FsyncFlags::DATASYNC).build(),
        };
        entry.user_data(((slot as u64) << 32) | piece as u64)
    }

    /// Takes what the kernel reports; returns whether it was anything.
    fn reap(&mut self, finished: &mut Vec<Finished>) -> bool {
        let mut count = 0;
        loop {
            let next = self.ring.completion().next();
            let Some(entry) = next else { break };
            count += 1;
            if entry.user_data() & JOINED != 0 {
                let place = usize::try_from(entry.user_data() & !JOINED).expect("a place");
                self.finish_joined(place, self.cuts.told(entry.result()), finished);
                continue;
            }
            let slot = usize::try_from(entry.user_data() >> 32).expect("a slot");
            let piece = usize::try_from(entry.user_data() & 0xffff_ffff).expect("a piece");
            finished.extend(self.finish_piece(slot, piece, self.cuts.told(entry.result())));
        }
        self.in_kernel -= count;
        count > 0
    }

    /// What was written whole is done; the rest goes again, each by itself, so that an error is
    /// told to whom it concerns.
    fn finish_joined(&mut self, place: usize, result: i32, finished: &mut Vec<Finished>) {
        let Joined { parts, pieces } = self.joined[place].take().expect("reported once");
        let mut written = usize::try_from(result).unwrap_or(0);
        for ((slot, piece), part) in pieces.into_iter().zip(parts) {
            if written >= part.iov_len {
                written -= part.iov_len;
                let len = i32::try_from(part.iov_len).expect("bounded");
                finished.extend(self.finish_piece(slot, piece, len));
            } else {
                written = 0;
                let in_flight = self.slots[slot].as_mut().expect("a completion has its request");
                in_flight.alone = true;
                self.backlog.push_back((slot, piece));
            }
        }
    }

    fn finish_piece(&mut self, slot: usize, piece: usize, result: i32) -> Option<Finished> {
        let in_flight = self.slots[slot].as_mut().expect("a completion has its request");
        if !in_flight.record(piece, result) {
            self.backlog.push_back((slot, piece));
            return None;
        }
        in_flight.outstanding -= 1;
        if in_flight.outstanding > 0 {
            return None;
        }
        let InFlight { request, runtime, error, .. } =
            self.slots[slot].take().expect("present a moment ago");
        self.vacant.push(slot);
        if let Some(driver) = self.driver(runtime) {
            driver.out -= 1;
        }
        Some(Finished { request, error })
    }
}

/// A transfer, from or to memory that the kernel knows where it has been shown.
fn transfer(
    operation: Operation,
    start: *mut u8,
    len: u32,
    arena: Option<u16>,
    offset: u64,
) -> squeue::Entry {
    let file = DATA_FILE;
    match (operation, arena) {
        (Operation::Read, Some(arena)) => {
            opcode::ReadFixed::new(file, start, len, arena).offset(offset).build()
        }
        (Operation::Read, None) => opcode::Read::new(file, start, len).offset(offset).build(),
        (Operation::Write, Some(arena)) => {
            opcode::WriteFixed::new(file, start, len, arena).offset(offset).build()
        }
        (Operation::Write, None) => opcode::Write::new(file, start, len).offset(offset).build(),
        (Operation::Sync, _) => unreachable!("a sync has no buffer"),
    }
}

impl AsRawFd for Ring {
    fn as_raw_fd(&self) -> RawFd {
        self.ring.as_raw_fd()
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
        // Nobody cancels requests; the kernel does so when the thread that submitted them ends.
        if is_passing(&failure) || failure.raw_os_error() == Some(libc::ECANCELED) {
            return false;
        }
        self.error = Some(DiskError::from_io(operation, offset, len, failure));
        true
    }
}

#[cfg(test)]
mod tests;
