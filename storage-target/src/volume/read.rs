//! Reading stored pages, each checked against its checksum, once for all who ask at the same time.

use std::{
    borrow::Cow,
    collections::HashMap,
    ops::{Range, RangeInclusive},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use bytes::Bytes;
use futures::future::try_join_all;
use millrace_types::{BlockState, ChunkKey, Crc32c};
use tokio::sync::oneshot;

use super::{
    EngineError, Shared, Volume,
    sections::{Sections, block_of_page, split_block},
};
use crate::{
    disk::{Charge, DiskError, Piece},
    format::section::{Section, StoredPage},
    page_checksum::PAGE,
};

/// Part of a chunk as it was at one moment. Its pages stay where they are for as long as this
/// lives, which should therefore be short.
#[derive(Clone, Debug)]
pub struct Snapshot {
    sections: Arc<Sections>,
    pin: Arc<Pin>,
}

impl Snapshot {
    /// The chunk.
    #[must_use]
    pub fn key(&self) -> ChunkKey {
        self.sections.key()
    }

    /// Where the bytes of a block come from.
    ///
    /// # Panics
    /// When the block is none of those that were asked for.
    #[must_use]
    pub fn state(&self, block: u16) -> BlockState {
        self.sections.state(block)
    }

    /// One past the last page of a block that lies on the disk; 0 when none does. What lies behind
    /// it is zero, if the block is stored.
    ///
    /// # Panics
    /// As [`Self::state`].
    #[must_use]
    pub fn stored_pages(&self, block: u16) -> u32 {
        self.sections.stored_pages(block)
    }

    /// How many pages of a block lie on the disk.
    ///
    /// # Panics
    /// As [`Self::state`].
    #[must_use]
    pub fn page_count(&self, block: u16) -> u64 {
        self.sections.pages_of(block).count() as u64
    }

    /// Where on the disk a page of the chunk lies; `None` when it does not.
    ///
    /// # Panics
    /// As [`Self::state`].
    #[must_use]
    pub fn disk_page(&self, page: u32) -> Option<u64> {
        self.sections.page(page).map(|stored| stored.page)
    }

    /// A number that another version of the block does not have.
    ///
    /// # Panics
    /// As [`Self::state`].
    #[must_use]
    pub fn fingerprint(&self, block: u16) -> u64 {
        self.sections.fingerprint(block)
    }

    pub(super) fn sections(&self) -> &Sections {
        &self.sections
    }

    /// Lets go of the pages.
    pub(super) fn into_sections(self) -> Arc<Sections> {
        self.sections
    }
}

/// Keeps pages in quarantine that were given up after it was made.
#[derive(Debug)]
pub(super) struct Pin {
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

/// Disk reads under way. Who asks for what is being read already waits for that.
#[derive(Debug, Default)]
pub(super) struct Flights {
    flying: Mutex<HashMap<ChunkKey, Vec<Flight>>>,
    /// The number of the next one.
    next: AtomicU64,
}

type Outcome = Result<Loaded, EngineError>;

#[derive(Debug)]
struct Flight {
    number: u64,
    first: u32,
    pages: u32,
    /// Only equal versions are shared.
    sections: Arc<Sections>,
    waiting: Vec<oneshot::Sender<Outcome>>,
}

/// What a request does about a read.
enum Boarding<'a> {
    /// It reads.
    Leads(Leader<'a>),
    /// It waits for another's read, which begins so many pages before.
    Follows(oneshot::Receiver<Outcome>, u32),
}

/// Takes its flight off the list when it is dropped. Who waited then asks again.
struct Leader<'a> {
    flights: &'a Flights,
    key: ChunkKey,
    number: u64,
}

impl Flights {
    fn board(&self, sections: &Arc<Sections>, first: u32, pages: u32) -> Boarding<'_> {
        let key = sections.key();
        let mut flying = self.flying();
        let same = flying.entry(key).or_default();
        let found = same.iter_mut().find(|flight| {
            flight.first <= first
                && first + pages <= flight.first + flight.pages
                && flight.sections.are_as(sections, first..first + pages)
        });
        if let Some(flight) = found {
            let (landed, outcome) = oneshot::channel();
            flight.waiting.push(landed);
            return Boarding::Follows(outcome, first - flight.first);
        }
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (sections, waiting) = (Arc::clone(sections), Vec::new());
        same.push(Flight { number, first, pages, sections, waiting });
        Boarding::Leads(Leader { flights: self, key, number })
    }

    fn take(&self, key: ChunkKey, number: u64) -> Option<Flight> {
        let mut flying = self.flying();
        let same = flying.get_mut(&key)?;
        let at = same.iter().position(|flight| flight.number == number)?;
        let flight = same.swap_remove(at);
        if same.is_empty() {
            flying.remove(&key);
        }
        Some(flight)
    }

    /// A panic elsewhere leaves the list whole: every change of it is one step.
    fn flying(&self) -> MutexGuard<'_, HashMap<ChunkKey, Vec<Flight>>> {
        self.flying.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Leader<'_> {
    fn land(&self, outcome: &Outcome) {
        let waiting = self.flights.take(self.key, self.number).map(|flight| flight.waiting);
        for landed in waiting.into_iter().flatten() {
            // Nobody waiting any more is no error.
            drop(landed.send(outcome.clone()));
        }
    }
}

