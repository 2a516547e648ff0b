//! Power cuts under the whole engine of a target, on a simulated disk, against a model that knows
//! nothing of the engine.
//!
//! A run is a few dozen random operations from one seed: writes, zeroing, fills, trims, reclaims,
//! exports, flipped bits, disks that refuse, kills and cuts, also in the middle of an operation or
//! of a recovery. After each end the target is opened again and everything in it compared with what
//! the model allows; at the end everything is given up and every page must be free again.
//!
//! | variable               | meaning                                                           |
//! |------------------------|-------------------------------------------------------------------|
//! | `MILLRACE_TEST_SEED`   | the one seed to run; a failure prints which it was                |
//! | `MILLRACE_TEST_ROUNDS` | how many seeds to run; without it 1,000; other ones each time     |
//! | `MILLRACE_TEST_LENGTH` | how many times as many operations a seed; else 1                  |

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod power {
    pub(crate) mod chance;
    pub(crate) mod driver;
    mod ending;
    pub(crate) mod model;
    pub(crate) mod operation;
    pub(crate) mod subject;
}

use millrace_storage_target::disk::simulated::Flush;
use power::{chance, driver, operation::Weights};

/// Operations of a run: several ends, with something to lose before each.
const LENGTH: usize = 50;

const ANY_END: Weights =
    Weights { cuts: true, data_flush: Flush::Honest, file_flush: Flush::Honest };

#[test]
fn after_any_end_everything_promised_is_there_and_nothing_is_mixed() {
    chance::for_each_seed(1000, |seed| driver::run(seed, chance::stretched(LENGTH), &ANY_END));
}

/// Seeds that found something in the engine when the driver was young. Whoever changes the driver
/// changes what they mean.
#[test]
fn seeds_that_have_found_something_stay_sound() {
    let found = [
        // A restart after a kill promised what the killed run had not synced.
        261_716_371_442_688,
        261_716_371_442_690,
        // A record was torn together with a durable one in the same sector.
        63_367_121_554_000,
        // The loss count after a cut was one that clients had seen after a failed sync.
        63_367_121_554_001,
        // A target could not be opened after a stop while it was made.
        231_790_500_700_408,
        // A trim that could not be recorded waited for itself.
        24,
        327,
        331,
        341,
        // A zeroing that asked for a block to be fetched had zeroed others.
        116_903_947_537_588,
        116_903_947_538_015,
        // A trim was taken for done although its last block was lost.
        143_354_104_780_393,
        143_354_104_785_047,
    ];
    for seed in found {
        driver::run(seed, LENGTH, &ANY_END).unwrap();
    }
}

/// The test of the test: a disk that breaks its promise must be found out.
#[test]
fn syncs_that_do_nothing_are_found_out_within_a_few_seeds() {
    let (honest, lying) = (Flush::Honest, Flush::Lying);
    for (data_flush, file_flush) in [(lying, honest), (honest, lying), (lying, lying)] {
        let weights = Weights { data_flush, file_flush, ..ANY_END };
        let found = (1..=20).find(|&seed| driver::run(seed, LENGTH, &weights).is_err());
        assert!(found.is_some(), "nobody notices {weights:?}");
    }
}

/// 10,000 operations without an end; `MILLRACE_TEST_LENGTH=10` makes them 100,000.
#[test]
fn any_operations_leave_what_the_model_holds() {
    const OPERATIONS: usize = 10_000;
    let endless = Weights { cuts: false, ..ANY_END };
    chance::for_each_seed(1, |seed| driver::run(seed, chance::stretched(OPERATIONS), &endless));
}
