//! Batches that are written while the disk syncs those before them.
//!
//! Where a sync takes long, the next one can then begin as soon as it is over: what was appended
//! meanwhile is on the disk already. It is promised to nobody before that sync; a loss of power may
//! leave it or not, in its order, as it does with any batch that was written and not synced.

use std::{convert::Infallible, pin::pin};

use futures::future::{Either, select};

use super::{JournalError, Shared};

impl Shared {
    /// Syncs the disk, and writes batches of what is appended meanwhile. One that is not there yet
    /// when the sync is over is left to who writes next; one that fails fails the sync.
    pub(super) async fn sync_and_write_ahead(&self) -> Result<(), JournalError> {
        let sync = pin!(self.options.disk.sync());
        let ahead = pin!(self.write_ahead());
        match select(sync, ahead).await {
            Either::Left((synced, _)) => Ok(synced?),
            Either::Right((Err(error), sync)) => {
                // The disk has it, so it is waited for; it makes nothing durable any more.
                sync.await?;
                Err(error)
            }
        }
    }

    /// Writes batches of what is appended, until one fails. May be dropped at its await.
    async fn write_ahead(&self) -> Result<Infallible, JournalError> {
        loop {
            self.appended.notified().await;
            // Those who were answered together append together: they share a batch.
            tokio::task::yield_now().await;
            let newest = self.state().appended_end() - 1;
            if let Err(error) = self.write_batches(newest).await {
                // At once: the sync may take long, or fail itself. What failed earlier has been
                // told to who wrote it.
                if matches!(error, JournalError::Disk(_)) {
                    let target = self.options.target;
                    tracing::error!(%target, %error, "a batch beside a sync cannot be written");
                }
                return Err(error);
            }
        }
    }
}
