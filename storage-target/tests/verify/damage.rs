//! Each of a list of planted damages is found and named by its place, and a volume that is opened
//! on it serves nothing wrong.

use millrace_protocol::storage::ChunkVersion;
use millrace_storage_target::{
    format::{
        batch::BootId,
        batch::{Batch, claimed_len},
        change::Change,
        extent::Extent,
        fact::{Fact, FactNumber, StateTotals},
        free_map::{REGION_PAGES, RegionMap, Summary, decode_summaries, encode_summaries},
        node::Reference,
        root::RootRecord,
        section::{Section, SectionKey},
        table::{Entry, TableKey},
    },
    verify::{
        Unreadable,
        report::{Kind, Remark, Severity},
    },
};
use millrace_types::BlockState;

use super::{
    snapshot::{PAGE, Snapshot},
    target::{BLOCK, BOOT, LAYOUT, Target, check, key},
};

/// What must be said.
struct Expected {
    kind: Kind,
    page: Option<u64>,
    severity: Severity,
    words: &'static str,
}

fn damage(kind: Kind, page: impl Into<Option<u64>>, words: &'static str) -> Expected {
    Expected { kind, page: page.into(), severity: Severity::Damage, words }
}

impl Expected {
    fn is_met_by(&self, remark: &Remark) -> bool {
        remark.kind == self.kind
            && remark.severity == self.severity
            && (self.page.is_none() || remark.page == self.page)
            && remark.text.contains(self.words)
    }
}

/// A target with files of a block and more, bytes of the bucket, and an index of two levels.
async fn filled(seed: u64) -> Target {
    let mut target = Target::new(seed).await;
    for _ in 0..3 {
        for _ in 0..250 {
            target.change().await;
        }
        target.close().await;
        target.open().await.unwrap();
    }
    for inode in [1000, 1001, 1002, 2000] {
        assert!(!target.blocks.contains_key(&(inode, 0)));
    }
    target.write(1000, 0..3 * PAGE).await;
    target.write(1001, 0..3 * PAGE).await;
    target.fill_block(1002, 3).await;
    target.sync().await;
    target
}

async fn closed(seed: u64) -> (Target, Snapshot) {
    let mut target = filled(seed).await;
    target.close().await;
    let snapshot = target.snapshot().await;
    assert!(snapshot.root().height > 1, "there are inner nodes");
    (target, snapshot)
}

/// Records after the checkpoint, some of them pending.
async fn killed(seed: u64) -> (Target, Snapshot) {
    let mut target = filled(seed).await;
    target.close().await;
    target.open().await.unwrap();
    for inode in 2000..2030 {
        target.write(inode, 0..PAGE).await;
    }
    target.sync().await;
    target.write(1000, 0..PAGE).await;
    target.kill();
    let snapshot = target.snapshot().await;
    (target, snapshot)
}

/// The damage is found, the right way, and nothing wrong is served.
async fn assert_found(target: &Target, damaged: &Snapshot, expected: &Expected, what: &str) {
    let checked = check(damaged, BOOT).unwrap();
    let found = checked.remarks.iter().any(|remark| expected.is_met_by(remark));
    assert!(found, "{what}: {:#?}", checked.remarks);
    if expected.severity == Severity::Damage {
        assert!(!checked.summary.is_sound(), "{what}");
    }
    let mut opened = target.on(damaged).await;
    if opened.open().await.is_ok() {
        opened.assert_serves_nothing_wrong().await;
    }
}

fn section_key(inode: u64) -> (SectionKey, Vec<u8>) {
    let name = SectionKey { chunk: key(inode), section: 0 };
    (name, TableKey::Section(name).encode().as_slice().to_vec())
}

fn section(snapshot: &Snapshot, inode: u64) -> Section {
    let (_, key) = section_key(inode);
    Section::decode(&snapshot.value(&key).unwrap(), 0).unwrap()
}

/// The disk pages of an inode's first section.
fn pages(snapshot: &Snapshot, inode: u64) -> Vec<u64> {
    section(snapshot, inode).stored_pages().map(|(_, stored)| stored.page).collect()
}

/// Changes where an inode's first page lies, and nothing else.
fn redirect(snapshot: &mut Snapshot, inode: u64, page: u64) {
    let old = section(snapshot, inode);
    let mut bytes = old.encode(0);
    assert_eq!(old.extent_count(), 1, "written in one piece");
    bytes[42..48].copy_from_slice(&page.to_le_bytes()[..6]);
    let (_, key) = section_key(inode);
    snapshot.forge(&key, &bytes);
}

