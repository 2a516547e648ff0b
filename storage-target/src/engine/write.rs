//! Changing blocks: clients' writes, fills from a bucket, and zeroing.
//!
//! Every change is copy-on-write by whole blocks: a block of which a part is written is read,
//! checked, overlaid, and stored in fresh pages. The journal record follows the data, and the index
//! follows the record.

use std::{fmt, ops::Range, sync::Arc};

use bytes::Bytes;
use millrace_protocol::storage::ChunkVersion;
use millrace_types::{
    BLOCK_SIZE, BlockState, ChunkKey, Crc32c, GroupEpoch, SessionId, WriteEpoch, WriteNumber,
};

use super::{
    Engine, EngineError, Purpose, Shared, State,
    page_checksum::{PAGE, of_pages, of_range},
    read::{Snapshot, pieces},
    space::{Reservation, reserve},
};
use crate::{
    disk::AlignedBuffer,
    format::{
        chunk::{BLOCK_PAGES, ChunkRecord, Run},
        record::{BlocksChange, Record},
    },
};

pub(super) const BLOCK: usize = 64 * 1024;
const _: () = assert!(BLOCK as u64 == BLOCK_SIZE);

/// Whether a change may still be applied when its turn has come: the session's ticket may have run
/// out while it waited for memory, blocks or the disk.
#[derive(Clone, Default)]
pub struct Authority(Option<Arc<dyn Fn() -> bool + Send + Sync>>);

impl Authority {
    /// Asks `stands` at the moment of applying; it must not block.
    #[must_use]
    pub fn new(stands: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(stands)))
    }

    pub(crate) fn stands(&self) -> bool {
        self.0.as_ref().is_none_or(|stands| stands())
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Authority")
    }
}

/// A client's write to part of a chunk.
#[derive(Clone, Debug)]
pub struct WriteRequest {
    /// The chunk.
    pub key: ChunkKey,
    /// First byte within the chunk.
    pub offset: u32,
    /// The bytes, 1 to 1 MiB in all; they lie within the chunk.
    pub body: Vec<Bytes>,
    /// Of the body, as its maker computed it.
    pub checksum: Crc32c,
    /// The caller's view of the group.
    pub group_epoch: GroupEpoch,
    /// The caller's view of the file.
    pub write_epoch: WriteEpoch,
    /// Bytes of the file's chunks.
    pub chunk_size: u32,
    /// How many bytes from the chunk's start the bucket backs.
    pub backed: u32,
    /// Whose write it is, and its number; remembered in the journal.
    pub session: SessionId,
    /// See `session`.
    pub number: WriteNumber,
    /// Asked at the moment of applying.
    pub authority: Authority,
}

/// Part of a chunk to become zeros.
#[derive(Clone, Debug)]
pub struct ZeroRequest {
    /// The chunk.
    pub key: ChunkKey,
    /// The bytes within the chunk; not empty.
    pub range: Range<u32>,
    /// The caller's view of the group.
    pub group_epoch: GroupEpoch,
    /// The caller's view of the file.
    pub write_epoch: WriteEpoch,
    /// Bytes of the file's chunks.
    pub chunk_size: u32,
    /// How many bytes from the chunk's start the bucket backs.
    pub backed: u32,
    /// Whose request it is, and its number.
    pub session: SessionId,
    /// See `session`.
    pub number: WriteNumber,
    /// Asked at the moment of applying.
    pub authority: Authority,
}

/// Bytes that came from the bucket, on their way to the disk.
#[derive(Clone, Debug)]
pub struct Fill {
    /// The chunk.
    pub key: ChunkKey,
    /// The first block.
    pub first_block: u16,
    /// The bytes of the blocks, padded with zeros to whole pages. Readers may hold it too.
    pub buffer: Arc<AlignedBuffer>,
    /// Valid bytes: every block but the last is full.
    pub len: u32,
    /// The checksum of each page.
    pub checksums: Arc<[Crc32c]>,
    /// The write epoch of the capability for which the bytes were fetched.
    pub write_epoch: WriteEpoch,
    /// Bytes of the file's chunks.
    pub chunk_size: u32,
}

