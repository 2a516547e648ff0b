//! The store on a log-structured merge tree, the default engine: the tree of fjall (`lsm-tree`).
//!
//! ```text
//!   commit ─▶ table in memory ─▶ sealed tables ─(flush)─▶ level 0 ─(merge)─▶ level 1 ─▶ …
//! ```
//!
//! fjall has a journal beside its tree. Here the command log is the journal: what is in memory when
//! the process ends is replayed from it, some ten thousand commands (`Limits`). So the tree is used
//! without fjall, and what that does for it is done here. Nothing needs to stand between its owner
//! and it, as before sled: a commit goes to memory.
//! - **A batch** goes to the table in memory. That is sealed between two batches, and what is
//!   written out, together, is whole batches: the files show a prefix of them at any time.
//! - **[`checkpoint`]** seals the table and waits until it is written out and synced.
//! - **Threads** (`background`): one writes sealed tables out, the other merges those on the disk.
//!   Who commits waits where they are too far behind.
//! - **Memory** is the cache, and what is not written out yet: at most three eighths of the cache
//!   more, as much again that a merge may hold, and what the tables need around it.
//! - **Values of a kilobyte and more**, the bytes of small files, lie in files apart from the tree,
//!   so that merges do not write them again.
//! - **Failures**: the tree panics over some damage, which is caught here and is an error as others
//!   are. Damage that takes the process down with it while the store is opened is noticed at the
//!   next starts: see `Attempts`.
//!
//! [`checkpoint`]: LsmStore::checkpoint

use std::{
    fmt,
    fs::File,
    io,
    ops::Bound,
    path::{Path, PathBuf},
    sync::Arc,
};

use lsm_tree::{
    AbstractTree as _, Cache, CompressionType, Config, Guard as _, KvSeparationOptions, SeqNo,
    SequenceNumberCounter,
};

use super::{
    Batch, MetaStore, Pair, StoreError, Stores, View, memory::is_empty_range, near::Near, remove,
};

mod attempts;
mod background;
mod guard;

use attempts::Attempts;
use background::{Background, Limits, Tree};
use guard::guarded;

/// One tree. Its clones are the same store.
#[derive(Clone)]
pub struct LsmStore {
    tree: Arc<Tree>,
    /// Ends with the last clone.
    background: Arc<Background>,
}

impl LsmStore {
    /// Opens or makes the store in `dir`, with a block cache of `cache_bytes`.
    ///
    /// # Errors
    /// When it cannot be opened; the caller makes it anew from the log.
    pub fn open(dir: &Path, cache_bytes: u64) -> Result<Self, StoreError> {
        let failed = |source| StoreError::Engine { engine: ENGINE, source };
        let attempts = Attempts::begin(dir).map_err(failed)?;
        let (next, visible) = (SequenceNumberCounter::default(), SequenceNumberCounter::default());
        // Not compressed: most are what no compression makes smaller.
        let apart = KvSeparationOptions::default()
            .compression(CompressionType::None)
            .file_target_size(CONTENTS_BYTES);
        let open = || {
            let tree = Config::new(dir.join(FOLDER), next.clone(), visible.clone())
                .use_cache(Arc::new(Cache::with_capacity_bytes(cache_bytes)))
                .with_kv_separation(Some(apart))
                .open()?;
            let last = tree.get_highest_seqno();
            for counter in [&next, &visible] {
                counter.fetch_max(last.map_or(0, |last| last + 1));
            }
            Ok(tree)
        };
        let tree = guarded(open)?;
        attempts.end().map_err(failed)?;
        // The tree syncs what is in its folder.
        sync_dir(dir).and_then(|()| sync_dir(dir.parent().unwrap_or(dir))).map_err(failed)?;
        let tree = Arc::new(Tree::new(tree, next, visible, Limits::of(cache_bytes)));
        let background = Arc::new(Background::start(&tree).map_err(failed)?);
        Ok(Self { tree, background })
    }
}

/// The store in one directory.
#[derive(Debug)]
pub struct LsmStores {
    /// Where.
    pub dir: PathBuf,
    /// Bytes of the block cache.
    pub cache_bytes: u64,
}

impl Stores for LsmStores {
    fn open(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        let near_bytes = self.cache_bytes / NEAR_PART;
        let store = LsmStore::open(&self.dir, self.cache_bytes - near_bytes)?;
        Ok(Box::new(Near::new(store, near_bytes)?))
    }

    fn create(&self) -> Result<Box<dyn MetaStore>, StoreError> {
        remove(&self.dir, ENGINE)?;
        self.open()
    }

    fn survives(&self) -> bool {
        true
    }
}

impl View for LsmStore {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        let value = guarded(|| self.tree.files.get(key, NEWEST))?;
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
        guarded(|| {
            let range = self.tree.files.range::<&[u8], _>((from, to), NEWEST, None).take(limit);
            range
                .map(|found| {
                    let (key, value) = found.into_inner()?;
                    Ok((key.to_vec(), value.to_vec()))
                })
                .collect()
        })
    }
}

impl MetaStore for LsmStore {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        self.tree.wait_for_room()?;
        guarded(|| {
            self.tree.put(batch);
            Ok(())
        })
    }

    fn poll_failure(&mut self) -> Result<(), StoreError> {
        self.tree.outcome()
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.tree.write_out()?;
        // The one of its folders that it syncs only when it is opened.
        let contents = self.tree.files.tree_config().path.join(CONTENTS);
        sync_dir(&contents).map_err(|source| StoreError::Engine { engine: ENGINE, source })
    }
}

impl fmt::Debug for LsmStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("LsmStore").field("background", &self.background).finish_non_exhaustive()
    }
}

fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// What may be in memory and not on the disk, with a cache of so many bytes.
#[must_use]
pub fn unwritten_bytes(cache_bytes: u64) -> u64 {
    Limits::of(cache_bytes).unwritten()
}

/// Which part of the cache is for records in front of the tree.
const NEAR_PART: u64 = 16;

const ENGINE: &str = "lsm";

/// Where the tree is, in the store's directory.
const FOLDER: &str = "tree";

/// The folder in it with the values that lie apart.
const CONTENTS: &str = "blobs";

/// Bytes of a file with such values: what is given up there is freed by writing the rest anew.
const CONTENTS_BYTES: u64 = 16 << 20;

/// Reads see the last batch.
const NEWEST: SeqNo = SeqNo::MAX;

#[cfg(test)]
mod tests;
