//! lseek with `SEEK_DATA` and `SEEK_HOLE`: the targets know which parts of a file nobody has
//! stored.

use futures::{StreamExt as _, stream};
use millrace_types::{ErrorKind, Failure};
use tokio_util::sync::CancellationToken;

use crate::fs::{FileSystem, REFRESH_PAUSE, REFRESHES_MAX, file::File, handle::FileHandle};

/// What is looked for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Wanted {
    /// Bytes that somebody has stored, here or in the bucket.
    Data,
    /// Zeros that nobody has stored; the end of the file is one.
    Hole,
}

impl Wanted {
    /// Reads the `whence` of lseek(2); those that only calculate are the kernel's.
    pub(crate) fn from_whence(whence: u32) -> Option<Self> {
        match whence.cast_signed() {
            libc::SEEK_DATA => Some(Self::Data),
            libc::SEEK_HOLE => Some(Self::Hole),
            _ => None,
        }
    }
}

impl FileSystem {
    /// The first offset from `offset` on where there is what is wanted; `None` when `offset` is not
    /// within the file, or no data comes any more.
    ///
    /// A hole is never claimed where there is data: what this mount has written is stored first.
    /// Bytes that were written through a mapping count after msync(2).
    ///
    /// # Errors
    /// What the servers answer; failures of buffered writes; [`ErrorKind::Stale`] when the handle
    /// was opened on an older version of the object; [`ErrorKind::Cancelled`] when the program was
    /// let go.
    pub(crate) async fn seek(
        &self,
        handle: &FileHandle,
        offset: u64,
        wanted: Wanted,
        let_go: &CancellationToken,
    ) -> Result<Option<u64>, Failure> {
        let file = &handle.file;
        let failures = file.state().failures;
        self.flush_telling(file, failures).await?;
        for attempt in 0..REFRESHES_MAX {
            if attempt > 0 {
                tokio::time::sleep(REFRESH_PAUSE).await;
            }
            self.refresh(file).await?;
            handle.check_version(&file.state())?;
            match self.seek_in_view(file, offset, wanted, let_go).await {
                Err(failure) => match failure.kind {
                    ErrorKind::StaleContent | ErrorKind::StaleEpoch | ErrorKind::KeyRetired => {}
                    // The right is of a session that has ended since.
                    ErrorKind::Forbidden | ErrorKind::SessionGone => {}
                    _ => return Err(failure),
                },
                found => return found,
            }
        }
        Err(Failure::new(ErrorKind::Stale, "the file changes faster than it can be looked at"))
    }

    async fn seek_in_view(
        &self,
        file: &File,
        offset: u64,
        wanted: Wanted,
        let_go: &CancellationToken,
    ) -> Result<Option<u64>, Failure> {
        let size = file.state().attributes.size;
        if offset >= size {
            return Ok(None);
        }
        let access = file.access()?;
        let inline = file.state().inline.is_some();
        let found = if inline || !access.content.sparse {
            // It has no holes.
            (wanted == Wanted::Data).then_some(offset)
        } else {
            let hole = wanted == Wanted::Hole;
            let pieces = access.content.layout.pieces(offset, size - offset);
            let pieces = pieces.take_while(|_| !let_go.is_cancelled());
            let answers = stream::iter(pieces).map(|piece| {
                let range = piece.offset_in_file..piece.offset_in_file + piece.len;
                self.cluster.seek(&access, range, hole)
            });
            let mut answers = std::pin::pin!(answers.buffered(CHUNKS_AT_ONCE));
            let mut found = None;
            while let (None, Some(answer)) = (found, answers.next().await) {
                found = answer?;
            }
            if let_go.is_cancelled() {
                return Err(Failure::new(
                    ErrorKind::Cancelled,
                    "the program that seeks was let go",
                ));
            }
            found
        };
        match wanted {
            Wanted::Data => Ok(found),
            Wanted::Hole => Ok(Some(found.unwrap_or(size))),
        }
    }
}

/// Chunks that are asked for at the same time: a file of 1 TiB with nothing in it has 131,072, and
/// a target answers for one in less than 100 µs.
const CHUNKS_AT_ONCE: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_kernel_calculates_is_not_asked_for() {
        assert_eq!(Wanted::from_whence(3), Some(Wanted::Data));
        assert_eq!(Wanted::from_whence(4), Some(Wanted::Hole));
        assert!([0, 1, 2, 5, u32::MAX].iter().all(|&whence| Wanted::from_whence(whence).is_none()));
    }
}
