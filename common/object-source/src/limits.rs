//! Permits: how many requests and bytes may be in flight to one bucket.
//!
//! The bucket has a say: where it asks to slow down, half as many requests are in flight from then
//! on, and one more with each round of as many answers as there may be requests that do not ask so
//! (additive increase, multiplicative decrease, as congestion control of networks has it).

use std::{
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use millrace_types::KIB;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, timeout},
};

use crate::{Error, Settings};

/// The limits of one bucket. Bytes are counted in KiB, so that a 32-bit count covers 4 TiB.
#[derive(Debug)]
pub(crate) struct Limits {
    requests: Arc<Requests>,
    kibibytes: Arc<Semaphore>,
    kibibytes_max: u32,
    queue_timeout: Duration,
}

/// The right to one request; held until its answer has been read to the end or dropped.
#[derive(Debug)]
pub(crate) struct Permit {
    _bytes: Option<OwnedSemaphorePermit>,
    _request: Turn,
}

impl Limits {
    /// How many requests may be in flight now.
    pub(crate) fn requests(&self) -> usize {
        self.requests.limit()
    }

    /// As many requests as `requests` has; bytes as the settings say.
    pub(crate) fn new(settings: &Settings, requests: Arc<Requests>) -> Self {
        let kibibytes_max =
            u32::try_from(settings.bytes_in_flight_max.0 / KIB).unwrap_or(u32::MAX >> 4).max(1);
        Self {
            requests,
            kibibytes: Arc::new(Semaphore::new(kibibytes_max as usize)),
            kibibytes_max,
            queue_timeout: settings.queue_timeout,
        }
    }

    /// Waits for the right to a request that moves `bytes`. One larger than the whole limit passes
    /// alone. Bytes first, then the request: all take them in this order, so nobody waits in a
    /// ring.
    pub(crate) async fn acquire(&self, bytes: u64) -> Result<Permit, Error> {
        let take = async {
            let wanted = u32::try_from(bytes.div_ceil(KIB)).unwrap_or(u32::MAX);
            let bytes = match wanted.min(self.kibibytes_max) {
                0 => None,
                count => {
                    Some(Arc::clone(&self.kibibytes).acquire_many_owned(count).await.expect(OPEN))
                }
            };
            let request = Requests::acquire(&self.requests).await;
            Permit { _bytes: bytes, _request: request }
        };
        timeout(self.queue_timeout, take).await.map_err(|_| Error::Busy {
            message: format!(
                "too many requests to the bucket are in flight: waited {} s for a turn",
                self.queue_timeout.as_secs()
            ),
        })
    }
}

const OPEN: &str = "semaphores of limits are never closed";

/// How many requests may be in flight, as the bucket takes them.
#[derive(Debug)]
pub(crate) struct Requests {
    max: usize,
    turns: Arc<Semaphore>,
    /// Whether fewer than `max` are allowed: what every answer looks at.
    lowered: AtomicBool,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// From 1 to the maximum.
    limit: usize,
    /// Turns that are free or taken. Above the limit until those that are too many come back.
    turns: usize,
    /// Answers since the limit last changed.
    answers: usize,
    /// Answers that ask to slow down are of the same burst until then.
    burst_until: Option<Instant>,
}

/// All requests that were in flight when a bucket had enough are answered so, within about this
/// time: they count as one. S3 forgets a burst within about a second.
const BURST: Duration = Duration::from_secs(1);

#[derive(Debug)]
struct Turn {
    requests: Arc<Requests>,
    permit: Option<OwnedSemaphorePermit>,
}

impl Requests {
    /// `max` at once, at least one, as long as the bucket does not ask for less.
    pub(crate) fn new(max: usize) -> Self {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Self {
            max,
            turns: Arc::new(Semaphore::new(max)),
            lowered: AtomicBool::new(false),
            state: Mutex::new(State { limit: max, turns: max, answers: 0, burst_until: None }),
        }
    }

    async fn acquire(this: &Arc<Self>) -> Turn {
        let permit = Arc::clone(&this.turns).acquire_owned().await.expect(OPEN);
        Turn { requests: Arc::clone(this), permit: Some(permit) }
    }

    /// How many may be in flight now.
    pub(crate) fn limit(&self) -> usize {
        self.state().limit
    }

    /// The bucket asks to slow down: half as many from now on. Returns the new limit when this
    /// changed it.
    pub(crate) fn slow_down(&self, now: Instant) -> Option<usize> {
        let mut state = self.state();
        if state.burst_until.is_some_and(|until| now < until) {
            return None;
        }
        state.burst_until = Some(now + BURST);
        state.answers = 0;
        if state.limit == 1 {
            return None;
        }
        state.limit /= 2;
        self.lowered.store(true, Ordering::Relaxed);
        let excess = state.turns.saturating_sub(state.limit);
        state.turns -= self.turns.forget_permits(excess);
        Some(state.limit)
    }

