//! The storage engine of one target on one linear space of pages: chunks in an index, changes in a
//! journal, bytes in regions.
//!
//! # What it guarantees
//! - A change that was acknowledged survives a kill of the process; after [`Volume::sync`] also a
//!   loss of power, unless the loss count changed meanwhile.
//! - A change is there as a whole or not at all. New bytes go to pages that nothing points to; only
//!   then does a journal record point there; the pages given up are not used again before no later
//!   start can ask for them.
//! - Every page read from disk is checked against its checksum before anybody sees it, also before
//!   a part of it is overwritten.
//! - Nothing is changed by a request that is refused, by a full disk or for any other reason.
//!
//! # How a change is made
//! 1. *Lock* the blocks (`locks`), so that one writer at a time replaces bytes.
//! 2. *Look* at the section records, read the pages of which a part stays, reserve pages
//!    (`room`), write the bytes.
//! 3. *Install* (`install`): with the inode's turn (shared; who removes has it alone) and the
//!    sections' locks held, the records are read again, changed by a pure function, encoded under
//!    the number that the journal's next record will have, appended, and put into the index. The
//!    last three happen under `state`, the one lock that keeps journal, index, space and figures
//!    together; it is held for memory operations only.
//! 4. *Wait* until the record is on the device (a kill), or durable (a loss of power). Who waits at
//!    the same time shares one write and one sync: that is the journal's part.
//!
//! Locks are taken in this order: the turn of checks, blocks, inode, sections, state. Nobody waits
//! for memory of a pool while holding the inode's turn or a section, except from the pool of index
//! and journal, whose holders wait for nothing but the disk. Only the turn of checks is held while
//! the judge of damaged bytes is asked.
//!
//! # When pages are free again
//! Pages that a record gives up stay in quarantine until (a) the record is *announced*: durable,
//! and a durable batch of the journal says so, so that no later start wants to look at the pages of
//! an older record to find out whether it counts; and (b) no reader is left that began before.
//! Until then they count as used. To a checkpoint they are free: it contains the record.
//!
//! # Checkpoints
//! When the changes in memory or the ring grow (`checkpoint`), the maps of the regions that
//! records touched, the figures and the place in the journal are put into the index, all as of one
//! record; everything up to it is synced, the index writes its tree, and the ring before the place
//! is given back. Writers go on meanwhile, and wait only when the ring is half full or the delta
//! has twice its bound.
//!
//! # After a stop
//! See `recovery`: records are applied in order; after a loss of power those that no batch knows to
//! be durable are believed only if their pages match.
//!
//! # Cancellation
//! Methods that change something run in tasks of their own: a caller that goes away abandons the
//! answer, not the work. They need a tokio runtime around them.
//!
//! Modules in reading order: `request`, `error`, `place`, `open`, `recovery`, `room`, `sections`
//! and `spots` (pure), `read`, `install`, `write`, `fills`, `zero`, `ends`, `remove`, `clean`,
//! `contents`, `commit`, `checkpoint`, `reopen`; `judge`, `inspect`, `findings`, `scrub`, `gather`,
//! `describe`.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_protocol::storage::ChunkVersion;
use millrace_runtime::Clock;
use millrace_types::{ByteLen, ClusterId, Crc32c, InodeId, SessionId, TargetId, WriteNumber};
use tokio::{sync::Notify, task::JoinHandle};

use crate::{
    disk::{Backing, BufferPool, DiskMeter, DiskQueue},
    format::{
        batch::BootId,
        finding::{BlockKey, Finding},
        superblock::{Layout, Superblock},
    },
    index::Index,
    journal::{Journal, JournalMeter},
    space::{Space, Totals},
};

mod boot;
mod checkpoint;
mod clean;
mod commit;
mod contents;
mod describe;
mod drops;
mod ends;
mod error;
mod exported;
mod fills;
mod findings;
mod gather;
mod inspect;
mod install;
mod judge;
mod locks;
mod open;
mod place;
mod read;
mod reclaim;
mod recovery;
mod remove;
mod reopen;
mod request;
mod room;
mod scrub;
mod sections;
pub(crate) mod sessions;
mod spots;
#[cfg(test)]
mod tests;
mod write;
mod zero;

