//! Power cuts under the whole engine of a target, on a simulated disk, against a model that knows
//! nothing of the engine.
//!
//! A run is a few dozen random operations from one seed: writes, zeroing, fills, trims, reclaims,
//! exports, scrubs, flipped bits, disks that refuse, kills and cuts, also in the middle of an
//! operation or of a recovery; in one section, or in two at once; one after the other, or several
//! beside a checkpoint, on a disk whose requests overtake each other. After each end the target is
//! opened again and everything in it compared with what the model allows, and of ten seeds with
//! one the offline check must find nothing wrong but what was flipped. At the end everything is
//! given up and every page must be free again.
//!
//! | variable               | meaning                                                           |
//! |------------------------|-------------------------------------------------------------------|
//! | `MILLRACE_TEST_SEED`   | the one seed to run; a failure prints which it was                |
//! | `MILLRACE_TEST_ROUNDS` | how many seeds to run; without it 1,000; others each time         |
//! | `MILLRACE_TEST_LENGTH` | how many times as many operations a seed; else 1                  |

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod power {
    pub(crate) mod beside;
    pub(crate) mod chance;
    pub(crate) mod driver;
    mod ending;
    pub(crate) mod faults;
    pub(crate) mod ground;
    mod loop_device;
    pub(crate) mod model;
    pub(crate) mod operation;
    pub(crate) mod real_ground;
    mod simulated_ground;
    pub(crate) mod subject;
}

use std::collections::BTreeSet;

use millrace_storage_target::disk::{DiskEngine, cuts::Cuts, place::PlaceKind, simulated::Flush};
use power::{
    chance,
    driver::{self, World},
    faults,
    ground::Directory,
    model::Ending,
    operation::{Operation, Weights},
    real_ground::Real,
    subject::{Shape, Subject},
};

/// Operations of a run: several ends, with something to lose before each.
const LENGTH: usize = 50;

/// Seeds of each run of the tests.
const SEEDS: u64 = 1_000;

const ANY_END: Weights =
    Weights { cuts: true, data_flush: Flush::Honest, file_flush: Flush::Honest };

#[test]
fn after_any_end_everything_promised_is_there_and_nothing_is_mixed() {
    chance::for_each_seed(SEEDS, |seed| driver::run(seed, chance::stretched(LENGTH), &ANY_END));
}

/// The test of the test: a disk that breaks its promise must be found out.
#[test]
fn syncs_that_do_nothing_are_found_out_within_a_few_seeds() {
    for flush in [Flush::Lying, Flush::LyingByTurns] {
        let weights = Weights { data_flush: flush, ..ANY_END };
        let found = (1..=20).find(|&seed| driver::run(seed, LENGTH, &weights).is_err());
        assert!(found.is_some(), "nobody notices {flush:?}");
    }
}

/// 10,000 operations without an end; `MILLRACE_TEST_LENGTH=10` makes them 100,000.
#[test]
fn any_operations_leave_what_the_model_holds() {
    const OPERATIONS: usize = 10_000;
    let endless = Weights { cuts: false, ..ANY_END };
    chance::for_each_seed(1, |seed| driver::run(seed, chance::stretched(OPERATIONS), &endless));
}

/// Each call to the disk fails in a run of its own, until there is none left to fail; or each
/// `stride`th of them.
fn calls_fail(os_error: i32, stride: usize, ground: impl Fn() -> Option<Directory>) {
    let endless = Weights { cuts: false, ..ANY_END };
    let mut calls = BTreeSet::new();
    for nth in (chance::any_seed() % stride as u64..).step_by(stride) {
        let Some(directory) = ground() else { return };
        let world = World::new(1, &endless, |_, shape| Subject::on(directory, shape));
        match faults::run(world, nth, os_error) {
            Ok(None) => break,
            Ok(Some(call)) => drop(calls.insert(format!("{call:?}"))),
            Err(error) => panic!("{error:#}"),
        }
    }
    assert!(!calls.is_empty(), "no call failed");
    assert!(calls.len() == 4 || stride > 1, "reads, writes, syncs and growths fail: {calls:?}");
}

