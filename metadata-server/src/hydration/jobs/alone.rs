//! The turn of those that must not work beside each other: export jobs, release jobs, and what
//! links export by themselves.

use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::sync::{Mutex, MutexGuard};

/// One has the turn at a time. Jobs come before what happens by itself, which gives the turn back
/// as soon as one wants it.
#[derive(Debug, Default)]
pub(super) struct Alone {
    turn: Mutex<()>,
    wanted: AtomicUsize,
}

/// A job wants the turn as long as this is there.
struct Wish<'a>(&'a AtomicUsize);

impl Alone {
    /// Waits for the turn, for a job. May be dropped at its await.
    pub(super) async fn take(&self) -> MutexGuard<'_, ()> {
        self.wanted.fetch_add(1, Ordering::SeqCst);
        let _wish = Wish(&self.wanted);
        self.turn.lock().await
    }

    /// Waits for the turn, for what happens by itself. May be dropped at its await.
    pub(super) async fn take_last(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().await
    }

    /// Whether a job waits for the turn.
    pub(super) fn is_wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst) > 0
    }
}

impl Drop for Wish<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;

    #[tokio::test]
    async fn one_has_the_turn_and_who_has_it_learns_that_a_job_waits() {
        let alone = Alone::default();
        let turn = alone.take_last().await;
        assert!(!alone.is_wanted());
        {
            let mut job = pin!(alone.take());
            assert!(futures::poll!(&mut job).is_pending());
            assert!(alone.is_wanted());
        }
        assert!(!alone.is_wanted(), "it was given up");
        drop(turn);
        let job = alone.take().await;
        assert!(!alone.is_wanted(), "it has the turn");
        assert!(futures::poll!(pin!(alone.take_last())).is_pending());
        drop(job);
    }
}