impl Engine {
    /// Writes part of a chunk. The work goes on when the caller goes away.
    ///
    /// # Durability
    /// Survives a kill of the process on return; a loss of power after [`Engine::sync`].
    ///
    /// # Errors
    /// [`EngineError::Damaged`], [`EngineError::NeedsFill`], [`EngineError::StaleEpoch`],
    /// [`EngineError::StaleContent`], [`EngineError::NoSpace`], or a failure of the disk; nothing
    /// is then changed.
    pub async fn write(&self, request: WriteRequest) -> Result<ChunkVersion, EngineError> {
        let shared = Arc::clone(&self.shared);
        run(async move { shared.write(request).await }).await
    }

    /// Turns part of a chunk into zeros: whole blocks give up their pages, the ends are rewritten.
    ///
    /// # Errors
    /// As [`Self::write`], except that a failure or want of space may leave one of the ends zeroed
    /// already; asking again does the rest.
    pub async fn zero(&self, request: ZeroRequest) -> Result<ChunkVersion, EngineError> {
        let shared = Arc::clone(&self.shared);
        run(async move { shared.zero(request).await }).await
    }

    /// Stores what came from the bucket where blocks are still absent; returns the bytes stored.
    ///
    /// # Errors
    /// As [`Self::write`]. A content or epoch that is no longer current stores nothing.
    pub async fn fill(&self, fill: Fill) -> Result<u64, EngineError> {
        let shared = Arc::clone(&self.shared);
        run(async move { shared.fill(fill).await }).await
    }
}

/// Runs a change in a task of its own, because pages under the kernel's hands must not be given
/// back when a caller goes away.
pub(super) async fn run<T: Send + 'static>(
    work: impl Future<Output = Result<T, EngineError>> + Send + 'static,
) -> Result<T, EngineError> {
    tokio::spawn(work).await.unwrap_or(Err(EngineError::Stopped))
}

/// What a write does to the blocks that it touches.
struct Plan {
    first_block: u16,
    blocks: u16,
    /// Bytes to store: full blocks and the pages of the last one.
    stored: usize,
    /// Where the body goes, counted from the first block's start.
    body: Range<usize>,
    /// Whether old bytes of the first and of the last block must be kept.
    keep_first: bool,
    keep_last: bool,
}

impl Plan {
    fn new(record: &ChunkRecord, range: Range<usize>, backed: u32) -> Result<Self, EngineError> {
        let (first, last) = (range.start / BLOCK, (range.end - 1) / BLOCK);
        let number = |block: usize| u16::try_from(block).expect("within a chunk");
        let (first_block, last_block) = (number(first), number(last));
        let keep_first = keeps(record, first_block, &range, backed)?;
        let keep_last = keeps(record, last_block, &range, backed)?;
        let start = first * BLOCK;
        let old_end = match keep_last {
            true => last * BLOCK + usize::from(record.block(last_block).pages) * PAGE,
            false => 0,
        };
        Ok(Self {
            first_block,
            blocks: last_block - first_block + 1,
            stored: (range.end.max(old_end) - start).next_multiple_of(PAGE),
            body: range.start - start..range.end - start,
            keep_first,
            keep_last,
        })
    }
}

/// Whether a write of `range` leaves bytes of `block` that must be kept.
fn keeps(
    record: &ChunkRecord,
    block: u16,
    range: &Range<usize>,
    backed: u32,
) -> Result<bool, EngineError> {
    let start = usize::from(block) * BLOCK;
    let old = record.block(block);
    let uncovered = |len: usize| len > 0 && (range.start > start || range.end < start + len);
    match old.state {
        BlockState::Zero => Ok(false),
        BlockState::Clean | BlockState::Written => Ok(uncovered(usize::from(old.pages) * PAGE)),
        BlockState::Absent => {
            let backed = usize::try_from(backed).expect("32 bits fit");
            if uncovered(backed.saturating_sub(start).min(BLOCK)) {
                return Err(EngineError::NeedsFill { key: record.key, block });
            }
            Ok(false)
        }
    }
}

