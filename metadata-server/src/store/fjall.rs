//! The store on fjall, a log-structured merge tree: for trees whose keys do not fit into memory.
//!
//! What fjall promises, and what is made of it here:
//! - **A batch** goes to fjall's journal and then into a table in memory, at one sequence number.
//!   The journal is buffered in the process: a kill loses its end, each batch as a whole, and the
//!   command log replays that. Before a table in memory is written out, fjall syncs the journal,
//!   so that no file shows more than the journal does.
//! - **[`checkpoint`]** syncs the journal ([`PersistMode::SyncAll`]). Everything before it is in
//!   older journals or tables, which fjall has synced when it ended them.
//! - **After a loss of power** a damaged batch in the middle of the journal is taken for its end,
//!   and nobody hears of it. So a store that was not closed before the machine went down is made
//!   anew, as every other engine's is.
//! - **Memory** is the cache, and what is not written out yet: at most three eighths of the cache
//!   more (`Limits`). fjall by itself waits without an end where it cannot write out; so this
//!   waits before, looks whether fjall has failed, and gives up after a minute.
//! - **Failures**: fjall panics over some damage, which is caught here and is an error as others
//!   are. Damage that takes the process down with it while the store is opened is noticed at the
//!   next starts: see `Attempts`.
//!
//! [`checkpoint`]: FjallStore::checkpoint

use std::{
    any::Any,
    fs, io,
    ops::Bound,
    panic::{AssertUnwindSafe, catch_unwind},
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use ::fjall::{Database, Keyspace, KeyspaceCreateOptions, LsmError, PersistMode};

use super::{Batch, MetaStore, Pair, StoreError, Stores, View, memory::is_empty_range, remove};

/// One fjall database with one keyspace.
pub struct FjallStore {
    /// There until the drop.
    database: Option<Open>,
    dir: PathBuf,
    limits: Limits,
}

struct Open {
    // Its handles must go before the database does.
    keyspace: Keyspace,
    database: Database,
}

impl FjallStore {
    /// Opens or makes the store in `dir`, with a block cache of `cache_bytes`.
    ///
    /// # Errors
    /// When fjall cannot open it; the caller makes it anew from the log.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let io = |source| StoreError::Engine { engine: ENGINE, source };
        let limits = Limits::of(cache_bytes);
        let attempts = Attempts::begin(dir).map_err(io)?;
        let open = || {
            let database = Database::builder(dir)
                .cache_size(cache_bytes)
                .manual_journal_persist(true)
                .max_journaling_size(JOURNALS_MAX)
                .worker_threads(WORKERS)
                .open()?;
            let keyspace = database.keyspace(KEYSPACE, || {
                KeyspaceCreateOptions::default()
                    .manual_journal_persist(true)
                    .max_memtable_size(limits.table)
            })?;
            Ok(Open { keyspace, database })
        };
        let opened = guarded(dir, open)?;
        attempts.end().map_err(io)?;
        Ok(Self { database: Some(opened), dir: dir.to_owned(), limits })
    }

    fn opened(&self) -> &Open {
        self.database.as_ref().expect("only the drop takes it")
    }

    /// Waits until there is room for a batch in memory, so that fjall never waits by itself.
    fn wait_for_room(&self) -> ::fjall::Result<()> {
        let Open { keyspace, database } = self.opened();
        let is_full = || {
            database.write_buffer_size() >= self.limits.unwritten
                || keyspace.sealed_memtable_count() >= SEALED_MAX
                || keyspace.l0_table_count() >= FIRST_LEVEL_MAX
        };
        if !is_full() {
            return Ok(());
        }
        let begun = Instant::now();
        while is_full() {
            // It fails where a thread of fjall's has failed.
            database.persist(PersistMode::Buffer)?;
            if keyspace.sealed_memtable_count() == 0 && keyspace.l0_table_count() < FIRST_LEVEL_MAX
            {
                // Its table in memory is above what is allowed now: the cache was larger before.
                keyspace.rotate_memtable()?;
            }
            if begun.elapsed() > PATIENCE {
                let text = "it has not written out anything for a minute";
                return Err(io::Error::new(io::ErrorKind::TimedOut, text).into());
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }
}

/// The store in one directory.
#[derive(Debug)]
pub struct FjallStores {
    /// Where.
    pub dir: PathBuf,
    /// Bytes of the block cache.
    pub cache_bytes: u64,
}

impl Stores for FjallStores {
    fn open(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        Ok(Box::new(FjallStore::open(&self.dir, self.cache_bytes)?))
    }

    fn create(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        remove(&self.dir, ENGINE)?;
        self.open()
    }

    fn survives(&self) -> bool {
        true
    }
}

impl View for FjallStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = guarded(&self.dir, || self.opened().keyspace.get(key))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        if is_empty_range(from, to) {
            return Ok(Vec::new());
        }
        guarded(&self.dir, || {
            let range = self.opened().keyspace.range::<&[u8], _>((from, to)).take(limit);
            range
                .map(|found| {
                    let (key, value) = found.into_inner()?;
                    Ok((key.to_vec(), value.to_vec()))
                })
                .collect()
        })
    }
}

