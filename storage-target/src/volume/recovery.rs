//! Bringing a target back after a stop of any kind.
//!
//! The index is that of the newest checkpoint; the journal's records after it are applied in order.
//!
//! - **The daemon ended in order, or was killed under the same boot**: everything that was written
//!   is there, and the records say what each page is. Only the data of records that were appended
//!   beside it may be missing: of those that no batch knows to be durable each is held against its
//!   data, and so is everything after the first one that is dropped, which may build on it. Nobody
//!   has been told of any of them, so nothing is lost, unless one was dropped because something
//!   could not be read: the loss count is then raised. The outcome becomes a checkpoint, as below.
//! - **The machine lost its memory, or the disk was away** (another boot id, into which the disk's
//!   attachment is mixed, and no stop record at the end): records that no batch knows to be durable
//!   are *pending*. Each is believed only if every page that it would bring in matches its
//!   checksum; otherwise the older version stands, whose pages were in quarantine. Against what it
//!   is held is the version that stands by then, so that what a later record takes and gives up is
//!   right also when an earlier one was dropped. A record of a section names all that the section
//!   holds, also what records before it brought; so when one that changes several sections is
//!   dropped, the later ones of these sections are too: they would bring back the part of it that
//!   lies in theirs. A mark, which says that a trim or a reclaim is done, is not believed after a
//!   dropped record of the same inode. The loss count is raised, because what is missing cannot be
//!   known, and the outcome becomes a checkpoint before any batch names the present boot, so that
//!   it is never decided a second time.
//!
//! As long as no record of its inode was dropped, what a pending record was made over is what
//! stands. So only behind a dropped record the index is asked for that, and where its leaf cannot
//! be read the record is dropped as well: such a leaf refuses no start.
//!
//! A journal that has failed is opened again as after a loss of power, whatever the boot: what the
//! disk has of writes that it could not sync nobody knows. Of a failure in this process the engine
//! before knows, and of one in an earlier process the superblock: it has counted more losses than
//! the newest checkpoint has seen.
//!
//! What the disk fails to read may be there in a moment, and is waited for: it is often the disk
//! that was away a moment ago.
//!
//! A record that is durable is never looked at that way: its pages may have been used again, but
//! only after a durable batch said that it is durable (see the module above).

use std::{collections::BTreeSet, io::ErrorKind};

use bytes::Bytes;
use millrace_types::{ChunkSize, Crc32c, InodeId};

use super::{
    EngineError, Shared,
    checkpoint::{Attempts, PATIENCE, PATIENCE_PRESSED},
    open::{OpenError, Parts, bytes, ring},
    sessions::AppliedWrites,
};
use crate::{
    disk::{AlignedBuffer, DiskError, Piece},
    format::{
        batch::Position,
        change::{Change, Removal, SectionsChange, effects},
        extent::Extent,
        fact::{Fact, FactNumber, StateTotals},
        free_map::RegionMap,
        section::{Section, SectionKey, StoredPage},
        superblock::Superblock,
        table::{KeyRange, TableKey},
    },
    index::{Index, IndexError},
    journal::{Journal, JournalError},
    page_checksum::PAGE,
    space::{Refusal, ReplayError, Space, StoredSummaries},
};

/// Entries of the index looked at with one request.
const SCAN_ENTRIES: usize = 256;

/// Pages compared with one request.
const PAGES_PER_READ: usize = 256;

/// The table of summaries.
const SUMMARIES: u8 = 4;

/// What was found.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) index: Index,
    pub(super) journal: Journal,
    pub(super) space: Space,
    pub(super) inode_max: InodeId,
    pub(super) loss_count: u64,
    pub(super) applied: AppliedWrites,
    /// Whether unsynced writes may be gone.
    pub(super) lossy: bool,
    /// Pending records that were dropped because their data is not there.
    pub(super) dropped: usize,
}

