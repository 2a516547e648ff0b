//! Clients' writes, and fills from a bucket.
//!
//! A write stores the pages that it touches and no others: of its first and last page the part that
//! stays is read, checked and written again with the new bytes. What follows the last byte of a
//! file is not on the disk, so that an append at a page boundary reads nothing.

use std::{ops::Range, sync::Arc};

use bytes::Bytes;
use futures::future::join;
use millrace_protocol::storage::ChunkVersion;
use millrace_types::{BlockState, ChunkKey, ChunkSize, Crc32c};

use super::{
    DropMark, EngineError, Fill, Shared, Volume, WriteRequest,
    install::{Cause, Decision, Installed, Outcome},
    read::pieces,
    room::pieces_of,
    run,
    sections::{Sections, block_of_page, sections_of_pages, within},
    spots,
};
use crate::{
    disk::{AlignedBuffer, Answer},
    format::{
        extent::Extent,
        section::{Section, StoredPage},
        units::BLOCK_PAGES,
    },
    journal::DataUnderWay,
    page_checksum::{PAGE, of_pages, of_range},
    space::Purpose,
};

/// Bytes of a block.
pub(super) const BLOCK: usize = 64 * 1024;

/// How often a change looks again because the file shrank under it.
pub(super) const ATTEMPTS_MAX: usize = 16;

impl Volume {
    /// Writes part of a chunk. The work goes on when the caller goes away.
    ///
    /// # Durability
    /// Survives a kill of the process on return; a loss of power after [`Volume::sync`].
    ///
    /// # Errors
    /// [`EngineError::Damaged`], [`EngineError::NeedsFill`], [`EngineError::StaleEpoch`],
    /// [`EngineError::StaleContent`], [`EngineError::NoSpace`], or a failure of the disk; nothing
    /// is then changed.
    pub async fn write(&self, request: WriteRequest) -> Result<ChunkVersion, EngineError> {
        let shared = self.shared();
        run(async move {
            let written = shared.write(request, Wanted::Soon).await?;
            shared.written(written.sequence).await?;
            Ok(written.version)
        })
        .await
    }

    /// The same, with one wait instead of two for who wants it durable.
    ///
    /// # Durability
    /// Survives a loss of power on return, as after [`Volume::sync`]. Who writes at the same time
    /// shares one write of the journal and one sync.
    ///
    /// # Errors
    /// As [`Self::write`]; after a failure of the journal the write may be there or not.
    pub async fn write_durably(&self, request: WriteRequest) -> Result<ChunkVersion, EngineError> {
        let shared = self.shared();
        run(async move {
            let written = shared.write(request, Wanted::Now).await?;
            let Written { sequence, version, .. } = written;
            // Together: what makes the record durable begins while the bytes are being written.
            let (_, durable) = join(written.arrive(), shared.durable(sequence)).await;
            durable.map(|()| version)
        })
        .await
    }

    /// Stores what came from the bucket where blocks are still absent; returns the bytes stored.
    ///
    /// # Errors
    /// As [`Self::write`]. A content or epoch that is no longer current stores nothing, nor does
    /// what a chunk has dropped since the bucket was asked.
    pub async fn fill(&self, fill: Fill) -> Result<u64, EngineError> {
        let shared = self.shared();
        run(async move { shared.fill(fill).await }).await
    }

    /// What a fetch for a chunk takes along before it asks the bucket.
    #[must_use]
    pub fn drop_mark(&self, chunk: &ChunkKey) -> DropMark {
        self.shared().drops.mark(chunk)
    }
}

/// When a write is to be durable.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Wanted {
    /// With the next sync.
    Soon,
    /// Before its caller is answered.
    Now,
}

/// A write of which the index has the record.
#[derive(Debug)]
struct Written {
    /// Of the journal record.
    sequence: u64,
    version: ChunkVersion,
    /// The bytes, if they are still being written, and what the journal is then told.
    data: Option<(Answer, DataUnderWay)>,
}

