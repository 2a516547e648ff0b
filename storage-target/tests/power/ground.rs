//! Where the volume lies: on a simulated disk, or on a real one. Faults stand before both.

use std::{
    future,
    sync::{Arc, Mutex},
    thread,
    time::Duration,
};

use futures::future::BoxFuture;
use millrace_protocol::target::ContentName;
use millrace_storage_target::{
    disk::{
        Backing, BufferPool, DiskQueue, Operation,
        faulty::Faults,
        simulated::{Flush, Tally},
    },
    format::batch::BootId,
    image::PageSource,
    verify::{
        self,
        report::{Observer, Remark},
    },
    volume::{Blank, Growth, Judge, OpenError, Options, Volume},
};
use millrace_types::ClusterId;

use super::{simulated_ground::Simulated, subject::Shape};

/// Has whatever it ever had.
#[derive(Debug)]
struct Bucket;

impl Judge for Bucket {
    fn is_saved(&self, _content: ContentName) -> BoxFuture<'_, Option<bool>> {
        Box::pin(future::ready(Some(true)))
    }
}

/// What is opened.
pub(crate) struct Parts {
    pub(crate) disk: DiskQueue,
    pub(crate) backing: Arc<dyn Backing>,
    pub(crate) capacity: u64,
    pub(crate) blank: Blank,
}

/// A disk under test. Those that are real are never off, and do nothing about power.
pub(crate) trait Ground: Send + Sync {
    /// Opens it for the next process.
    fn parts(&self) -> Result<Parts, OpenError>;

    /// Bytes of a run that may use `room` and must not grow before; the rest is ballast. `None`:
    /// there is none.
    fn room(&self, _room: u64) -> Option<u64> {
        None
    }

    fn changes(&self) -> u64;

    /// The pages as a reader of the disk sees them; `None` where a daemon has them.
    fn pages(&self) -> Option<Box<dyn PageSource>> {
        None
    }

    /// Lets the `nth` request of this kind fail.
    fn fail(&self, operation: Operation, nth: u64, os_error: i32);

    fn flip(&self, offset: u64, bit: u8);

    fn is_off(&self) -> bool {
        false
    }

    fn resume(&self) {}

    fn restart(&self) {}

    fn kill_in(&self, _nth: u64) {}

    fn cut_power_in(&self, _nth: u64) {}

    fn set_flush(&self, _flush: Flush) {}

    /// Lets requests take their time, in an order of chance. Those of real disks do.
    fn set_delays(&self, _delays: bool) {}

    /// Whether what an earlier volume has asked for may still reach the disk.
    fn outlives_volumes(&self) -> bool {
        false
    }
}

#[derive(Default)]
struct Heard(Mutex<Vec<Remark>>);

impl Observer for Heard {
    fn remark(&self, remark: &Remark) {
        self.0.lock().expect("nobody has panicked").push(remark.clone());
    }
}

/// Everything of a volume is on one disk.
pub(crate) struct Directory {
    ground: Arc<dyn Ground>,
    faults: Faults,
    /// Of the volume that was opened last.
    last: Mutex<Option<DiskQueue>>,
}

impl Directory {
    pub(crate) fn simulated(seed: u64, shape: Shape) -> Self {
        Self::on(Arc::new(Simulated::new(seed, shape)), Faults::default())
    }

    pub(crate) fn on(ground: Arc<dyn Ground>, faults: Faults) -> Self {
        Self { ground, faults, last: Mutex::default() }
    }

    pub(crate) async fn open(&self, boot: BootId, pool: BufferPool) -> Result<Volume, OpenError> {
        // A process that ends takes its requests with it: none reaches the disk of the next one.
        let last = self.last.lock().expect("nobody has panicked").take();
        if let Some(last) = last.filter(|_| self.ground.outlives_volumes()) {
            last.end().await;
        }
        let Parts { disk, backing, capacity, blank } = self.ground.parts()?;
        let disk = self.faults.before(&disk);
        *self.last.lock().expect("nobody has panicked") = Some(disk.clone());
        let options = Options {
            cluster: ClusterId([9; 16]),
            blank: Some(blank),
            disk,
            growth: Some(Growth { backing: self.faults.before_growth(backing), capacity }),
            pool,
            cache_bytes: 64 * 1024,
            // Longer than any run: only what the test asks for happens.
            sync_interval: Duration::from_secs(3600),
            boot,
        };
        let volume = Volume::open(&options).await?;
        volume.set_judge(Arc::new(Bucket));
        Ok(volume)
    }

    /// What the offline check says.
    pub(crate) fn verify(&self, options: &verify::Options) -> Option<Vec<Remark>> {
        // In a thread of its own: it knows nothing of tasks, and must not be counted as one.
        thread::scope(|scope| {
            let checking = scope.spawn(|| {
                let pages = self.ground.pages()?;
                let heard = Heard::default();
                verify::verify(&*pages, options, &heard).expect("there is a target");
                Some(heard.0.into_inner().expect("nobody has panicked"))
            });
            checking.join().expect("the check does not panic")
        })
    }

    pub(crate) fn faults(&self) -> &Faults {
        &self.faults
    }

    pub(crate) fn room(&self, room: u64) -> Option<u64> {
        self.ground.room(room)
    }

    pub(crate) fn data_disk(&self) -> DataDisk {
        DataDisk(Arc::clone(&self.ground))
    }

    pub(crate) fn is_off(&self) -> bool {
        self.ground.is_off()
    }

    pub(crate) fn resume(&self) {
        self.ground.resume();
    }

    pub(crate) fn restart(&self) {
        self.ground.restart();
    }

    pub(crate) fn kill_in(&self, nth: u64) {
        self.ground.kill_in(nth);
    }

    pub(crate) fn cut_power_in(&self, nth: u64) {
        self.ground.cut_power_in(nth);
    }

    pub(crate) fn set_flush(&self, flush: Flush) {
        self.ground.set_flush(flush);
    }

    pub(crate) fn set_delays(&self, delays: bool) {
        self.ground.set_delays(delays);
    }

    pub(crate) fn flip(&self, offset: u64, bit: u8) {
        self.ground.flip(offset, bit);
    }

    /// A volume's sync is tasks among others, which are not held.
    #[expect(clippy::unused_self, reason = "the other engine's directory holds its syncs")]
    pub(crate) fn release_sync(&self) {}
}

/// What plays fate.
#[derive(Clone)]
pub(crate) struct DataDisk(Arc<dyn Ground>);

impl DataDisk {
    pub(crate) fn tally(&self) -> Tally {
        Tally { changes: self.0.changes(), ..Tally::default() }
    }

    pub(crate) fn fail(&self, operation: Operation, nth: u64, os_error: i32) {
        self.0.fail(operation, nth, os_error);
    }
}
