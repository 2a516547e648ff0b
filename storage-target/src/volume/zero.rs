//! Zeroing: whole blocks give up their pages, pages within a block are no longer stored, and only
//! the ends are written anew.

use std::{ops::Range, sync::Arc};

use millrace_protocol::storage::ChunkVersion;
use millrace_types::{BlockState, SessionId, WriteNumber};

use super::{
    EngineError, Shared, Volume, ZeroRequest,
    ends::{ENDS_LEN, Ends},
    install::{Cause, Decision, Installed, Outcome},
    run,
    sections::{Sections, sections_of_pages, within},
    write::{ATTEMPTS_MAX, BLOCK, blocks_of, edges, needs_fill, page_number},
};
use crate::{
    format::{
        section::{SECTION_SIZE, Section},
        units::BLOCK_PAGES,
    },
    page_checksum::PAGE,
    space::Purpose,
};

/// Bytes zeroed with one journal record.
const STEP: usize = 16 * SECTION_SIZE as usize;

impl Volume {
    /// Turns part of a chunk into zeros. Up to 8 MiB between multiples of that change as one; the
    /// request counts as applied when all of it is.
    ///
    /// # Errors
    /// As [`Volume::write`].
    pub async fn zero(&self, request: ZeroRequest) -> Result<ChunkVersion, EngineError> {
        let shared = self.shared();
        run(async move { shared.zero(request).await }).await
    }
}

/// What becomes of a block.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    /// Nothing: it is zero already, or a hole.
    Stays,
    /// All of it is zero.
    Zero,
    /// A part of it stays stored.
    Part,
}

impl Shared {
    async fn zero(self: Arc<Self>, request: ZeroRequest) -> Result<ChunkVersion, EngineError> {
        let range = request.range.start as usize..request.range.end as usize;
        assert!(!range.is_empty(), "a range has bytes: the server has checked");
        self.await_room_for_records().await?;
        let _guard = self.locks.lock(request.key, blocks_of(&range)).await;
        self.accepts(request.key, request.write_epoch).await?;
        let blocks = blocks_of(&range);
        let snapshot = self.snapshot(request.key, blocks.clone()).await?;
        for block in [*blocks.start(), *blocks.end()] {
            needs_fill(snapshot.sections(), block, &range, request.backed)?;
        }
        let mut newest = snapshot.sections().version();
        let steps = steps(snapshot.sections(), &range, request.backed);
        drop(snapshot);
        // Also where an earlier attempt of the request has made the first of them.
        let is_long = range.start / STEP != (range.end - 1) / STEP;
        for (nth, step) in (1..).zip(&steps) {
            let mut cause = Cause::of_zero(&request);
            if nth < steps.len() {
                // Only the last record says that the request is applied.
                (cause.session, cause.number) = (SessionId(0), WriteNumber(0));
            } else if is_long {
                // After a loss of power it may be believed only if those before it are.
                self.sync().await?;
            }
            if let Some(version) = self.zero_step(&request, &cause, step).await? {
                newest = version;
            }
        }
        Ok(newest)
    }

    /// Zeroes a part of the range of a request; `None` when it is zero already.
    async fn zero_step(
        self: &Arc<Self>,
        request: &ZeroRequest,
        cause: &Cause,
        step: &Range<usize>,
    ) -> Result<Option<ChunkVersion>, EngineError> {
        for _ in 0..ATTEMPTS_MAX {
            let snapshot = self.snapshot(request.key, blocks_of(step)).await?;
            let sections = snapshot.sections();
            let fate = |block: u16| fate(sections, block, step, request.backed);
            let fates: Vec<(u16, Fate)> =
                blocks_of(step).map(|block| (block, fate(block))).collect();
            if fates.iter().all(|&(_, fate)| fate == Fate::Stays) {
                return Ok(None);
            }
            let old_edges = edges(sections, step);
            let ends = match old_edges {
                [None, None] => Ends::default(),
                _ => {
                    let buffer = self.pool.acquire(ENDS_LEN).await;
                    self.write_ends(sections, step, Purpose::Store, buffer).await?
                }
            };
            drop(snapshot);
            let mut change = |number: u8, old: &Sections, section: &mut Section| {
                if edges(old, step) != old_edges {
                    return Decision::LookAgain;
                }
                ends.put(number, section, |_| BlockState::Written);
                zero_section(number, section, &fates, step);
                Decision::Go
            };
            let numbers = sections_of_pages(&pages_around(step));
            match self.install(cause, numbers, None, &mut change).await? {
                Outcome::LookAgain => {}
                Outcome::Unchanged => return Ok(None),
                Outcome::Changed(Installed { sequence, version, .. }) => {
                    self.written(sequence).await?;
                    return Ok(Some(version));
                }
            }
        }
        Err(EngineError::StaleEpoch)
    }
}

