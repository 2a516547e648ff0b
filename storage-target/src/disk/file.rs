//! The data file or device: opened for direct I/O where the file system can, and grown in steps.

use std::{
    fs::{File, OpenOptions},
    io::{self, ErrorKind, Seek, SeekFrom},
    os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt},
    path::Path,
    sync::Arc,
    thread,
};

use rustix::{
    fs::{Advice, FallocateFlags},
    io::Errno,
};

use super::{ALIGNMENT, DiskError, Operation, cuts::Cuts};

/// The open data file of one target. Cheap to clone.
#[derive(Clone, Debug)]
pub struct DataFile {
    file: Arc<File>,
    direct: bool,
    cuts: Cuts,
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
        Self::open_direct(path, 0)
    }

    /// Opens a file that is there, likewise, and changes nothing of it.
    ///
    /// # Errors
    /// What the system says.
    pub fn open_existing(path: &Path) -> io::Result<Self> {
        Self::open_direct(path, 0)
    }

    /// Opens a block device, likewise, which neither a mount nor another program may then have.
    ///
    /// # Errors
    /// What the system says; `EBUSY` when somebody has it.
    pub fn open_device(path: &Path) -> io::Result<Self> {
        Self::open_direct(path, libc::O_EXCL)
    }

    fn open_direct(path: &Path, flags: i32) -> io::Result<Self> {
        let open = |flags| OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
        // EINVAL from open or read is how a file system says that it has no direct I/O.
        let direct = match open(flags | libc::O_DIRECT) {
            Ok(file) if takes_direct_reads(&file)? => Some(file),
            Ok(_) => None,
            Err(error) if error.raw_os_error() == Some(libc::EINVAL) => None,
            Err(error) => return Err(error),
        };
        let is_direct = direct.is_some();
        // The first one is closed by now: a device opens for one at a time.
        let file = direct.map_or_else(|| open(flags), Ok)?;
        if !is_direct {
            // What the kernel could not write back it takes for written: read it from the disk.
            if let Err(error) = rustix::fs::fadvise(&file, 0, None, Advice::DontNeed) {
                tracing::debug!(%error, path = %path.display(), "the page cache is not emptied");
            }
        }
        Ok(Self { file: Arc::new(file), direct: is_direct, cuts: Cuts::default() })
    }

    /// The same file, under a kernel that does less than it is asked for.
    #[must_use]
    pub fn cut_short(self, cuts: Cuts) -> Self {
        Self { cuts, ..self }
    }

    /// Whether transfers bypass the page cache.
    #[must_use]
    pub fn is_direct(&self) -> bool {
        self.direct
    }

    /// Bytes of the file or device.
    ///
    /// # Errors
    /// What the system says.
    pub fn len_bytes(&self) -> io::Result<u64> {
        let about = self.file.metadata()?;
        match about.file_type().is_block_device() {
            // A device has its length at its end; transfers do not depend on the position.
            true => (&*self.file).seek(SeekFrom::End(0)),
            false => Ok(about.len()),
        }
    }

    /// Allocates the bytes from `old_len`, the file's end, to `new_len`, so that writes there
    /// cannot run out of room. They read as zeros.
    ///
    /// # Errors
    /// [`DiskError::NoSpace`] when the file system is full, or cannot have so long a file; nothing
    /// is then changed.
    pub fn grow(&self, old_len: u64, new_len: u64) -> Result<(), DiskError> {
        let len = new_len.saturating_sub(old_len);
        let grown = loop {
            match rustix::fs::fallocate(&*self.file, FallocateFlags::empty(), old_len, len) {
                Err(Errno::INTR) => {}
                // Without preallocation a sparse file serves; a full disk then shows at the write.
                Err(Errno::OPNOTSUPP) => break self.file.set_len(new_len),
                other => break other.map_err(io::Error::from),
            }
        };
        grown.map_err(|source| {
            // What was allocated before the room ran out is given back.
            if self.len_bytes().is_ok_and(|len| len > old_len)
                && let Err(error) = self.file.set_len(old_len)
            {
                tracing::warn!(%error, "the part of a growth that failed cannot be given back");
            }
            DiskError::growing(old_len, usize::try_from(len).unwrap_or(usize::MAX), source)
        })
    }

    pub(super) fn file(&self) -> &File {
        &self.file
    }

    pub(super) fn cuts(&self) -> &Cuts {
        &self.cuts
    }

    /// Fills all of `bytes`, continuing after short reads and interruptions.
    pub(super) fn read(&self, offset: u64, bytes: &mut [u8]) -> Result<(), DiskError> {
        let len = bytes.len();
        let result = all_of(len, |done| {
            let part = &mut bytes[done..done + self.cuts.part(len - done)];
            self.cuts.told_of(self.file.read_at(part, offset + done as u64))
        });
        result.map_err(|error| DiskError::from_io(Operation::Read, offset, len, error))
    }

    /// Writes all of `bytes`, likewise.
    pub(super) fn write(&self, offset: u64, bytes: &[u8]) -> Result<(), DiskError> {
        let result = all_of(bytes.len(), |done| {
            let part = &bytes[done..done + self.cuts.part(bytes.len() - done)];
            self.cuts.told_of(self.file.write_at(part, offset + done as u64))
        });
        result.map_err(|error| DiskError::from_io(Operation::Write, offset, bytes.len(), error))
    }

    pub(super) fn sync(&self) -> Result<(), DiskError> {
        let result = all_of(1, |_| self.cuts.told_of(self.file.sync_data().map(|()| 1)));
        result.map_err(|error| DiskError::from_io(Operation::Sync, 0, 0, error))
    }
}

