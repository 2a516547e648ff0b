//! Holds a job to a rate of bytes.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Spreads bytes over time. What was charged is paid by those who come after: nothing is too large
/// to be charged at once.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    /// When everything that was charged will be paid.
    paid: Mutex<Instant>,
}

impl Pace {
    /// Nothing is charged yet.
    pub(super) fn new(bytes_per_second: u64) -> Self {
        Self { bytes_per_second: bytes_per_second.max(1), paid: Mutex::new(Instant::now()) }
    }

    /// The most that should be charged at once: a second's worth.
    pub(super) fn portion(&self) -> u64 {
        self.bytes_per_second
    }

    /// When the next bytes may move; in the past, if now.
    pub(super) fn next(&self) -> Instant {
        *self.paid()
    }

    /// Charges bytes that move from `now` on, or behind what was charged before. Returns when they
    /// may.
    pub(super) fn charge(&self, bytes: u64, now: Instant) -> Instant {
        let mut paid = self.paid();
        let turn = (*paid).max(now);
        *paid = turn + self.time_of(bytes);
        turn
    }

    /// Takes back what was charged and did not move.
    pub(super) fn refund(&self, bytes: u64, now: Instant) {
        let mut paid = self.paid();
        *paid = paid.checked_sub(self.time_of(bytes)).unwrap_or(now);
    }

    /// Waits for the turn of some bytes, in the order of the calls, and charges them. A caller that
    /// goes away while it waits has charged them.
    pub(super) async fn take(&self, bytes: u64) {
        let turn = self.charge(bytes, Instant::now());
        tokio::time::sleep_until(turn).await;
    }

    fn time_of(&self, bytes: u64) -> Duration {
        let nanos = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second);
        // A day is longer than anything waits; it keeps the clock from running over.
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)).min(DAY)
    }

    fn paid(&self) -> MutexGuard<'_, Instant> {
        self.paid.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

const DAY: Duration = Duration::from_secs(86_400);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_take_their_time_and_what_did_not_move_takes_none() {
        let pace = Pace::new(1000);
        let begun = Instant::now();
        let at = |millis| begun + Duration::from_millis(millis);
        // The first moves at once; what the last one takes is for those after it.
        for turn in 0..5 {
            assert_eq!(pace.charge(500, begun), at(500 * turn));
        }
        assert_eq!(pace.next(), at(2500));
        pace.refund(1000, begun);
        assert_eq!(pace.charge(1, begun), at(1500));
        // Nothing is saved up.
        assert_eq!(pace.charge(1000, at(60_000)), at(60_000));
        assert_eq!(pace.next(), at(61_000));
    }

    #[test]
    fn no_rate_and_no_number_of_bytes_overflows() {
        let fast = Pace::new(u64::MAX);
        let now = Instant::now();
        assert_eq!(fast.charge(u64::MAX, now), now);
        let slow = Pace::new(0);
        slow.charge(u64::MAX, now);
        slow.refund(u64::MAX, now);
        assert!(slow.next() <= now + DAY);
    }
}
