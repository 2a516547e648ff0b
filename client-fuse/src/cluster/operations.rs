//! Numbers the mutations of a session, so that each is executed once however often it is sent.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::session::Operation;
use millrace_types::{SessionId, WriteNumber};

/// Numbers that are out. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Numbers {
    shared: Arc<Mutex<Pending>>,
}

#[derive(Debug, Default)]
struct Pending {
    last: u64,
    out: BTreeSet<u64>,
}

/// One number that is out until this is dropped.
#[derive(Debug)]
pub(crate) struct Number {
    shared: Arc<Mutex<Pending>>,
    value: u64,
}

/// How far changes run ahead of one that is not answered. What is left of the span of the server is
/// for what this mount must tell it before it gives leases back: otherwise who waits for these
/// would wait for a target that is away.
const AHEAD_MAX: u64 = Operation::SPAN_MAX / 2;

impl Numbers {
    /// Whether no change may be begun but what leases wait for.
    pub(crate) fn are_far_ahead(&self) -> bool {
        let pending = lock(&self.shared);
        pending.out.first().is_some_and(|lowest| pending.last + 1 - lowest >= AHEAD_MAX)
    }

    /// The next number.
    pub(crate) fn begin(&self) -> Number {
        let mut pending = lock(&self.shared);
        pending.last += 1;
        let value = pending.last;
        pending.out.insert(value);
        drop(pending);
        Number { shared: Arc::clone(&self.shared), value }
    }
}

impl Number {
    /// Takes the next number instead: of a mutation that was certainly not executed. However long
    /// that one has to be tried, it does not hold back the mark of those that overtake it, which
    /// the server lets run ahead by [`Operation::SPAN_MAX`] only.
    pub(crate) fn renew(&mut self) {
        let mut pending = lock(&self.shared);
        pending.out.remove(&self.value);
        pending.last += 1;
        self.value = pending.last;
        pending.out.insert(self.value);
    }

    /// Whether it is further ahead than what no lease waits for may be.
    pub(crate) fn is_far_ahead(&self) -> bool {
        self.value - self.lowest_pending() >= AHEAD_MAX
    }

    /// It names a mutation of `session` at the metadata server.
    pub(crate) fn operation(&self, session: SessionId) -> Operation {
        Operation { session, sequence: self.value, lowest_pending: self.lowest_pending() }
    }

    /// It names a write at the targets: the number, and the lowest that is still out.
    pub(crate) fn write(&self) -> (WriteNumber, WriteNumber) {
        (WriteNumber(self.value), WriteNumber(self.lowest_pending()))
    }

    fn lowest_pending(&self) -> u64 {
        lock(&self.shared).out.first().copied().unwrap_or(self.value)
    }
}

impl Drop for Number {
    fn drop(&mut self) {
        lock(&self.shared).out.remove(&self.value);
    }
}

fn lock(shared: &Mutex<Pending>) -> MutexGuard<'_, Pending> {
    // Each step leaves the set whole, so that a panic elsewhere cannot have torn it.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_pending_number_is_the_oldest_that_is_still_out() {
        let numbers = Numbers::default();
        let session = SessionId(9);
        let first = numbers.begin();
        let second = numbers.begin();
        assert_eq!(first.operation(session).sequence, 1);
        assert_eq!(second.operation(session).lowest_pending, 1);
        drop(first);
        assert_eq!(second.operation(session).lowest_pending, 2);
        assert_eq!(second.write(), (WriteNumber(2), WriteNumber(2)));
        drop(second);
        assert_eq!(numbers.begin().operation(session).lowest_pending, 3);
    }

    #[test]
    fn what_leases_wait_for_has_half_of_the_numbers_for_itself() {
        let numbers = Numbers::default();
        let stuck = numbers.begin();
        let mut changes = 0;
        while !numbers.are_far_ahead() {
            assert!(!numbers.begin().is_far_ahead());
            changes += 1;
        }
        assert_eq!(changes, AHEAD_MAX - 1);
        let late = numbers.begin();
        assert!(late.is_far_ahead());
        for _ in 1..AHEAD_MAX - 1 {
            assert!(numbers.begin().operation(SessionId(9)).is_within_span());
        }
        drop(stuck);
        assert!(!late.is_far_ahead() && !numbers.are_far_ahead());
    }

    #[test]
    fn what_is_tried_for_long_and_never_executed_holds_nobody_back() {
        let numbers = Numbers::default();
        let session = SessionId(9);
        let mut slow = numbers.begin();
        for _ in 0..2 * Operation::SPAN_MAX {
            let quick = numbers.begin();
            if !quick.operation(session).is_within_span() {
                slow.renew();
            }
            assert!(quick.operation(session).is_within_span());
            assert!(slow.operation(session).is_within_span());
        }
    }
}
