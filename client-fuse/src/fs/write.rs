//! write: into the buffer, from which full slots are sent in the background.

use std::sync::{Arc, atomic::Ordering};

use millrace_protocol::metadata::SetAttributes;
use millrace_types::{ChangeCount, ErrorKind, Failure, SessionId};

use crate::{
    cache::budget::Permit,
    fs::{FileSystem, file::File, handle::FileHandle},
};

/// Where a write goes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// To this offset.
    At(u64),
    /// To the end of the file, wherever that is by then.
    End,
}

impl FileSystem {
    /// Takes a write at once if it needs nothing but memory that is free. `false` means that
    /// [`Self::write`] must do it. Never blocks.
    ///
    /// # Errors
    /// A failure of an earlier write, and [`ErrorKind::FileTooLarge`].
    pub(crate) fn try_write(
        &self,
        handle: &FileHandle,
        place: Place,
        data: &[u8],
    ) -> Result<bool, Failure> {
        let session = self.writing_session();
        handle.check_locks()?;
        let Place::At(offset) = place else { return Ok(false) };
        if handle.options.direct || handle.options.sync {
            return Ok(false);
        }
        handle.refuse_write()?;
        check_end(&handle.file, offset, length(data))?;
        if needs_mark(&handle.file, offset) {
            return Ok(false);
        }
        let Some(permit) = self.budget.try_take(length(data)) else {
            return Ok(false);
        };
        Ok(self.buffer(&handle.file, session, (offset, None), data, permit))
    }

    /// Writes, waiting for memory, and for the targets as far as the handle's flags ask for it;
    /// `syncs`: it is to be durable in any case.
    ///
    /// # Errors
    /// Failures of this and of earlier writes, and [`ErrorKind::FileTooLarge`].
    pub(crate) async fn write(
        &self,
        handle: &FileHandle,
        place: Place,
        data: &[u8],
        syncs: bool,
    ) -> Result<(), Failure> {
        handle.check_locks()?;
        let file = &handle.file;
        let syncs = syncs || handle.options.sync;
        let waits = syncs || handle.options.direct;
        if !waits {
            handle.refuse_write()?;
        }
        let (failures, losses) = self.take_write(handle, place, data).await?;
        if !waits {
            return Ok(());
        }
        self.flush_telling(file, failures).await?;
        if syncs { self.sync_written(file, losses).await } else { Ok(()) }
    }

    /// Makes durable what a program has just written; `losses` is how many there were before.
    ///
    /// # Errors
    /// As [`Self::sync_stored`].
    pub(super) async fn sync_written(&self, file: &File, losses: u64) -> Result<(), Failure> {
        let synced = self.sync_stored(file, losses).await;
        // Of a long write the program may not hear of it now. (A loss is recorded already.)
        let synced = synced.inspect_err(|failure| {
            let mut state = file.state();
            if state.losses == losses {
                state.record_failure(failure.clone());
            }
        });
        synced.map(drop)
    }

    /// Waits until a write is in the buffer; returns how many failures and losses there were
    /// before. Begins anew where the session has ended meanwhile: what the handle had locked may be
    /// lost, and others may have moved the end.
    async fn take_write(
        &self,
        handle: &FileHandle,
        place: Place,
        data: &[u8],
    ) -> Result<(u64, u64), Failure> {
        let file = &handle.file;
        let _sizing = file.sizing.lock().await;
        loop {
            // In this order: of a session that ends after this, the buffer takes nothing.
            let session = self.writing_session();
            handle.check_locks()?;
            let (offset, end_at) = match place {
                Place::At(offset) => (offset, None),
                Place::End => {
                    self.begin_append(handle).await?;
                    let state = file.state();
                    (state.attributes.size, Some(state.attributes.change_count))
                }
            };
            check_end(file, offset, length(data))?;
            if needs_mark(file, offset) {
                self.declare_sparse(file).await?;
            }
            // Last, because others wait for it: the right to append may be with a host that is
            // gone. Sending what is buffered, which makes room, needs none of what is held here.
            let permit = self.take_memory(file, length(data)).await;
            handle.check_locks()?;
            if place == Place::End && !self.may_append(file) {
                continue;
            }
            let before = {
                let state = file.state();
                (state.failures, state.losses)
            };
            if self.buffer(file, session, (offset, end_at), data, permit) {
                return Ok(before);
            }
        }
    }

