//! Samples of every format, as programs write them.

use bytes::Bytes;
use millrace_protocol::{
    frame::{Header, Shape},
    kind::RequestKind,
    storage::ChunkVersion,
    version::ProtocolVersion,
};
use millrace_storage_target::format::{
    batch::BootId,
    batch::{BatchHeader, Position, encode_batch},
    change::{Change, Removal, SectionsChange},
    extent::Extent,
    fact::{Fact, ScrubProgress, StateTotals},
    finding::{BlockKey, Fault, Finding},
    free_map::{Class, RegionMap, Summary},
    mark::{LostMark, Mark},
    node::{NODE_LEN, NodeHeader, Reference, encode_node},
    root::{RootRecord, Segment},
    section::{Section, SectionKey},
    superblock::{Layout, Superblock},
    table::Entry,
};
use millrace_types::{
    BlockState, ChunkIndex, ChunkKey, ChunkSize, ClusterId, ContentGeneration, CopyIndex, Crc32c,
    GroupEpoch, GroupId, InodeId, SessionId, TargetId, Timestamp, WriteEpoch, WriteNumber,
};

use super::wire::MESSAGES;

const TARGET: TargetId = TargetId([7; 8]);

/// Every format's samples, by the name of its fuzz target.
pub(crate) fn all() -> Vec<(&'static str, Vec<Vec<u8>>)> {
    vec![
        ("superblock", superblocks()),
        ("root", roots()),
        ("node", nodes()),
        ("section", sections()),
        ("entry", entries()),
        ("change", changes()),
        ("batch", batches()),
        ("frame", frames()),
        ("message", messages()),
    ]
}

pub(crate) fn superblocks() -> Vec<Vec<u8>> {
    let layout = Layout::new(1 << 20).unwrap();
    let superblock =
        Superblock { cluster: ClusterId([9; 16]), target: TARGET, writes: 3, losses: 2, layout };
    // The fields alone: behind them it is zero.
    (0..2).map(|copy| superblock.encode(copy)[..128].to_vec()).collect()
}

pub(crate) fn roots() -> Vec<Vec<u8>> {
    let segments = (0..4).map(|nth| Segment { first: 1000 + 2000 * nth, pages: 1024 }).collect();
    let root = RootRecord {
        target: TARGET,
        generation: 5,
        through: 77,
        root: Some(Reference { page: 1001, checksum: Crc32c(1) }),
        height: 2,
        entries: 300,
        nodes: 9,
        segments,
    };
    let empty = RootRecord {
        root: None,
        height: 0,
        entries: 0,
        nodes: 0,
        segments: Vec::new(),
        ..root.clone()
    };
    vec![root.encode()[..128].to_vec(), empty.encode()[..80].to_vec()]
}

pub(crate) fn nodes() -> Vec<Vec<u8>> {
    let mut samples = Vec::new();
    let child = Reference { page: 1002, checksum: Crc32c(8) }.encode().to_vec();
    for (level, value) in [(0, vec![0x5A; 20]), (0, Vec::new()), (1, child)] {
        let header = NodeHeader { target: TARGET, page: 1001, generation: 5, level };
        let entries: Vec<[u8; 9]> = (0..20).map(|nth| [1, 0, 0, 0, 0, 0, 0, 0, nth]).collect();
        let mut bytes = vec![0; NODE_LEN];
        let pairs = entries.iter().map(|key| (&key[..], &value[..]));
        let _checksum = encode_node(header, pairs, &mut bytes);
        samples.push(bytes);
    }
    samples
}

fn key(section: u8) -> SectionKey {
    let chunk = ChunkKey {
        inode: InodeId(0x0102),
        generation: ContentGeneration(3),
        index: ChunkIndex(4),
        copy: CopyIndex(0),
    };
    SectionKey { chunk, section }
}

/// Sections that are blank, zero, in one piece, in two, and in as many as there are pages.
fn some_sections() -> Vec<Section> {
    let mut base = Section::blank(ChunkSize::DEFAULT);
    base.version = ChunkVersion { group_epoch: GroupEpoch(1), counter: 9 };
    base.length = 512 * 1024;
    base.sequence = 12;
    let mut zero = base.clone();
    zero.set_state(0..3, BlockState::Zero);
    let mut samples = vec![base.clone(), zero];
    for (pages, step) in [(4_u8, 1_u64), (40, 1), (128, 2)] {
        let mut section = base.clone();
        let extents: Vec<Extent> = (0..u64::from(pages))
            .map(|nth| Extent { first: 5000 + nth * step, pages: 1 })
            .collect();
        let checksums: Vec<Crc32c> = (0..u32::from(pages)).map(Crc32c).collect();
        section.replace(0, &extents, &checksums, BlockState::Written);
        samples.push(section);
    }
    samples
}

