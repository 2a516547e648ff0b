//! Appending a change to the journal and applying it, in one step; and waiting for it.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use millrace_protocol::storage::ChunkVersion;
use millrace_types::{ChunkKey, InodeId};

use super::{EngineError, Shared, State, Volume, open::write_superblock};
use crate::{
    disk::{BufferPool, DiskError},
    format::{
        change::{Change, Effects, effects},
        extent::page_count,
        fact::Fact,
        mark::Mark,
        section::{Section, SectionKey},
        superblock::COPIES,
        table::TableKey,
    },
    index::IndexError,
    journal::{DataUnderWay, JournalError},
    space::Refusal,
};

/// A change that has been appended and applied.
#[derive(Debug)]
pub(super) struct Committed {
    /// Its record's.
    pub(super) sequence: u64,
    /// Pages that it gives up.
    pub(super) given_up: u64,
    /// Its data, if that is still being written.
    pub(super) data: Option<DataUnderWay>,
}

/// How often a change waits for a checkpoint to make room in the ring. One suffices, unless others
/// fill the ring at the same time.
const ATTEMPTS_MAX: usize = 64;

impl Volume {
    /// Makes everything acknowledged so far durable; returns the loss count. Callers that wait at
    /// the same time share one sync. May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::Disk`] or [`EngineError::Journal`]: what was unsynced may be gone, and the
    /// loss count has changed.
    pub async fn sync(&self) -> Result<u64, EngineError> {
        self.shared().sync().await
    }

    /// Makes a version durable that a change of this target has made; at once if it is. May be
    /// dropped at its await.
    ///
    /// # Errors
    /// As [`Self::sync`].
    pub async fn sync_version(&self, version: ChunkVersion) -> Result<(), EngineError> {
        // The counter is the number of the record that made it.
        let shared = self.shared();
        let made = version.counter.min(shared.journal.next_sequence() - 1);
        shared.durable(made).await
    }
}

impl Shared {
    /// Appends a change and applies it. `make` makes it for the sequence that it will have; it is
    /// called under the lock of the state, and again when the ring was full meanwhile.
    ///
    /// # Errors
    /// Those of `make`, failures of journal and index, and [`EngineError::Stopped`] behind the stop
    /// record; nothing is then changed.
    pub(super) async fn commit(
        &self,
        mut make: impl FnMut(u64) -> Result<Change, EngineError> + Send,
    ) -> Result<Committed, EngineError> {
        for _ in 0..ATTEMPTS_MAX {
            match self.try_commit(&mut make)? {
                Ok(committed) => return Ok(committed),
                Err(JournalError::Full) => self.checkpoint().await?,
                Err(error) => return Err(self.failed(error).await),
            }
        }
        Err(JournalError::Full.into())
    }

    /// The outer error is that of `make`, or says that there are no more changes.
    fn try_commit(
        &self,
        make: &mut (impl FnMut(u64) -> Result<Change, EngineError> + Send),
    ) -> Result<Result<Committed, JournalError>, EngineError> {
        if self.index.is_uncertain() {
            return Err(IndexError::Uncertain.into());
        }
        let mut state = self.state();
        if state.is_closed {
            return Err(EngineError::Stopped);
        }
        // Whoever appends holds the state's lock.
        let sequence = self.journal.next_sequence();
        let change = make(sequence)?;
        let effects = effects(&change);
        let record = change.encode_with(&effects);
        let appended = match change.is_beside() {
            true => self.journal.append_beside(record).map(|(at, data)| (at, Some(data))),
            false => self.journal.append(record).map(|at| (at, None)),
        };
        match appended {
            Ok((appended, data)) => {
                assert_eq!(appended, sequence, "records are appended under the state's lock");
                let given_up = page_count(&effects.given_up);
                self.apply(&mut state, sequence, effects);
                self.follow(&mut state, &change);
                Ok(Ok(Committed { sequence, given_up, data }))
            }
            Err(error) => Ok(Err(error)),
        }
    }

    /// What a change does to index, space and figures.
    pub(super) fn apply(&self, state: &mut State, sequence: u64, effects: Effects) {
        self.space.commit(sequence, &effects);
        for (key, value) in effects.entries {
            match value {
                Some(value) => self.index.put(key, value),
                None => self.index.remove(key),
            }
        }
        state.inode_max = state.inode_max.max(effects.inode.unwrap_or_default());
    }

