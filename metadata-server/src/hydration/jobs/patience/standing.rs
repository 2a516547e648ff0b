//! How a bucket stands for a job: whether it answers, when it is looked at again if not, and when
//! it has been away for too long. No I/O, no clock.
//!
//! ```text
//!            a look finds nobody                 an hour later
//!   Answers ────────────────────▶ Away ───────────────────────▶ GivenUp
//!      ▲                           │
//!      └──── a look is answered ───┘
//! ```

use std::time::Duration;

use millrace_types::{ErrorKind, Failure};
use tokio::time::Instant;

/// The pauses between two looks at a bucket that is away: after a restart of its server jobs go on
/// at once, and an absence of hours costs it a request a minute.
const PAUSE_FIRST: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// How long a job waits for a bucket. Longer than restarts of servers and networks take; and who
/// waits for the job, perhaps a program at the end of a training, hears of it within reason.
pub(super) const PATIENCE: Duration = Duration::from_secs(3600);

/// What a job knows of a bucket.
#[derive(Debug)]
pub(super) enum Standing {
    /// It answers, as far as the job knows.
    Answers {
        /// When the last look began that found so.
        at: Option<Instant>,
        /// The same, of the last one that found it away before.
        back: Option<Instant>,
    },
    /// Nobody answers.
    Away(Away),
    /// Nobody did for so long that the job waits no more.
    GivenUp(Failure),
}

/// A bucket at which nobody answers.
#[derive(Debug, Clone)]
pub(super) struct Away {
    /// When that was found.
    pub(super) since: Instant,
    /// When it is looked at next.
    pub(super) due: Instant,
    /// What the last look found.
    pub(super) why: Failure,
    looks: u32,
}

/// What is to be done about a failure.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// The bucket answers now; whether it did not meanwhile.
    Goes { was_away: bool },
    /// It is to be looked at then.
    Look(Instant),
    /// Nothing any more.
    GiveUp(Failure),
}

/// For whom a bucket is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Waits {
    /// Something that is waited for, perhaps by a program: not for ever.
    Somebody,
    /// Nothing now, so that nothing is to be given up.
    Nobody,
}

/// What a look changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Change {
    Nothing,
    WentAway,
    CameBack,
    GaveUp,
}

impl Default for Standing {
    fn default() -> Self {
        Self::Answers { at: None, back: None }
    }
}

impl Standing {
    /// Whether nothing keeps work from being begun.
    pub(super) fn is_fair(&self) -> bool {
        matches!(self, Self::Answers { .. })
    }

    /// Whether a look that began no earlier has found so.
    pub(super) fn answers(&self, then: Instant) -> bool {
        matches!(self, Self::Answers { at: Some(at), .. } if *at >= then)
    }

    /// When it is looked at next, while it is away.
    pub(super) fn due(&self) -> Option<Instant> {
        match self {
            Self::Away(away) => Some(away.due),
            Self::Answers { .. } | Self::GivenUp(_) => None,
        }
    }

    /// What is to be done about something that failed, tried from then till then.
    pub(super) fn next(&self, (begun, failed): (Instant, Instant)) -> Next {
        match self {
            Self::Answers { back, .. } if self.answers(failed) => {
                Next::Goes { was_away: back.is_some_and(|back| back >= begun) }
            }
            Self::Answers { .. } => Next::Look(failed),
            Self::Away(away) => Next::Look(away.due),
            Self::GivenUp(failure) => Next::GiveUp(failure.clone()),
        }
    }

    /// Takes what a look found that began and ended then. Pauses are made a little shorter by
    /// `jitter`.
    pub(super) fn handle(
        &mut self,
        found: Result<(), Failure>,
        (began, ended): (Instant, Instant),
        waits: Waits,
        jitter: impl FnOnce(Duration) -> Duration,
    ) -> Change {
        match (&mut *self, found) {
            (Self::GivenUp(_), _) => Change::Nothing,
            (Self::Answers { at, .. }, Ok(())) => {
                *at = Some(began);
                Change::Nothing
            }
            (Self::Away(_), Ok(())) => {
                *self = Self::Answers { at: Some(began), back: Some(began) };
                Change::CameBack
            }
            (Self::Answers { .. }, Err(why)) => {
                let due = ended + jitter(PAUSE_FIRST);
                *self = Self::Away(Away { since: began, due, why, looks: 1 });
                Change::WentAway
            }
            (Self::Away(away), Err(why))
                if waits == Waits::Somebody && ended >= away.since + PATIENCE =>
            {
                *self = Self::GivenUp(given_up(&why));
                Change::GaveUp
            }
            (Self::Away(away), Err(why)) => {
                let pause = PAUSE_FIRST.saturating_mul(1 << away.looks.min(10)).min(PAUSE_MAX);
                away.looks = away.looks.saturating_add(1);
                away.due = ended + jitter(pause);
                away.why = why;
                Change::Nothing
            }
        }
    }
}

