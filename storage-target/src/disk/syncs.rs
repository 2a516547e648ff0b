//! The syncs of one disk: which are under way, and whether one has failed.
//!
//! What a sync that fails should have made durable may be gone, whoever wrote it; the kernel says
//! so once, to whoever asked, and later syncs succeed. So it is noted where the disk reports it,
//! also when nobody waits for that sync any more, and holds for everybody from then on.
//!
//! Of two syncs at the same time the one may be told what concerns the other. So a sync counts only
//! when all are over that were begun before its end.

use std::{
    collections::BTreeSet,
    pin::pin,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

use super::DiskError;

/// What the clones of a queue share.
#[derive(Debug, Default)]
pub(super) struct Syncs {
    has_failed: AtomicBool,
    state: Mutex<State>,
    /// Told when one is over.
    over: Notify,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    under_way: BTreeSet<u64>,
}

/// A sync that the disk has. Dropped without its outcome it counts as failed.
#[derive(Debug)]
pub(super) struct SyncUnderWay {
    syncs: Arc<Syncs>,
    number: u64,
    is_harmless: bool,
}

impl Syncs {
    /// Takes note of one that is handed to the disk.
    pub(super) fn begin(self: &Arc<Self>) -> SyncUnderWay {
        let mut state = self.state();
        let number = state.next;
        state.next += 1;
        state.under_way.insert(number);
        SyncUnderWay { syncs: Arc::clone(self), number, is_harmless: false }
    }

    pub(super) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    /// Waits until all are over that have begun so far. May be dropped at its await.
    pub(super) async fn settle(&self) {
        let end = self.state().next;
        let mut over = pin!(self.over.notified());
        loop {
            // Before the look, so that nothing is missed behind it.
            over.as_mut().enable();
            if self.state().under_way.first().is_none_or(|&oldest| oldest >= end) {
                return;
            }
            over.as_mut().await;
            over.set(self.over.notified());
        }
    }

    /// A panic elsewhere leaves it whole: every change of it is one step.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl SyncUnderWay {
    /// Takes note of its outcome.
    pub(super) fn end(mut self, outcome: &Result<(), DiskError>) {
        // One that the disk has never begun says nothing.
        self.is_harmless = matches!(outcome, Ok(()) | Err(DiskError::Stopped));
    }
}

impl Drop for SyncUnderWay {
    fn drop(&mut self) {
        if !self.is_harmless {
            self.syncs.has_failed.store(true, Ordering::Release);
        }
        self.syncs.state().under_way.remove(&self.number);
        self.syncs.over.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_waits_for_those_that_began_before_and_for_no_other() {
        let syncs = Arc::new(Syncs::default());
        let (first, second) = (syncs.begin(), syncs.begin());
        let mut settled = pin!(syncs.settle());
        assert!(futures::poll!(&mut settled).is_pending());
        let third = syncs.begin();
        second.end(&Ok(()));
        assert!(futures::poll!(&mut settled).is_pending());
        first.end(&Ok(()));
        settled.await;
        assert!(!syncs.has_failed());
        third.end(&Err(DiskError::Stopped));
        assert!(!syncs.has_failed(), "it was never begun");
    }

    #[test]
    fn a_failure_is_noted_for_ever_also_when_nobody_hears_of_the_outcome() {
        let syncs = Arc::new(Syncs::default());
        syncs.begin().end(&Err(DiskError::NoSpace));
        assert!(syncs.has_failed());
        syncs.begin().end(&Ok(()));
        assert!(syncs.has_failed());
        let syncs = Arc::new(Syncs::default());
        drop(syncs.begin());
        assert!(syncs.has_failed());
    }
}
