//! Which inodes this mount has changed of late, and of which of these a change is lost.
//!
//! The metadata server acknowledges a change before it is on stable storage. Where its host loses
//! power before that, whoever syncs such an inode here has to hear of it: the server that is back
//! has nothing of the change, and would sync what it has. It syncs by itself within a second, so
//! that those that were changed last are enough to know.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{StreamExt as _, stream};
use millrace_protocol::{capability::Content, lease::Recall};
use millrace_types::{ChangeCount, ErrorKind, Failure, InodeId, LogIndex};

use crate::{
    cluster::Logged,
    fs::{
        FileSystem,
        file::{Access, File, State},
    },
};

/// That of one mount.
#[derive(Debug, Default)]
pub(crate) struct Unsynced {
    recent: Mutex<Recent>,
}

#[derive(Debug, Default)]
struct Recent {
    /// Inodes with the newest change of each.
    young: HashMap<InodeId, LogIndex>,
    /// Those before, to be forgotten next.
    old: HashMap<InodeId, LogIndex>,
    /// Those that lost one, of which no program has been told.
    lost: HashSet<InodeId>,
    /// Up to where the log was still the same after each loss that was dealt with.
    ends: Vec<LogIndex>,
}

impl Unsynced {
    /// These inodes were changed by what stands there.
    fn record(&self, logged: Logged, inodes: impl IntoIterator<Item = InodeId>) {
        let Logged { index, losses } = logged;
        let mut recent = self.lock();
        if recent.kept_since(losses).is_some_and(|kept| index > kept) {
            // It went with a loss that was dealt with before this.
            recent.add_lost(inodes);
            return;
        }
        for inode in inodes {
            if recent.young.len() >= CHANGED_MAX {
                recent.old = std::mem::take(&mut recent.young);
            }
            recent.young.insert(inode, index);
        }
    }

    /// The log is on stable storage up to there.
    fn handle_synced(&self, logged: Logged) {
        let mut recent = self.lock();
        // Otherwise what stands there by now may be something else.
        if recent.kept_since(logged.losses).is_none() {
            recent.young.retain(|_, at| *at > logged.index);
            recent.old.retain(|_, at| *at > logged.index);
        }
    }

    /// The log has lost its end so often, and kept what stands up to each of these. Of losses that
    /// are new, answers what has gone with them.
    fn handle_losses(&self, ends: &[LogIndex]) -> Option<HashSet<InodeId>> {
        let mut recent = self.lock();
        let kept = *ends.get(recent.ends.len()..)?.iter().min()?;
        recent.ends = ends.to_vec();
        let Recent { young, old, .. } = &mut *recent;
        let gone = [young, old].into_iter().flat_map(|changes| {
            changes.extract_if(move |_, at| *at > kept).map(|(inode, _)| inode)
        });
        let lost: HashSet<_> = gone.collect();
        recent.add_lost(lost.iter().copied());
        Some(lost)
    }

    /// Whether the inode has lost a change that no program was told of; one is from here on.
    fn take_lost(&self, inode: InodeId) -> bool {
        self.lock().lost.remove(&inode)
    }

    fn lock(&self) -> MutexGuard<'_, Recent> {
        // Each step leaves the sets whole.
        self.recent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Recent {
    /// Where the log has lost its end more often than this: what it kept of what stood there then.
    fn kept_since(&self, losses: usize) -> Option<LogIndex> {
        self.ends.get(losses..)?.iter().min().copied()
    }

    fn add_lost(&mut self, inodes: impl IntoIterator<Item = InodeId>) {
        if self.lost.len() > LOST_MAX {
            // Nobody has asked since another loss of power.
            self.lost.clear();
        }
        self.lost.extend(inodes);
    }
}

impl FileSystem {
    /// A change that concerned these, and made or changed `inode`, stands there.
    pub(super) fn record_unsynced(
        &self,
        logged: Logged,
        concerned: &[Recall],
        inode: Option<InodeId>,
    ) {
        // First: of those before nothing may be left.
        self.handle_log_losses();
        let concerned = concerned.iter().filter_map(|recall| match recall {
            Recall::Name(directory, _) => Some(*directory),
            Recall::Attributes(inode) => Some(*inode),
            Recall::Lease(_) | Recall::Everything => None,
        });
        self.unsynced.record(logged, concerned.chain(inode));
    }

    /// The server's log is on stable storage up to `index`, which it has just answered.
    pub(super) fn record_synced(&self, index: LogIndex) {
        // First: it may have lost what stood there before.
        self.handle_log_losses();
        let losses = self.unsynced.lock().ends.len();
        self.unsynced.handle_synced(Logged { index, losses });
    }