/// Reads index and journal, and applies the records that the index does not have. The disk has so
/// many regions, and may have lost unsynced writes although the machine did not stop.
pub(super) async fn recover(
    parts: &Parts<'_>,
    superblock: &Superblock,
    regions: u32,
    has_failed: bool,
) -> Result<Recovered, OpenError> {
    let index = Index::open(parts.index(superblock)).await?;
    let through = index.statistics().through;
    let start = journal_position(&index, superblock).await?;
    let (journal, replayed) = Journal::open(parts.journal(superblock), start).await?;
    let sequence = replayed.end.sequence;
    if sequence <= through {
        // The index has what the journal lacks: numbers would be given out again.
        return Err(JournalError::Damaged { sequence }.into());
    }
    let stopped = match replayed.records.last() {
        Some((_, record)) => Change::decode(record)? == Change::Stop,
        None => false,
    };
    // A checkpoint that counts has a batch of its boot behind it, unless it is the first one, or
    // one that a start has written after a loss of power and before it served anybody.
    let same_boot = replayed.boot.map_or(through == 0, |boot| boot == parts.options.boot);
    let has_failed = has_failed || superblock.losses > losses_seen(&index, superblock).await?;
    let lossy = has_failed || (!same_boot && !stopped);
    let totals = match fact(&index, FactNumber::Totals).await? {
        Some(Fact::Totals(totals)) => totals,
        _ => StateTotals::default(),
    };
    let inode_max = match fact(&index, FactNumber::HighestInode).await? {
        Some(Fact::HighestInode(inode)) => inode,
        _ => InodeId::default(),
    };
    let layout = superblock.layout;
    let summaries = summaries(&index).await?;
    if summaries.regions() > regions {
        let [found, needed] = [regions, summaries.regions()].map(|end| bytes(layout.end_of(end)));
        return Err(OpenError::Short { found, needed });
    }
    let space = Space::restore(layout, regions, summaries, totals)?;
    let applied = AppliedWrites::default();
    let mut replay = Replay::new(parts, index, space, inode_max, applied);
    for (sequence, record) in &replayed.records {
        if *sequence > through {
            let change = Change::decode(record)?;
            let is_doubtful = lossy || change.is_beside() || replay.dropped > 0;
            let pending = is_doubtful && *sequence >= replayed.committed_end;
            replay.apply(*sequence, &change, pending).await?;
        }
    }
    for segment in replay.index.segments() {
        let extent = Extent { first: segment.first, pages: u64::from(segment.pages) };
        replay.until_brought(|space| space.claim_index(extent)).await?;
    }
    let loss_count = match fact(&replay.index, FactNumber::LossCount).await? {
        Some(Fact::LossCount(count)) => count,
        _ => 0,
    };
    let Replay { index, space, inode_max, applied, dropped, unread, .. } = replay;
    let may_have_lost = lossy || unread;
    tell_what_was_dropped(superblock, may_have_lost, dropped);
    let loss_count = loss_count + u64::from(may_have_lost);
    Ok(Recovered { index, journal, space, inode_max, loss_count, applied, lossy, dropped })
}

fn tell_what_was_dropped(superblock: &Superblock, may_have_lost: bool, dropped: usize) {
    let target = superblock.target;
    if may_have_lost {
        tracing::warn!(
            %target,
            dropped_writes = dropped,
            "unsynced writes may be lost; what clients still hold is sent again"
        );
    } else if dropped > 0 {
        tracing::info!(
            %target,
            dropped_writes = dropped,
            "writes that nobody had been told of were not complete when the daemon stopped"
        );
    }
}

/// Records being applied.
struct Replay<'a> {
    parts: &'a Parts<'a>,
    index: Index,
    space: Space,
    inode_max: InodeId,
    applied: AppliedWrites,
    dropped: usize,
    /// Whether one was dropped because something could not be read: it may be complete.
    unread: bool,
    /// Inodes of which a record was dropped.
    incomplete: BTreeSet<InodeId>,
    /// Sections of which a record was dropped that changed others with them.
    torn: BTreeSet<SectionKey>,
    /// Of reading what the disk fails to read, all together.
    attempts: Attempts,
}

impl<'a> Replay<'a> {
    fn new(
        parts: &'a Parts<'a>,
        index: Index,
        space: Space,
        inode_max: InodeId,
        applied: AppliedWrites,
    ) -> Self {
        let (incomplete, torn) = (BTreeSet::new(), BTreeSet::new());
        let attempts = Attempts::begin(&parts.clock, PATIENCE_PRESSED);
        Self {
            parts,
            index,
            space,
            inode_max,
            applied,
            dropped: 0,
            unread: false,
            incomplete,
            torn,
            attempts,
        }
    }

    async fn apply(
        &mut self,
        sequence: u64,
        change: &Change,
        pending: bool,
    ) -> Result<(), OpenError> {
        let believed = match pending {
            true => self.believed(change).await?,
            false => Some(change.clone()),
        };
        let Some(change) = believed else {
            self.note_dropped(change);
            return Ok(());
        };
        if let Change::Remove(removal) = &change {
            // What comes after it begins anew.
            self.torn.retain(|key| !removal.sections().contains(key));
        }
        if let Change::Sections(change) = &change
            && change.session.0 != 0
        {
            let sections = change.sections().iter().filter_map(|(_, section)| section.as_ref());
            if let Some(version) = sections.map(|section| section.version).max() {
                self.applied.remember(change.session, change.number, version);
            }
        }
        let effects = effects(&change);
        self.until_brought(|space| space.replay(sequence, &effects)).await?;
        for (key, value) in effects.entries {
            match value {
                Some(value) => self.index.put(key, value),
                None => self.index.remove(key),
            }
        }
        self.inode_max = self.inode_max.max(effects.inode.unwrap_or_default());
        Ok(())
    }

