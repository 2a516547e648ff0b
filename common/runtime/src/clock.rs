//! Time: the machine's, or one that a test moves by hand.
//!
//! An [`Instant`] measures how long something took and never goes back; a [`Timestamp`] says when
//! something happened and may jump when the machine's clock is set.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use millrace_types::Timestamp;
use tokio::sync::watch;

/// Where a part reads the time and waits for it. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Clock(Source);

#[derive(Clone, Debug)]
enum Source {
    System,
    Virtual(Arc<Shared>),
}

#[derive(Debug)]
struct Shared {
    started: Instant,
    wall_start: Timestamp,
    elapsed: watch::Sender<Duration>,
    wall_shift_ns: Mutex<i64>,
}

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(Source::System)
    }

    /// A clock that stands still at `wall_start` until the returned handle moves it.
    #[must_use]
    pub fn manual(wall_start: Timestamp) -> (Self, VirtualTime) {
        let shared = Arc::new(Shared {
            started: Instant::now(),
            wall_start,
            elapsed: watch::Sender::new(Duration::ZERO),
            wall_shift_ns: Mutex::new(0),
        });
        (Self(Source::Virtual(Arc::clone(&shared))), VirtualTime(shared))
    }

    /// For measuring how long things take.
    #[must_use]
    pub fn now(&self) -> Instant {
        match &self.0 {
            Source::System => Instant::now(),
            Source::Virtual(shared) => shared.started + *shared.elapsed.borrow(),
        }
    }

    /// The time of day.
    #[must_use]
    pub fn timestamp(&self) -> Timestamp {
        match &self.0 {
            Source::System => system_timestamp(),
            Source::Virtual(shared) => shared.timestamp(),
        }
    }

    /// Waits. May be dropped at any time.
    pub async fn sleep(&self, duration: Duration) {
        self.sleep_until(self.now() + duration).await;
    }

    /// Waits until `deadline`. May be dropped at any time.
    pub async fn sleep_until(&self, deadline: Instant) {
        match &self.0 {
            Source::System => tokio::time::sleep_until(deadline.into()).await,
            Source::Virtual(shared) => {
                let due = |elapsed: &Duration| shared.started + *elapsed >= deadline;
                let mut elapsed = shared.elapsed.subscribe();
                elapsed.wait_for(due).await.expect("the clock holds the sender");
            }
        }
    }
}

/// Moves a virtual clock.
#[derive(Clone, Debug)]
pub struct VirtualTime(Arc<Shared>);

impl VirtualTime {
    /// Lets time pass; whoever waits for a moment up to then is woken.
    pub fn advance(&self, duration: Duration) {
        self.0.elapsed.send_modify(|elapsed| *elapsed += duration);
    }

    /// Sets the time of day forward or back by nanoseconds, as an administrator would; no time
    /// passes.
    pub fn shift_wall(&self, nanoseconds: i64) {
        let mut shift = lock(&self.0.wall_shift_ns);
        *shift = shift.saturating_add(nanoseconds);
    }
}

impl Shared {
    fn timestamp(&self) -> Timestamp {
        let shift = *lock(&self.wall_shift_ns);
        let moved = Timestamp(self.wall_start.0.saturating_add(shift));
        moved.plus(*self.elapsed.borrow())
    }
}

fn system_timestamp() -> Timestamp {
    let nanoseconds = |duration: Duration| i64::try_from(duration.as_nanos()).unwrap_or(i64::MAX);
    Timestamp(match SystemTime::now().duration_since(UNIX_EPOCH) {
        Ok(since) => nanoseconds(since),
        Err(before) => -nanoseconds(before.duration()),
    })
}

/// A panic elsewhere cannot leave a plain number half written.
fn lock(shift: &Mutex<i64>) -> std::sync::MutexGuard<'_, i64> {
    shift.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_virtual_sleeper_wakes_when_time_has_passed_and_not_before() {
        let (clock, time) = Clock::manual(Timestamp(1_000));
        let begun = clock.now();
        let sleeper = tokio::spawn({
            let clock = clock.clone();
            async move { clock.sleep_until(begun + Duration::from_secs(10)).await }
        });
        time.advance(Duration::from_secs(9));
        tokio::task::yield_now().await;
        assert!(!sleeper.is_finished());
        time.advance(Duration::from_secs(1));
        sleeper.await.unwrap();
        assert_eq!(clock.now() - begun, Duration::from_secs(10));
        assert_eq!(clock.timestamp(), Timestamp(10_000_001_000));
    }

    #[test]
    fn setting_the_wall_clock_back_does_not_move_instants() {
        let (clock, time) = Clock::manual(Timestamp(1_000));
        let before = clock.now();
        time.shift_wall(-500);
        assert_eq!(clock.now(), before);
        assert_eq!(clock.timestamp(), Timestamp(500));
    }
}
