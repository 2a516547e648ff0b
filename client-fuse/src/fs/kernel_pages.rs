//! Has the kernel drop the pages that it holds of a file.
//!
//! Doing so waits inside the kernel for reads of those pages that are under way, so that it is done
//! on threads that answer no requests, and no read or write ever waits for it.

use std::{
    fmt,
    sync::{Arc, OnceLock},
};

use millrace_types::InodeId;
use tokio::sync::Semaphore;

/// Drops all pages of an inode; blocks.
type Drops = Arc<dyn Fn(InodeId) + Send + Sync>;

/// The way to the kernel's pages.
pub(crate) struct KernelPages {
    drops: OnceLock<Drops>,
    rooms: Semaphore,
}

impl Default for KernelPages {
    fn default() -> Self {
        Self { drops: OnceLock::new(), rooms: Semaphore::new(AT_ONCE) }
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
}

impl fmt::Debug for KernelPages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelPages").field("connected", &self.drops.get().is_some()).finish()
    }
}

/// Threads that may wait in the kernel at a time. With all of them behind reads of a slow bucket
/// the next lock waits, and can be given up.
const AT_ONCE: usize = 64;
