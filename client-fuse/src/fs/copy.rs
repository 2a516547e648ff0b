//! copy_file_range: the program sees none of the bytes, and this mount as few as it can.
//!
//! Targets copy longer ranges by themselves (`at_targets`). What they cannot copy, or what is not
//! worth it, the daemon reads and writes.

use millrace_protocol::{metadata::OpenMode, storage::TRANSFER_LEN_MAX};
use millrace_types::{ErrorKind, Failure};
use tokio_util::sync::CancellationToken;

use crate::fs::{FileSystem, handle::FileHandle, read::Begun, write::Place};

mod at_targets;

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
    /// [`COPY_LEN_MAX`], and where it cannot go on after it has copied some. They are stored when
    /// it returns where targets have copied them, and otherwise written as a write writes them:
    /// buffered, unless the target is open otherwise.
    ///
    /// Must run to its end, also when nobody waits for it any more: that is soon after `let_go` was
    /// cancelled, since whatever the file gets from then on others may have written.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when both lie in one file and overlap;
    /// [`ErrorKind::Cancelled`] when the program was let go; what reading and writing answer.
    pub(crate) async fn copy(
        &self,
        source: Spot<'_>,
        target: Spot<'_>,
        len: u64,
        let_go: &CancellationToken,
    ) -> Result<u64, Failure> {
        check(source, target, len)?;
        let len = len.min(COPY_LEN_MAX);
        let at_targets = Box::pin(self.copy_at_targets(source, target, len, let_go)).await?;
        let mut copied = match at_targets.failure {
            Some(_) if at_targets.copied > 0 => Ok(at_targets.copied),
            Some(failure) => Err(failure),
            None => self.copy_through(source, target, at_targets.copied, len, let_go).await,
        };
        let told = |copied: &Result<u64, Failure>| *copied.as_ref().unwrap_or(&0);
        let file = &target.handle.file;
        if let Some((number, losses)) = at_targets.begun {
            file.state().end_copy(number, target.offset + told(&copied));
            if target.handle.options.sync && copied.is_ok() {
                copied = self.sync_written(file, losses).await.and(copied);
            }
        }
        // For a copy the kernel asks for no new time of access.
        self.kernel.drop_attributes(source.handle.file.inode);
        // Of what it is told, the kernel drops its pages itself. It is not told of what was stored
        // behind a failure, nor of anything when the program was killed.
        if told(&copied) < at_targets.tried || !self.orphans.is_empty(file.inode) {
            self.drop_unheard(file, let_go).await;
        }
        copied
    }

    /// Copies what is left from `copied` on, by reading and writing.
    async fn copy_through(
        &self,
        source: Spot<'_>,
        target: Spot<'_>,
        mut copied: u64,
        len: u64,
        let_go: &CancellationToken,
    ) -> Result<u64, Failure> {
        while copied < len {
            let step = u32::try_from(len - copied).unwrap_or(u32::MAX).min(TRANSFER_LEN_MAX);
            match self.copy_step(source, target, copied, step, let_go).await {
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
        let_go: &CancellationToken,
    ) -> Result<u64, Failure> {
        check_wanted(let_go)?;
        let bytes = match self.begin_read(source.handle, source.offset + copied, len)? {
            Begun::Done(bytes) => bytes,
            Begun::Waiting(waiting) => self.finish_read(source.handle, waiting).await?,
        };
        if bytes.is_empty() {
            return Ok(0);
        }
        let bytes = bytes.into_contiguous();
        // It may have waited long for them.
        check_wanted(let_go)?;
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

/// Checks that a program still waits for a copy.
fn check_wanted(let_go: &CancellationToken) -> Result<(), Failure> {
    if let_go.is_cancelled() { Err(unwanted()) } else { Ok(()) }
}

fn unwanted() -> Failure {
    Failure::new(ErrorKind::Cancelled, "the program that copies was let go")
}

/// What one request copies at most: as the system calls of Linux, which do less than 2 GiB at once,
/// it may do less than it was asked for, and programs go on.
const COPY_LEN_MAX: u64 = 256 * 1024 * 1024;
