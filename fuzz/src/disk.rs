//! The formats of a target's disk.

use bytes::Bytes;
use millrace_storage_target::format::{
    batch::{Batch, claimed_len, encode_batch},
    change::{Change, effects},
    extent::page_count,
    free_map::{REGION_PAGES, RegionMap, Summary},
    node::{NODE_LEN, Node, NodeHeader, Reference, encode_node},
    root::{ROOT_LEN, RootRecord},
    section::{SECTION_PAGES, Section},
    superblock::Superblock,
    table::Entry,
};
use millrace_types::{Crc32c, TargetId};

/// The pages that a superblock's fields take; behind them it is zero.
const SUPERBLOCK_LEN: usize = 4096;

/// Reads bytes as both copies of a superblock.
pub fn superblock(bytes: &[u8]) {
    let bytes = signed(padded(bytes, SUPERBLOCK_LEN), 8, 12, SUPERBLOCK_LEN);
    for copy in 0..2 {
        let Ok(superblock) = Superblock::decode(&bytes, copy) else { continue };
        let layout = superblock.layout;
        assert!(layout.fixed_pages() <= layout.capacity && layout.region_count() > 0);
        let again = superblock.encode(copy);
        assert_eq!(Superblock::decode(&again, copy).as_ref(), Ok(&superblock));
        // Bytes behind the fields are for later versions of the format, and not looked at.
        assert_eq!(again[12..120], bytes[12..120]);
    }
}

/// Reads bytes as an index root.
pub fn root(bytes: &[u8]) {
    let bytes = signed(padded(bytes, ROOT_LEN), 8, 12, ROOT_LEN);
    let target = TargetId(*bytes[16..].first_chunk().expect("eight bytes"));
    let Ok(root) = RootRecord::decode(&bytes, target) else { return };
    assert!(root.segments.windows(2).all(|pair| pair[0].end() <= pair[1].first));
    let again = root.encode();
    assert_eq!(RootRecord::decode(&again, target), Ok(root));
}

/// Reads bytes as the node that they say to be, and goes through its entries.
pub fn node(bytes: &[u8]) {
    let bytes = signed(padded(bytes, NODE_LEN), 4, 8, NODE_LEN);
    let number = |at: usize| u64::from_le_bytes(*bytes[at..].first_chunk().expect("eight bytes"));
    let checksum = Crc32c(u32::from_le_bytes(*bytes[4..].first_chunk().expect("four bytes")));
    let reference = Reference { page: number(16), checksum };
    let target = TargetId(*bytes[8..].first_chunk().expect("eight bytes"));
    let level = bytes[32];
    let decoded = Node::decode(Bytes::copy_from_slice(&bytes), target, reference, level);
    let Ok(node) = decoded else { return };
    let values: Vec<Bytes> = (0..node.count()).map(|at| node.value(at)).collect();
    for (at, value) in values.iter().enumerate() {
        assert_eq!(node.find(node.key(at)), Ok(at));
        assert_eq!(node.route(node.key(at)), at);
        if level > 0 {
            assert_eq!(node.child(at).encode()[..], value[..]);
        }
    }
    let header = NodeHeader { target, page: reference.page, generation: node.generation(), level };
    let entries = (0..node.count()).map(|at| (node.key(at), &values[at][..]));
    let mut again = vec![0; NODE_LEN];
    let checksum = encode_node(header, entries, &mut again);
    let reference = Reference { checksum, ..reference };
    let again = Node::decode(again.into(), target, reference, level).expect("just encoded");
    assert_eq!(again.count(), node.count());
    assert!((0..node.count()).all(|at| again.key(at) == node.key(at)));
    assert!((0..node.count()).all(|at| again.value(at) == values[at]));
}

/// Reads bytes, the first one the section's number, as a section record.
pub fn section(bytes: &[u8]) {
    let Some((&number, bytes)) = bytes.split_first() else { return };
    let Ok(section) = Section::decode(bytes, number) else { return };
    assert_eq!(section.encode(number), bytes, "a section has one form");
    use_section(&section, number);
}

