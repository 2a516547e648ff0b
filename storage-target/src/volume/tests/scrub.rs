//! Damage is found, listed until it is gone, and told from what changes meanwhile; the scrub keeps
//! its rate and its place.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use millrace_runtime::{Clock, Random, VirtualTime};
use millrace_types::Timestamp;

use super::{
    BLOCK, CHUNK_SIZE, ContentGeneration, ContentName, EngineError, InodeId, Options,
    SimulatedDisk, Volume, WriteEpoch, assert_holds, key, new_disk, open, options, pattern, read,
    used_pages, write, write_request,
};
use crate::{
    format::{
        finding::{BlockKey, Fault},
        section::SectionKey,
        table::TableKey,
    },
    volume::{ScrubActivity, ScrubCommand, ScrubSettings, sections::split_block},
};

const DAY: Duration = Duration::from_secs(24 * 3600);
const MIB: u64 = 1 << 20;

fn clock() -> (Clock, VirtualTime) {
    Clock::manual(Timestamp(1_000_000_000_000_000_000))
}

fn settings(bytes_per_second: u64) -> ScrubSettings {
    ScrubSettings { bytes_per_second, interval: 7 * DAY }
}

/// Lets every task run until it waits for the clock.
pub(super) async fn rest() {
    for _ in 0..200 {
        tokio::task::yield_now().await;
    }
}

/// Lets a pass run to its end; false when it does not get there.
async fn finish(volume: &Volume, time: &VirtualTime, pass: u64) -> bool {
    for _ in 0..2000 {
        rest().await;
        let progress = volume.scrub_status().progress;
        if progress.pass == pass && !progress.is_under_way() {
            return true;
        }
        time.advance(Duration::from_secs(1));
    }
    false
}

/// A whole pass from now on.
pub(super) async fn scrub(volume: &Volume) {
    let (clock, time) = clock();
    let pass = volume.scrub_status().progress.pass + 1;
    volume.start_scrub(settings(1 << 30), clock);
    rest().await;
    volume.control_scrub(ScrubCommand::Start);
    assert!(finish(volume, &time, pass).await, "{:?}", volume.scrub_status());
}

/// Flips a bit of a page of a chunk.
pub(super) async fn damage(
    disk: &SimulatedDisk,
    volume: &Volume,
    chunk: super::ChunkKey,
    page: u32,
) -> u64 {
    volume.sync().await.unwrap();
    let block = u16::try_from(page / 16).unwrap();
    let snapshot = volume.snapshot(chunk, block..block + 1).await.unwrap();
    let place = snapshot.disk_page(page).unwrap();
    disk.flip(place * 4096 + 99, 4);
    place
}

pub(super) fn name(chunk: super::ChunkKey, block: u16) -> BlockKey {
    let (section, block) = split_block(block);
    BlockKey { section: SectionKey { chunk, section }, block }
}

pub(super) fn listed(volume: &Volume) -> Vec<BlockKey> {
    volume.findings(None, 1000).into_iter().map(|(key, _)| key).collect()
}