pub use boot::boot_id;
pub(crate) use boot::with_attachment;
pub use clean::{CleanPage, CleanPlace};
pub use drops::DropMark;
pub use error::EngineError;
pub use exported::ExportedBlocks;
pub use judge::Judge;
pub use open::OpenError;
pub use place::PlaceOptions;
pub use read::{Loaded, Snapshot};
pub use reopen::Origin;
pub use request::{Authority, Fill, WriteRequest, ZeroRequest};
pub use scrub::{ScrubActivity, ScrubCommand, ScrubSettings, ScrubStatus};

use drops::Drops;
use ends::UnreadCuts;
use inspect::Inspection;
use judge::Judging;
use locks::BlockLocks;
use read::Flights;
use reopen::{Live, Slot};
use scrub::Scrub;
use sessions::{Admission, AppliedWrites};
use spots::Sequence;

/// Bad blocks listed at most; more than that is a dead disk.
const BAD_BLOCKS_MAX: usize = 65_536;

/// Turns of inodes: more than requests run at once, so that two inodes seldom share one.
const INODE_TURNS: usize = 256;

/// How a target is opened.
#[derive(Clone, Debug)]
pub struct Options {
    /// The cluster that it must belong to.
    pub cluster: ClusterId,
    /// What a blank disk becomes. `None` refuses one.
    pub blank: Option<Blank>,
    /// The disk.
    pub disk: DiskQueue,
    /// What it lies on. `None`: it is as long as its target's layout says, for ever.
    pub growth: Option<Growth>,
    /// Memory for data.
    pub pool: BufferPool,
    /// Bytes of index nodes kept in memory.
    pub cache_bytes: usize,
    /// Longest time that an acknowledged write stays unsynced.
    pub sync_interval: Duration,
    /// This boot of the kernel and this attachment of the disk.
    pub boot: BootId,
}

/// What a disk lies on, and how far it may grow.
#[derive(Clone, Debug)]
pub struct Growth {
    /// What it lies on.
    pub backing: Arc<dyn Backing>,
    /// Pages that the space may have from now on. More than it was made for raises its capacity
    /// for good; fewer bound what it takes from now on.
    pub capacity: u64,
}

/// What a blank disk becomes.
#[derive(Clone, Copy, Debug)]
pub struct Blank {
    /// The target's id.
    pub target: TargetId,
    /// Where its parts lie.
    pub layout: Layout,
}

/// The engine of one target. Dropping it ends it as a kill would; [`Self::close`] ends it in order.
#[derive(Debug)]
pub struct Volume {
    target: TargetId,
    pool: BufferPool,
    slot: Arc<Slot>,
    /// Opens the target again after a failure. `None`: nobody does.
    reopening: Option<Upkeep>,
}

/// Syncs now and then, and writes checkpoints when they are due; or makes regions ready.
#[derive(Debug)]
struct Upkeep(JoinHandle<()>);

/// What the engine's tasks share.
#[derive(Debug)]
struct Shared {
    target: TargetId,
    superblock: Superblock,
    disk: DiskQueue,
    fills: Arc<fills::Fills>,
    pool: BufferPool,
    index: Index,
    journal: Journal,
    space: Space,
    state: Mutex<State>,
    /// One writer for each block.
    locks: BlockLocks,
    /// One change for each section at the moment of installing; the numbers are sections.
    section_locks: BlockLocks,
    inode_turns: Box<[tokio::sync::RwLock<()>]>,
    flights: Flights,
    small_writes: Sequence,
    applied: AppliedWrites,
    growth: Option<Growth>,
    /// Somebody writes durably, and little room is left that has been written before.
    room_due: Notify,
    /// One growth at a time.
    growth_turn: tokio::sync::Mutex<()>,
    /// One checkpoint at a time.
    checkpoint_turn: tokio::sync::Mutex<()>,
    checkpoint_due: Notify,
    /// Maps of regions are read and dropped by one at a time.
    map_turn: tokio::sync::Mutex<()>,
    loss_count: AtomicU64,
    /// What records below gave up is free.
    released_end: AtomicU64,
    /// Whether the journal has failed.
    lost: AtomicBool,
    /// Told when the journal has failed, or the end of a checkpoint is unknown.
    failure: Notify,
    checksum_failures: AtomicU64,
    unread_cuts: UnreadCuts,
    inspection: Inspection,
    scrub: Scrub,
    clock: Clock,
    /// The checksum of a page of zeros.
    zero_page: Crc32c,
    blank: bool,
    /// Outlives the volume's being opened again, as fetches do.
    drops: Arc<Drops>,
    /// So does this.
    judging: Arc<Judging>,
}

