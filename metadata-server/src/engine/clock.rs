//! Server time: never goes back, and does not jump when somebody sets the machine's clock.

use std::time::Instant;

use millrace_runtime::Clock;
use millrace_types::Timestamp;

/// Counts on from the machine's clock at the start, by the monotonic clock (which NTP disciplines),
/// and never falls behind the time of the last command in the log. Clones tell the same time.
#[derive(Debug, Clone)]
pub struct ServerClock {
    clock: Clock,
    started: Instant,
    start: Timestamp,
}

impl ServerClock {
    /// Starts at the machine's time, or at `not_before` when that is later.
    #[must_use]
    pub fn new(clock: Clock, not_before: Timestamp) -> Self {
        let start = clock.timestamp().max(not_before);
        let started = Self { started: clock.now(), start, clock };
        if let Some(problem) = started.problem() {
            tracing::warn!("{problem}");
        }
        started
    }

    /// By how many seconds it is ahead of the machine's clock; below zero when it is behind.
    #[must_use]
    pub fn ahead(&self) -> i64 {
        Timestamp(self.now().0.saturating_sub(self.clock.timestamp().0)).seconds()
    }

    /// A sentence about a clock that was wrong at a start, or was set much later.
    pub(super) fn problem(&self) -> Option<String> {
        let seconds = self.ahead();
        if seconds > OFF_TOLD_S {
            return Some(format!(
                "the metadata server's time, which files get, is {seconds} s ahead of its \
                 machine's clock, and never goes back: if that clock is right, stop the server for \
                 so long"
            ));
        }
        (seconds < -OFF_TOLD_S).then(|| {
            let behind = seconds.saturating_neg();
            format!(
                "the metadata server's time, which files get, is {behind} s behind its \
                 machine's clock: if that clock is right, restart the server"
            )
        })
    }

    /// The server's time.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.start.plus(self.clock.now().saturating_duration_since(self.started))
    }

    /// The monotonic clock beside it.
    #[must_use]
    pub fn instant(&self) -> Instant {
        self.clock.now()
    }
}

/// More than clocks differ by as they are brought together, in seconds.
const OFF_TOLD_S: i64 = 60;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_clock_that_was_wrong_at_the_start_is_told_of_when_it_is_right() {
        const YEAR_S: i64 = 365 * 24 * 3600;
        let right = Timestamp::from_parts(1_800_000_000, 0);
        let (clock, time) = Clock::manual(right);
        time.shift_wall(YEAR_S * 1_000_000_000);
        let server = ServerClock::new(clock.clone(), right);
        assert_eq!((server.ahead(), server.problem()), (0, None), "nobody can know");
        time.shift_wall(-YEAR_S * 1_000_000_000);
        time.advance(Duration::from_secs(10));
        assert_eq!(server.ahead(), YEAR_S);
        assert!(server.problem().unwrap().contains("31536000 s ahead"));
        // The log has the wrong time.
        let again = ServerClock::new(clock, server.now());
        time.advance(Duration::from_secs(10));
        assert_eq!(again.ahead(), YEAR_S);
        time.shift_wall((YEAR_S - 60) * 1_000_000_000);
        assert_eq!((again.ahead(), again.problem()), (60, None), "it has nearly caught up");
        time.shift_wall(121 * 1_000_000_000);
        assert!(again.problem().unwrap().contains("61 s behind"));
    }
}