fn leaf_of(snapshot: &Snapshot, inode: u64) -> Reference {
    snapshot.path(&section_key(inode).1).pop().unwrap().0
}

#[tokio::test]
async fn flipped_bits_of_data_are_found() {
    let (target, sound) = closed(1).await;
    let page = pages(&sound, 1000)[1];
    let mut damaged = sound.clone();
    damaged.flip(page, 1234, 5);
    let expected = damage(Kind::Data, page, "bit 5 of byte 1234 is flipped");
    assert_found(&target, &damaged, &expected, "data").await;
    let checked = check(&damaged, BOOT).unwrap();
    let remark = checked.damages().next().unwrap();
    assert!(remark.text.contains("inode 1000 generation 1 chunk 0"), "{}", remark.text);
    assert!(remark.text.contains("bytes 4096 to 8191 of the chunk, written"), "{}", remark.text);
    assert_eq!(checked.summary.damages, 1);

    let clean = pages(&sound, 1002)[0];
    let mut damaged = sound.clone();
    damaged.flip(clean, 0, 0);
    let checked = check(&damaged, BOOT).unwrap();
    let remark = checked.damages().next().unwrap();
    assert!(remark.text.contains(", clean: "), "{}", remark.text);
    assert!(remark.remedy.contains("bucket"), "{}", remark.remedy);
}

#[tokio::test]
async fn swapped_and_zeroed_data_is_found() {
    let (target, sound) = closed(2).await;
    let (one, other) = (pages(&sound, 1000)[0], pages(&sound, 1001)[2]);
    let mut damaged = sound.clone();
    damaged.swap(one, other);
    for page in [one, other] {
        let expected = damage(Kind::Data, page, "it holds the bytes that belong to page");
        assert_found(&target, &damaged, &expected, "swapped data").await;
    }
    let mut damaged = sound.clone();
    damaged.put(one, vec![0; PAGE]);
    assert_found(&target, &damaged, &damage(Kind::Data, one, "all zeros"), "zeroed").await;
}

#[tokio::test]
async fn damaged_nodes_are_found() {
    let (target, sound) = closed(3).await;
    let path = sound.path(&section_key(1000).1);
    let (top, leaf) = (path[0].0, path[path.len() - 1].0);
    let mut damaged = sound.clone();
    damaged.flip(leaf.page, 777, 1);
    let expected = damage(Kind::Node, leaf.page, "a leaf of the index is damaged");
    assert_found(&target, &damaged, &expected, "leaf").await;
    let checked = check(&damaged, BOOT).unwrap();
    assert_eq!(checked.summary.damages, 1, "nothing follows from it: {:?}", checked.remarks);

    let mut damaged = sound.clone();
    damaged.flip(top.page, 99, 1);
    let expected = damage(Kind::Node, top.page, "an inner node of the index is damaged");
    assert_found(&target, &damaged, &expected, "inner node").await;

    // Two leaves in each other's place: sound, but for their numbers.
    let other = (0..path[0].1.count()).map(|at| path[0].1.child(at)).find(|other| *other != leaf);
    let other = other.unwrap();
    let mut damaged = sound.clone();
    damaged.swap(leaf.page, other.page);
    for page in [leaf.page, other.page] {
        let expected = damage(Kind::Node, page, "it belongs elsewhere");
        assert_found(&target, &damaged, &expected, "swapped nodes").await;
    }
}

#[tokio::test]
async fn a_stale_leaf_is_found() {
    let (target, sound) = closed(4).await;
    let leaf = leaf_of(&sound, 1000);
    // The same leaf with another value: sound in itself, but not what its parent names.
    let mut forged = sound.clone();
    let old = section(&sound, 1000);
    let mut bytes = old.encode(0);
    bytes[4] ^= 1;
    forged.forge(&section_key(1000).1, &bytes);
    let mut damaged = sound.clone();
    damaged.put(leaf.page, forged.page(leaf.page));
    let expected = damage(Kind::Node, leaf.page, "not the version that its parent names");
    assert_found(&target, &damaged, &expected, "stale leaf").await;
}