    /// Waits until the log is on stable storage, with all that was acknowledged and is not lost.
    ///
    /// # Errors
    /// As [`crate::cluster::Cluster::sync_metadata`].
    pub(super) async fn sync_log(&self) -> Result<(), Failure> {
        let synced = self.cluster.sync_metadata().await?;
        // First: it may have lost what stood there before.
        self.handle_log_losses();
        self.unsynced.handle_synced(synced);
        Ok(())
    }

    /// `fsync` of a directory: what was made, renamed or removed there survives a loss of power of
    /// the servers, unless [`Self::tell_lost`] says something else after this.
    ///
    /// # Errors
    /// What the server answers.
    pub(crate) async fn sync_directory(&self, inode: InodeId) -> Result<(), Failure> {
        self.settle(inode).await?;
        self.sync_log().await
    }

    /// What a program is answered that has synced a directory: once whether a change of it is lost.
    ///
    /// # Errors
    /// [`ErrorKind::Lost`].
    pub(crate) fn tell_lost(&self, inode: InodeId) -> Result<(), Failure> {
        self.handle_log_losses();
        if self.unsynced.take_lost(inode) { Err(lost()) } else { Ok(()) }
    }

    /// Records for every handle of a file whether a change of it is lost.
    pub(super) fn record_lost(&self, file: &File) {
        self.handle_log_losses();
        if self.unsynced.take_lost(file.inode) {
            let failure = lost();
            tracing::error!(inode = %file.inode, %failure, "fsync fails");
            file.state().record_loss(failure);
        }
    }

    /// Where the server has lost the end of its log since this was called last: whatever is known
    /// of open files may be newer than what it has, and is told again; and what the kernel keeps of
    /// any file is no better. What is under leases is dropped with each life of the server.
    pub(super) fn handle_log_losses(&self) {
        let Some(lost) = self.unsynced.handle_losses(&self.cluster.log_ends()) else { return };
        self.files.forget_counts();
        self.kept.forget_all();
        let open = self.files.all();
        for file in &open {
            file.state().handle_log_loss(lost.contains(&file.inode));
        }
        self.spawn(|this| async move {
            let dropped = stream::iter(open).for_each_concurrent(DROPS_AT_ONCE, async |file| {
                this.pages.drop_all(file.inode).await;
            });
            dropped.await;
        });
    }
}

impl State {
    /// The server has lost the end of its log: it may show less than it did, and count anew. What
    /// it was told of a file that `was_changed` of late may be lost, and is told again.
    pub(super) fn handle_log_loss(&mut self, was_changed: bool) {
        self.attributes.change_count = ChangeCount(0);
        self.pages_count = ChangeCount(0);
        self.durable.forget_counts();
        self.lease = None;
        if !was_changed {
            return;
        }
        self.committed = 0;
        let version = self.content.as_ref().map(|shown| (shown.generation, shown.write_epoch));
        if version == Some(self.stored.version) {
            self.own_end = self.own_end.max(self.stored.end);
        }
        self.privileges.handle_log_loss();
        if self.needs_commit()
            && let Some(marked) = self.access.as_ref().filter(|access| access.content.sparse)
        {
            // The mark may be lost with the end: behind a hole without it, that would tell the
            // server of bytes which no target has.
            self.access = Some(Arc::new(marked.with_mark(false)));
            self.gave_up = true;
        }
    }
}

impl Access {
    /// The same, of a content that is said to have holes or not.
    fn with_mark(&self, sparse: bool) -> Self {
        let content = Content { sparse, ..self.content.clone() };
        let (rights, session) = (self.rights, self.session);
        Self { content, capability: self.capability.clone(), rights, session }
    }
}

fn lost() -> Failure {
    Failure::new(ErrorKind::Lost, "the metadata server lost a change that it had acknowledged")
}

/// Inodes whose changes are remembered, twice: as many as a mount changes in three seconds, of some
/// 50 bytes each.
const CHANGED_MAX: usize = 16 * 1024;

/// Inodes that have lost changes, before those of one more loss.
const LOST_MAX: usize = 32 * 1024;

/// Files whose pages are dropped at the same time.
const DROPS_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use millrace_types::TargetId;

    use super::*;
    use crate::fs::file::tests::file;

    const ONE: InodeId = InodeId(1);
    const TWO: InodeId = InodeId(2);

    fn at(losses: usize, index: u64) -> Logged {
        Logged { index: LogIndex(index), losses }
    }

    fn ends<const N: usize>(ends: [u64; N]) -> [LogIndex; N] {
        ends.map(LogIndex)
    }

