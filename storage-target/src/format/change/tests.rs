//! What changes say, and what follows from them.

use std::collections::{BTreeMap, BTreeSet};

use millrace_types::{
    BlockState, ChunkIndex, ChunkKey, ChunkSize, ContentGeneration, CopyIndex, Crc32c, Timestamp,
    WriteEpoch,
};
use proptest::prelude::*;

use super::*;
use crate::format::{
    fact::{ScrubProgress, StateTotals},
    finding::Fault,
    section::SECTION_SIZE,
};

fn key(section: u8) -> SectionKey {
    let chunk = ChunkKey {
        inode: InodeId(0x0102),
        generation: ContentGeneration(3),
        index: ChunkIndex(4),
        copy: CopyIndex(0),
    };
    SectionKey { chunk, section }
}

fn extent(first: u64, pages: u64) -> Extent {
    Extent { first, pages }
}

fn stored(pages: &[(u8, u64)], state: BlockState) -> Section {
    let mut section = Section::blank(ChunkSize::MAX);
    section.length = 8 * SECTION_SIZE;
    for &(at, page) in pages {
        section.replace(at, &[extent(page, 1)], &[Crc32c(at.into())], state);
    }
    section
}

fn samples() -> Vec<Change> {
    let block = BlockKey { section: key(1), block: 2 };
    let finding = Finding {
        time: Timestamp(1),
        page: 2,
        within: 40,
        expected: Crc32c(3),
        fault: Fault::Checksum { seen: Crc32c(4) },
    };
    let mut sections = SectionsChange::new(SessionId(5), WriteNumber(6));
    let old = stored(&[(0, 300), (1, 301), (2, 302)], BlockState::Written);
    let mut new = old.clone();
    new.replace(1, &[extent(400, 2)], &[Crc32c(7), Crc32c(8)], BlockState::Clean);
    new.sequence = 9;
    sections.put(key(0), Some(&old), new);
    sections.put(key(1), Some(&old_elsewhere()), Section::blank(ChunkSize::MAX));
    let mut removal = Removal::default();
    assert!(removal.push(key(0), &stored(&[(0, 300), (1, 301)], BlockState::Clean)));
    assert!(removal.push(key(1), &stored(&[(0, 302)], BlockState::Written)));
    let mark = Mark { generation: ContentGeneration(1), write_epoch: WriteEpoch(2) };
    let progress = ScrubProgress { cursor: Some(key(3)), ..ScrubProgress::default() };
    vec![
        Change::Sections(sections),
        Change::Remove(removal),
        Change::Mark(InodeId(0x0A), mark),
        Change::Fact(Fact::Totals(StateTotals { clean_pages: 1, written_pages: 2 })),
        Change::Fact(Fact::Scrub(progress)),
        Change::Finding(block, finding),
        Change::Mended(block),
        Change::Lost(GroupId(7), LostMark { below: InodeId(8) }),
        Change::Stop,
    ]
}

fn old_elsewhere() -> Section {
    stored(&[(0, 500)], BlockState::Clean)
}

#[test]
fn the_bytes_never_change() {
    let encoded: Vec<Bytes> = samples().iter().map(Change::encode).collect();
    let name = [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0];
    let removal = [
        &[2, 2, 0, 0, 0, 1, 0, 0, 0, 0x2C, 1, 0, 0, 0, 0, 3, 0, 2, 0][..],
        &name,
        &[0],
        &name,
        &[1],
    ];
    assert_eq!(encoded[1], removal.concat());
    assert_eq!(encoded[2], [3, 10, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0][..]);
    assert_eq!(encoded[3][..3], [4, 2, 1]);
    assert_eq!(encoded[6], [&[6][..], &name, &[1, 2]].concat());
    assert_eq!(encoded[7], [7, 7, 0, 0, 0, 8, 0, 0, 0, 0, 0, 0, 0][..]);
    assert_eq!(encoded[8], [8][..]);
    let head = [
        &[1, 5, 0, 0, 0, 0, 0, 0, 0, 6, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0][..], // + 3 - 1 clean
        &[1, 0, 0, 0, 0x90, 1, 0, 0, 0, 0, 2, 0],                             // taken
        &[2, 0, 0, 0, 0x2D, 1, 0, 0, 0, 0, 2, 0, 0xF4, 1, 0, 0, 0, 0, 1, 0],  // given up
        &[2, 0],
        &name,
        &[0, 68, 0],
    ];
    let head = head.concat();
    assert_eq!(encoded[0][..head.len()], head);
    assert_eq!(encoded[0][head.len() + 68..], [&name[..], &[1, 0, 0]].concat());
    let all: Vec<u8> = encoded.concat();
    assert_eq!((all.len(), Crc32c::of(&all)), (391, Crc32c(0x525f_eb55)));
}