#[tokio::test]
async fn each_copy_of_root_and_superblock_is_looked_at() {
    for (target, sound) in [closed(5).await, killed(6).await] {
        for copy in 0..4 {
            let page = LAYOUT.roots + copy;
            let mut damaged = sound.clone();
            damaged.flip(page, 60, 7);
            let expected = damage(Kind::Root, page, "bit 7 of byte 48 is flipped");
            assert_found(&target, &damaged, &expected, "root").await;
        }
        for page in [0, 32] {
            let mut damaged = sound.clone();
            damaged.flip(page, 100, 0);
            let expected = damage(Kind::Superblock, page, "bit 0 of byte 88 is flipped");
            assert_found(&target, &damaged, &expected, "superblock").await;
            // What a target had before its journal failed.
            let mut damaged = sound.clone();
            let mut newer = sound.superblock();
            newer.writes += 1;
            damaged.put(32 - page, newer.encode(usize::from(page == 0)));
            let expected = damage(Kind::Superblock, page, "is stale: it says write 1");
            assert_found(&target, &damaged, &expected, "stale superblock").await;
        }
    }
}

#[tokio::test]
async fn an_old_root_is_damage_only_after_an_end_in_order() {
    let old = |snapshot: &Snapshot| {
        let root = snapshot.root();
        let page = LAYOUT.roots + RootRecord::slot(root.generation) + 1;
        let older = RootRecord { generation: root.generation - 2, ..root };
        (page, older.encode())
    };
    let (target, mut damaged) = closed(7).await;
    let (page, bytes) = old(&damaged);
    damaged.put(page, bytes);
    let expected = damage(Kind::Root, page, "is of generation");
    assert_found(&target, &damaged, &expected, "old root").await;
    let (target, mut damaged) = killed(8).await;
    let (page, bytes) = old(&damaged);
    damaged.put(page, bytes);
    let expected = Expected { severity: Severity::Note, ..expected };
    let expected = Expected { page: Some(page), ..expected };
    assert_found(&target, &damaged, &expected, "old root").await;
    assert!(check(&damaged, BOOT).unwrap().summary.is_sound());
}

#[tokio::test]
async fn without_superblock_or_roots_nothing_can_be_told() {
    let (target, sound) = closed(9).await;
    let mut damaged = sound.clone();
    damaged.flip(0, 50, 0);
    damaged.flip(32, 50, 0);
    assert!(matches!(check(&damaged, BOOT), Err(Unreadable::Superblock(_))));
    assert!(target.on(&damaged).await.open().await.is_err());
    let mut damaged = sound.clone();
    for copy in 0..4 {
        damaged.flip(LAYOUT.roots + copy, 2000, 1);
    }
    let checked = check(&damaged, BOOT).unwrap();
    assert_eq!((checked.summary.damages, checked.summary.generation), (4, 0));
    assert!(target.on(&damaged).await.open().await.is_err());
    let mut blank = sound;
    blank.pages = 0;
    assert!(matches!(check(&blank, BOOT), Err(Unreadable::Short)));
}

#[tokio::test]
async fn a_file_that_was_cut_off_is_found() {
    let (target, sound) = closed(10).await;
    let last = pages(&sound, 1001)[0];
    let mut damaged = sound.clone();
    damaged.pages = last;
    let expected = damage(Kind::File, last, "was cut off");
    assert_found(&target, &damaged, &expected, "cut off").await;
    let mut damaged = sound;
    damaged.pages = LAYOUT.regions - 10;
    let checked = check(&damaged, BOOT).unwrap();
    assert!(checked.damages().any(|remark| remark.kind == Kind::File));
}

/// The batches from the journal's position on, each with its page.
fn batches(snapshot: &Snapshot) -> Vec<(u64, Batch)> {
    let key = TableKey::Fact(FactNumber::JournalPosition).encode();
    let value = snapshot.value(key.as_slice()).unwrap();
    let Fact::JournalPosition(position) =
        Fact::decode(FactNumber::JournalPosition, &value).unwrap()
    else {
        panic!("a position")
    };
    let target = snapshot.superblock().target;
    let (mut page, mut sequence) = (position.page, position.sequence);
    let mut found = Vec::new();
    loop {
        let bytes: Vec<u8> =
            (page..LAYOUT.regions).take(64).flat_map(|at| snapshot.page(at)).collect();
        let whole =
            claimed_len(&bytes).and_then(|_| Batch::decode(&bytes.into(), target, page).ok());
        match whole.filter(|batch| batch.header.position.sequence == sequence) {
            Some(batch) => {
                sequence = batch.next_sequence();
                page += batch.pages;
                found.push((page - batch.pages, batch));
            }
            None if page != LAYOUT.journal && found.is_empty() => page = LAYOUT.journal,
            None => return found,
        }
    }
}

