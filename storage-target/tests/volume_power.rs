//! The runs of `power.rs` on the engine that lies on index, journal and space: the same operations,
//! the same model. See there for what the environment can say.

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

#[path = "power"]
mod power {
    pub(crate) mod chance;
    pub(crate) mod driver;
    mod ending;
    #[path = "simulated_ground.rs"]
    pub(crate) mod ground;
    pub(crate) mod model;
    pub(crate) mod operation;
    #[path = "volume_subject.rs"]
    pub(crate) mod subject;
}

use millrace_storage_target::disk::simulated::Flush;
use power::{chance, driver, operation::Weights};

/// Operations of a run: several ends, with something to lose before each.
const LENGTH: usize = 50;

/// Seeds of each run of the tests.
const SEEDS: u64 = 300;

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
