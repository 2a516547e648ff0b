//! Paths beneath the root, opened without ever leaving it.

use std::{
    fs::File,
    io,
    os::fd::{AsFd, OwnedFd},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use rustix::{
    fs::{
        Access, AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, accessat, fstat, mkdirat, open,
        openat2,
    },
    io::Errno,
};

use crate::{Error, temporary::is_temporary};

/// The root of a bucket that is a directory.
#[derive(Debug)]
pub(super) struct Tree {
    root: PathBuf,
    known: Mutex<Option<Identity>>,
}

/// Which directory the root was when something of the bucket was found in it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Identity {
    /// A file system that is mounted once more may have another.
    device: u64,
    inode: u64,
}

impl Identity {
    fn of(directory: &OwnedFd) -> Result<Self, Errno> {
        let stat = fstat(directory)?;
        Ok(Self { device: stat.st_dev, inode: stat.st_ino })
    }
}

/// New directories and files get these, less the umask; attributes travel as metadata.
const DIRECTORY_MODE: Mode = Mode::from_raw_mode(0o777);
const FILE_MODE: Mode = Mode::from_raw_mode(0o666);

impl Tree {
    pub(super) fn new(root: PathBuf) -> Self {
        Self { root, known: Mutex::default() }
    }

    /// Opens a file for reading. Anything but a regular file is no object.
    pub(super) fn open_object(&self, key: &str) -> Result<File, Error> {
        let root = self.open_root()?;
        let file = self.object_in(&root, key)?;
        self.know(&root);
        Ok(file)
    }

    /// The same below a root that is open.
    pub(super) fn object_in(&self, root: &OwnedFd, key: &str) -> Result<File, Error> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = beneath(root, key, flags).map_err(|error| self.object_error(error, key))?;
        let file = File::from(file);
        let metadata = file.metadata().map_err(|error| self.io_error(&error, key))?;
        if metadata.is_file() { Ok(file) } else { Err(Error::NotFound { key: key.to_owned() }) }
    }

    /// Opens the directory of a prefix; `None` when it does not exist.
    pub(super) fn open_directory(&self, prefix: &str) -> Result<Option<OwnedFd>, Error> {
        let root = self.open_root()?;
        if prefix.trim_end_matches('/').is_empty() {
            return Ok(Some(root));
        }
        let found = self.directory_in(&root, prefix)?;
        if found.is_some() {
            self.know(&root);
        }
        Ok(found)
    }

    /// The same of a prefix that is not empty, below a root that is open.
    pub(super) fn directory_in(
        &self,
        root: &OwnedFd,
        prefix: &str,
    ) -> Result<Option<OwnedFd>, Error> {
        let path = prefix.trim_end_matches('/');
        match beneath(root, path, OFlags::RDONLY | OFlags::DIRECTORY) {
            Ok(directory) => Ok(Some(directory)),
            Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(None),
            Err(error) => Err(self.io_error(&error.into(), prefix)),
        }
    }

    /// Opens the directory that a key lies in, made with its parents if missing, and the key's
    /// name.
    ///
    /// # Errors
    /// [`Error::NoBucket`] below another root than the known one: nobody would find there what is
    /// put there once the right one is mounted.
    pub(super) fn open_parent<'k>(&self, key: &'k str) -> Result<(OwnedFd, &'k str), Error> {
        let (path, name) = key.rsplit_once('/').unwrap_or(("", key));
        let mut directory = self.open_root()?;
        let failed = |error: Errno| self.io_error(&error.into(), key);
        self.check_same(Identity::of(&directory).map_err(failed)?)?;
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

    /// Remembers which directory the root is, because something of the bucket was found in it. One
    /// that is known stays so whatever lies in another: that may be what is left of a mount point.
    pub(super) fn know(&self, root: &OwnedFd) {
        let Ok(found) = Identity::of(root) else { return };
        let mut known = self.known();
        if known.is_none_or(|known| known.inode == found.inode) {
            *known = Some(found);
        }
    }

    /// Opens the root for who finds nothing below it and is to say that it is gone.
    ///
    /// # Errors
    /// [`Error::NoBucket`] when the root is another directory than the known one, or empty and
    /// nothing is known of it: what was there is not mounted, as far as anybody can tell.
    pub(super) fn open_known_root(&self) -> Result<OwnedFd, Error> {
        let root = self.open_root()?;
        let failed = |error: Errno| self.io_error(&error.into(), "");
        let found = Identity::of(&root).map_err(failed)?;
        let known = *self.known();
        if known == Some(found) {
            return Ok(root);
        }
        self.check_same(found)?;
        let path = self.root.display();
        if is_empty(&root).map_err(failed)? {
            return Err(Error::NoBucket {
                message: format!(
                    "the directory {path} is empty, and nothing was found in it before: mount it, \
                     or put any file there if it is right"
                ),
            });
        }
        *self.known() = Some(found);
        Ok(root)
    }

    /// Refuses a root that is not there, or is another directory than the known one.
    pub(super) fn check_known(&self) -> Result<(), Error> {
        let root = self.open_root()?;
        let found = Identity::of(&root).map_err(|error| self.io_error(&error.into(), ""))?;
        self.check_same(found)
    }

    fn check_same(&self, found: Identity) -> Result<(), Error> {
        if self.known().is_none_or(|known| known.inode == found.inode) {
            return Ok(());
        }
        let path = self.root.display();
        let message = format!(
            "another directory than before is at {path}: mount what was there, or restart this \
             daemon if it is right"
        );
        Err(Error::NoBucket { message })
    }

    fn known(&self) -> MutexGuard<'_, Option<Identity>> {
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
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

    /// It has not answered for so long.
    pub(super) fn hangs(&self, timeout: Duration) -> Error {
        Error::unavailable(format!(
            "the directory {} does not answer within {} s: the file system that it is on hangs, as \
             one on a network does while its server is away, or is very slow",
            self.root.display(),
            timeout.as_secs()
        ))
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

/// Whether nothing is in a directory but what uploads may have left.
fn is_empty(directory: &OwnedFd) -> Result<bool, Errno> {
    for entry in Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        let is_left = entry.file_type() != FileType::Directory
            && std::str::from_utf8(name).is_ok_and(is_temporary);
        if name != b"." && name != b".." && !is_left {
            return Ok(false);
        }
    }
    Ok(true)
}

fn beneath(directory: &OwnedFd, path: &str, flags: OFlags) -> Result<OwnedFd, Errno> {
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
    openat2(directory.as_fd(), path, flags | OFlags::CLOEXEC, Mode::empty(), resolve)
}
