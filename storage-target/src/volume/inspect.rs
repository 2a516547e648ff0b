//! Checking what is on the disk, for the scrub and for readers that have met damage.
//!
//! What is found bad is looked at twice before it counts: the first look may have met pages that
//! somebody was replacing. The second one holds them back while it reads, and what it finds is
//! noted only while the section's record still names the same pages.
//!
//! A clean block that is bad is dropped, so that it is fetched again, but only if somebody says
//! that it can be had again (`judge`). Otherwise it is noted like any other, and its sound pages
//! stay. A page that the disk fails to read may be there again in a moment: it is noted too, and
//! goes if it is not read for minutes ([`PATIENCE`]). What is noted is looked at by each pass of
//! the scrub, and some minutes after it is waited for, the judge has said nothing or was too slow,
//! or the target was opened with it.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_protocol::target::ContentName;
use millrace_types::{BlockState, Crc32c};
use tokio::sync::Notify;

use super::{
    EngineError, Shared,
    checkpoint::PATIENCE,
    findings::is_about,
    judge::{ANSWER_COUNTS, Verdict},
    read::pieces,
    remove::AtDamage,
    run,
    sections::Sections,
};
use crate::{
    disk::{AlignedBuffer, BufferPool, DiskError},
    format::{
        finding::{BlockKey, Fault, Finding},
        section::{Section, SectionKey, StoredPage},
        units::BLOCK_PAGES,
    },
    page_checksum::PAGE,
};

/// Sections that wait for a second look; the scrub finds what is more than that.
const SUSPECTS_MAX: usize = 4096;

/// A section is looked at again when its unread pages are not waited for any more, and a little
/// later than that: the time of day, by which they are, may go slower than this is measured.
pub(super) const AGAIN: Duration = PATIENCE.saturating_add(Duration::from_secs(1));

/// What checks need for themselves.
#[derive(Debug)]
pub(super) struct Inspection {
    /// Memory that no request waits for: a section for the scrub, and one for the second look.
    pool: BufferPool,
    suspects: Mutex<BTreeSet<SectionKey>>,
    /// Sections with pages or an answer that are waited for, and when they are looked at again.
    later: Mutex<BTreeMap<SectionKey, Instant>>,
    pub(super) wake: Notify,
    /// One check at a time; false when there will be no more.
    turn: tokio::sync::Mutex<bool>,
    /// Clean blocks that were dropped because they were damaged.
    pub(super) dropped_blocks: AtomicU64,
}

impl Default for Inspection {
    fn default() -> Self {
        Self {
            pool: BufferPool::new(0),
            suspects: Mutex::default(),
            later: Mutex::default(),
            wake: Notify::new(),
            turn: tokio::sync::Mutex::new(true),
            dropped_blocks: AtomicU64::new(0),
        }
    }
}

/// The pages of a section as the disk has them.
#[derive(Debug)]
pub(super) struct Stored {
    /// One after the other, without those that are not stored.
    pub(super) buffer: AlignedBuffer,
    pub(super) pages: usize,
    pub(super) bad: Vec<BadPage>,
}

/// A page that is not what its section's record says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct BadPage {
    /// In the section.
    pub(super) within: u8,
    pub(super) stored: StoredPage,
    pub(super) fault: Fault,
}

impl BadPage {
    fn block(&self) -> u8 {
        self.within / BLOCK_PAGES
    }
}

impl Inspection {
    /// Asks for a second look at a section.
    pub(super) fn suspect(&self, key: SectionKey) {
        let mut suspects = self.suspects.lock().unwrap_or_else(PoisonError::into_inner);
        if suspects.len() < SUSPECTS_MAX {
            suspects.insert(key);
        }
        drop(suspects);
        self.wake.notify_one();
    }

    /// A section that waits for a second look.
    pub(super) fn next_suspect(&self) -> Option<SectionKey> {
        self.suspects.lock().unwrap_or_else(PoisonError::into_inner).pop_first()
    }

    /// Asks for another look at a section at that time, unless there is to be one before.
    pub(super) fn suspect_later(&self, key: SectionKey, time: Instant) {
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        if later.len() < SUSPECTS_MAX {
            later.entry(key).or_insert(time);
        }
        drop(later);
        self.wake.notify_one();
    }

    /// When the next section is to be looked at again.
    pub(super) fn next_look(&self) -> Option<Instant> {
        let later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        later.values().min().copied()
    }

    /// Asks for a look at those sections whose time has come.
    pub(super) fn suspect_due(&self, now: Instant) {
        let mut later = self.later.lock().unwrap_or_else(PoisonError::into_inner);
        let due: Vec<SectionKey> =
            later.iter().filter(|(_, time)| **time <= now).map(|(key, _)| *key).collect();
        later.retain(|_, time| *time > now);
        drop(later);
        for key in due {
            self.suspect(key);
        }
    }
}

