//! Reading a journal at a start.

use bytes::Bytes;

use super::{JournalError, Options};
use crate::{
    disk::Piece,
    format::{
        batch::BootId,
        batch::{BATCH_HEADER_LEN, Batch, Position, claimed_len},
        units::PAGE_SIZE,
    },
};

/// Pages read with one request: 1 MiB.
const PAGES_PER_READ: u64 = 256;

const PAGE: usize = 4096;
const _: () = assert!(PAGE == PAGE_SIZE as usize);

/// What a journal holds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Replayed {
    /// The records from the start on, each with its sequence.
    pub records: Vec<(u64, Bytes)>,
    /// Every record below had been durable for certain; later ones may have been.
    pub committed_end: u64,
    /// Where the journal goes on.
    pub end: Position,
    /// The boot under which the last batch was written; `None` when there is none.
    pub boot: Option<BootId>,
}

/// Reads from `start` to the first batch that does not follow.
pub(super) async fn replay(options: &Options, start: Position) -> Result<Replayed, JournalError> {
    let ring = options.ring;
    let outside = !ring.contains(start.page);
    if outside {
        return Err(JournalError::Damaged { sequence: start.sequence });
    }
    let mut window = Window { options, first: 0, bytes: Bytes::new() };
    let mut replayed = Replayed { records: Vec::new(), committed_end: 0, end: start, boot: None };
    let mut pages_read = 0;
    while let Some(batch) = window.follower(replayed.end).await? {
        let header = &batch.header;
        replayed.records.extend((header.position.sequence..).zip(batch.records.iter().cloned()));
        replayed.committed_end = replayed.committed_end.max(header.committed + 1);
        replayed.boot = Some(header.boot);
        let skipped = ring.distance(replayed.end.page, header.position.page);
        pages_read += skipped + batch.pages;
        if pages_read > ring.pages {
            // A chain that bites its tail: no writer makes one.
            return Err(JournalError::Damaged { sequence: replayed.end.sequence });
        }
        replayed.end = Position {
            page: ring.after(header.position.page, batch.pages),
            sequence: batch.next_sequence(),
            previous: batch.checksum,
        };
    }
    window.look_for_damage(replayed.end, start.page).await?;
    Ok(replayed)
}

/// A part of the ring in memory.
struct Window<'a> {
    options: &'a Options,
    first: u64,
    bytes: Bytes,
}

impl Window<'_> {
    /// The batch that follows at a position, if there is one.
    async fn follower(&mut self, due: Position) -> Result<Option<Batch>, JournalError> {
        for page in [due.page, self.options.ring.first] {
            if let Some(batch) = self.batch(page).await? {
                let found = batch.header.position;
                if (found.sequence, found.previous) == (due.sequence, due.previous) {
                    return Ok(Some(batch));
                }
            }
        }
        Ok(None)
    }

    /// The sound batch that begins at a page, if there is one.
    async fn batch(&mut self, page: u64) -> Result<Option<Batch>, JournalError> {
        let head = self.at(page, 1).await?;
        let Some(len) = claimed_len(&head[..BATCH_HEADER_LEN]) else { return Ok(None) };
        let pages = (len as u64).div_ceil(u64::from(PAGE_SIZE));
        if page + pages > self.options.ring.end() {
            return Ok(None);
        }
        let bytes = self.at(page, pages).await?;
        Ok(Batch::decode(&bytes, self.options.target, page).ok())
    }

    /// Pages of the ring, read with those behind them.
    async fn at(&mut self, page: u64, pages: u64) -> Result<Bytes, JournalError> {
        let held = self.bytes.len() as u64 / u64::from(PAGE_SIZE);
        if page < self.first || page + pages > self.first + held {
            let count = PAGES_PER_READ.min(self.options.ring.end() - page);
            let len = usize::try_from(count).expect("at most 256") * PAGE;
            let buffer = self.options.pool.acquire(len).await;
            let piece = Piece { offset: page * u64::from(PAGE_SIZE), range: 0..len };
            let buffer = self.options.disk.read(vec![piece], buffer).await?;
            // Copied, because records that are kept must not keep the pool's memory.
            self.bytes = Bytes::copy_from_slice(&buffer.as_slice()[..len]);
            self.first = page;
        }
        let start = usize::try_from(page - self.first).expect("within the window") * PAGE;
        let len = usize::try_from(pages).expect("within the window") * PAGE;
        Ok(self.bytes.slice(start..start + len))
    }

    /// A batch anywhere that knows a record to be durable which could not be read proves damage. A
    /// record that a loss of power took was never durable, so no batch ever says so.
    async fn look_for_damage(&mut self, end: Position, tail: u64) -> Result<(), JournalError> {
        let ring = self.options.ring;
        let length = match ring.distance(end.page, tail) {
            0 => ring.pages,
            distance => distance,
        };
        for page in (0..length).map(|nth| ring.first + (end.page - ring.first + nth) % ring.pages) {
            if let Some(batch) = self.batch(page).await?
                && batch.header.committed >= end.sequence
            {
                return Err(JournalError::Damaged { sequence: end.sequence });
            }
        }
        Ok(())
    }
}
