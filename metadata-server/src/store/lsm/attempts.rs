//! How often a store was opened without coming to an end.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The count, in a file in the store's directory.
///
/// A panic while another one unwinds ends the process, and the tree may have such a way. The store
/// is then taken for damaged after the second time. One leftover may also come of a kill at that
/// moment.
pub(super) struct Attempts {
    path: PathBuf,
}

impl Attempts {
    pub(super) fn begin(dir: &Path) -> io::Result<Self> {
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
        let is_full = |error: &io::Error| {
            matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
        };
        match fs::write(&path, vec![b'.'; before + 1]) {
            // It is opened all the same: that may need no room.
            Err(error) if !is_full(&error) => Err(error),
            _ => Ok(Self { path }),
        }
    }

    pub(super) fn end(self) -> io::Result<()> {
        match fs::remove_file(self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// Openings that did not come to their end before the store counts as damaged.
pub(super) const ATTEMPTS_MAX: usize = 2;