impl Shared {
    async fn write(self: Arc<Self>, request: WriteRequest) -> Result<ChunkVersion, EngineError> {
        let len: usize = request.body.iter().map(Bytes::len).sum();
        assert!(len > 0, "a write has bytes: the server has checked");
        let start = usize::try_from(request.offset).expect("32 bits fit");
        let range = start..start + len;
        let blocks = blocks_of(&range);
        let guard = self.locks.lock(request.key, blocks).await;
        self.accepts(request.key, request.write_epoch)?;
        let version = self.overlay(&request, range).await?;
        drop(guard);
        Ok(version)
    }

    /// Writes under the block lock, which the caller holds.
    async fn overlay(
        self: &Arc<Self>,
        request: &WriteRequest,
        range: Range<usize>,
    ) -> Result<ChunkVersion, EngineError> {
        let snapshot = self.snapshot(request.key);
        let plan = Plan::new(snapshot.record(), range.clone(), request.backed)?;
        let mut buffer = self.pool.acquire(plan.stored).await;
        buffer = self.take_old(&snapshot, &plan, buffer).await?;
        drop(snapshot);
        let mut at = plan.body.start;
        for part in &request.body {
            buffer.as_mut_slice()[at..at + part.len()].copy_from_slice(part);
            at += part.len();
        }
        let stored = &buffer.as_slice()[..plan.stored];
        let checksums = of_pages(stored);
        // Combined from the checksums that are stored: what is stored is what the client sent.
        let first_page = plan.body.start / PAGE;
        let arrived =
            of_range(&stored[plan.body.clone()], plan.body.start % PAGE, &checksums[first_page..]);
        if arrived != request.checksum {
            return Err(EngineError::Damaged);
        }
        let reservation = reserve(self, (plan.stored / PAGE) as u64).await?;
        self.disk.write(reservation.pieces(), Arc::new(buffer)).await?;
        let runs = runs(&reservation, plan.first_block, &checksums, BlockState::Written);
        let end = u32::try_from(range.end).expect("within a chunk");
        let mut state = self.state();
        let version = state.install(request, end, runs)?;
        drop(state);
        reservation.keep();
        Ok(version)
    }

    /// Brings the old bytes that must be kept into the buffer, and zeros where there are none.
    async fn take_old(
        &self,
        snapshot: &Snapshot,
        plan: &Plan,
        mut buffer: AlignedBuffer,
    ) -> Result<AlignedBuffer, EngineError> {
        let last = plan.first_block + plan.blocks - 1;
        let mut kept = Vec::new();
        if plan.keep_first {
            kept.push(plan.first_block);
        }
        if plan.keep_last && (last != plan.first_block || !plan.keep_first) {
            kept.push(last);
        }
        // The body overwrites its own part afterwards; the rest must not show recycled memory.
        buffer.as_mut_slice()[..plan.body.start].fill(0);
        buffer.as_mut_slice()[plan.body.end..].fill(0);
        let mut transfers = Vec::new();
        for &block in &kept {
            let first = u32::from(block) * u32::from(BLOCK_PAGES);
            let start = usize::from(block - plan.first_block) * BLOCK;
            let pages = u32::from(snapshot.block(block).pages);
            transfers.extend(pieces(snapshot.record(), first, pages, start));
        }
        if transfers.is_empty() {
            return Ok(buffer);
        }
        let buffer = self.disk.read(transfers, buffer).await?;
        for &block in &kept {
            let first = u32::from(block) * u32::from(BLOCK_PAGES);
            let start = usize::from(block - plan.first_block) * BLOCK;
            let len = usize::from(snapshot.block(block).pages) * PAGE;
            self.verify(snapshot.record(), first, &buffer.as_slice()[start..start + len])?;
        }
        Ok(buffer)
    }