    /// The session in which programs write: the present one, once everybody here has been told of
    /// the end of the one before. To be looked at before it is checked what a handle may do.
    pub(super) fn writing_session(&self) -> SessionId {
        SessionId(self.writing.load(Ordering::Acquire))
    }

    /// Whoever has lost a lock has been told: from here on programs write in this session. What is
    /// buffered by then is of one before, and has to be given up after this.
    pub(super) fn begin_writing(&self, session: SessionId) {
        self.writing.store(session.0, Ordering::Release);
    }

    /// Checks that what was written in `session` may still be stored. In another one somebody else
    /// may have written there since, under a lock that ended with this one.
    ///
    /// # Errors
    /// [`ErrorKind::SessionGone`].
    pub(super) fn check_written_in(&self, session: Option<SessionId>) -> Result<(), Failure> {
        if session == Some(self.cluster.session()) {
            return Ok(());
        }
        let words = "the session ended before the writes were stored";
        Err(Failure::new(ErrorKind::SessionGone, words))
    }

    /// Puts a write of this session into the buffer; `false` where that has ended, or where the
    /// file no longer ends at `offset` as it did at the count `end_at`.
    #[must_use]
    fn buffer(
        &self,
        file: &Arc<File>,
        session: SessionId,
        (offset, end_at): (u64, Option<ChangeCount>),
        data: &[u8],
        permit: Permit,
    ) -> bool {
        let mut state = file.state();
        // With the state held: what is buffered is given up after the next one has begun.
        let has_moved = end_at.is_some_and(|count| state.has_other_end(offset, count));
        if self.writing_session() != session || has_moved {
            return false;
        }
        state.buffer.record_session(session);
        let held = state.buffer.held_bytes();
        let filled = state.buffer.insert(offset, data);
        let grown = state.buffer.held_bytes() - held;
        match &mut state.permit {
            Some(all) => all.merge(permit),
            none => *none = Some(permit),
        }
        // Bytes written twice before they were sent take memory once.
        state.release_memory(length(data) - grown);
        state.record_write(&(offset..offset + length(data)), self.cluster.now());
        drop(state);
        self.metrics.written.inc_by(length(data));
        for slot in filled {
            let file = Arc::clone(file);
            self.spawn(|this| async move { this.send_slot(&file, slot).await });
        }
        true
    }

    /// Takes memory for a write; when there is none, makes room: drops what was fetched for nothing
    /// and sends what is buffered, in every file.
    async fn take_memory(&self, file: &Arc<File>, bytes: u64) -> Permit {
        if let Some(permit) = self.budget.try_take(bytes) {
            return permit;
        }
        self.metrics.write_stalls.inc();
        self.make_room(file);
        self.budget.take(bytes).await
    }

    /// Tells the server that the file may have a hole, before there is one; not where it knows.
    pub(super) async fn declare_sparse(&self, file: &File) -> Result<(), Failure> {
        let caller = {
            let state = file.state();
            if state.is_sparse() {
                return Ok(());
            }
            state.caller.clone()
        };
        let reply = self
            .set_attributes(
                |request| SetAttributes { make_sparse: true, open: true, ..request },
                &caller,
                file.inode,
            )
            .await?;
        file.state().accept(reply)?;
        // The answer may come without a capability for this session: fetch one that says so.
        if file.state().is_sparse() {
            return Ok(());
        }
        self.refresh(file).await
    }
}

/// Whether a write at `offset` leaves a hole that the server does not know of.
pub(super) fn needs_mark(file: &File, offset: u64) -> bool {
    let state = file.state();
    offset > state.attributes.size && !state.is_sparse()
}

/// Chunk numbers have 32 bits.
pub(super) fn check_end(file: &File, offset: u64, len: u64) -> Result<(), Failure> {
    let chunk_size = file.access()?.content.layout.chunk_size().bytes();
    let end = offset.checked_add(len).ok_or(ErrorKind::FileTooLarge)?;
    let limit = chunk_size.saturating_mul(u64::from(u32::MAX));
    if end > limit { Err(ErrorKind::FileTooLarge.into()) } else { Ok(()) }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("a length in memory fits in 64 bits")
}
