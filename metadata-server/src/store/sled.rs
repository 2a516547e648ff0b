//! The store on sled, the default engine.
//!
//! sled's own `flush` starts the write-out but does not wait for the disk, so [`checkpoint`] syncs
//! its files itself. Between checkpoints sled's state after a loss of power is anybody's guess:
//! `recovery` trusts it only after a clean shutdown or within the same boot of the machine.
//!
//! A batch of sled's own writes its buffers out before and after it, each with a wait for the disk,
//! and lets nobody read meanwhile, nor while a store that has failed is let go of. Batches are
//! therefore made whole by a copy that goes before them (`copy`), key by key.
//!
//! [`checkpoint`]: SledStore::checkpoint

use std::{
    fs::{self, File},
    io,
    ops::Bound,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use super::{
    Batch, MetaStore, Pair, StoreError, Stores, View,
    behind::{Behind, Pace},
    memory::is_empty_range,
    remove,
};

mod copy;

use copy::Head;

/// One sled tree. Its clones are the same store.
#[derive(Debug, Clone)]
pub struct SledStore {
    /// There until the drop.
    handles: Option<Handles>,
    /// Of the last batch.
    number: u64,
    dir: PathBuf,
    has_failed: Arc<AtomicBool>,
}

#[derive(Debug, Clone)]
struct Handles {
    /// Beside the keys: what the last batch changed, in pieces, each in a tree by itself.
    copies: Vec<::sled::Tree>,
    db: ::sled::Db,
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
        let handles = Some(Handles { copies: Vec::new(), db });
        let has_failed = Arc::default();
        let mut store = Self { handles, number: 0, dir: dir.to_owned(), has_failed };
        store.complete_old()?;
        store.complete()?;
        Ok(store)
    }

    /// Makes the changes of the last batch once more: the process may have been killed among them.
    fn complete(&mut self) -> Result<(), StoreError> {
        let Some((first, mut copy)) = self.piece(0)? else { return Ok(()) };
        self.number = first.number;
        for nth in 1..first.pieces {
            match self.piece(nth)? {
                Some((head, bytes)) if head == first => copy.extend(bytes),
                // Of the batch after it, which began when all of this one was made.
                Some((head, _)) if head.number > first.number => return Ok(()),
                _ => return Err(damaged()),
            }
        }
        self.set_all(&copy)
    }

    /// The same of a store that an older program has made, which kept copies of small batches only.
    fn complete_old(&mut self) -> Result<(), StoreError> {
        let copies = self.copies(0)?.clone();
        let Some(copy) = copies.get(COPY_OLD).map_err(broken)? else { return Ok(()) };
        self.set_all(&copy)?;
        // Of a newer program, before that older one went on.
        copies.remove(PIECE).map_err(broken)?;
        copies.remove(COPY_OLD).map(drop).map_err(broken)
    }

    fn piece(&mut self, nth: u32) -> Result<Option<(Head, Vec<u8>)>, StoreError> {
        let piece = self.copies(nth)?.get(PIECE).map_err(broken)?;
        let split = |piece: ::sled::IVec| {
            let (head, bytes) = Head::split(&piece).ok_or_else(damaged)?;
            Ok((head, bytes.to_vec()))
        };
        piece.map(split).transpose()
    }

    fn put_piece(&mut self, nth: u32, piece: Vec<u8>) -> Result<(), StoreError> {
        let put = self.copies(nth)?.insert(PIECE, piece);
        put.map(drop).map_err(|error| self.failed(error))
    }

    /// The tree of a piece: in one with others it would be written again with them all.
    fn copies(&mut self, nth: u32) -> Result<&::sled::Tree, StoreError> {
        let at = nth as usize;
        loop {
            let known = self.handles().copies.len();
            if known > at {
                return Ok(&self.handles().copies[at]);
            }
            let name = if known == 0 { COPIES.to_owned() } else { format!("{COPIES}-{known}") };
            let tree = self.handles().db.open_tree(name).map_err(|error| self.failed(error))?;
            self.handles.as_mut().expect(THERE).copies.push(tree);
        }
    }

    fn set_all(&self, copy: &[u8]) -> Result<(), StoreError> {
        for change in copy::decode(copy) {
            let (key, value) = change.ok_or_else(damaged)?;
            self.set(key, value)?;
        }
        Ok(())
    }

    fn set(&self, key: &[u8], value: Option<&[u8]>) -> Result<(), StoreError> {
        let db = &self.handles().db;
        let before = match value {
            Some(value) => db.insert(key, value),
            None => db.remove(key),
        };
        before.map(drop).map_err(|error| self.failed(error))
    }

    fn handles(&self) -> &Handles {
        self.handles.as_ref().expect(THERE)
    }

    fn failed(&self, error: ::sled::Error) -> StoreError {
        self.has_failed.store(true, Ordering::Relaxed);
        broken(error)
    }
}