#[tokio::test]
async fn a_pass_finds_what_is_damaged_and_nothing_else() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    for inode in 1..9 {
        write(&volume, key(inode, 0), 0, pattern(inode, 0, 700_000)).await;
    }
    scrub(&volume).await;
    let status = volume.scrub_status();
    assert_eq!((status.progress.pass, status.progress.findings), (1, 0));
    // 171 pages of each file, and what there is of the index.
    let nodes = volume.shared().index.statistics().nodes;
    assert_eq!(status.progress.pages, 8 * 171 + nodes);
    assert_eq!(status.activity, ScrubActivity::Waiting);
    let place = damage(&disk, &volume, key(3, 0), 130).await;
    damage(&disk, &volume, key(3, 0), 131).await;
    damage(&disk, &volume, key(7, 0), 0).await;
    scrub(&volume).await;
    assert_eq!(volume.scrub_status().progress.findings, 2);
    assert_eq!(listed(&volume), [name(key(3, 0), 8), name(key(7, 0), 0)]);
    let (_, finding) = volume.findings(None, 1)[0];
    assert_eq!((finding.page, finding.within), (place, 2));
    assert!(matches!(finding.fault, Fault::Checksum { seen } if seen != finding.expected));
    // By pages, and from the middle.
    assert_eq!(volume.findings(Some(name(key(3, 0), 8)), 9).len(), 1);
    assert!(volume.findings(Some(name(key(7, 0), 0)), 9).is_empty());
    // Another pass finds the same again, and lists it once.
    scrub(&volume).await;
    assert_eq!(volume.scrub_status().progress.findings, 2);
    assert_eq!(volume.findings(None, 1)[0].1, finding, "since when it is known");
    assert_eq!(volume.statistics().bad_blocks, 2);
    // The same in the words of the wire, a page at a time.
    let told = volume.describe(None, 1);
    assert_eq!((told.findings_total, told.findings.len()), (2, 1));
    assert_eq!((told.scrub.pass, told.scrub.findings, told.scrub.under_way), (3, 2, false));
    assert_eq!(told.space.written.0, 8 * 171 * 4096);
    let place = told.findings[0].place;
    assert_eq!((place.chunk, place.block, told.findings[0].page), (key(3, 0), 8, finding.page));
    let rest = volume.describe(Some(place), u32::MAX).findings;
    assert_eq!((rest.len(), rest[0].place.chunk), (1, key(7, 0)));
}

#[tokio::test]
async fn a_finding_outlives_kills_orderly_ends_and_cuts_of_power() {
    let disk = new_disk(1);
    let mut volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 200_000)).await;
    damage(&disk, &volume, key(1, 0), 20).await;
    scrub(&volume).await;
    let found = volume.findings(None, 9);
    assert_eq!(found.len(), 1);
    drop(volume);
    volume = open(&disk).await;
    assert_eq!(volume.findings(None, 9), found, "after a kill");
    assert!(matches!(read(&volume, key(1, 0), 1..2).await, Err(EngineError::Corrupt { .. })));
    volume.close().await.unwrap();
    drop(volume);
    volume = open(&disk).await;
    assert_eq!(volume.findings(None, 9), found, "after an orderly end");
    drop(volume);
    disk.restart();
    volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.findings(None, 9), found, "after a loss of power");
    assert_eq!(volume.scrub_status().progress.pass, 1);
    // What was found is still EIO, and goes with the bytes.
    assert!(matches!(read(&volume, key(1, 0), 1..2).await, Err(EngineError::Corrupt { .. })));
    write(&volume, key(1, 0), BLOCK, pattern(2, 0, BLOCK)).await;
    assert!(volume.findings(None, 9).is_empty());
    drop(volume);
    let volume = open(&disk).await;
    assert!(volume.findings(None, 9).is_empty(), "also after a kill");
}

/// A volume with one finding, in block 1 of chunk 0 of inode 1.
async fn with_finding() -> (SimulatedDisk, Volume) {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 5 * BLOCK)).await;
    damage(&disk, &volume, key(1, 0), 20).await;
    drop(read(&volume, key(1, 0), 1..2).await.unwrap_err());
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    (disk, volume)
}

async fn assert_findings(disk: &SimulatedDisk, volume: Volume, expected: usize) {
    assert_eq!(volume.findings(None, 9).len(), expected);
    drop(volume);
    let volume = open(disk).await;
    assert_eq!(volume.findings(None, 9).len(), expected, "also after a kill");
}

