//! How long an operation waits for a server that does not answer, and how often it asks again.

use std::time::{Duration, Instant};

use millrace_types::{ErrorKind, Failure};

/// The mount's patience.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Patience {
    /// How long one operation waits in all; `None` waits for ever (`-o hard`).
    pub(crate) limit: Option<Duration>,
}

/// The attempts of one operation.
#[derive(Debug)]
pub(crate) struct Attempts {
    began: Instant,
    limit: Option<Duration>,
    pause: Duration,
    has_introduced: bool,
}

impl Patience {
    /// Begins an operation.
    pub(crate) fn begin(self, now: Instant) -> Attempts {
        Attempts { began: now, limit: self.limit, pause: PAUSE_FIRST, has_introduced: false }
    }
}

impl Attempts {
    /// Whether so many attempts have failed that the reason may lie elsewhere.
    pub(crate) fn is_long(&self) -> bool {
        self.pause >= PAUSE_MAX
    }

    /// Whether the mount may introduce itself once more to who has refused it: true once.
    pub(crate) fn may_introduce(&mut self) -> bool {
        !std::mem::replace(&mut self.has_introduced, true)
    }

    /// So long nobody has been asked: others were before this one, and no server let it wait.
    pub(crate) fn leave_out(&mut self, time: Duration) {
        self.began += time;
    }

    /// How long an attempt that begins at `now` may take: `most`, or what is left of the patience.
    pub(crate) fn deadline(&self, most: Duration, now: Instant) -> Duration {
        let waited = now.saturating_duration_since(self.began);
        let left = self.limit.map_or(most, |limit| limit.saturating_sub(waited));
        left.clamp(ATTEMPT_MIN, most.max(ATTEMPT_MIN))
    }

    /// What to do after `failure` of an attempt that ended at `now`: wait this long and try again.
    ///
    /// # Errors
    /// The failure itself when it is final, or when the patience is over.
    pub(crate) fn handle_failure(
        &mut self,
        failure: Failure,
        now: Instant,
    ) -> Result<Duration, Failure> {
        if !failure.kind.is_transient() {
            return Err(failure);
        }
        let waited = now.saturating_duration_since(self.began);
        let hinted = Duration::from_millis(u64::from(failure.retry_after_ms));
        let pause = self.pause.max(hinted.min(PAUSE_HINTED_MAX));
        self.pause = (self.pause * 2).min(PAUSE_MAX);
        match self.limit {
            Some(limit) if waited + pause > limit => {
                let kind = ErrorKind::Unavailable;
                let words = format!("gave up after {} s: {failure}", waited.as_secs());
                Err(Failure::new(kind, words))
            }
            _ => Ok(pause),
        }
    }
}

/// A lost packet or a server that is just starting: try again almost at once.
const PAUSE_FIRST: Duration = Duration::from_millis(5);

/// Shorter, an attempt would fail although the server answers.
const ATTEMPT_MIN: Duration = Duration::from_millis(100);

/// Four attempts a second, so that a request goes on within a second of a server's return.
const PAUSE_MAX: Duration = Duration::from_millis(250);

/// A server that is at a limit may ask for more patience than that.
const PAUSE_HINTED_MAX: Duration = Duration::from_secs(5);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_a_quarter_of_a_second_and_end_with_the_patience() {
        let began = Instant::now();
        let mut attempts = Patience { limit: Some(Duration::from_secs(10)) }.begin(began);
        let mut now = began;
        let mut pauses = Vec::new();
        let failure = loop {
            match attempts.handle_failure(ErrorKind::Unavailable.into(), now) {
                Ok(pause) => {
                    pauses.push(pause);
                    now += pause;
                }
                Err(failure) => break failure,
            }
        };
        assert_eq!(pauses[0], PAUSE_FIRST);
        assert_eq!(pauses.last(), Some(&PAUSE_MAX));
        assert_eq!(failure.kind, ErrorKind::Unavailable);
        assert!(now - began <= Duration::from_secs(10));
        assert!(failure.message.contains("gave up after 9 s"), "{failure}");
    }

    #[test]
    fn a_hard_mount_never_gives_up_and_a_final_failure_is_passed_on() {
        let began = Instant::now();
        let mut attempts = Patience { limit: None }.begin(began);
        let year = began + Duration::from_secs(365 * 86_400);
        assert!(attempts.handle_failure(ErrorKind::DeadlineExceeded.into(), year).is_ok());
        let last = attempts.handle_failure(ErrorKind::NoSpace.into(), began);
        assert_eq!(last.map_err(|failure| failure.kind), Err(ErrorKind::NoSpace));
    }

    #[test]
    fn an_attempt_takes_no_longer_than_the_patience_lasts() {
        let (began, minute) = (Instant::now(), Duration::from_secs(60));
        let attempts = Patience { limit: Some(Duration::from_secs(2)) }.begin(began);
        assert_eq!(attempts.deadline(minute, began), Duration::from_secs(2));
        let late = began + Duration::from_millis(1990);
        assert_eq!(attempts.deadline(minute, late), ATTEMPT_MIN);
        let long = Patience { limit: Some(10 * minute) }.begin(began);
        assert_eq!(long.deadline(minute, began), minute);
        assert_eq!(Patience { limit: None }.begin(began).deadline(minute, late), minute);
    }

    #[test]
    fn what_was_waited_for_others_costs_no_patience() {
        let began = Instant::now();
        let minute = Duration::from_secs(60);
        let mut attempts = Patience { limit: Some(minute) }.begin(began);
        attempts.leave_out(minute);
        assert!(attempts.handle_failure(ErrorKind::Unavailable.into(), began + minute).is_ok());
        let late = began + 2 * minute;
        assert!(attempts.handle_failure(ErrorKind::Unavailable.into(), late).is_err());
    }

    #[test]
    fn a_busy_server_says_how_long_to_wait() {
        let began = Instant::now();
        let mut attempts = Patience { limit: None }.begin(began);
        let busy = Failure::from(ErrorKind::Busy).retry_after(Duration::from_secs(2));
        assert_eq!(attempts.handle_failure(busy, began), Ok(Duration::from_secs(2)));
    }
}