impl Drop for SledStore {
    fn drop(&mut self) {
        let handles = self.handles.take();
        // Where a value could not be written into a file of its own, sled waits for it without an
        // end before it lets go, with a lock that only its own batches and transactions wait for.
        if self.has_failed.load(Ordering::Relaxed) {
            let dropping = thread::Builder::new().name("store-end".to_owned());
            drop(dropping.spawn(move || drop(handles)));
        }
    }
}

/// The store in one directory, written by a thread of its own: see [`Behind`].
#[derive(Debug)]
pub struct SledStores {
    /// Where.
    pub dir: PathBuf,
    /// Bytes of the page cache.
    pub cache_bytes: u64,
}

impl Stores for SledStores {
    fn open(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        let store = SledStore::open(&self.dir, self.cache_bytes)?;
        Ok(Box::new(Behind::new(store, Pace::default())?))
    }

    fn create(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        // One that has failed may be kept open until the process ends.
        drop(File::options().write(true).truncate(true).open(self.dir.join("db")));
        remove(&self.dir, ENGINE)?;
        self.open()
    }

    fn survives(&self) -> bool {
        true
    }
}

impl View for SledStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = self.handles().db.get(key).map_err(|error| self.failed(error))?;
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
        let range = self.handles().db.range::<&[u8], _>((from, to)).take(limit);
        range
            .map(|pair| {
                let (key, value) = pair.map_err(|error| self.failed(error))?;
                Ok((key.to_vec(), value.to_vec()))
            })
            .collect()
    }
}

impl MetaStore for SledStore {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let too_large = || StoreError::Engine {
            engine: ENGINE,
            source: io::Error::new(io::ErrorKind::InvalidInput, "a key or value of 4 GiB"),
        };
        let copy = copy::encode(batch.iter()).ok_or_else(too_large)?;
        self.number += 1;
        let piece_bytes = copy.len().div_ceil(PIECES_MAX).max(PIECE_BYTES);
        let pieces: Vec<_> = (0..).zip(copy.chunks(piece_bytes)).collect();
        let head = Head { number: self.number, pieces: u32::try_from(pieces.len()).unwrap_or(0) };
        // sled keeps its log in order and a start finds a beginning of it. The first piece comes
        // last: with it all of the copy is there, and without it nothing of the batch.
        for (nth, piece) in pieces.into_iter().rev() {
            self.put_piece(nth, head.with(piece))?;
        }
        batch.iter().try_for_each(|(key, value)| self.set(key, value))
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.handles().db.flush().map_err(|error| self.failed(error))?;
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

fn damaged() -> StoreError {
    StoreError::Inconsistent("the copy of a batch is damaged".to_owned())
}

const THERE: &str = "only the drop takes it";

/// The tree with the first piece of the copy; those of the others have their numbers behind it.
const COPIES: &str = "copies";

/// The key of a piece in its tree.
const PIECE: &[u8] = b"piece";

/// The key of the copy in stores of older programs.
const COPY_OLD: &[u8] = b"batch";

/// Bytes of a piece: far above what one operation changes, and below the 128 KiB from which on sled
/// puts things into files of their own, which it syncs.
const PIECE_BYTES: usize = 64 << 10;

/// Pieces of a copy. Of what changes more than two megabytes, which is rare, they are longer.
const PIECES_MAX: usize = 32;

/// How often sled hands its buffer to the kernel. What a kill of the process loses of it is
/// replayed from the log: half a second of commands, some ten milliseconds of replay.
const FLUSH_EVERY_MS: u64 = 500;

#[cfg(test)]
mod tests {
    use std::{
        io::{BufRead as _, BufReader},
        process::{Command, Stdio},
        sync::mpsc,
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
    fn a_batch_of_an_older_program_is_completed_once() {
        let root = tempfile::tempdir().unwrap();
        let mut batch = Batch::default();
        batch.put(b"key".to_vec(), b"older".to_vec());
        let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
        let copy = copy::encode(batch.iter()).unwrap();
        store.copies(0).unwrap().insert(COPY_OLD, copy).unwrap();
        drop(store);
        store = SledStore::open(root.path(), 1 << 20).unwrap();
        assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"older"[..]));
        batch.put(b"key".to_vec(), b"newer".to_vec());
        store.commit(&batch).unwrap();
        drop(store);
        let store = SledStore::open(root.path(), 1 << 20).unwrap();
        assert_eq!(store.get(b"key").unwrap().as_deref(), Some(&b"newer"[..]));
    }

