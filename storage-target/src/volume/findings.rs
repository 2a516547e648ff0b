//! The list of what is bad: in memory for who asks, and in the index, so that it outlives the
//! process.
//!
//! A finding is about one page of the disk in one place of a section. As soon as the section's
//! record names another page there, or the same with another checksum, or none, it is about nothing
//! any more and goes: with the change that replaced the page, or, where a stop came between, at the
//! next start, which holds each finding against its section's record.

use std::sync::{Arc, atomic::Ordering};

use millrace_types::ChunkKey;
use tokio::task::JoinHandle;

use super::{
    BAD_BLOCKS_MAX, EngineError, Shared, State, Volume, commit::unreadable, inspect::AGAIN,
};
use crate::{
    format::{
        change::{Change, effects},
        fact::{Fact, FactNumber},
        finding::{BlockKey, Fault, Finding},
        key::Key,
        section::{SECTION_BLOCKS, Section, SectionKey},
        table::{Entry, KeyRange, TableKey},
    },
    index::NodeDamage,
};

/// The table of sections, and that of findings.
const SECTIONS: u8 = 1;
const FINDINGS: u8 = 5;

/// Entries looked at with one request.
const SCAN_ENTRIES: usize = 256;

/// Takes second looks. Dropping it ends it.
#[derive(Debug)]
pub(super) struct Finder(JoinHandle<()>);

impl Drop for Finder {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Finder {
    pub(super) fn start(shared: Arc<Shared>) -> Self {
        Self(tokio::spawn(async move {
            loop {
                tokio::select! {
                    () = shared.inspection.wake.notified() => {}
                    () = next_look(&shared) => shared.inspection.suspect_due(shared.clock.now()),
                }
                let worker = Arc::clone(&shared);
                let looks = async move { worker.take_second_looks().await };
                match Arc::clone(&shared).inspecting(looks).await {
                    Ok(()) => {}
                    Err(EngineError::Stopped) => return,
                    Err(error) => {
                        tracing::error!(target = %shared.target, %error, "damage cannot be noted");
                    }
                }
            }
        }))
    }
}

/// Waits until a section is to be looked at again. Begun anew whenever that changes.
async fn next_look(shared: &Shared) {
    match shared.inspection.next_look() {
        Some(time) => shared.clock.sleep_until(time).await,
        None => std::future::pending().await,
    }
}

impl Volume {
    /// Findings in the order of their blocks, after `after`, at most `limit`.
    #[must_use]
    pub fn findings(&self, after: Option<BlockKey>, limit: usize) -> Vec<(BlockKey, Finding)> {
        use std::ops::Bound::{Excluded, Unbounded};
        let shared = self.shared();
        let state = shared.state();
        let start = after.map_or(Unbounded, Excluded);
        let some = state.bad.range((start, Unbounded)).take(limit);
        some.map(|(key, finding)| (*key, *finding)).collect()
    }

