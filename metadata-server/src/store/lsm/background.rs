//! What is in memory of a tree, and the two threads that bring it to the disk and keep it in order
//! there.

use std::{
    fmt, io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use lsm_tree::{AbstractTree as _, AnyTree, SequenceNumberCounter, compaction::Leveled};

use super::{Batch, ENGINE, StoreError, guard::guarded};

/// How much may be in memory and not written out.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    /// A table in memory is sealed when it has so many bytes.
    pub(super) table: u64,
}

impl Limits {
    /// An eighth of the cache a table: three of them at most, one that is filled and those that
    /// are sealed ([`SEALED_MAX`]).
    pub(super) fn of(cache_bytes: u64) -> Self {
        Self { table: (cache_bytes / 8).clamp(1 << 20, 32 << 20) }
    }

    pub(super) fn unwritten(self) -> u64 {
        (1 + SEALED_MAX as u64) * self.table
    }
}

/// A tree with what its threads and its owner know of each other.
pub(super) struct Tree {
    pub(super) files: AnyTree,
    /// Numbers of batches: the next, and behind the last that is visible.
    next: SequenceNumberCounter,
    visible: SequenceNumberCounter,
    pub(super) limits: Limits,
    merges: Arc<Leveled>,
    state: Mutex<State>,
    /// Something is to be done,
    work: Condvar,
    /// or was done.
    done: Condvar,
}

#[derive(Default)]
struct State {
    /// A table was written out since the last merge began.
    is_merge_due: bool,
    is_closing: bool,
    /// A thread has failed: nothing more comes to the disk.
    has_failed: bool,
    /// Why, until somebody was told.
    failure: Option<StoreError>,
}

impl Tree {
    pub(super) fn new(
        files: AnyTree,
        next: SequenceNumberCounter,
        visible: SequenceNumberCounter,
        limits: Limits,
    ) -> Self {
        let merges = Leveled::default().with_table_target_size(TABLE_BYTES);
        Self {
            files,
            next,
            visible,
            limits,
            merges: Arc::new(merges),
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
        }
    }

    /// Puts a batch into memory. Only one thread does so: what is sealed is whole batches.
    pub(super) fn put(&self, batch: &Batch) {
        let number = self.next.next();
        let mut in_memory = 0;
        for (key, value) in batch.iter() {
            (_, in_memory) = match value {
                Some(value) => self.files.insert(key, value, number),
                None => self.files.remove(key, number),
            };
        }
        self.visible.fetch_max(number + 1);
        if in_memory >= self.limits.table {
            self.seal();
        }
    }

    fn seal(&self) {
        // Under the lock, so that the thread does not miss it.
        let _state = self.lock();
        self.files.rotate_memtable();
        self.work.notify_all();
    }

    /// Waits until there is room for a batch in memory.
    ///
    /// # Errors
    /// When a thread has failed, or nothing comes to the disk ([`FLUSH_MAX`], [`MERGE_MAX`]).
    pub(super) fn wait_for_room(&self) -> Result<(), StoreError> {
        self.wait_while(FLUSH_MAX, || self.files.sealed_memtable_count() >= SEALED_MAX)?;
        self.wait_while(MERGE_MAX, || self.files.l0_run_count() >= FIRST_LEVEL_MAX)
    }

    /// Brings everything to the disk, and waits for it.
    ///
    /// # Errors
    /// As [`Self::wait_for_room`].
    pub(super) fn write_out(&self) -> Result<(), StoreError> {
        guarded(|| {
            self.seal();
            Ok(())
        })?;
        self.wait_while(FLUSH_MAX, || self.files.sealed_memtable_count() > 0)
    }

    /// Whether a thread has failed; why is told once.
    pub(super) fn outcome(&self) -> Result<(), StoreError> {
        self.lock().outcome()
    }

