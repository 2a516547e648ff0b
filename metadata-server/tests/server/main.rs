//! The metadata server from outside: the engine with its log and stores, the operations that
//! requests become, and a whole server with clients over the network.
//!
//! The random tests have other seeds each time, and take seeds and lengths from the environment:
//!
//! | variable                  | meaning                                                       |
//! |---------------------------|---------------------------------------------------------------|
//! | `MILLRACE_TEST_SEED`      | the one seed to run; a failure prints which it was            |
//! | `MILLRACE_TEST_ROUNDS`    | how many seeds to run; else 1 to 200, as the test has it      |
//! | `MILLRACE_TEST_LENGTH`    | how many times as many commands or operations a seed; else 1  |
//! | `MILLRACE_BLESS`          | writes the golden bytes of what is new                        |

#![expect(clippy::unwrap_used, reason = "helpers of tests fail by panicking, as tests do")]

/// That of the daemon, whose memory is measured here.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

mod access;
mod bounds;
mod chance;
mod commands;
mod contents;
mod dead_writers;
mod directory_times;
mod end_to_end;
mod engine;
mod engines;
mod flaws;
mod full_disk;
mod golden;
mod hosts;
mod killed;
mod leases;
mod levels;
mod listing;
mod loss;
mod lost_names;
mod memory;
mod namespace;
mod no_targets;
mod once;
mod power;
mod pristine;
mod reclaim;
mod replay;
mod restore;
mod retries;
mod room;
mod snapshots;
mod state_directory;
mod trims;
mod trust;
mod turns;
mod variants;