    fn note_dropped(&mut self, change: &Change) {
        self.dropped += 1;
        match change {
            Change::Remove(removal) => {
                self.incomplete.extend(removal.sections().iter().map(|key| key.chunk.inode));
            }
            other => self.incomplete.extend(effects(other).inode),
        }
        if let Change::Sections(change) = change
            && change.sections().len() > 1
        {
            self.torn.extend(change.sections().iter().map(|(key, _)| *key));
        }
    }

    /// Does something with the space, bringing the maps that it asks for.
    async fn until_brought(
        &self,
        work: impl Fn(&Space) -> Result<(), ReplayError>,
    ) -> Result<(), OpenError> {
        loop {
            match work(&self.space) {
                Ok(()) => return Ok(()),
                Err(ReplayError::Needs(region)) => {
                    let value = self.index.get(&TableKey::FreeMap(region).encode()).await?;
                    let map = value.map(|value| RegionMap::decode(&value)).transpose()?;
                    self.space.bring(region, map)?;
                }
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// A pending change against the version that stands; `None` when its data is not there.
    async fn believed(&mut self, change: &Change) -> Result<Option<Change>, OpenError> {
        match change {
            Change::Sections(change) => {
                if change.sections().iter().any(|(key, _)| self.torn.contains(key)) {
                    return Ok(None);
                }
                let Some(held) = self.held(change).await? else { return Ok(None) };
                let pages: Vec<StoredPage> = held.new_pages().collect();
                Ok(self.all_match(&pages).await?.then_some(Change::Sections(held)))
            }
            Change::Remove(removal) => Ok(self.held_removal(removal).await?.map(Change::Remove)),
            // It says that what came before is done: a trim whose own changes were dropped must be
            // done again.
            Change::Mark(inode, _) if self.incomplete.contains(inode) => Ok(None),
            // What replaced a bad page may be what was dropped.
            Change::Mended(key) if self.incomplete.contains(&key.section.chunk.inode) => Ok(None),
            other => Ok(Some(other.clone())),
        }
    }

    /// New records of sections over the versions that stand; `None` when these cannot be read.
    async fn held(&mut self, change: &SectionsChange) -> Result<Option<SectionsChange>, OpenError> {
        if self.are_whole(change.sections().iter().map(|(key, _)| key)) {
            return Ok(Some(change.clone()));
        }
        let mut held = SectionsChange::new(change.session, change.number);
        for (key, new) in change.sections() {
            let Some(old) = self.standing(*key).await? else { return Ok(None) };
            let new = new.clone().unwrap_or_else(|| Section::blank(ChunkSize::DEFAULT));
            held.put(*key, old.as_ref(), new);
        }
        Ok(Some(held))
    }

    /// The same of a removal.
    async fn held_removal(&mut self, removal: &Removal) -> Result<Option<Removal>, OpenError> {
        if self.are_whole(removal.sections()) {
            return Ok(Some(removal.clone()));
        }
        let mut held = Removal::default();
        for key in removal.sections() {
            let Some(old) = self.standing(*key).await? else { return Ok(None) };
            if let Some(old) = old
                && !held.push(*key, &old)
            {
                // An older version of the sections is in more pieces than fit a record.
                return Ok(None);
            }
        }
        Ok(Some(held))
    }

    /// Whether no record of the inodes of these sections was dropped.
    fn are_whole<'k>(&self, sections: impl IntoIterator<Item = &'k SectionKey>) -> bool {
        !sections.into_iter().any(|key| self.incomplete.contains(&key.chunk.inode))
    }

    /// The version of a section that stands, which may be none; `None` when its leaf is damaged, or
    /// the disk goes on failing to read it.
    async fn standing(&mut self, key: SectionKey) -> Result<Option<Option<Section>>, OpenError> {
        loop {
            match self.index.get(&TableKey::Section(key).encode()).await {
                Ok(value) => {
                    let section = value.map(|value| Section::decode(&value, key.section));
                    return Ok(Some(section.transpose()?));
                }
                Err(error) if !error.is_unreadable() => return Err(error.into()),
                Err(error) => {
                    if !error.is_failed_read() || !self.attempts.again().await {
                        self.unread = true;
                        return Ok(None);
                    }
                }
            }
        }
    }

    async fn all_match(&mut self, pages: &[StoredPage]) -> Result<bool, OpenError> {
        for some in pages.chunks(PAGES_PER_READ) {
            // A page that was never written, or cannot be read, is no page that matches.
            let Some(buffer) = self.read(some).await? else { return Ok(false) };
            let bytes = buffer.as_slice()[..some.len() * PAGE].chunks_exact(PAGE);
            if some.iter().zip(bytes).any(|(stored, bytes)| Crc32c::of(bytes) != stored.checksum) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Reads pages; `None` when they are not there, or the disk goes on failing to read them.
    async fn read(&mut self, pages: &[StoredPage]) -> Result<Option<AlignedBuffer>, OpenError> {
        loop {
            let buffer = self.parts.options.pool.acquire(pages.len() * PAGE).await;
            let pieces = pages.iter().enumerate().map(|(nth, stored)| Piece {
                offset: stored.page * PAGE as u64,
                range: nth * PAGE..(nth + 1) * PAGE,
            });
            match self.parts.options.disk.read(pieces.collect(), buffer).await {
                Ok(buffer) => return Ok(Some(buffer)),
                Err(DiskError::Io { source, .. }) => {
                    // Where the disk had grown, and has not any more, there is nothing to wait for.
                    if source.kind() == ErrorKind::UnexpectedEof {
                        return Ok(None);
                    }
                    if !self.attempts.again().await {
                        self.unread = true;
                        return Ok(None);
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
}

impl Shared {
    /// Makes what was found a checkpoint, where records were held against their data, so that it is
    /// decided once.
    ///
    /// After a loss of power the journal goes on behind all that was found. After a kill it stays
    /// where it was until the next checkpoint: its batches say under which boot this was, and a
    /// start that found none would take it for one after a loss of power.
    ///
    /// What was synced may go with a leaf that the disk fails to read, so it is waited for as long
    /// as by any checkpoint.
    pub(super) async fn checkpoint_what_was_found(&self, lossy: bool) -> Result<(), OpenError> {
        let mut given_up = BTreeSet::new();
        let mut attempts = Attempts::begin(&self.clock, PATIENCE);
        let end = self.journal.position();
        let position = match lossy {
            true => end,
            false => journal_position(&self.index, &self.superblock).await?,
        };
        loop {
            let missing = {
                let state = self.state();
                match self.space.checkpoint() {
                    Ok(entries) => {
                        self.put_state(&state, entries, position);
                        // Nothing waits to be written: that is every record found.
                        let frozen = self.index.freeze(end.sequence - 1);
                        assert!(frozen, "one checkpoint at a time");
                        None
                    }
                    Err(Refusal::Needs(region)) => Some(region),
                    Err(Refusal::Full) => unreachable!("a checkpoint needs no space here"),
                }
            };
            if let Some(region) = missing {
                self.bring_map(region).await?;
                continue;
            }
            let error = match self.write_index(&given_up).await {
                Ok(()) => break,
                Err(IndexError::Full) => {
                    self.grow_index().await?;
                    continue;
                }
                Err(error) => error,
            };
            if let Some(leaves) = self.leaves_to_give_up(&given_up, &error, PATIENCE).await {
                given_up = leaves;
                continue;
            }
            let error = EngineError::from(error);
            if !self.may_pass(&error) || !attempts.again().await {
                return Err(error.into());
            }
        }
        self.journal.release(position);
        Ok(())
    }
}

/// The losses that the superblock had counted at the newest checkpoint.
async fn losses_seen(index: &Index, superblock: &Superblock) -> Result<u64, OpenError> {
    match fact(index, FactNumber::LossesSeen).await? {
        Some(Fact::LossesSeen(losses)) => Ok(losses),
        // Earlier programs did not write it down.
        _ => Ok(superblock.losses),
    }
}

/// From where on the index needs the journal.
async fn journal_position(index: &Index, superblock: &Superblock) -> Result<Position, OpenError> {
    match fact(index, FactNumber::JournalPosition).await? {
        Some(Fact::JournalPosition(position)) => Ok(position),
        _ => Ok(ring(&superblock.layout).start()),
    }
}

async fn fact(index: &Index, number: FactNumber) -> Result<Option<Fact>, OpenError> {
    let value: Option<Bytes> = index.get(&TableKey::Fact(number).encode()).await?;
    Ok(value.map(|value| Fact::decode(number, &value)).transpose()?)
}

/// What the checkpoint says of all regions.
async fn summaries(index: &Index) -> Result<StoredSummaries, OpenError> {
    let mut stored = StoredSummaries::default();
    let range = KeyRange::table(SUMMARIES);
    let mut from = Some(range.from);
    while let Some(at) = from {
        let scan = index.scan(at, Some(range.until), SCAN_ENTRIES).await?;
        for (key, value) in &scan.entries {
            if let TableKey::Summaries(group) = TableKey::decode(key.as_slice())? {
                stored.add(group, value)?;
            }
        }
        from = scan.next;
    }
    Ok(stored)
}
