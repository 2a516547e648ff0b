//! Back-pressure: the server's own bulk work waits while a snapshot runs short of memory.
//!
//! A snapshot keeps in memory what is changed before it has come there, and past a bound it is
//! given up (see [`run`](crate::snapshot::run)): the command log grows then until one is taken.
//! Imports change so much for as long as they last. So the engine tells here when half of the
//! bound is taken, and who changes much, and has time, waits before the next command. Requests of
//! programs never do.
//!
//! Nobody waits for ever: not behind the end of the run, whatever has ended it; not for one from
//! which nobody has fetched anything for [`STALLED`]; not when the engine has ended; and never for
//! longer than [`WAIT_MAX`] at a time.

use std::{
    mem,
    time::{Duration, Instant},
};

use tokio::{sync::watch, time::timeout};

/// The engine's side.
#[derive(Debug)]
pub(super) struct Pressure {
    told: watch::Sender<bool>,
    /// When the run began, or what it had gathered was last fetched.
    fetched: Instant,
}

impl Pressure {
    /// Nobody is to wait yet.
    pub(super) fn new(now: Instant) -> Self {
        Self { told: watch::Sender::new(false), fetched: now }
    }

    /// For those who have time.
    pub(super) fn patience(&self) -> Patience {
        Patience(self.told.subscribe())
    }

    /// A run has begun, or somebody has fetched what it had gathered.
    pub(super) fn handle_fetch(&mut self, now: Instant) {
        self.fetched = now;
    }

    /// Tells whether there is a run that `is_short` of memory.
    pub(super) fn tell(&self, is_short: bool, now: Instant) {
        let is_moving = now.saturating_duration_since(self.fetched) < STALLED;
        let waits = is_short && is_moving;
        self.told.send_if_modified(|told| mem::replace(told, waits) != waits);
    }
}

/// Waits where a snapshot runs short of memory. Cheap to clone.
#[derive(Debug, Clone)]
pub(super) struct Patience(watch::Receiver<bool>);

impl Patience {
    /// Whether there is something to wait for.
    pub(super) fn is_asked(&self) -> bool {
        *self.0.borrow()
    }

    /// Waits until there is nothing to wait for, or long enough. May be dropped at any time.
    pub(super) async fn wait(&self) {
        let mut told = self.0.clone();
        // Nobody tells any more when the engine has ended.
        drop(timeout(WAIT_MAX, told.wait_for(|waits| !waits)).await);
    }
}

/// Whoever writes a snapshot to a disk fetches many times a second. One from which nobody has
/// fetched for so long may never come to its end.
pub(super) const STALLED: Duration = Duration::from_secs(10);

/// The longest wait before one command. A store of some GiB has been passed by then; in front of a
/// larger one bulk work goes on by a command a minute each.
const WAIT_MAX: Duration = Duration::from_secs(60);

#[cfg(test)]
mod tests {
    use tokio::{task, time};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn who_has_time_waits_until_there_is_memory_again_and_never_for_ever() {
        let begun = Instant::now();
        let mut pressure = Pressure::new(begun);
        let patience = pressure.patience();
        let wait = || {
            let patience = patience.clone();
            tokio::spawn(async move { patience.wait().await })
        };
        wait().await.unwrap();

        pressure.tell(true, begun);
        let waiting = wait();
        task::yield_now().await;
        assert!(patience.is_asked() && !waiting.is_finished());
        pressure.tell(false, begun);
        waiting.await.unwrap();

        pressure.tell(true, begun);
        pressure.tell(true, begun + STALLED);
        assert!(!patience.is_asked(), "nobody fetches any more");
        pressure.handle_fetch(begun + STALLED);
        pressure.tell(true, begun + STALLED);
        let asked = time::Instant::now();
        wait().await.unwrap();
        assert!(asked.elapsed() >= WAIT_MAX && patience.is_asked(), "that was long enough");

        let waiting = wait();
        task::yield_now().await;
        assert!(!waiting.is_finished());
        drop(pressure);
        waiting.await.unwrap();
    }
}
