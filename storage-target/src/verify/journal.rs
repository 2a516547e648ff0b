//! The journal from its position on: batches that follow each other, and what ends them.

use bytes::Bytes;
use millrace_types::Crc32c;

use super::{
    flipped::{Flipped, flipped},
    report::{Kind, Report},
};
use crate::{
    format::{
        batch::BootId,
        batch::{BATCH_HEADER_LEN, BATCH_LEN_MAX, Batch, Position, claimed_len},
        superblock::Superblock,
    },
    image::{PAGE, PageSource},
};

/// Pages read at once: 1 MiB, four of the longest batches.
const WINDOW: u64 = 256;

const LOST: &str = "the daemon refuses to start on it; what was written after that record may be \
                    gone: begin anew with a blank target, clean data is fetched again";

/// A record with its sequence and the page of its batch.
#[derive(Clone, Debug)]
pub(crate) struct Numbered {
    pub(crate) sequence: u64,
    pub(crate) page: u64,
    pub(crate) bytes: Bytes,
}

/// What the journal holds.
#[derive(Debug)]
pub(super) struct Found {
    /// Every record below is durable for certain.
    pub(super) committed_end: u64,
    /// What the next batch would be.
    pub(super) end: Position,
    /// Under which boot the last batch was written; `None` when there is none.
    pub(super) boot: Option<BootId>,
    /// Pages of its batches.
    pub(super) pages: u64,
}

/// Goes through the batches that follow each other from a position on.
pub(crate) struct Chain<'a> {
    source: &'a dyn PageSource,
    superblock: &'a Superblock,
    first: u64,
    bytes: Bytes,
    pub(crate) due: Position,
    /// Pages gone through, with those skipped at the ring's end.
    passed: u64,
}

/// A batch of the chain.
pub(crate) struct Link {
    pub(crate) batch: Batch,
    /// What had to be repaired before it could be read.
    pub(crate) flip: Option<Flipped>,
}

impl<'a> Chain<'a> {
    pub(crate) fn new(
        source: &'a dyn PageSource,
        superblock: &'a Superblock,
        start: Position,
    ) -> Self {
        Self { source, superblock, first: 0, bytes: Bytes::new(), due: start, passed: 0 }
    }

    /// The batch that follows, also one with a single flipped bit. `None`: there is none.
    ///
    /// # Errors
    /// That of a page that the disk cannot read.
    pub(crate) fn next(&mut self) -> Result<Option<Link>, (u64, std::io::Error)> {
        let layout = self.superblock.layout;
        let ring_end = layout.journal + layout.journal_pages;
        for page in [self.due.page, layout.journal] {
            let Some(link) = self.link(page)? else { continue };
            let skipped = if page == self.due.page { 0 } else { ring_end - self.due.page };
            self.passed += skipped + link.batch.pages;
            if self.passed > layout.journal_pages {
                // A chain that bites its tail: no writer makes one.
                return Ok(None);
            }
            let after = page + link.batch.pages;
            self.due = Position {
                page: if after == ring_end { layout.journal } else { after },
                sequence: link.batch.next_sequence(),
                previous: link.batch.checksum,
            };
            return Ok(Some(link));
        }
        Ok(None)
    }

    fn link(&mut self, page: u64) -> Result<Option<Link>, (u64, std::io::Error)> {
        let follows = |batch: &Batch, due: &Position| {
            let found = &batch.header.position;
            (found.sequence, found.previous) == (due.sequence, due.previous)
        };
        let bytes = self.at(page)?;
        let target = self.superblock.target;
        if let Some(batch) = sound(&bytes, |bytes| Batch::decode(bytes, target, page).ok()) {
            return Ok(follows(&batch, &self.due).then_some(Link { batch, flip: None }));
        }
        for (repaired, flip) in repairs(&bytes) {
            if let Ok(batch) = Batch::decode(&repaired, target, page)
                && follows(&batch, &self.due)
            {
                return Ok(Some(Link { batch, flip: Some(flip) }));
            }
        }
        Ok(None)
    }

    /// The longest batch that may begin at a page, as far as the ring goes.
    fn at(&mut self, page: u64) -> Result<Bytes, (u64, std::io::Error)> {
        let layout = self.superblock.layout;
        let ring_end = layout.journal + layout.journal_pages;
        let longest = (BATCH_LEN_MAX / PAGE) as u64;
        let wanted = longest.min(ring_end - page);
        let held = (self.bytes.len() / PAGE) as u64;
        if page < self.first || page + wanted > self.first + held {
            let count = WINDOW.min(ring_end - page);
            let count = usize::try_from(count).expect("at most 256");
            self.bytes = self.source.pages_at(page, count).map_err(|error| (page, error))?;
            self.first = page;
        }
        let start = usize::try_from(page - self.first).expect("within the window") * PAGE;
        Ok(self.bytes.slice(start..))
    }

    /// Looks in the rest of the ring for a batch that knows a record to be durable which the chain
    /// does not reach. Returns its page.
    fn later_batch(&mut self, tail: u64) -> Result<Option<u64>, (u64, std::io::Error)> {
        let layout = self.superblock.layout;
        let (first, pages) = (layout.journal, layout.journal_pages);
        let due = self.due;
        let rest = match (tail + pages - due.page) % pages {
            0 => pages,
            distance => distance,
        };
        for page in (0..rest).map(|nth| first + (due.page - first + nth) % pages) {
            let bytes = self.at(page)?;
            let target = self.superblock.target;
            let batch = sound(&bytes, |bytes| Batch::decode(bytes, target, page).ok());
            if batch.is_some_and(|batch| batch.header.committed >= due.sequence) {
                return Ok(Some(page));
            }
        }
        Ok(None)
    }
}