    /// Waits until the data of a record, and of all before it, can be read.
    ///
    /// # Errors
    /// [`EngineError::Journal`]: it could not be written, and never will be.
    pub(super) async fn data_of(&self, sequence: u64) -> Result<(), EngineError> {
        match self.journal.data_of(sequence).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// Waits until a record is on the device: a kill cannot undo it any more.
    pub(super) async fn written(&self, sequence: u64) -> Result<(), EngineError> {
        match self.journal.write(sequence).await {
            Ok(()) => Ok(()),
            Err(error) => Err(self.failed(error).await),
        }
    }

    pub(super) async fn sync(&self) -> Result<u64, EngineError> {
        self.durable(self.journal.next_sequence() - 1).await?;
        Ok(self.loss_count.load(Ordering::Acquire))
    }

    /// Waits until a record is durable: a loss of power cannot undo it any more.
    pub(super) async fn durable(&self, sequence: u64) -> Result<(), EngineError> {
        if self.journal.durable_end() <= sequence
            && let Err(error) = self.journal.sync(sequence).await
        {
            return Err(self.failed(error).await);
        }
        self.release_quarantine().await
    }

    /// Syncs unless everything is durable.
    pub(super) async fn sync_if_needed(&self) -> Result<(), EngineError> {
        match self.journal.next_sequence() > self.journal.durable_end() {
            true => self.sync().await.map(drop),
            false => Ok(()),
        }
    }

    /// Makes everything durable and says so in the journal, so that every page in quarantine is
    /// free that no reader holds.
    pub(super) async fn settle(&self) -> Result<(), EngineError> {
        self.sync().await?;
        self.commit(|_| Ok(Change::Fact(self.losses()))).await?;
        self.sync().await?;
        Ok(())
    }

    /// Frees what no later start looks at and no reader holds.
    pub(super) async fn release_quarantine(&self) -> Result<(), EngineError> {
        loop {
            let (end, outcome) = {
                let state = self.state();
                let announced = self.journal.announced_end();
                let oldest = state.readers.keys().next().map_or(u64::MAX, |oldest| oldest + 1);
                let end = announced.min(oldest);
                // Of those who share a sync the first has done it.
                if self.released_end.load(Ordering::Acquire) >= end {
                    return Ok(());
                }
                (end, self.space.release(end))
            };
            match outcome {
                Ok(_) => {
                    self.released_end.fetch_max(end, Ordering::AcqRel);
                    return Ok(());
                }
                Err(Refusal::Needs(region)) => self.bring_map(region).await?,
                Err(Refusal::Full) => unreachable!("freeing needs no space"),
            }
        }
    }

    /// The losses that are not counted in the superblock.
    pub(super) fn losses(&self) -> Fact {
        let in_superblock = self.superblock.losses;
        Fact::LossCount(self.loss_count.load(Ordering::Acquire).saturating_sub(in_superblock))
    }

    /// Notes that the journal takes no more: whatever was not durable may be gone after the next
    /// start, so clients must see another loss count, then as now. The journal cannot say so any
    /// more; the superblocks do, as far as the disk still writes.
    pub(super) async fn failed(&self, error: JournalError) -> EngineError {
        if !self.lost.swap(true, Ordering::AcqRel) {
            self.failure.notify_one();
            let loss_count = self.loss_count.fetch_add(1, Ordering::AcqRel) + 1;
            tracing::error!(target = %self.target, %error, loss_count, "the journal has failed");
            if let Err(error) = self.count_loss_in_superblocks().await {
                tracing::error!(target = %self.target, %error, "the loss cannot be recorded");
            }
        }
        error.into()
    }

    pub(super) async fn count_loss_in_superblocks(&self) -> Result<(), DiskError> {
        let mut superblock = self.superblock.clone();
        superblock.writes += 1;
        superblock.losses += 1;
        // Who comes here may hold what those wait for who have the memory of the volume's own.
        let pool = BufferPool::new(0);
        for copy in 0..COPIES.len() {
            write_superblock(&self.disk, &pool, &superblock, copy).await?;
        }
        Ok(())
    }

    /// What is accepted of an inode.
    pub(super) async fn mark(&self, inode: InodeId) -> Result<Mark, EngineError> {
        let Some(value) = self.index.get(&TableKey::Mark(inode).encode()).await? else {
            return Ok(Mark::default());
        };
        Mark::decode(&value).map_err(unreadable)
    }

    /// The record of a section.
    ///
    /// # Errors
    /// [`EngineError::Index`]; a damaged leaf is then looked at again, and listed.
    pub(super) async fn section(
        &self,
        key: ChunkKey,
        section: u8,
    ) -> Result<(u8, Option<Section>), EngineError> {
        let Some(value) = self.section_value(key, section).await? else {
            return Ok((section, None));
        };
        let record = Section::decode(&value, section).map_err(unreadable)?;
        Ok((section, Some(record)))
    }

    /// The same, as it stands in the index.
    pub(super) async fn section_value(
        &self,
        key: ChunkKey,
        section: u8,
    ) -> Result<Option<Bytes>, EngineError> {
        let name = SectionKey { chunk: key, section };
        match self.index.get(&TableKey::Section(name).encode()).await {
            Ok(value) => Ok(value),
            Err(error) => {
                if matches!(error, IndexError::Damaged { .. }) {
                    self.inspection.suspect(name);
                }
                Err(error.into())
            }
        }
    }
}

/// A value whose leaf was sound and that no program writes.
pub(super) fn unreadable(source: crate::format::FormatError) -> EngineError {
    EngineError::from(IndexError::Value { source })
}
