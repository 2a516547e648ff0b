//! Making things durable: one thread for each target, one barrier for all who wait.
//!
//! A barrier notes the newest journal record, syncs the data file (every record's data was written
//! before the record), appends a commit that names the record, and syncs the journal. Only then are
//! the waiters answered and pages freed.
//!
//! When the journal has grown past its bound for a checkpoint, the index as of the noted record is
//! written as a checkpoint after the barrier, while new records go to a new segment; then the older
//! files go.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError, atomic::Ordering},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use super::{
    EngineError, Shared, Waiter,
    index::Index,
    journal::{Purpose, checkpoint_path, numbered_files},
    journal_dir,
};
use crate::{
    disk::Directory,
    format::{
        checkpoint::{CheckpointHeader, put_chunk, put_end, put_mark},
        record::Record,
    },
};

/// A checkpoint is written in pieces of this size.
const PIECE_BYTES: usize = 1 << 20;

/// What a failed sync adds to the loss count. A loss of power adds 1, and may take the news of
/// failed syncs along: the count that it leaves must be none that clients have seen before.
const FAILED_SYNC: u64 = 1 << 32;

/// The thread and those who wait for it.
#[derive(Debug)]
pub(super) struct Barrier {
    queue: Arc<Queue>,
    /// `None` once it has been told to end.
    thread: Mutex<Option<JoinHandle<()>>>,
}

#[derive(Debug, Default)]
struct Queue {
    waiting: Mutex<Waiting>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct Waiting {
    /// Bounded by the requests that the server admits.
    waiters: Vec<Waiter>,
    end: Option<End>,
    /// The thread takes nothing more.
    ended: bool,
}

/// How the thread shall end.
#[derive(Debug)]
enum End {
    /// At once, as a kill would.
    Abandon,
    /// After a last barrier, a checkpoint and the stop record.
    Close(Waiter),
}

impl Barrier {
    pub(super) fn start(shared: Arc<Shared>, interval: Duration) -> io::Result<Self> {
        let queue = Arc::new(Queue::default());
        let name = format!("barrier-{}", shared.target);
        let thread_queue = Arc::clone(&queue);
        let thread = thread::Builder::new()
            .name(name)
            .spawn(move || serve(&shared, &thread_queue, interval))?;
        Ok(Self { queue, thread: Mutex::new(Some(thread)) })
    }

    pub(super) async fn wait(&self) -> Result<u64, EngineError> {
        let (waiter, answer) = oneshot::channel();
        if !self.queue.change(|waiting| waiting.waiters.push(waiter)) {
            return Err(EngineError::Stopped);
        }
        answer.await.unwrap_or(Err(EngineError::Stopped))
    }

    pub(super) async fn close(&self) -> Result<(), EngineError> {
        let (waiter, answer) = oneshot::channel();
        if !self.queue.change(|waiting| waiting.end = Some(End::Close(waiter))) {
            return Err(EngineError::Stopped);
        }
        answer.await.unwrap_or(Err(EngineError::Stopped)).map(|_| ())
    }
}

impl Drop for Barrier {
    fn drop(&mut self) {
        let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(thread) = thread {
            self.queue.change(|waiting| waiting.end = Some(End::Abandon));
            if thread.join().is_err() {
                tracing::error!("the barrier thread ended with a panic");
            }
        }
    }
}

impl Queue {
    /// Changes what is waited for; returns false when the thread has ended.
    fn change(&self, change: impl FnOnce(&mut Waiting)) -> bool {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        if waiting.ended {
            return false;
        }
        change(&mut waiting);
        drop(waiting);
        self.wake.notify_one();
        true
    }

    /// Waits until somebody wants something, at most until `deadline`.
    fn take(&self, deadline: Instant) -> Waiting {
        let mut waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner);
        while waiting.waiters.is_empty() && waiting.end.is_none() {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            let woken = self.wake.wait_timeout(waiting, left);
            waiting = woken.unwrap_or_else(PoisonError::into_inner).0;
        }
        let ended = waiting.end.is_some();
        std::mem::replace(&mut *waiting, Waiting { ended, ..Waiting::default() })
    }
}

fn serve(shared: &Arc<Shared>, queue: &Queue, interval: Duration) {
    let mut deadline = Instant::now() + interval;
    loop {
        let Waiting { waiters, end, .. } = queue.take(deadline);
        match end {
            Some(End::Abandon) => return,
            Some(End::Close(waiter)) => {
                answer(waiters, &run(shared, false));
                answer(vec![waiter], &close(shared));
                return;
            }
            None => answer(waiters, &run(shared, false)),
        }
        deadline = Instant::now() + interval;
    }
}

fn answer(waiters: Vec<Waiter>, outcome: &Result<u64, EngineError>) {
    for waiter in waiters {
        // Nobody waiting any more is no error.
        drop(waiter.send(outcome.clone()));
    }
}

/// One barrier; `checkpoint` asks for a checkpoint whatever the journal's size.
///
/// Called by the barrier's thread, and once while the target is being opened.
pub(super) fn run(shared: &Shared, checkpoint: bool) -> Result<u64, EngineError> {
    let _turn = shared.barrier_turn.lock().unwrap_or_else(PoisonError::into_inner);
    let outcome = try_run(shared, checkpoint);
    if let Err(error) = &outcome {
        // The kernel reports a failed write-back once and then forgets the pages: from here on
        // nobody can say what of the unsynced writes is on the disk.
        let count = shared.loss_count.fetch_add(FAILED_SYNC, Ordering::AcqRel) + FAILED_SYNC;
        tracing::error!(target = %shared.target, %error, loss_count = count, "barrier failed");
        let mut state = shared.state();
        if let Err(error) = state.commit(&[Record::Loss(count)], Purpose::Free) {
            tracing::error!(target = %shared.target, %error, "the loss cannot be recorded");
        }
    }
    outcome
}