#[tokio::test]
async fn a_finding_goes_with_its_page_and_not_before() {
    let (disk, volume) = with_finding().await;
    // Other pages of the block, and other blocks of the section.
    write(&volume, key(1, 0), BLOCK, pattern(2, 0, 4 * 4096)).await;
    write(&volume, key(1, 0), 0, pattern(2, 0, BLOCK)).await;
    write(&volume, key(1, 0), 2 * BLOCK, pattern(2, 0, BLOCK)).await;
    assert_findings(&disk, volume, 1).await;
    // The page itself.
    let (disk, volume) = with_finding().await;
    write(&volume, key(1, 0), 20 * 4096, pattern(2, 0, 4096)).await;
    assert_findings(&disk, volume, 0).await;
    let content = ContentName { inode: InodeId(1), generation: ContentGeneration(1) };
    let (disk, volume) = with_finding().await;
    let size = u64::from(CHUNK_SIZE);
    volume.trim(content, size, 2 * BLOCK as u64, WriteEpoch(1)).await.unwrap();
    assert_findings(&disk, volume, 1).await;
    let (disk, volume) = with_finding().await;
    volume.trim(content, size, BLOCK as u64, WriteEpoch(1)).await.unwrap();
    assert_findings(&disk, volume, 0).await;
    let (disk, volume) = with_finding().await;
    volume.reclaim(&[(InodeId(1), ContentGeneration(1))]).await.unwrap();
    assert_findings(&disk, volume, 0).await;
    let (disk, volume) = with_finding().await;
    volume.zero(super::zero_request(key(1, 0), BLOCK..2 * BLOCK)).await.unwrap();
    assert_findings(&disk, volume, 0).await;
}

#[tokio::test]
async fn a_page_that_can_be_read_again_is_no_finding_any_more() {
    let (disk, volume) = with_finding().await;
    damage(&disk, &volume, key(1, 0), 20).await;
    scrub(&volume).await;
    assert_findings(&disk, volume, 0).await;
}

#[tokio::test]
async fn a_page_that_the_disk_cannot_read_is_a_finding_of_its_own_kind() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    let section = SectionKey { chunk: key(1, 0), section: 0 };
    let (_, record) = volume.shared().section(key(1, 0), 0).await.unwrap();
    let record = record.unwrap();
    // All pages at once fails, then the third page alone.
    disk.fail(crate::disk::Operation::Read, 0, libc::EIO);
    let stored = volume.shared().read_stored(&record).await.unwrap();
    assert!(stored.bad.is_empty(), "each page alone can be read");
    disk.set_unreadable(record.page(2).unwrap().page, true);
    volume.shared().inspect(section).await.unwrap();
    let found = volume.findings(None, 9);
    assert_eq!(found.len(), 1);
    assert_eq!((found[0].1.within, found[0].1.fault), (2, Fault::Unreadable));
    disk.set_unreadable(record.page(2).unwrap().page, false);
    scrub(&volume).await;
    assert!(volume.findings(None, 9).is_empty());
}

/// The page of the leaf that holds the record of an inode, found by damaging all of them.
async fn leaf_of(disk: &SimulatedDisk, volume: &Volume, inode: u64) -> u64 {
    let section = SectionKey { chunk: key(inode, 0), section: 0 };
    let name = TableKey::Section(section).encode();
    let segments = volume.shared().index.segments();
    for page in segments.iter().flat_map(|segment| segment.first..segment.end()) {
        disk.flip(page * 4096 + 1000, 0);
        let survey = volume.shared().index.survey(name, 1).await.unwrap();
        disk.flip(page * 4096 + 1000, 0);
        if survey.damage.is_some() {
            return page;
        }
    }
    panic!("no leaf holds inode {inode}");
}

const FILES: u64 = 400;

/// Files enough for several leaves, all in the tree, and a cold cache.
async fn many_files() -> (SimulatedDisk, Volume) {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    for inode in 1..=FILES {
        write(&volume, key(inode, 0), 0, pattern(inode, 0, 5000)).await;
    }
    volume.close().await.unwrap();
    drop(volume);
    let volume = open(&disk).await;
    assert!(volume.shared().index.statistics().nodes > 6, "several leaves");
    (disk, volume)
}