pub(crate) fn sections() -> Vec<Vec<u8>> {
    some_sections().iter().map(|section| [&[0][..], &section.encode(0)].concat()).collect()
}

pub(crate) fn entries() -> Vec<Vec<u8>> {
    let mut entries: Vec<Entry> =
        some_sections().into_iter().map(|section| Entry::Section(key(0), section)).collect();
    let mut map = RegionMap::default();
    map.take(5..900);
    let finding = Finding {
        time: Timestamp(1),
        page: 5001,
        within: 17,
        expected: Crc32c(2),
        fault: Fault::Checksum { seen: Crc32c(3) },
    };
    let mark = Mark { generation: ContentGeneration(1), write_epoch: WriteEpoch(2) };
    let progress = ScrubProgress { pass: 2, cursor: Some(key(3)), ..ScrubProgress::default() };
    let position = Position { page: 300, sequence: 5, previous: Crc32c(6) };
    let summary = Summary::of(&map, Class::Medium);
    entries.extend([
        Entry::Mark(InodeId(5), mark),
        Entry::FreeMap(3, map),
        Entry::Summaries(0, vec![Summary::EMPTY, summary, summary]),
        Entry::Finding(BlockKey { section: key(1), block: 1 }, finding),
        Entry::Fact(Fact::LossCount(4)),
        Entry::Fact(Fact::Totals(StateTotals { clean_pages: 1, written_pages: 2 })),
        Entry::Fact(Fact::Scrub(progress)),
        Entry::Fact(Fact::JournalPosition(position)),
        Entry::Fact(Fact::LossesSeen(2)),
        Entry::Lost(GroupId(7), LostMark { below: InodeId(100) }),
    ]);
    let bytes = |entry: &Entry| {
        let (key, value) = entry.encode();
        let len = u8::try_from(key.as_slice().len()).unwrap();
        [&[len][..], key.as_slice(), &value].concat()
    };
    entries.iter().map(bytes).collect()
}

fn some_changes() -> Vec<Change> {
    let sections = some_sections();
    let mut written = SectionsChange::new(SessionId(8), WriteNumber(2));
    written.put(key(0), Some(&sections[2]), sections[3].clone());
    written.put(key(1), Some(&sections[2]), sections[0].clone());
    let mut beside = written.clone();
    beside.is_beside = true;
    let mut removal = Removal::default();
    assert!(removal.push(key(0), &sections[2]) && removal.push(key(1), &sections[4]));
    let block = BlockKey { section: key(1), block: 0 };
    let finding = Finding {
        time: Timestamp(1),
        page: 5001,
        within: 1,
        expected: Crc32c(2),
        fault: Fault::Unreadable,
    };
    vec![
        Change::Sections(written),
        Change::Remove(removal),
        Change::Mark(InodeId(5), Mark::default()),
        Change::Fact(Fact::LossCount(4)),
        Change::Finding(block, finding),
        Change::Mended(block),
        Change::Lost(GroupId(7), LostMark { below: InodeId(100) }),
        Change::Stop,
        Change::Sections(beside),
    ]
}

pub(crate) fn changes() -> Vec<Vec<u8>> {
    some_changes().iter().map(|change| change.encode().to_vec()).collect()
}

pub(crate) fn batches() -> Vec<Vec<u8>> {
    let position = Position { page: 300, sequence: 5, previous: Crc32c(6) };
    let header = BatchHeader { target: TARGET, position, committed: 4, boot: BootId([9; 16]) };
    let all: Vec<Bytes> = some_changes().iter().map(Change::encode).collect();
    [&all[7..], &all[2..], &all[..]]
        .iter()
        .map(|records| {
            let (bytes, _) = encode_batch(&header, records);
            bytes
        })
        .collect()
}

pub(crate) fn frames() -> Vec<Vec<u8>> {
    let shape = Shape::Request { kind: RequestKind::Hello, deadline_ms: 1000 };
    let header = Header::new(ProtocolVersion::ALL[0], shape, 3, b"message", 4096).unwrap();
    let reply = Header::new(ProtocolVersion::ALL[0], Shape::Reply, 3, b"", 0).unwrap();
    [header, reply].iter().map(|header| header.encode().to_vec()).collect()
}

/// The golden bytes of the protocol's own tests.
pub(crate) fn messages() -> Vec<Vec<u8>> {
    let golden = include_str!("../../../common/protocol/golden/v1.txt");
    let sample = |(at, name): (u8, &&str)| {
        let found = golden.lines().filter_map(|line| line.split_once(' '));
        let (_, digits) = found.into_iter().find(|(found, _)| found == name).unwrap();
        let bytes = digits
            .as_bytes()
            .chunks(2)
            .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap());
        std::iter::once(at).chain(bytes).collect()
    };
    (0..).zip(&MESSAGES).map(sample).collect()
}
