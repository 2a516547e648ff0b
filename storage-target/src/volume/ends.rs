//! The pages at the ends of a range that becomes zero: a part of them stays, so they are written
//! anew.

use std::{ops::Range, sync::Arc};

use millrace_types::{BlockState, Crc32c};

use super::{
    EngineError, Shared,
    read::pieces,
    room::pieces_of,
    sections::{Sections, within},
    write::{cut, edges, page_number},
};
use crate::{
    disk::AlignedBuffer,
    format::section::{Section, StoredPage},
    page_checksum::{PAGE, of_pages},
    space::{Purpose, Reservation},
};

/// Memory that both ends of a range need.
pub(super) const ENDS_LEN: usize = 2 * PAGE;

/// Pages written anew.
#[derive(Debug, Default)]
pub(super) struct Ends {
    /// Their numbers in the chunk, one or two; none when nothing is stored there.
    pages: Vec<u32>,
    checksums: Vec<Crc32c>,
    reservation: Option<Reservation>,
}

impl Ends {
    /// Points a section to those that lie in it; `state` tells the state of the block of a page.
    pub(super) fn put(&self, number: u8, section: &mut Section, state: impl Fn(u32) -> BlockState) {
        let Some(reservation) = &self.reservation else { return };
        for (nth, (&page, checksum)) in (0..).zip(self.pages.iter().zip(&self.checksums)) {
            let part = within(number, &(page..page + 1));
            if !part.is_empty() {
                let extents = cut(reservation.extents(), nth, 1);
                section.replace(part.start, &extents, &[*checksum], state(page));
            }
        }
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
        let mut buffer = self.disk.read(pieces(&places), buffer).await?;
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
        Ok(Ends { pages, checksums, reservation: Some(reservation) })
    }
}