#[tokio::test]
async fn a_damaged_leaf_is_an_error_for_its_keys_a_finding_and_gone_round() {
    let (disk, volume) = many_files().await;
    let leaf = leaf_of(&disk, &volume, 100).await;
    disk.flip(leaf * 4096 + 1000, 0);
    let mut lost = Vec::new();
    for inode in 1..=FILES {
        match read(&volume, key(inode, 0), 0..1).await {
            Ok(found) => assert_eq!(found[0], Some(pattern(inode, 0, 1)[0])),
            Err(EngineError::Index(_)) => lost.push(inode),
            Err(error) => panic!("{error}"),
        }
    }
    assert!(lost.contains(&100) && lost.len() < 100, "{lost:?}");
    // Readers have met it, and it is listed, with its page.
    assert_eq!(volume.take_second_looks().await.unwrap(), 1);
    let (name, finding) = volume.findings(None, 9)[0];
    assert_eq!((finding.page, finding.fault), (leaf, Fault::Index));
    assert_eq!(name.section.chunk, key(lost[0], 0), "named after its first section");
    // The scrub goes round it and checks all others.
    damage(&disk, &volume, key(399, 0), 1).await;
    scrub(&volume).await;
    let mut listed = listed(&volume);
    listed.retain(|key| *key != name);
    assert_eq!(listed, [super::scrub::name(key(399, 0), 0)]);
    let pages = volume.scrub_status().progress.pages;
    let nodes = volume.shared().index.statistics().nodes;
    assert!(pages >= (FILES - lost.len() as u64) * 2 + nodes - 4, "{pages}");
    // What is not in it can be written and removed; a reclaim over it removes the rest.
    write(&volume, key(399, 0), 0, pattern(5, 0, 8192)).await;
    let all: Vec<_> = (1..=FILES).map(|inode| (InodeId(inode), ContentGeneration(1))).collect();
    volume.reclaim(&all).await.unwrap();
    assert_eq!(used_pages(&volume).await, 2 * lost.len() as u64);
    drop(volume);
    let volume = open(&disk).await;
    assert_eq!(volume.findings(None, 9).len(), 1, "the leaf, still");
    // Whole again, it is no finding after the next pass.
    disk.flip(leaf * 4096 + 1000, 0);
    scrub(&volume).await;
    assert!(volume.findings(None, 9).is_empty());
}

/// Lets a second pass, slowly.
async fn second(time: &VirtualTime) {
    for _ in 0..100 {
        time.advance(Duration::from_millis(10));
        rest().await;
    }
}

#[tokio::test]
async fn the_rate_is_kept_also_when_it_changes_and_0_and_pause_stop_it() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    for inode in 1..13 {
        write(&volume, key(inode, 0), 0, pattern(inode, 0, 1 << 20)).await;
    }
    let (clock, time) = clock();
    volume.start_scrub(settings(MIB), clock);
    rest().await;
    assert_eq!(volume.scrub_status().activity, ScrubActivity::Waiting);
    assert_eq!(volume.scrub_status().read_bytes, 0, "a new target's bytes are new");
    volume.control_scrub(ScrubCommand::Start);
    rest().await;
    let read = || volume.scrub_status().read_bytes;
    // The first read comes at once, and each further one when the one before is paid for.
    let unit = MIB / 2 + 3 * 4096;
    assert!(read() > 0 && read() <= unit, "{}", read());
    let mut before = read();
    for _ in 0..4 {
        second(&time).await;
        assert!(read() - before <= MIB + unit && read() > before, "{}", read() - before);
        before = read();
    }
    assert!(read() >= 4 * MIB && read() <= 4 * MIB + 2 * unit, "{}", read());
    volume.control_scrub(ScrubCommand::Pause);
    rest().await;
    assert_eq!(volume.scrub_status().activity, ScrubActivity::Paused);
    before = read();
    time.advance(Duration::from_secs(100));
    rest().await;
    assert_eq!(read(), before);
    volume.control_scrub(ScrubCommand::Resume);
    rest().await;
    assert!(read() - before <= unit, "no time is saved up: {}", read() - before);
    volume.control_scrub(ScrubCommand::SetRate(0));
    rest().await;
    before = read();
    time.advance(Duration::from_secs(100));
    rest().await;
    assert_eq!((read(), volume.scrub_status().activity), (before, ScrubActivity::Off));
    volume.control_scrub(ScrubCommand::SetRate(3 * MIB));
    second(&time).await;
    assert!(read() - before <= 3 * MIB + unit && read() - before >= 2 * MIB);
    assert!(finish(&volume, &time, 1).await);
    // The next pass is due a week after the first one began.
    time.advance(6 * DAY);
    rest().await;
    assert_eq!(volume.scrub_status().progress.pass, 1);
    time.advance(DAY);
    assert!(finish(&volume, &time, 2).await);
}

