//! Where a sync waits while others go on, so that what happens beside it can be repeated.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

/// Longest time that either side waits for the other: only a mistake in a test takes so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Open until it is told to hold the next one who passes.
#[derive(Debug, Default)]
pub(super) struct Gate {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum State {
    #[default]
    Open,
    Shut,
    Holding,
}

impl Gate {
    /// Holds the next one who passes.
    pub(super) fn shut(&self) {
        self.change(State::Shut);
    }

    /// Lets pass who is held, and all after.
    pub(super) fn open(&self) {
        self.change(State::Open);
    }

    /// Passes, when it is open.
    pub(super) fn pass(&self) {
        if *self.state() == State::Open {
            return;
        }
        self.change(State::Holding);
        self.wait_while(State::Holding);
    }

    /// Waits until somebody is held; returns whether that is so.
    pub(super) fn wait_until_held(&self) -> bool {
        self.wait_while(State::Shut) == State::Holding
    }

    fn wait_while(&self, state: State) -> State {
        let waiting = self.changed.wait_timeout_while(self.state(), PATIENCE, |now| *now == state);
        *waiting.unwrap_or_else(PoisonError::into_inner).0
    }

    fn change(&self, state: State) {
        *self.state() = state;
        self.changed.notify_all();
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