    async fn zero(self: Arc<Self>, request: ZeroRequest) -> Result<ChunkVersion, EngineError> {
        let end_offset = |at: u32| usize::try_from(at).expect("32 bits fit");
        let range = end_offset(request.range.start)..end_offset(request.range.end);
        assert!(!range.is_empty(), "a range has bytes: the server has checked");
        let blocks = blocks_of(&range);
        let _guard = self.locks.lock(request.key, blocks.clone()).await;
        self.accepts(request.key, request.write_epoch)?;
        let record = self.snapshot(request.key).record().clone();
        for block in blocks.clone() {
            // What must be fetched is asked for before anything is changed.
            keeps(&record, block, &range, request.backed)?;
        }
        let mut version = record.version;
        let mut zeroed: Vec<Run> = Vec::new();
        for block in blocks {
            let start = usize::from(block) * BLOCK;
            let part = range.start.max(start)..range.end.min(start + BLOCK);
            let old = record.block(block);
            let stays = old.state == BlockState::Absent && part.len() < BLOCK;
            if keeps(&record, block, &range, request.backed)? {
                version = self.overlay(&zeros(&request, &part), part).await?;
            } else if old.state != BlockState::Zero && !(stays && request.backed as usize <= start)
            {
                match zeroed.last_mut() {
                    Some(run) if run.first_block + run.blocks == block => run.blocks += 1,
                    _ => zeroed.push(Run::unstored(block, 1, BlockState::Zero)),
                }
            }
        }
        if zeroed.is_empty() {
            return Ok(version);
        }
        let mut state = self.state();
        state.install(&zeros(&request, &(range.start..range.start)), 0, zeroed)
    }

    async fn fill(self: Arc<Self>, fill: Fill) -> Result<u64, EngineError> {
        self.accepts(fill.key, fill.write_epoch)?;
        let pages = fill.checksums.len();
        assert_eq!(
            usize::try_from(fill.len).expect("32 bits fit").div_ceil(PAGE),
            pages,
            "a fill has a checksum for each page"
        );
        let reservation = reserve(&self, pages as u64).await?;
        self.disk.write(reservation.pieces(), Arc::clone(&fill.buffer)).await?;
        let runs = runs(&reservation, fill.first_block, &fill.checksums, BlockState::Clean);
        let mut state = self.state();
        state.accepts(fill.key, fill.write_epoch)?;
        let record = state.record(fill.key);
        let absent = |block: u16| record.block(block).state == BlockState::Absent;
        let runs: Vec<Run> = runs.into_iter().filter(|run| absent(run.first_block)).collect();
        let installed: u64 = runs.iter().map(|run| run.pages() * PAGE as u64).sum();
        if !runs.is_empty() {
            let start = usize::from(fill.first_block) * BLOCK;
            let end = u32::try_from(start).expect("within a chunk") + fill.len;
            let mut change = change_of(&record, SessionId(0), WriteNumber(0), runs);
            change.length = record.length.max(end);
            change.chunk_size = fill.chunk_size;
            change.write_epoch = record.write_epoch.max(fill.write_epoch);
            state.commit(&[Record::Blocks(change)], Purpose::Store)?;
        }
        drop(state);
        reservation.keep_blocks(|number| absent(fill.first_block + number));
        Ok(installed)
    }

    pub(super) fn accepts(&self, key: ChunkKey, epoch: WriteEpoch) -> Result<(), EngineError> {
        self.state().accepts(key, epoch)
    }
}

impl State {
    /// Whether content and epoch are still current.
    pub(super) fn accepts(&self, key: ChunkKey, epoch: WriteEpoch) -> Result<(), EngineError> {
        let (generation, write_epoch) = self.index.oldest_accepted(key.inode);
        if key.generation < generation {
            return Err(EngineError::StaleContent);
        }
        if key.generation == generation && epoch < write_epoch {
            return Err(EngineError::StaleEpoch);
        }
        Ok(())
    }

