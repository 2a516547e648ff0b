//! The store on sled, the default engine.
//!
//! sled's own `flush` starts the write-out but does not wait for the disk, so [`checkpoint`] syncs
//! its files itself. Between checkpoints sled's state after a loss of power is anybody's guess:
//! `recovery` trusts it only after a clean shutdown or within the same boot of the machine.
//!
//! [`checkpoint`]: SledStore::checkpoint

use std::{
    fs::{self, File},
    io,
    ops::Bound,
    path::{Path, PathBuf},
};

use super::{Batch, MetaStore, Pair, StoreError, Stores, View, memory::is_empty_range};

/// One sled tree.
#[derive(Debug)]
pub struct SledStore {
    db: ::sled::Db,
    dir: PathBuf,
}

impl SledStore {
    /// Opens or makes the store in `dir`, with a page cache of `cache_bytes`.
    ///
    /// # Errors
    /// When sled cannot open it; the caller moves it away and rebuilds from the log.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let db = ::sled::Config::new()
            .path(dir)
            .cache_capacity(cache_bytes)
            .mode(::sled::Mode::HighThroughput)
            .flush_every_ms(Some(FLUSH_EVERY_MS))
            .open()
            .map_err(broken)?;
        let dir = dir.to_owned();
        Ok(Self { db, dir })
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
        match fs::remove_dir_all(&self.dir) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(StoreError::Engine { engine: ENGINE, source: error })
            }
            _ => self.open(),
        }
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
        let mut changes = ::sled::Batch::default();
        for (key, value) in batch.iter() {
            match value {
                Some(value) => changes.insert(key, value),
                None => changes.remove(key),
            }
        }
        self.db.apply_batch(changes).map_err(broken)
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

fn broken(error: ::sled::Error) -> StoreError {
    let source = match error {
        ::sled::Error::Io(error) => error,
        other => io::Error::other(other.to_string()),
    };
    StoreError::Engine { engine: ENGINE, source }
}

const ENGINE: &str = "sled";

/// How often sled hands its buffer to the kernel. What a kill of the process loses of it is
/// replayed from the log: half a second of commands, some ten milliseconds of replay.
const FLUSH_EVERY_MS: u64 = 500;

#[cfg(test)]
mod tests {
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
}
