//! Sections through random changes, beside a plain list of pages; and their bytes.

use std::{collections::BTreeSet, ops::Range};

use millrace_types::{BLOCK_SIZE, ByteLen};
use proptest::prelude::*;

use super::*;
use crate::format::extent::{Extent, page_count};

fn blank() -> Section {
    Section::blank(ChunkSize::MAX)
}

fn extent(first: u64, pages: u64) -> Extent {
    Extent { first, pages }
}

fn checksums(count: u32) -> Vec<Crc32c> {
    (1..=count).map(|number| Crc32c(0x1000 + number)).collect()
}

fn sample() -> Section {
    let mut section = blank();
    section.version = ChunkVersion { group_epoch: GroupEpoch(0x01), counter: 0x0203 };
    section.group_epoch = GroupEpoch(0x04);
    section.write_epoch = WriteEpoch(0x05);
    section.length = 0x0009_0001;
    section.sequence = 0x0607;
    let places = [extent(0x0102_0304_0506, 2), extent(0x20, 1)];
    section.replace(14, &places, &checksums(3), BlockState::Written);
    section.set_state(0..1, BlockState::Clean);
    section.set_state(5..6, BlockState::Zero);
    section
}

#[test]
fn the_bytes_never_change() {
    let bytes = sample().encode(1);
    let expected = [
        1, 0, 0, 0, 3, 2, 0, 0, 0, 0, 0, 0, // version
        4, 0, 0, 0, 5, 0, 0, 0, 1, 0, 9, 0, 0, 0, 0, 4, // epochs, length, chunk size
        7, 6, 0, 0, 0, 0, 0, 0, 0b1001, 0b1100, 2, 0, // sequence, states, extents
        14, 2, 6, 5, 4, 3, 2, 1, 16, 1, 0x20, 0, 0, 0, 0, 0, // extents
        0x01, 0x10, 0, 0, 0x02, 0x10, 0, 0, 0x03, 0x10, 0, 0, // checksums
    ];
    assert_eq!(bytes, expected);
    assert_eq!(Section::decode(&bytes, 1), Ok(sample()));
}

#[test]
fn the_sizes_are_those_that_are_written_above() {
    let mut small = blank();
    small.length = 16_384;
    small.replace(0, &[extent(500, 4)], &checksums(4), BlockState::Clean);
    assert_eq!(small.encode(0).len(), 64);
    let mut full = blank();
    full.length = SECTION_SIZE;
    full.replace(0, &[extent(500, 128)], &checksums(128), BlockState::Clean);
    assert_eq!(full.encode(0).len(), 560);
    for page in 0..SECTION_PAGES {
        let place = extent(10_000 - 2 * u64::from(page), 1);
        full.replace(page, &[place], &checksums(1), BlockState::Written);
    }
    assert_eq!((full.extent_count(), full.encode(0).len()), (128, SECTION_LEN_MAX));
    assert_eq!(SECTION_LEN_MAX, 1576);
}

#[test]
fn a_section_is_refused_where_it_cannot_be() {
    let bytes = sample().encode(1);
    let field = |bytes: &[u8], number| match Section::decode(bytes, number) {
        Err(FormatError::Impossible { field, .. }) => field,
        other => panic!("{other:?}"),
    };
    assert_eq!(field(&bytes, 128), "number");
    assert_eq!(field(&bytes, 2), "page past the length");
    let with = |at: usize, value: u8| {
        let mut bad = bytes.clone();
        bad[at] = value;
        bad
    };
    assert_eq!(field(&with(27, 3), 1), "chunk size");
    assert_eq!(field(&with(23, 5), 1), "length");
    assert_eq!(field(&with(36, 0b1000), 1), "page of a block that stores nothing");
    assert_eq!(field(&with(39, 1), 1), "count of extents");
    assert_eq!(field(&with(38, 129), 1), "count of extents");
    assert_eq!(field(&with(41, 0), 1), "extent", "an empty one");
    assert_eq!(field(&with(41, 3), 1), "extent", "over the next one");
    assert_eq!(field(&with(48, 13), 1), "extent", "before the last one");
    let mut joined = bytes.clone();
    joined[50..56].copy_from_slice(&[8, 5, 4, 3, 2, 1]);
    assert_eq!(field(&joined, 1), "extent", "one with the last");
    joined[50..56].copy_from_slice(&[7, 5, 4, 3, 2, 1]);
    assert_eq!(field(&joined, 1), "page that stands for two");
    let mut longer = bytes.clone();
    longer.push(0);
    assert_eq!(field(&longer, 1), "length");
    let mut small = Section::blank(ChunkSize::MIN);
    small.set_state(0..1, BlockState::Zero);
    let mut past = small.encode(0);
    past[36] = 0b1111;
    assert_eq!(field(&past, 0), "block past the chunk's end");
    for cut in 0..bytes.len() {
        assert!(Section::decode(&bytes[..cut], 1).is_err(), "cut at {cut}");
    }
}

