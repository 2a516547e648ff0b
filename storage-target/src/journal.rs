//! A journal in a ring of pages: records in order, many to a write, many writes to a sync.
//!
//! # What it guarantees
//! - Records survive in order and without a gap: after a loss of power those that are there are the
//!   first ones appended, up to some record that is not below the last one that
//!   [`Journal::sync`] returned for.
//! - A record for which [`Journal::write`] returned survives a kill of the process.
//! - A record that was durable and cannot be read is told from one that never arrived, as soon as a
//!   later batch has carried the news ([`JournalError::Damaged`]).
//! - Nothing is promised after a sync of its disk has failed, whoever asked for that sync: records,
//!   or the data that they name, may be gone although a later sync succeeds.
//!
//! # How records become durable
//! [`Journal::append`] gives a record its sequence and returns at once. Whoever then waits for it
//! gets into a line. The first one starts a task that serves the line: it writes everything that
//! was appended so far as one batch, syncs if that is what the line is for, and answers all whose
//! records are done, until nobody waits any more. So the more wait, the more share one write and
//! one sync, and each of them is woken once. While the disk syncs, the next batches are written.
//!
//! # Data beside records
//! Whoever wants a record durable at once may append it while the data that it names is still being
//! written ([`Journal::append_beside`]): batch and data are then under the disk's hands together.
//! Neither a write nor a sync of any record returns before the data of all records up to it is
//! there, so that nothing is promised that needs it; and a sync is not begun before, so that one
//! sync covers both. What a stop leaves behind is for the owner to look at.
//!
//! # What it never does
//! It does not know what records mean, and holds none of them once they are written. It frees
//! nothing by itself: its owner says from where on it is still needed ([`Journal::release`]).
//!
//! Modules: `ring` (places, pure), `line` (who waits, pure), `writing` (batches onto the disk),
//! `ahead` (batches during a sync), `beside` (data under way), `replay` (reading at a start).

use std::{
    collections::{BTreeSet, VecDeque},
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
};

use bytes::Bytes;
use millrace_types::TargetId;
use tokio::sync::Notify;

use crate::{
    disk::{BufferPool, DiskError, DiskQueue},
    format::{
        batch::BootId,
        batch::{BATCH_LEN_MAX, Position, RECORD_LEN_MAX, batch_len},
        units::PAGE_SIZE,
    },
};

mod ahead;
mod beside;
mod line;
mod meter;
mod replay;
mod ring;
#[cfg(test)]
mod tests;
mod writing;

pub use beside::DataUnderWay;
pub use meter::JournalMeter;
pub use replay::Replayed;
pub use ring::Ring;

use line::Line;
use meter::Phase;
use writing::UnderWay;

/// Where a journal lies, and what it may use.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whose journal it is.
    pub target: TargetId,
    /// The kernel's boot.
    pub boot: BootId,
    /// The disk.
    pub disk: DiskQueue,
    /// Memory for transfers: 256 KiB for the batch being written, 1 MiB while it is being opened.
    pub pool: BufferPool,
    /// The pages.
    pub ring: Ring,
}

/// Why the journal failed.
#[derive(Clone, Debug, thiserror::Error)]
pub enum JournalError {
    /// The disk failed. What of the records that were not durable is there cannot be told: the
    /// journal takes no more until it has been opened again.
    #[error("the journal cannot be written: {0}")]
    Disk(Arc<DiskError>),
    /// An earlier request failed; see [`Self::Disk`].
    #[error("the journal failed earlier and must be opened again")]
    Failed,
    /// The ring has no room. Nothing was appended; release some, then try again.
    #[error("the journal's ring is full")]
    Full,
    /// A record that had been durable cannot be read.
    #[error("record {sequence} of the journal is damaged, although it had been durable")]
    Damaged {
        /// The first record that is missing.
        sequence: u64,
    },
}

impl From<DiskError> for JournalError {
    fn from(error: DiskError) -> Self {
        Self::Disk(Arc::new(error))
    }
}

/// The writing end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Journal {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    options: Options,
    state: Mutex<State>,
    /// One batch is written at a time: the one that the disk has.
    writing: tokio::sync::Mutex<Option<UnderWay>>,
    /// Told of each record that is appended.
    appended: Notify,
    meter: OnceLock<JournalMeter>,
}

#[derive(Debug)]
struct State {
    /// Appended and not written, or being written.
    pending: VecDeque<Bytes>,
    /// Pages that these would take, each in a batch of its own.
    pending_pages: u64,
    /// What the next batch will be, or the one being written is.
    head: Position,
    /// From here on batches are still needed.
    tail: u64,
    /// Pages between tail and head, with those skipped at the ring's end.
    used_pages: u64,
    /// Every record below is durable.
    durable_end: u64,
    /// Every record below is durable, and the newest batch on the device says so.
    carried_end: u64,
    /// The same, of the newest batch that is durable itself.
    announced_end: u64,
    /// Who waits until records are on the device, and until they are durable.
    writing: Line,
    syncing: Line,
    /// Records whose data is being written, and who waits until that of a record and all before it
    /// is there.
    besides: BTreeSet<u64>,
    arriving: Line,
    failed: bool,
}

