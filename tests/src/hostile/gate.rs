//! A gate that closes at the request of a number: what a test does then, it does in the middle of
//! somebody's work, however fast the machine is.

use std::sync::{Arc, Mutex, MutexGuard};

use tokio::sync::watch;

/// A gate that requests pass. It is open, and closes by itself where [`Gate::close_at`] says. A
/// request whose client has gone waits no longer, and does not count again.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Counts the times that it was opened.
    opened: watch::Sender<u64>,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// The requests until it closes; none if it stays open.
    left: Option<u64>,
}

impl Gate {
    /// Opens the gate, and closes it when the request `number` from now passes, counted from one:
    /// that one waits, and so do those behind it. Requests that wait already are the first.
    pub fn close_at(&self, number: u64) {
        self.set(State { closed: false, left: Some(number) });
    }

    /// Opens the gate for good.
    pub fn open(&self) {
        self.set(State::default());
    }

    /// Whether requests wait at it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state().closed
    }

    /// Waits until a request may pass. May be dropped at any time.
    pub(super) async fn pass(&self) {
        let mut opened = self.0.opened.subscribe();
        while !self.lets_pass() {
            if opened.changed().await.is_err() {
                return;
            }
        }
    }

    fn lets_pass(&self) -> bool {
        let mut state = self.state();
        match state.left {
            Some(0 | 1) => *state = State { closed: true, left: None },
            Some(left) => state.left = Some(left - 1),
            None => {}
        }
        !state.closed
    }

    fn set(&self, state: State) {
        *self.state() = state;
        self.0.opened.send_modify(|times| *times += 1);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no thread panics with it")
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_gate_lets_so_many_through_and_then_nobody_until_it_is_opened() {
        let gate = Gate::default();
        gate.pass().await;
        gate.close_at(3);
        gate.pass().await;
        gate.pass().await;
        assert!(!gate.is_closed());
        let mut third = Box::pin(gate.pass());
        assert!(third.as_mut().now_or_never().is_none() && gate.is_closed());
        // One whose client has gone.
        assert!(gate.pass().now_or_never().is_none());
        gate.close_at(2);
        third.await;
        assert!(!gate.is_closed(), "one of two");
        let mut fifth = Box::pin(gate.pass());
        assert!(fifth.as_mut().now_or_never().is_none() && gate.is_closed());
        gate.open();
        fifth.await;
        gate.pass().await;
    }
}
