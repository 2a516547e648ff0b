//! The objects that are read: made once, under a prefix of their own.

use std::sync::Arc;

use anyhow::Result;
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use millrace_runtime::Random;
use object_store::{ObjectStore, path::Path};

use super::{Arguments, loads::Load, raw};

/// What there is to read. Paths are below the prefix.
pub(crate) struct Objects {
    /// Below this everything lies; without slashes at its ends.
    pub(crate) prefix: String,
    /// The small files: path below [`SMALL`], and bytes.
    pub(crate) small: Vec<(String, u64)>,
    /// Small files that lie in a directory of their own each, so that nobody can expect which is
    /// read next: path below [`ALONE`], and bytes.
    pub(crate) alone: Vec<(String, u64)>,
    /// Bytes of the large file.
    pub(crate) large: u64,
    /// Keys that are imported.
    pub(crate) keys: usize,
    /// Keys of one directory.
    pub(crate) vast: usize,
    /// What they all consist of.
    content: Bytes,
}

impl Objects {
    /// Draws names and sizes: the same in each run with the same arguments.
    pub(crate) fn new(prefix: &str, arguments: &Arguments) -> Self {
        let random = Random::seeded(SEED);
        let size = || SMALL_LEAST + random.within(0..SMALL_SPREAD + 1);
        let small = (0..arguments.files).map(|nth| {
            let name = match arguments.directories {
                1 => format!("file-{nth:06}.bin"),
                many => format!("class-{:04}/file-{nth:06}.bin", nth % many),
            };
            (name, size())
        });
        let small = small.collect();
        let alone = (0..FILES_ALONE).map(|nth| (format!("{nth:04}/file.bin"), size())).collect();
        // Of nothing that a server or a disk could make smaller.
        let mut content = vec![0; raw::PART];
        random.fill(&mut content);
        Self {
            prefix: prefix.to_owned(),
            small,
            alone,
            large: arguments.mib << 20,
            keys: arguments.keys,
            vast: arguments.vast_keys,
            content: content.into(),
        }
    }

    /// Puts what the loads read into the bucket.
    pub(crate) async fn make(&self, store: &Arc<dyn ObjectStore>, loads: &[Load]) -> Result<()> {
        let mut all = Vec::new();
        if loads.iter().any(|load| load.has_small()) {
            all.extend(self.keyed(&format!("{TREE}/{SMALL}"), &self.small));
        }
        if loads.contains(&Load::FirstByte) {
            all.extend(self.keyed(ALONE, &self.alone));
        }
        if loads.contains(&Load::Hydrate) {
            all.extend(self.keyed(TREE, &self.quarters().collect::<Vec<_>>()));
        }
        if loads.iter().any(|load| load.has_large()) {
            all.push((self.key(&format!("{LARGE}/{LARGE_NAME}")), self.large));
        }
        raw::put(Arc::clone(store), all, self.content.clone()).await?;
        if loads.contains(&Load::Import) {
            let keys = (0..self.keys)
                .map(|nth| (self.key(&format!("{KEYS}/part-{:03}/{nth:08}", nth % PREFIXES)), 1));
            raw::put(Arc::clone(store), keys.collect(), self.content.clone()).await?;
        }
        if loads.contains(&Load::Vast) {
            let keys =
                (0..self.vast).map(|nth| (self.key(&format!("{VAST}/{}", name_in_vast(nth))), 1));
            raw::put(Arc::clone(store), keys.collect(), self.content.clone()).await?;
        }
        Ok(())
    }

    /// The tree that is hydrated and exported: paths in it, and bytes.
    pub(crate) fn tree(&self) -> Vec<(String, u64)> {
        let small = self.small.iter().map(|(name, bytes)| (format!("{SMALL}/{name}"), *bytes));
        small.chain(self.quarters()).collect()
    }

    fn quarters(&self) -> impl Iterator<Item = (String, u64)> {
        (0..4).map(|nth| (format!("part-{nth}.bin"), self.large / 4))
    }

    /// The objects of files below a directory.
    pub(crate) fn keyed(&self, below: &str, files: &[(String, u64)]) -> Vec<(Path, u64)> {
        let files = files.iter();
        files.map(|(name, bytes)| (self.key(&format!("{below}/{name}")), *bytes)).collect()
    }

    /// The key of a path below the prefix.
    pub(crate) fn key(&self, path: &str) -> Path {
        Path::from(format!("{}/{path}", self.prefix))
    }

    /// So many bytes, 8 MiB at most.
    pub(crate) fn content(&self) -> &Bytes {
        &self.content
    }
}

/// The files in an order that the seed draws.
pub(crate) fn shuffled(files: &[(String, u64)], seed: u64) -> Vec<(String, u64)> {
    let random = Random::seeded(seed);
    let mut files = files.to_vec();
    for last in (1..files.len()).rev() {
        let other = random.within(0..last as u64 + 1);
        files.swap(last, usize::try_from(other).expect("an index"));
    }
    files
}

/// What files have together.
pub(crate) fn bytes(files: &[(String, u64)]) -> u64 {
    files.iter().map(|(_, bytes)| bytes).sum()
}

/// Removes all objects below `prefix`.
pub(crate) async fn remove(store: Arc<dyn ObjectStore>, prefix: Path) -> Result<()> {
    // All names first: some servers leave names out of a listing that is deleted under way.
    let found: Vec<Path> =
        store.list(Some(&prefix)).map_ok(|found| found.location).try_collect().await?;
    let found = stream::iter(found.into_iter().map(Ok)).boxed();
    store.delete_stream(found).try_for_each(|_| async { Ok(()) }).await?;
    Ok(())
}

/// A name of the vast directory: no two that follow one another are alike, as with hashes.
pub(crate) fn name_in_vast(nth: usize) -> String {
    format!("{:016x}", (nth as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15))
}

/// The tree that is hydrated: small files, and four large ones beside them.
pub(crate) const TREE: &str = "tree";
/// The directory of the small files in it.
pub(crate) const SMALL: &str = "small";
/// The directory of those whose first bytes are waited for.
pub(crate) const ALONE: &str = "alone";
/// The directory of the large file.
pub(crate) const LARGE: &str = "large";
/// Its name there.
pub(crate) const LARGE_NAME: &str = "one.bin";
/// What is imported.
pub(crate) const KEYS: &str = "keys";
/// One directory of very many.
pub(crate) const VAST: &str = "vast";
const FILES_ALONE: usize = 200;
const PREFIXES: usize = 100;
const SMALL_LEAST: u64 = 100_000;
const SMALL_SPREAD: u64 = 40_000;
const SEED: u64 = 29;
