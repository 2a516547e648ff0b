//! Reading stored pages, each checked against its checksum, once for all who ask at the same time.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
};

use bytes::Bytes;
use millrace_types::{BlockState, ChunkKey, Crc32c};
use tokio::sync::watch;

use super::{BAD_BLOCKS_MAX, Engine, EngineError, Shared, page_checksum::PAGE};
use crate::{
    disk::Piece,
    format::chunk::{BLOCK_PAGES, Block, ChunkRecord, PAGE_SIZE},
};

/// A chunk as it was at one moment. Its pages stay where they are for as long as this lives, which
/// should therefore be short.
#[derive(Clone, Debug)]
pub struct Snapshot {
    record: Arc<ChunkRecord>,
    _pin: Arc<Pin>,
}

impl Snapshot {
    /// The record.
    #[must_use]
    pub fn record(&self) -> &ChunkRecord {
        &self.record
    }

    /// The block at `index`.
    #[must_use]
    pub fn block(&self, index: u16) -> Block {
        self.record.block(index)
    }
}

/// Keeps pages in quarantine that were given up after it was made.
#[derive(Debug)]
struct Pin {
    shared: Arc<Shared>,
    sequence: u64,
}

impl Drop for Pin {
    fn drop(&mut self) {
        let mut state = self.shared.state();
        let count = state.readers.get_mut(&self.sequence).expect("every pin is counted");
        *count -= 1;
        if *count == 0 {
            state.readers.remove(&self.sequence);
        }
    }
}

/// Verified pages.
#[derive(Clone, Debug)]
pub struct Loaded {
    /// Whole pages.
    pub bytes: Bytes,
    /// The checksum of each.
    pub checksums: Arc<[Crc32c]>,
}

impl Loaded {
    fn slice(&self, first: usize, pages: usize) -> Self {
        if first == 0 && pages == self.checksums.len() {
            return self.clone();
        }
        Self {
            bytes: self.bytes.slice(first * PAGE..(first + pages) * PAGE),
            checksums: self.checksums[first..first + pages].into(),
        }
    }
}

/// Disk reads under way.
#[derive(Debug, Default)]
pub(super) struct Flights {
    /// By chunk and the record that changed it last, so that only equal versions are shared.
    flying: Mutex<HashMap<(ChunkKey, u64), Vec<Flight>>>,
}

type Outcome = Option<Result<Loaded, EngineError>>;

#[derive(Debug)]
struct Flight {
    first: u32,
    pages: u32,
    outcome: watch::Receiver<Outcome>,
}

impl Engine {
    /// The chunk as it is now.
    #[must_use]
    pub fn snapshot(&self, key: ChunkKey) -> Snapshot {
        self.shared.snapshot(key)
    }

    /// Reads `pages` pages from page `first` of the chunk on, all of which must be stored: the
    /// caller has looked at the blocks. May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] when a page is not what was written; it has then been logged,
    /// counted and listed. [`EngineError::Disk`].
    ///
    /// # Panics
    /// When a page is not stored, or there are more than fit one buffer.
    pub async fn load(
        &self,
        snapshot: &Snapshot,
        first: u32,
        pages: u32,
    ) -> Result<Loaded, EngineError> {
        let flight_key = (snapshot.record.key, snapshot.record.sequence);
        let (mut outcome, skipped) = {
            let flights = &self.shared.flights.flying;
            let mut flying = flights.lock().unwrap_or_else(PoisonError::into_inner);
            let same = flying.entry(flight_key).or_default();
            let found = same.iter().find(|flight| {
                flight.first <= first && first + pages <= flight.first + flight.pages
            });
            if let Some(flight) = found {
                (flight.outcome.clone(), first - flight.first)
            } else {
                let (land, outcome) = watch::channel(None);
                same.push(Flight { first, pages, outcome: outcome.clone() });
                let shared = Arc::clone(&self.shared);
                let snapshot = snapshot.clone();
                tokio::spawn(async move { shared.fly(snapshot, first, pages, land).await });
                (outcome, 0)
            }
        };
        let landed = outcome.wait_for(Option::is_some).await;
        let landed = landed.map_err(|_| EngineError::Stopped)?.clone();
        let loaded = landed.expect("waited for")?;
        let skipped = usize::try_from(skipped).expect("within a buffer");
        Ok(loaded.slice(skipped, usize::try_from(pages).expect("within a buffer")))
    }
}