impl MetaStore for FjallStore {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        guarded(&self.dir, || {
            self.wait_for_room()?;
            let Open { keyspace, database } = self.opened();
            let mut changes = database.batch();
            for (key, value) in batch.iter() {
                match value {
                    Some(value) => changes.insert(keyspace, key, value),
                    None => changes.remove(keyspace, key),
                }
            }
            changes.commit()
        })
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        guarded(&self.dir, || self.opened().database.persist(PersistMode::SyncAll))
    }
}

impl Drop for FjallStore {
    fn drop(&mut self) {
        let opened = self.database.take();
        // It waits for fjall's threads; what one of them has broken has been reported before.
        drop(guarded(&self.dir, move || {
            drop(opened);
            Ok(())
        }));
    }
}

impl std::fmt::Debug for FjallStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FjallStore").field("dir", &self.dir).finish_non_exhaustive()
    }
}

/// What may be in memory and not written out.
#[derive(Debug, Clone, Copy)]
struct Limits {
    /// A table in memory is written out when it has so many bytes,
    table: u64,
    /// and all of them together have at most so many.
    unwritten: u64,
}

impl Limits {
    fn of(cache_bytes: u64) -> Self {
        let table = (cache_bytes / 8).clamp(1 << 20, 32 << 20);
        Self { table, unwritten: SEALED_MAX as u64 * table }
    }
}

/// How often a store was opened without coming to an end, in a file in its directory.
///
/// A panic while another one unwinds ends the process, and fjall has such a way. The store is then
/// taken for damaged after the second time. One leftover may also come of a kill at that moment.
struct Attempts {
    path: PathBuf,
}

impl Attempts {
    fn begin(dir: &Path) -> io::Result<Self> {
        fs::create_dir_all(dir)?;
        let path = dir.join("opening");
        let before = match fs::read(&path) {
            Ok(bytes) => bytes.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => 0,
            Err(error) => return Err(error),
        };
        if before >= ATTEMPTS_MAX {
            return Err(io::Error::other("the program ended each time that it was opened"));
        }
        match fs::write(&path, vec![b'.'; before + 1]) {
            // It is opened all the same: that may need no room.
            Err(error) if error.kind() != io::ErrorKind::StorageFull => Err(error),
            _ => Ok(Self { path }),
        }
    }

    fn end(self) -> io::Result<()> {
        match fs::remove_file(self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// What fjall does, with its panics as errors.
fn guarded<T>(dir: &Path, work: impl FnOnce() -> ::fjall::Result<T>) -> Result<T, StoreError> {
    let source = match catch_unwind(AssertUnwindSafe(work)) {
        Ok(Ok(done)) => return Ok(done),
        Ok(Err(::fjall::Error::Io(error) | ::fjall::Error::Storage(LsmError::Io(error)))) => error,
        // One of its threads could not write, and does not say why.
        Ok(Err(::fjall::Error::Poisoned)) if is_full(dir) => {
            io::Error::new(io::ErrorKind::StorageFull, "it could not write out")
        }
        Ok(Err(error)) => io::Error::other(error),
        Err(panic) => io::Error::other(format!("it panicked: {}", words(&*panic))),
    };
    Err(StoreError::Engine { engine: ENGINE, source })
}

fn is_full(dir: &Path) -> bool {
    rustix::fs::statvfs(dir).is_ok_and(|disk| disk.f_bavail * disk.f_frsize < FULL)
}

fn words(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("without a word")
}

const ENGINE: &str = "fjall";

/// The one keyspace.
const KEYSPACE: &str = "metadata";

/// One thread writes tables out and the other merges them: fjall leaves the first free for that.
const WORKERS: usize = 2;

/// What fjall's journals take on the disk: the least that it allows. One is ended at 64 MB.
const JOURNALS_MAX: u64 = 64 << 20;

/// Tables in memory that wait to be written out. fjall waits without an end at 4.
const SEALED_MAX: usize = 3;

/// Tables that wait to be merged. fjall slows down at 20, and waits without an end at 30.
const FIRST_LEVEL_MAX: usize = 18;

/// A disk writes out a table in memory within a second or two; what takes this long has failed.
const PATIENCE: Duration = Duration::from_secs(60);

/// Between two looks at a table that is being written.
const LOOK: Duration = Duration::from_millis(1);

/// A disk with less room has none for a table.
const FULL: u64 = 4 << 20;

/// Openings that did not come to their end before the store counts as damaged.
const ATTEMPTS_MAX: usize = 2;

#[cfg(test)]
mod tests;