/// What a record is to become.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Goal {
    Written,
    Durable,
}

impl Journal {
    /// Opens the journal and reads the records that begin at `start`: what the owner stored last,
    /// or [`Ring::start`] for a journal without records.
    ///
    /// # Errors
    /// [`JournalError::Disk`], [`JournalError::Damaged`].
    pub async fn open(options: Options, start: Position) -> Result<(Self, Replayed), JournalError> {
        let replayed = replay::replay(&options, start).await?;
        let state = State {
            pending: VecDeque::new(),
            pending_pages: 0,
            head: replayed.end,
            tail: start.page,
            used_pages: options.ring.distance(start.page, replayed.end.page),
            durable_end: replayed.committed_end,
            carried_end: replayed.committed_end,
            announced_end: replayed.committed_end,
            writing: Line::default(),
            syncing: Line::default(),
            besides: BTreeSet::new(),
            arriving: Line::default(),
            failed: false,
        };
        let shared = Shared {
            options,
            state: Mutex::new(state),
            writing: tokio::sync::Mutex::default(),
            appended: Notify::new(),
            meter: OnceLock::new(),
        };
        Ok((Self { shared: Arc::new(shared) }, replayed))
    }

    /// Counts on these figures from now on; later calls change nothing.
    pub fn measure(&self, meter: JournalMeter) {
        self.shared.meter.get_or_init(|| meter);
    }

    /// Appends a record, in memory; returns its sequence.
    ///
    /// # Errors
    /// [`JournalError::Full`], [`JournalError::Failed`]; it was not appended then.
    ///
    /// # Panics
    /// When it is longer than [`RECORD_LEN_MAX`].
    pub fn append(&self, record: Bytes) -> Result<u64, JournalError> {
        self.append_to(&mut self.shared.state(), record)
    }

    fn append_to(&self, state: &mut State, record: Bytes) -> Result<u64, JournalError> {
        assert!(record.len() <= RECORD_LEN_MAX, "a record keeps within its bound");
        if state.failed {
            return Err(JournalError::Failed);
        }
        let pages = pages_of([record.len()]);
        if !state.has_room(pages, self.shared.options.ring) {
            return Err(JournalError::Full);
        }
        let sequence = state.appended_end();
        state.pending.push_back(record);
        state.pending_pages += pages;
        self.shared.appended.notify_one();
        Ok(sequence)
    }

    /// Waits until a record is on the device with all data up to it, so that it survives a kill of
    /// the process. May be dropped at its await.
    ///
    /// # Errors
    /// [`JournalError::Disk`], [`JournalError::Failed`].
    pub async fn write(&self, sequence: u64) -> Result<(), JournalError> {
        self.reach(Goal::Written, sequence).await
    }

    /// Waits until a record is durable, and everything before it. May be dropped at its await.
    ///
    /// # Durability
    /// It survives a loss of power on return, as does every write to the same disk that had been
    /// completed before the record was appended.
    ///
    /// # Errors
    /// As [`Self::write`].
    pub async fn sync(&self, sequence: u64) -> Result<(), JournalError> {
        self.reach(Goal::Durable, sequence).await
    }

    async fn reach(&self, goal: Goal, sequence: u64) -> Result<(), JournalError> {
        loop {
            let (answer, is_first) = {
                let mut state = self.shared.state();
                if state.end(goal)? > sequence {
                    return Ok(());
                }
                state.line(goal).join(sequence)
            };
            if is_first {
                // In a task of its own: a batch under the device's hands must be finished.
                let server = Server { shared: Arc::clone(&self.shared), goal, is_over: false };
                drop(tokio::spawn(server.serve()));
            }
            // Without an answer the task is gone, because its runtime is: this one starts another.
            if let Ok(outcome) = answer.await {
                return outcome;
            }
        }
    }

    /// A place from which on every record is found that is not on the device yet. To be stored by
    /// the owner together with what the records before it have done.
    #[must_use]
    pub fn position(&self) -> Position {
        self.shared.state().head
    }

    /// The sequence that the next record will have.
    #[must_use]
    pub fn next_sequence(&self) -> u64 {
        self.shared.state().appended_end()
    }

    /// Every record below is durable.
    #[must_use]
    pub fn durable_end(&self) -> u64 {
        self.shared.state().durable_end
    }

    /// Every record below is durable, and a batch that is durable itself says so: a later start
    /// takes these records for certain, and looks at nothing that they have replaced.
    #[must_use]
    pub fn announced_end(&self) -> u64 {
        self.shared.state().announced_end
    }

