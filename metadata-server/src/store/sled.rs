//! The store on sled, the default engine.
//!
//! sled's own `flush` starts the write-out but does not wait for the disk, so [`checkpoint`] syncs
//! its files itself. Between checkpoints sled's state after a loss of power is anybody's guess:
//! `recovery` trusts it only after a clean shutdown or within the same boot of the machine.
//!
//! A batch of sled's own writes its buffers out before and after it, each with a wait for the disk:
//! a millisecond that every command would take. Small batches are therefore made whole by a copy
//! that goes before them (`copy`), and only large ones are left to sled.
//!
//! [`checkpoint`]: SledStore::checkpoint

use std::{
    fs::{self, File},
    io,
    ops::Bound,
    path::{Path, PathBuf},
    thread,
    time::{Duration, Instant},
};

use super::{Batch, MetaStore, Pair, StoreError, Stores, View, memory::is_empty_range, remove};

mod copy;

/// One sled tree.
#[derive(Debug)]
pub struct SledStore {
    db: ::sled::Db,
    /// Beside the keys: what the last small batch changed, under [`COPY`].
    copies: ::sled::Tree,
    dir: PathBuf,
}

impl SledStore {
    /// Opens or makes the store in `dir`, with a page cache of `cache_bytes`.
    ///
    /// # Errors
    /// When sled cannot open it; the caller moves it away and rebuilds from the log.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let config = ::sled::Config::new()
            .path(dir)
            .cache_capacity(cache_bytes)
            .mode(::sled::Mode::HighThroughput)
            .flush_every_ms(Some(FLUSH_EVERY_MS));
        let db = open_when_free(&config).map_err(broken)?;
        let copies = db.open_tree(COPIES).map_err(broken)?;
        let store = Self { db, copies, dir: dir.to_owned() };
        store.complete()?;
        Ok(store)
    }

    /// Makes the changes of the last small batch once more: the process may have been killed among
    /// them.
    fn complete(&self) -> Result<(), StoreError> {
        let Some(copy) = self.copies.get(COPY).map_err(broken)? else {
            return Ok(());
        };
        let damaged = || StoreError::Inconsistent("the copy of a batch is damaged".to_owned());
        for change in copy::decode(&copy) {
            let (key, value) = change.ok_or_else(damaged)?;
            self.set(key, value)?;
        }
        Ok(())
    }

    fn set(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), StoreError> {
        let before = match value {
            Some(value) => self.db.insert(key, value),
            None => self.db.remove(key),
        };
        before.map(drop).map_err(broken)
    }

    /// A batch in one piece of sled's own.
    fn commit_large(&self, batch: &Batch) -> Result<(), StoreError> {
        // What a start would repeat is older than what comes now.
        self.copies.remove(COPY).map_err(broken)?;
        let mut changes = ::sled::Batch::default();
        for (key, value) in batch.iter() {
            match value {
                Some(value) => changes.insert(key, value),
                None => changes.remove(key),
            }
        }
        self.db.apply_batch(changes).map_err(broken)
    }
}

/// The store in one directory.
#[derive(Debug)]
pub struct SledStores {
    /// Where.
    pub dir: PathBuf,
    /// Bytes of the page cache.
    pub cache_bytes: u64,
}

impl Stores for SledStores {
    fn open(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        Ok(Box::new(SledStore::open(&self.dir, self.cache_bytes)?))
    }

    fn create(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        remove(&self.dir, ENGINE)?;
        self.open()
    }

    fn survives(&self) -> bool {
        true
    }
}

impl View for SledStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.db.get(key).map_err(broken)?;
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
        let range = self.db.range::<&[u8], _>((from, to)).take(limit);
        range
            .map(|pair| {
                let (key, value) = pair.map_err(broken)?;
                Ok((key.to_vec(), value.to_vec()))
            })
            .collect()
    }
}

impl MetaStore for SledStore {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let Some(copy) = copy::encode(batch.iter(), COPY_MAX) else {
            return self.commit_large(batch);
        };
        // sled keeps its log in order and a start finds a beginning of it: with the copy, or
        // without anything of the batch.
        self.copies.insert(COPY, copy).map_err(broken)?;
        batch.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.db.flush().map_err(broken)?;
        sync_tree(&self.dir).map_err(|source| StoreError::Engine { engine: ENGINE, source })
    }
}

/// Syncs every file and directory below `dir`; sled syncs none of them itself.
fn sync_tree(dir: &Path) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        if entry.file_type()?.is_dir() {
            sync_tree(&entry.path())?;
        } else {
            match File::open(entry.path()) {
                Ok(file) => file.sync_all()?,
                // sled replaces its snapshot files whenever it likes.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
    }
    File::open(dir)?.sync_all()
}

/// How long a store is waited for that somebody holds. sled's threads let go of its files some
/// moments after it was closed, and a process that was killed some after its end was told; taken
/// for broken, the store would be made anew from the log.
const HELD: Duration = Duration::from_secs(10);

