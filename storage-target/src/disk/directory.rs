//! The directory that a target lies in: its data file, and the small files beside it.
//!
//! Owns names and plain files; what is in them is the engine's business. There are two: [`local`]
//! on a file system, and [`super::simulated::SimulatedDirectory`], whose files and names are lost
//! with the power as far as nobody has synced them.
//!
//! # Durability
//! - Bytes of a file survive a loss of power after a sync of that file, and are old, new, mixed or
//!   missing before it.
//! - Names (created, renamed, removed) survive after [`Directory::sync_names`]. Before it a cut
//!   leaves those of some moment since the last one, as file systems with a journal do.
//! - Everything survives a kill of the process at once.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{DiskEngine, DiskError, DiskQueue};

pub mod local;

pub use local::LocalDirectory;

/// A target's directory. Calls block.
pub trait Directory: Send + Sync + fmt::Debug {
    /// Where it is; all paths below begin with it.
    fn path(&self) -> &Path;

    /// Whether there is a file or directory of this name.
    fn exists(&self, path: &Path) -> bool;

    /// All bytes of a file.
    ///
    /// # Errors
    /// What the system says.
    fn read(&self, path: &Path) -> io::Result<Vec<u8>>;

    /// The files in a directory, in no order.
    ///
    /// # Errors
    /// What the system says.
    fn list(&self, path: &Path) -> io::Result<Vec<PathBuf>>;

    /// Makes a directory.
    ///
    /// # Errors
    /// What the system says.
    fn make_directory(&self, path: &Path) -> io::Result<()>;

    /// Makes an empty file, or empties the one that is there.
    ///
    /// # Errors
    /// What the system says.
    fn create(&self, path: &Path) -> io::Result<Arc<dyn PlainFile>>;

    /// Opens a file that is there, for changing it.
    ///
    /// # Errors
    /// What the system says.
    fn open(&self, path: &Path) -> io::Result<Arc<dyn PlainFile>>;

    /// Gives a file another name; one of that name is replaced.
    ///
    /// # Errors
    /// What the system says.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file.
    ///
    /// # Errors
    /// What the system says.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Makes the names in a directory durable.
    ///
    /// # Errors
    /// What the system says; nobody knows then which are.
    fn sync_names(&self, path: &Path) -> io::Result<()>;

    /// Opens the data file, or makes it; its name is then durable.
    ///
    /// # Errors
    /// What the system says.
    fn data(&self, path: &Path) -> io::Result<Arc<dyn Data>>;

    /// Bytes that unprivileged processes may still store.
    ///
    /// # Errors
    /// What the system says.
    fn free_bytes(&self) -> io::Result<u64>;

    /// Lets other processes use the directory.
    fn unlock(&self);
}

/// A small file. Survives its name.
pub trait PlainFile: Send + Sync + fmt::Debug {
    /// Gives the file room for `len` bytes without changing its length, where the file system can.
    ///
    /// # Errors
    /// What the system says.
    fn allocate(&self, len: u64) -> io::Result<()>;

    /// Gives back the room behind the file's end.
    ///
    /// # Errors
    /// What the system says.
    fn give_back_room(&self) -> io::Result<()>;

    /// Writes all of `bytes`, which then survive a kill of the process.
    ///
    /// # Errors
    /// What the system says; any part may have been written.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Makes bytes and length durable.
    ///
    /// # Errors
    /// What the system says; a later success proves nothing about what was written before.
    fn sync(&self) -> io::Result<()>;
}

/// The data file.
pub trait Data: Send + Sync + fmt::Debug {
    /// Bytes of the file.
    ///
    /// # Errors
    /// What the system says.
    fn len_bytes(&self) -> io::Result<u64>;

    /// Whether transfers bypass the page cache.
    fn is_direct(&self) -> bool;

    /// Reads as everybody sees it, without a disk engine.
    ///
    /// # Errors
    /// What the system says.
    fn read_at(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Makes everything written so far durable, likewise.
    ///
    /// # Errors
    /// What the system says.
    fn sync(&self) -> io::Result<()>;

    /// Allocates the bytes from `old_len` to `new_len`.
    ///
    /// # Errors
    /// [`DiskError::NoSpace`] when there is no room; nothing is then changed.
    fn grow(&self, old_len: u64, new_len: u64) -> Result<(), DiskError>;

    /// Starts a disk engine.
    ///
    /// # Errors
    /// As [`super::start`].
    fn start(&self, engine: DiskEngine) -> io::Result<DiskQueue>;
}
