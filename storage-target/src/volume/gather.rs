//! Gathering: a section in many pieces is written anew in one run.
//!
//! Small overwrites put each page somewhere else, so that a section which was one run of the disk
//! becomes up to 128 pieces, and a longer record. The scrub has its pages in memory anyway; it
//! writes them to one run and lets the record name that, if nobody has changed the section since.

use std::sync::Arc;

use millrace_types::{BlockState, Crc32c};

use super::{
    EngineError, Shared, inspect::Stored, install::Cause, room::pieces_of, sections::Sections,
    write::cut,
};
use crate::{
    disk::AlignedBuffer,
    format::{
        section::{Section, SectionKey, StoredPage},
        units::BLOCK_PAGES,
    },
    space::Purpose,
};

/// Sections of more extents than this are gathered.
const EXTENTS_MAX: usize = 16;

/// Gathering stops when less than this part of the target is free: it needs a section's pages twice
/// until the older ones are free, and nobody waits for it.
const FREE_PARTS: u64 = 16;

/// Consecutive pages of a section that are stored, in blocks of one state.
#[derive(Debug)]
struct Run {
    first: u8,
    state: BlockState,
    checksums: Vec<Crc32c>,
}

impl Shared {
    /// Writes a section in one run if it is in many pieces; `stored` are its pages, all of them
    /// sound. Returns the pages written.
    ///
    /// # Errors
    /// Failures of disk, index and journal; the section is then as it was.
    pub(super) async fn gather(
        &self,
        key: SectionKey,
        seen: &Section,
        stored: Stored,
    ) -> Result<u64, EngineError> {
        let runs = runs(seen);
        let totals = self.space.totals();
        let is_worth = seen.extent_count() > EXTENTS_MAX && runs.len() * 2 <= seen.extent_count();
        if !is_worth || totals.available() < totals.capacity / FREE_PARTS {
            return Ok(0);
        }
        let pages = stored.pages as u64;
        let Ok(mut reservation) = self.space.reserve(pages, Purpose::Store) else { return Ok(0) };
        self.place(&mut reservation).await?;
        if reservation.extents().len() * 2 > seen.extent_count() {
            return Ok(0);
        }
        let buffer: Arc<AlignedBuffer> = Arc::new(stored.buffer);
        self.disk.write(pieces_of(reservation.extents()), buffer).await?;
        let mut gathered = seen.clone();
        let mut skipped = 0;
        for run in runs {
            let count = run.checksums.len() as u64;
            let extents = cut(reservation.extents(), skipped, count);
            gathered.replace(run.first, &extents, &run.checksums, run.state);
            skipped += count;
        }
        let turn = self.inode_turn(key.chunk.inode).read().await;
        let range = u16::from(key.section)..=u16::from(key.section);
        let lock = self.section_locks.lock(key.chunk, range).await;
        let (number, current) = self.section(key.chunk, key.section).await?;
        if current.as_ref() != Some(seen) {
            return Ok(0);
        }
        let old = Sections::new(key.chunk, number, vec![current]);
        let cause = Cause::of_upkeep(key.chunk, &old);
        let installed = self.commit_sections(&cause, &old, &[(number, gathered)]).await?;
        drop(lock);
        drop(turn);
        if let Some(installed) = installed {
            self.written(installed.sequence).await?;
        }
        Ok(pages)
    }
}

fn runs(section: &Section) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for (at, StoredPage { checksum, .. }) in section.stored_pages() {
        let state = section.state(at / BLOCK_PAGES);
        match runs.last_mut() {
            Some(run)
                if run.state == state
                    && usize::from(run.first) + run.checksums.len() == usize::from(at) =>
            {
                run.checksums.push(checksum);
            }
            _ => runs.push(Run { first: at, state, checksums: vec![checksum] }),
        }
    }
    runs
}