    pub(super) fn record(&self, key: ChunkKey) -> Arc<ChunkRecord> {
        self.index.chunk(key).map_or_else(|| Arc::new(ChunkRecord::new(key)), Arc::clone)
    }

    /// Points the index to what a write has stored, unless the file shrank meanwhile.
    fn install(
        &mut self,
        request: &WriteRequest,
        end: u32,
        runs: Vec<Run>,
    ) -> Result<ChunkVersion, EngineError> {
        if !request.authority.stands() {
            return Err(EngineError::Revoked);
        }
        self.accepts(request.key, request.write_epoch)?;
        let record = self.record(request.key);
        let mut change = change_of(&record, request.session, request.number, runs);
        change.version = next_version(record.version, request.group_epoch);
        change.group_epoch = record.group_epoch.max(request.group_epoch);
        change.write_epoch = record.write_epoch.max(request.write_epoch);
        change.length = record.length.max(end);
        change.chunk_size = request.chunk_size;
        let version = change.version;
        self.commit(&[Record::Blocks(change)], Purpose::Store)?;
        Ok(version)
    }
}

/// A change of blocks that leaves the rest of the record as it is, under the next version.
pub(super) fn change_of(
    record: &ChunkRecord,
    session: SessionId,
    number: WriteNumber,
    runs: Vec<Run>,
) -> BlocksChange {
    BlocksChange {
        key: record.key,
        version: next_version(record.version, record.group_epoch),
        group_epoch: record.group_epoch,
        write_epoch: record.write_epoch,
        length: record.length,
        chunk_size: record.chunk_size,
        session,
        number,
        runs,
    }
}

fn next_version(old: ChunkVersion, epoch: GroupEpoch) -> ChunkVersion {
    let counter = old.counter + 1;
    ChunkVersion { group_epoch: old.group_epoch.max(epoch), counter }
}

/// A write of zeros over `part`, for a zeroing's ends.
fn zeros(request: &ZeroRequest, part: &Range<usize>) -> WriteRequest {
    static ZEROS: [u8; BLOCK] = [0; BLOCK];
    let body = Bytes::from_static(&ZEROS[..part.len()]);
    WriteRequest {
        key: request.key,
        offset: u32::try_from(part.start).expect("within a chunk"),
        checksum: Crc32c::of(&body),
        body: vec![body],
        group_epoch: request.group_epoch,
        write_epoch: request.write_epoch,
        chunk_size: request.chunk_size,
        backed: request.backed,
        session: request.session,
        number: request.number,
        authority: request.authority.clone(),
    }
}

/// The blocks that bytes of a chunk lie in.
fn blocks_of(range: &Range<usize>) -> std::ops::RangeInclusive<u16> {
    let number = |at: usize| u16::try_from(at / BLOCK).expect("within a chunk");
    number(range.start)..=number(range.end - 1)
}

/// The blocks of a reservation, one run each: what is installed may differ block by block.
pub(super) fn runs(
    reservation: &Reservation,
    first_block: u16,
    checksums: &[Crc32c],
    state: BlockState,
) -> Vec<Run> {
    let block_pages = usize::from(BLOCK_PAGES);
    let places = reservation.block_runs().flat_map(|(first, blocks)| {
        (0..u64::from(blocks)).map(move |nth| first + nth * u64::from(BLOCK_PAGES))
    });
    (first_block..)
        .zip(checksums.chunks(block_pages))
        .zip(places)
        .map(|((block, checksums), first_page)| Run {
            first_block: block,
            blocks: 1,
            state,
            tail_pages: u8::try_from(checksums.len()).expect("at most 16"),
            first_page,
            checksums: checksums.to_vec(),
        })
        .collect()
}
