//! Where the volume lies: on a simulated disk, of one length or growing.

use std::{sync::Arc, time::Duration};

use millrace_storage_target::{
    disk::{
        BufferPool,
        simulated::{Flush, SimulatedDisk},
    },
    format::{segment::BootId, superblock::linear::Layout},
    volume::{Blank, Growth, OpenError, Options, Volume},
};
use millrace_types::{ClusterId, TargetId};

use super::{model::PAGE, subject::Shape};

/// Pages of a region.
const REGION: u64 = 8192;

/// Bytes that a run has until a growing disk must grow: few, so that most runs see it.
const ROOM_BEFORE_GROWTH: u64 = 1 << 20;

/// Everything of a volume is on one disk.
pub(crate) struct Directory {
    disk: SimulatedDisk,
    layout: Layout,
    grows: bool,
}

impl Directory {
    /// Of three seeds one has a disk that grows by a region, and one a disk whose file system has
    /// not got it.
    pub(crate) fn new(seed: u64, shape: Shape) -> Self {
        // The shortest ring holds two of the longest batches beside what is in it.
        let journal_pages = if shape.sizes.segment_bytes > 32 * 1024 { 512 } else { 200 };
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
        Self { disk, layout, grows: seed % 3 == 1 }
    }

    /// Bytes of a run that may use `room` and must not grow before; the rest is ballast.
    #[expect(clippy::unnecessary_wraps, reason = "real disks have no ballast")]
    pub(crate) fn room(&self, room: u64) -> Option<u64> {
        Some(if self.grows { ROOM_BEFORE_GROWTH } else { room })
    }

    pub(crate) async fn open(&self, boot: BootId, pool: BufferPool) -> Result<Volume, OpenError> {
        let backing = Arc::new(self.disk.clone());
        let options = Options {
            cluster: ClusterId([9; 16]),
            blank: Some(Blank { target: TargetId([7; 8]), layout: self.layout }),
            disk: self.disk.queue(),
            growth: Some(Growth { backing, capacity: self.layout.capacity }),
            pool,
            cache_bytes: 64 * 1024,
            // Longer than any run: only what the test asks for happens.
            sync_interval: Duration::from_secs(3600),
            boot,
        };
        Volume::open(&options).await
    }

    pub(crate) fn data_disk(&self) -> &SimulatedDisk {
        &self.disk
    }

    pub(crate) fn is_off(&self) -> bool {
        self.disk.is_off()
    }

    pub(crate) fn resume(&self) {
        self.disk.resume();
    }

    pub(crate) fn restart(&self) {
        self.disk.restart();
    }

    pub(crate) fn kill_in(&self, nth: u64) {
        self.disk.kill_in(nth);
    }

    pub(crate) fn cut_power_in(&self, nth: u64) {
        self.disk.cut_power_in(nth);
    }

    pub(crate) fn set_flush(&self, flush: Flush) {
        self.disk.set_flush(flush);
    }

    pub(crate) fn flip(&self, offset: u64, bit: u8) {
        self.disk.flip(offset, bit);
    }

    /// A volume's sync is tasks among others, which are not held.
    #[expect(clippy::unused_self, reason = "the other engine's directory holds its syncs")]
    pub(crate) fn release_sync(&self) {}
}
