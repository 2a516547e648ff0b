//! A simulated disk, of one length or growing.

use std::{io, sync::Arc};

use futures::FutureExt as _;
use millrace_storage_target::{
    disk::{
        Backing as _, BufferPool, Operation, Piece,
        simulated::{Flush, SimulatedDisk},
    },
    format::superblock::Layout,
    image::PageSource,
    volume::{Blank, OpenError},
};
use millrace_types::TargetId;

use super::{
    ground::{Ground, Parts},
    model::PAGE,
    subject::Shape,
};

/// Pages of a region.
const REGION: u64 = 8192;

/// Bytes that a run has until a growing disk must grow: few, so that most runs see it.
const ROOM_BEFORE_GROWTH: u64 = 1 << 20;

/// The disk, and how its target is made.
pub(crate) struct Simulated {
    disk: SimulatedDisk,
    layout: Layout,
    /// Shorter than its target may become.
    is_file: bool,
    grows: bool,
}

impl Simulated {
    /// Of three seeds one has a disk that grows by a region, and one a disk whose file system has
    /// not got it.
    pub(crate) fn new(seed: u64, shape: Shape) -> Self {
        let journal_pages = shape.journal_pages;
        let regions = 256 + journal_pages;
        let one = regions + REGION;
        let (capacity, len_max) = match seed % 3 {
            0 => (one, one),
            1 => (one + REGION, one + REGION),
            _ => (one + REGION, one),
        };
        let layout = Layout { capacity, roots: 16, journal: 256, journal_pages, regions };
        let len_max = len_max * PAGE as u64;
        let disk = match seed % 3 {
            0 => SimulatedDisk::new(len_max, seed),
            _ => SimulatedDisk::growing(len_max, seed),
        };
        Self { disk, layout, is_file: !seed.is_multiple_of(3), grows: seed % 3 == 1 }
    }
}

/// The pages of the disk now.
struct Pages {
    disk: SimulatedDisk,
    len: u64,
    may_grow: bool,
}

impl PageSource for Pages {
    fn pages(&self) -> u64 {
        self.len
    }

    fn may_grow(&self) -> bool {
        self.may_grow
    }

    fn read(&self, page: u64, bytes: &mut [u8]) -> io::Result<()> {
        let piece = Piece { offset: page * PAGE as u64, range: 0..bytes.len() };
        // A simulated disk answers at once, and nobody else waits for this queue and pool.
        let (queue, pool) = (self.disk.queue(), BufferPool::new(bytes.len()));
        let reading = async { queue.read(vec![piece], pool.acquire(bytes.len()).await).await };
        let read = reading.now_or_never().expect("it has answered");
        let buffer = read.map_err(io::Error::other)?;
        bytes.copy_from_slice(&buffer.as_slice()[..bytes.len()]);
        Ok(())
    }
}

impl Ground for Simulated {
    fn pages(&self) -> Option<Box<dyn PageSource>> {
        let len = self.disk.len_bytes().ok()? / PAGE as u64;
        Some(Box::new(Pages { disk: self.disk.clone(), len, may_grow: self.is_file }))
    }

    fn parts(&self) -> Result<Parts, OpenError> {
        // What is left of an earlier volume does nothing to the disk any more.
        self.disk.begin_process();
        Ok(Parts {
            disk: self.disk.queue(),
            backing: Arc::new(self.disk.of_process()),
            capacity: self.layout.capacity,
            blank: Blank { target: TargetId([7; 8]), layout: self.layout },
        })
    }

    fn room(&self, room: u64) -> Option<u64> {
        Some(if self.grows { ROOM_BEFORE_GROWTH } else { room })
    }

    fn changes(&self) -> u64 {
        self.disk.tally().changes
    }

    fn fail(&self, operation: Operation, nth: u64, os_error: i32) {
        self.disk.fail(operation, nth, os_error);
    }

    fn flip(&self, offset: u64, bit: u8) {
        self.disk.flip(offset, bit);
    }

    fn is_off(&self) -> bool {
        self.disk.is_off()
    }

    fn resume(&self) {
        self.disk.resume();
    }

    fn restart(&self) {
        self.disk.restart();
    }

    fn kill_in(&self, nth: u64) {
        self.disk.kill_in(nth);
    }

    fn cut_power_in(&self, nth: u64) {
        self.disk.cut_power_in(nth);
    }

    fn set_flush(&self, flush: Flush) {
        self.disk.set_flush(flush);
    }

    fn set_delays(&self, delays: bool) {
        self.disk.set_delays(delays);
    }
}