    #[test]
    fn what_was_not_synced_is_lost_and_told_once() {
        let unsynced = Unsynced::default();
        unsynced.record(at(0, 7), [ONE]);
        unsynced.record(at(0, 8), [TWO]);
        assert_eq!(unsynced.handle_losses(&[]), None, "nothing is lost");
        unsynced.handle_synced(at(0, 7));
        assert_eq!(unsynced.handle_losses(&ends([0])), Some(HashSet::from([TWO])));
        assert_eq!(unsynced.handle_losses(&ends([0])), None, "it is dealt with");
        assert!(!unsynced.take_lost(ONE), "it was synced");
        assert!(unsynced.take_lost(TWO) && !unsynced.take_lost(TWO));
        // The log goes on with lower indexes.
        unsynced.record(at(1, 3), [ONE]);
        assert_eq!(unsynced.handle_losses(&ends([0, 2])), Some(HashSet::from([ONE])));
    }

    #[test]
    fn what_stands_before_the_end_of_the_log_is_not_lost() {
        let unsynced = Unsynced::default();
        unsynced.record(at(0, 7), [ONE]);
        unsynced.record(at(0, 8), [TWO]);
        assert_eq!(unsynced.handle_losses(&ends([7])), Some(HashSet::from([TWO])));
        assert!(!unsynced.take_lost(ONE) && unsynced.take_lost(TWO));
        // Nor is it synced. Of two losses at once the earlier end counts.
        unsynced.record(at(1, 9), [TWO]);
        assert_eq!(unsynced.handle_losses(&ends([7, 6, 8])), Some(HashSet::from([ONE, TWO])));
    }

    #[test]
    fn an_answer_that_is_recorded_after_a_loss_counts_as_of_before_it() {
        let unsynced = Unsynced::default();
        unsynced.handle_losses(&ends([7]));
        unsynced.record(at(0, 7), [ONE]);
        unsynced.record(at(0, 8), [TWO]);
        assert!(!unsynced.take_lost(ONE), "the log kept it");
        assert!(unsynced.take_lost(TWO), "it went with what was lost");
        // What was synced then says nothing of what stands there now.
        unsynced.record(at(1, 8), [TWO]);
        unsynced.handle_synced(at(0, 8));
        assert_eq!(unsynced.handle_losses(&ends([7, 7])), Some(HashSet::from([TWO])));
    }

    #[test]
    fn a_sync_covers_no_change_behind_it_of_the_same_inode() {
        let unsynced = Unsynced::default();
        unsynced.record(at(0, 7), [ONE]);
        unsynced.record(at(0, 9), [ONE]);
        unsynced.handle_synced(at(0, 8));
        unsynced.handle_losses(&ends([8]));
        assert!(unsynced.take_lost(ONE));
    }

    #[test]
    fn the_newest_changes_are_remembered_and_no_more_than_so_many() {
        let unsynced = Unsynced::default();
        let most = u64::try_from(CHANGED_MAX).expect("some thousands");
        for number in 0..3 * most {
            unsynced.record(at(0, 1 + number), [InodeId(number)]);
        }
        let lost = unsynced.handle_losses(&ends([0])).expect("it is the first");
        assert_eq!(lost.len(), 2 * CHANGED_MAX);
        assert!((most..3 * most).all(|number| lost.contains(&InodeId(number))));
        for losses in 1..8 {
            let first = u64::try_from(losses).expect("a few") * 3 * most;
            for number in 0..2 * most {
                unsynced.record(at(losses, 1 + number), [InodeId(first + number)]);
            }
            unsynced.handle_losses(&vec![LogIndex(0); losses + 1]);
            assert!(unsynced.lock().lost.len() <= LOST_MAX + 2 * CHANGED_MAX);
        }
    }

    #[test]
    fn of_a_file_with_holes_the_server_hears_that_again_before_its_end() {
        let file = file(20);
        let access = file.access().expect("it was opened");
        let mut state = file.state();
        state.access = Some(Arc::new(access.with_mark(true)));
        state.record_stored(&(100..200), &access, TargetId([1; 8]), 0);
        let told = state.stored.acknowledgements;
        state.record_commit(told);
        state.handle_log_loss(false);
        assert!(!state.is_dirty() && state.is_sparse(), "no change of it was lost");
        state.handle_log_loss(true);
        assert!(state.has_unstored_hole() && !state.is_sparse());
        state.record_commit(told);
        assert!(state.needs_commit(), "the end says nothing of the hole");
        state.access = Some(Arc::new(access.with_mark(true)));
        assert!(!state.needs_commit(), "the server has said that it knows");
    }
}
