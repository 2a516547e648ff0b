//! How runs end, and what is there afterwards: kills, cuts of power, a torn journal.

use std::{sync::Arc, time::Duration};

use millrace_protocol::target::ContentName;
use millrace_types::{BlockState, ContentGeneration, ErrorKind, InodeId, WriteEpoch};

use super::{
    BLOCK, BootId, LAYOUT, OpenError, Options, Volume, assert_holds, erase, filling, key, new_disk,
    open, options, pattern, write, write_request,
};
use crate::{
    disk::{Operation, simulated::SimulatedDisk},
    format::{
        change::{Change, Removal},
        fact::FactNumber,
        section::SectionKey,
        table::TableKey,
    },
    volume::{EngineError, with_attachment},
};

#[tokio::test]
async fn bytes_damaged_on_the_way_are_refused_and_change_nothing() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 10_000)).await;
    let mut request = write_request(key(1, 0), 5_000, pattern(2, 0, 9_000));
    request.checksum.0 ^= 1;
    let refused = volume.write(request).await;
    assert!(matches!(refused, Err(EngineError::Damaged)), "{refused:?}");
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, 10_000)).await;
}

#[tokio::test]
async fn overwriting_on_a_full_disk_waits_for_a_sync_and_not_for_ever() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    // Nothing is left for the second version until the first is free again.
    for index in 0..20 {
        write(&volume, key(1, index), 0, pattern(1, 0, 1 << 20)).await;
    }
    for round in 0..30 {
        write(&volume, key(1, 0), 0, pattern(round, 0, 1 << 20)).await;
        assert_holds(&volume, key(1, 0), 0, &pattern(round, 0, 1 << 20)).await;
    }
}

#[tokio::test]
async fn after_a_cut_synced_writes_stand_and_torn_ones_leave_the_older_version() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 4 * BLOCK)).await;
    write(&volume, key(2, 0), 0, pattern(2, 0, BLOCK)).await;
    volume.sync().await.unwrap();
    write(&volume, key(1, 0), BLOCK, pattern(3, 0, 2 * BLOCK)).await;
    write(&volume, key(3, 0), 0, pattern(4, 0, BLOCK)).await;
    let torn = volume.snapshot(key(1, 0), 2..3).await.unwrap().disk_page(2 * 16 + 2).unwrap();
    drop(volume);
    // The journal's record of the write reached the disk, one page of its data did not.
    erase(&disk, torn).await;

    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 1);
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, 4 * BLOCK)).await;
    assert_holds(&volume, key(2, 0), 0, &pattern(2, 0, BLOCK)).await;
    assert_holds(&volume, key(3, 0), 0, &pattern(4, 0, BLOCK)).await;
    // A kill right after the recovery must not bring the torn record back.
    drop(volume);
    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 1);
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, 4 * BLOCK)).await;
}

/// A file whose first version is durable, and a newer one beside another file that are not; returns
/// a page of the newer version.
async fn overwritten() -> (SimulatedDisk, Volume, u64) {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    volume.sync().await.unwrap();
    write(&volume, key(1, 0), 0, pattern(2, 0, BLOCK)).await;
    write(&volume, key(2, 0), 0, pattern(3, 0, BLOCK)).await;
    let page = volume.snapshot(key(1, 0), 0..1).await.unwrap().disk_page(3).unwrap();
    (disk, volume, page)
}

/// Holds the target against its older version, twice: the outcome is decided once.
async fn assert_older(disk: &SimulatedDisk, boot: BootId, loss_count: u64) {
    for _ in 0..2 {
        let options = Options { boot, ..options(disk, 1) };
        let volume = Volume::open(&options).await.unwrap();
        assert_eq!(volume.loss_count(), loss_count);
        assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
        assert_holds(&volume, key(2, 0), 0, &pattern(3, 0, BLOCK)).await;
    }
}

/// Of the machine of these tests.
const BOOT: BootId = BootId([1; 16]);

/// The process ends before it could open the target again; the machine goes on.
#[tokio::test]
async fn a_start_after_a_failed_sync_holds_records_against_their_data_under_the_same_boot_too() {
    let (disk, volume, lost) = overwritten().await;
    disk.fail(Operation::Sync, 0, libc::EIO);
    volume.sync().await.expect_err("it is refused");
    assert_eq!(volume.loss_count(), 1, "as clients have heard");
    drop(volume);
    // What the drive has dropped with its cache.
    erase(&disk, lost).await;
    assert_older(&disk, BOOT, 2).await;
}

