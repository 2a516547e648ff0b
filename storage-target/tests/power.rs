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
//! | `MILLRACE_TEST_ROUNDS` | how many seeds to run; without it 1,000, and others each time     |
//! | `MILLRACE_TEST_LENGTH` | how many times as many operations a seed; else 1                  |

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

mod power {
    pub(crate) mod chance;
    pub(crate) mod driver;
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
