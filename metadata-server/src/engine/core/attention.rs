//! Time in which the server heard nobody.
//!
//! A log whose disk stands still, a process that is stopped, or a machine that is paused keeps the
//! server from hearing those who say that they are alive. When it goes on, their words wait in the
//! queue behind the look at who has been silent: without this, one stall of a lease's length would
//! end all sessions at once, with their locks and their files without names.

use std::time::{Duration, Instant};

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

impl Core {
    /// Gives everybody the time back in which they were not heard. Before each look at who has been
    /// silent.
    pub(super) fn forgive_silence(&mut self) {
        let now = self.clock.instant();
        let unheard = self.attention.handle_look(now);
        if unheard.is_zero() {
            return;
        }
        let seconds = unheard.as_secs_f64();
        tracing::warn!(seconds, "the server stood still: nobody is taken for silent for that");
        self.expiry.forgive(unheard);
        self.registry.forgive(unheard, now);
        self.declared_by = self.declared_by.plus(unheard);
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