/// What changes together with journal and index.
#[derive(Debug)]
struct State {
    /// How many readers began after which record.
    readers: BTreeMap<u64, u32>,
    inode_max: InodeId,
    /// Blocks that are not what was written, until they are replaced.
    bad: BTreeMap<BlockKey, Finding>,
    /// The stop record was appended: no other follows it.
    is_closed: bool,
}

/// A target's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statistics {
    /// What every page is used for.
    pub space: Totals,
    /// Bytes that the target can hold, with what its index takes.
    pub capacity: ByteLen,
    /// Bytes in use, with those being written. What waits to be free again is not counted.
    pub used: ByteLen,
    /// Bytes that can still be written: what the space has, or what the file system under it can
    /// give, if that is less.
    pub free: ByteLen,
    /// The highest inode id seen.
    pub inode_max: InodeId,
    /// How often unsynced writes may have been lost.
    pub loss_count: u64,
    /// Blocks found bad that nobody has replaced, and nodes of the index.
    pub bad_blocks: u64,
    /// Checksum failures since the start.
    pub checksum_failures: u64,
    /// Whether the target was made at this start.
    pub blank: bool,
}

impl Volume {
    /// The target's id.
    #[must_use]
    pub fn target(&self) -> TargetId {
        self.target
    }

    /// The disk engine in use.
    #[must_use]
    pub fn disk_name(&self) -> &'static str {
        self.shared().disk.name()
    }

    /// The pool that the buffers of data come from.
    #[must_use]
    pub fn pool(&self) -> &BufferPool {
        &self.pool
    }

    /// How often unsynced writes may have been lost.
    #[must_use]
    pub fn loss_count(&self) -> u64 {
        self.shared().loss_count.load(Ordering::Acquire)
    }

    /// Whether the journal has failed, or the end of a checkpoint is unknown: nothing can be
    /// changed any more until the target has been opened again, in place or by another process.
    /// Reading goes on as long as the disk reads.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared().has_failed()
    }

    /// The target's figures now.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let shared = self.shared();
        shared.look_for_room();
        let state = shared.state();
        let space = shared.space.totals();
        let (capacity, used, free) = shared.figures(&space);
        Statistics {
            space,
            capacity,
            used,
            free,
            inode_max: state.inode_max,
            loss_count: shared.loss_count.load(Ordering::Acquire),
            bad_blocks: state.bad.len() as u64,
            checksum_failures: shared.checksum_failures.load(Ordering::Relaxed),
            blank: shared.blank,
        }
    }

    /// Which numbered writes have been applied.
    pub(crate) fn applied_writes(&self) -> AppliedWrites {
        self.shared().applied.clone()
    }

    /// The version that a session's write made, if it is remembered from before the start. Waits
    /// while it is being applied. May be dropped at its await.
    pub async fn applied(&self, session: SessionId, number: WriteNumber) -> Option<ChunkVersion> {
        match self.applied_writes().admit(session, number, WriteNumber(0)).await {
            Admission::Repeated(version) => Some(version),
            Admission::New(_) | Admission::Late => None,
        }
    }
}

impl Drop for Upkeep {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Shared {
    fn measure(&self, disk: DiskMeter, journal: JournalMeter) {
        self.disk.measure(disk);
        self.journal.measure(journal);
    }

    fn has_failed(&self) -> bool {
        self.lost.load(Ordering::Acquire) || self.index.is_uncertain()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // A panic while the lock was held may have left the parts apart: what is on disk is sound,
        // so ending the process and recovering is the way out.
        match self.state.lock() {
            Ok(state) => state,
            Err(PoisonError { .. }) => {
                let target = self.target;
                tracing::error!(%target, "the engine's state is inconsistent; aborting");
                std::process::abort();
            }
        }
    }

    /// The turn of an inode: shared by who changes sections, alone for who removes them.
    fn inode_turn(&self, inode: InodeId) -> &tokio::sync::RwLock<()> {
        let turns = self.inode_turns.len() as u64;
        &self.inode_turns[usize::try_from(inode.0 % turns).expect("an index")]
    }
}

/// Runs a change in a task of its own, because pages under the kernel's hands must not be given
/// back when a caller goes away.
async fn run<T: Send + 'static>(
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, EngineError> {
    tokio::spawn(work).await.unwrap_or(Err(EngineError::Stopped))
}