#[tokio::test]
async fn a_flipped_bit_anywhere_in_the_journal_is_found() {
    for (target, sound) in [closed(11).await, killed(12).await] {
        let batches = batches(&sound);
        for nth in [0, batches.len() / 2, batches.len() - 1] {
            let page = batches[nth].0;
            // Checksum, sequence, length and a record.
            for byte in [5, 25, 64, 73] {
                let mut damaged = sound.clone();
                damaged.flip(page, byte, 2);
                let expected = damage(Kind::Journal, page, "the journal's batch from record");
                let what = format!("batch {nth} of {}, byte {byte}", batches.len());
                let checked = check(&damaged, BOOT).unwrap();
                let found = checked.remarks.iter().any(|remark| expected.is_met_by(remark));
                assert!(found, "{what}: {:#?}", checked.remarks);
                let mut opened = target.on(&damaged).await;
                // Of the last batch nothing says that it was there: an older version is served.
                if opened.open().await.is_ok() && nth != batches.len() - 1 {
                    opened.assert_serves_nothing_wrong().await;
                }
            }
        }
    }
}

#[tokio::test]
async fn a_batch_that_is_gone_is_found_by_those_after_it() {
    let (target, sound) = killed(13).await;
    let batches = batches(&sound);
    let page = batches[1].0;
    let mut damaged = sound.clone();
    damaged.put(page, vec![0xA5; PAGE]);
    let expected = damage(Kind::Journal, page, "says that it was durable");
    assert_found(&target, &damaged, &expected, "batch gone").await;
    assert!(target.on(&damaged).await.open().await.is_err(), "the start is refused");
    // The last batch may have been cut off.
    let mut damaged = sound;
    let (page, last) = batches.last().unwrap();
    let mut bytes = damaged.page(*page);
    bytes[72..200].fill(0xA5);
    damaged.put(*page, bytes);
    let checked = check(&damaged, BOOT).unwrap();
    assert!(checked.summary.is_sound());
    assert_eq!(checked.summary.newest_record, last.header.position.sequence - 1);
    assert!(checked.remarks.iter().any(|note| note.page == Some(*page)), "{:?}", checked.remarks);
}

fn forge_map(snapshot: &mut Snapshot, region: u32, change: impl FnOnce(&mut RegionMap)) {
    let key = TableKey::FreeMap(region).encode();
    let mut map = RegionMap::decode(&snapshot.value(key.as_slice()).unwrap()).unwrap();
    change(&mut map);
    snapshot.forge(key.as_slice(), &map.encode());
    // The summary too, so that the daemon itself sees no contradiction.
    let key = TableKey::Summaries(0).encode();
    let mut summaries = decode_summaries(&snapshot.value(key.as_slice()).unwrap()).unwrap();
    let summary = &mut summaries[usize::try_from(region).unwrap()];
    *summary = Summary::of(&map, summary.class);
    snapshot.forge(key.as_slice(), &encode_summaries(&summaries).unwrap());
}