    /// Waits as long as `is_due`, and for each step at most for `patience`: then the store counts
    /// as failed.
    fn wait_while(&self, patience: Duration, is_due: impl Fn() -> bool) -> Result<(), StoreError> {
        let is_due = || guarded(|| Ok(is_due()));
        let mut state = self.lock();
        while !state.has_failed && is_due()? {
            let waited = self.done.wait_timeout(state, patience);
            let (again, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
            state = again;
            if timeout.timed_out() && !state.has_failed && is_due()? {
                let source = io::Error::new(io::ErrorKind::TimedOut, NOTHING_DONE);
                state.has_failed = true;
                state.failure = Some(StoreError::Engine { engine: ENGINE, source });
            }
        }
        state.outcome()
    }

    /// A thread, until its end.
    fn run(&self, work: fn(&Self)) {
        let outcome = guarded(|| {
            work(self);
            Ok(())
        });
        self.end(self.lock(), outcome);
    }

    /// Writes sealed tables out, until the store goes or fails.
    fn flush(&self) {
        while self.wait_for_work(|_| self.files.sealed_memtable_count() > 0) {
            let flush = || {
                let turn = self.files.get_flush_lock();
                self.files.flush(&turn, self.visible.get())?;
                self.forget_versions()
            };
            let flushed = guarded(flush);
            let mut state = self.lock();
            state.is_merge_due = true;
            self.end(state, flushed);
        }
    }

    /// Merges until the levels are as they should be, each time that a table came.
    fn merge(&self) {
        while self.wait_for_work(|state| std::mem::take(&mut state.is_merge_due)) {
            let mut before = None;
            // One call is one step, which does not say whether there was something to do.
            while before != Some(self.shape()) && !self.lock().is_over() {
                before = Some(self.shape());
                let step = || {
                    self.files.compact(Arc::clone(&self.merges) as _, self.visible.get())?;
                    self.forget_versions()
                };
                let merged = guarded(step);
                self.end(self.lock(), merged);
            }
        }
    }

    /// Lets go of the versions of the tree before the last. By itself the tree keeps one until the
    /// next step, with the tables in memory that were written out, and with the files that were
    /// merged. Nobody reads in it but by a version of his own.
    fn forget_versions(&self) -> lsm_tree::Result<()> {
        let path = &self.files.tree_config().path;
        self.files.get_version_history_lock().maintenance(path, self.visible.get())
    }

    /// Tables in each level, and bytes in all.
    fn shape(&self) -> (Vec<Option<usize>>, u64) {
        let levels = (0..LEVELS).map(|level| self.files.level_table_count(level));
        (levels.collect(), self.files.disk_space())
    }

    /// Waits until there is something to do; `false` at the end.
    fn wait_for_work(&self, is_there: impl Fn(&mut State) -> bool) -> bool {
        let mut state = self.lock();
        loop {
            if state.is_over() {
                return false;
            }
            if is_there(&mut state) {
                return true;
            }
            state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Tells of a step that a thread has done.
    fn end(&self, mut state: MutexGuard<'_, State>, outcome: Result<(), StoreError>) {
        if let Err(error) = outcome {
            state.has_failed = true;
            state.failure.get_or_insert(error);
        }
        self.work.notify_all();
        self.done.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change leaves the state whole.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_over(&self) -> bool {
        self.is_closing || self.has_failed
    }

    fn outcome(&mut self) -> Result<(), StoreError> {
        if !self.has_failed {
            return Ok(());
        }
        let ended = || StoreError::Engine { engine: ENGINE, source: io::Error::other(ENDED) };
        Err(self.failure.take().unwrap_or_else(ended))
    }
}

/// The threads of a tree. Dropping this ends them: after the step that they are at, and without
/// what is in memory, which the command log has.
pub(super) struct Background {
    tree: Arc<Tree>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    pub(super) fn start(tree: &Arc<Tree>) -> io::Result<Self> {
        let mut started = Self { tree: Arc::clone(tree), threads: Vec::new() };
        started.spawn("store-flush", Tree::flush)?;
        started.spawn("store-merge", Tree::merge)?;
        // A run before may have ended among merges.
        started.tree.lock().is_merge_due = true;
        started.tree.work.notify_all();
        Ok(started)
    }

    fn spawn(&mut self, name: &str, work: fn(&Tree)) -> io::Result<()> {
        let tree = Arc::clone(&self.tree);
        let thread = thread::Builder::new().name(name.to_owned());
        self.threads.push(thread.spawn(move || tree.run(work))?);
        Ok(())
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.tree.lock().is_closing = true;
        self.tree.work.notify_all();
        for thread in self.threads.drain(..) {
            // What it has panicked with was shown by the panic.
            drop(thread.join());
        }
    }
}

impl fmt::Debug for Background {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Background").field("threads", &self.threads.len()).finish_non_exhaustive()
    }
}

/// Bytes of a merged table. What is merged at once of the two first levels is eight times as much,
/// a second of work.
const TABLE_BYTES: u64 = 16 << 20;

/// Tables in memory that wait to be written out, beside the one that is filled.
pub(super) const SEALED_MAX: usize = 2;

/// Tables on the disk that wait to be merged, each of which a read looks at. Merges begin with 4.
const FIRST_LEVEL_MAX: usize = 16;

/// Levels of a tree.
const LEVELS: usize = 7;

/// A disk takes the tables in memory within seconds; what takes this long has failed.
const FLUSH_MAX: Duration = Duration::from_secs(60);

/// A step of merging writes some hundred MiB.
const MERGE_MAX: Duration = Duration::from_secs(600);

/// Of the store, when one of these has come to its end.
const NOTHING_DONE: &str = "nothing comes to its disk any more";

/// Of a thread, to whom it matters after it has told why.
const ENDED: &str = "nothing is written to the store any more";
