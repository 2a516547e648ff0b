//! Turns of fetches that hold some segments while they wait for others.
//!
//! Such a fetch holds two buffers while it waits for a third: only so many may as the target's part
//! of the pool allows. Of these one link has three quarters, of two one, so that a bucket that
//! stands still leaves some to others, also where only one link is in use.

use std::sync::Arc;

use millrace_types::LinkId;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::shares::Shares;

/// The turns of one target.
#[derive(Debug)]
pub(super) struct Turns {
    links: Shares<LinkId>,
    all: Arc<Semaphore>,
}

/// One turn, until it is dropped.
#[derive(Debug)]
pub(super) struct Turn {
    _share: OwnedSemaphorePermit,
    _turn: OwnedSemaphorePermit,
}

impl Turns {
    /// So many, one at least. Of a single one a link has all.
    pub(super) fn new(count: usize) -> Self {
        let each = (count - count.div_ceil(4)).max(1);
        let links = Shares::new(u32::try_from(each).unwrap_or(u32::MAX));
        Self { links, all: Arc::new(Semaphore::new(count)) }
    }

    /// Waits for one for what a link's bucket brings. May be dropped at its await.
    pub(super) async fn take(&self, link: LinkId) -> Turn {
        // First: who waits for its share must not stand before others that wait for a turn.
        let share = self.links.take(link, 1).await;
        let turn = Arc::clone(&self.all).acquire_owned().await;
        Turn { _share: share, _turn: turn.expect("turns are never closed") }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn take_all(turns: &Turns, link: u32) -> Vec<Turn> {
        std::iter::from_fn(|| turns.take(LinkId(link)).now_or_never()).collect()
    }

    #[test]
    fn a_bucket_that_stands_still_leaves_turns_to_others() {
        for (count, each) in [(1, 1), (2, 1), (4, 3), (9, 6)] {
            let turns = Turns::new(count);
            let stopped = take_all(&turns, 1);
            assert_eq!(stopped.len(), each);
            let mut waiting = Box::pin(turns.take(LinkId(1)));
            assert!(waiting.as_mut().now_or_never().is_none());
            assert_eq!(take_all(&turns, 2).len(), count - each, "of {count}");
        }
    }
}
