//! The pages at the ends of a range that becomes zero: a part of them stays, so they are written
//! anew.
//!
//! Where a file is cut within a page that is damaged, the cut is made all the same, or the file
//! could not be changed any more: the page stays where it is and gets another checksum. So it is
//! bad until it is replaced as a whole, and bytes from behind the cut never come back, whatever the
//! disk reads there later.

use std::{
    collections::HashMap,
    ops::Range,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::target::ContentName;
use millrace_types::{BlockState, Crc32c};

use super::{
    EngineError, Shared,
    checkpoint::PATIENCE,
    read::pieces,
    remove::AtDamage,
    room::pieces_of,
    sections::{Sections, within},
    write::{cut, edges, page_number},
};
use crate::{
    disk::AlignedBuffer,
    format::{
        extent::Extent,
        section::{Section, StoredPage},
    },
    page_checksum::{PAGE, of_pages},
    space::{Purpose, Reservation},
};

/// Memory that both ends of a range need.
pub(super) const ENDS_LEN: usize = 2 * PAGE;

/// Cuts of so many contents are remembered that have failed, and for so long.
const UNREAD_CUTS_MAX: usize = 4096;
const FORGOTTEN: Duration = PATIENCE.saturating_mul(4);

/// Pages written anew, or one that is bad from now on.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Their numbers in the chunk, one or two; none when nothing is stored there.
    pages: Vec<u32>,
    /// Where they are.
    extents: Vec<Extent>,
    checksums: Vec<Crc32c>,
    is_spoilt: bool,
    /// Keeps new ones until a record names them.
    _reservation: Option<Reservation>,
}

impl Ends {
    /// A page that stays where it is and matches its checksum no more. Each cut gives it yet
    /// another one: a second cut must not bring back the one that it was written with.
    fn spoilt(page: u32, stored: StoredPage) -> Self {
        Self {
            pages: vec![page],
            extents: vec![Extent { first: stored.page, pages: 1 }],
            checksums: vec![Crc32c(stored.checksum.0.wrapping_add(1))],
            is_spoilt: true,
            _reservation: None,
        }
    }

    /// Whether it is a page that is bad.
    pub(super) fn is_spoilt(&self) -> bool {
        self.is_spoilt
    }

    /// Points a section to those that lie in it; `state` tells the state of the block of a page.
    pub(super) fn put(&self, number: u8, section: &mut Section, state: impl Fn(u32) -> BlockState) {
        for (nth, (&page, checksum)) in (0..).zip(self.pages.iter().zip(&self.checksums)) {
            let part = within(number, &(page..page + 1));
            if !part.is_empty() {
                let extents = cut(&self.extents, nth, 1);
                section.replace(part.start, &extents, &[*checksum], state(page));
            }
        }
    }
}

/// Contents of which the disk fails to read the page within which they are to be cut, and since
/// when.
#[derive(Debug, Default)]
pub(super) struct UnreadCuts(Mutex<HashMap<ContentName, Instant>>);

impl UnreadCuts {
    /// Notes that a cut has failed; returns for how long cuts of the content have.
    pub(super) fn note(&self, content: ContentName, now: Instant) -> Duration {
        let age = |since: &Instant| now.saturating_duration_since(*since);
        let mut cuts = self.cuts();
        cuts.retain(|_, since| age(since) < FORGOTTEN);
        if cuts.len() < UNREAD_CUTS_MAX {
            cuts.entry(content).or_insert(now);
        }
        // The time of one for which there is no room has not begun.
        cuts.get(&content).map_or(Duration::ZERO, age)
    }

    /// The content was cut, or its time begins anew.
    pub(super) fn forget(&self, content: ContentName) {
        self.cuts().remove(&content);
    }

    /// A panic elsewhere leaves them whole: every change of them is one step.
    fn cuts(&self) -> MutexGuard<'_, HashMap<ContentName, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Shared {
    /// Writes the pages of which a zeroing of `range` (bytes of the chunk) leaves a part. The
    /// buffer, of [`ENDS_LEN`], is the caller's, who may have a turn with which nobody waits for
    /// one.
    pub(super) async fn write_ends(
        &self,
        sections: &Sections,
        range: &Range<usize>,
        purpose: Purpose,
        buffer: AlignedBuffer,
    ) -> Result<Ends, EngineError> {
        let numbers = [page_number(range.start), page_number(range.end - 1)];
        let found = edges(sections, range);
        let (pages, places): (Vec<u32>, Vec<Option<StoredPage>>) =
            numbers.into_iter().zip(found).filter(|(_, place)| place.is_some()).unzip();
        if pages.is_empty() {
            return Ok(Ends::default());
        }
        self.data_of(sections.sequence()).await?;
        let read = self.disk.read(pieces(&places), buffer).await;
        let unread = |error| self.unread(sections.key(), pages.iter().copied(), error);
        let mut buffer = read.map_err(unread)?;
        let bytes = buffer.as_mut_slice();
        for ((&page, place), bytes) in pages.iter().zip(&places).zip(bytes.chunks_exact_mut(PAGE)) {
            let place = place.expect("kept above");
            if Crc32c::of(bytes) != place.checksum {
                return Err(self.corrupt(sections, page, place.page));
            }
            let start = page as usize * PAGE;
            let low = range.start.clamp(start, start + PAGE) - start;
            let high = range.end.clamp(start, start + PAGE) - start;
            bytes[low..high].fill(0);
        }
        let checksums = of_pages(&buffer.as_slice()[..pages.len() * PAGE]);
        let reservation = self.reserve(pages.len() as u64, purpose).await?;
        self.disk.write(pieces_of(reservation.extents()), Arc::new(buffer)).await?;
        Ok(Ends {
            pages,
            extents: reservation.extents().to_vec(),
            checksums,
            is_spoilt: false,
            _reservation: Some(reservation),
        })
    }

    /// The same of the page in which a file is cut, of which `range` goes. One that cannot be read
    /// is spoilt, if that is said.
    pub(super) async fn write_end_of_cut(
        &self,
        sections: &Sections,
        range: &Range<usize>,
        damage: AtDamage,
        buffer: AlignedBuffer,
    ) -> Result<Ends, EngineError> {
        let error = match self.write_ends(sections, range, Purpose::Free, buffer).await {
            // With the index there is no room for a page that was read well.
            Err(error) if damage.passes(&error) && !matches!(error, EngineError::Index(_)) => error,
            done => return done,
        };
        let page = page_number(range.start);
        let Some(stored) = sections.page(page) else { return Err(error) };
        tracing::error!(
            target = %self.target, chunk = %sections.key(), page, disk_page = stored.page, %error,
            "a file is cut within a bad page, which stays bad until it is overwritten or removed"
        );
        Ok(Ends::spoilt(page, stored))
    }

    /// Whether the page within which a content is to be cut, which the disk has failed to read once
    /// more, is not waited for any longer. A disk that reads nothing says nothing of it.
    pub(super) async fn has_cut_waited(&self, content: ContentName) -> bool {
        if self.unread_cuts.note(content, self.clock.now()) < PATIENCE {
            return false;
        }
        let can_read = self.can_read().await;
        if !can_read {
            self.unread_cuts.forget(content);
        }
        can_read
    }
}