    #[test]
    fn a_batch_in_many_pieces_is_completed_and_one_that_has_only_begun_is_not() {
        let root = tempfile::tempdir().unwrap();
        let large = |byte| {
            let mut batch = Batch::default();
            for key in 0..4_u8 {
                batch.put(vec![key], vec![byte; PIECE_BYTES]);
            }
            batch
        };
        let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
        store.commit(&large(1)).unwrap();
        // Killed after the copy of the first, among the changes.
        store.set(&[3], Some(b"as before")).unwrap();
        drop(store);
        let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
        assert_eq!(store.get(&[3]).unwrap(), Some(vec![1; PIECE_BYTES]));
        // Killed before the first piece of the next.
        store.commit(&large(2)).unwrap();
        let first = store.copies(0).unwrap().get(PIECE).unwrap().unwrap();
        store.commit(&large(3)).unwrap();
        (0..4).for_each(|key| store.set(&[key], Some(&vec![2; PIECE_BYTES])).unwrap());
        store.copies(0).unwrap().insert(PIECE, first).unwrap();
        drop(store);
        let store = SledStore::open(root.path(), 1 << 20).unwrap();
        assert_eq!(store.get(&[3]).unwrap(), Some(vec![2; PIECE_BYTES]));
    }

    #[test]
    fn a_store_that_failed_is_let_go_of_at_once() {
        let root = tempfile::tempdir().unwrap();
        let mut store = SledStore::open(root.path(), 1 << 20).unwrap();
        fs::remove_dir_all(root.path().join("blobs")).unwrap();
        let mut batch = Batch::default();
        batch.put(b"large".to_vec(), vec![7; 256 << 10]);
        store.commit(&batch).unwrap_err();
        let (tell, told) = mpsc::channel();
        thread::spawn(move || {
            drop(store);
            tell.send(()).unwrap();
        });
        told.recv_timeout(HELD).expect("it waits without an end");
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
            // In one piece, in several, and in longer ones.
            let len = match number % 10 {
                6 => PIECE_BYTES / 10,
                9 => PIECE_BYTES * 2,
                _ => 100,
            };
            let value = [number.to_le_bytes().to_vec(), vec![7; len]].concat();
            (0..KEYS).for_each(|key| batch.put(vec![key], value.clone()));
            store.commit(&batch).unwrap();
            if number % 10 == 3 {
                // As the flusher does all the time.
                store.handles().db.flush().unwrap();
            }
            println!("{COMMITTED}");
        }
    }

    const KEYS: u8 = 24;
    const COMMITTED: &str = "committed";
    const DIRECTORY: &str = "MILLRACE_TEST_SLED_DIRECTORY";
}
