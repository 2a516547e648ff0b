//! A target's bytes as the offline tools see them: the `store` of a directory, a block device or
//! an image file, opened for reading only. Nothing of the daemon runs here.
//!
//! # Locks
//! A daemon holds its target's directory, device or image with an exclusive `flock`. The tools ask
//! for a shared one: several may look at once, none beside a daemon, and a daemon that is started
//! meanwhile is refused until they are done.

use std::{
    fs::File,
    io::{self, Seek as _, SeekFrom},
    os::unix::fs::{FileExt as _, FileTypeExt as _},
    path::{Path, PathBuf},
};

use bytes::Bytes;
use rustix::{
    fs::{Advice, FlockOperation},
    io::Errno,
};

use crate::{
    disk::{attachment_of, place::STORE},
    format::{
        node::NODE_LEN,
        superblock::{Superblock, SuperblockError},
    },
};

mod parallel;
mod tree;
mod words;

pub(crate) use parallel::in_parallel;
pub use tree::{Damaged, Leaf, Reason, Tree};
pub(crate) use words::{Words, area, byte_in_chunk, checksum};

/// Bytes of a page.
pub const PAGE: usize = 4096;
const _: () = assert!(PAGE == NODE_LEN);

/// Whole pages that can be read.
pub trait PageSource: Sync {
    /// How many there are.
    fn pages(&self) -> u64;

    /// Whether there may be fewer of them than the target's capacity, because it has not taken all
    /// of its space yet.
    fn may_grow(&self) -> bool;

    /// Fills `bytes`, whole pages, from `page` on.
    ///
    /// # Errors
    /// What the system says; [`io::ErrorKind::UnexpectedEof`] past the last page.
    fn read(&self, page: u64, bytes: &mut [u8]) -> io::Result<()>;

    /// Reads `count` pages.
    ///
    /// # Errors
    /// As [`Self::read`].
    fn pages_at(&self, page: u64, count: usize) -> io::Result<Bytes> {
        let mut bytes = vec![0; count * PAGE];
        self.read(page, &mut bytes)?;
        Ok(bytes.into())
    }
}

/// Why a path cannot be read as a target.
#[derive(Debug, thiserror::Error)]
pub enum ImageError {
    /// The system refuses.
    #[error("{} cannot be read: {source}", path.display())]
    Open {
        /// The path.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A daemon has it.
    #[error(
        "{} is in use: a daemon serves it and changes it all the time; stop the daemon first",
        path.display()
    )]
    InUse {
        /// The path.
        path: PathBuf,
    },
    /// A directory that holds no target.
    #[error("{} holds no target: there is no file {STORE} in it", path.display())]
    NoStore {
        /// The path.
        path: PathBuf,
    },
    /// Neither directory, device nor file.
    #[error("{} is no directory, block device or image file", path.display())]
    Kind {
        /// The path.
        path: PathBuf,
    },
    /// The superblock refuses: another format, or none.
    #[error("{}: {source}", path.display())]
    Superblock {
        /// The path.
        path: PathBuf,
        /// Why.
        source: SuperblockError,
    },
}

/// What to do when a daemon has the target.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lock {
    /// Refuse: what is read would contradict itself.
    Shared,
    /// Go on; [`Image::is_in_use`] says so.
    IfFree,
}

/// A target that has been opened for reading.
#[derive(Debug)]
pub struct Image {
    file: File,
    pages: u64,
    may_grow: bool,
    in_use: bool,
    /// Holds the lock of a directory.
    _directory: Option<File>,
}

impl Image {
    /// Opens the target at a path.
    ///
    /// # Errors
    /// [`ImageError`].
    pub fn open(path: &Path, lock: Lock) -> Result<Self, ImageError> {
        let failed = |source| ImageError::Open { path: path.to_owned(), source };
        let kind = std::fs::metadata(path).map_err(failed)?.file_type();
        if !kind.is_dir() && !kind.is_file() && !kind.is_block_device() {
            return Err(ImageError::Kind { path: path.to_owned() });
        }
        let (directory, place) = match kind.is_dir() {
            true => (Some(path.to_owned()), path.join(STORE)),
            // Somebody names the file in a target's directory, whose lock counts.
            false if kind.is_file() && path.ends_with(STORE) => {
                let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                (Some(parent.unwrap_or_else(|| Path::new(".")).to_owned()), path.to_owned())
            }
            false => (None, path.to_owned()),
        };
        let directory = directory.map(File::open).transpose().map_err(failed)?;
        if kind.is_dir() && !place.exists() {
            return Err(refuse_directory(path));
        }
        let mut file = File::open(&place).map_err(failed)?;
        let in_use = is_in_use(directory.as_ref().unwrap_or(&file)).map_err(failed)?;
        if in_use && lock == Lock::Shared {
            return Err(ImageError::InUse { path: path.to_owned() });
        }
        // What lies in memory may be sound where the disk is not.
        rustix::fs::fadvise(&file, 0, None, Advice::DontNeed)
            .map_err(|error| failed(error.into()))?;
        let len = file.seek(SeekFrom::End(0)).map_err(failed)?;
        let pages = len / PAGE as u64;
        let may_grow = directory.is_some();
        Ok(Self { file, pages, may_grow, in_use, _directory: directory })
    }

    /// Whether a daemon had it when it was opened.
    #[must_use]
    pub fn is_in_use(&self) -> bool {
        self.in_use
    }

    /// Which attachment of its disk this is; `None` where that cannot be told.
    #[must_use]
    pub fn attachment(&self) -> Option<u64> {
        attachment_of(&self.file)
    }
}

impl PageSource for Image {
    fn pages(&self) -> u64 {
        self.pages
    }

    fn may_grow(&self) -> bool {
        self.may_grow
    }

    fn read(&self, page: u64, bytes: &mut [u8]) -> io::Result<()> {
        let offset = page.checked_mul(PAGE as u64).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.file.read_exact_at(bytes, offset)
    }
}

/// Takes a shared lock, unless somebody has it alone.
fn is_in_use(file: &File) -> io::Result<bool> {
    match rustix::fs::flock(file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}

/// Says what a directory without a store is: a target of format version 1, or none.
fn refuse_directory(path: &Path) -> ImageError {
    let superblock = std::fs::read(path.join("superblock")).unwrap_or_default();
    let path = path.to_owned();
    match Superblock::decode(&superblock, 0) {
        Err(source @ SuperblockError::Version1) => ImageError::Superblock { path, source },
        _ => ImageError::NoStore { path },
    }
}