/// As if its disk had been pulled: that the journal failed cannot be written down either.
#[tokio::test]
async fn a_disk_that_was_attached_anew_is_held_against_its_data_under_the_same_boot_too() {
    let (disk, volume, lost) = overwritten().await;
    // Whatever this process asks of it fails from now on.
    disk.begin_process();
    volume.sync().await.expect_err("the disk is away");
    drop(volume);
    erase(&disk, lost).await;
    assert_ne!(with_attachment(BOOT, Some(2)), with_attachment(BOOT, Some(3)));
    assert_eq!(with_attachment(BOOT, None), BOOT, "where that cannot be told");
    assert_older(&disk, with_attachment(BOOT, Some(2)), 1).await;
}

/// The kernel does not say again what it has said to the start that failed.
#[tokio::test]
async fn a_sync_that_fails_at_a_start_is_known_to_the_next_one() {
    let (disk, volume, lost) = overwritten().await;
    drop(volume);
    disk.fail(Operation::Sync, 0, libc::EIO);
    Volume::open(&options(&disk, 1)).await.expect_err("its disk fails");
    erase(&disk, lost).await;
    assert_older(&disk, BOOT, 2).await;
}

#[tokio::test]
async fn a_target_that_does_not_say_which_losses_it_has_seen_starts_as_it_always_did() {
    for is_said in [true, false] {
        let disk = new_disk(1);
        let volume = open(&disk).await;
        write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
        let shared = volume.shared();
        shared.checkpoint().await.unwrap();
        if !is_said {
            shared.index.remove(TableKey::Fact(FactNumber::LossesSeen).encode());
            assert!(shared.index.freeze(shared.index.statistics().through));
            shared.index.checkpoint().await.unwrap();
        }
        shared.count_loss_in_superblocks().await.unwrap();
        drop((shared, volume));
        let volume = open(&disk).await;
        assert_eq!(volume.loss_count(), 1 + u64::from(is_said));
        assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
    }
}

/// The disk was away a moment ago, and does not read everything yet.
#[tokio::test]
async fn a_page_that_is_read_a_moment_later_is_no_page_that_was_lost() {
    let (disk, volume, page) = overwritten().await;
    volume.sync().await.unwrap();
    drop(volume);
    disk.restart();
    disk.set_unreadable(page, true);
    let opening = async { Volume::open(&options(&disk, 2)).await.unwrap() };
    let (volume, ()) = futures::join!(opening, async {
        tokio::time::sleep(Duration::from_millis(250)).await;
        disk.set_unreadable(page, false);
    });
    assert_holds(&volume, key(1, 0), 0, &pattern(2, 0, BLOCK)).await;
}

/// A write over two sections of which the data of one half is lost must not come back in the other
/// half with a later write beside it, whose record names all that the section holds.
#[tokio::test]
async fn a_torn_write_over_two_sections_takes_later_writes_of_both_with_it() {
    const SECTION: usize = 8 * BLOCK;
    for lost_half in [SECTION - BLOCK, SECTION] {
        let disk = new_disk(1);
        let volume = open(&disk).await;
        write(&volume, key(1, 0), 0, pattern(1, 0, 1 << 20)).await;
        volume.sync().await.unwrap();
        write(&volume, key(1, 0), SECTION - BLOCK, pattern(2, 0, 2 * BLOCK)).await;
        let block = u16::try_from(lost_half / BLOCK).unwrap();
        let snapshot = volume.snapshot(key(1, 0), block..block + 1).await.unwrap();
        let torn = snapshot.disk_page(u32::from(block) * 16 + 3).unwrap();
        drop(snapshot);
        for beside in [0, SECTION + 2 * BLOCK] {
            write(&volume, key(1, 0), beside, pattern(3, 0, BLOCK)).await;
        }
        write(&volume, key(2, 0), 0, pattern(4, 0, BLOCK)).await;
        drop(volume);
        erase(&disk, torn).await;

        // The second start finds what the first has decided.
        for _ in 0..2 {
            let volume = Volume::open(&options(&disk, 2)).await.unwrap();
            assert_eq!(volume.loss_count(), 1);
            assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, 1 << 20)).await;
            assert_holds(&volume, key(2, 0), 0, &pattern(4, 0, BLOCK)).await;
        }
    }
}

