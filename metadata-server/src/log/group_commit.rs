//! Syncs the log in the background: within a second, and at once when somebody waits.
//!
//! Owns the thread that calls fdatasync(2) and the list of those who wait. All waiters that arrived
//! while one sync ran are served together by the next. A failed sync is final: what the kernel has
//! dropped cannot be synced by trying again, so the log stops.
//!
//! While the thread runs nobody else syncs the segment that is appended to, also not who ends it.
//! The kernel tells of a failure once for each open file: of two syncs at a time one would return
//! as if all were well.

use std::{
    mem,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use millrace_types::LogIndex;

use super::LogError;
use crate::files::OpenFile;

/// Called once, on the sync thread: must be short and never block.
type Waiter = Box<dyn FnOnce(Result<(), LogError>) + Send>;

/// What is written and what is synced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SyncState {
    /// The last index in the kernel.
    pub written: LogIndex,
    /// The last index on stable storage.
    pub synced: LogIndex,
}

/// The sync thread; dropping it syncs once more and ends it.
#[derive(Debug)]
pub struct Syncer {
    shared: Arc<Shared>,
    thread: Option<thread::JoinHandle<()>>,
}

#[derive(Debug)]
struct Shared {
    inner: Mutex<Inner>,
    changed: Condvar,
}

struct Inner {
    /// The segment that is appended to; all before it are synced.
    file: Arc<dyn OpenFile>,
    written: LogIndex,
    synced: LogIndex,
    /// Since when something is written and not synced.
    unsynced_since: Option<Instant>,
    waiters: Vec<(LogIndex, Waiter)>,
    failed: bool,
    stopping: bool,
}

impl std::fmt::Debug for Inner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Inner")
            .field("written", &self.written)
            .field("synced", &self.synced)
            .field("waiters", &self.waiters.len())
            .finish_non_exhaustive()
    }
}

impl Syncer {
    /// Starts the thread for a log whose records up to `synced` are on stable storage. Nothing
    /// stays unsynced longer than `interval`.
    ///
    /// # Errors
    /// When the system gives no thread.
    pub fn start(
        file: Arc<dyn OpenFile>,
        synced: LogIndex,
        interval: Duration,
    ) -> Result<Self, std::io::Error> {
        let inner = Inner {
            file,
            written: synced,
            synced,
            unsynced_since: None,
            waiters: Vec::new(),
            failed: false,
            stopping: false,
        };
        let shared = Arc::new(Shared { inner: Mutex::new(inner), changed: Condvar::new() });
        let of_thread = Arc::clone(&shared);
        let thread = thread::Builder::new()
            .name("log-sync".to_owned())
            .spawn(move || run(&of_thread, interval))?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// What is written and synced now.
    #[must_use]
    pub fn state(&self) -> SyncState {
        let inner = self.shared.lock();
        SyncState { written: inner.written, synced: inner.synced }
    }

    /// Whether a sync has failed.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.shared.lock().failed
    }

    /// Tells that records up to `written` are in the kernel, in `file` or in synced segments.
    pub(super) fn wrote(&self, written: LogIndex) {
        let mut inner = self.shared.lock();
        assert!(inner.written < written, "indexes only grow");
        inner.written = written;
        if inner.unsynced_since.is_none() {
            inner.unsynced_since = Some(Instant::now());
            self.shared.changed.notify_one();
        }
    }

    /// Goes over to a new segment, when everything in the old one is synced.
    ///
    /// # Errors
    /// [`LogError::Stopped`] when a sync has failed.
    pub(super) fn rotate(&self, file: Arc<dyn OpenFile>) -> Result<(), LogError> {
        let mut inner = self.shared.lock();
        if inner.failed {
            return Err(LogError::Stopped);
        }
        assert!(inner.synced == inner.written, "a segment is synced as a whole");
        inner.file = file;
        Ok(())
    }

    /// Calls `waiter` as soon as `index` is on stable storage, or when it never will be.
    pub fn when_synced(
        &self,
        index: LogIndex,
        waiter: impl FnOnce(Result<(), LogError>) + Send + 'static,
    ) {
        let mut inner = self.shared.lock();
        if inner.failed {
            drop(inner);
            waiter(Err(LogError::Stopped));
        } else if inner.synced >= index {
            drop(inner);
            waiter(Ok(()));
        } else {
            inner.waiters.push((index, Box::new(waiter)));
            self.shared.changed.notify_one();
        }
    }