/// How often it is tried meanwhile.
const AGAIN: Duration = Duration::from_millis(20);

fn open_when_free(config: &::sled::Config) -> Result<::sled::Db, ::sled::Error> {
    let begun = Instant::now();
    loop {
        match config.open() {
            Err(error) if is_held(&error) && begun.elapsed() < HELD => thread::sleep(AGAIN),
            other => return other,
        }
    }
}

/// sled has no kind of its own for it.
fn is_held(error: &::sled::Error) -> bool {
    let words = "could not acquire lock";
    matches!(error, ::sled::Error::Io(error) if error.to_string().contains(words))
}

fn broken(error: ::sled::Error) -> StoreError {
    let source = match error {
        ::sled::Error::Io(error) => error,
        other => io::Error::other(other.to_string()),
    };
    StoreError::Engine { engine: ENGINE, source }
}

const ENGINE: &str = "sled";

/// The tree with the copy, and its key there.
const COPIES: &str = "copies";
const COPY: &[u8] = b"batch";

/// Bytes of a copy: far above what one operation changes, and far below what sled puts into files
/// of their own, which it syncs.
const COPY_MAX: usize = 16 << 10;

/// How often sled hands its buffer to the kernel. What a kill of the process loses of it is
/// replayed from the log: half a second of commands, some ten milliseconds of replay.
const FLUSH_EVERY_MS: u64 = 500;

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
    };

    use super::{super::conformance, *};

    #[test]
    fn the_sled_store_fulfils_the_contract() {
        let root = tempfile::tempdir().unwrap();
        let mut made = 0;
        conformance::check(|| {
            made += 1;
            let dir = root.path().join(made.to_string());
            Box::new(SledStore::open(&dir, 1 << 20).unwrap())
        });
    }

    #[test]
    fn a_store_that_is_held_for_moments_is_waited_for() {
        let root = tempfile::tempdir().unwrap();
        let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
        let mut batch = Batch::default();
        batch.put(b"key".to_vec(), b"value".to_vec());
        store.commit(&batch).unwrap();
        let holder = thread::spawn(move || {
            thread::sleep(AGAIN * 5);
            drop(store);
        });
        let store = SledStore::open(root.path(), 1 << 20).unwrap();
        assert_eq!(store.get(b"key").unwrap(), Some(b"value".to_vec()));
        holder.join().unwrap();
    }

    #[test]
    fn a_checkpoint_is_there_after_opening_again() {
        let root = tempfile::tempdir().unwrap();
        let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
        let mut batch = Batch::default();
        batch.put(b"key".to_vec(), b"value".to_vec());
        store.commit(&batch).unwrap();
        store.checkpoint().unwrap();
        drop(store);
        let store = SledStore::open(root.path(), 1 << 20).unwrap();
        assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"value"[..]));
    }
    #[test]
    fn a_batch_is_whole_after_the_process_was_killed() {
        for round in 0..10 {
            let root = tempfile::tempdir().unwrap();
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["--ignored", "--exact", "store::sled::tests::commits_until_it_is_killed"])
                .arg("--nocapture")
                .env(DIRECTORY, root.path())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap()).lines();
            let committed = lines.map_while(Result::ok).filter(|line| line == COMMITTED);
            let seen = committed.take(20 + 7 * round).count();
            child.kill().unwrap();
            child.wait().unwrap();
            assert_eq!(seen, 20 + 7 * round, "it commits until it is killed");
            let store = SledStore::open(root.path(), 1 << 20).unwrap();
            let values: Vec<_> = (0..KEYS).map(|key| store.get(&[key]).unwrap()).collect();
            assert!(values.iter().all(|value| *value == values[0]), "round {round}: {values:?}");
        }
    }

    /// Each batch gives one value to all keys; now and then one is large.
    #[test]
    #[ignore = "run by the test that kills it"]
    #[expect(clippy::print_stdout, reason = "the test that kills it counts the lines")]
    fn commits_until_it_is_killed() {
        let Some(root) = std::env::var_os(DIRECTORY) else { return };
        let mut store = SledStore::open(Path::new(&root), 1 << 20).unwrap();
        for number in 0_u64.. {
            let mut batch = Batch::default();
            let len = if number % 10 == 9 { COPY_MAX } else { 100 };
            let value = [number.to_le_bytes().to_vec(), vec![7; len]].concat();
            (0..KEYS).for_each(|key| batch.put(vec![key], value.clone()));
            store.commit(&batch).unwrap();
            if number % 10 == 3 {
                // As the flusher does all the time.
                store.db.flush().unwrap();
            }
            println!("{COMMITTED}");
        }
    }

    const KEYS: u8 = 24;
    const COMMITTED: &str = "committed";
    const DIRECTORY: &str = "MILLRACE_TEST_SLED_DIRECTORY";
}
