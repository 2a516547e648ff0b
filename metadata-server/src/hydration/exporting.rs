//! Keys under which a file is being exported: one file at a time each.
//!
//! A checkpoint may be renamed over the last one while that one's upload is still on its way. Its
//! own export must then know how that ended: which version of the object it replaces.

use std::{
    collections::HashSet,
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_types::LinkId;
use tokio::sync::Notify;

/// The keys. One per server.
#[derive(Debug, Default)]
pub(super) struct Exporting {
    keys: Mutex<HashSet<(LinkId, String)>>,
    ended: Notify,
}

/// A key that nobody else exports to until this is dropped.
#[derive(Debug)]
pub(super) struct Turn<'a> {
    exporting: &'a Exporting,
    key: (LinkId, String),
}

impl Exporting {
    /// Waits until nobody exports to the key. What was known of it before may be old then.
    pub(super) async fn take(&self, link: LinkId, key: &str) -> Turn<'_> {
        let key = (link, key.to_owned());
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            // From here on no end is missed.
            ended.as_mut().enable();
            if self.keys().insert(key.clone()) {
                return Turn { exporting: self, key };
            }
            ended.await;
        }
    }

    /// Whether a file is being exported to the key.
    pub(super) fn has(&self, link: LinkId, key: &str) -> bool {
        let keys = self.keys();
        !keys.is_empty() && keys.contains(&(link, key.to_owned()))
    }

    fn keys(&self) -> MutexGuard<'_, HashSet<(LinkId, String)>> {
        // Each step leaves it whole, so that a panic elsewhere cannot have torn it.
        self.keys.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        self.exporting.keys().remove(&self.key);
        self.exporting.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    #[tokio::test]
    async fn a_key_has_one_turn_at_a_time_and_others_do_not_wait() {
        let exporting = Exporting::default();
        let turn = exporting.take(LinkId(1), "a").await;
        assert!(exporting.has(LinkId(1), "a"));
        assert!(!exporting.has(LinkId(2), "a") && !exporting.has(LinkId(1), "b"));
        assert!(exporting.take(LinkId(2), "a").now_or_never().is_some());
        let next = exporting.take(LinkId(1), "a");
        tokio::pin!(next);
        assert!(next.as_mut().now_or_never().is_none());
        drop(turn);
        drop(next.await);
        assert!(!exporting.has(LinkId(1), "a"));
    }
}
