//! The files below log and snapshots: the machine's own, or simulated ones that lose what was not
//! synced.
//!
//! The contract is that of a local file system and no more: what was written is in the kernel, and
//! survives a kill of the process; it survives a loss of power once [`OpenFile::sync_data`] (bytes
//! and length) has returned, and a name once [`Files::sync_dir`] of its directory has. Until then
//! a loss of power may keep any part of it, in any order.

use std::{
    fmt::Debug,
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt as _},
    path::Path,
    sync::Arc,
};

/// Directories with files. Cheap to share.
pub trait Files: Debug + Send + Sync {
    /// Makes the directory and those above it, as far as they are missing; one that was made is on
    /// stable storage.
    ///
    /// # Errors
    /// When the disk fails.
    fn make_dir(&self, dir: &Path) -> io::Result<()>;

    /// The names in a directory, in order; those that are no UTF-8 are left out.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] for a directory that is missing; when the disk fails.
    fn list(&self, dir: &Path) -> io::Result<Vec<String>>;

    /// Opens a file.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] for one that is missing; when the disk fails.
    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn OpenFile>>;

    /// Gives a file another name; one that has the name already is replaced, at once.
    ///
    /// # Errors
    /// When the disk fails.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;

    /// Removes a file's name; who has it open goes on.
    ///
    /// # Errors
    /// [`io::ErrorKind::NotFound`] for one that is missing; when the disk fails.
    fn remove(&self, path: &Path) -> io::Result<()>;

    /// Bytes that the disk of a directory can still take.
    ///
    /// # Errors
    /// When the disk does not say.
    fn free(&self, dir: &Path) -> io::Result<u64>;

    /// Brings the names in a directory to stable storage.
    ///
    /// # Errors
    /// When the disk fails.
    fn sync_dir(&self, dir: &Path) -> io::Result<()>;
}

/// What an opened file is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// Reading one that exists.
    Read,
    /// Reading and writing one that exists.
    Write,
    /// Writing a new one, of mode 0600; one that exists is emptied.
    Create,
}

/// A file. Closed when the last share is dropped, without a sync.
pub trait OpenFile: Debug + Send + Sync {
    /// Bytes.
    ///
    /// # Errors
    /// When the disk fails.
    fn size(&self) -> io::Result<u64>;

    /// Reads into `buffer` from `offset` on; fewer bytes only at the end of the file.
    ///
    /// # Errors
    /// When the disk fails.
    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize>;

    /// Writes all of `bytes`.
    ///
    /// # Errors
    /// When the disk is full or fails: a part may have been written then.
    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()>;

    /// Cuts the file, or lengthens it with zeros.
    ///
    /// # Errors
    /// When the disk fails.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Brings bytes and length to stable storage, not the name.
    ///
    /// # Errors
    /// When the disk fails. What was to be synced may then be lost whatever is tried again.
    fn sync_data(&self) -> io::Result<()>;
}

/// The whole of a file.
///
/// # Errors
/// As [`OpenFile::read_at`].
pub fn read_all(file: &dyn OpenFile) -> io::Result<Vec<u8>> {
    let size = usize::try_from(file.size()?).map_err(io::Error::other)?;
    let mut bytes = vec![0; size];
    let read = file.read_at(&mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// The files of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct MachineFiles;

impl Files for MachineFiles {
    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        if dir.is_dir() {
            return Ok(());
        }
        let Some(parent) = dir.parent().filter(|parent| !parent.as_os_str().is_empty()) else {
            return fs::create_dir_all(dir);
        };
        self.make_dir(parent)?;
        match fs::create_dir(dir) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
            _ => self.sync_dir(parent),
        }
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(dir)? {
            names.extend(entry?.file_name().into_string());
        }
        names.sort();
        Ok(names)
    }

    fn open(&self, path: &Path, access: Access) -> io::Result<Arc<dyn OpenFile>> {
        let mut options = OpenOptions::new();
        match access {
            Access::Read => options.read(true),
            Access::Write => options.read(true).write(true),
            Access::Create => {
                options.read(true).write(true).create(true).truncate(true).mode(0o600)
            }
        };
        Ok(Arc::new(options.open(path)?))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        fs::rename(from, to)
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        fs::remove_file(path)
    }

    fn free(&self, dir: &Path) -> io::Result<u64> {
        let disk = rustix::fs::statvfs(dir)?;
        Ok(disk.f_bavail.saturating_mul(disk.f_frsize))
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        File::open(dir)?.sync_all()
    }
}

impl OpenFile for File {
    fn size(&self) -> io::Result<u64> {
        self.metadata().map(|metadata| metadata.len())
    }

    fn read_at(&self, buffer: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut read = 0;
        while read < buffer.len() {
            let at = offset + read as u64;
            match FileExt::read_at(self, &mut buffer[read..], at) {
                Ok(0) => break,
                Ok(count) => read += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error),
            }
        }
        Ok(read)
    }

    fn write_all_at(&self, bytes: &[u8], offset: u64) -> io::Result<()> {
        FileExt::write_all_at(self, bytes, offset)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        Self::set_len(self, len)
    }

    fn sync_data(&self) -> io::Result<()> {
        Self::sync_data(self)
    }
}