impl Drop for Leader<'_> {
    fn drop(&mut self) {
        drop(self.flights.take(self.key, self.number));
    }
}

impl Volume {
    /// The blocks of a chunk as they are now. May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::Index`].
    ///
    /// # Panics
    /// When the range is empty or goes past the largest chunk.
    pub async fn snapshot(
        &self,
        key: ChunkKey,
        blocks: Range<u16>,
    ) -> Result<Snapshot, EngineError> {
        self.shared().snapshot(key, blocks.start..=blocks.end - 1).await
    }

    /// Reads `pages` pages from page `first` of the chunk on, all of which belong to stored blocks
    /// of the snapshot. May be dropped at its await.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] when a page is not what was written; it has then been logged,
    /// counted and listed. [`EngineError::Disk`], also when the target has been opened again since:
    /// what the snapshot has may be used for something else by now.
    ///
    /// # Panics
    /// When there are more pages than fit one buffer, or some that the snapshot does not have.
    pub async fn load(
        &self,
        snapshot: &Snapshot,
        first: u32,
        pages: u32,
    ) -> Result<Loaded, EngineError> {
        self.load_charged(snapshot, first, pages, None).await
    }

    /// The same. What is read counts against `charge` while the disk has the buffer, also when
    /// this was dropped meanwhile; not any more when it is loaded, since others may have it then.
    pub(crate) async fn load_charged(
        &self,
        snapshot: &Snapshot,
        first: u32,
        pages: u32,
        charge: Option<&Charge>,
    ) -> Result<Loaded, EngineError> {
        let shared = &snapshot.pin.shared;
        loop {
            match shared.flights.board(&snapshot.sections, first, pages) {
                Boarding::Leads(leader) => {
                    let read = shared.read_pages(&snapshot.sections, first, pages, charge);
                    let outcome = read.await;
                    leader.land(&outcome);
                    return outcome;
                }
                Boarding::Follows(outcome, skipped) => {
                    // Without an answer whoever was reading has gone away.
                    if let Ok(loaded) = outcome.await {
                        return Ok(loaded?.slice(skipped as usize, pages as usize));
                    }
                }
            }
        }
    }

    /// As [`Self::load`], but by a read of its own: one that is shared fails for everybody where a
    /// page is bad that perhaps only others have asked for.
    pub(crate) async fn load_alone(
        &self,
        snapshot: &Snapshot,
        first: u32,
        pages: u32,
    ) -> Result<Loaded, EngineError> {
        snapshot.pin.shared.read_pages(&snapshot.sections, first, pages, None).await
    }
}

impl Shared {
    /// Holds back pages that are given up from now on.
    pub(super) fn pin(self: &Arc<Self>) -> Arc<Pin> {
        let mut state = self.state();
        let sequence = self.journal.next_sequence() - 1;
        *state.readers.entry(sequence).or_default() += 1;
        drop(state);
        Arc::new(Pin { shared: Arc::clone(self), sequence })
    }

    pub(super) async fn snapshot(
        self: &Arc<Self>,
        key: ChunkKey,
        blocks: RangeInclusive<u16>,
    ) -> Result<Snapshot, EngineError> {
        // First the pin: whatever version is found then, its pages are held back.
        let pin = self.pin();
        let numbers = split_block(*blocks.start()).0..=split_block(*blocks.end()).0;
        let sections = self.sections(key, numbers).await?;
        Ok(Snapshot { sections: Arc::new(sections), pin })
    }

