//! What happens without being asked for: idle read-ahead is dropped, and what a program has written
//! and not closed reaches the servers within seconds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use millrace_types::{ErrorKind, Failure};

use crate::fs::{FileSystem, file::File};

impl FileSystem {
    /// Runs until the mount ends. May be dropped at any await: nothing is left half done that a
    /// flush would not finish.
    pub(crate) async fn upkeep(&self) {
        let mut ticks = tokio::time::interval(UPKEEP_PERIOD);
        ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            ticks.tick().await;
            self.access_times.handle_time(self.cluster.now());
            let now = Instant::now();
            for file in self.files.all() {
                file.state().pieces.evict(now, PIECE_IDLE_MAX);
            }
            // On its own: while servers are away it takes long, and the next round finds it busy.
            let dirty = self.dirty_files();
            if !dirty.is_empty() {
                self.spawn(|this| async move { this.flush_and_commit(dirty).await });
            }
        }
    }

    /// Flushes and commits every open file: the last act of a mount.
    pub(crate) async fn flush_all(&self) {
        for file in self.dirty_files() {
            drop(file.upkeep.lock().await);
        }
        self.flush_and_commit(self.dirty_files()).await;
    }

    /// Waits for restarts of the metadata server, and tells it then what is open. May be dropped at
    /// any time.
    pub(crate) async fn watch_restarts(&self) {
        let mut incarnation = self.cluster.incarnation();
        while incarnation.changed().await.is_ok() {
            // First, because all mounts wait for it.
            self.declare_locks().await;
            self.declare_reads();
        }
    }

    /// Waits for the loss of the session, and then fails what was buffered under it, gives up the
    /// locks that were held under it, and opens again what is open. May be dropped at any time.
    pub(crate) async fn watch_session(&self) {
        let mut losses = self.cluster.losses();
        while losses.changed().await.is_ok() {
            self.lose_locks();
            self.lose_unpublished();
            self.files.handle_session_end();
            for file in self.files.all() {
                fail_buffered(&file, "the session ended before the writes were stored");
            }
            self.reopen_all();
        }
    }

    /// Whether something that was written is not stored yet.
    pub(crate) fn holds_writes(&self) -> bool {
        !self.dirty_files().is_empty()
    }

    fn dirty_files(&self) -> Vec<Arc<File>> {
        let mut dirty = self.files.all();
        dirty.retain(|file| file.state().is_dirty());
        dirty
    }

    async fn flush_and_commit(&self, files: Vec<Arc<File>>) {
        stream::iter(files)
            .for_each_concurrent(FILES_AT_ONCE, async |file| {
                let Ok(_first) = file.upkeep.try_lock() else {
                    return;
                };
                self.flush_file(&file).await;
                if let Err(failure) = self.commit(&file, false).await {
                    tracing::warn!(inode = %file.inode, %failure, "cannot commit a size");
                }
            })
            .await;
    }
}

/// Gives up what was written and is not stored, if anything is, and lets its programs hear of it.
pub(super) fn fail_buffered(file: &File, words: &'static str) {
    let mut state = file.state();
    if state.is_dirty() {
        state.record_failure(Failure::new(ErrorKind::SessionGone, words));
        let bytes = state.buffer.cut(0);
        state.release_memory(bytes);
        state.forget_writes();
    }
}

/// How long written bytes of an open file stay unknown to others at most, roughly.
const UPKEEP_PERIOD: Duration = Duration::from_secs(2);

/// What was fetched ahead and not wanted for this long is not wanted at all.
const PIECE_IDLE_MAX: Duration = Duration::from_secs(5);

/// Files that are flushed at the same time.
const FILES_AT_ONCE: usize = 16;