#[test]
#[should_panic(expected = "page past the length")]
fn a_section_whose_length_was_forgotten_is_not_written() {
    let mut section = blank();
    section.replace(0, &[extent(9, 1)], &checksums(1), BlockState::Written);
    drop(section.encode(0));
}

/// Which bits of a record its decoder finds flipped, and which only the checksum around it does.
#[test]
fn a_flipped_bit_is_refused_or_is_in_a_field_that_can_hold_it() {
    let bytes = sample().encode(1);
    let open = |at: usize| match at {
        0..24 => true,             // version, epochs, length
        28..36 => true,            // sequence
        36..38 => true,            // states
        42..48 | 50..56 => true,   // places
        40 | 41 | 48 | 49 => true, // ranges, as long as they fit
        56.. => true,              // checksums
        _ => false,                // chunk size, count of extents, zero
    };
    for at in 0..bytes.len() {
        for bit in 0..8 {
            let mut bad = bytes.clone();
            bad[at] ^= 1 << bit;
            match Section::decode(&bad, 1) {
                Ok(section) => {
                    assert!(open(at), "byte {at} bit {bit}");
                    assert_ne!(section, sample());
                    assert_eq!(section.encode(1), bad, "it has one form");
                }
                Err(FormatError::Impossible { .. } | FormatError::Truncated(_)) => {}
                Err(other) => panic!("{other}"),
            }
        }
    }
}

#[test]
fn reading_goes_from_part_to_part_without_gaps() {
    let section = sample();
    let part = |pages, source| Part { pages, source };
    let expected = [
        part(0..14, Source::Zero),
        part(14..16, Source::Stored { page: 0x0102_0304_0506 }),
        part(16..17, Source::Stored { page: 0x20 }),
        part(17..32, Source::Zero),
        part(32..80, Source::Absent),
        part(80..96, Source::Zero),
        part(96..128, Source::Absent),
    ];
    assert_eq!(section.parts(0..128), expected);
    let source = Source::Stored { page: 0x0102_0304_0507 };
    assert_eq!(section.parts(15..16), [part(15..16, source)]);
    assert_eq!(section.checksums(15..17), &checksums(3)[1..]);
    assert!(section.checksums(17..128).is_empty() && section.checksums(0..14).is_empty());
    assert_eq!(section.parts(20..20), []);
}

#[test]
fn what_is_held_counts_up_to_the_length_and_zeros_whole() {
    let held = sample().held(1);
    let expected = Held {
        clean: ByteLen(BLOCK_SIZE),
        written: ByteLen(1),
        zero: ByteLen(BLOCK_SIZE),
        end: 14 * BLOCK_SIZE,
    };
    // The length lies in the second block: 8 blocks of the section before, one, and one byte.
    assert_eq!(held, expected);
    assert_eq!(sample().pages_by_state(), (2, 1));
}

/// One change of a section, on the model too.
#[derive(Clone, Debug)]
enum Step {
    Replace { first: u8, pages: u8, pieces: u8, clean: bool },
    Clear { first: u8, end: u8 },
    State { first: u8, end: u8, state: u8 },
    Truncate { page: u8 },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        (0..SECTION_PAGES, 1_u8..40, 1_u8..5, any::<bool>()).prop_map(
            |(first, pages, pieces, clean)| {
                let pages = pages.min(SECTION_PAGES - first);
                Step::Replace { first, pages, pieces, clean }
            }
        ),
        (0..=SECTION_PAGES, 0..=SECTION_PAGES)
            .prop_map(|(one, other)| Step::Clear { first: one.min(other), end: one.max(other) }),
        (0..=SECTION_BLOCKS, 0..=SECTION_BLOCKS, 0_u8..4).prop_map(|(one, other, state)| {
            Step::State { first: one.min(other), end: one.max(other), state }
        }),
        (0..=SECTION_PAGES).prop_map(|page| Step::Truncate { page }),
    ]
}

/// Plain lists of states and pages.
struct Model {
    states: [BlockState; 8],
    pages: Vec<Option<StoredPage>>,
    next_page: u64,
}

impl Model {
    fn take(&mut self, pages: Range<usize>) -> BTreeSet<u64> {
        self.pages[pages].iter_mut().filter_map(|slot| Some(slot.take()?.page)).collect()
    }