    /// Gives back the ring before `position`, which the owner has stored durably.
    pub fn release(&self, position: Position) {
        let mut state = self.shared.state();
        state.tail = position.page;
        state.used_pages = self.shared.options.ring.distance(position.page, state.head.page);
    }

    /// Pages of the whole ring.
    #[must_use]
    pub fn ring_pages(&self) -> u64 {
        self.shared.options.ring.pages
    }

    /// Pages of the ring that are needed at a start.
    #[must_use]
    pub fn used_pages(&self) -> u64 {
        self.shared.state().used_pages
    }

    /// Whether even a short record can be appended before some of the ring is released.
    #[must_use]
    pub fn has_room(&self) -> bool {
        self.shared.state().has_room(1, self.shared.options.ring)
    }
}

/// Serves a line. Dropped before its end, or before its beginning, it leaves the line to who joins
/// it next; who still waits joins again.
struct Server {
    shared: Arc<Shared>,
    goal: Goal,
    is_over: bool,
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.is_over {
            self.shared.state().line(self.goal).leave();
        }
    }
}

impl Server {
    /// Serves the line until nobody waits in it.
    async fn serve(mut self) {
        let (shared, goal) = (Arc::clone(&self.shared), self.goal);
        loop {
            let newest = shared.state().line(goal).newest();
            let Some(newest) = newest else { break };
            let reached = match goal {
                Goal::Written => shared.write(newest).await,
                Goal::Durable => shared.sync(newest).await,
            };
            let (served, outcome) = {
                let mut state = shared.state();
                match reached.and_then(|()| state.end(goal)) {
                    Ok(end) => (state.line(goal).take(end), Ok(())),
                    Err(error) => (state.line(goal).take(u64::MAX), Err(error)),
                }
            };
            for waiting in served {
                // Nobody waiting any more is no error.
                drop(waiting.send(outcome.clone()));
            }
        }
        self.is_over = true;
    }
}

impl Shared {
    /// Makes a record durable, and all that were appended while others were.
    async fn sync(&self, sequence: u64) -> Result<(), JournalError> {
        let newest = (self.state().appended_end() - 1).max(sequence);
        self.phase(Phase::Write, self.write_batches(newest)).await?;
        self.phase(Phase::Data, self.data_of(newest)).await?;
        let (written_end, carried_end) = {
            let state = self.state();
            (state.end(Goal::Written)?, state.carried_end)
        };
        let synced = self.phase(Phase::Sync, self.sync_and_write_ahead()).await;
        let mut state = self.state();
        if let Err(error) = synced {
            state.failed = true;
            return Err(error);
        }
        if let Some(meter) = self.meter.get() {
            meter.flushed(written_end.saturating_sub(state.durable_end));
        }
        state.durable_end = state.durable_end.max(written_end);
        state.announced_end = state.announced_end.max(carried_end);
        Ok(())
    }

    async fn phase<T>(&self, phase: Phase, work: impl Future<Output = T>) -> T {
        match self.meter.get() {
            Some(meter) => meter.timed(phase, work).await,
            None => work.await,
        }
    }

    /// A panic elsewhere leaves the state whole: every change of it is one step.
    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.failed |= self.options.disk.has_failed_sync();
        state
    }
}

impl State {
    /// Whether the ring takes a record of so many pages: as if every record took a batch of its
    /// own, and with what is skipped at the ring's end.
    fn has_room(&self, pages: u64, ring: Ring) -> bool {
        let needed = self.pending_pages + pages + 2 * pages_of_longest();
        self.used_pages + needed <= ring.pages
    }

    /// Every record below has become that.
    fn end(&self, goal: Goal) -> Result<u64, JournalError> {
        match goal {
            _ if self.failed => Err(JournalError::Failed),
            Goal::Written => Ok(self.head.sequence.min(self.data_end())),
            Goal::Durable => Ok(self.durable_end),
        }
    }

    /// The data of every record below is there.
    fn data_end(&self) -> u64 {
        self.besides.first().copied().unwrap_or(u64::MAX)
    }

    fn line(&mut self, goal: Goal) -> &mut Line {
        match goal {
            Goal::Written => &mut self.writing,
            Goal::Durable => &mut self.syncing,
        }
    }

    /// Every record below has been appended.
    fn appended_end(&self) -> u64 {
        self.head.sequence + self.pending.len() as u64
    }
}

fn pages_of(record_lens: impl IntoIterator<Item = usize>) -> u64 {
    (batch_len(record_lens) as u64).div_ceil(u64::from(PAGE_SIZE))
}

fn pages_of_longest() -> u64 {
    BATCH_LEN_MAX as u64 / u64::from(PAGE_SIZE)
}
