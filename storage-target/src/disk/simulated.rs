//! A disk in memory that keeps no promise beyond the contract, and loses power on request.
//!
//! Everything it does follows from its seed and from the order of the requests, so that a run can
//! be repeated.
//!
//! # Fault model
//! - Until a sync covers it, a write may be lost, torn at sectors of 512 bytes, or reach the medium
//!   in another order than it was made in. All of this shows only after a power cut: before,
//!   reads see what was written, as with the cache of a real drive.
//! - A sector that was being written at the cut may hold garbage.
//! - What a sync has covered stays, except for bits that a test flips ([`SimulatedDisk::flip`]).
//! - A cut during a sync leaves it done or not done, and nobody is told.
//! - A request that is told to fail ([`SimulatedDisk::fail`]) may have written a part.
//! - A process that is killed ([`SimulatedDisk::kill_in`]) loses nothing of what it has written;
//!   the write at that moment may be done in part.
//! - A disk that grows ([`SimulatedDisk::growing`]) has after a cut the length of its last sync, or
//!   any that it has had since; what was written beyond is gone.
//! - Requests are executed in the order of their submission and completed at once, unless they are
//!   to take their time ([`SimulatedDisk::set_delays`]): then in any order, with everything else
//!   going on meanwhile.
//!
//! A disk whose syncs do nothing ([`Flush`]) proves that a test would notice.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::future::BoxFuture;
use millrace_runtime::Random;

use super::{ALIGNMENT, Backing, Disk, DiskError, DiskQueue, Held, Operation, Request};

mod delays;
mod power;

use delays::Delays;
use power::{Ending, Power};

/// What a drive writes as a whole or not at all.
pub const SECTOR: usize = 512;

/// The disk. Clones are handles of the same one; one of them usually serves an engine through
/// [`Self::queue`] while another plays fate.
#[derive(Clone, Debug)]
pub struct SimulatedDisk {
    media: Arc<Mutex<Media>>,
    /// Of which process it is a handle; see [`Self::begin_process`].
    life: u64,
}

/// Whether syncs do what they say.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Flush {
    /// A sync makes completed writes durable.
    Honest,
    /// A sync reports success and does nothing.
    Lying,
    /// The next sync lies, the one after it is honest, and so on.
    LyingByTurns,
}

/// What the disk has done so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Tally {
    /// Bytes written, durable or not.
    pub bytes_written: u64,
    /// Writes and syncs: the moments at which the power can be cut.
    pub changes: u64,
    /// Syncs.
    pub syncs: u64,
    /// Read requests.
    pub reads: u64,
}

impl SimulatedDisk {
    /// A disk of `len` bytes, all zero, whose chances follow from `seed`.
    ///
    /// # Panics
    /// When `len` is no multiple of [`ALIGNMENT`].
    #[must_use]
    pub fn new(len: u64, seed: u64) -> Self {
        Self::powered(len, seed, Arc::default())
    }

    /// A disk that loses power together with others.
    fn powered(len: u64, seed: u64, power: Arc<Power>) -> Self {
        assert!(len.is_multiple_of(ALIGNMENT as u64), "a disk has whole pages");
        let media = Media {
            len,
            len_max: len,
            lengths: vec![len],
            power,
            random: Random::seeded(seed),
            flush: Flush::Honest,
            turn: 0,
            durable: BTreeMap::new(),
            cached: BTreeMap::new(),
            pending: Vec::new(),
            tally: Tally::default(),
            failure: None,
            unreadable: BTreeSet::new(),
            next_write: 0,
            delays: Delays::default(),
            life: 0,
        };
        Self { media: Arc::new(Mutex::new(media)), life: 0 }
    }

    /// A disk without any bytes that can grow until it has `len_max`: a file on a file system.
    #[must_use]
    pub fn growing(len_max: u64, seed: u64) -> Self {
        let disk = Self::new(0, seed);
        disk.media().len_max = len_max;
        disk
    }

    /// The way for an engine to use the disk.
    #[must_use]
    pub fn queue(&self) -> DiskQueue {
        DiskQueue::new(Arc::new(self.of_process()))
    }

    /// From now on another process uses the disk: what the queues and backings of earlier ones are
    /// asked fails, and what they were asked and have not done may be done or not.
    pub fn begin_process(&self) {
        let mut media = self.media();
        media.abandon_delayed();
        media.life += 1;
    }

    /// A handle for the process that uses the disk now.
    #[must_use]
    pub fn of_process(&self) -> Self {
        Self { life: self.media().life, media: Arc::clone(&self.media) }
    }

    /// Makes syncs honest or not.
    pub fn set_flush(&self, flush: Flush) {
        let mut media = self.media();
        media.flush = flush;
        media.turn = 0;
    }

