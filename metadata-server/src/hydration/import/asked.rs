//! Imports, and directories that are being listed when they are asked for.
//!
//! An import does not list what was listed since it was asked for: after a restart of the server it
//! goes on with the rest, and so does one that is started once more because it did not succeed,
//! which counts as asked for when the first one was. When a directory was listed is in the log, but
//! not when that began. So the end of a listing is not recorded when an import of the directory was
//! asked for in its middle: what it had found by then may be older.

use std::sync::{Arc, PoisonError};

use millrace_types::{ErrorKind, Failure, InodeId, Timestamp};

use super::{Environment, Importer, LISTINGS_WAITING_MAX, Linked, Tally, broken, linked};
use crate::{
    command::Command,
    namespace::{LinkedDirectory, tree},
};

impl<E: Environment> Importer<E> {
    /// Has an import of what lies at and below `top` be recorded by `record`: of listings that are
    /// under way there, no end is recorded after that, unless there was no room for the import.
    ///
    /// # Errors
    /// That the server is busy or shutting down; those of `record`.
    pub(in crate::hydration) async fn note_import<T>(
        &self,
        top: InodeId,
        record: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        // No listing ends between the two.
        let mut outrun = self.outrun.write().await;
        let running: Vec<InodeId> = {
            let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            running.keys().copied().collect()
        };
        let query = self.environment.read(move |view| {
            let mut concerned = Vec::new();
            for directory in running {
                if let Some(inode) = tree::find(view, directory).map_err(broken)?
                    && tree::is_below(view, &inode, top).map_err(broken)?
                {
                    concerned.push(directory);
                }
            }
            Ok(concerned)
        });
        let mut concerned = query.await?;
        concerned.retain(|directory| outrun.insert(*directory));
        let recorded = record.await;
        if recorded.as_ref().is_err_and(|failure| failure.kind == ErrorKind::Busy) {
            for directory in concerned {
                outrun.remove(&directory);
            }
        }
        recorded
    }

    /// Lists `directory`, unless that was begun and ended since an import was asked for, `asked` by
    /// the log. Calls `told` with what it has found so far, whenever that grows. Whether it had
    /// something to list.
    ///
    /// # Errors
    /// Those of the bucket.
    pub(in crate::hydration) async fn refresh_since(
        self: &Arc<Self>,
        directory: InodeId,
        asked: Timestamp,
        told: impl FnMut(Tally) + Send,
    ) -> Result<bool, Failure> {
        self.let_pass(directory).await;
        let known = self.environment.read(move |view| linked(view, directory)).await?;
        let Some(linked) = known else { return Ok(true) };
        match linked.listed {
            Some(LinkedDirectory::NEVER_AGAIN) => Ok(true),
            _ if was_listed_since(&linked, asked) => Ok(false),
            _ => self.wait_for(&linked, told, LISTINGS_WAITING_MAX).await.map(|()| true),
        }
    }

    /// Whether [`Self::refresh_since`] would ask the bucket.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(in crate::hydration) async fn is_due_since(
        &self,
        directory: InodeId,
        asked: Timestamp,
    ) -> Result<bool, Failure> {
        let known = self.environment.read(move |view| linked(view, directory)).await?;
        Ok(known.is_some_and(|known| {
            let never = known.listed == Some(LinkedDirectory::NEVER_AGAIN);
            !never && !was_listed_since(&known, asked)
        }))
    }

    /// Whether an import that is asked for now would list `directory`.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(in crate::hydration) async fn is_to_list(
        &self,
        directory: InodeId,
    ) -> Result<bool, Failure> {
        let known = self.environment.read(move |view| linked(view, directory)).await?;
        Ok(known.is_some_and(|known| known.listed != Some(LinkedDirectory::NEVER_AGAIN)))
    }

    /// A listing of the directory begins now.
    pub(super) async fn begin_listing(&self, directory: InodeId) {
        self.outrun.write().await.remove(&directory);
    }

    /// Records that a directory was listed to its end; `false`: an import of it was asked for in
    /// the middle.
    pub(super) async fn mark_listed(&self, directory: InodeId) -> Result<bool, Failure> {
        // Imports are recorded before this, or after it.
        let outrun = self.outrun.read().await;
        if outrun.contains(&directory) {
            return Ok(false);
        }
        let listed = Command::MarkDirectoryListed(directory);
        self.environment.execute(listed, false).await.map(|_| true)
    }
}

/// Whether a directory was listed since an import was asked for. Of what was made here nobody asked
/// the bucket then.
fn was_listed_since(linked: &Linked, asked: Timestamp) -> bool {
    linked.listed.is_some_and(|listed| listed >= asked && listed != linked.born)
}
