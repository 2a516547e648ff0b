//! The data file: opened for direct I/O where the file system can, and grown in steps.

use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
};

use rustix::fs::FallocateFlags;

use super::{ALIGNMENT, DiskError, Operation};

/// The open data file of one target. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DataFile {
    file: Arc<File>,
    direct: bool,
}

impl DataFile {
    /// Opens or makes the file, with `O_DIRECT` if the file system takes it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open(path: &Path) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create(true).truncate(false).mode(0o600);
        let plain = options.open(path)?;
        if plain.metadata()?.len() < ALIGNMENT as u64 {
            // The probe below needs something to read.
            plain.set_len(ALIGNMENT as u64)?;
        }
        let direct = options.custom_flags(libc::O_DIRECT).open(path);
        match direct {
            Ok(file) if takes_direct_reads(&file)? => {
                Ok(Self { file: Arc::new(file), direct: true })
            }
            // EINVAL from open or read is how a file system says that it has no direct I/O.
            Ok(_) => Ok(Self { file: Arc::new(plain), direct: false }),
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                Ok(Self { file: Arc::new(plain), direct: false })
            }
            Err(error) => Err(error),
        }
    }

    /// Whether transfers bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// What the system says.
    pub fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    /// Allocates the bytes from `old_len` to `new_len`, so that writes there cannot run out of
    /// room.
    ///
    /// # Errors
    /// [`DiskError::NoSpace`] when the file system is full; nothing is then changed.
    pub fn grow(&self, old_len: u64, new_len: u64) -> Result<(), DiskError> {
        let len = new_len.saturating_sub(old_len);
        let grown = match rustix::fs::fallocate(&*self.file, FallocateFlags::empty(), old_len, len)
        {
            // Without preallocation a sparse file serves; a full disk then shows at the write.
            Err(rustix::io::Errno::OPNOTSUPP) => self.file.set_len(new_len),
            other => other.map_err(io::Error::from),
        };
        grown.map_err(|source| match source.raw_os_error() {
            Some(libc::ENOSPC | libc::EDQUOT) => DiskError::NoSpace,
            _ => DiskError::Io {
                operation: "grow",
                offset: old_len,
                len: usize::try_from(len).unwrap_or(usize::MAX),
                source,
            },
        })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    /// Fills all of `bytes`, continuing after short reads and interruptions.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        let result = self.file.read_exact_at(bytes, offset);
        result.map_err(|error| DiskError::from_io(Operation::Read, offset, bytes.len(), error))
    }

    /// Writes all of `bytes`, likewise.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let result = self.file.write_all_at(bytes, offset);
        result.map_err(|error| DiskError::from_io(Operation::Write, offset, bytes.len(), error))
    }

    pub(super) fn sync(&self) -> Result<(), DiskError> {
        let result = self.file.sync_data();
        result.map_err(|error| DiskError::from_io(Operation::Sync, 0, 0, error))
    }
}

/// Tries one direct read: some file systems accept the flag at open and fail at the first transfer.
fn takes_direct_reads(file: &File) -> io::Result<bool> {
    #[repr(align(4096))]
    struct Page([u8; ALIGNMENT]);
    let mut page = Page([0; ALIGNMENT]);
    match file.read_at(&mut page.0, 0) {
        Ok(_) => Ok(true),
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => Ok(false),
        Err(error) => Err(error),
    }
}
