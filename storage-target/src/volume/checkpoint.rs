//! When checkpoints are written, and in which order.
//!
//! 1. Under the lock of the state: a note is appended (so that the ring behind the place holds a
//!    batch of this boot), the maps of all regions that records touched, the figures and the
//!    place where the journal goes on are put into the index, and its changes are set aside as
//!    those up to the note.
//! 2. The journal is synced up to the note: the index never holds what is not durable.
//! 3. The index writes its tree and its root.
//! 4. The ring before the place is free.
//!
//! A leaf that is damaged, and that changes belong to, is gone round at once: it stays damaged. One
//! that the disk fails to read may come back, so the checkpoint is tried again after pauses that
//! grow ([`RETRIES`]), and the leaf is gone round only when none of the attempts has read it for
//! minutes ([`PATIENCE`]). When the ring or the delta is full, writers wait for less long
//! ([`PATIENCE_PRESSED`]). An error of a write or sync is no damage: nothing is lost with it that
//! the journal does not have, unless the sync failed, and then the journal has failed as well.

use std::{
    collections::BTreeSet,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_runtime::Clock;
use millrace_types::ErrorKind;

use super::{
    EngineError, Shared, State, Volume,
    reopen::{PAUSES, Pauses},
    run,
};
use crate::{
    disk::DiskError,
    format::{
        batch::Position,
        change::Change,
        fact::Fact,
        key::Key,
        root::Segment,
        table::{Entry, TableKey},
    },
    index::{IndexError, LostLeaf, Obstacle},
    journal::JournalError,
    space::{Purpose, Refusal},
};

/// Changes in memory at which a checkpoint is due; at twice that, writers wait.
const DELTA_BYTES: usize = 32 * 1024 * 1024;

/// The ring is this many times as long as what may fill before a checkpoint is due. Writers wait
/// at twice that, so that an older root finds its part of the journal complete.
const RING_PARTS: u64 = 4;

/// How often the index gets more room during one checkpoint; each time it grows by an eighth.
const GROWTHS_MAX: usize = 16;

/// Pages that the index grows by at least, where the disk is large enough: 4 MiB.
pub(super) const INDEX_STEP: u64 = 1024;

/// Maps of regions that may stay in memory without need: 4 MiB.
const MAPS_MAX: usize = 4096;

/// For how long a disk may fail to read a leaf before a checkpoint goes round it, and what it holds
/// is lost: paths fail over and controllers are reset within a minute or two.
pub(super) const PATIENCE: Duration = Duration::from_secs(5 * 60);

/// The same when nothing can be changed before there is a checkpoint. Clients wait 30 s for the
/// answer to a write.
pub(super) const PATIENCE_PRESSED: Duration = Duration::from_secs(20);

/// The pauses after which a checkpoint that has failed is tried again, while writers go on.
pub(super) const RETRIES: Pauses = PAUSES;

/// The same while writers wait for it.
const RETRIES_PRESSED: Pauses =
    Pauses { min: Duration::from_millis(100), max: Duration::from_secs(2) };

impl Volume {
    /// Writes a checkpoint now, or waits for one that somebody else began after the call. Changes
    /// go on meanwhile. The engine does the same when it is due.
    ///
    /// # Errors
    /// Failures of disk, index and journal.
    pub async fn checkpoint(&self) -> Result<(), EngineError> {
        let shared = self.shared();
        run(async move { shared.checkpoint().await }).await
    }

    /// Syncs, writes a checkpoint and the stop record, ends the upkeep, and lets others have the
    /// target's place. What is still to be changed then, such as by fills that nobody waits for, is
    /// refused with [`EngineError::Stopped`] or the like; reads go on until the volume is dropped.
    ///
    /// # Errors
    /// As [`Volume::sync`]; the next start then recovers as after a kill.
    pub async fn close(&self) -> Result<(), EngineError> {
        self.end_reopening();
        self.slot.live_mut().end_upkeep();
        let shared = self.shared();
        run(async move {
            shared.end_inspection().await;
            if let Err(error) = shared.checkpoint().await {
                if !shared.may_pass(&error) {
                    return Err(error);
                }
                // The next start takes it from the journal.
                tracing::warn!(target = %shared.target, %error, "it ends without a checkpoint");
            }
            shared.settle().await?;
            let stop = shared.commit(|_| Ok(Change::Stop)).await?;
            // No more than that it is durable: whatever else fails now, the place is let go of.
            let ended = match shared.journal.sync(stop.sequence).await {
                Ok(()) => Ok(()),
                Err(error) => Err(shared.failed(error).await),
            };
            // What was begun and given up comes to its end before the next one begins.
            let _turn = shared.growth_turn.lock().await;
            shared.disk.end_changes().await;
            if let Some(growth) = &shared.growth {
                growth.backing.unlock();
            }
            ended
        })
        .await
    }
}

impl Shared {
    /// Waits while too much is waiting for a checkpoint; asks for one when it is time.
    pub(super) async fn await_room_for_records(&self) -> Result<(), EngineError> {
        if self.is_filled_beyond(2) {
            self.checkpoint().await?;
        } else if self.is_filled_beyond(1) {
            self.checkpoint_due.notify_one();
        }
        Ok(())
    }

    /// Whether ring or delta hold more than so many times what makes a checkpoint due.
    fn is_filled_beyond(&self, times: usize) -> bool {
        let used = self.journal.used_pages() * RING_PARTS;
        used > times as u64 * self.journal.ring_pages()
            || self.index.delta_bytes() > times * DELTA_BYTES
    }

    /// Writes a checkpoint, or waits for one that somebody else began after the call. When nothing
    /// can be changed before there is one, it is tried again as long as the disk fails and patience
    /// lasts.
    pub(super) async fn checkpoint(&self) -> Result<(), EngineError> {
        let begun = self.index.statistics().generation;
        // With the time that it waits for its turn: many writers do not wait one after the other.
        let mut attempts = Attempts::begin(&self.clock, PATIENCE_PRESSED);
        let _turn = self.checkpoint_turn.lock().await;
        if self.index.statistics().generation > begun {
            return Ok(());
        }
        loop {
            let is_pressed = self.is_filled_beyond(2) || !self.journal.has_room();
            let patience = if is_pressed { PATIENCE_PRESSED } else { PATIENCE };
            let Err(error) = self.write_checkpoint(patience).await else { return Ok(()) };
            if !is_pressed || !self.may_pass(&error) || !attempts.again().await {
                return Err(error);
            }
            tracing::warn!(
                target = %self.target, %error,
                "a checkpoint that writers wait for has failed; it is tried again"
            );
        }
    }

    pub(super) async fn write_checkpoint(&self, patience: Duration) -> Result<(), EngineError> {
        if self.index.is_uncertain() {
            return Err(IndexError::Uncertain.into());
        }
        self.grow_index_if_small().await?;
        let mut given_up = BTreeSet::new();
        for _ in 0..GROWTHS_MAX {
            let Frozen { through, position } = self.freeze_with_maps().await?;
            if let Err(error) = self.journal.sync(through).await {
                return Err(self.failed(error).await);
            }
            match self.write_index(&given_up).await {
                Ok(()) => {
                    self.journal.release(position);
                    tracing::debug!(target = %self.target, through, "checkpoint written");
                    self.release_quarantine().await?;
                    let _turn = self.map_turn.lock().await;
                    self.space.shrink(MAPS_MAX);
                    return Ok(());
                }
                Err(IndexError::Full) => self.grow_index().await?,
                Err(error) => match self.leaves_to_give_up(&given_up, &error, patience).await {
                    Some(leaves) => given_up = leaves,
                    None => return Err(self.checkpoint_failed(error).await),
                },
            }
        }
        Err(EngineError::NoSpace)
    }

    /// What becomes of the engine when its index could not write a checkpoint.
    async fn checkpoint_failed(&self, error: IndexError) -> EngineError {
        if self.index.is_uncertain() {
            self.failure.notify_one();
            tracing::error!(
                target = %self.target, %error,
                "a checkpoint has failed at its end; the target must be opened again"
            );
        }
        match error {
            // What the sync should have covered beside the index is not durable, and never will be.
            IndexError::Disk(error) if self.disk.has_failed_sync() => {
                self.failed(error.into()).await
            }
            error => error.into(),
        }
    }

    /// Whether what has failed may work when it is tried again: the disk gave an error, and nothing
    /// depends on its having been none.
    pub(super) fn may_pass(&self, error: &EngineError) -> bool {
        let is_of_disk = match error {
            EngineError::Disk(error) => matches!(**error, DiskError::Io { .. }),
            EngineError::Index(error) => matches!(**error, IndexError::Disk(DiskError::Io { .. })),
            _ => false,
        };
        is_of_disk && !self.has_failed() && !self.disk.has_failed_sync()
    }

    /// Has the index write its tree, round leaves that were given up if need be; lists those.
    pub(super) async fn write_index(&self, given_up: &BTreeSet<u64>) -> Result<(), IndexError> {
        for lost in self.index.checkpoint_round(given_up, may_lose).await? {
            let LostLeaf { page, first, changes, reason } = lost;
            tracing::error!(
                target = %self.target, page, changes, reason,
                "a leaf of the index could not be read before its changes could be stored: they \
                 are lost with it, and reading what it held is an error from now on"
            );
            if let Ok(TableKey::Section(section)) = TableKey::decode(first.as_slice()) {
                self.inspection.suspect(section);
            }
        }
        Ok(())
    }

    /// The leaves round which a checkpoint that failed is to be tried again; `None`: not now. It is
    /// done once, when all that is in its way is damaged, or has not been read for as long as
    /// patience lasts. What was acknowledged goes with them, so the loss is counted before, in the
    /// same checkpoint.
    pub(super) async fn leaves_to_give_up(
        &self,
        given_up: &BTreeSet<u64>,
        error: &IndexError,
        patience: Duration,
    ) -> Option<BTreeSet<u64>> {
        if !error.is_unreadable() || self.index.is_uncertain() || !given_up.is_empty() {
            return None;
        }
        // What is wrong with this one is wrong with the checkpoint too.
        let obstacles = self.index.obstacles(may_lose, self.clock.now()).await.ok()?;
        let is_lost = |leaf: &Obstacle| {
            leaf.may_be_lost && leaf.unread_for.is_none_or(|unread| unread >= patience)
        };
        // The disk may read all of them by now.
        if obstacles.is_empty() || !obstacles.iter().all(is_lost) {
            return None;
        }
        let loss_count = self.loss_count.fetch_add(1, Ordering::AcqRel) + 1;
        let leaves = obstacles.len();
        tracing::error!(
            target = %self.target, %error, leaves, loss_count,
            "a checkpoint meets leaves that cannot be read, and goes round them"
        );
        Some(obstacles.iter().map(|leaf| leaf.page).collect())
    }

    async fn freeze_with_maps(&self) -> Result<Frozen, EngineError> {
        loop {
            match self.freeze() {
                Ok(frozen) => return Ok(frozen),
                Err(NotFrozen::Needs(region)) => self.bring_map(region).await?,
                Err(NotFrozen::Closed) => return Err(EngineError::Stopped),
                Err(NotFrozen::Journal(error)) => return Err(self.failed(error).await),
            }
        }
    }

    /// Sets the changes so far aside, with everything that follows from them; returns the newest
    /// record contained and where the journal goes on.
    fn freeze(&self) -> Result<Frozen, NotFrozen> {
        let state = self.state();
        if state.is_closed {
            return Err(NotFrozen::Closed);
        }
        let entries = match self.space.checkpoint() {
            Ok(entries) => entries,
            Err(Refusal::Needs(region)) => return Err(NotFrozen::Needs(region)),
            Err(Refusal::Full) => unreachable!("a checkpoint needs no space here"),
        };
        let note = Change::Fact(self.losses());
        let through = match self.journal.append(note.encode()) {
            Ok(through) => through,
            // The ring holds something else to tell the boot by, or the next start counts a loss.
            Err(JournalError::Full) => self.journal.next_sequence() - 1,
            Err(error) => return Err(NotFrozen::Journal(error)),
        };
        let position = self.journal.position();
        self.put_state(&state, entries, position);
        assert!(self.index.freeze(through), "one checkpoint at a time");
        Ok(Frozen { through, position })
    }

    /// Puts into the index what follows from the records so far. The caller has the lock.
    pub(super) fn put_state(
        &self,
        state: &State,
        space: Vec<(Key, Option<Bytes>)>,
        position: Position,
    ) {
        for (key, value) in space {
            match value {
                Some(value) => self.index.put(key, value),
                None => self.index.remove(key),
            }
        }
        let facts = [
            self.losses(),
            Fact::LossesSeen(self.superblock.losses),
            Fact::HighestInode(state.inode_max),
            Fact::JournalPosition(position),
        ];
        for fact in facts {
            let (key, value) = Entry::Fact(fact).encode();
            self.index.put(key, value);
        }
    }

    async fn grow_index_if_small(&self) -> Result<(), EngineError> {
        let figures = self.index.statistics();
        let least = figures.delta_bytes as u64 / 4096 + figures.nodes / 8 + 32;
        if figures.free_nodes >= least {
            return Ok(());
        }
        match self.grow_index().await {
            // What there is may still do: the checkpoint asks again if it does not.
            Err(error) if error.kind() == ErrorKind::NoSpace => Ok(()),
            other => other,
        }
    }

    /// Gives the index more pages: in few places, because its root record can only name so many.
    ///
    /// # Errors
    /// [`EngineError::NoSpace`]; [`IndexError::Scattered`], and nothing is taken then.
    pub(super) async fn grow_index(&self) -> Result<(), EngineError> {
        let least = INDEX_STEP.min(self.space.totals().capacity / 64);
        let step = least.max(self.index.statistics().nodes / 8);
        // As much as is free; if that is nothing, as much as a region more has.
        if self.space.totals().free < step {
            self.grow(step, Purpose::Index).await?;
        }
        let pages = step.min(self.space.totals().free);
        if pages == 0 {
            return Err(EngineError::NoSpace);
        }
        let left = self.index.segments_left();
        if left == 0 {
            return Err(IndexError::Scattered.into());
        }
        let mut reservation = self.reserve_for_index(pages).await?;
        // Never all that are left at once: where the space is in pieces, longer ones come later.
        reservation.keep_longest(left.div_ceil(2));
        for extent in reservation.into_index() {
            let pages = u32::try_from(extent.pages).expect("a part of the index");
            let segment = Segment { first: extent.first, pages };
            self.index.extend(segment).expect("no more than are left");
        }
        Ok(())
    }
}

/// Attempts of something that everybody waits for and that a failing disk is in the way of.
#[derive(Debug)]
pub(super) struct Attempts {
    clock: Clock,
    deadline: Instant,
    pause: Duration,
}

impl Attempts {
    /// The time begins now. There is an attempt after the end of patience with what the first one
    /// has met, and then no more.
    pub(super) fn begin(clock: &Clock, patience: Duration) -> Self {
        let deadline = clock.now() + patience + RETRIES_PRESSED.max;
        Self { clock: clock.clone(), deadline, pause: RETRIES_PRESSED.min }
    }

    /// Waits for the next one; false when there has been the last.
    pub(super) async fn again(&mut self) -> bool {
        if self.clock.now() >= self.deadline {
            return false;
        }
        self.clock.sleep(self.pause).await;
        self.pause = RETRIES_PRESSED.longer(self.pause);
        true
    }
}

/// Whether the change of a key may be lost with its leaf: what is said of a chunk or an inode,
/// which is an error to who asks for it, but not what is said of the space or the whole target.
fn may_lose(key: &Key) -> bool {
    matches!(
        TableKey::decode(key.as_slice()),
        Ok(TableKey::Section(_) | TableKey::Mark(_) | TableKey::Finding(_))
    )
}

/// What has been set aside for a checkpoint.
#[derive(Clone, Copy, Debug)]
struct Frozen {
    through: u64,
    position: Position,
}

/// Why nothing has been set aside.
#[derive(Debug)]
enum NotFrozen {
    /// The map of this region must be brought first.
    Needs(u32),
    /// The stop record must stay the last.
    Closed,
    /// Its note could not be appended.
    Journal(JournalError),
}