    /// The records of some sections as the index has them.
    pub(super) async fn sections(
        &self,
        key: ChunkKey,
        numbers: RangeInclusive<u8>,
    ) -> Result<Sections, EngineError> {
        let (&first, &last) = (numbers.start(), numbers.end());
        // Most requests lie in one section: no need to wait for several at a time.
        let records = match first == last {
            true => vec![self.section(key, first).await?.1],
            false => {
                let records = try_join_all(numbers.map(|number| self.section(key, number))).await?;
                records.into_iter().map(|(_, record)| record).collect()
            }
        };
        Ok(Sections::new(key, first, records))
    }

    /// The same as they are now; `known` are some that were looked up before.
    pub(super) async fn sections_again<'a>(
        &self,
        known: &'a Sections,
        numbers: RangeInclusive<u8>,
    ) -> Result<Cow<'a, Sections>, EngineError> {
        let is_same = known.covers(&numbers) && {
            let mut is_same = true;
            for (number, record) in known.iter() {
                let value = self.section_value(known.key(), number).await?;
                is_same &= match (&value, record) {
                    // No two records of a section are of the same change.
                    (Some(value), Some(record)) => {
                        Section::sequence_in(value) == Some(record.sequence)
                    }
                    (None, None) => true,
                    _ => false,
                };
            }
            is_same
        };
        match is_same {
            true => Ok(Cow::Borrowed(known)),
            false => Ok(Cow::Owned(self.sections(known.key(), numbers).await?)),
        }
    }

    async fn read_pages(
        &self,
        sections: &Sections,
        first: u32,
        pages: u32,
        charge: Option<&Charge>,
    ) -> Result<Loaded, EngineError> {
        let len = pages as usize * PAGE;
        let places: Vec<Option<StoredPage>> =
            (first..first + pages).map(|page| sections.page(page)).collect();
        let mut buffer = self.pool.acquire_for_disk(len).await;
        if let Some(charge) = charge {
            buffer.charge(charge);
        }
        let pieces = pieces(&places);
        if !pieces.is_empty() {
            self.data_of(sections.sequence()).await?;
            let ends = [first, first + pages - 1];
            let read = self.disk.read(pieces, buffer).await;
            buffer = read.map_err(|error| self.unread(sections.key(), ends, error))?;
        }
        buffer.discharge();
        let mut checksums = Vec::with_capacity(places.len());
        let bytes = &mut buffer.as_mut_slice()[..len];
        for ((page, place), bytes) in (first..).zip(&places).zip(bytes.chunks_exact_mut(PAGE)) {
            match place {
                Some(place) if Crc32c::of(bytes) != place.checksum => {
                    return Err(self.corrupt(sections, page, place.page));
                }
                Some(place) => checksums.push(place.checksum),
                None => {
                    bytes.fill(0);
                    checksums.push(self.zero_page);
                }
            }
        }
        Ok(Loaded { bytes: buffer.freeze().slice(..len), checksums: checksums.into() })
    }

    /// Asks for a second look at the blocks of some pages which the disk has failed to read.
    pub(super) fn unread(
        &self,
        key: ChunkKey,
        pages: impl IntoIterator<Item = u32>,
        error: DiskError,
    ) -> EngineError {
        for page in pages {
            self.suspect(key, block_of_page(page));
        }
        error.into()
    }

    /// Notes that a page is not what was written.
    pub(super) fn corrupt(&self, sections: &Sections, page: u32, disk_page: u64) -> EngineError {
        let key = sections.key();
        let block = block_of_page(page);
        let block_state = sections.state(block);
        self.checksum_failures.fetch_add(1, Ordering::Relaxed);
        self.suspect(key, block);
        tracing::error!(
            target = %self.target,
            chunk = %key,
            block,
            page,
            disk_page,
            state = ?block_state,
            "a page on disk does not match its checksum"
        );
        EngineError::Corrupt { key, block, clean: block_state == BlockState::Clean }
    }
}

/// The transfer of those pages that lie on the disk, each into its place in a buffer, joined where
/// they adjoin.
pub(super) fn pieces(places: &[Option<StoredPage>]) -> Vec<Piece> {
    let mut pieces: Vec<Piece> = Vec::new();
    for (nth, place) in places.iter().enumerate() {
        let Some(place) = place else { continue };
        let offset = place.page * PAGE as u64;
        let at = nth * PAGE;
        match pieces.last_mut() {
            Some(last)
                if last.range.end == at && last.offset + last.range.len() as u64 == offset =>
            {
                last.range.end += PAGE;
            }
            _ => pieces.push(Piece { offset, range: at..at + PAGE }),
        }
    }
    pieces
}
