//! What each session, or each link, may hold at a time of something that all of them share.

use std::{
    collections::HashMap,
    hash::Hash,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Entries below which nobody looks for those that hold nothing any more.
const LOOK_MIN: usize = 64;

/// The shares of all who hold something under a name of their own, of one size.
#[derive(Debug)]
pub(crate) struct Shares<K> {
    each: u32,
    in_use: Mutex<InUse<K>>,
}

#[derive(Debug)]
struct InUse<K> {
    /// Of who holds something or waits for it, and of some who did a while ago.
    shares: HashMap<K, Weak<Semaphore>>,
    /// With so many entries those that nobody uses are dropped.
    look_at: usize,
}

impl<K: Copy + Eq + Hash> Shares<K> {
    /// Each may hold so much.
    pub(crate) fn new(each: u32) -> Self {
        let in_use = InUse { shares: HashMap::new(), look_at: LOOK_MIN };
        Self { each, in_use: Mutex::new(in_use) }
    }

    /// Waits for so much of somebody's share; more than it is comes to all of it. May be dropped at
    /// its await.
    pub(crate) async fn take(&self, whose: K, count: u32) -> OwnedSemaphorePermit {
        let taken = self.of(whose).acquire_many_owned(count.min(self.each)).await;
        taken.expect("a share is never closed")
    }

    fn of(&self, whose: K) -> Arc<Semaphore> {
        let mut in_use = self.in_use.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(share) = in_use.shares.get(&whose).and_then(Weak::upgrade) {
            return share;
        }
        if in_use.shares.len() >= in_use.look_at {
            in_use.shares.retain(|_, share| share.strong_count() > 0);
            in_use.look_at = LOOK_MIN.max(2 * in_use.shares.len());
        }
        let share = Arc::new(Semaphore::new(self.each as usize));
        in_use.shares.insert(whose, Arc::downgrade(&share));
        share
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;
    use millrace_types::SessionId;

    use super::*;

    #[test]
    fn each_session_waits_for_what_it_holds_itself() {
        let shares = Shares::new(4);
        let take = |session, count| shares.take(SessionId(session), count).now_or_never();
        let three = take(1, 3).expect("it holds nothing yet");
        assert!(take(1, 2).is_none());
        assert!(take(2, 9).is_some(), "all of its share");
        drop(three);
        assert!(take(1, 4).is_some());
    }

    #[test]
    fn of_sessions_that_hold_nothing_nothing_stays() {
        let shares = Shares::new(4);
        let held = shares.take(SessionId(0), 4).now_or_never().expect("it holds nothing yet");
        for session in 1..10_000 {
            drop(shares.take(SessionId(session), 1).now_or_never());
        }
        let kept = shares.in_use.lock().unwrap().shares.len();
        assert!(kept <= LOOK_MIN, "{kept}");
        assert!(shares.take(SessionId(0), 1).now_or_never().is_none(), "it is not forgotten");
        drop(held);
    }
}