    /// Cuts the power during the `nth` write or sync from now on; 0 is the next one. From then on
    /// every request fails until [`Self::restart`].
    pub fn cut_power_in(&self, nth: u64) {
        self.media().power.end_in(nth, Ending::Cut);
    }

    /// Ends the process that uses the disk during the `nth` write or sync from now on: from then on
    /// every request fails until [`Self::resume`].
    pub fn kill_in(&self, nth: u64) {
        self.media().power.end_in(nth, Ending::Kill);
    }

    /// Whether requests fail because the power is off or the process was killed.
    #[must_use]
    pub fn is_off(&self) -> bool {
        self.media().power.is_off()
    }

    /// Cuts the power if it is on, decides what became of unsynced writes, and turns it on again.
    pub fn restart(&self) {
        let mut media = self.media();
        media.abandon_delayed();
        media.settle();
        media.power.turn_on();
        media.failure = None;
    }

    /// Serves the next process; nothing that was written is lost.
    pub fn resume(&self) {
        let mut media = self.media();
        media.abandon_delayed();
        media.power.turn_on();
        media.failure = None;
    }

    /// Makes the `nth` request of this kind from now on fail with an error of the system; 0 is the
    /// next one. A write that fails may have written any part.
    pub fn fail(&self, operation: Operation, nth: u64, os_error: i32) {
        self.media().failure = Some(Failure { operation, left: nth, os_error });
    }

    /// Makes every read of a page fail, as a bad sector does, or no more.
    pub fn set_unreadable(&self, page: u64, unreadable: bool) {
        let pages = &mut self.media().unreadable;
        if unreadable {
            pages.insert(page)
        } else {
            pages.remove(&page)
        };
    }

    /// Flips one bit of what is durable, as rot does. Unsynced writes are left alone.
    ///
    /// # Panics
    /// When the byte lies outside the disk.
    pub fn flip(&self, offset: u64, bit: u8) {
        let mut media = self.media();
        assert!(offset < media.len, "the byte lies on the disk");
        let (page, within) = split(offset);
        media.durable.entry(page).or_insert_with(blank)[within] ^= 1 << (bit % 8);
        if let Some(cached) = media.cached.get_mut(&page) {
            cached[within] ^= 1 << (bit % 8);
        }
    }

    /// What has been done so far.
    #[must_use]
    pub fn tally(&self) -> Tally {
        let media = self.media();
        Tally { changes: media.power.changes(), ..media.tally }
    }

    fn media(&self) -> MutexGuard<'_, Media> {
        self.media.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Backing for SimulatedDisk {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.media().len)
    }

    fn room_bytes(&self) -> io::Result<u64> {
        let media = self.media();
        Ok(media.len_max - media.len)
    }

    fn grow(
        self: Arc<Self>,
        old_len: u64,
        new_len: u64,
    ) -> BoxFuture<'static, Result<(), DiskError>> {
        let grown = {
            let mut media = self.media();
            match media.life == self.life {
                true => media.grow(old_len, new_len),
                false => Err(DiskError::Stopped),
            }
        };
        Box::pin(async move { grown })
    }

    fn unlock(&self) {}

    fn release(&self) {}
}

impl Disk for SimulatedDisk {
    fn submit(&self, request: Request) {
        if let Some(mut request) = self.delay(request) {
            let result = self.media().execute(&mut request, u64::MAX, self.life);
            request.complete(result);
        }
    }

    fn name(&self) -> &'static str {
        "simulated"
    }
}

type Page = Box<[u8; ALIGNMENT]>;

/// The medium, its volatile cache, and what fate has in store.
#[derive(Debug)]
struct Media {
    len: u64,
    /// How long it can become.
    len_max: u64,
    /// The length of the last sync, and all since.
    lengths: Vec<u64>,
    power: Arc<Power>,
    random: Random,
    flush: Flush,
    /// Syncs since `flush` was set.
    turn: u64,
    /// What survives. A page that is not here is zero.
    durable: BTreeMap<u64, Page>,
    /// Pages as readers see them, where unsynced writes make a difference.
    cached: BTreeMap<u64, Page>,
    /// Unsynced writes, oldest first.
    pending: Vec<Write>,
    tally: Tally,
    failure: Option<Failure>,
    /// Pages that no read gets.
    unreadable: BTreeSet<u64>,
    /// The number of the next write.
    next_write: u64,
    delays: Delays,
    /// Which process uses the disk.
    life: u64,
}