impl Written {
    /// Waits until the bytes are on the device.
    async fn arrive(self) {
        if let Some((answer, data)) = self.data {
            // A failure is the journal's, which tells everybody who waits for this record.
            drop(data.done(answer.complete().await.map(drop)));
        }
    }
}

/// What became of a write.
enum Overlaid {
    LookAgain,
    Done(Written),
}

/// The pages that a change stores, and which old pages show through at its ends.
pub(super) struct Plan {
    /// Pages of the chunk.
    pub(super) pages: Range<u32>,
    /// The bytes that change, counted from the first page's start.
    pub(super) body: Range<usize>,
    /// The old page under the first one, and under the last one if that is another.
    pub(super) edges: [Option<StoredPage>; 2],
}

impl Plan {
    /// What a change of `range` (bytes of the chunk) comes to.
    pub(super) fn new(sections: &Sections, range: &Range<usize>) -> Self {
        let pages = page_number(range.start)..page_number(range.end.next_multiple_of(PAGE));
        let start = range.start / PAGE * PAGE;
        Self { body: range.start - start..range.end - start, edges: edges(sections, range), pages }
    }

    fn len(&self) -> usize {
        self.pages.len() * PAGE
    }

    /// Where each edge page lies in the buffer.
    fn places(&self) -> Vec<Option<StoredPage>> {
        let mut places = vec![None; self.pages.len()];
        places[0] = self.edges[0];
        if let Some(last) = self.edges[1] {
            *places.last_mut().expect("a plan has pages") = Some(last);
        }
        places
    }
}

/// The old pages of which a change of `range` leaves a part.
pub(super) fn edges(sections: &Sections, range: &Range<usize>) -> [Option<StoredPage>; 2] {
    let (first, last) = (range.start / PAGE, (range.end - 1) / PAGE);
    let stays = |page: usize| range.start > page * PAGE || range.end < (page + 1) * PAGE;
    let old = |page: usize| {
        let stored = stays(page).then(|| sections.page(page_number(page * PAGE)));
        stored.flatten()
    };
    [old(first), if last == first { None } else { old(last) }]
}

/// Refuses a change of `range` that leaves bytes of an absent block to the bucket.
pub(super) fn needs_fill(
    sections: &Sections,
    block: u16,
    range: &Range<usize>,
    backed: u32,
) -> Result<(), EngineError> {
    if sections.state(block) != BlockState::Absent {
        return Ok(());
    }
    let start = usize::from(block) * BLOCK;
    let len = (backed as usize).saturating_sub(start).min(BLOCK);
    match len > 0 && (range.start > start || range.end < start + len) {
        true => Err(EngineError::NeedsFill { key: sections.key(), block }),
        false => Ok(()),
    }
}

impl Shared {
    /// Writes; the caller waits until it is on the device or durable. Who comes next may change the
    /// blocks meanwhile.
    async fn write(
        self: &Arc<Self>,
        request: WriteRequest,
        wanted: Wanted,
    ) -> Result<Written, EngineError> {
        let len: usize = request.body.iter().map(Bytes::len).sum();
        assert!(len > 0, "a write has bytes: the server has checked");
        let start = request.offset as usize;
        let range = start..start + len;
        self.await_room_for_records().await?;
        let _guard = self.locks.lock(request.key, blocks_of(&range)).await;
        self.accepts(request.key, request.write_epoch).await?;
        for _ in 0..ATTEMPTS_MAX {
            if let Overlaid::Done(written) = self.overlay(&request, &range, wanted).await? {
                return Ok(written);
            }
        }
        Err(EngineError::StaleEpoch)
    }