    /// Looks now at every section of which something seems to be wrong; returns how many blocks
    /// are bad, all in all. The same happens in the background; this waits for it.
    ///
    /// # Errors
    /// Failures of index and journal.
    pub async fn take_second_looks(&self) -> Result<u64, EngineError> {
        let shared = self.shared();
        let worker = Arc::clone(&shared);
        let looks = async move { worker.take_second_looks().await };
        Arc::clone(&shared).inspecting(looks).await?;
        Ok(shared.state().bad.len() as u64)
    }
}

/// Whether a finding still is about a page of a section.
pub(super) fn is_about(finding: &Finding, section: &Section) -> bool {
    section
        .page(finding.within)
        .is_some_and(|stored| (stored.page, stored.checksum) == (finding.page, finding.expected))
}

/// What of the list of findings a change makes void: with the state's lock held.
pub(super) fn void(state: &State, change: &Change) -> Vec<BlockKey> {
    if state.bad.is_empty() {
        return Vec::new();
    }
    let of_section = |key: SectionKey, section: Option<&Section>| {
        let void = |finding: &Finding| {
            let about = section.is_some_and(|section| is_about(finding, section));
            finding.fault != Fault::Index && !about
        };
        let here = state.bad.range(blocks_of(key));
        here.filter(|(_, finding)| void(finding)).map(|(key, _)| *key).collect::<Vec<_>>()
    };
    match change {
        Change::Sections(change) => {
            let sections = change.sections().iter();
            sections.flat_map(|(key, section)| of_section(*key, section.as_ref())).collect()
        }
        Change::Remove(removal) => {
            removal.sections().iter().flat_map(|key| of_section(*key, None)).collect()
        }
        _ => Vec::new(),
    }
}

/// The blocks of a section.
fn blocks_of(section: SectionKey) -> std::ops::RangeInclusive<BlockKey> {
    BlockKey { section, block: 0 }..=BlockKey { section, block: SECTION_BLOCKS - 1 }
}

impl Shared {
    /// Follows a change that has been applied: findings that it brings, ends, or makes void, and
    /// the end of all changes. The caller has the lock.
    pub(super) fn follow(&self, state: &mut State, change: &Change) {
        match change {
            Change::Finding(key, finding) => drop(state.bad.insert(*key, *finding)),
            Change::Mended(key) => drop(state.bad.remove(key)),
            Change::Stop => state.is_closed = true,
            other => {
                for key in void(state, other) {
                    state.bad.remove(&key);
                    let mended = Change::Mended(key);
                    // Where the ring has no room the next start sees that it is void.
                    if let Ok(sequence) = self.journal.append(mended.encode()) {
                        self.apply(state, sequence, effects(&mended));
                    }
                }
            }
        }
    }

    /// The findings in a section.
    pub(super) fn findings_of(&self, key: SectionKey) -> Vec<(BlockKey, Finding)> {
        let state = self.state();
        let here = state.bad.range(blocks_of(key));
        let of_pages = here.filter(|(_, finding)| finding.fault != Fault::Index);
        of_pages.map(|(key, finding)| (*key, *finding)).collect()
    }

    /// Asks for a second look at a block of which somebody has met a bad page.
    pub(super) fn suspect(&self, key: ChunkKey, block: u16) {
        let (section, _) = super::sections::split_block(block);
        self.inspection.suspect(SectionKey { chunk: key, section });
    }

    async fn take_second_looks(self: &Arc<Self>) -> Result<(), EngineError> {
        while let Some(key) = self.inspection.next_suspect() {
            let name = TableKey::Section(key).encode();
            let survey = self.index.survey(name, 1).await?;
            let is_there = survey.entries.first().is_some_and(|(key, _)| *key == name);
            if let Some(damage) = survey.damage {
                self.note_node(&damage).await?;
            }
            if is_there {
                self.inspect(key).await?;
            }
        }
        Ok(())
    }

    /// Adds a finding, unless the list is full or has it. Waits until a kill cannot undo it.
    pub(super) async fn note(&self, key: BlockKey, finding: Finding) -> Result<(), EngineError> {
        let known = |state: &State| match state.bad.get(&key) {
            Some(old) => Finding { time: finding.time, ..*old } == finding,
            None => state.bad.len() >= BAD_BLOCKS_MAX,
        };
        if known(&self.state()) {
            return Ok(());
        }
        let chunk = key.section.chunk;
        let (block, disk_page, fault) = (key.in_chunk(), finding.page, finding.fault);
        match fault {
            Fault::Index => tracing::error!(
                target = %self.target, disk_page,
                "a node of the index is damaged; what is recorded in it cannot be read or changed"
            ),
            Fault::Checksum { .. } => tracing::error!(
                target = %self.target, %chunk, block, disk_page, ?fault,
                "a block is damaged; reading it fails until it is overwritten or removed"
            ),
            Fault::Unreadable => tracing::error!(
                target = %self.target, %chunk, block, disk_page,
                "the disk fails to read a block; unless a bucket has it, reading it fails until \
                 the disk reads it again, or it is overwritten or removed"
            ),
        }
        // A checkpoint must not be given a key that it cannot put into the tree.
        if self.index.get(&TableKey::Finding(key).encode()).await.is_err() {
            self.state().bad.insert(key, finding);
            return Ok(());
        }
        let committed = self.commit(|_| Ok(Change::Finding(key, finding))).await?;
        self.written(committed.sequence).await
    }

