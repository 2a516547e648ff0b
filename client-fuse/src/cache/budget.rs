//! The memory budget that read-ahead and write-behind share.
//!
//! Writes may take all of it and wait for room; read-ahead never waits and leaves a share to
//! writes, so that a program that saves a checkpoint is not starved by one that scans a data set.

use std::sync::{
    Arc, Mutex, MutexGuard, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use tokio::sync::Notify;

/// Counts bytes against a limit. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Budget {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    limit: u64,
    taken: Mutex<u64>,
    freed: Notify,
    /// Read-ahead was refused.
    is_short: AtomicBool,
}

/// Bytes taken from a budget; dropping it gives them back.
#[derive(Debug)]
#[must_use]
pub(crate) struct Permit {
    shared: Arc<Shared>,
    bytes: u64,
}

impl Budget {
    /// A budget of `limit` bytes.
    pub(crate) fn new(limit: u64) -> Self {
        assert!(limit > 0, "settings refuse an empty budget");
        let is_short = AtomicBool::new(false);
        let shared = Shared { limit, taken: Mutex::new(0), freed: Notify::new(), is_short };
        Self { shared: Arc::new(shared) }
    }

    /// The limit in bytes.
    pub(crate) fn limit(&self) -> u64 {
        self.shared.limit
    }

    /// Bytes that are taken now.
    #[cfg(test)]
    pub(crate) fn taken(&self) -> u64 {
        *self.shared.lock()
    }

    /// Takes `bytes` for read-ahead, unless less than a quarter of the budget would be left.
    pub(crate) fn try_take_ahead(&self, bytes: u64) -> Option<Permit> {
        let permit = self.try_take_below(bytes, self.shared.limit - self.shared.limit / 4);
        if permit.is_none() {
            self.shared.is_short.store(true, Ordering::Relaxed);
        }
        permit
    }

    /// Whether read-ahead was refused since this was asked last.
    pub(crate) fn end_shortage(&self) -> bool {
        self.shared.is_short.swap(false, Ordering::Relaxed)
    }

    /// Takes `bytes` for a write, if they are there.
    ///
    /// More than the whole budget is given when nothing else is taken, so that no write is too
    /// large for ever.
    pub(crate) fn try_take(&self, bytes: u64) -> Option<Permit> {
        self.try_take_below(bytes, self.shared.limit)
    }

    /// Takes `bytes` for a write, and waits for them. May be dropped while it waits.
    pub(crate) async fn take(&self, bytes: u64) -> Permit {
        loop {
            let freed = self.shared.freed.notified();
            if let Some(permit) = self.try_take(bytes) {
                return permit;
            }
            freed.await;
        }
    }

    fn try_take_below(&self, bytes: u64, limit: u64) -> Option<Permit> {
        let mut taken = self.shared.lock();
        if *taken > 0 && taken.saturating_add(bytes) > limit {
            return None;
        }
        *taken += bytes;
        Some(Permit { shared: Arc::clone(&self.shared), bytes })
    }
}

impl Permit {
    /// Gives `bytes` of it back.
    pub(crate) fn shrink(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "a permit gives back what it holds");
        self.bytes -= bytes;
        self.shared.give_back(bytes);
    }

    /// Joins another permit of the same budget to this one.
    pub(crate) fn merge(&mut self, mut other: Self) {
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Bytes that it stands for.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if self.bytes > 0 {
            self.shared.give_back(self.bytes);
        }
    }
}

impl Shared {
    fn give_back(&self, bytes: u64) {
        *self.lock() -= bytes;
        self.freed.notify_waiters();
    }

    fn lock(&self) -> MutexGuard<'_, u64> {
        // A count is whole at every moment, so that a panic elsewhere cannot have torn it.
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn read_ahead_leaves_a_quarter_to_writes() {
        let budget = Budget::new(100);
        let ahead = budget.try_take_ahead(75).expect("three quarters are free");
        assert!(!budget.end_shortage());
        assert!(budget.try_take_ahead(1).is_none());
        assert!(budget.end_shortage() && !budget.end_shortage());
        let mut write = budget.try_take(25).expect("the last quarter is for writes");
        assert!(budget.try_take(1).is_none());
        write.shrink(10);
        assert_eq!(budget.taken(), 90);
        drop((ahead, write));
        assert_eq!(budget.taken(), 0);
    }

    #[test]
    fn a_write_larger_than_the_budget_passes_alone() {
        let budget = Budget::new(100);
        let first = budget.try_take(500).expect("nothing else is taken");
        assert!(budget.try_take(1).is_none());
        drop(first);
        assert_eq!(budget.taken(), 0);
    }

    #[tokio::test]
    async fn a_write_waits_until_room_is_given_back() {
        let budget = Budget::new(100);
        let mut held = budget.try_take(100).expect("all is free");
        let waiting = budget.take(30);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        held.shrink(30);
        assert_eq!(waiting.await.bytes(), 30);
    }

    #[test]
    fn merged_permits_are_given_back_once() {
        let budget = Budget::new(100);
        let mut first = budget.try_take(10).expect("free");
        first.merge(budget.try_take(20).expect("free"));
        assert_eq!((first.bytes(), budget.taken()), (30, 30));
        drop(first);
        assert_eq!(budget.taken(), 0);
    }
}