    /// Waits until everything written so far is on stable storage.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn sync_all(&self) -> Result<(), LogError> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        self.when_synced(self.state().written, move |result| {
            // The receiver waits below; it cannot be gone.
            drop(sender.send(result));
        });
        receiver.recv().unwrap_or(Err(LogError::Stopped))
    }

    /// How many wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> usize {
        self.shared.lock().waiters.len()
    }
}

impl Drop for Syncer {
    fn drop(&mut self) {
        self.shared.lock().stopping = true;
        self.shared.changed.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been reported by the panic hook already.
            drop(thread.join());
        }
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    /// Records that everything up to `synced` is durable.
    fn settle(&mut self, synced: LogIndex) -> Vec<Waiter> {
        self.synced = synced.max(self.synced);
        self.unsynced_since = (self.synced < self.written).then(Instant::now);
        let reached = self.synced;
        let (ready, waiting): (Vec<_>, Vec<_>) =
            mem::take(&mut self.waiters).into_iter().partition(|(index, _)| *index <= reached);
        self.waiters = waiting;
        ready.into_iter().map(|(_, waiter)| waiter).collect()
    }

    /// How long the thread may sleep: zero when a sync is due, `None` without end.
    fn pause(&self, interval: Duration) -> Option<Duration> {
        if !self.waiters.is_empty() || (self.stopping && self.unsynced_since.is_some()) {
            return Some(Duration::ZERO);
        }
        self.unsynced_since.map(|since| interval.saturating_sub(since.elapsed()))
    }
}

fn run(shared: &Shared, interval: Duration) {
    let mut inner = shared.lock();
    loop {
        match inner.pause(interval) {
            Some(Duration::ZERO) => {}
            None if inner.stopping => return,
            None => {
                inner = wait(shared, inner, None);
                continue;
            }
            Some(pause) => {
                inner = wait(shared, inner, Some(pause));
                continue;
            }
        }
        let (file, written) = (Arc::clone(&inner.file), inner.written);
        drop(inner);
        let result = file.sync_data();
        inner = shared.lock();
        let (ready, ok) = match result {
            Ok(()) => (inner.settle(written), true),
            Err(error) => {
                tracing::error!(%error, %written, "cannot sync the command log; it stops here");
                inner.failed = true;
                let all = mem::take(&mut inner.waiters);
                (all.into_iter().map(|(_, waiter)| waiter).collect(), false)
            }
        };
        drop(inner);
        for waiter in ready {
            waiter(if ok { Ok(()) } else { Err(LogError::Stopped) });
        }
        if !ok {
            return;
        }
        inner = shared.lock();
    }
}

fn wait<'a>(
    shared: &'a Shared,
    inner: MutexGuard<'a, Inner>,
    pause: Option<Duration>,
) -> MutexGuard<'a, Inner> {
    match pause {
        None => shared.changed.wait(inner).unwrap_or_else(PoisonError::into_inner),
        Some(pause) => {
            shared.changed.wait_timeout(inner, pause).unwrap_or_else(PoisonError::into_inner).0
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[test]
    fn waiters_are_served_once_their_index_is_synced() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        // An interval that no test reaches: only the waiter causes the sync.
        let syncer = Syncer::start(file, LogIndex(0), Duration::from_secs(3600)).unwrap();
        syncer.wrote(LogIndex(3));
        let (sender, receiver) = mpsc::channel();
        syncer.when_synced(LogIndex(2), move |result| sender.send(result.is_ok()).unwrap());
        assert!(receiver.recv().unwrap());
        assert_eq!(syncer.state().synced, LogIndex(3));
    }

    #[test]
    fn the_background_syncs_without_being_asked() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let syncer = Syncer::start(file, LogIndex(0), Duration::from_millis(1)).unwrap();
        syncer.wrote(LogIndex(1));
        while syncer.state().synced < LogIndex(1) {
            thread::yield_now();
        }
    }

    #[test]
    fn dropping_it_syncs_what_is_left() {
        let file = Arc::new(tempfile::tempfile().unwrap());
        let syncer = Syncer::start(file, LogIndex(0), Duration::from_secs(3600)).unwrap();
        let shared = Arc::clone(&syncer.shared);
        syncer.wrote(LogIndex(5));
        drop(syncer);
        assert_eq!(shared.lock().synced, LogIndex(5));
    }
}