#[tokio::test]
async fn free_maps_summaries_and_totals_are_compared_with_the_sections() {
    let (target, sound) = closed(14).await;
    let map_key = TableKey::FreeMap(0).encode();
    let map = RegionMap::decode(&sound.value(map_key.as_slice()).unwrap()).unwrap();
    let free = map.free_runs().next().unwrap().start;
    let mut damaged = sound.clone();
    forge_map(&mut damaged, 0, |map| map.take(free..free + 1));
    let page = LAYOUT.regions + u64::from(free);
    let expected = damage(Kind::FreeMap, page, "and nothing uses them");
    assert_found(&target, &damaged, &expected, "leaked page").await;

    let used = pages(&sound, 1000)[0];
    let place = u32::try_from(used - LAYOUT.regions).unwrap();
    let (region, within) = (place / REGION_PAGES, place % REGION_PAGES);
    let mut damaged = sound.clone();
    forge_map(&mut damaged, region, |map| map.give(within..within + 1));
    let expected = damage(Kind::FreeMap, used, "in use: by inode 1000 generation 1");
    assert_found(&target, &damaged, &expected, "free although used").await;

    let mut damaged = sound.clone();
    let key = TableKey::Summaries(0).encode();
    let mut summaries = decode_summaries(&sound.value(key.as_slice()).unwrap()).unwrap();
    summaries[0].free -= 1;
    summaries[0].longest = summaries[0].longest.min(summaries[0].free);
    damaged.forge(key.as_slice(), &encode_summaries(&summaries).unwrap());
    let expected = damage(Kind::Summary, None, "the summary of region 0 says");
    assert_found(&target, &damaged, &expected, "summary").await;

    let mut damaged = sound.clone();
    let key = TableKey::Fact(FactNumber::Totals).encode();
    let totals = StateTotals { clean_pages: 16, written_pages: 7 };
    damaged.forge(key.as_slice(), &Fact::Totals(totals).encode());
    let expected = damage(Kind::Fact, None, "the totals say 16 clean and 7 written pages");
    assert_found(&target, &damaged, &expected, "totals").await;

    let mut damaged = sound.clone();
    let key = TableKey::Fact(FactNumber::HighestInode).encode();
    damaged.forge(key.as_slice(), &Fact::HighestInode(millrace_types::InodeId(5)).encode());
    let expected = damage(Kind::Fact, None, "the highest inode is said to be 5");
    assert_found(&target, &damaged, &expected, "highest inode").await;
}

#[tokio::test]
async fn pages_of_others_are_found() {
    let (target, sound) = closed(15).await;
    for (page, area) in [(LAYOUT.journal + 3, "the journal"), (0, "the superblock")] {
        let mut damaged = sound.clone();
        redirect(&mut damaged, 1000, page);
        let expected = damage(Kind::Pages, page, area);
        assert_found(&target, &damaged, &expected, area).await;
    }
    let mut damaged = sound.clone();
    let page = pages(&sound, 1001)[0];
    redirect(&mut damaged, 1000, page);
    let checked = check(&damaged, BOOT).unwrap();
    let twice = checked.damages().find(|remark| remark.kind == Kind::Pages).unwrap();
    assert_eq!(twice.page, Some(page));
    assert!(twice.text.contains("inode 1000") && twice.text.contains("inode 1001"), "{twice:?}");
    let expected = damage(Kind::Pages, page, "used twice");
    assert_found(&target, &damaged, &expected, "used twice").await;

    let index = sound.root().segments[0].first;
    let mut damaged = sound.clone();
    redirect(&mut damaged, 1000, index);
    let expected = damage(Kind::Pages, index, "used twice: by the index and by inode 1000");
    assert_found(&target, &damaged, &expected, "the index's page").await;
}

#[tokio::test]
async fn impossible_entries_are_found() {
    let (target, sound) = closed(16).await;
    let (_, key) = section_key(1000);
    let leaf = leaf_of(&sound, 1000).page;
    let mut bytes = section(&sound, 1000).encode(0);
    bytes[24] = 7;
    let mut damaged = sound.clone();
    damaged.forge(&key, &bytes);
    let expected = damage(Kind::Entry, leaf, "impossible chunk size");
    assert_found(&target, &damaged, &expected, "chunk size").await;

    let mut later = section(&sound, 1000);
    later.sequence = u64::MAX / 4;
    let mut damaged = sound.clone();
    damaged.forge(&key, &later.encode(0));
    let expected = damage(Kind::Entry, leaf, "changed it last, but the index contains");
    assert_found(&target, &damaged, &expected, "sequence").await;

    let mut blank = section(&sound, 1000);
    blank.set_state(0..8, BlockState::Absent);
    blank.version = ChunkVersion { counter: 1, ..blank.version };
    let mut damaged = sound.clone();
    damaged.forge(&key, &blank.encode(0));
    assert!(Entry::decode(&key, &blank.encode(0)).is_ok());
    let expected = damage(Kind::Entry, leaf, "nothing in it is present");
    // Its absence is signed up to the root: no volume could tell.
    let checked = check(&damaged, BOOT).unwrap();
    assert!(checked.remarks.iter().any(|remark| expected.is_met_by(remark)));
}

