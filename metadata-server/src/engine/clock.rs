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
        Self { started: clock.now(), start, clock }
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