#[test]
fn changes_read_back_and_cut_ones_are_refused() {
    for change in samples() {
        let bytes = change.encode();
        assert_eq!(Change::decode(&bytes), Ok(change.clone()));
        // A scrub that has just begun has no cursor, and is a whole record.
        let shorter = matches!(change, Change::Fact(Fact::Scrub(_))).then_some(42);
        for cut in (0..bytes.len()).filter(|&cut| Some(cut) != shorter) {
            assert!(Change::decode(&bytes[..cut]).is_err(), "{change:?} cut at {cut}");
        }
        let longer = [&bytes[..], &[0]].concat();
        assert!(Change::decode(&longer).is_err(), "{change:?}");
    }
    assert!(Change::decode(&[0]).is_err() && Change::decode(&[9]).is_err());
}

#[test]
fn a_change_beside_its_data_has_another_first_byte_and_the_same_effects() {
    let Change::Sections(change) = samples().remove(0) else { panic!("sections") };
    let (plain, beside) = (
        Change::Sections(change.clone()),
        Change::Sections(SectionsChange { is_beside: true, ..change }),
    );
    assert!(beside.is_beside() && !plain.is_beside());
    let bytes = beside.encode();
    // The plain one's bytes are fixed above.
    assert_eq!([&[9], &plain.encode()[1..]].concat(), bytes);
    assert_eq!(Change::decode(&bytes), Ok(beside.clone()));
    assert_eq!(effects(&beside), effects(&plain));
}

#[test]
fn what_a_change_takes_and_gives_up_follows_from_the_sections() {
    let samples = samples();
    let Change::Sections(change) = &samples[0] else { panic!("sections") };
    let found = effects(&samples[0]);
    assert_eq!(found.taken, [extent(400, 2)]);
    assert_eq!(found.given_up, [extent(301, 2), extent(500, 1)]);
    // Page 300 is clean now, 400 and 401 are new; 300 to 302 were written, 500 was clean.
    assert_eq!((found.clean_pages_more, found.written_pages_more), (2, -3));
    assert_eq!(found.inode, Some(InodeId(0x0102)));
    let names: Vec<Key> = [0, 1].map(|at| TableKey::Section(key(at)).encode()).to_vec();
    assert_eq!(found.entries[0].0, names[0]);
    assert_eq!(found.entries[1], (names[1], None));
    let value = found.entries[0].1.as_ref().unwrap();
    assert_eq!(Section::decode(value, 0).unwrap().sequence, 9);
    let pages: Vec<_> = change.new_pages().collect();
    let page = |page, checksum| StoredPage { page, checksum: Crc32c(checksum) };
    assert_eq!(pages, [page(400, 7), page(401, 8)]);

    let found = effects(&samples[1]);
    assert_eq!((found.taken, found.given_up), (vec![], vec![extent(300, 3)]));
    assert_eq!((found.clean_pages_more, found.written_pages_more), (-2, -1));
    assert_eq!(found.entries, names.iter().map(|&name| (name, None)).collect::<Vec<_>>());
    let entry = Entry::Mark(InodeId(10), Mark::decode(&[1, 0, 0, 0, 2, 0, 0, 0]).unwrap());
    let (name, value) = entry.encode();
    assert_eq!(effects(&samples[2]).entries, [(name, Some(value))]);
    assert_eq!(effects(&samples[6]).entries[0].0, effects(&samples[5]).entries[0].0);
    assert_eq!(effects(&samples[6]).entries[0].1, None);
    assert_eq!(effects(&Change::Stop), Effects::default());
}