#[tokio::test]
async fn what_is_pending_is_told_and_counts_only_with_its_data() {
    let (mut target, sound) = killed(17).await;
    let checked = check(&sound, BOOT).unwrap();
    assert!(checked.summary.is_sound() && checked.summary.pending_records > 0);
    assert!(checked.remarks.iter().any(|note| note.text.contains("are pending")));
    // The same bytes on a machine that was started anew, without the data of the last record.
    let (_, last) = batches(&sound).pop().unwrap();
    let record = last.records.last().unwrap();
    let Change::Sections(change) = Change::decode(record).unwrap() else { panic!("a write") };
    let taken: Vec<Extent> = change.taken().to_vec();
    let mut damaged = sound.clone();
    damaged.put(taken[0].first, vec![0; PAGE]);
    let boot = BootId([9; 16]);
    let checked = check(&damaged, boot).unwrap();
    assert!(checked.summary.is_sound(), "{:?}", checked.remarks);
    assert!(checked.remarks.iter().any(|note| note.text.contains("have lost their data")));
    let same_boot = check(&damaged, BOOT).unwrap();
    assert_eq!(same_boot.damages().next().unwrap().page, Some(taken[0].first));
    target.boot = boot;
    let mut opened = target.on(&damaged).await;
    opened.open().await.unwrap();
    opened.assert_serves_nothing_wrong().await;
}

/// The offline check drops what the next start drops: later writes of a section of which a write
/// over two sections has lost its data.
#[tokio::test]
async fn what_a_torn_write_over_two_sections_takes_with_it_is_told() {
    const SECTION: usize = 8 * BLOCK;
    let mut target = Target::new(3).await;
    target.write(1, 0..2 * SECTION).await;
    target.close().await;
    target.open().await.unwrap();
    target.write(1, SECTION - BLOCK..SECTION + BLOCK).await;
    target.write(1, 0..BLOCK).await;
    target.write(1, SECTION + 3 * BLOCK..SECTION + 4 * BLOCK).await;
    target.kill();
    let sound = target.snapshot().await;
    let records: Vec<_> =
        batches(&sound).into_iter().flat_map(|(_, batch)| batch.records).collect();
    let torn = records.iter().rev().find_map(|record| match Change::decode(record).unwrap() {
        Change::Sections(change) if change.sections().len() == 2 => Some(change),
        _ => None,
    });
    let mut damaged = sound.clone();
    damaged.put(torn.unwrap().taken()[0].first, vec![0; PAGE]);
    target.boot = BootId([9; 16]);
    let checked = check(&damaged, target.boot).unwrap();
    assert!(checked.summary.is_sound(), "{:?}", checked.remarks);
    let told = checked.remarks.iter().find(|note| note.text.contains("have lost their data"));
    assert!(told.unwrap().text.starts_with("3 "), "{told:?}");
    let mut opened = target.on(&damaged).await;
    opened.open().await.unwrap();
    opened.assert_serves_nothing_wrong().await;
    // And what the start has made of it is sound.
    opened.kill();
    let checked = check(&opened.snapshot().await, target.boot).unwrap();
    assert!(checked.summary.is_sound(), "{:?}", checked.remarks);
}

/// What a record was made over is not needed as long as nothing before it was dropped: neither by
/// the daemon nor by the check.
#[tokio::test]
async fn a_pending_record_over_a_damaged_leaf_counts_as_one_with_its_data() {
    let mut target = filled(4).await;
    target.close().await;
    target.open().await.unwrap();
    // In the middle of the sections: no fact is in its leaf.
    let (&(inode, _), _) = target.blocks.range((100, 0)..).next().unwrap();
    target.write(inode, 0..PAGE).await;
    target.kill();
    let mut damaged = target.snapshot().await;
    damaged.flip(leaf_of(&damaged, inode).page, 777, 1);
    target.boot = BootId([9; 16]);
    let checked = check(&damaged, target.boot).unwrap();
    assert!(checked.summary.pending_records > 0, "{:?}", checked.summary);
    let is_dropped = |remark: &Remark| remark.text.contains("have lost their data");
    assert!(!checked.remarks.iter().any(is_dropped), "{:?}", checked.remarks);
    let mut opened = target.on(&damaged).await;
    opened.open().await.unwrap();
    assert!(opened.assert_serves_nothing_wrong().await > 0, "what was in the leaf is refused");
}