#[derive(Clone, Debug)]
struct Write {
    number: u64,
    offset: u64,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct Failure {
    operation: Operation,
    left: u64,
    os_error: i32,
}

impl Media {
    /// Executes a request of a process. If it is a sync it covers the writes numbered below
    /// `covers`.
    fn execute(&mut self, request: &mut Request, covers: u64, life: u64) -> Result<(), DiskError> {
        if self.power.is_off() || life != self.life {
            return Err(DiskError::Stopped);
        }
        let failure = self.failure_of(request.operation);
        match request.operation {
            Operation::Read => self.read(request, failure),
            Operation::Write => self.write(request, failure),
            Operation::Sync => self.sync(failure, covers),
        }
    }

    /// The error that this request shall fail with.
    fn failure_of(&mut self, operation: Operation) -> Option<i32> {
        let failure = self.failure.as_mut().filter(|failure| failure.operation == operation)?;
        if failure.left > 0 {
            failure.left -= 1;
            return None;
        }
        self.failure.take().map(|failure| failure.os_error)
    }

    fn read(&mut self, request: &mut Request, failure: Option<i32>) -> Result<(), DiskError> {
        self.tally.reads += 1;
        let pieces = request.pieces.clone();
        let Held::Exclusive(buffer) = &mut request.buffer else {
            unreachable!("a read has its buffer alone")
        };
        for piece in pieces {
            let bytes = &mut buffer.as_mut_slice()[piece.range.clone()];
            let error = |source| Err(DiskError::from_io(Operation::Read, piece.offset, 0, source));
            if let Some(os_error) = failure {
                return error(io::Error::from_raw_os_error(os_error));
            }
            if piece.offset + bytes.len() as u64 > self.len {
                return error(io::Error::from(io::ErrorKind::UnexpectedEof));
            }
            let (first, count) = (split(piece.offset).0, (bytes.len() / ALIGNMENT) as u64);
            if self.unreadable.range(first..first + count).next().is_some() {
                return error(io::Error::from_raw_os_error(libc::EIO));
            }
            self.peek(piece.offset, bytes);
        }
        Ok(())
    }

    /// What readers see of whole pages.
    fn peek(&self, offset: u64, bytes: &mut [u8]) {
        let (first, _) = split(offset);
        for (page, bytes) in (first..).zip(bytes.chunks_mut(ALIGNMENT)) {
            match self.cached.get(&page).or_else(|| self.durable.get(&page)) {
                Some(found) => bytes.copy_from_slice(&found[..bytes.len()]),
                None => bytes.fill(0),
            }
        }
    }

    fn write(&mut self, request: &Request, failure: Option<i32>) -> Result<(), DiskError> {
        let ending = self.power.change();
        let Held::Shared(buffer) = &request.buffer else {
            unreachable!("a write shares its buffer")
        };
        for piece in &request.pieces {
            let bytes = &buffer.as_slice()[piece.range.clone()];
            if piece.offset + bytes.len() as u64 > self.len {
                let source = io::Error::from_raw_os_error(libc::ENOSPC);
                return Err(DiskError::from_io(Operation::Write, piece.offset, 0, source));
            }
            if let Some(os_error) = failure {
                let sectors = (bytes.len() / SECTOR) as u64;
                let written = usize::try_from(self.random.within(0..sectors + 1)).unwrap_or(0);
                self.put(piece.offset, &bytes[..written * SECTOR]);
                let source = io::Error::from_raw_os_error(os_error);
                return Err(DiskError::from_io(Operation::Write, piece.offset, 0, source));
            }
            self.put_until(ending, piece.offset, bytes);
        }
        self.end(ending)
    }

    /// Puts bytes, or a part of them if this is the moment at which the process ends.
    fn put_until(&mut self, ending: Option<Ending>, offset: u64, bytes: &[u8]) {
        let sectors = (bytes.len() / SECTOR) as u64;
        let written = match ending {
            Some(Ending::Kill) => self.random.within(0..sectors + 1),
            Some(Ending::Cut) | None => sectors,
        };
        let written = usize::try_from(written).expect("at most what there is");
        self.put(offset, &bytes[..written * SECTOR]);
    }

    /// Ends the request, and everything else if its turn has come.
    fn end(&mut self, ending: Option<Ending>) -> Result<(), DiskError> {
        match ending {
            None => return Ok(()),
            Some(Ending::Cut) => {
                self.abandon_delayed();
                self.settle();
            }
            Some(Ending::Kill) => self.abandon_delayed(),
        }
        Err(DiskError::Stopped)
    }

