//! Where a target lies: a directory, a block device or an image file, which this process has alone.
//!
//! | kind      | the space is                                    | it grows                    |
//! |-----------|-------------------------------------------------|-----------------------------|
//! | directory | the file `store` in it                          | with what is written        |
//! | device    | a disk, a partition, a loop device: all of it   | never                       |
//! | image     | a file that is there, in the length that it has | never                       |
//!
//! What somebody else has put on a device or into a file is never taken for blank: `signature`
//! looks at the beginning, and names what it knows.

use std::{
    fs::{self, File},
    io::{self, ErrorKind},
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use futures::future::BoxFuture;
use millrace_types::ByteLen;

use super::{Backing, DataFile, DiskEngine, DiskError, DiskQueue, attachment_of, cuts::Cuts, lock};

pub mod signature;

/// The file of a target's space in its directory.
pub const STORE: &str = "store";

/// What a directory of format version 1 has.
const VERSION_1: [&str; 3] = ["superblock", "journal", "data"];

/// What lies at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PlaceKind {
    /// A directory on a file system.
    Directory,
    /// A block device.
    Device,
    /// A regular file.
    Image,
}

/// A place, open and locked. The lock ends with [`Backing::unlock`]; otherwise when this is dropped
/// and the disk on it has ended too, with all that it had under way, whatever becomes of the
/// process.
#[derive(Debug)]
pub struct Place {
    path: PathBuf,
    kind: PlaceKind,
    /// The data file or device, locked through this description of it, which the disk has too.
    /// `None` when it has been let go of.
    file: Mutex<Option<DataFile>>,
    is_direct: bool,
    /// The directory, locked as well: the tools look there.
    directory: Mutex<Option<File>>,
}

/// Why a place cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum PlaceError {
    /// Another process has it.
    #[error(
        "{} is in use: another target daemon serves it, or one that was killed still has requests \
         under way, or it is mounted or part of a volume",
        path.display()
    )]
    InUse {
        /// The place.
        path: PathBuf,
    },
    /// There is nothing.
    #[error("{} is not there; make it, or attach or mount its disk", path.display())]
    Missing {
        /// The place.
        path: PathBuf,
    },
    /// There is something else.
    #[error("{} is neither a directory, a block device nor a regular file", path.display())]
    Kind {
        /// The place.
        path: PathBuf,
    },
    /// A directory has no target, and none shall be made.
    #[error(
        "{} has no target, but a certain one is expected; mount its disk, or remove the id from \
         the settings to begin with a blank target",
        path.display()
    )]
    NoTarget {
        /// The place.
        path: PathBuf,
    },
    /// A directory has the files of format version 1.
    #[error(
        "{}: this target has format version 1 of a development version; copy its data out with \
         that version, or empty the directory to begin with a blank target",
        path.display()
    )]
    Version1 {
        /// The place.
        path: PathBuf,
    },
    /// There is something on the device or in the file that is no target's.
    #[error(
        "{path} holds {what}, and no target; if that may be lost, wipe its first MiB \
         (wipefs --all {path}; dd if=/dev/zero of={path} bs=1M count=1 conv=notrunc)",
        path = path.display()
    )]
    Foreign {
        /// The place.
        path: PathBuf,
        /// What it is.
        what: &'static str,
    },
    /// It is too small for any target.
    #[error("{} has {found}; a target needs {min} at least", path.display())]
    TooSmall {
        /// The place.
        path: PathBuf,
        /// How large it is, or what its file system has for it.
        found: ByteLen,
        /// What the smallest target takes.
        min: ByteLen,
    },
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The place, or its file.
        path: PathBuf,
        /// What it says.
        source: io::Error,
    },
}

impl PlaceError {
    /// What the system says of a path.
    fn io(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            ErrorKind::NotFound => Self::Missing { path },
            ErrorKind::WouldBlock | ErrorKind::ResourceBusy => Self::InUse { path },
            _ => Self::Io { path, source },
        }
    }
}

impl Place {
    /// Opens and locks what is at `path`. Blocks, and waits for 5 seconds at most while another
    /// process has it: one that was killed keeps it until it has left the disk. In a directory
    /// without a target the empty file of one is made if `make`.
    ///
    /// # Errors
    /// [`PlaceError`]; nothing is then changed.
    pub fn open(path: &Path, make: bool) -> Result<Self, PlaceError> {
        let failed = |source| PlaceError::io(path, source);
        let about = fs::metadata(path).map_err(failed)?.file_type();
        if about.is_dir() {
            Self::directory(path, make)
        } else if about.is_block_device() {
            Self::device(path)
        } else if about.is_file() {
            Self::image(path)
        } else {
            Err(PlaceError::Kind { path: path.to_owned() })
        }
    }

