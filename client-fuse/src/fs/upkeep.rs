//! What happens without being asked for: idle read-ahead is dropped, and what a program has written
//! and not closed reaches the servers within seconds.

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use futures::{StreamExt as _, stream};
use millrace_types::{ChangeCount, ErrorKind, Failure};

use crate::fs::{
    FileSystem,
    file::{File, State},
};

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
            // What slow readers are on the way to is not kept at the cost of all others.
            let is_short = self.budget.end_shortage();
            for file in self.files.all() {
                let mut state = file.state();
                let State { pieces, streams, .. } = &mut *state;
                streams.handle_tick();
                pieces.evict(now, PIECE_IDLE_MAX, |range| !is_short && streams.awaits(range));
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
        let mut incarnation = self.cluster.restarts();
        while incarnation.changed().await.is_ok() {
            let present = *incarnation.borrow_and_update();
            self.handle_log_losses();
            // First, because all mounts wait for it.
            let are_declared = self.declare_locks().await;
            self.declare_reads();
            if are_declared {
                self.say_all_told(present);
            }
        }
    }

    /// Waits for the loss of the session, and then fails what was buffered under it, gives up the
    /// locks that were held under it, and opens again what is open. May be dropped at any time.
    pub(crate) async fn watch_session(&self) {
        let mut losses = self.cluster.losses();
        // In this order: one that ended before this is not heard of any more.
        self.begin_writing(self.cluster.session());
        while losses.changed().await.is_ok() {
            let session = self.cluster.session();
            self.lose_locks();
            self.lose_unpublished();
            self.files.forget_counts();
            self.begin_writing(session);
            for file in self.files.all() {
                self.fail_buffered(&file, "the session ended before the writes were stored");
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

    /// Gives up what was written and is not stored, if anything is, and lets its programs hear of
    /// it.
    pub(super) fn fail_buffered(&self, file: &File, words: &'static str) {
        let mut state = file.state();
        if state.is_dirty() {
            // Before the bytes are gone: who opens the file then must not keep the kernel's pages.
            self.kept.forget(file.inode);
            state.give_up_writes(Failure::new(ErrorKind::SessionGone, words));
            drop(state);
            self.drop_unstored(file);
        }
    }
}

impl State {
    /// Gives up what waits to be stored, and what was stored and not told: a failure. The end of
    /// the file is where the server says, which is asked before anything is appended.
    fn give_up_writes(&mut self, failure: Failure) {
        self.record_failure(failure);
        if let Some(start) = self.buffer.first_behind(0) {
            let given_up = start..self.buffer.end();
            self.record_unstored(&given_up);
        }
        let bytes = self.buffer.cut(0);
        self.release_memory(bytes);
        self.forget_writes();
        self.lease = None;
        self.attributes.change_count = ChangeCount(0);
    }

    /// Whether the file ends elsewhere than at `end`, as it did at `count`, or may.
    pub(super) fn has_other_end(&self, end: u64, count: ChangeCount) -> bool {
        // It counts lower once what was known is given up.
        self.attributes.size != end || self.attributes.change_count < count
    }
}

/// How long written bytes of an open file stay unknown to others at most, roughly.
const UPKEEP_PERIOD: Duration = Duration::from_secs(2);

/// What was fetched ahead and not wanted for this long is not wanted at all, unless its reader is
/// still on the way to it and there is memory.
const PIECE_IDLE_MAX: Duration = Duration::from_secs(5);

/// Files that are flushed at the same time.
const FILES_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use millrace_protocol::capability::Rights;
    use millrace_types::{TargetId, Timestamp};

    use super::*;
    use crate::{
        cache::budget::Budget,
        fs::file::tests::{file, reply},
    };

    #[test]
    fn after_writes_are_given_up_nothing_is_appended_before_the_server_was_asked() {
        let file = file(7);
        let mut state = file.state();
        state.accept(reply(5, 100, 1, Rights::ReadWrite)).expect("sound");
        state.permit = Budget::new(1000).try_take(100);
        state.buffer.insert(100, &[7; 100]);
        state.record_write(&(100..200), Timestamp(20));
        let (end, count) = (state.attributes.size, state.attributes.change_count);
        assert_eq!(end, 200);
        assert!(!state.has_other_end(end, count));

        state.give_up_writes(ErrorKind::SessionGone.into());
        assert!(state.permit.is_none() && state.buffer.held_bytes() == 0);
        assert_eq!(state.failures, 1);
        assert!(state.has_other_end(end, count), "who has waited must look again");
        assert_ne!(state.attributes.change_count, count, "the server's count says nothing of it");
        // It has not changed there.
        state.accept(reply(5, 100, 1, Rights::ReadWrite)).expect("sound");
        assert!(state.has_other_end(end, count));
        assert_eq!(state.attributes.size, 100);
    }

    #[test]
    fn writes_that_are_given_up_leave_a_hole_before_what_is_stored_behind_them() {
        let file = file(7);
        let mut state = file.state();
        state.permit = Budget::new(1000).try_take(100);
        state.buffer.insert(0, &[7; 100]);
        state.record_write(&(0..100), Timestamp(20));
        state.give_up_writes(ErrorKind::SessionGone.into());
        assert!(!state.has_unstored_hole(), "the file ends before it");
        let access = state.access.clone().expect("it may be written");
        state.record_stored(&(100..200), &access, TargetId([1; 8]), 0);
        assert!(state.has_unstored_hole());
    }
}