    /// Writes under the block locks, which the caller holds.
    async fn overlay(
        self: &Arc<Self>,
        request: &WriteRequest,
        range: &Range<usize>,
        wanted: Wanted,
    ) -> Result<Overlaid, EngineError> {
        let blocks = blocks_of(range);
        let snapshot = self.snapshot(request.key, blocks.clone()).await?;
        let sections = snapshot.sections();
        for block in [*blocks.start(), *blocks.end()] {
            needs_fill(sections, block, range, request.backed)?;
        }
        let plan = Plan::new(sections, range);
        let buffer = self.pool.acquire_for_disk(plan.len()).await;
        let mut buffer = self.take_edges(sections, &plan, buffer).await?;
        let spot = spots::of_write(sections, &plan.pages, request.chunk_size);
        let sections = snapshot.into_sections();
        let mut at = plan.body.start;
        for part in &request.body {
            buffer.as_mut_slice()[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let stored = &buffer.as_slice()[..plan.len()];
        let checksums = of_pages(stored);
        // Combined from the checksums that are stored: what is stored is what the client sent.
        let arrived = of_range(&stored[plan.body.clone()], plan.body.start, &checksums);
        if arrived != request.checksum {
            return Err(EngineError::Damaged);
        }
        let is_beside = wanted == Wanted::Now && checksums.len() < usize::from(BLOCK_PAGES);
        if is_beside {
            self.prepare_room();
        }
        let count = u32::try_from(checksums.len()).expect("at most one buffer");
        let reservation = match spot {
            _ if is_beside => self.reserve_at(&self.small_writes.spot(count)).await?,
            Some(spot) => self.reserve_at(&spot).await?,
            None => self.reserve(u64::from(count), Purpose::Store).await?,
        };
        let pieces = pieces_of(reservation.extents());
        let mut writing = Some(self.disk.begin_write(pieces, Arc::new(buffer)).await?);
        if !is_beside && let Some(answer) = writing.take() {
            answer.complete().await?;
        }
        let cause = Cause::of_write(request, range.end, is_beside);
        let mut change = |number: u8, old: &Sections, section: &mut Section| {
            if edges(old, range) != plan.edges {
                return Decision::LookAgain;
            }
            let part = Stored { pages: &plan.pages, extents: reservation.extents() };
            part.put(number, section, &checksums, BlockState::Written);
            Decision::Go
        };
        let numbers = sections_of_pages(&plan.pages);
        match self.install(&cause, numbers, Some(&sections), &mut change).await {
            Ok(Outcome::Changed(Installed { sequence, version, data, .. })) => {
                Ok(Overlaid::Done(Written { sequence, version, data: writing.zip(data) }))
            }
            other => {
                if let Some(answer) = writing {
                    // The pages go back, which nothing may be written to any more.
                    drop(answer.complete().await);
                }
                other.map(|_| Overlaid::LookAgain)
            }
        }
    }

    /// Brings the old pages under the ends into the buffer, and zeros where there are none.
    pub(super) async fn take_edges(
        &self,
        sections: &Sections,
        plan: &Plan,
        mut buffer: AlignedBuffer,
    ) -> Result<AlignedBuffer, EngineError> {
        // The body overwrites its own part afterwards; the rest must not show recycled memory.
        buffer.as_mut_slice()[..plan.body.start].fill(0);
        buffer.as_mut_slice()[plan.body.end..].fill(0);
        let places = plan.places();
        let pieces = pieces(&places);
        if pieces.is_empty() {
            return Ok(buffer);
        }
        self.data_of(sections.sequence()).await?;
        let ends = [plan.pages.start, plan.pages.end - 1];
        let read = self.disk.read(pieces, buffer).await;
        let buffer = read.map_err(|error| self.unread(sections.key(), ends, error))?;
        let bytes = buffer.as_slice().chunks_exact(PAGE);
        for ((page, place), bytes) in plan.pages.clone().zip(&places).zip(bytes) {
            if let Some(place) = place
                && Crc32c::of(bytes) != place.checksum
            {
                return Err(self.corrupt(sections, page, place.page));
            }
        }
        Ok(buffer)
    }

    async fn fill(self: Arc<Self>, fill: Fill) -> Result<u64, EngineError> {
        let pages = fill.checksums.len();
        assert_eq!(
            (fill.len as usize).div_ceil(PAGE),
            pages,
            "a fill has a checksum for each page"
        );
        self.await_room_for_records().await?;
        self.accepts(fill.key, fill.write_epoch).await?;
        let first = u32::from(fill.first_block) * u32::from(BLOCK_PAGES);
        let pages = first..first + u32::try_from(pages).expect("at most one buffer");
        let reservation = self.reserve_at(&spots::of_fill(fill.key, &pages, fill.backed)).await?;
        let cause = Cause::of_fill(&fill);
        // What no reader holds is free again before the turn is waited for.
        let pieces = pieces_of(reservation.extents());
        match fill.gathers {
            true => self.fills.write(pieces, fill.buffer).await?,
            false => self.disk.write(pieces, fill.buffer).await?,
        }
        let mut installed = 0;
        let mut change = |number: u8, old: &Sections, section: &mut Section| {
            // Looked at where no drop of this section can come between: its object may be another
            // version than these bytes.
            if self.drops.mark(&fill.key) != fill.mark {
                return Decision::Go;
            }
            for block in block_of_page(pages.start)..=block_of_page(pages.end - 1) {
                let first = u32::from(block) * u32::from(BLOCK_PAGES);
                let part = first..pages.end.min(first + u32::from(BLOCK_PAGES));
                let here = !within(number, &part).is_empty();
                if !here || old.state(block) != BlockState::Absent {
                    continue;
                }
                let skipped = (first - pages.start) as usize;
                let extents = cut(reservation.extents(), skipped as u64, part.len() as u64);
                let checksums = &fill.checksums[skipped..skipped + part.len()];
                let stored = Stored { pages: &part, extents: &extents };
                stored.put(number, section, checksums, BlockState::Clean);
                installed += part.len() as u64;
            }
            Decision::Go
        };
        let numbers = sections_of_pages(&pages);
        if let Outcome::Changed(done) = self.install(&cause, numbers, None, &mut change).await? {
            self.written(done.sequence).await?;
        }
        Ok(installed * PAGE as u64)
    }
}

/// Pages of a chunk that were written to some extents, one after the other.
pub(super) struct Stored<'a> {
    pub(super) pages: &'a Range<u32>,
    pub(super) extents: &'a [Extent],
}

impl Stored<'_> {
    /// Points a section to those of the pages that lie in it.
    pub(super) fn put(
        &self,
        number: u8,
        section: &mut Section,
        checksums: &[Crc32c],
        state: BlockState,
    ) {
        let part = within(number, self.pages);
        if part.is_empty() {
            return;
        }
        let start = u32::from(number) * u32::from(crate::format::section::SECTION_PAGES);
        let skipped = start + u32::from(part.start) - self.pages.start;
        let extents = cut(self.extents, u64::from(skipped), part.len() as u64);
        let checksums = &checksums[skipped as usize..skipped as usize + part.len()];
        section.replace(part.start, &extents, checksums, state);
    }
}

/// `count` pages of some extents, after the first `skipped`.
pub(super) fn cut(extents: &[Extent], skipped: u64, count: u64) -> Vec<Extent> {
    let (mut skipped, mut missing) = (skipped, count);
    let mut found = Vec::new();
    for extent in extents {
        let from = skipped.min(extent.pages);
        let pages = (extent.pages - from).min(missing);
        if pages > 0 {
            found.push(Extent { first: extent.first + from, pages });
        }
        skipped -= from;
        missing -= pages;
    }
    assert_eq!(missing, 0, "the extents have as many pages");
    found
}

/// The blocks that bytes of a chunk lie in.
pub(super) fn blocks_of(range: &Range<usize>) -> std::ops::RangeInclusive<u16> {
    let number = |at: usize| u16::try_from(at / BLOCK).expect("within a chunk");
    number(range.start)..=number(range.end - 1)
}

/// The page that begins at or around a byte of a chunk.
pub(super) fn page_number(at: usize) -> u32 {
    u32::try_from(at / PAGE).expect("within a chunk")
}

/// The size of a file's chunks, as a request brings it.
pub(super) fn chunk_size(bytes: u64) -> ChunkSize {
    ChunkSize::new(bytes).expect("a chunk size: the server has checked")
}
