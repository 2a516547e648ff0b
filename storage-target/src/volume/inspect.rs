//! Checking what is on the disk, for the scrub and for readers that have met damage.
//!
//! What is found bad is looked at twice before it counts: the first look may have met pages that
//! somebody was replacing. The second one holds them back while it reads, and what it finds is
//! noted only while the section's record still names the same pages.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use millrace_types::{BlockState, Crc32c};
use tokio::sync::Notify;

use super::{
    EngineError, Shared, findings::is_about, read::pieces, remove::AtDamage, run,
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

/// What checks need for themselves.
#[derive(Debug)]
pub(super) struct Inspection {
    /// Memory that no request waits for: a section for the scrub, and one for the second look.
    pool: BufferPool,
    suspects: Mutex<BTreeSet<SectionKey>>,
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
        let clean = |page: &BadPage| section.state(page.block()) == BlockState::Clean;
        let mut found = 0;
        for page in blocks.values().filter(|page| clean(page)) {
            found += u64::from(self.drop_damaged(key, &section, page).await?);
        }
        blocks.retain(|_, page| !clean(page));
        found += self.note_bad(key, blocks).await?;
        Ok(found)
    }

    /// Drops a clean block, which the bucket has too: whoever reads it next fetches it again.
    async fn drop_damaged(
        self: &Arc<Self>,
        key: SectionKey,
        seen: &Section,
        page: &BadPage,
    ) -> Result<bool, EngineError> {
        let block = BlockKey { section: key, block: page.block() }.in_chunk();
        let sections = Sections::new(key.chunk, key.section, vec![Some(seen.clone())]);
        let fingerprint = sections.fingerprint(block);
        let new_state = move |at: u16, found: u64, state| {
            let same = at == block && found == fingerprint && state == BlockState::Clean;
            same.then_some(BlockState::Absent)
        };
        self.drops.note(&key.chunk);
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