    /// Applies a step to the model and the section; both must give up the same pages.
    fn apply(&mut self, section: &mut Section, step: &Step) {
        let usize_of = |number: &u8| usize::from(*number);
        let (given_up, expected) = match step {
            Step::Replace { first, pages, pieces, clean } => {
                let (mut extents, mut left) = (Vec::new(), *pages);
                while left > 0 {
                    let count = left.min(pages.div_ceil(*pieces));
                    extents.push(extent(self.next_page, u64::from(count)));
                    // Sometimes the next extent goes on where this one ends.
                    self.next_page += u64::from(count) + u64::from(left % 2);
                    left -= count;
                }
                let state = if *clean { BlockState::Clean } else { BlockState::Written };
                let checksums = checksums(u32::from(*pages));
                let range = usize_of(first)..usize_of(first) + usize_of(pages);
                let expected = self.take(range.clone());
                let numbers = extents.iter().flat_map(|extent| extent.numbers());
                for (slot, (page, &checksum)) in
                    self.pages[range.clone()].iter_mut().zip(numbers.zip(&checksums))
                {
                    *slot = Some(StoredPage { page, checksum });
                }
                self.states[range.start / 16..=(range.end - 1) / 16].fill(state);
                (section.replace(*first, &extents, &checksums, state), expected)
            }
            Step::Clear { first, end } => {
                let expected = self.take(usize_of(first)..usize_of(end));
                (section.clear(*first..*end), expected)
            }
            Step::State { first, end, state } => {
                let state = BlockState::from_byte(*state).unwrap();
                let mut expected = BTreeSet::new();
                if !state.is_stored() {
                    expected = self.take(usize_of(first) * 16..usize_of(end) * 16);
                }
                self.states[usize_of(first)..usize_of(end)].fill(state);
                (section.set_state(*first..*end, state), expected)
            }
            Step::Truncate { page } => {
                let expected = self.take(usize_of(page)..128);
                self.states[usize_of(page).div_ceil(16)..].fill(BlockState::Absent);
                (section.truncate(*page), expected)
            }
        };
        let found: BTreeSet<u64> = given_up.iter().flat_map(|extent| extent.numbers()).collect();
        assert_eq!(found.len() as u64, page_count(&given_up), "none twice");
        assert_eq!(found, expected);
    }
}

proptest! {
    #[test]
    fn changes_agree_with_a_plain_list_of_pages_and_every_state_reads_back(
        steps in prop::collection::vec(step(), 1..40),
        number in 0_u8..128,
    ) {
        let mut section = blank();
        section.length = (u32::from(number) + 1) * SECTION_SIZE;
        let mut model =
            Model { states: [BlockState::Absent; 8], pages: vec![None; 128], next_page: 300 };
        for step in &steps {
            model.apply(&mut section, step);
            prop_assert_eq!(section.states(), model.states);
            let pages: Vec<_> = (0..SECTION_PAGES).map(|at| section.page(at)).collect();
            prop_assert_eq!(&pages, &model.pages);
            let used: BTreeSet<u64> = pages.iter().flatten().map(|stored| stored.page).collect();
            let found = section.extents();
            let found: BTreeSet<u64> = found.iter().flat_map(|extent| extent.numbers()).collect();
            prop_assert_eq!(found, used);
            let parts = section.parts(0..SECTION_PAGES);
            let mut at = 0;
            for Part { pages, source } in parts {
                prop_assert_eq!(pages.start, at);
                at = pages.end;
                for (nth, page) in (0..).zip(pages) {
                    let stored = model.pages[usize::from(page)];
                    let absent = model.states[usize::from(page) / 16] == BlockState::Absent;
                    let expected = match stored {
                        Some(stored) => Source::Stored { page: stored.page - nth },
                        None if absent => Source::Absent,
                        None => Source::Zero,
                    };
                    prop_assert_eq!(source, expected);
                }
            }
            prop_assert_eq!(at, SECTION_PAGES);
            let bytes = section.encode(number);
            prop_assert!(bytes.len() <= SECTION_LEN_MAX);
            prop_assert_eq!(Section::decode(&bytes, number), Ok(section.clone()));
        }
    }

    #[test]
    fn no_bytes_make_the_decoder_panic_and_what_it_takes_has_one_form(
        noise in prop::collection::vec((0_usize..68, any::<u8>()), 0..12),
        cut in 0_usize..69,
        number in any::<u8>(),
    ) {
        let mut bytes = sample().encode(1);
        for (at, byte) in noise {
            bytes[at] = byte;
        }
        for (bytes, number) in [(&bytes[..], 1), (&bytes[..cut.min(bytes.len())], number)] {
            if let Ok(section) = Section::decode(bytes, number) {
                prop_assert_eq!(section.encode(number), bytes);
            }
        }
    }

    #[test]
    fn plain_noise_is_never_taken_for_more_than_it_is(bytes: Vec<u8>, number: u8) {
        if let Ok(section) = Section::decode(&bytes, number) {
            prop_assert_eq!(section.encode(number), bytes);
        }
    }
}