/// After a removal a section begins anew: what was dropped before does not matter to it.
#[tokio::test]
async fn a_section_that_was_removed_after_a_torn_write_takes_new_ones() {
    const SECTION: usize = 8 * BLOCK;
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 1 << 20)).await;
    volume.sync().await.unwrap();
    write(&volume, key(1, 0), SECTION - BLOCK, pattern(2, 0, 2 * BLOCK)).await;
    let snapshot = volume.snapshot(key(1, 0), 7..8).await.unwrap();
    let torn = snapshot.disk_page(7 * 16).unwrap();
    drop(snapshot);
    // The record of a removal whose sync never came.
    let mut removal = Removal::default();
    for number in 0..2 {
        let (_, section) = volume.shared().section(key(1, 0), number).await.unwrap();
        let name = SectionKey { chunk: key(1, 0), section: number };
        assert!(removal.push(name, &section.unwrap()));
    }
    let change = Change::Remove(removal);
    volume.shared().commit(|_| Ok(change.clone())).await.unwrap();
    write(&volume, key(1, 0), SECTION, pattern(5, 0, BLOCK)).await;
    drop(volume);
    erase(&disk, torn).await;

    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 1);
    assert_holds(&volume, key(1, 0), SECTION, &pattern(5, 0, BLOCK)).await;
    let snapshot = volume.snapshot(key(1, 0), 7..8).await.unwrap();
    assert_eq!(snapshot.state(7), BlockState::Absent);
}

#[tokio::test]
async fn a_durable_write_needs_no_sync() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    let request = write_request(key(2, 0), 100, pattern(2, 0, 9_000));
    let before = disk.tally().syncs;
    let version = volume.write_durably(request).await.unwrap();
    assert_eq!(disk.tally().syncs, before + 1);
    volume.sync_version(version).await.unwrap();
    assert_eq!(disk.tally().syncs, before + 1, "it is durable");
    drop(volume);
    disk.restart();
    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
    assert_holds(&volume, key(2, 0), 100, &pattern(2, 0, 9_000)).await;
    // What was made before the start is durable as well.
    let syncs = disk.tally().syncs;
    volume.sync_version(version).await.unwrap();
    assert_eq!(disk.tally().syncs, syncs);
}

#[tokio::test]
async fn the_end_of_a_journal_that_never_reached_the_disk_is_a_loss_and_no_damage() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    volume.sync().await.unwrap();
    let last = volume.shared().journal.position().page;
    write(&volume, key(1, 0), 0, pattern(2, 0, BLOCK)).await;
    drop(volume);
    erase(&disk, last).await;

    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 1);
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
}

#[tokio::test]
async fn damage_in_the_middle_of_the_journal_is_refused() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    for round in 0..3 {
        write(&volume, key(1, 0), 0, pattern(round, 0, BLOCK)).await;
        volume.sync().await.unwrap();
    }
    drop(volume);
    disk.flip((LAYOUT.journal + 1) * 4096 + 200, 5);
    let error = Volume::open(&options(&disk, 1)).await.unwrap_err();
    assert!(matches!(error, OpenError::Journal(_)), "{error}");
}

#[tokio::test]
async fn an_orderly_end_loses_nothing_whatever_the_boot() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    volume.close().await.unwrap();
    drop(volume);
    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 0);
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
    drop(volume);
    // The run that was just killed wrote nothing, but nobody can prove that after a reboot.
    assert_eq!(Volume::open(&options(&disk, 3)).await.unwrap().loss_count(), 1);
}

/// Streams from a bucket go on while a daemon ends, and nobody waits for what they bring.
#[tokio::test]
async fn what_arrives_when_a_target_is_closed_changes_nothing_and_is_no_loss() {
    let disk = new_disk(1);
    let volume = Arc::new(open(&disk).await);
    write(&volume, key(2, 0), 0, pattern(2, 0, BLOCK)).await;
    let bytes = pattern(9, 0, BLOCK);
    let begun = filling(&volume, key(1, 0), 0, &bytes, WriteEpoch(0)).await;
    let late = filling(&volume, key(1, 0), 1, &bytes, WriteEpoch(0)).await;
    let shared = volume.shared();
    let turn = shared.inode_turn(InodeId(1)).write().await;
    let before = disk.tally().bytes_written;
    let filler = Arc::clone(&volume);
    let filled = tokio::spawn(async move { filler.fill(begun).await });
    // Its bytes are on the disk, and its record waits for the turn.
    while disk.tally().bytes_written == before {
        tokio::task::yield_now().await;
    }
    volume.close().await.unwrap();
    let changes = disk.tally().changes;
    drop(turn);
    let refused = filled.await.unwrap();
    assert!(matches!(refused, Err(EngineError::Stopped)), "{refused:?}");
    let refused = volume.fill(late).await.expect_err("it is closed");
    assert_eq!(refused.kind(), ErrorKind::Unavailable, "{refused}");
    let refused = shared.checkpoint().await;
    assert!(matches!(refused, Err(EngineError::Stopped)), "{refused:?}");
    assert_eq!(disk.tally().changes, changes);
    assert_holds(&volume, key(2, 0), 0, &pattern(2, 0, BLOCK)).await;
    drop((shared, volume));
    let volume = Volume::open(&options(&disk, 2)).await.unwrap();
    assert_eq!(volume.loss_count(), 0, "it ended in order");
    assert_holds(&volume, key(2, 0), 0, &pattern(2, 0, BLOCK)).await;
}