/// Repeats a transfer, which is told how much is done and says how much more is, until all of `len`
/// bytes are.
fn all_of(len: usize, mut transfer: impl FnMut(usize) -> io::Result<usize>) -> io::Result<()> {
    let mut done = 0;
    while done < len {
        match transfer(done) {
            Ok(count) => done = after(done, count, len)?,
            Err(error) if is_passing(&error) => thread::yield_now(),
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// How much is done after a transfer of `count` bytes more. Direct I/O goes on at whole pages only,
/// so that a part of one is transferred again.
///
/// # Errors
/// When that is no more than before: the end of the file, or of the device.
pub(super) fn after(done: usize, count: usize, len: usize) -> io::Result<usize> {
    let now = done + count;
    assert!(now <= len, "the kernel moves no more than asked for");
    let whole = if now == len { now } else { now / ALIGNMENT * ALIGNMENT };
    if whole > done { Ok(whole) } else { Err(ErrorKind::UnexpectedEof.into()) }
}

/// Whether the same call may work the next time.
pub(super) fn is_passing(error: &io::Error) -> bool {
    matches!(error.raw_os_error(), Some(libc::EINTR | libc::EAGAIN))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_transfers_and_interruptions_are_continued_at_whole_pages() {
        let os = io::Error::from_raw_os_error;
        let mut answers = vec![
            (0, Err(os(libc::EINTR))),
            (0, Ok(5000)),
            (4096, Err(os(libc::EAGAIN))),
            (4096, Ok(4096)),
            (8192, Ok(4096)),
        ]
        .into_iter();
        let continued = all_of(3 * 4096, |done| {
            let (expected, answer) = answers.next().expect("as many as that");
            assert_eq!(done, expected);
            answer
        });
        continued.unwrap();
        assert!(answers.next().is_none());
    }

    #[test]
    fn the_end_and_a_failure_end_a_transfer() {
        let end = all_of(8192, |done| Ok(if done == 0 { 4096 } else { 0 })).unwrap_err();
        assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
        let part = all_of(8192, |done| Ok(if done == 0 { 4096 } else { 100 })).unwrap_err();
        assert_eq!(part.kind(), ErrorKind::UnexpectedEof, "a file ends within a page");
        let failed = all_of(1, |_| Err(io::Error::from_raw_os_error(libc::EIO))).unwrap_err();
        assert_eq!(failed.raw_os_error(), Some(libc::EIO));
    }
}
