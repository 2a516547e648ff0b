//! Requests that are under way, by the inode that they concern, for whoever waits for those before
//! it.
//!
//! The kernel's reads that wait for bytes hold their pages locked. An open that has the kernel drop
//! its pages waits for those locks inside the kernel, where nothing can end it, not even SIGKILL;
//! and read-ahead goes on when its reader is dead. So such an open is answered when the reads
//! before it are done: it takes as long, and its caller can be let go.
//!
//! Writes, holes, copies and truncations whose program was killed go on after its close, and are
//! counted from before the kernel hears that it was let go. The server hears of the close when they
//! are done: until then the file is open, so that nobody exports it, and a lock is not given to
//! others before what was written under it is there. No program waits for them, and nobody for
//! those of a program that lives, which may have to wait for the right to append or for a server.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_types::InodeId;
use tokio::sync::Notify;

/// All of one kind and one mount.
#[derive(Debug, Default)]
pub(crate) struct Pending {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    by_inode: HashMap<InodeId, BTreeSet<u64>>,
}

/// One request, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct UnderWay {
    all: Arc<Pending>,
    inode: InodeId,
    number: u64,
}

impl Pending {
    /// Counts one more request about `inode`.
    pub(crate) fn begin(self: &Arc<Self>, inode: InodeId) -> UnderWay {
        let mut state = self.lock();
        state.begun += 1;
        let number = state.begun;
        state.by_inode.entry(inode).or_default().insert(number);
        UnderWay { all: Arc::clone(self), inode, number }
    }

    /// Whether none is under way.
    pub(crate) fn is_empty(&self, inode: InodeId) -> bool {
        !self.lock().by_inode.contains_key(&inode)
    }

    /// Waits for the requests about `inode` that have begun before this call. May be dropped while
    /// it waits.
    pub(crate) async fn earlier(&self, inode: InodeId) {
        let last = self.lock().begun;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let first = self.lock().by_inode.get(&inode).and_then(|all| all.first().copied());
            if first.is_none_or(|first| first > last) {
                return;
            }
            ended.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each step leaves the sets whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        if let Some(requests) = state.by_inode.get_mut(&self.inode) {
            requests.remove(&self.number);
            if requests.is_empty() {
                state.by_inode.remove(&self.inode);
            }
        }
        drop(state);
        self.all.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn who_waits_for_the_requests_before_it_waits_for_no_later_ones_and_no_other_files() {
        let pending = Arc::new(Pending::default());
        let (file, other) = (InodeId(7), InodeId(8));
        let first = pending.begin(file);
        let _elsewhere = pending.begin(other);
        let waiting = pending.earlier(file);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        let later = pending.begin(file);
        drop(first);
        waiting.await;
        drop(later);
        pending.earlier(file).await;
        assert!(pending.is_empty(file) && !pending.is_empty(other), "nothing is left behind");
    }
}