    /// The bucket answers and does not ask to slow down. Whether that made the limit whole again.
    pub(crate) fn answered(&self) -> bool {
        if !self.lowered.load(Ordering::Relaxed) {
            return false;
        }
        let mut state = self.state();
        state.answers += 1;
        if state.limit == self.max || state.answers < state.limit {
            return false;
        }
        state.answers = 0;
        state.limit += 1;
        if state.turns < state.limit {
            state.turns += 1;
            self.turns.add_permits(1);
        }
        let is_whole = state.limit == self.max;
        if is_whole {
            self.lowered.store(false, Ordering::Relaxed);
        }
        is_whole
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let Some(permit) = self.permit.take() else { return };
        if self.requests.lowered.load(Ordering::Relaxed) {
            let mut state = self.requests.state();
            if state.turns > state.limit {
                state.turns -= 1;
                permit.forget();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{ByteLen, MIB};

    use super::*;

    fn limits(requests: &Arc<Requests>) -> Limits {
        let settings = Settings {
            bytes_in_flight_max: ByteLen(MIB),
            queue_timeout: Duration::from_millis(10),
            ..Settings::default()
        };
        Limits::new(&settings, Arc::clone(requests))
    }

    /// As many as may be in flight at once.
    async fn fill(limits: &Limits) -> Vec<Permit> {
        let mut taken = Vec::new();
        while let Ok(permit) = limits.acquire(0).await {
            taken.push(permit);
        }
        taken
    }

    #[tokio::test]
    async fn a_request_beyond_the_limit_waits_and_then_fails_as_busy() {
        let limits = limits(&Arc::new(Requests::new(2)));
        let first = limits.acquire(0).await.unwrap();
        let _second = limits.acquire(0).await.unwrap();
        assert!(matches!(limits.acquire(0).await, Err(Error::Busy { .. })));
        drop(first);
        assert!(limits.acquire(0).await.is_ok());
    }

    #[tokio::test]
    async fn a_request_larger_than_the_limit_passes_alone() {
        let limits = limits(&Arc::new(Requests::new(2)));
        let large = limits.acquire(64 * MIB).await.unwrap();
        assert!(matches!(limits.acquire(1).await, Err(Error::Busy { .. })));
        drop(large);
        assert!(limits.acquire(1).await.is_ok());
    }

    #[tokio::test]
    async fn a_bucket_that_asks_for_it_gets_half_as_many_requests_and_then_one_more_each_round() {
        let requests = Arc::new(Requests::new(16));
        let limits = limits(&requests);
        let in_flight = fill(&limits).await;
        assert_eq!(in_flight.len(), 16);
        // All of a burst are refused, which counts once; those in flight end in their own time.
        let begun = Instant::now();
        assert_eq!(requests.slow_down(begun), Some(8));
        for _ in 1..16 {
            assert_eq!(requests.slow_down(begun + BURST / 2), None);
        }
        drop(in_flight);
        assert_eq!(fill(&limits).await.len(), 8);
        assert_eq!(requests.slow_down(begun + BURST), Some(4));
        assert_eq!(fill(&limits).await.len(), 4);
        // A round of answers for each further one.
        for (rounds, limit) in (4..16).enumerate() {
            assert_eq!(requests.limit(), limit, "after {rounds} rounds");
            for answer in 1..=limit {
                let is_whole = requests.answered();
                assert_eq!(is_whole, limit == 15 && answer == 15);
            }
        }
        assert_eq!(fill(&limits).await.len(), 16);
        assert!(!requests.answered());
        assert_eq!(fill(&limits).await.len(), 16, "never more than the settings say");
    }

    #[tokio::test]
    async fn one_request_is_always_allowed() {
        let requests = Arc::new(Requests::new(3));
        let limits = limits(&requests);
        let begun = Instant::now();
        for burst in 0..5 {
            requests.slow_down(begun + BURST * burst);
        }
        assert_eq!(requests.limit(), 1);
        assert_eq!(fill(&limits).await.len(), 1);
    }

    #[tokio::test]
    async fn what_was_raised_again_while_too_many_were_in_flight_is_not_given_twice() {
        let requests = Arc::new(Requests::new(4));
        let limits = limits(&requests);
        let in_flight = fill(&limits).await;
        assert_eq!(requests.slow_down(Instant::now()), Some(2));
        // Two rounds pass before any of the four ends: nothing was taken, so nothing comes back.
        for answer in 1..=5 {
            assert_eq!(requests.answered(), answer == 5);
        }
        assert_eq!(requests.limit(), 4);
        drop(in_flight);
        assert_eq!(fill(&limits).await.len(), 4);
    }
}