#[tokio::test]
async fn a_pass_goes_on_where_it_was_after_a_kill_at_any_moment() {
    let (mut killed, mut nth, mut continued) = (0, 0, 0);
    loop {
        let disk = new_disk(nth);
        let volume = open(&disk).await;
        for inode in 1..25 {
            write(&volume, key(inode, 0), 0, pattern(inode, 0, 400_000)).await;
        }
        damage(&disk, &volume, key(5, 0), 7).await;
        damage(&disk, &volume, key(20, 0), 70).await;
        disk.kill_in(nth);
        let (clock, time) = clock();
        // A read every second, so that each tenth or so is followed by a record of the progress.
        volume.start_scrub(settings(400_000), clock);
        rest().await;
        volume.control_scrub(ScrubCommand::Start);
        while !disk.is_off() && !finish_one(&volume, &time).await {}
        let ended = !disk.is_off();
        let before = volume.scrub_status().progress;
        drop(volume);
        rest().await;
        disk.resume();
        let volume = open(&disk).await;
        let after = volume.scrub_status().progress;
        assert!(after.pages <= before.pages && after.pass <= before.pass);
        continued += u64::from(after.cursor.is_some_and(|key| key.chunk.inode > InodeId(5)));
        if after.is_under_way() || after.pass == 0 {
            let (clock, time) = self::clock();
            volume.start_scrub(settings(1 << 30), clock);
            rest().await;
            volume.control_scrub(ScrubCommand::Start);
            assert!(finish(&volume, &time, 1).await, "{:?}", volume.scrub_status());
        }
        let progress = volume.scrub_status().progress;
        assert_eq!((progress.pass, progress.findings >= 1), (1, true));
        assert!(progress.pages >= after.pages + u64::from(after.is_under_way()));
        assert_eq!(listed(&volume), [name(key(5, 0), 0), name(key(20, 0), 4)]);
        if ended {
            break;
        }
        (killed, nth) = (killed + 1, nth + 1);
    }
    assert!(killed >= 4, "a pass changes the disk {killed} times");
    assert!(continued >= 1, "a pass went on in the middle");
}

/// Lets a second pass; whether the first pass is over.
async fn finish_one(volume: &Volume, time: &VirtualTime) -> bool {
    time.advance(Duration::from_secs(1));
    rest().await;
    let progress = volume.scrub_status().progress;
    progress.pass == 1 && !progress.is_under_way()
}

/// How many pieces the section is in.
async fn pieces(volume: &Volume) -> usize {
    let (_, section) = volume.shared().section(key(1, 0), 0).await.unwrap();
    section.unwrap().extent_count()
}