fn use_section(section: &Section, number: u8) {
    let (clean, written) = section.pages_by_state();
    assert_eq!(page_count(&section.extents()), clean + written);
    assert_eq!(section.stored_pages().count() as u64, clean + written);
    for (at, stored) in section.stored_pages() {
        assert_eq!(section.page(at), Some(stored));
    }
    let parts = section.parts(0..SECTION_PAGES);
    assert_eq!(
        parts.iter().map(|part| part.pages.len()).sum::<usize>(),
        usize::from(SECTION_PAGES)
    );
    assert!(section.checksums(0..SECTION_PAGES).len() as u64 == clean + written);
    assert!(section.held(number).end <= section.chunk_size.bytes());
}

/// Reads bytes as an entry of the index: the length of the key (1), the key, the value.
pub fn entry(bytes: &[u8]) {
    let Some((&len, bytes)) = bytes.split_first() else { return };
    let Some((key, value)) = bytes.split_at_checked(usize::from(len % 24)) else { return };
    let Ok(entry) = Entry::decode(key, value) else { return };
    let (found_key, found_value) = entry.encode();
    assert_eq!((found_key.as_slice(), &found_value[..]), (key, value), "an entry has one form");
    match entry {
        Entry::Section(key, section) => use_section(&section, key.section),
        Entry::FreeMap(_, map) => use_map(&map),
        _ => {}
    }
}

fn use_map(map: &RegionMap) {
    let free: u32 = map.free_runs().map(|run| run.end - run.start).sum();
    assert_eq!(free, map.free_pages());
    assert!(map.longest_run() <= free && free <= REGION_PAGES);
    let summary = Summary::of(map, millrace_storage_target::format::free_map::Class::Small);
    assert_eq!(Summary::decode(summary.encode()), Some(summary));
}

/// Reads bytes as a record of the journal, and asks what it does.
pub fn change(bytes: &[u8]) {
    let Ok(change) = Change::decode(bytes) else { return };
    let effects = effects(&change);
    let more = effects.clean_pages_more.checked_add(effects.written_pages_more);
    assert!(more.is_some(), "counts do not wrap");
    if let Change::Sections(change) = &change {
        assert!(change.new_pages().count() <= bytes.len());
    }
    // Extents may be written in more pieces than needed.
    assert_eq!(Change::decode(&change.encode()), Ok(change));
}

/// Reads bytes as the batch that they say to be.
pub fn batch(bytes: &[u8]) {
    let Some(len) = claimed_len(bytes).filter(|&len| len <= bytes.len()) else { return };
    let bytes = Bytes::from(signed(bytes.to_vec(), 4, 8, len));
    let target = TargetId(*bytes[8..].first_chunk().expect("a header"));
    let page = u64::from_le_bytes(*bytes[16..].first_chunk().expect("a header"));
    let Ok(batch) = Batch::decode(&bytes, target, page) else { return };
    assert!(batch.next_sequence() > batch.header.committed);
    assert!(batch.records.iter().map(Bytes::len).sum::<usize>() < len);
    let (again, _) = encode_batch(&batch.header, &batch.records);
    let mut expected = bytes[..len].to_vec();
    // The field behind the length is zero, and not looked at.
    expected[68..72].fill(0);
    let expected = signed(expected, 4, 8, len);
    assert_eq!(again[..len], expected, "a batch has one form");
}

fn padded(bytes: &[u8], len: usize) -> Vec<u8> {
    let mut padded = bytes.to_vec();
    padded.resize(len, 0);
    padded
}

/// Makes the checksum at `at` right, which is of the bytes from `from` to `end`.
fn signed(mut bytes: Vec<u8>, at: usize, from: usize, end: usize) -> Vec<u8> {
    let checksum = Crc32c::of(&bytes[from..end]);
    bytes[at..at + 4].copy_from_slice(&checksum.0.to_le_bytes());
    bytes
}
