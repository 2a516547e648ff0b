//! The one way by which sections get new records: read, changed, journalled and put into the index
//! while nobody else changes them.

use std::{borrow::Cow, ops::RangeInclusive};

use millrace_protocol::storage::ChunkVersion;
use millrace_types::{ChunkKey, ChunkSize, GroupEpoch, SessionId, WriteEpoch, WriteNumber};

use super::{
    Authority, EngineError, Fill, Shared, WriteRequest, ZeroRequest, commit::Committed,
    sections::Sections, write::chunk_size,
};
use crate::{
    format::{
        change::{Change, SectionsChange},
        mark::Mark,
        section::{Section, SectionKey},
    },
    journal::DataUnderWay,
};

/// Who wants a change, and what it must agree with.
#[derive(Debug)]
pub(super) struct Cause {
    pub(super) key: ChunkKey,
    pub(super) group_epoch: GroupEpoch,
    pub(super) write_epoch: WriteEpoch,
    pub(super) chunk_size: ChunkSize,
    /// One past the last byte that it stores, in the chunk; 0 when it stores nothing.
    pub(super) end: u32,
    pub(super) session: SessionId,
    pub(super) number: WriteNumber,
    pub(super) authority: Authority,
    /// Whether the bytes are still being written.
    pub(super) is_beside: bool,
}

impl Cause {
    pub(super) fn of_write(request: &WriteRequest, end: usize, is_beside: bool) -> Self {
        Self {
            key: request.key,
            group_epoch: request.group_epoch,
            write_epoch: request.write_epoch,
            chunk_size: chunk_size(u64::from(request.chunk_size)),
            end: u32::try_from(end).expect("within a chunk"),
            session: request.session,
            number: request.number,
            authority: request.authority.clone(),
            is_beside,
        }
    }

    pub(super) fn of_zero(request: &ZeroRequest) -> Self {
        Self {
            key: request.key,
            group_epoch: request.group_epoch,
            write_epoch: request.write_epoch,
            chunk_size: chunk_size(u64::from(request.chunk_size)),
            end: 0,
            session: request.session,
            number: request.number,
            authority: request.authority.clone(),
            is_beside: false,
        }
    }

    pub(super) fn of_fill(fill: &Fill) -> Self {
        let start = u32::from(fill.first_block) * 64 * 1024;
        Self {
            key: fill.key,
            group_epoch: GroupEpoch(0),
            write_epoch: fill.write_epoch,
            chunk_size: chunk_size(u64::from(fill.chunk_size)),
            end: start + fill.len,
            session: SessionId(0),
            number: WriteNumber(0),
            authority: Authority::default(),
            is_beside: false,
        }
    }

    /// A change of what is there already, which no client asked for.
    pub(super) fn of_upkeep(key: ChunkKey, sections: &Sections) -> Self {
        Self {
            key,
            group_epoch: GroupEpoch(0),
            write_epoch: WriteEpoch(0),
            chunk_size: sections.chunk_size().unwrap_or(ChunkSize::DEFAULT),
            end: 0,
            session: SessionId(0),
            number: WriteNumber(0),
            authority: Authority::default(),
            is_beside: false,
        }
    }
}

/// What became of a change.
#[derive(Debug)]
pub(super) enum Outcome {
    /// It did not fit any more.
    LookAgain,
    /// There was nothing to change.
    Unchanged,
    /// The sections have new records.
    Changed(Installed),
}

/// What a change finds when it looks at the newest records.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Decision {
    /// It still fits.
    Go,
    /// Something that it builds on is another: look again from the start.
    LookAgain,
}

