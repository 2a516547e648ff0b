//! Has the kernel drop the pages that it holds of a file.
//!
//! Doing so waits inside the kernel for reads of those pages that are under way, so that it is done
//! on threads that answer no requests, and no read or write ever waits for it.

use std::{
    collections::{HashMap, hash_map::Entry},
    fmt,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use millrace_types::{ChangeCount, InodeId};
use tokio::sync::{Notify, Semaphore};
use tokio_util::sync::CancellationToken;

use crate::fs::{FileSystem, file::File};

/// Drops all pages of an inode; blocks.
type Drops = Arc<dyn Fn(InodeId) + Send + Sync>;

/// The way to the kernel's pages.
pub(crate) struct KernelPages {
    drops: OnceLock<Drops>,
    rooms: Semaphore,
    /// Of which files pages are being dropped for bytes that were given up, or have changed unheard
    /// of, and whether more were since that began.
    unstored: Mutex<HashMap<InodeId, bool>>,
    /// Of one of them they are dropped.
    dropped: Notify,
}

impl Default for KernelPages {
    fn default() -> Self {
        let (drops, rooms) = (OnceLock::new(), Semaphore::new(AT_ONCE));
        Self { drops, rooms, unstored: Mutex::default(), dropped: Notify::new() }
    }
}

impl KernelPages {
    /// From now on `drops` is how it is done. Before, there is no kernel that could hold any.
    pub(crate) fn connect(&self, drops: impl Fn(InodeId) + Send + Sync + 'static) {
        assert!(self.drops.set(Arc::new(drops)).is_ok(), "a mount is made once");
    }

    /// Drops all pages of the inode. May be dropped at any time: it goes on.
    pub(crate) async fn drop_all(&self, inode: InodeId) {
        let Some(drops) = self.drops.get().cloned() else { return };
        let Ok(_room) = self.rooms.acquire().await else { return };
        // It ends in a panic only if the closure does.
        drop(tokio::task::spawn_blocking(move || drops(inode)).await);
    }

    /// Bytes were given up. Whether the caller has to drop pages for as long as
    /// [`Self::goes_on_dropping`]: otherwise somebody does.
    fn begin_dropping(&self, inode: InodeId) -> bool {
        match self.unstored().entry(inode) {
            Entry::Occupied(mut again) => {
                again.insert(true);
                false
            }
            Entry::Vacant(first) => {
                first.insert(false);
                true
            }
        }
    }

    /// Pages were dropped. Whether more bytes were given up since that began.
    fn goes_on_dropping(&self, inode: InodeId) -> bool {
        let mut unstored = self.unstored();
        let again = unstored.get_mut(&inode).is_some_and(std::mem::take);
        if !again {
            unstored.remove(&inode);
            self.dropped.notify_waiters();
        }
        again
    }

    /// Waits until whoever had to drop pages of the inode is done. May be dropped while it waits.
    async fn all_dropped(&self, inode: InodeId) {
        loop {
            let dropped = self.dropped.notified();
            tokio::pin!(dropped);
            dropped.as_mut().enable();
            if !self.unstored().contains_key(&inode) {
                return;
            }
            dropped.await;
        }
    }

    fn unstored(&self) -> MutexGuard<'_, HashMap<InodeId, bool>> {
        // Each step leaves it whole, so that a panic elsewhere cannot have torn it.
        self.unstored.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl FileSystem {
    /// Bytes that programs here have written are given up, and have left the buffer: the kernel may
    /// have them in its pages still, where nobody may see them. No open keeps those.
    pub(super) fn drop_unstored(&self, file: &File) {
        let inode = file.inode;
        self.kept.forget(inode);
        file.state().pages_count = ChangeCount(0);
        if self.pages.begin_dropping(inode) {
            self.spawn(|this| async move {
                this.pages.drop_all(inode).await;
                while this.pages.goes_on_dropping(inode) {
                    this.pages.drop_all(inode).await;
                }
            });
        }
    }

    /// Has the kernel drop its pages of a file of which bytes have changed without its hearing of
    /// it; no open keeps them. Waits for that [`UNHEARD_MAX`] at most, and only until the program
    /// was `let_go`; it goes on.
    pub(super) async fn drop_unheard(&self, file: &File, let_go: &CancellationToken) {
        self.drop_unstored(file);
        tokio::select! {
            () = self.pages.all_dropped(file.inode) => {}
            () = let_go.cancelled() => {}
            () = tokio::time::sleep(UNHEARD_MAX) => {}
        }
    }
}

impl fmt::Debug for KernelPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelPages").field("connected", &self.drops.get().is_some()).finish()
    }
}

/// Threads that may wait in the kernel at a time. With all of them behind reads of a slow bucket
/// the next lock waits, and can be given up.
const AT_ONCE: usize = 64;

/// How long a call that has failed waits for pages: longer than reads take of a target that
/// answers. For those of others that wait for a dead one, or for a bucket, it has no reason to.
const UNHEARD_MAX: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_a_file_are_dropped_once_more_for_all_that_is_given_up_meanwhile() {
        let pages = KernelPages::default();
        let file = InodeId(7);
        assert!(pages.begin_dropping(file));
        assert!(!pages.begin_dropping(file) && !pages.begin_dropping(file));
        assert!(pages.begin_dropping(InodeId(8)), "another one");
        assert!(pages.goes_on_dropping(file));
        assert!(!pages.goes_on_dropping(file));
        assert!(pages.begin_dropping(file));
    }

    #[tokio::test]
    async fn who_waits_until_pages_are_dropped_waits_for_what_is_given_up_meanwhile_too() {
        let pages = KernelPages::default();
        let (file, other) = (InodeId(7), InodeId(8));
        pages.all_dropped(file).await;
        assert!(pages.begin_dropping(file) && pages.begin_dropping(other));
        let waiting = pages.all_dropped(file);
        tokio::pin!(waiting);
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(!pages.begin_dropping(file) && pages.goes_on_dropping(file));
        assert!(futures::poll!(&mut waiting).is_pending());
        assert!(!pages.goes_on_dropping(file));
        waiting.await;
    }
}
