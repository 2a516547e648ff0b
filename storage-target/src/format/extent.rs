//! Consecutive pages of the disk, as records name them: 8 bytes, the first page (6) and how many
//! (2). Longer ones are written as several.

use super::{
    FormatError,
    fields::{Put, Reader},
};

/// Bytes of an extent.
pub const EXTENT_LEN: usize = 8;

/// Page numbers are below this; a disk of 2^48 pages is far beyond any, and sums do not wrap.
pub const PAGE_NUMBER_END: u64 = 1 << 48;

/// Pages of the longest extent in a record.
const PAGES_MAX: u64 = 1 << 15;

/// Consecutive pages, counted from the disk's start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent {
    /// The first page.
    pub first: u64,
    /// How many.
    pub pages: u64,
}

impl Extent {
    /// One past the last page.
    #[must_use]
    pub fn end(self) -> u64 {
        self.first + self.pages
    }

    /// The page numbers.
    #[must_use]
    pub fn numbers(self) -> std::ops::Range<u64> {
        self.first..self.end()
    }
}

/// Pages of some extents.
#[must_use]
pub fn page_count(extents: &[Extent]) -> u64 {
    extents.iter().map(|extent| extent.pages).sum()
}

/// The fewest extents that hold these pages, in order.
#[must_use]
pub fn join(mut pages: Vec<u64>) -> Vec<Extent> {
    pages.sort_unstable();
    let mut extents: Vec<Extent> = Vec::new();
    for page in pages {
        match extents.last_mut() {
            Some(last) if last.end() == page => last.pages += 1,
            _ => extents.push(Extent { first: page, pages: 1 }),
        }
    }
    extents
}

/// How many the extents become in a record.
pub(super) fn encoded_count(extents: &[Extent]) -> usize {
    extents.iter().map(|extent| index_of(extent.pages.div_ceil(PAGES_MAX))).sum()
}

/// Appends a count (4) and the extents.
pub(super) fn put_extents(bytes: &mut Vec<u8>, extents: &[Extent]) {
    bytes.put_u32(u32::try_from(encoded_count(extents)).expect("within a record"));
    for extent in extents {
        let mut at = extent.first;
        while at < extent.end() {
            let pages = PAGES_MAX.min(extent.end() - at);
            put_page(bytes, at);
            bytes.put_u16(u16::try_from(pages).expect("at most 2^15"));
            at += pages;
        }
    }
}

pub(super) fn take_extents(reader: &mut Reader<'_>) -> Result<Vec<Extent>, FormatError> {
    let count = reader.u32()?;
    let mut extents: Vec<Extent> = Vec::new();
    for _ in 0..count {
        let first = take_page(reader)?;
        let pages = u64::from(reader.u16()?);
        if pages == 0 || pages > PAGES_MAX || first + pages > PAGE_NUMBER_END {
            return Err(reader.impossible("extent"));
        }
        match extents.last_mut() {
            Some(last) if last.end() == first => last.pages += pages,
            _ => extents.push(Extent { first, pages }),
        }
    }
    Ok(extents)
}

/// Appends a page number: 6 bytes.
///
/// # Panics
/// When it is not below [`PAGE_NUMBER_END`].
pub(super) fn put_page(bytes: &mut Vec<u8>, page: u64) {
    assert!(page < PAGE_NUMBER_END, "a page of a disk");
    bytes.extend_from_slice(&page.to_le_bytes()[..6]);
}

pub(super) fn take_page(reader: &mut Reader<'_>) -> Result<u64, FormatError> {
    let [a, b, c, d, e, f] = reader.array()?;
    Ok(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
}

fn index_of(count: u64) -> usize {
    usize::try_from(count).expect("64 bits fit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_extents_are_written_as_several_and_read_back_as_one() {
        let extents = [Extent { first: 0x0102_0304, pages: 40_000 }, Extent { first: 7, pages: 1 }];
        let mut bytes = Vec::new();
        put_extents(&mut bytes, &extents);
        let expected = [
            3, 0, 0, 0, 4, 3, 2, 1, 0, 0, 0, 0x80, 4, 0x83, 2, 1, 0, 0, 0x40, 0x1C, 7, 0, 0, 0, 0,
            0, 1, 0,
        ];
        assert_eq!(bytes, expected);
        let mut reader = Reader::new(&bytes, "extents");
        assert_eq!(take_extents(&mut reader), Ok(extents.to_vec()));
        assert_eq!(page_count(&extents), 40_001);
    }

    #[test]
    fn pages_join_in_any_order() {
        let joined = join(vec![9, 3, 4, 8, 1]);
        let extent = |first, pages| Extent { first, pages };
        assert_eq!(joined, [extent(1, 1), extent(3, 2), extent(8, 2)]);
    }
}