#[test]
fn the_worst_sections_fit_a_record_and_a_removal_says_when_it_is_full() {
    let scattered = |start: u64| {
        let pages: Vec<_> = (0..SECTION_PAGES).map(|at| (at, start + 2 * u64::from(at))).collect();
        stored(&pages, BlockState::Written)
    };
    let mut change = SectionsChange::new(SessionId(0), WriteNumber(0));
    let mut removal = Removal::default();
    for number in 0..u64::from(u8::MAX) {
        let at = u8::try_from(number % 8).unwrap();
        let section = SectionKey { section: at, ..key(0) };
        if change.sections().len() < CHANGE_SECTIONS_MAX {
            let old = scattered(1000 * number);
            change.put(section, Some(&old), scattered(1_000_000 + 1000 * number));
        }
        if !removal.push(section, &scattered(1000 * number)) {
            break;
        }
    }
    assert_eq!((removal.sections().len(), removal.given_up().len()), (125, 125 * 128));
    for change in [Change::Sections(change), Change::Remove(removal)] {
        let bytes = change.encode();
        assert!(bytes.len() <= RECORD_LEN_MAX);
        assert_eq!(Change::decode(&bytes), Ok(change));
    }
    let mut small = Removal::default();
    while small.push(key(0), &stored(&[(0, 7)], BlockState::Clean)) {}
    assert_eq!(small.sections().len(), REMOVAL_SECTIONS_MAX);
}

proptest! {
    /// What effects say, summed over a history, is what the sections at its end use.
    #[test]
    fn effects_sum_up_to_what_the_sections_use(
        steps in prop::collection::vec((0_u8..4, 0_u8..100, 1_u8..28, 0_u8..6), 1..60),
    ) {
        let mut sections: BTreeMap<u8, Section> = BTreeMap::new();
        let mut used = BTreeSet::new();
        let (mut clean, mut written) = (0, 0);
        let mut next_page = 1000;
        for (number, first, pages, kind) in steps {
            let old = sections.get(&number).cloned();
            let mut new = old.clone().unwrap_or_else(|| Section::blank(ChunkSize::MAX));
            new.length = 8 * SECTION_SIZE;
            let place = extent(next_page, pages.into());
            next_page += u64::from(pages);
            let checksums = vec![Crc32c(1); pages.into()];
            let change = match (kind, &old) {
                (0, Some(old)) => {
                    let mut removal = Removal::default();
                    prop_assert!(removal.push(key(number), old));
                    sections.remove(&number);
                    Change::Remove(removal)
                }
                _ => {
                    let state = if kind < 2 { BlockState::Clean } else { BlockState::Written };
                    drop(match kind {
                        0..4 => new.replace(first, &[place], &checksums, state),
                        4 => new.set_state(0..first / 16, BlockState::Clean),
                        _ => new.truncate(first),
                    });
                    let mut change = SectionsChange::new(SessionId(0), WriteNumber(0));
                    change.put(key(number), old.as_ref(), new.clone());
                    match new.is_blank() {
                        true => sections.remove(&number),
                        false => sections.insert(number, new),
                    };
                    Change::Sections(change)
                }
            };
            let decoded = Change::decode(&change.encode());
            prop_assert_eq!(decoded.as_ref(), Ok(&change));
            let found = effects(&change);
            for page in found.taken.iter().flat_map(|extent| extent.numbers()) {
                prop_assert!(used.insert(page), "taken once");
            }
            for page in found.given_up.iter().flat_map(|extent| extent.numbers()) {
                prop_assert!(used.remove(&page), "given up once");
            }
            clean += found.clean_pages_more;
            written += found.written_pages_more;
        }
        let pages = sections.values().flat_map(|section| section.stored_pages());
        prop_assert_eq!(pages.map(|(_, stored)| stored.page).collect::<BTreeSet<_>>(), used);
        let counts = sections.values().map(Section::pages_by_state);
        let sum = counts.fold((0, 0), |sum, next| (sum.0 + next.0, sum.1 + next.1));
        prop_assert_eq!(sum, (u64::try_from(clean).unwrap(), u64::try_from(written).unwrap()));
    }

    #[test]
    fn no_bytes_make_the_decoder_panic(
        which in 0_usize..9,
        is_beside in any::<bool>(),
        noise in prop::collection::vec((0_usize..180, any::<u8>()), 0..12),
    ) {
        let mut sample = samples().remove(which);
        if let Change::Sections(change) = &mut sample {
            change.is_beside = is_beside;
        }
        let mut bytes = sample.encode().to_vec();
        for (at, byte) in noise {
            let len = bytes.len();
            bytes[at % len] = byte;
        }
        if let Ok(change) = Change::decode(&bytes) {
            drop(effects(&change));
            prop_assert_eq!(Change::decode(&change.encode()), Ok(change));
        }
    }
}
