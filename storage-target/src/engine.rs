//! The storage engine of one target: chunks of checksummed blocks on one disk.
//!
//! # What it guarantees
//! - A write that was acknowledged survives a kill of the process; after [[`Engine::sync`]] also a
//!   loss of power, unless the loss count changed meanwhile.
//! - A write is there as a whole or not at all. New bytes go to fresh pages; only then does a
//!   journal record point the index to them; the old pages are not used again before that is
//!   durable.
//! - Every page read from disk is checked against its checksum before anybody sees it.
//! - Nothing is changed by a request that is refused.
//!
//! # Who owns what
//! `Shared` holds the one lock of the engine, around index, allocator and journal: they change
//! together or not at all. It is held for memory operations and one `pwrite` into the page cache,
//! never across an await or a sync. Writers of the same block take turns (`locks`). One thread
//! (`barrier`) makes things durable for everybody and writes checkpoints.
//!
//! # Cancellation
//! Methods that change something run in tasks of their own: a caller that goes away abandons the
//! answer, not the work. They need a tokio runtime around them.
//!
//! Modules in reading order: `index`, `allocator`, `journal`, `recovery`, `write`,
//! `read`, `remove`, `barrier`, `locks`, `sessions`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_types::{ByteLen, ChunkKey, ClusterId, InodeId, TargetId};
use tokio::sync::oneshot;

use crate::{
    disk::{BufferPool, Directory, DiskEngine, DiskQueue, directory::Data},
    format::{chunk::PAGE_SIZE, record::Record, segment::BootId},
};

mod allocator;
mod barrier;
mod error;
mod index;
mod journal;
pub(crate) mod locks;
mod open;
pub(crate) mod page_checksum;
mod read;
mod recovery;
mod remove;
pub(crate) mod sessions;
mod space;
#[cfg(test)]
mod tests;
mod write;

pub use error::EngineError;
pub use index::StateBytes;
pub use journal::JournalSizes;
pub use read::{Loaded, Snapshot};
pub use recovery::OpenError;
pub use remove::ExportedBlocks;
pub use write::{Authority, Fill, WriteRequest, ZeroRequest};

use allocator::Allocator;
use barrier::Barrier;
use index::Index;
use journal::{Journal, Purpose};
use locks::BlockLocks;
use read::Flights;
use sessions::AppliedWrites;

/// How a target is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The target's directory.
    pub dir: PathBuf,
    /// The cluster that it must belong to; a blank directory becomes a target of it.
    pub cluster: ClusterId,
    /// The id for a blank directory. `None` refuses one.
    pub new_target: Option<TargetId>,
    /// The most bytes of data; `None` takes what the file system has free, less a reserve.
    pub capacity: Option<ByteLen>,
    /// Which disk engine.
    pub disk_engine: DiskEngine,
    /// Longest time that an acknowledged write stays unsynced.
    pub barrier_interval: Duration,
    /// The kernel's boot id; see [`boot_id`].
    pub boot: BootId,
}

/// The id of the running kernel's boot.
///
/// # Errors
/// When `/proc` is not mounted.
pub fn boot_id() -> io::Result<BootId> {
    let text = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    // The same shape as a cluster id: sixteen bytes in hexadecimal.
    let id = ClusterId::parse(&digits).map_err(io::Error::other)?;
    Ok(BootId(id.0))
}

/// The engine of one target. Dropping it ends it as a kill would; [`Self::close`] ends it in order.
#[derive(Debug)]
pub struct Engine {
    shared: Arc<Shared>,
    barrier: Barrier,
}

/// What the engine's tasks and its barrier thread share.
#[derive(Debug)]
pub(crate) struct Shared {
    cluster: ClusterId,
    target: TargetId,
    dir: PathBuf,
    directory: Arc<dyn Directory>,
    disk: DiskQueue,
    data: Arc<dyn Data>,
    sizes: JournalSizes,
    pool: BufferPool,
    state: Mutex<State>,
    locks: BlockLocks,
    flights: Flights,
    applied: AppliedWrites,
    /// One growth of the data file at a time.
    growth: tokio::sync::Mutex<()>,
    /// One barrier at a time, whoever runs it.
    barrier_turn: Mutex<()>,
    loss_count: AtomicU64,
    checksum_failures: AtomicU64,
    blank: bool,
}

/// What changes together.
#[derive(Debug)]
struct State {
    index: Index,
    allocator: Allocator,
    journal: Journal,
    /// Everything up to this record is durable.
    committed: u64,
    /// Whether there is a record, other than a commit, that is not.
    dirty: bool,
    /// How many readers began at which record.
    readers: BTreeMap<u64, u32>,
    /// Blocks whose checksum failed, until they are replaced.
    bad: BTreeSet<(ChunkKey, u16)>,
}