fn try_run(shared: &Shared, checkpoint: bool) -> Result<u64, EngineError> {
    let loss_count = shared.loss_count.load(Ordering::Acquire);
    let (through, snapshot) = {
        let mut state = shared.state();
        if !state.dirty && !checkpoint {
            state.release_quarantine();
            return Ok(loss_count);
        }
        state.dirty = false;
        let through = state.journal.sequence();
        let due = checkpoint || state.journal.replay_bytes() > shared.sizes.checkpoint_bytes;
        let snapshot = match due.then(|| state.journal.rotate()) {
            Some(Ok(())) => Some(Snapshot {
                index: state.index.clone(),
                covered_bytes: state.journal.replay_bytes(),
                first_kept: Some(state.journal.segment_path().to_owned()),
            }),
            Some(Err(error)) => {
                tracing::warn!(target = %shared.target, %error, "checkpoint put off");
                None
            }
            None => None,
        };
        (through, snapshot)
    };
    let synced = make_durable(shared, through);
    let mut state = shared.state();
    if let Err(error) = synced {
        state.dirty = true;
        return Err(error);
    }
    state.committed = through;
    state.release_quarantine();
    drop(state);
    if let Some(snapshot) = snapshot {
        // A checkpoint that fails costs only a longer start.
        let header = CheckpointHeader {
            cluster: shared.cluster,
            target: shared.target,
            sequence: through,
            loss_count: shared.loss_count.load(Ordering::Acquire),
        };
        match write_checkpoint(&*shared.directory, &journal_dir(&shared.dir), &header, &snapshot) {
            Ok(()) => shared.state().journal.checkpointed(snapshot.covered_bytes),
            Err(error) if checkpoint => return Err(EngineError::journal(error)),
            Err(error) => tracing::warn!(target = %shared.target, %error, "checkpoint failed"),
        }
    }
    Ok(loss_count)
}

fn make_durable(shared: &Shared, through: u64) -> Result<(), EngineError> {
    shared.disk.sync_and_wait()?;
    let unsynced = {
        let mut state = shared.state();
        state.journal.append(&[Record::Commit(through)], Purpose::Free)?;
        state.journal.end_sector();
        state.journal.unsynced()
    };
    let synced = unsynced.sync();
    if synced.is_err() {
        shared.state().journal.still_unsynced(unsynced);
    }
    synced.map_err(EngineError::journal)
}

/// The index as of a barrier.
pub(super) struct Snapshot {
    pub(super) index: Index,
    pub(super) covered_bytes: u64,
    /// The first segment that the checkpoint does not cover; `None` when it covers all.
    pub(super) first_kept: Option<PathBuf>,
}

/// Writes a checkpoint, and then removes what it makes superfluous. Everything in it is durable.
pub(super) fn write_checkpoint(
    directory: &dyn Directory,
    dir: &Path,
    header: &CheckpointHeader,
    snapshot: &Snapshot,
) -> io::Result<()> {
    let temporary = dir.join("checkpoint.new");
    let file = directory.create(&temporary)?;
    let mut written = 0;
    let mut entries = 0_u64;
    let mut bytes = header.encode();
    for record in snapshot.index.chunks() {
        put_chunk(record, &mut bytes);
        entries += 1;
        if bytes.len() >= PIECE_BYTES {
            file.write_at(written, &bytes)?;
            written += bytes.len() as u64;
            bytes.clear();
        }
    }
    for mark in snapshot.index.marks() {
        put_mark(mark, &mut bytes);
        entries += 1;
    }
    put_end(entries, &mut bytes);
    file.write_at(written, &bytes)?;
    file.sync()?;
    directory.rename(&temporary, &checkpoint_path(dir, header.sequence))?;
    directory.sync_names(dir)?;
    remove_covered(directory, dir, snapshot, header.sequence)?;
    let (target, through) = (header.target, header.sequence);
    tracing::debug!(%target, entries, through, "checkpoint written");
    Ok(())
}

/// Removes the segments and checkpoints that the new checkpoint makes superfluous.
fn remove_covered(
    directory: &dyn Directory,
    dir: &Path,
    snapshot: &Snapshot,
    through: u64,
) -> io::Result<()> {
    for (_, path) in numbered_files(directory, dir, "log")? {
        if snapshot.first_kept.as_ref().is_none_or(|kept| path < *kept) {
            directory.remove(&path)?;
        }
    }
    for (number, path) in numbered_files(directory, dir, "checkpoint")? {
        if number < through {
            directory.remove(&path)?;
        }
    }
    Ok(())
}

/// The last barrier, a checkpoint if the journal is worth one, and the stop record.
fn close(shared: &Shared) -> Result<u64, EngineError> {
    let worth = shared.state().journal.replay_bytes() > shared.sizes.checkpoint_bytes / 8;
    let loss_count = run(shared, worth)?;
    let unsynced = {
        let mut state = shared.state();
        state.journal.append(&[Record::Stop], Purpose::Free)?;
        state.journal.unsynced()
    };
    unsynced.sync().map_err(EngineError::journal)?;
    Ok(loss_count)
}
