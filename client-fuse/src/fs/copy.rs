//! copy_file_range: the daemon reads and writes, and the program sees none of the bytes.

use millrace_protocol::{metadata::OpenMode, storage::TRANSFER_LEN_MAX};
use millrace_types::{ErrorKind, Failure};

use crate::fs::{FileSystem, handle::FileHandle, read::Begun, write::Place};

/// A place in an open file.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot<'a> {
    /// The open file.
    pub(crate) handle: &'a FileHandle,
    /// First byte.
    pub(crate) offset: u64,
}

impl FileSystem {
    /// Copies up to `len` bytes and answers how many: fewer at the end of the source, at
    /// [`COPY_LEN_MAX`], and where it cannot go on after it has copied some. They are written as a
    /// write writes them: buffered, unless the target is open otherwise.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when both lie in one file and overlap; what reading and
    /// writing answer.
    pub(crate) async fn copy(
        &self,
        source: Spot<'_>,
        target: Spot<'_>,
        len: u64,
    ) -> Result<u64, Failure> {
        check(source, target, len)?;
        let len = len.min(COPY_LEN_MAX);
        let mut copied = 0;
        while copied < len {
            let step = u32::try_from(len - copied).unwrap_or(u32::MAX).min(TRANSFER_LEN_MAX);
            match self.copy_step(source, target, copied, step).await {
                Ok(0) => break,
                Ok(bytes) => copied += bytes,
                // The next call meets the failure again, if it is still there.
                Err(_) if copied > 0 => break,
                Err(failure) => return Err(failure),
            }
        }
        Ok(copied)
    }

    async fn copy_step(
        &self,
        source: Spot<'_>,
        target: Spot<'_>,
        copied: u64,
        len: u32,
    ) -> Result<u64, Failure> {
        let bytes = match self.begin_read(source.handle, source.offset + copied, len)? {
            Begun::Done(bytes) => bytes,
            Begun::Waiting(waiting) => self.finish_read(source.handle, waiting).await?,
        };
        if bytes.is_empty() {
            return Ok(0);
        }
        let bytes = bytes.into_contiguous();
        self.write(target.handle, Place::At(target.offset + copied), &bytes, false).await?;
        Ok(u64::try_from(bytes.len()).expect("at most one transfer"))
    }
}

fn check(source: Spot<'_>, target: Spot<'_>, len: u64) -> Result<(), Failure> {
    let end = |spot: Spot<'_>| spot.offset.checked_add(len).ok_or(ErrorKind::FileTooLarge);
    let (source_end, target_end) = (end(source)?, end(target)?);
    if target.handle.mode != OpenMode::Write {
        return Err(ErrorKind::InvalidArgument.into());
    }
    let same = source.handle.file.inode == target.handle.file.inode;
    if same && source.offset < target_end && target.offset < source_end {
        return Err(Failure::new(ErrorKind::InvalidArgument, "the ranges of a copy overlap"));
    }
    Ok(())
}

/// What one request copies at most: as the system calls of Linux, which do less than 2 GiB at once,
/// it may do less than it was asked for, and programs go on. Who is killed meanwhile leaves so much
/// to be done in vain.
const COPY_LEN_MAX: u64 = 256 * 1024 * 1024;
