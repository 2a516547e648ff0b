//! The kernel's reads that wait for bytes, by inode.
//!
//! Each of them holds its pages locked. An open that has the kernel drop its pages waits for those
//! locks inside the kernel, where nothing can end it, not even SIGKILL; and read-ahead goes on when
//! its reader is dead. So such an open is answered when the reads before it are done: it takes as
//! long, and its caller can be let go.

use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_types::InodeId;
use tokio::sync::Notify;

/// All of one mount.
#[derive(Debug, Default)]
pub(crate) struct PendingReads {
    state: Mutex<State>,
    ended: Notify,
}

#[derive(Debug, Default)]
struct State {
    begun: u64,
    by_inode: HashMap<InodeId, BTreeSet<u64>>,
}

/// One read, which ends when this is dropped.
#[derive(Debug)]
pub(crate) struct PendingRead {
    all: Arc<PendingReads>,
    inode: InodeId,
    number: u64,
}

impl PendingReads {
    /// Counts one more read of `inode`.
    pub(crate) fn begin(self: &Arc<Self>, inode: InodeId) -> PendingRead {
        let mut state = self.lock();
        state.begun += 1;
        let number = state.begun;
        state.by_inode.entry(inode).or_default().insert(number);
        PendingRead { all: Arc::clone(self), inode, number }
    }

    /// Whether none waits.
    pub(crate) fn is_empty(&self, inode: InodeId) -> bool {
        !self.lock().by_inode.contains_key(&inode)
    }

    /// Waits for the reads of `inode` that have begun before this call. May be dropped while it
    /// waits.
    pub(crate) async fn earlier(&self, inode: InodeId) {
        let last = self.lock().begun;
        loop {
            let ended = self.ended.notified();
            tokio::pin!(ended);
            ended.as_mut().enable();
            let first = self.lock().by_inode.get(&inode).and_then(|reads| reads.first().copied());
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

impl Drop for PendingRead {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        if let Some(reads) = state.by_inode.get_mut(&self.inode) {
            reads.remove(&self.number);
            if reads.is_empty() {
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
    async fn an_open_waits_for_the_reads_before_it_and_not_for_later_ones_or_other_files() {
        let reads = Arc::new(PendingReads::default());
        let (file, other) = (InodeId(7), InodeId(8));
        let first = reads.begin(file);
        let _elsewhere = reads.begin(other);
        let open = reads.earlier(file);
        tokio::pin!(open);
        assert!(futures::poll!(&mut open).is_pending());
        let later = reads.begin(file);
        drop(first);
        open.await;
        drop(later);
        reads.earlier(file).await;
        assert!(!reads.lock().by_inode.contains_key(&file), "nothing is left behind");
    }
}