#[tokio::test]
async fn a_section_in_many_pieces_is_written_in_one_run() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    let mut expected = pattern(1, 0, 512 * 1024);
    write(&volume, key(1, 0), 0, expected.clone()).await;
    for page in (0..60).step_by(2) {
        let bytes = pattern(page as u64 + 7, 0, 4096);
        write(&volume, key(1, 0), page * 4096, bytes.clone()).await;
        expected[page * 4096..(page + 1) * 4096].copy_from_slice(&bytes);
    }
    // A hole, which stays one, and a block that is the bucket's.
    let hole = 7 * BLOCK..8 * BLOCK;
    volume.zero(super::zero_request(key(1, 0), hole.clone())).await.unwrap();
    expected[hole].fill(0);
    assert!(pieces(&volume).await > 16);
    // Somebody who writes at the same time wins.
    let (_, seen) = volume.shared().section(key(1, 0), 0).await.unwrap();
    let seen = seen.unwrap();
    let stored = volume.shared().read_stored(&seen).await.unwrap();
    write(&volume, key(1, 0), 100, vec![7; 50]).await;
    expected[100..150].fill(7);
    let section = SectionKey { chunk: key(1, 0), section: 0 };
    assert_eq!(volume.shared().gather(section, &seen, stored).await.unwrap(), 0);
    assert_holds(&volume, key(1, 0), 0, &expected).await;
    scrub(&volume).await;
    assert_eq!(pieces(&volume).await, 1);
    assert_eq!(volume.scrub_status().gathered_pages, 7 * 16);
    assert_holds(&volume, key(1, 0), 0, &expected).await;
    assert_eq!(used_pages(&volume).await, 7 * 16);
    disk.restart();
    drop(volume);
    let volume = Volume::open(&Options { ..options(&disk, 2) }).await.unwrap();
    assert_holds(&volume, key(1, 0), 0, &expected).await;
    scrub(&volume).await;
    assert_eq!(volume.scrub_status().gathered_pages, 0, "once is enough");
}

/// Whether a second pass has begun, and any has put a section together.
fn has_gathered(volume: &Volume) -> bool {
    let status = volume.scrub_status();
    status.progress.pass > 1 && status.gathered_pages > 0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn passes_beside_writers_find_nothing_and_change_nothing() {
    let disk = new_disk(3);
    let volume = Arc::new(open(&disk).await);
    volume.start_scrub(settings(u64::MAX), Clock::system());
    let begun = Instant::now();
    let writers = (0..3_u64).map(|writer| {
        let volume = Arc::clone(&volume);
        tokio::spawn(async move {
            let random = Random::seeded(writer);
            let inode = writer + 1;
            let mut expected = vec![0; 1 << 20];
            write(&volume, key(inode, 0), 0, expected.clone()).await;
            for round in 0.. {
                // On a busy machine passes come to their turns late.
                let is_late = begun.elapsed() > Duration::from_secs(60);
                if round >= 400 && (is_late || has_gathered(&volume)) {
                    break;
                }
                let page = usize::try_from(random.within(0..250)).unwrap();
                let len = usize::try_from(random.within(1..20_000)).unwrap();
                let bytes = pattern(round, page * 4096, len);
                write(&volume, key(inode, 0), page * 4096, bytes.clone()).await;
                expected[page * 4096..page * 4096 + len].copy_from_slice(&bytes);
                if round % 16 == 0 {
                    volume.control_scrub(ScrubCommand::Start);
                    volume.sync().await.unwrap();
                }
                tokio::task::yield_now().await;
            }
            assert_holds(&volume, key(inode, 0), 0, &expected).await;
        })
    });
    for writer in writers.collect::<Vec<_>>() {
        writer.await.unwrap();
    }
    let status = volume.scrub_status();
    assert!(status.progress.pass > 1, "{status:?}");
    assert_eq!((volume.take_second_looks().await.unwrap(), status.dropped_blocks), (0, 0));
    volume.close().await.unwrap();
    assert!(status.gathered_pages > 0, "sections were gathered beside their writers: {status:?}");
    assert_eq!(used_pages_after_end(volume, &disk).await, 3 * 256);
}

/// Nothing is leaked by what was given up half way.
async fn used_pages_after_end(volume: Arc<Volume>, disk: &SimulatedDisk) -> u64 {
    drop(volume);
    let volume = open(disk).await;
    used_pages(&volume).await
}

#[tokio::test]
async fn nothing_is_checked_any_more_once_a_volume_is_closed() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 100_000)).await;
    let (clock, time) = clock();
    volume.start_scrub(settings(1), clock);
    volume.control_scrub(ScrubCommand::Start);
    rest().await;
    volume.close().await.unwrap();
    let changes = disk.tally().changes;
    time.advance(DAY);
    rest().await;
    let late = volume.write(write_request(key(2, 0), 0, vec![1])).await;
    late.expect_err("nobody should send it");
    assert!(volume.take_second_looks().await.is_err());
    assert_eq!(disk.tally().changes, changes);
}
