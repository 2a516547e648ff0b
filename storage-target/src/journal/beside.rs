//! Records whose data is still being written when they are appended.

use std::sync::Arc;

use bytes::Bytes;

use super::{Journal, JournalError, Shared};
use crate::disk::DiskError;

/// Data that a record names and that is being written. Whoever has it says what became of it;
/// dropped without that, the journal fails as it does when the data cannot be written.
#[derive(Debug)]
#[must_use = "the journal waits for it"]
pub struct DataUnderWay {
    shared: Arc<Shared>,
    sequence: u64,
    is_over: bool,
}

impl Journal {
    /// Appends a record whose data is being written; returns its sequence, and what must be told
    /// when the data is there. Until then neither [`Journal::write`] nor [`Journal::sync`] returns
    /// for this record or a later one.
    ///
    /// # Errors
    /// As [`Journal::append`].
    ///
    /// # Panics
    /// Likewise.
    pub fn append_beside(&self, record: Bytes) -> Result<(u64, DataUnderWay), JournalError> {
        let mut state = self.shared.state();
        let sequence = self.append_to(&mut state, record)?;
        state.besides.insert(sequence);
        let shared = Arc::clone(&self.shared);
        Ok((sequence, DataUnderWay { shared, sequence, is_over: false }))
    }

    /// Waits until the data of a record and of all before it is on the device. May be dropped at
    /// its await.
    ///
    /// # Errors
    /// [`JournalError::Disk`] when some of it could not be written, [`JournalError::Failed`] when
    /// the journal has failed and it is not there.
    pub async fn data_of(&self, sequence: u64) -> Result<(), JournalError> {
        self.shared.data_of(sequence).await
    }
}

impl Shared {
    pub(super) async fn data_of(&self, sequence: u64) -> Result<(), JournalError> {
        let arrived = {
            let mut state = self.state();
            if state.data_end() > sequence {
                return Ok(());
            }
            if state.failed {
                return Err(JournalError::Failed);
            }
            state.arriving.join(sequence).0
        };
        arrived.await.unwrap_or(Err(JournalError::Failed))
    }
}

impl DataUnderWay {
    /// Says what became of the data.
    ///
    /// # Errors
    /// [`JournalError::Disk`] when it could not be written. What the record names is then missing,
    /// so that nothing can be promised any more: the journal has failed.
    pub fn done(mut self, written: Result<(), DiskError>) -> Result<(), JournalError> {
        self.is_over = true;
        self.end(written.map_err(JournalError::from))
    }

    fn end(&self, outcome: Result<(), JournalError>) -> Result<(), JournalError> {
        let served = {
            let mut state = self.shared.state();
            match &outcome {
                Ok(()) => drop(state.besides.remove(&self.sequence)),
                // It stays in the list: its data never comes.
                Err(_) => state.failed = true,
            }
            let end = if outcome.is_ok() { state.data_end() } else { u64::MAX };
            state.arriving.take(end)
        };
        for waiting in served {
            // Nobody waiting any more is no error.
            drop(waiting.send(outcome.clone()));
        }
        outcome
    }
}

impl Drop for DataUnderWay {
    fn drop(&mut self) {
        if !self.is_over {
            // Who waits learns it; there is nobody else to tell.
            drop(self.end(Err(JournalError::Failed)));
        }
    }
}