/// A volume with something to write down at its end.
async fn to_be_closed() -> (SimulatedDisk, Volume) {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, BLOCK)).await;
    (disk, volume)
}

#[tokio::test]
async fn a_target_whose_end_cannot_be_made_durable_changes_nothing_any_more_either() {
    let (disk, volume) = to_be_closed().await;
    let before = disk.tally().syncs;
    volume.close().await.unwrap();
    let syncs = disk.tally().syncs - before;
    let (disk, volume) = to_be_closed().await;
    // The last one is that of the stop record.
    disk.fail(Operation::Sync, syncs - 1, libc::EIO);
    volume.close().await.expect_err("its end is not durable");
    assert!(!volume.shared().disk.takes_changes(), "others may have the place");
}

#[tokio::test]
async fn pages_that_an_export_marked_clean_stay_where_they_are() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    write(&volume, key(1, 0), 0, pattern(1, 0, 3 * BLOCK)).await;
    let snapshot = volume.snapshot(key(1, 0), 0..3).await.unwrap();
    let exported = (0..3).map(|block| (block, snapshot.fingerprint(block))).collect();
    drop(snapshot);
    write(&volume, key(1, 0), BLOCK, pattern(2, 0, BLOCK)).await;
    let marked = volume.mark_exported(key(1, 0), &exported).await.unwrap();
    assert_eq!(marked.0, 2 * BLOCK as u64);
    volume.sync().await.unwrap();
    write(&volume, key(2, 0), 0, pattern(5, 0, 8 * BLOCK)).await;
    assert_holds(&volume, key(1, 0), 0, &pattern(1, 0, BLOCK)).await;
    assert_eq!(volume.release(key(1, 0)).await.unwrap().0, 2 * BLOCK as u64);
    assert_holds(&volume, key(1, 0), BLOCK, &pattern(2, 0, BLOCK)).await;
}

#[tokio::test]
async fn a_reclaim_or_a_trim_that_is_done_again_frees_nothing_more() {
    let disk = new_disk(1);
    let volume = open(&disk).await;
    let content = ContentName { inode: InodeId(1), generation: ContentGeneration(1) };
    write(&volume, key(1, 0), 0, pattern(1, 0, 3 * BLOCK)).await;
    for freed in [2 * BLOCK as u64, 0] {
        let trimmed = volume.trim(content, 1 << 20, BLOCK as u64, WriteEpoch(1)).await.unwrap();
        assert_eq!(trimmed.0, freed);
    }
    for freed in [BLOCK as u64, 0] {
        let entry = (InodeId(1), ContentGeneration(1));
        assert_eq!(volume.reclaim(&[entry]).await.unwrap().0, freed);
    }
}

/// Replay reads nothing but the journal: its cost is the processor's.
#[test]
fn twenty_thousand_changes_after_a_checkpoint_are_replayed_in_well_under_a_second() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let disk = new_disk(1);
        let volume = open(&disk).await;
        for number in 0..20_000_u64 {
            write(&volume, key(number % 4000, 0), 0, pattern(number, 0, 100)).await;
        }
        drop(volume);
        let begun = cpu_time();
        let volume = open(&disk).await;
        let taken = cpu_time() - begun;
        assert_holds(&volume, key(3999, 0), 0, &pattern(19_999, 0, 100)).await;
        assert!(taken < 1.0, "{taken} s of CPU");
    });
}

/// Seconds of CPU that this thread has used: a busy machine must not fail the test.
fn cpu_time() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
