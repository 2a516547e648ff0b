//! The power of one or several disks, and of the process that uses them.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// What everything with the same power shares.
#[derive(Debug, Default)]
pub(super) struct Power {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    changes: u64,
    end_at: Option<(u64, Ending)>,
    off: bool,
}

/// How it ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ending {
    /// The power goes.
    Cut,
    /// The process is killed.
    Kill,
}

impl Power {
    /// Counts a change; returns whether the end comes during it.
    pub(super) fn change(&self) -> Option<Ending> {
        let mut state = self.state();
        let ending = state.end_at.filter(|&(at, _)| at == state.changes);
        state.changes += 1;
        state.off |= ending.is_some();
        ending.map(|(_, ending)| ending)
    }

    pub(super) fn end_in(&self, nth: u64, ending: Ending) {
        let mut state = self.state();
        state.end_at = Some((state.changes + nth, ending));
    }

    pub(super) fn is_off(&self) -> bool {
        self.state().off
    }

    pub(super) fn turn_on(&self) {
        let mut state = self.state();
        state.off = false;
        state.end_at = None;
    }

    pub(super) fn changes(&self) -> u64 {
        self.state().changes
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