/// The parts of a range that change with one record each; what is zero already is in none.
fn steps(sections: &Sections, range: &Range<usize>, backed: u32) -> Vec<Range<usize>> {
    let mut steps = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let end = range.end.min((at / STEP + 1) * STEP);
        let step = at..end;
        if blocks_of(&step).any(|block| fate(sections, block, &step, backed) != Fate::Stays) {
            steps.push(step);
        }
        at = end;
    }
    steps
}

/// What becomes of a block of which `range` becomes zero. All but [`Fate::Stays`] are changes.
fn fate(sections: &Sections, block: u16, range: &Range<usize>, backed: u32) -> Fate {
    let start = usize::from(block) * BLOCK;
    let covers = |len: usize| range.start <= start && range.end >= start + len;
    match sections.state(block) {
        BlockState::Zero => Fate::Stays,
        BlockState::Absent if !covers(BLOCK) && backed as usize <= start => Fate::Stays,
        // A part of what the bucket backs was refused before.
        BlockState::Absent => Fate::Zero,
        state @ (BlockState::Clean | BlockState::Written) => {
            match covers(sections.stored_pages(block) as usize * PAGE) {
                true => Fate::Zero,
                false if state == BlockState::Written && !stores(sections, block, range) => {
                    Fate::Stays
                }
                false => Fate::Part,
            }
        }
    }
}

/// Whether a page of a block is stored of which a part lies in `range`.
fn stores(sections: &Sections, block: u16, range: &Range<usize>) -> bool {
    let first = u32::from(block) * u32::from(BLOCK_PAGES);
    let pages = pages_around(range);
    let (start, end) = (pages.start.max(first), pages.end.min(first + u32::from(BLOCK_PAGES)));
    (start..end).any(|page| sections.page(page).is_some())
}

/// Zeroes the part of a range that lies in a section. Its ends are written already.
fn zero_section(number: u8, section: &mut Section, fates: &[(u16, Fate)], range: &Range<usize>) {
    for &(block, fate) in fates {
        let first = u32::from(block) * u32::from(BLOCK_PAGES);
        let pages = within(number, &(first..first + u32::from(BLOCK_PAGES)));
        if pages.is_empty() {
            continue;
        }
        let blocks = pages.start / BLOCK_PAGES..pages.end / BLOCK_PAGES;
        match fate {
            Fate::Stays => {}
            Fate::Zero => drop(section.set_state(blocks, BlockState::Zero)),
            Fate::Part => {
                let whole = page_number(range.start.next_multiple_of(PAGE))..page_number(range.end);
                let low = whole.start.clamp(first, first + u32::from(BLOCK_PAGES));
                let high = whole.end.clamp(low, first + u32::from(BLOCK_PAGES));
                drop(section.clear(within(number, &(low..high))));
                drop(section.set_state(blocks, BlockState::Written));
            }
        }
    }
}

/// The pages that bytes of a chunk lie in.
fn pages_around(range: &Range<usize>) -> Range<u32> {
    page_number(range.start)..page_number(range.end.next_multiple_of(PAGE))
}
