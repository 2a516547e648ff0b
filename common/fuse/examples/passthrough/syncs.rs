//! Syncs that take their time.

use std::{
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use millrace_fuse_server::Errno;

/// The syncs of a disk: one at a time, where they take time by themselves.
#[derive(Debug)]
pub(crate) struct Syncs {
    at_least: Duration,
    turn: Mutex<()>,
}

impl Syncs {
    /// Each takes so long at least; with zero, what it takes below.
    pub(crate) fn new(at_least: Duration) -> Self {
        Self { at_least, turn: Mutex::default() }
    }

    /// Runs one.
    pub(crate) fn run(&self, sync: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        if self.at_least.is_zero() {
            return sync();
        }
        let _turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let began = Instant::now();
        let done = sync();
        thread::sleep(self.at_least.saturating_sub(began.elapsed()));
        done
    }
}
