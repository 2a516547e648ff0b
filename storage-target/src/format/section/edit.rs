//! Changing a section in memory, as copy-on-write needs it: every change says which pages of the
//! disk the section no longer uses. Nothing here touches version, epochs, length or sequence.

use std::ops::Range;

use millrace_types::{BlockState, Crc32c};

use super::{Placed, SECTION_PAGES, Section, StoredPage};
use crate::format::{
    extent::{Extent, join, page_count},
    units::BLOCK_PAGES,
};

/// Every page of a section by its number.
type Pages = [Option<StoredPage>; SECTION_PAGES as usize];

impl Section {
    /// Puts pages that were written anew in the place of those from `first` on, one for each
    /// checksum, and gives the blocks that they touch a state. Pages of these blocks outside the
    /// range stay as they are: those that are not stored are zero from now on. Returns the pages
    /// given up.
    ///
    /// # Panics
    /// When the range leaves the section, the extents hold another number of pages, or the state
    /// stores nothing.
    pub fn replace(
        &mut self,
        first: u8,
        extents: &[Extent],
        checksums: &[Crc32c],
        state: BlockState,
    ) -> Vec<Extent> {
        assert!(state.is_stored(), "pages belong to blocks that store something");
        assert_eq!(page_count(extents), checksums.len() as u64, "a checksum for each page");
        let range = range_of(first, checksums.len());
        let mut pages = self.expand();
        let given_up = take_all(&mut pages[range.clone()]);
        let numbers = extents.iter().flat_map(|extent| extent.numbers());
        for (slot, (page, &checksum)) in pages[range.clone()].iter_mut().zip(numbers.zip(checksums))
        {
            *slot = Some(StoredPage { page, checksum });
        }
        self.states[blocks_of(&range)].fill(state);
        self.collect(&pages);
        given_up
    }

    /// Turns pages into zeros without storing any: those of stored blocks are no longer covered;
    /// those of other blocks stay as they are. Returns the pages given up.
    ///
    /// # Panics
    /// When the range leaves the section.
    pub fn clear(&mut self, range: Range<u8>) -> Vec<Extent> {
        let range = usize::from(range.start)..usize::from(range.end);
        let mut pages = self.expand();
        let given_up = take_all(&mut pages[range]);
        self.collect(&pages);
        given_up
    }

    /// Gives blocks another state. One that stores nothing gives up the blocks' pages, which are
    /// returned; one that stores something keeps them, and what was not stored is zero.
    ///
    /// # Panics
    /// When the range leaves the section.
    pub fn set_state(&mut self, blocks: Range<u8>, state: BlockState) -> Vec<Extent> {
        let given_up = match state.is_stored() {
            true => Vec::new(),
            false => self.clear(blocks.start * BLOCK_PAGES..blocks.end * BLOCK_PAGES),
        };
        self.states[usize::from(blocks.start)..usize::from(blocks.end)].fill(state);
        given_up
    }

    /// Gives up everything from a page on: whole blocks become absent, the rest of the block in
    /// which the page lies becomes zero if the block stores something. Returns the pages given up.
    ///
    /// # Panics
    /// When the page is past the section's end.
    pub fn truncate(&mut self, page: u8) -> Vec<Extent> {
        let given_up = self.clear(page..SECTION_PAGES);
        self.states[usize::from(page.div_ceil(BLOCK_PAGES))..].fill(BlockState::Absent);
        given_up
    }

    fn expand(&self) -> Pages {
        let mut pages = [None; SECTION_PAGES as usize];
        for (at, stored) in self.stored_pages() {
            pages[usize::from(at)] = Some(stored);
        }
        pages
    }

    fn collect(&mut self, pages: &Pages) {
        self.extents.clear();
        self.checksums.clear();
        for (at, stored) in (0_u8..).zip(pages) {
            let Some(stored) = stored else { continue };
            self.checksums.push(stored.checksum);
            match self.extents.last_mut() {
                Some(last)
                    if last.end() == at && last.page + u64::from(last.pages) == stored.page =>
                {
                    last.pages += 1;
                }
                _ => self.extents.push(Placed { first: at, pages: 1, page: stored.page }),
            }
        }
    }
}

fn range_of(first: u8, pages: usize) -> Range<usize> {
    let start = usize::from(first);
    assert!(pages > 0 && start + pages <= usize::from(SECTION_PAGES), "pages of a section");
    start..start + pages
}

/// The blocks that a range of pages touches.
fn blocks_of(pages: &Range<usize>) -> Range<usize> {
    let block = usize::from(BLOCK_PAGES);
    pages.start / block..pages.end.div_ceil(block)
}

/// Takes the pages out, and tells which they were.
fn take_all(pages: &mut [Option<StoredPage>]) -> Vec<Extent> {
    join(pages.iter_mut().filter_map(|slot| Some(slot.take()?.page)).collect())
}