/// Decodes only what looks like a batch: most pages of a ring are none.
fn sound(bytes: &Bytes, decode: impl Fn(&Bytes) -> Option<Batch>) -> Option<Batch> {
    claimed_len(bytes).and_then(|_| decode(bytes))
}

/// The batches that these bytes may have been before one bit of them was flipped.
fn repairs(bytes: &Bytes) -> Vec<(Bytes, Flipped)> {
    let mut found = Vec::new();
    let mut attempt = |at: usize| {
        let mut changed = bytes.to_vec();
        changed[at / 8] ^= 1 << (at % 8);
        found.push((changed.into(), Flipped::Bit(at)));
    };
    if let Some(len) = claimed_len(bytes)
        && len <= bytes.len()
    {
        let checksum = Crc32c(u32::from_le_bytes(*bytes[4..8].first_chunk().expect("four bytes")));
        match flipped(&bytes[8..len], checksum) {
            Some(Flipped::Bit(at)) => attempt(8 * 8 + at),
            Some(Flipped::Checksum(bit)) => attempt(4 * 8 + usize::try_from(bit).expect("32")),
            None => {}
        }
    }
    // A flipped length or magic number hides which bytes the checksum is of.
    let hiding = (0..4 * 8).chain(64 * 8..68 * 8);
    for at in hiding.filter(|at| at / 8 < bytes.len()) {
        let mut head = bytes[..BATCH_HEADER_LEN.min(bytes.len())].to_vec();
        head[at / 8] ^= 1 << (at % 8);
        let Some(len) = claimed_len(&head).filter(|&len| len <= bytes.len()) else { continue };
        let mut checked = bytes[..len].to_vec();
        checked[..head.len()].copy_from_slice(&head);
        if Crc32c::of(&checked[8..]).0.to_le_bytes() == checked[4..8] {
            attempt(at);
        }
    }
    found
}

/// Reads the journal from `start`; hands each record to `take`, and says what is wrong.
pub(super) fn read(
    source: &dyn PageSource,
    superblock: &Superblock,
    start: Position,
    report: &Report<'_>,
    mut take: impl FnMut(Numbered),
) -> Found {
    let mut chain = Chain::new(source, superblock, start);
    let mut found = Found { committed_end: 0, end: start, boot: None, pages: 0 };
    let unreadable = |(page, error): (u64, std::io::Error)| {
        let text = format!("the disk cannot read the journal's ring: {error}");
        report.damage(Kind::Journal, page, text, "replace the disk");
    };
    loop {
        let link = match chain.next() {
            Ok(Some(link)) => link,
            Ok(None) => break,
            Err(error) => {
                unreadable(error);
                return found;
            }
        };
        let header = &link.batch.header;
        let Position { page, sequence, .. } = header.position;
        if let Some(flip) = link.flip {
            let text = format!(
                "the journal's batch from record {sequence} on is damaged: {flip}; the daemon does \
                 not read it, nor what follows"
            );
            report.damage(Kind::Journal, page, text, LOST);
        }
        for (sequence, bytes) in (sequence..).zip(&link.batch.records) {
            take(Numbered { sequence, page, bytes: Bytes::copy_from_slice(bytes) });
        }
        found.committed_end = found.committed_end.max(header.committed + 1);
        found.boot = Some(header.boot);
        found.pages += link.batch.pages;
        found.end = chain.due;
    }
    match chain.later_batch(start.page) {
        Err(error) => unreadable(error),
        Ok(Some(later)) => {
            let text = format!(
                "the journal ends before record {}, although the batch at page {later} says that \
                 it was durable",
                found.end.sequence
            );
            report.damage(Kind::Journal, found.end.page, text, LOST);
        }
        Ok(None) => note_torn(&mut chain, report),
    }
    found
}

/// A batch that begins like the one that should follow, and is not whole.
fn note_torn(chain: &mut Chain<'_>, report: &Report<'_>) {
    let due = chain.due;
    for page in [due.page, chain.superblock.layout.journal] {
        let Ok(bytes) = chain.at(page) else { continue };
        let field = |at: usize| bytes.get(at..at + 8).and_then(|field| field.first_chunk());
        let begins = claimed_len(&bytes).is_some()
            && field(16).copied().map(u64::from_le_bytes) == Some(page)
            && field(24).copied().map(u64::from_le_bytes) == Some(due.sequence)
            && bytes.get(56..60) == Some(&due.previous.0.to_le_bytes()[..]);
        if begins {
            let text = format!(
                "the journal ends in a batch, from record {} on, that is not whole: it was cut \
                 off by a stop, or is damaged",
                due.sequence
            );
            let remedy = "the next start leaves it out; after a loss of power it raises the loss \
                          count, and clients send again what they still hold";
            report.note(Kind::Journal, page, text, remedy);
            return;
        }
        if page == chain.superblock.layout.journal {
            return;
        }
    }
}
