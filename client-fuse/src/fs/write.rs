//! write: into the buffer, from which full slots are sent in the background.

use std::sync::Arc;

use millrace_protocol::metadata::SetAttributes;
use millrace_types::{ErrorKind, Failure};

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
        handle.check_locks()?;
        let Place::At(offset) = place else { return Ok(false) };
        if handle.options.direct || handle.options.sync {
            return Ok(false);
        }
        handle.refuse_write()?;
        check_end(&handle.file, offset, data)?;
        if needs_mark(&handle.file, offset) {
            return Ok(false);
        }
        let Some(permit) = self.budget.try_take(length(data)) else {
            return Ok(false);
        };
        self.buffer(&handle.file, offset, data, permit);
        Ok(true)
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
        let sizing = file.sizing.lock().await;
        let offset = match place {
            Place::At(offset) => offset,
            Place::End => {
                self.begin_append(handle).await?;
                file.state().attributes.size
            }
        };
        check_end(file, offset, data)?;
        if needs_mark(file, offset) {
            self.declare_sparse(file).await?;
        }
        // Last, because others wait for it: the right to append may be with a host that is gone.
        // Sending what is buffered, which makes room, needs none of what is held here.
        let permit = self.take_memory(file, length(data)).await;
        let (failures, losses) = {
            let state = file.state();
            (state.failures, state.losses)
        };
        self.buffer(file, offset, data, permit);
        drop(sizing);
        if !waits {
            return Ok(());
        }
        self.flush_telling(file, failures).await?;
        if syncs {
            // Of a long write the program may not hear of it now. (A loss is recorded already.)
            self.sync_stored(file, losses).await.inspect_err(|failure| {
                let mut state = file.state();
                if state.losses == losses {
                    state.record_failure(failure.clone());
                }
            })?;
        }
        Ok(())
    }

    fn buffer(&self, file: &Arc<File>, offset: u64, data: &[u8], permit: Permit) {
        let mut state = file.state();
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
fn needs_mark(file: &File, offset: u64) -> bool {
    let state = file.state();
    offset > state.attributes.size && !state.is_sparse()
}

/// Chunk numbers have 32 bits.
fn check_end(file: &File, offset: u64, data: &[u8]) -> Result<(), Failure> {
    let chunk_size = file.access()?.content.layout.chunk_size().bytes();
    let end = offset.checked_add(length(data)).ok_or(ErrorKind::FileTooLarge)?;
    let limit = chunk_size.saturating_mul(u64::from(u32::MAX));
    if end > limit { Err(ErrorKind::FileTooLarge.into()) } else { Ok(()) }
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("a length in memory fits in 64 bits")
}
