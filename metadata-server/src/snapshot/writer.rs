//! Writes one snapshot: to a file without a name that counts, which gets its name at the end.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_types::{ClusterId, Crc32c, LogIndex};

use super::{
    format::Encoder,
    kept::{self, NEW_SUFFIX},
};
use crate::{
    files::{Access, Files, OpenFile},
    store::Pair,
};

/// A snapshot that is being written. Dropped before it is kept it takes its file away; what a kill
/// leaves, the next start removes.
#[derive(Debug)]
pub struct SnapshotWriter {
    files: Arc<dyn Files>,
    dir: PathBuf,
    index: LogIndex,
    path: PathBuf,
    file: Arc<dyn OpenFile>,
    encoder: Encoder,
    len: u64,
    checksum: Crc32c,
    kept: bool,
}

impl SnapshotWriter {
    /// Begins a snapshot of `index` in `dir`, which is made if it is missing. One that is under way
    /// there under the same `name` must have ended.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn begin(
        files: Arc<dyn Files>,
        dir: &Path,
        name: &str,
        index: LogIndex,
        cluster: ClusterId,
    ) -> io::Result<Self> {
        files.make_dir(dir)?;
        let path = dir.join(format!("{name}{NEW_SUFFIX}"));
        let file = files.open(&path, Access::Create)?;
        let (encoder, head) = Encoder::begin(index, cluster);
        let mut writer = Self {
            files,
            dir: dir.to_owned(),
            index,
            path,
            file,
            encoder,
            len: 0,
            checksum: Crc32c::EMPTY,
            kept: false,
        };
        writer.append(&head)?;
        Ok(writer)
    }

    /// Writes the next pairs, in key order.
    ///
    /// # Errors
    /// When the disk is full or fails; [`io::ErrorKind::InvalidData`] for pairs that are too long.
    pub fn write(&mut self, pairs: &[Pair]) -> io::Result<()> {
        let block = self.encoder.block(pairs);
        let block = block.map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error))?;
        self.append(&block)
    }

    /// Writes the tail and brings the bytes to stable storage.
    ///
    /// # Errors
    /// When the disk is full or fails.
    pub fn finish(&mut self) -> io::Result<()> {
        let tail = self.encoder.end();
        self.append(&tail)?;
        self.file.sync_data()
    }

    /// Gives a finished snapshot its name, durably, and removes all but the two newest. The log
    /// must be on stable storage up to its index.
    ///
    /// # Errors
    /// When the disk fails: it may have its name then, or not.
    pub fn keep(mut self) -> io::Result<()> {
        self.kept = true;
        let path = kept::path(&self.dir, self.index);
        self.files.rename(&self.path, &path)?;
        self.files.sync_dir(&self.dir)?;
        kept::remove_old(&*self.files, &self.dir)
    }

    /// Of which index it is.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// Bytes so far.
    #[must_use]
    pub fn size(&self) -> u64 {
        self.len
    }

    /// The checksum of all bytes so far.
    #[must_use]
    pub fn checksum(&self) -> Crc32c {
        self.checksum
    }

    /// The file, which can be read also when its name is gone.
    #[must_use]
    pub fn file(&self) -> Arc<dyn OpenFile> {
        Arc::clone(&self.file)
    }

    fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.len)?;
        self.len += bytes.len() as u64;
        self.checksum = self.checksum.append(bytes);
        Ok(())
    }
}

impl Drop for SnapshotWriter {
    fn drop(&mut self) {
        if !self.kept
            && let Err(error) = self.files.remove(&self.path)
        {
            tracing::warn!(path = %self.path.display(), %error, "cannot remove an unfinished file");
        }
    }
}
