//! fallocate: holes and zeros. Nothing is reserved ahead of a write, so that plain allocation is
//! refused and the C library writes the zeros itself.

use std::{ops::Range, pin::pin, sync::Arc};

use futures::{StreamExt as _, stream};
use millrace_protocol::metadata::SetAttributes;
use millrace_types::{ErrorKind, Failure, SessionId};
use tokio_util::sync::CancellationToken;

use crate::fs::{FileSystem, REFRESH_PAUSE, REFRESHES_MAX, file::File, handle::FileHandle};

impl FileSystem {
    /// `fallocate(2)` with `PUNCH_HOLE | KEEP_SIZE` or `ZERO_RANGE`. What a file gains is a hole.
    ///
    /// Must run to its end, which is soon after `let_go` was cancelled: a part of the range is
    /// zeros then.
    ///
    /// # Errors
    /// [`ErrorKind::NotSupported`] for other modes; [`ErrorKind::SessionGone`] when a lock of the
    /// handle is lost, or the session ends meanwhile; [`ErrorKind::Cancelled`] when the program was
    /// let go; and what the servers answer.
    pub(crate) async fn allocate(
        &self,
        handle: &FileHandle,
        offset: u64,
        len: u64,
        mode: i32,
        let_go: &CancellationToken,
    ) -> Result<(), Failure> {
        const PUNCH: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        const ZERO: i32 = libc::FALLOC_FL_ZERO_RANGE;
        const ZERO_WITHIN: i32 = ZERO | libc::FALLOC_FL_KEEP_SIZE;
        if !matches!(mode, PUNCH | ZERO | ZERO_WITHIN) {
            return Err(ErrorKind::NotSupported.into());
        }
        let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
        let session = self.writing_session();
        handle.check_locks()?;
        let file = &handle.file;
        let sizing = file.sizing.lock().await;
        let failures = file.state().failures;
        self.flush_telling(file, failures).await?;
        self.commit(file, false).await?;
        let stored_end = self.declare(handle, mode == ZERO, end).await?;
        drop(sizing);
        let zeroed = self.zero(file, session, offset..end.min(stored_end), let_go).await;
        if zeroed.is_err() {
            // What is zeros all the same the kernel does not hear of.
            self.drop_unheard(file, let_go).await;
        }
        zeroed
    }

    /// Tells the server that the file may have holes, and of its new end. Tells where the file
    /// ended before: what it gains has no bytes.
    async fn declare(&self, handle: &FileHandle, grows: bool, end: u64) -> Result<u64, Failure> {
        if grows {
            // Another host may have made it longer, of which it must not lose anything.
            self.refresh(&handle.file).await?;
        }
        let before = handle.file.state().attributes.size;
        let size = (grows && end > before).then_some(end);
        let whole = handle.file.state().durable.whole();
        let reply = self
            .set_attributes(
                |request| SetAttributes { make_sparse: true, size, open: true, ..request },
                &handle.caller,
                handle.file.inode,
            )
            .await?;
        {
            let mut state = handle.file.state();
            // Unless another host has made it longer meanwhile.
            if size == Some(reply.attributes.size) {
                state.durable.handle_own_change(whole, reply.attributes.change_count);
            }
            state.accept(reply)?;
        }
        self.refresh(&handle.file).await?;
        let now = handle.file.state().attributes.size;
        Ok(if size.is_some() { before.min(now) } else { now })
    }

    async fn zero(
        &self,
        file: &Arc<File>,
        session: SessionId,
        range: Range<u64>,
        let_go: &CancellationToken,
    ) -> Result<(), Failure> {
        let layout = file.access()?.content.layout;
        let stop = let_go.child_token();
        let pieces = layout.pieces(range.start, range.end.saturating_sub(range.start));
        let zeros = stream::iter(pieces.take_while(|_| !stop.is_cancelled())).map(|piece| {
            let start = piece.offset_in_file;
            self.zero_in_chunk(file, session, start..start + piece.len)
        });
        let mut zeros = pin!(zeros.buffer_unordered(CHUNKS_AT_ONCE));
        let mut zeroed = Ok(());
        while let Some(one) = zeros.next().await {
            if one.is_err() {
                stop.cancel();
            }
            zeroed = zeroed.and(one);
        }
        let committed = self.commit(file, false).await.map(drop);
        if let_go.is_cancelled() {
            return Err(Failure::new(ErrorKind::Cancelled, "the program that zeroes was let go"));
        }
        zeroed.and(committed)
    }

    async fn zero_in_chunk(
        &self,
        file: &File,
        session: SessionId,
        range: Range<u64>,
    ) -> Result<(), Failure> {
        let mut told = false;
        for attempt in 0..REFRESHES_MAX {
            let failure = match self.zero_once(file, session, &range).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            match failure.kind {
                ErrorKind::StaleContent | ErrorKind::StaleEpoch | ErrorKind::KeyRetired => {}
                ErrorKind::Forbidden => {
                    self.check_written_in(Some(session))?;
                    if told {
                        return Err(failure);
                    }
                    told = true;
                    self.tell_writers(file).await?;
                }
                _ => return Err(failure),
            }
            if attempt > 0 {
                tokio::time::sleep(REFRESH_PAUSE).await;
            }
            self.refresh(file).await?;
        }
        Err(Failure::new(ErrorKind::Stale, "the file changes faster than it can be zeroed"))
    }

    async fn zero_once(
        &self,
        file: &File,
        session: SessionId,
        range: &Range<u64>,
    ) -> Result<(), Failure> {
        let access = self.writable(file).await?;
        // That may be of the next session already.
        self.check_written_in(Some(session))?;
        let zeroed = self.cluster.zero(&access, range.clone()).await;
        // What is not acknowledged may be zeros all the same: what was fetched before may be old.
        let written = zeroed.inspect_err(|_| file.state().pieces.invalidate(range))?;
        let mut state = file.state();
        state.written_at = Some(self.cluster.now());
        state.record_zeroed(range, &access, written.target, written.loss_count);
        Ok(())
    }
}

/// Chunks that are zeroed at the same time: one takes a message and a record of its target's
/// journal, and a file of 1 TiB has 131,072.
const CHUNKS_AT_ONCE: usize = 16;