impl Shared {
    pub(super) fn snapshot(self: &Arc<Self>, key: ChunkKey) -> Snapshot {
        let mut state = self.state();
        let record = match state.index.chunk(key) {
            Some(record) => Arc::clone(record),
            None => Arc::new(ChunkRecord::new(key)),
        };
        let sequence = state.journal.sequence();
        *state.readers.entry(sequence).or_default() += 1;
        drop(state);
        Snapshot { record, _pin: Arc::new(Pin { shared: Arc::clone(self), sequence }) }
    }

    async fn fly(
        self: Arc<Self>,
        snapshot: Snapshot,
        first: u32,
        pages: u32,
        land: watch::Sender<Outcome>,
    ) {
        let outcome = self.read_pages(&snapshot, first, pages).await;
        let flight_key = (snapshot.record.key, snapshot.record.sequence);
        let mut flying = self.flights.flying.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(same) = flying.get_mut(&flight_key) {
            same.retain(|flight| (flight.first, flight.pages) != (first, pages));
            if same.is_empty() {
                flying.remove(&flight_key);
            }
        }
        drop(flying);
        drop(snapshot);
        land.send_replace(Some(outcome));
    }

    async fn read_pages(
        &self,
        snapshot: &Snapshot,
        first: u32,
        pages: u32,
    ) -> Result<Loaded, EngineError> {
        let len = usize::try_from(pages).expect("within a buffer") * PAGE;
        let pieces = pieces(&snapshot.record, first, pages, 0);
        let buffer = self.pool.acquire(len).await;
        let buffer = self.disk.read(pieces, buffer).await?;
        let checksums = self.verify(&snapshot.record, first, &buffer.as_slice()[..len])?;
        Ok(Loaded { bytes: buffer.freeze().slice(..len), checksums: checksums.into() })
    }

    /// Checks pages that were read from the disk against the record; returns their checksums.
    pub(super) fn verify(
        &self,
        record: &ChunkRecord,
        first: u32,
        bytes: &[u8],
    ) -> Result<Vec<Crc32c>, EngineError> {
        let mut checksums = Vec::with_capacity(bytes.len() / PAGE);
        for (page, bytes) in (first..).zip(bytes.chunks_exact(PAGE)) {
            let (block, within) = block_of(page);
            let expected = record.block(block).checksums[within];
            if Crc32c::of(bytes) != expected {
                return Err(self.corrupt(record, block, within));
            }
            checksums.push(expected);
        }
        Ok(checksums)
    }

    fn corrupt(&self, record: &ChunkRecord, block: u16, page: usize) -> EngineError {
        let key = record.key;
        let stored = record.block(block);
        self.checksum_failures.fetch_add(1, Ordering::Relaxed);
        let mut state = self.state();
        if state.bad.len() < BAD_BLOCKS_MAX {
            state.bad.insert((key, block));
        }
        drop(state);
        tracing::error!(
            target = %self.target,
            chunk = %key,
            block,
            page,
            data_page = stored.first_page + page as u64,
            state = ?stored.state,
            "a page on disk does not match its checksum"
        );
        EngineError::Corrupt { key, block, clean: stored.state == BlockState::Clean }
    }
}

/// The transfer of `pages` stored pages into a buffer from `start` on, joined where they adjoin.
pub(super) fn pieces(record: &ChunkRecord, first: u32, pages: u32, start: usize) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    let mut at = start;
    let mut page = first;
    while page < first + pages {
        let (block, within) = block_of(page);
        let stored = record.block(block);
        let within_block = page % u32::from(BLOCK_PAGES);
        let left = (first + pages - page).min(u32::from(stored.pages) - within_block);
        assert!(left > 0, "only stored pages are read");
        let offset = (stored.first_page + within as u64) * u64::from(PAGE_SIZE);
        let len = usize::try_from(left).expect("within a block") * PAGE;
        match pieces.last_mut() {
            Some(last) if last.offset + last.range.len() as u64 == offset => last.range.end += len,
            _ => pieces.push(Piece { offset, range: at..at + len }),
        }
        at += len;
        page += left;
    }
    pieces
}

/// The block that a page of a chunk lies in, and its number within.
pub(crate) fn block_of(page: u32) -> (u16, usize) {
    let block = page / u32::from(BLOCK_PAGES);
    let within = page % u32::from(BLOCK_PAGES);
    (u16::try_from(block).expect("a chunk has 1,024 blocks at most"), within as usize)
}
