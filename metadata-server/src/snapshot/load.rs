//! Reads a snapshot into an empty store.

use std::{
    io::{self, BufReader, Read},
    path::Path,
    sync::Arc,
};

use millrace_types::{ClusterId, LogIndex};

use super::{
    format::{Decoder, Flaw},
    kept,
};
use crate::{
    files::{Access, Files, OpenFile},
    store::{Batch, MetaStore, StoreError, keys},
};

/// Why a store could not be filled. It holds a part then, and is of no use.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The snapshot is not sound.
    #[error(transparent)]
    Snapshot(#[from] Flaw),
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Fills an empty `store` from the snapshot of `index` in `dir`. Every byte is checked. The store
/// shows no index before it has everything.
///
/// # Errors
/// [`LoadError`].
pub fn load(
    files: &dyn Files,
    dir: &Path,
    index: LogIndex,
    cluster: ClusterId,
    store: &mut dyn MetaStore,
) -> Result<(), LoadError> {
    let source = Source::open(files, &kept::path(dir, index)).map_err(Flaw::from)?;
    let mut decoder = Decoder::begin(BufReader::with_capacity(READ_LEN, source))?;
    if decoder.cluster() != cluster {
        return Err(Flaw::OtherCluster(decoder.cluster()).into());
    }
    if decoder.index() != index {
        return Err(Flaw::OtherIndex(decoder.index()).into());
    }
    let mut last = Batch::default();
    while let Some(pairs) = decoder.next_pairs()? {
        let mut batch = Batch::default();
        for (key, value) in pairs {
            let of = if key == keys::applied() { &mut last } else { &mut batch };
            of.put(key, value);
        }
        store.commit(&batch)?;
    }
    Ok(store.commit(&last)?)
}

/// Bytes of one read.
const READ_LEN: usize = 1 << 20;

/// A file, read from its beginning on.
#[derive(Debug)]
pub struct Source {
    file: Arc<dyn OpenFile>,
    offset: u64,
}

impl Source {
    /// Opens the file.
    ///
    /// # Errors
    /// When it is missing, or the disk fails.
    pub fn open(files: &dyn Files, path: &Path) -> io::Result<Self> {
        Ok(Self { file: files.open(path, Access::Read)?, offset: 0 })
    }
}

impl Read for Source {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.file.read_at(buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}
