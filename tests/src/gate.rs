//! A gate before a bucket that closes at the request of a number: what a test does then, it does
//! in the middle of somebody's work, however fast the machine is.

use std::sync::{Arc, Condvar, Mutex, MutexGuard};

use crate::hostile::{Fault, Hook};

/// A gate that requests pass. It is open, and closes by itself where [`Gate::close_at`] says.
#[derive(Debug, Clone, Default)]
pub struct Gate(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    opened: Condvar,
}

#[derive(Debug, Default)]
struct State {
    closed: bool,
    /// The requests until it closes; none if it stays open.
    left: Option<u64>,
}

impl Gate {
    /// The fault of requests that have to pass the gate; nothing else goes wrong with them.
    #[must_use]
    pub fn fault(&self) -> Fault {
        let gate = self.clone();
        Fault::Meanwhile(Hook::new(move || gate.pass()))
    }

    /// Opens the gate, and closes it when the request `number` from now comes, counted from one;
    /// that one waits too.
    pub fn close_at(&self, number: u64) {
        *self.state() = State { closed: false, left: Some(number) };
        self.0.opened.notify_all();
    }

    /// Opens the gate for good.
    pub fn open(&self) {
        *self.state() = State::default();
        self.0.opened.notify_all();
    }

    /// Whether requests wait at it.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.state().closed
    }

    fn pass(&self) {
        let mut state = self.state();
        loop {
            match state.left {
                Some(0 | 1) => *state = State { closed: true, left: None },
                Some(left) => state.left = Some(left - 1),
                None => {}
            }
            if !state.closed {
                return;
            }
            while state.closed {
                state = self.0.opened.wait(state).expect("no thread panics with it");
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().expect("no thread panics with it")
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::program::wait_for;

    #[test]
    fn a_gate_lets_so_many_through_and_then_nobody_until_it_is_opened() {
        let gate = Gate::default();
        gate.pass();
        gate.close_at(3);
        gate.pass();
        gate.pass();
        assert!(!gate.is_closed());
        let passing = || {
            let gate = gate.clone();
            thread::spawn(move || gate.pass())
        };
        let third = passing();
        wait_for("the third", || gate.is_closed().then_some(())).unwrap();
        assert!(!third.is_finished());
        gate.close_at(2);
        third.join().unwrap();
        let fifth = passing();
        wait_for("the fifth", || gate.is_closed().then_some(())).unwrap();
        gate.open();
        fifth.join().unwrap();
        gate.pass();
    }
}
