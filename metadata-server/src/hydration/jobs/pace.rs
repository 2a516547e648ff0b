//! Holds a job to a rate of bytes.

use std::{
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

/// Spreads bytes over time. What was charged is paid by those who come after: nothing is too large
/// to be charged at once.
///
/// Where no more than [`Self::portion`] is charged at once, no time sees more bytes begin to move
/// than the rate gives for it, and one portion.
#[derive(Debug)]
pub(super) struct Pace {
    bytes_per_second: u64,
    /// When everything that was charged will be paid.
    paid: Mutex<Instant>,
}

/// The time that some bytes take.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    /// When they may move.
    begins: Instant,
    /// When they are paid.
    ends: Instant,
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

    /// Charges bytes that move from `now` on, or behind what was charged before.
    pub(super) fn charge(&self, bytes: u64, now: Instant) -> Turn {
        let mut paid = self.paid();
        let begins = (*paid).max(now);
        *paid = begins + self.time_of(bytes);
        Turn { begins, ends: *paid }
    }

    /// Takes back what was charged for a turn and did not move, as far as the turn is not over:
    /// time that has passed is not saved up, or more would move later than the rate allows.
    pub(super) fn refund(&self, turn: Turn, bytes: u64, now: Instant) {
        let left = turn.ends.saturating_duration_since(now.max(turn.begins));
        let mut paid = self.paid();
        *paid = paid.checked_sub(self.time_of(bytes).min(left)).unwrap_or(now);
    }

    /// Waits for the turn of some bytes, in the order of the calls, and charges them. A caller that
    /// goes away while it waits has charged them.
    pub(super) async fn take(&self, bytes: u64) {
        let turn = self.charge(bytes, Instant::now());
        tokio::time::sleep_until(turn.begins).await;
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
            assert_eq!(pace.charge(500, begun).begins, at(500 * turn));
        }
        assert_eq!(pace.next(), at(2500));
        let whole = pace.charge(500, begun);
        pace.refund(whole, 500, begun);
        assert_eq!(pace.next(), at(2500));
        // Of a turn that is half over, the other half.
        let half = pace.charge(1000, at(2500));
        pace.refund(half, 1000, at(3000));
        assert_eq!(pace.next(), at(3000));
        pace.refund(half, 1000, at(9000));
        assert_eq!(pace.next(), at(3000), "of one that is over, nothing");
        // Nothing is saved up.
        assert_eq!(pace.charge(1000, at(60_000)).begins, at(60_000));
        assert_eq!(pace.next(), at(61_000));
    }

    #[test]
    fn no_time_sees_more_bytes_move_than_the_rate_gives_and_a_portion() {
        // A byte takes a millisecond.
        let pace = Pace::new(1000);
        let begun = Instant::now();
        let mut now = begun;
        let mut moved: Vec<(Duration, u64)> = Vec::new();
        for step in 0..500 {
            let bytes = 1 + step * 7919 % pace.portion();
            let here = if step % 3 == 0 { bytes / 2 } else { 0 };
            now = now.max(pace.next());
            let turn = pace.charge(bytes, now);
            assert_eq!(turn.begins, now);
            moved.push((now - begun, bytes - here));
            // The answer comes within the turn, or long after it.
            now += Duration::from_millis(step * 13 % 1500);
            pace.refund(turn, here, now);
        }
        for (skipped, (begins, _)) in moved.iter().enumerate() {
            let mut sum = 0;
            for (at, bytes) in &moved[skipped..] {
                sum += bytes;
                let time = (*at - *begins).as_millis();
                assert!(u128::from(sum) <= time + u128::from(pace.portion()), "{sum} in {time} ms");
            }
        }
    }

    #[test]
    fn no_rate_and_no_number_of_bytes_overflows() {
        let fast = Pace::new(u64::MAX);
        let now = Instant::now();
        assert_eq!(fast.charge(u64::MAX, now).begins, now);
        let slow = Pace::new(0);
        let turn = slow.charge(u64::MAX, now);
        slow.refund(turn, u64::MAX, now);
        assert!(slow.next() <= now + DAY);
    }
}
