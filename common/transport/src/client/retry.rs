//! Sending again what may be sent again, until a deadline.

use std::time::{Duration, Instant};

use millrace_runtime::Random;
use millrace_types::{ErrorKind, Failure};

/// Calls `attempt` with the time that is left until it succeeds, fails for good, or `limit` passes.
///
/// Pauses between attempts grow from 10 to 250 ms, half of it by chance; a server's hint is
/// honoured up to what is left.
pub(super) async fn until<T, F>(
    limit: Duration,
    random: &Random,
    attempt: impl Fn(Duration) -> F,
) -> Result<T, Failure>
where
    F: Future<Output = Result<T, Failure>>,
{
    let deadline = Instant::now() + limit;
    let mut pause = PAUSE_MIN;
    let mut last: Option<Failure> = None;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let failure = match attempt(left).await {
            Ok(done) => return Ok(done),
            Err(failure) => failure,
        };
        if !matches!(failure.kind, ErrorKind::Unavailable | ErrorKind::Busy) {
            // A deadline that only cut the last attempt short says less than what came before.
            let cut = failure.kind == ErrorKind::DeadlineExceeded;
            return Err(last.filter(|_| cut).unwrap_or(failure));
        }
        let hint = Duration::from_millis(failure.retry_after_ms.into());
        let wait = random.jitter(pause).max(hint);
        pause = (2 * pause).min(PAUSE_MAX);
        if deadline.saturating_duration_since(Instant::now()) <= wait {
            return Err(failure);
        }
        last = Some(failure);
        tokio::time::sleep(wait).await;
    }
}

const PAUSE_MIN: Duration = Duration::from_millis(10);
const PAUSE_MAX: Duration = Duration::from_millis(250);

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;

    async fn attempts(kinds: &[ErrorKind]) -> (Result<usize, ErrorKind>, usize) {
        let (count, random) = (AtomicUsize::new(0), Random::seeded(1));
        let outcome = until(Duration::from_secs(60), &random, |_| {
            let at = count.fetch_add(1, Ordering::Relaxed);
            let failure = kinds.get(at).map(|&kind| Failure::from(kind));
            async move { failure.map_or(Ok(at), Err) }
        });
        (outcome.await.map_err(|failure| failure.kind), count.into_inner())
    }

    #[tokio::test]
    async fn only_what_may_pass_is_tried_again() {
        let (outcome, count) = attempts(&[ErrorKind::Unavailable, ErrorKind::Busy]).await;
        assert_eq!((outcome, count), (Ok(2), 3));
        let (outcome, count) = attempts(&[ErrorKind::Busy, ErrorKind::NotFound]).await;
        assert_eq!((outcome, count), (Err(ErrorKind::NotFound), 2));
    }

    #[tokio::test]
    async fn a_hint_longer_than_the_deadline_ends_it_at_once() {
        let begun = Instant::now();
        let outcome: Result<(), _> =
            until(Duration::from_secs(60), &Random::seeded(1), |_| async {
                Err(Failure::from(ErrorKind::Busy).retry_after(Duration::from_secs(600)))
            })
            .await;
        assert_eq!(outcome.unwrap_err().kind, ErrorKind::Busy);
        assert!(begun.elapsed() < Duration::from_secs(30));
    }
}