    fn sync(&mut self, failure: Option<i32>, covers: u64) -> Result<(), DiskError> {
        let ending = self.power.change();
        self.tally.syncs += 1;
        if let Some(os_error) = failure {
            let source = io::Error::from_raw_os_error(os_error);
            return Err(DiskError::from_io(Operation::Sync, 0, 0, source));
        }
        self.turn += 1;
        let honest = match self.flush {
            Flush::Honest => true,
            Flush::Lying => false,
            Flush::LyingByTurns => self.turn.is_multiple_of(2),
        };
        let done = ending.is_none() || self.random.within(0..2) == 0;
        if done && honest {
            let pending = std::mem::take(&mut self.pending);
            let (covered, newer): (Vec<_>, Vec<_>) =
                pending.into_iter().partition(|write| write.number < covers);
            self.cached.clear();
            covered.iter().for_each(|write| self.persist(write));
            newer.iter().for_each(|write| self.cache(write));
            self.pending = newer;
            self.lengths = vec![self.len];
        }
        self.end(ending)
    }

    fn put(&mut self, offset: u64, bytes: &[u8]) {
        self.tally.bytes_written += bytes.len() as u64;
        let write = Write { number: self.next_write, offset, bytes: bytes.to_vec() };
        self.next_write += 1;
        self.cache(&write);
        self.pending.push(write);
    }

    /// Lets readers see a write that is not durable.
    fn cache(&mut self, write: &Write) {
        for (at, sector) in sectors(write.offset, &write.bytes) {
            let (page, within) = split(at);
            let durable = &self.durable;
            let known = || durable.get(&page).cloned().unwrap_or_else(blank);
            let cached = self.cached.entry(page).or_insert_with(known);
            cached[within..within + SECTOR].copy_from_slice(sector);
        }
    }

    fn persist(&mut self, write: &Write) {
        for (at, sector) in sectors(write.offset, &write.bytes) {
            let (page, within) = split(at);
            let durable = self.durable.entry(page).or_insert_with(blank);
            durable[within..within + SECTOR].copy_from_slice(sector);
        }
    }

    /// The power goes: what becomes of unsynced writes is decided now.
    fn settle(&mut self) {
        self.cached.clear();
        let mut writes = std::mem::take(&mut self.pending);
        // Four kinds of disaster, because independent chances for each sector would hardly ever
        // lose exactly one whole write, or none.
        let kind = self.random.within(0..4);
        self.shuffle(&mut writes);
        let last = writes.len().saturating_sub(1);
        for (nth, write) in writes.into_iter().enumerate() {
            match kind {
                0 => {}
                1 if self.random.within(0..2) == 0 => self.persist(&write),
                1 => {}
                2 if nth != last => self.persist(&write),
                _ => self.tear(&write),
            }
        }
        self.lose_growth();
    }

    fn grow(&mut self, old_len: u64, new_len: u64) -> Result<(), DiskError> {
        if self.power.is_off() {
            return Err(DiskError::Stopped);
        }
        assert!(
            old_len == self.len && new_len.is_multiple_of(ALIGNMENT as u64),
            "it grows in order"
        );
        let ending = self.power.change();
        if new_len > self.len_max {
            return self.end(ending).and(Err(DiskError::NoSpace));
        }
        self.len = new_len;
        self.lengths.push(new_len);
        self.end(ending)
    }

    /// The power goes: which of the lengths since the last sync it has is decided now.
    fn lose_growth(&mut self) {
        if let [_, _, ..] = self.lengths[..] {
            let nth = self.random.within(0..self.lengths.len() as u64);
            self.len = self.lengths[usize::try_from(nth).expect("an index")];
        }
        self.lengths = vec![self.len];
        let end = self.len / ALIGNMENT as u64;
        self.durable.retain(|&page, _| page < end);
    }

    /// Makes any part of a write durable, sector by sector.
    fn tear(&mut self, write: &Write) {
        for (nth, (at, sector)) in sectors(write.offset, &write.bytes).enumerate() {
            let mut bytes = sector.to_vec();
            match self.random.within(0..8) {
                0..4 => {}
                4 if nth == 0 => self.random.fill(&mut bytes),
                _ => continue,
            }
            self.persist(&Write { number: write.number, offset: at, bytes });
        }
    }

    fn shuffle(&self, writes: &mut [Write]) {
        for at in (1..writes.len()).rev() {
            let other = self.random.within(0..at as u64 + 1);
            writes.swap(at, usize::try_from(other).expect("an index"));
        }
    }
}

fn blank() -> Page {
    Box::new([0; ALIGNMENT])
}

/// The page that a byte lies in, and where in it.
fn split(offset: u64) -> (u64, usize) {
    let page = ALIGNMENT as u64;
    (offset / page, usize::try_from(offset % page).expect("below a page"))
}

/// The sectors of a write, each with its offset.
fn sectors(offset: u64, bytes: &[u8]) -> impl Iterator<Item = (u64, &[u8])> {
    (offset..).step_by(SECTOR).zip(bytes.chunks_exact(SECTOR))
}

#[cfg(test)]
mod tests;
