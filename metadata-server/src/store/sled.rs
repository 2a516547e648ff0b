//! The store on sled, the second engine.
//!
//! sled's own `flush` starts the write-out but does not wait for the disk, so [`checkpoint`] syncs
//! its files itself. Between checkpoints sled's state after a loss of power is anybody's guess:
//! `recovery` trusts it only after a clean shutdown or within the same boot of the machine.
//!
//! A batch of sled's own writes its buffers out before and after it, each with a wait for the disk,
//! and lets nobody read meanwhile, nor while a store that has failed is let go of. Batches are
//! therefore made whole by a copy that goes before them (`copy`), key by key.
//!
//! The bytes of small files ([`keys::CONTENTS`]) are in a tree of their own: whoever reads in sled
//! also does what is left to do of the nodes on the way, such as splitting them, and with values of
//! kilobytes that is much. They are written before the batch and are in no copy of it: nobody knows
//! of them before the rest is there.
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
    keys,
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
    /// The bytes of small files.
    contents: ::sled::Tree,
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
        let failed = |source| StoreError::Engine { engine: ENGINE, source };
        remove_unfinished(dir).map_err(failed)?;
        let db = open_when_free(&config).map_err(broken)?;
        let contents = db.open_tree(CONTENTS).map_err(broken)?;
        let handles = Some(Handles { contents, copies: Vec::new(), db });
        let has_failed = Arc::default();
        let mut store = Self { handles, number: 0, dir: dir.to_owned(), has_failed };
        store.complete_old()?;
        store.complete()?;
        store.move_contents()?;
        // A checkpoint syncs what is in the directory.
        let parent = File::open(dir.parent().unwrap_or(dir));
        parent.and_then(|parent| parent.sync_all()).map_err(failed)?;
        Ok(store)
    }

    /// A program that knows of no other tree may have filled the store from a snapshot.
    fn move_contents(&self) -> Result<(), StoreError> {
        let Handles { contents, db, .. } = self.handles();
        let misplaced = db.range::<&[u8], _>(&[keys::CONTENTS][..]..&[keys::CONTENTS + 1][..]);
        for pair in misplaced {
            let (key, value) = pair.map_err(broken)?;
            contents.insert(&key, value).map_err(broken)?;
            db.remove(&key).map_err(broken)?;
        }
        Ok(())
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
        let tree = self.tree(key);
        let before = match value {
            Some(value) => tree.insert(key, value),
            None => tree.remove(key),
        };
        before.map(drop).map_err(|error| self.failed(error))
    }

    /// The tree that has a key.
    fn tree(&self, key: &[u8]) -> &::sled::Tree {
        let handles = self.handles();
        if is_content(key) { &handles.contents } else { &handles.db }
    }

    /// Adds the first pairs of a tree within bounds, until there are `limit`.
    fn collect(
        &self,
        tree: &::sled::Tree,
        bounds: (Bound<&[u8]>, Bound<&[u8]>),
        limit: usize,
        pairs: &mut Vec<Pair>,
    ) -> Result<(), StoreError> {
        if is_empty_range(bounds.0, bounds.1) {
            return Ok(());
        }
        for pair in tree.range::<&[u8], _>(bounds).take(limit.saturating_sub(pairs.len())) {
            let (key, value) = pair.map_err(|error| self.failed(error))?;
            pairs.push((key.to_vec(), value.to_vec()));
        }
        Ok(())
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
        let value = self.tree(key).get(key).map_err(|error| self.failed(error))?;
        Ok(value.map(|value| value.to_vec()))
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let Handles { contents, db, .. } = self.handles();
        let mut pairs = Vec::new();
        // The keys of small files' bytes lie together, with none of another table between them.
        let (first, end) = (&[keys::CONTENTS][..], &[keys::CONTENTS + 1][..]);
        // Each tree only within its own: also to find nothing takes a way through it.
        self.collect(db, (from, at_most(to, first)), limit, &mut pairs)?;
        let within = (at_least(from, first), at_most(to, end));
        self.collect(contents, within, limit, &mut pairs)?;
        self.collect(db, (at_least(from, end), to), limit, &mut pairs)?;
        Ok(pairs)
    }
}

impl MetaStore for SledStore {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let too_large = || StoreError::Engine {
            engine: ENGINE,
            source: io::Error::new(io::ErrorKind::InvalidInput, "a key or value of 4 GiB"),
        };
        let is_early = |&(key, value): &(&[u8], Option<&[u8]>)| is_content(key) && value.is_some();
        for (key, value) in batch.iter().filter(is_early) {
            self.set(key, value)?;
        }
        let rest = || batch.iter().filter(|change| !is_early(change));
        let copy = copy::encode(rest()).ok_or_else(too_large)?;
        self.number += 1;
        let piece_bytes = copy.len().div_ceil(PIECES_MAX).max(PIECE_BYTES);
        let pieces: Vec<_> = (0..).zip(copy.chunks(piece_bytes)).collect();
        let head = Head { number: self.number, pieces: u32::try_from(pieces.len()).unwrap_or(0) };
        // sled keeps its log in order and a start finds a beginning of it. The first piece comes
        // last: with it all of the copy is there, and without it nothing of the batch.
        for (nth, piece) in pieces.into_iter().rev() {
            self.put_piece(nth, head.with(piece))?;
        }
        rest().try_for_each(|(key, value)| self.set(key, value))
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.handles().db.flush().map_err(|error| self.failed(error))?;
        sync_tree(&self.dir).map_err(|source| StoreError::Engine { engine: ENGINE, source })
    }
}

/// Whether the value of a key is the bytes of a small file.
fn is_content(key: &[u8]) -> bool {
    key.first() == Some(&keys::CONTENTS)
}

/// The lower of two upper bounds, of which one leaves out `end`.
fn at_most<'a>(to: Bound<&'a [u8]>, end: &'a [u8]) -> Bound<&'a [u8]> {
    match to {
        Bound::Included(key) if key < end => to,
        Bound::Excluded(key) if key <= end => to,
        _ => Bound::Excluded(end),
    }
}

/// The higher of two lower bounds, of which one is `begin`.
fn at_least<'a>(from: Bound<&'a [u8]>, begin: &'a [u8]) -> Bound<&'a [u8]> {
    match from {
        Bound::Included(key) | Bound::Excluded(key) if key >= begin => from,
        _ => Bound::Included(begin),
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

/// Removes what an opening has left that did not come to its end: sled would take it for its own,
/// and the store for damaged.
fn remove_unfinished(dir: &Path) -> io::Result<()> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        // It gets its name when it is whole.
        if path.extension().is_some_and(|extension| extension == GENERATING) {
            fs::remove_file(path)?;
        }
    }
    // The first file is written before there is another one.
    if !dir.join("db").exists() && dir.join("conf").exists() {
        fs::remove_file(dir.join("conf"))?;
    }
    Ok(())
}

/// The end of the name of an image of sled's index that is being written.
const GENERATING: &str = "generating";

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

/// The tree with the bytes of small files.
const CONTENTS: &str = "contents";

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
mod tests;