/// What becomes of everything that would have waited on.
fn given_up(why: &Failure) -> Failure {
    let minutes = PATIENCE.as_secs() / 60;
    let words = format!(
        "not for {minutes} minutes, and the job waits no longer; retry it when it can be: {}",
        why.message
    );
    Failure::new(ErrorKind::BucketUnavailable, words)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nobody() -> Result<(), Failure> {
        Err(Failure::new(ErrorKind::BucketUnavailable, "connection refused"))
    }

    /// What a look came to that took no time.
    fn look(standing: &mut Standing, found: Result<(), Failure>, at: Instant) -> Change {
        standing.handle(found, (at, at), Waits::Somebody, |pause| pause)
    }

    #[test]
    fn one_look_serves_all_that_failed_before_it() {
        let (mut standing, now) = (Standing::default(), Instant::now());
        assert_eq!(standing.next((now, now)), Next::Look(now), "nothing is known of that moment");
        assert_eq!(look(&mut standing, Ok(()), now), Change::Nothing);
        assert_eq!(standing.next((now, now)), Next::Goes { was_away: false });
        let later = now + Duration::from_secs(1);
        assert_eq!(standing.next((later, later)), Next::Look(later), "that failed after the look");
    }

    #[test]
    fn a_bucket_that_is_away_is_looked_at_ever_more_rarely_until_it_is_back() {
        let (mut standing, began) = (Standing::default(), Instant::now());
        assert_eq!(look(&mut standing, nobody(), began), Change::WentAway);
        let (mut at, mut pauses) = (began, Vec::new());
        for _ in 0..8 {
            let Next::Look(due) = standing.next((began, began)) else { panic!("{standing:?}") };
            pauses.push((due - at).as_secs());
            at = due;
            assert!(!standing.is_fair());
            assert_eq!(look(&mut standing, nobody(), at), Change::Nothing);
        }
        assert_eq!(pauses, [1, 2, 4, 8, 16, 32, 60, 60]);
        assert_eq!(look(&mut standing, Ok(()), at), Change::CameBack);
        assert!(standing.is_fair());
        assert_eq!(standing.next((began, began)), Next::Goes { was_away: true });
        // What fails from now on is another matter, but for what was begun before.
        let later = at + Duration::from_secs(1);
        assert_eq!(look(&mut standing, Ok(()), later), Change::Nothing);
        assert_eq!(standing.next((later, later)), Next::Goes { was_away: false });
        assert_eq!(standing.next((began, later)), Next::Goes { was_away: true });
    }

    #[test]
    fn after_an_hour_nothing_waits_any_more() {
        let (mut standing, began) = (Standing::default(), Instant::now());
        look(&mut standing, nobody(), began);
        let (mut at, mut change) = (began, Change::Nothing);
        while change == Change::Nothing {
            let Next::Look(due) = standing.next((began, began)) else { panic!("{standing:?}") };
            at = due;
            change = look(&mut standing, nobody(), at);
        }
        assert_eq!(change, Change::GaveUp);
        let waited = at - began;
        assert!(waited >= PATIENCE && waited <= PATIENCE + PAUSE_MAX, "{waited:?}");
        let Next::GiveUp(failure) = standing.next((at, at)) else { panic!("{standing:?}") };
        let words = failure.to_string();
        assert!(
            words.contains("reached: not for 60 minutes") && words.ends_with("refused"),
            "{words}"
        );
        assert_eq!(look(&mut standing, Ok(()), at), Change::Nothing, "one look is no return");
        assert!(!standing.is_fair());
    }

    #[test]
    fn nothing_is_given_up_that_nobody_waits_for() {
        let (mut standing, began) = (Standing::default(), Instant::now());
        look(&mut standing, nobody(), began);
        let later = began + 2 * PATIENCE;
        let change = standing.handle(nobody(), (later, later), Waits::Nobody, |pause| pause);
        assert_eq!(change, Change::Nothing);
        assert_eq!(look(&mut standing, Ok(()), later + PAUSE_MAX), Change::CameBack);
    }
}