/// A disk that grows by a region during the scenario.
#[expect(clippy::unnecessary_wraps, reason = "a real one may not be there")]
fn growing() -> Option<Directory> {
    Some(Directory::simulated(1, Shape { capacity: 1 << 20, journal_pages: 200 }))
}

#[test]
fn a_call_that_fails_loses_nothing() {
    calls_fail(EIO, 1, growing);
}

#[test]
fn a_call_without_room_loses_nothing() {
    calls_fail(ENOSPC, 1, growing);
}

/// Some of them on real disks, where a run takes longer; each run begins with another, and chance
/// may pick calls of one kind only.
#[test]
fn a_call_that_fails_on_a_real_disk_loses_nothing() {
    const STRIDE: usize = 17;
    calls_fail(EIO, STRIDE, || Real::blank(PlaceKind::Directory, DiskEngine::Auto));
    calls_fail(EIO, STRIDE, || Real::blank(PlaceKind::Device, DiskEngine::Blocking));
}

/// Input or output error, and no space left, by their numbers on Linux.
const EIO: i32 = 5;
const ENOSPC: i32 = 28;

/// The same operations, with kills, on real disks: 10,000 in the first five tests, which
/// `MILLRACE_TEST_LENGTH=10` makes 100,000.
fn on_a_real_disk(kind: PlaceKind, engine: DiskEngine) {
    on_a_disk_cut_short(kind, engine, &Cuts::default());
}

fn on_a_disk_cut_short(kind: PlaceKind, engine: DiskEngine, cuts: &Cuts) {
    const OPERATIONS: usize = 2_000;
    let endless = Weights { cuts: false, ..ANY_END };
    chance::for_each_seed(1, |seed| {
        let Some(directory) = Real::cut_short(kind, engine, cuts) else { return Ok(()) };
        let mut world = World::new(seed, &endless, move |_, shape| Subject::on(directory, shape));
        world.run(async |world| {
            for nth in 0..chance::stretched(OPERATIONS) {
                let operation = match world.random.within(0..200) {
                    0 => Operation::Kill,
                    1 => Operation::Close,
                    _ => Operation::random(&world.random, &endless),
                };
                world.note(&format!("{nth}: {operation:?}"));
                world.apply(operation).await?;
            }
            world.recover(Some(Ending::Kill)).await
        })
    });
}

#[test]
fn a_directory_with_io_uring_holds_what_the_model_holds() {
    on_a_real_disk(PlaceKind::Directory, DiskEngine::Auto);
}

#[test]
fn a_directory_with_threads_holds_what_the_model_holds() {
    on_a_real_disk(PlaceKind::Directory, DiskEngine::Blocking);
}

#[test]
fn a_loop_device_with_io_uring_holds_what_the_model_holds() {
    on_a_real_disk(PlaceKind::Device, DiskEngine::Auto);
}

#[test]
fn a_loop_device_with_threads_holds_what_the_model_holds() {
    on_a_real_disk(PlaceKind::Device, DiskEngine::Blocking);
}

#[test]
fn an_image_file_holds_what_the_model_holds() {
    on_a_real_disk(PlaceKind::Image, DiskEngine::Auto);
}

/// The kernel moves less than it is asked for, or is interrupted, at every second and third call.
fn under_a_reluctant_kernel(engine: DiskEngine) {
    for kind in [PlaceKind::Directory, PlaceKind::Device] {
        let cuts = Cuts::many();
        on_a_disk_cut_short(kind, engine, &cuts);
        let (short, failed) = cuts.counts();
        let is_there = kind == PlaceKind::Directory || short > 0;
        assert!(!is_there || (short > 500 && failed > 500), "{short} short, {failed} failed");
    }
}

#[test]
fn short_transfers_and_interruptions_of_io_uring_lose_nothing() {
    under_a_reluctant_kernel(DiskEngine::Auto);
}

#[test]
fn short_transfers_and_interruptions_of_threads_lose_nothing() {
    under_a_reluctant_kernel(DiskEngine::Blocking);
}
