//! Time in which the server heard nobody.
//!
//! A log whose disk stands still, a process that is stopped, or a machine that is paused keeps the
//! server from hearing those who say that they are alive. When it goes on, their words wait in the
//! queue behind the look at who has been silent: without this, one stall of a lease's length would
//! end all sessions at once, with their locks and their files without names.

use std::time::{Duration, Instant};

use millrace_types::Timestamp;

use super::Core;

/// So much of the time between two looks counts as listening, which are a quarter of a second
/// apart: more than a busy server needs, less than makes a target suspect, far less than a lease.
const LISTENING_MAX: Duration = Duration::from_secs(2);

/// When the server last looked at who is silent.
#[derive(Debug)]
pub(super) struct Attention {
    looked: Instant,
}

impl Attention {
    /// The server begins to listen.
    pub(super) fn new(now: Instant) -> Self {
        Self { looked: now }
    }

    /// How much of the time since the last look nobody was heard.
    fn handle_look(&mut self, now: Instant) -> Duration {
        let since = now.saturating_duration_since(std::mem::replace(&mut self.looked, now));
        since.saturating_sub(LISTENING_MAX)
    }
}

/// The time of a look at who has been silent.
#[derive(Clone, Copy, Debug)]
pub(super) struct Look {
    /// The server's time.
    pub(super) now: Timestamp,
    /// The monotonic clock.
    pub(super) instant: Instant,
}

impl Core {
    /// Begins a look at who has been silent: gives everybody the time back in which they were not
    /// heard. Its time is from before that, since what happens from here on may take long as well.
    pub(super) fn look(&mut self) -> Look {
        let look = Look { now: self.clock.now(), instant: self.clock.instant() };
        let unheard = self.attention.handle_look(look.instant);
        if unheard.is_zero() {
            return look;
        }
        self.expiry.forgive(unheard, look.now);
        self.registry.forgive(unheard, look.instant);
        self.declaring_since = self.declaring_since.plus(unheard);
        let seconds = unheard.as_secs_f64();
        tracing::warn!(seconds, "the server stood still: nobody is taken for silent for that");
        look
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_goes_beyond_a_short_pause_is_given_back() {
        let start = Instant::now();
        let at = |millis| start + Duration::from_millis(millis);
        let mut attention = Attention::new(start);
        assert_eq!(attention.handle_look(at(250)), Duration::ZERO);
        assert_eq!(attention.handle_look(at(2_250)), Duration::ZERO);
        assert_eq!(attention.handle_look(at(62_250)), Duration::from_secs(58));
        assert_eq!(attention.handle_look(at(62_500)), Duration::ZERO);
    }
}