    /// Notes that a node of the index cannot be read.
    pub(super) async fn note_node(&self, damage: &NodeDamage) -> Result<BlockKey, EngineError> {
        let key = name_of_node(damage.low);
        let finding = Finding {
            time: self.clock.timestamp(),
            page: damage.reference.page,
            within: key.block * crate::format::units::BLOCK_PAGES,
            expected: damage.reference.checksum,
            fault: Fault::Index,
        };
        self.checksum_failures.fetch_add(1, Ordering::Relaxed);
        self.note(key, finding).await?;
        Ok(key)
    }

    /// Ends a finding.
    pub(super) async fn mend(&self, key: BlockKey) -> Result<(), EngineError> {
        tracing::info!(
            target = %self.target, chunk = %key.section.chunk, block = key.in_chunk(),
            "what was found damaged is well again"
        );
        let committed = self.commit(|_| Ok(Change::Mended(key))).await?;
        self.written(committed.sequence).await
    }

    /// Brings the findings and the scrub's progress of earlier runs into memory, and drops findings
    /// that are about nothing any more.
    pub(super) async fn load_findings(&self) -> Result<(), EngineError> {
        let range = KeyRange::table(FINDINGS);
        let mut at = Some(range.from);
        while let Some(from) = at {
            let survey = self.index.survey(from, SCAN_ENTRIES).await?;
            at = survey.next.filter(|next| *next < range.until);
            for (key, value) in survey.entries.iter().filter(|(key, _)| *key < range.until) {
                let entry = Entry::decode(key.as_slice(), value).map_err(unreadable)?;
                if let Entry::Finding(key, finding) = entry {
                    self.load_finding(key, finding).await?;
                }
            }
        }
        let progress = self.index.get(&TableKey::Fact(FactNumber::Scrub).encode()).await?;
        let decode = |value: bytes::Bytes| Fact::decode(FactNumber::Scrub, &value);
        if let Some(Fact::Scrub(progress)) = progress.map(decode).transpose().map_err(unreadable)? {
            self.scrub.restore(progress);
        }
        Ok(())
    }

    async fn load_finding(&self, key: BlockKey, finding: Finding) -> Result<(), EngineError> {
        let SectionKey { chunk, section } = key.section;
        let stands = match self.section(chunk, section).await {
            _ if finding.fault == Fault::Index => true,
            Ok((_, record)) => record.is_some_and(|section| is_about(&finding, &section)),
            // Nobody can tell.
            Err(EngineError::Index(error)) if error.is_unreadable() => true,
            Err(error) => return Err(error),
        };
        if stands {
            if finding.fault != Fault::Index {
                // That it was waited for is not known any more.
                self.inspection.suspect_later(key.section, self.clock.now() + AGAIN);
            }
            self.state().bad.insert(key, finding);
            return Ok(());
        }
        self.commit(|_| Ok(Change::Mended(key))).await.map(drop)
    }
}

/// The name under which a damaged node is listed: the first section that belongs into it, or its
/// table.
fn name_of_node(low: Option<Key>) -> BlockKey {
    let low = low.as_ref().map_or(&[SECTIONS][..], Key::as_slice);
    let mut padded = [0; 19];
    let len = low.len().min(padded.len());
    padded[..len].copy_from_slice(&low[..len]);
    if let Ok(TableKey::Section(section)) = TableKey::decode(&padded) {
        return BlockKey { section, block: 0 };
    }
    let mut none = [0; 19];
    none[0] = SECTIONS;
    match TableKey::decode(&none) {
        Ok(TableKey::Section(section)) => BlockKey { section, block: low[0] % SECTION_BLOCKS },
        _ => unreachable!("zeros are a section's key"),
    }
}