impl Shared {
    /// Does a part of a check in a task of its own, because a change must not be dropped in the
    /// middle; one at a time, and none after [`Self::end_inspection`].
    pub(super) async fn inspecting<T: Send + 'static>(
        self: Arc<Self>,
        work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
    ) -> Result<T, EngineError> {
        run(async move {
            let turn = self.inspection.turn.lock().await;
            if !*turn {
                return Err(EngineError::Stopped);
            }
            work.await
        })
        .await
    }

    /// Waits for the check under way; from then on there is none.
    pub(super) async fn end_inspection(&self) {
        *self.inspection.turn.lock().await = false;
    }

    /// Reads the stored pages of a section into one buffer, and says which of them are bad.
    ///
    /// # Errors
    /// [`EngineError::Disk`] when the disk has ended; a page that it cannot read is bad.
    pub(super) async fn read_stored(&self, section: &Section) -> Result<Stored, EngineError> {
        self.data_of(section.sequence).await?;
        let all: Vec<(u8, StoredPage)> = section.stored_pages().collect();
        let places: Vec<Option<StoredPage>> = all.iter().map(|&(_, page)| Some(page)).collect();
        let buffer = self.inspection.pool.acquire((all.len() * PAGE).max(PAGE)).await;
        if all.is_empty() {
            return Ok(Stored { buffer, pages: 0, bad: Vec::new() });
        }
        let buffer = match self.disk.read(pieces(&places), buffer).await {
            Ok(buffer) => buffer,
            Err(DiskError::Io { .. }) => return self.read_one_by_one(&all).await,
            Err(error) => return Err(error.into()),
        };
        let bytes = buffer.as_slice().chunks_exact(PAGE);
        let bad = all.iter().zip(bytes).filter_map(|(&(within, stored), bytes)| {
            let seen = Crc32c::of(bytes);
            let fault = Fault::Checksum { seen };
            (seen != stored.checksum).then_some(BadPage { within, stored, fault })
        });
        let bad = bad.collect();
        Ok(Stored { buffer, pages: all.len(), bad })
    }

    /// Finds out which pages the disk cannot read. The buffer that comes back holds nothing.
    async fn read_one_by_one(&self, all: &[(u8, StoredPage)]) -> Result<Stored, EngineError> {
        let mut bad = Vec::new();
        for &(within, stored) in all {
            let buffer = self.inspection.pool.acquire(PAGE).await;
            let fault = match self.disk.read(pieces(&[Some(stored)]), buffer).await {
                Ok(buffer) => {
                    let seen = Crc32c::of(&buffer.as_slice()[..PAGE]);
                    (seen != stored.checksum).then_some(Fault::Checksum { seen })
                }
                Err(DiskError::Io { .. }) => Some(Fault::Unreadable),
                Err(error) => return Err(error.into()),
            };
            bad.extend(fault.map(|fault| BadPage { within, stored, fault }));
        }
        let buffer = self.inspection.pool.acquire(PAGE).await;
        Ok(Stored { buffer, pages: all.len(), bad })
    }

    /// Looks at a section while its pages are held back, and notes what is bad and what is not any
    /// more. Returns how many blocks are bad.
    pub(super) async fn inspect(self: &Arc<Self>, key: SectionKey) -> Result<u64, EngineError> {
        let pin = self.pin();
        let (_, record) = self.section(key.chunk, key.section).await?;
        let Some(section) = record else { return Ok(0) };
        let bad = self.read_stored(&section).await?.bad;
        drop(pin);
        let mut blocks: BTreeMap<u8, BadPage> = BTreeMap::new();
        for page in bad {
            blocks.entry(page.block()).or_insert(page);
        }
        let is_clean = |page: &BadPage| section.state(page.block()) == BlockState::Clean;
        let clean = blocks.values().copied().filter(is_clean);
        let (due, early): (Vec<BadPage>, Vec<BadPage>) =
            clean.partition(|page| self.has_waited(key, page));
        let dropped = self.drop_saved(key, &section, &due).await?;
        blocks.retain(|block, _| !dropped.contains(block));
        let noted = self.note_bad(key, blocks).await?;
        if !early.is_empty() {
            self.inspection.suspect_later(key, self.clock.now() + AGAIN);
        }
        Ok(dropped.len() as u64 + noted)
    }

    /// Whether it is not waited any more that a page can be read.
    fn has_waited(&self, key: SectionKey, page: &BadPage) -> bool {
        if page.fault != Fault::Unreadable {
            return true;
        }
        let block = BlockKey { section: key, block: page.block() };
        let known = self.state().bad.get(&block).copied().filter(|known| {
            known.fault == Fault::Unreadable
                && (known.page, known.expected) == (page.stored.page, page.stored.checksum)
        });
        known.is_some_and(|known| self.clock.timestamp().since(known.time) >= PATIENCE)
    }

    /// Drops those of some clean blocks that can be had again, and returns them. Nobody waits for
    /// the judge's answer but other checks.
    async fn drop_saved(
        self: &Arc<Self>,
        key: SectionKey,
        seen: &Section,
        bad: &[BadPage],
    ) -> Result<BTreeSet<u8>, EngineError> {
        let mut dropped = BTreeSet::new();
        if bad.is_empty() {
            return Ok(dropped);
        }
        let SectionKey { chunk, .. } = key;
        let content = ContentName { inode: chunk.inode, generation: chunk.generation };
        let verdict = self.judging.ask(content, &self.clock).await;
        let Verdict::Saved(asked) = verdict else {
            tracing::warn!(
                target = %self.target, %chunk, blocks = bad.len(), ?verdict,
                "damaged blocks that came from a bucket are kept: nobody says that it has them"
            );
            if verdict == Verdict::Unknown {
                self.inspection.suspect_later(key, self.clock.now() + AGAIN);
            }
            return Ok(dropped);
        };
        for page in bad {
            if self.drop_damaged(key, seen, page, asked).await? {
                dropped.insert(page.block());
            }
        }
        if dropped.len() < bad.len() {
            // The answer had become too old, or what is there now is not what was seen.
            self.inspection.suspect_later(key, self.clock.now() + AGAIN);
        }
        Ok(dropped)
    }

    /// Drops a clean block that can be had again by what was asked then, if it still is the one
    /// that was seen: whoever reads it next fetches it again.
    async fn drop_damaged(
        self: &Arc<Self>,
        key: SectionKey,
        seen: &Section,
        page: &BadPage,
        asked: Instant,
    ) -> Result<bool, EngineError> {
        let block = BlockKey { section: key, block: page.block() }.in_chunk();
        let sections = Sections::new(key.chunk, key.section, vec![Some(seen.clone())]);
        let fingerprint = sections.fingerprint(block);
        // Its turn comes behind writers and a disk that may hang.
        let counts = || self.clock.now().saturating_duration_since(asked) < ANSWER_COUNTS;
        let new_state = |at: u16, found: u64, state| {
            let same = at == block && found == fingerprint && state == BlockState::Clean;
            let goes = same && counts();
            if goes {
                self.drops.note(&key.chunk);
            }
            goes.then_some(BlockState::Absent)
        };
        let numbers = key.section..=key.section;
        let dropped = self.restate(key.chunk, numbers, AtDamage::Fail, &new_state).await?;
        if dropped.0 == 0 {
            return Ok(false);
        }
        self.inspection.dropped_blocks.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(
            target = %self.target,
            chunk = %key.chunk,
            block,
            disk_page = page.stored.page,
            "a damaged block that the bucket has was dropped; the next read fetches it"
        );
        Ok(true)
    }

    /// Notes the bad pages that the section's record still names, and that its other blocks are
    /// not bad any more.
    async fn note_bad(
        self: &Arc<Self>,
        key: SectionKey,
        mut blocks: BTreeMap<u8, BadPage>,
    ) -> Result<u64, EngineError> {
        let known = self.findings_of(key);
        if blocks.is_empty() && known.is_empty() {
            return Ok(0);
        }
        let turn = self.inode_turn(key.chunk.inode).read().await;
        let range = u16::from(key.section)..=u16::from(key.section);
        let lock = self.section_locks.lock(key.chunk, range).await;
        let (_, record) = self.section(key.chunk, key.section).await?;
        let current = |page: &BadPage| {
            let stored = record.as_ref().and_then(|section| section.page(page.within));
            stored == Some(page.stored)
        };
        blocks.retain(|_, page| current(page));
        for (block, page) in &blocks {
            let finding = Finding {
                time: self.clock.timestamp(),
                page: page.stored.page,
                within: page.within,
                expected: page.stored.checksum,
                fault: page.fault,
            };
            self.note(BlockKey { section: key, block: *block }, finding).await?;
        }
        for (block, finding) in known {
            let about = record.as_ref().is_some_and(|section| is_about(&finding, section));
            if about && !blocks.contains_key(&block.block) {
                self.mend(block).await?;
            }
        }
        drop(lock);
        drop(turn);
        Ok(blocks.len() as u64)
    }
}
