//! When checkpoints are written, and in which order.
//!
//! 1. Under the lock of the state: a note is appended (so that the ring behind the place holds a
//!    batch of this boot), the maps of all regions that records touched, the figures and the
//!    place where the journal goes on are put into the index, and its changes are set aside as
//!    those up to the note.
//! 2. The journal is synced up to the note: the index never holds what is not durable.
//! 3. The index writes its tree and its root.
//! 4. The ring before the place is free.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use millrace_types::ErrorKind;

use super::{EngineError, Shared, State, Volume, run};
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
    index::{IndexError, LostLeaf},
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
    /// target's place. Nothing may be changed any more when it is called; reads go on until the
    /// volume is dropped.
    ///
    /// # Errors
    /// As [`Volume::sync`]; the next start then recovers as after a kill.
    pub async fn close(&self) -> Result<(), EngineError> {
        self.end_reopening();
        self.slot.live_mut().end_upkeep();
        let shared = self.shared();
        run(async move {
            shared.end_inspection().await;
            shared.checkpoint().await?;
            shared.settle().await?;
            shared.commit(|_| Ok(Change::Stop)).await?;
            shared.sync().await?;
            if let Some(growth) = &shared.growth {
                growth.backing.unlock();
            }
            Ok(())
        })
        .await
    }
}

impl Shared {
    /// Waits while too much is waiting for a checkpoint; asks for one when it is time.
    pub(super) async fn await_room_for_records(&self) -> Result<(), EngineError> {
        let used = self.journal.used_pages() * RING_PARTS;
        let delta = self.index.delta_bytes();
        let ring = self.journal.ring_pages();
        if used > 2 * ring || delta > 2 * DELTA_BYTES {
            self.checkpoint().await?;
        } else if used > ring || delta > DELTA_BYTES {
            self.checkpoint_due.notify_one();
        }
        Ok(())
    }

    /// Writes a checkpoint, or waits for one that somebody else began after the call.
    pub(super) async fn checkpoint(&self) -> Result<(), EngineError> {
        let begun = self.index.statistics().generation;
        let _turn = self.checkpoint_turn.lock().await;
        if self.index.statistics().generation > begun {
            return Ok(());
        }
        self.write_checkpoint().await
    }

    async fn write_checkpoint(&self) -> Result<(), EngineError> {
        if self.index.is_uncertain() {
            return Err(IndexError::Uncertain.into());
        }
        self.grow_index_if_small().await?;
        let mut leaves = Leaves::AllSound;
        for _ in 0..GROWTHS_MAX {
            let Frozen { through, position } = self.freeze_with_maps().await?;
            if let Err(error) = self.journal.sync(through).await {
                return Err(self.failed(error).await);
            }
            match self.write_index(leaves).await {
                Ok(()) => {
                    self.journal.release(position);
                    tracing::debug!(target = %self.target, through, "checkpoint written");
                    self.release_quarantine().await?;
                    let _turn = self.map_turn.lock().await;
                    self.space.shrink(MAPS_MAX);
                    return Ok(());
                }
                Err(IndexError::Full) => self.grow_index().await?,
                Err(error) if self.may_go_round(&mut leaves, &error) => {}
                Err(error) => {
                    if self.index.is_uncertain() {
                        self.failure.notify_one();
                        tracing::error!(
                            target = %self.target, %error,
                            "a checkpoint has failed at its end; the target must be opened again"
                        );
                    }
                    return Err(error.into());
                }
            }
        }
        Err(EngineError::NoSpace)
    }

    /// Has the index write its tree; lists the leaves that it has gone round.
    pub(super) async fn write_index(&self, leaves: Leaves) -> Result<(), IndexError> {
        if leaves == Leaves::AllSound {
            return self.index.checkpoint().await;
        }
        for lost in self.index.checkpoint_round(may_lose).await? {
            let LostLeaf { page, first, changes, reason } = lost;
            tracing::error!(
                target = %self.target, page, changes, reason,
                "a leaf of the index was damaged before its changes could be stored: they are lost \
                 with it, and reading what it held is an error from now on"
            );
            if let Ok(TableKey::Section(section)) = TableKey::decode(first.as_slice()) {
                self.inspection.suspect(section);
            }
        }
        Ok(())
    }

    /// Whether a checkpoint that failed may be tried again round leaves that cannot be read. What
    /// was acknowledged goes with them, so the loss is counted before, in the same checkpoint.
    pub(super) fn may_go_round(&self, leaves: &mut Leaves, error: &IndexError) -> bool {
        let is_damage =
            matches!(error, IndexError::Damaged { .. } | IndexError::Disk(DiskError::Io { .. }));
        if !is_damage || self.index.is_uncertain() || *leaves == Leaves::Some {
            return false;
        }
        *leaves = Leaves::Some;
        let loss_count = self.loss_count.fetch_add(1, Ordering::AcqRel) + 1;
        tracing::error!(target = %self.target, %error, loss_count, "a checkpoint meets damage");
        true
    }

    async fn freeze_with_maps(&self) -> Result<Frozen, EngineError> {
        loop {
            match self.freeze() {
                Ok(Ok(frozen)) => return Ok(frozen),
                Ok(Err(region)) => self.bring_map(region).await?,
                Err(error) => return Err(self.failed(error).await),
            }
        }
    }

    /// Sets the changes so far aside, with everything that follows from them; returns the newest
    /// record contained and where the journal goes on, or the region whose map must be brought
    /// first.
    fn freeze(&self) -> Result<Result<Frozen, u32>, JournalError> {
        let state = self.state();
        let entries = match self.space.checkpoint() {
            Ok(entries) => entries,
            Err(Refusal::Needs(region)) => return Ok(Err(region)),
            Err(Refusal::Full) => unreachable!("a checkpoint needs no space here"),
        };
        let note = Change::Fact(self.losses());
        let through = match self.journal.append(note.encode()) {
            Ok(through) => through,
            // The ring holds something else to tell the boot by, or the next start counts a loss.
            Err(JournalError::Full) => self.journal.next_sequence() - 1,
            Err(error) => return Err(error),
        };
        let position = self.journal.position();
        self.put_state(&state, entries, position);
        assert!(self.index.freeze(through), "one checkpoint at a time");
        Ok(Ok(Frozen { through, position }))
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
        let facts =
            [self.losses(), Fact::HighestInode(state.inode_max), Fact::JournalPosition(position)];
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

/// Which leaves a checkpoint needs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Leaves {
    /// Each that a change belongs to.
    AllSound,
    /// Only those with entries that the engine cannot do without.
    Some,
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