/// Bad blocks listed at most; more than that is a dead disk.
const BAD_BLOCKS_MAX: usize = 65_536;

/// A target's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statistics {
    /// Bytes that it can hold.
    pub capacity: ByteLen,
    /// Bytes in use, with those in quarantine or being written.
    pub used: ByteLen,
    /// Chunks.
    pub chunks: u64,
    /// The highest inode id seen.
    pub inode_max: InodeId,
    /// How often unsynced writes may have been lost.
    pub loss_count: u64,
    /// Blocks whose checksum failed and that nobody has replaced.
    pub bad_blocks: u64,
    /// Checksum failures since the start.
    pub checksum_failures: u64,
    /// Whether the target was made at this start.
    pub blank: bool,
}

impl Engine {
    /// The target's id.
    #[must_use]
    pub fn target(&self) -> TargetId {
        self.shared.target
    }

    /// The disk engine in use.
    #[must_use]
    pub fn disk_name(&self) -> &'static str {
        self.shared.disk.name()
    }

    /// The pool that the engine's buffers come from.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.shared.pool
    }

    /// How often unsynced writes may have been lost.
    #[must_use]
    pub fn loss_count(&self) -> u64 {
        self.shared.loss_count.load(Ordering::Acquire)
    }

    /// The target's figures now.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let state = self.shared.state();
        let bytes = |pages: u64| ByteLen(pages * u64::from(PAGE_SIZE));
        Statistics {
            capacity: bytes(state.allocator.capacity()),
            used: bytes(state.allocator.used()),
            chunks: state.index.chunk_count() as u64,
            inode_max: state.index.inode_max(),
            loss_count: self.loss_count(),
            bad_blocks: state.bad.len() as u64,
            checksum_failures: self.shared.checksum_failures.load(Ordering::Relaxed),
            blank: self.shared.blank,
        }
    }

    /// Makes everything acknowledged so far durable; returns the loss count. Callers that wait at
    /// the same time share one barrier. May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::Disk`] or [`EngineError::Journal`]: what was unsynced may be gone, and the
    /// loss count has changed.
    pub async fn sync(&self) -> Result<u64, EngineError> {
        self.barrier.wait().await
    }

    /// Syncs, writes a checkpoint and the stop record, and ends the barrier's thread. Nothing may
    /// be changed any more when it is called; reads go on until the engine is dropped.
    ///
    /// # Errors
    /// As [`Self::sync`]; the next start then recovers as after a kill.
    pub async fn close(&self) -> Result<(), EngineError> {
        self.barrier.close().await?;
        self.shared.directory.unlock();
        Ok(())
    }

    pub(crate) fn applied(&self) -> &AppliedWrites {
        &self.shared.applied
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held may have left the three parts apart: what is on disk is
        // sound, so ending the process and recovering is the way out.
        match self.state.lock() {
            Ok(state) => state,
            Err(PoisonError { .. }) => {
                let target = self.target;
                tracing::error!(%target, "the engine's state is inconsistent; aborting");
                std::process::abort();
            }
        }
    }
}

impl State {
    /// Appends records to the journal and applies them to the index.
    fn commit(&mut self, records: &[Record], purpose: Purpose) -> Result<u64, EngineError> {
        let last = self.journal.append(records, purpose)?;
        let first = last + 1 - records.len() as u64;
        for (sequence, record) in (first..).zip(records) {
            for extent in self.index.apply(record, sequence) {
                self.allocator.quarantine(sequence, extent);
            }
            if let Record::Blocks(change) = record
                && !self.bad.is_empty()
            {
                for run in &change.runs {
                    for block in run.first_block..run.first_block + run.blocks {
                        self.bad.remove(&(change.key, block));
                    }
                }
            }
            if let Record::Remove(removal) = record {
                self.bad.retain(|(key, _)| key.inode != removal.inode);
            }
        }
        self.dirty = true;
        Ok(last)
    }

    /// Frees what is no longer needed: neither after a loss of power nor by a reader.
    fn release_quarantine(&mut self) {
        let oldest_reader = self.readers.keys().next().copied().unwrap_or(u64::MAX);
        self.allocator.release(self.committed.min(oldest_reader));
    }
}

/// Somebody who waits for a barrier.
type Waiter = oneshot::Sender<Result<u64, EngineError>>;

/// Where the parts of a target lie.
fn data_path(dir: &Path) -> PathBuf {
    dir.join("data")
}

fn journal_dir(dir: &Path) -> PathBuf {
    dir.join("journal")
}

fn superblock_path(dir: &Path) -> PathBuf {
    dir.join("superblock")
}