    fn directory(path: &Path, make: bool) -> Result<Self, PlaceError> {
        let failed = |source| PlaceError::io(path, source);
        let directory = File::open(path).map_err(failed)?;
        lock::lock(&directory, path).map_err(failed)?;
        let store = path.join(STORE);
        let is_new = !store.try_exists().map_err(failed)?;
        if is_new && VERSION_1.iter().any(|name| path.join(name).exists()) {
            return Err(PlaceError::Version1 { path: path.to_owned() });
        }
        if is_new && !make {
            return Err(PlaceError::NoTarget { path: path.to_owned() });
        }
        let file = DataFile::open(&store).map_err(|source| PlaceError::io(&store, source))?;
        lock::lock(file.file(), path).map_err(failed)?;
        if is_new {
            directory.sync_all().map_err(failed)?;
        }
        Ok(Self::new(path, PlaceKind::Directory, file, Some(directory)))
    }

    fn device(path: &Path) -> Result<Self, PlaceError> {
        let failed = |source| PlaceError::io(path, source);
        let opened = lock::patiently(path, || match DataFile::open_device(path) {
            Err(error) if error.kind() == ErrorKind::ResourceBusy => Ok(None),
            other => other.map(Some),
        });
        Self::locked(path, PlaceKind::Device, opened.map_err(failed)?)
    }

    fn image(path: &Path) -> Result<Self, PlaceError> {
        let file = DataFile::open_existing(path).map_err(|source| PlaceError::io(path, source))?;
        Self::locked(path, PlaceKind::Image, file)
    }

    fn locked(path: &Path, kind: PlaceKind, file: DataFile) -> Result<Self, PlaceError> {
        let failed = |source| PlaceError::io(path, source);
        lock::lock(file.file(), path).map_err(failed)?;
        // Direct I/O reads whole pages into aligned memory; this reads as it likes.
        let beginning = File::open(path).map_err(failed)?;
        if let Some(what) = signature::foreign(&beginning).map_err(failed)? {
            return Err(PlaceError::Foreign { path: path.to_owned(), what });
        }
        Ok(Self::new(path, kind, file, None))
    }

    fn new(path: &Path, kind: PlaceKind, file: DataFile, directory: Option<File>) -> Self {
        Self {
            path: path.to_owned(),
            kind,
            is_direct: file.is_direct(),
            file: Mutex::new(Some(file)),
            directory: Mutex::new(directory),
        }
    }

    /// What lies there.
    #[must_use]
    pub fn kind(&self) -> PlaceKind {
        self.kind
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether transfers bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.is_direct
    }

    /// Which attachment of its disk this is; `None` where that cannot be told.
    #[must_use]
    pub fn attachment(&self) -> Option<u64> {
        attachment_of(self.file().ok()?.file())
    }

    /// Starts a disk engine on it.
    ///
    /// # Errors
    /// As [`super::start`].
    pub fn start(&self, engine: DiskEngine) -> io::Result<DiskQueue> {
        super::start(engine, &self.file()?)
    }

    /// The same place, under a kernel that does less than it is asked for.
    #[must_use]
    pub fn cut_short(self, cuts: &Cuts) -> Self {
        let file = self.file.into_inner().unwrap_or_else(PoisonError::into_inner);
        let file = file.map(|file| file.cut_short(cuts.clone()));
        Self { file: Mutex::new(file), ..self }
    }

    fn file(&self) -> io::Result<DataFile> {
        let file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.clone().ok_or_else(|| io::Error::other("the place has been let go of"))
    }
}

impl Backing for Place {
    fn len_bytes(&self) -> io::Result<u64> {
        self.file()?.len_bytes()
    }

    fn room_bytes(&self) -> io::Result<u64> {
        if self.kind != PlaceKind::Directory {
            return Ok(0);
        }
        let figures = rustix::fs::statvfs(&self.path)?;
        Ok(figures.f_bavail.saturating_mul(figures.f_frsize))
    }

    fn grow(
        self: Arc<Self>,
        old_len: u64,
        new_len: u64,
    ) -> BoxFuture<'static, Result<(), DiskError>> {
        Box::pin(async move {
            if self.kind != PlaceKind::Directory {
                return Err(DiskError::NoSpace);
            }
            let Ok(file) = self.file() else { return Err(DiskError::Stopped) };
            let growing = tokio::task::spawn_blocking(move || file.grow(old_len, new_len));
            growing.await.unwrap_or(Err(DiskError::Stopped))
        })
    }

    fn unlock(&self) {
        // Reads go on, and with them the description through which it is locked.
        if let Ok(file) = self.file()
            && let Err(error) = lock::unlock(file.file())
        {
            let path = self.path.display();
            tracing::warn!(%path, %error, "the place stays locked until its disk has ended");
        }
        drop(self.directory.lock().unwrap_or_else(PoisonError::into_inner).take());
    }

    fn release(&self) {
        self.unlock();
        drop(self.file.lock().unwrap_or_else(PoisonError::into_inner).take());
    }
}

#[cfg(test)]
mod tests;
