//! Paths beneath the root, opened without ever leaving it.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, AtFlags, Mode, OFlags, ResolveFlags, accessat, mkdirat, open, openat2},
    io::Errno,
};

use crate::Error;

/// The root of a bucket that is a directory.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
}

/// New directories and files get these, less the umask; attributes travel as metadata.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

impl Tree {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Opens a file for reading. Anything but a regular file is no object.
    pub(super) fn open_object(&self, key: &str) -> Result<File, Error> {
        let root = self.open_root()?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = beneath(&root, key, flags).map_err(|error| self.object_error(error, key))?;
        let file = File::from(file);
        let metadata = file.metadata().map_err(|error| self.io_error(&error, key))?;
        if metadata.is_file() { Ok(file) } else { Err(Error::NotFound { key: key.to_owned() }) }
    }

    /// Opens the directory of a prefix; `None` when it does not exist.
    pub(super) fn open_directory(&self, prefix: &str) -> Result<Option<OwnedFd>, Error> {
        let root = self.open_root()?;
        let path = prefix.trim_end_matches('/');
        if path.is_empty() {
            return Ok(Some(root));
        }
        match beneath(&root, path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(self.io_error(&error.into(), prefix)),
        }
    }

    /// Opens the directory that a key lies in, made with its parents if missing, and the key's
    /// name.
    pub(super) fn open_parent<'k>(&self, key: &'k str) -> Result<(OwnedFd, &'k str), Error> {
        let (path, name) = key.rsplit_once('/').unwrap_or(("", key));
        let mut directory = self.open_root()?;
        for part in path.split('/').filter(|part| !part.is_empty()) {
            match mkdirat(&directory, part, DIRECTORY_MODE) {
                Ok(()) | Err(Errno::EXIST) => {}
                Err(error) => return Err(self.io_error(&error.into(), key)),
            }
            directory = beneath(&directory, part, OFlags::RDONLY | OFlags::DIRECTORY)
                .map_err(|error| self.io_error(&error.into(), key))?;
        }
        Ok((directory, name))
    }

    /// Whether the root is a directory that can be listed and, with `write`, changed.
    pub(super) fn check(&self, write: bool) -> Result<(), Error> {
        let root = self.open_root()?;
        let access = Access::READ_OK | Access::EXEC_OK;
        let access = if write { access | Access::WRITE_OK } else { access };
        accessat(&root, ".", access, AtFlags::empty()).map_err(|_| Error::Denied {
            message: format!(
                "this daemon may not {} the directory {}",
                if write { "write to" } else { "list" },
                self.root.display()
            ),
        })
    }

    /// A failure of the file system, with the path it was about.
    pub(super) fn io_error(&self, error: &io::Error, key: &str) -> Error {
        let message = format!("{}: {error}", self.path(key).display());
        match error.kind() {
            io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => {
                Error::Denied { message }
            }
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Error::NoSpace { message },
            io::ErrorKind::NotADirectory | io::ErrorKind::InvalidFilename => {
                Error::Invalid { message }
            }
            _ => Error::Unavailable { message },
        }
    }

    fn object_error(&self, error: Errno, key: &str) -> Error {
        match error {
            // A symbolic link is no object, and a file in the middle of a path hides what is below.
            Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::NXIO => {
                Error::NotFound { key: key.to_owned() }
            }
            error => self.io_error(&error.into(), key),
        }
    }

    fn open_root(&self) -> Result<OwnedFd, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        open(&self.root, flags, Mode::empty()).map_err(|error| {
            let root = self.root.display();
            match error {
                Errno::NOENT => Error::NoBucket {
                    message: format!(
                        "the directory {root} does not exist here: make it, or mount it"
                    ),
                },
                Errno::NOTDIR => Error::NoBucket { message: format!("{root} is no directory") },
                error => self.io_error(&error.into(), ""),
            }
        })
    }

    fn path(&self, key: &str) -> PathBuf {
        self.root.join(Path::new(key))
    }
}

/// Opens or creates a file in an open directory.
pub(super) fn create_file(directory: &OwnedFd, name: &str) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, FILE_MODE).map(File::from)
}

/// Opens an existing file in an open directory for writing.
pub(super) fn open_file(directory: &OwnedFd, name: &str) -> Result<File, Errno> {
    let flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(directory, name, flags, Mode::empty()).map(File::from)
}

fn beneath(directory: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(directory.as_fd(), path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}