impl Shared {
    /// Changes sections as a client or a fill wants it; the caller waits until a kill or a loss of
    /// power cannot undo it. `change` is called once for each section, with all of them as they
    /// were; `known` is what the caller found before, and spares work if it still holds.
    ///
    /// # Errors
    /// [`EngineError::StaleEpoch`], [`EngineError::StaleContent`], [`EngineError::Revoked`], or a
    /// failure of index or journal.
    pub(super) async fn install(
        &self,
        cause: &Cause,
        numbers: RangeInclusive<u8>,
        known: Option<&Sections>,
        change: &mut (dyn FnMut(u8, &Sections, &mut Section) -> Decision + Send),
    ) -> Result<Outcome, EngineError> {
        let turn = self.inode_turn(cause.key.inode).read().await;
        let range = u16::from(*numbers.start())..=u16::from(*numbers.end());
        let lock = self.section_locks.lock(cause.key, range).await;
        self.accepts(cause.key, cause.write_epoch).await?;
        let old = match known {
            Some(known) => self.sections_again(known, numbers).await?,
            None => Cow::Owned(self.sections(cause.key, numbers).await?),
        };
        let mut new = Vec::new();
        for (number, record) in old.iter() {
            let mut section = record.cloned().unwrap_or_else(|| Section::blank(cause.chunk_size));
            if change(number, &old, &mut section) == Decision::LookAgain {
                return Ok(Outcome::LookAgain);
            }
            let is_other = match record {
                Some(record) => *record != section,
                None => !section.is_blank(),
            };
            if is_other {
                new.push((number, section));
            }
        }
        let installed = self.commit_sections(cause, &old, &new).await?;
        drop(lock);
        drop(turn);
        Ok(installed.map_or(Outcome::Unchanged, Outcome::Changed))
    }

    /// Journals new records and puts them into the index. The caller holds the inode's turn and
    /// the sections' locks. `None` when there are none.
    pub(super) async fn commit_sections(
        &self,
        cause: &Cause,
        old: &Sections,
        new: &[(u8, Section)],
    ) -> Result<Option<Installed>, EngineError> {
        if new.is_empty() {
            return Ok(None);
        }
        let mut version = ChunkVersion { group_epoch: GroupEpoch(0), counter: 0 };
        let committed = self
            .commit(|sequence| {
                if !cause.authority.stands() {
                    return Err(EngineError::Revoked);
                }
                let mut change = SectionsChange::new(cause.session, cause.number);
                change.is_beside = cause.is_beside;
                for (number, section) in new {
                    let mut section = section.clone();
                    stamp(&mut section, cause, sequence);
                    version = version.max(section.version);
                    let key = SectionKey { chunk: cause.key, section: *number };
                    change.put(key, old.record(*number), section);
                }
                Ok(Change::Sections(change))
            })
            .await?;
        let Committed { sequence, given_up, data } = committed;
        Ok(Some(Installed { sequence, version, given_up, data }))
    }

    /// Whether content and epoch are still current.
    ///
    /// # Errors
    /// [`EngineError::StaleEpoch`], [`EngineError::StaleContent`], [`EngineError::Index`].
    pub(super) async fn accepts(
        &self,
        key: ChunkKey,
        epoch: WriteEpoch,
    ) -> Result<(), EngineError> {
        let Mark { generation, write_epoch } = self.mark(key.inode).await?;
        if key.generation < generation {
            return Err(EngineError::StaleContent);
        }
        if key.generation == generation && epoch < write_epoch {
            return Err(EngineError::StaleEpoch);
        }
        Ok(())
    }
}

/// Sections that have new records.
#[derive(Debug)]
pub(super) struct Installed {
    /// Of the journal record.
    pub(super) sequence: u64,
    /// The greatest of the sections'.
    pub(super) version: ChunkVersion,
    /// Pages given up.
    pub(super) given_up: u64,
    /// What the journal is told when the bytes are written, if that is still to come.
    pub(super) data: Option<DataUnderWay>,
}

/// Raises what a change raises. The counter of the version is the record's sequence, which no other
/// change has and every later one exceeds.
fn stamp(section: &mut Section, cause: &Cause, sequence: u64) {
    section.version = ChunkVersion {
        group_epoch: section.version.group_epoch.max(cause.group_epoch),
        counter: sequence,
    };
    section.group_epoch = section.group_epoch.max(cause.group_epoch);
    section.write_epoch = section.write_epoch.max(cause.write_epoch);
    section.length = section.length.max(cause.end);
    section.sequence = sequence;
}
