//! Programs that read on through a descriptor while another host changes the file.
//!
//! The kernel answers them from the pages that it has, and asks nobody. While a lease stands on the
//! file nobody has changed it. Where none does, the server is asked about it now and then, and the
//! kernel drops its pages where it shows another count. So what a program reads is a little behind
//! and no more, however long it keeps its descriptor. No request waits for any of this.
//!
//! Files that are open for writing here are left alone: their count changes with each commit and
//! open of this host, whose kernel has seen every byte of it. Whoever writes what others write too
//! takes locks, which renew what they cover.

use std::{collections::HashSet, sync::Arc, time::Duration};

use futures::{StreamExt as _, stream::FuturesUnordered};
use millrace_types::{ErrorKind, Failure, InodeId};
use tokio::time::{Instant, MissedTickBehavior};

use crate::fs::{
    FileSystem,
    file::{File, State, are_other_versions},
};

/// When the server is asked next whether the kernel's pages of an open file are old.
#[derive(Debug, Default)]
pub(crate) struct Paged {
    /// Nothing while no handle reads through them; otherwise as soon as no lease stands, if that is
    /// later.
    due: Option<Instant>,
    /// What is waited after a look that has shown nothing new, where no lease is granted.
    pause: Duration,
}

impl Paged {
    /// An open has let the kernel keep pages.
    pub(super) fn handle_open(&mut self) {
        if self.due.is_none() {
            (self.due, self.pause) = (Some(Instant::now()), PERIOD);
        }
    }

    /// The server has shown the file at `now`, under a lease or not, as its pages are or not. No
    /// pause is longer than `most`.
    fn handle_look(&mut self, now: Instant, most: Duration, is_covered: bool, is_same: bool) {
        self.pause = match is_same && !is_covered {
            true => (2 * self.pause).min(most),
            false => PERIOD,
        };
        let pause = if is_covered { Duration::ZERO } else { self.pause };
        self.due = Some(now + pause);
    }

    /// The server does not know the file any more.
    fn handle_gone(&mut self) {
        self.due = None;
    }
}

impl FileSystem {
    /// Looks after them until the mount ends. May be dropped at any time.
    pub(crate) async fn renew_older(&self) {
        let mut ticks = tokio::time::interval(PERIOD);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let mut looks = FuturesUnordered::new();
        // One whose reads a slow bucket has yet to answer is passed over until then.
        let mut looked_at = HashSet::new();
        loop {
            tokio::select! {
                Some(inode) = looks.next() => {
                    looked_at.remove(&inode);
                }
                _ = ticks.tick() => {
                    let room = LOOKS_MAX.saturating_sub(looks.len());
                    let due = self.due_files(|file| !looked_at.contains(&file.inode));
                    for file in due.into_iter().take(room.min(A_ROUND)) {
                        looked_at.insert(file.inode);
                        looks.push(self.look_at(file));
                    }
                }
            }
        }
    }

    /// The open files of which the kernel may have old pages and that are to be looked at, those
    /// first that have waited longest.
    fn due_files(&self, counts: impl Fn(&File) -> bool) -> Vec<Arc<File>> {
        let now = Instant::now();
        let mut due: Vec<_> = self
            .files
            .all()
            .into_iter()
            .filter(|file| counts(file))
            .filter_map(|file| {
                let state = file.state();
                let due = state.paged.due.filter(|due| *due <= now);
                let since = due.filter(|_| self.may_be_older(&file, &state));
                drop(state);
                since.map(|since| (since, file))
            })
            .collect();
        due.sort_by_key(|(since, _)| *since);
        due.into_iter().map(|(_, file)| file).collect()
    }

    async fn look_at(&self, file: Arc<File>) -> InodeId {
        if let Err(failure) = self.renew_if_older(&file).await {
            tracing::debug!(inode = %file.inode, %failure, "whether pages are old is not known");
            let mut state = file.state();
            // What was shown meanwhile is no reason not to look again.
            state.lease = None;
            match failure.kind {
                ErrorKind::Stale => state.paged.handle_gone(),
                _ => {
                    let most = state.pause_max();
                    state.paged.handle_look(Instant::now(), most, false, true);
                }
            }
        }
        file.inode
    }

    /// Asks the server about a file, and has the kernel drop its pages where they are of another
    /// count. Of another version of its object those stay that the kernel has: who has the older
    /// one open may read them on, and nothing else.
    ///
    /// # Errors
    /// What the server answers.
    async fn renew_if_older(&self, file: &File) -> Result<(), Failure> {
        let caller = file.state().caller.clone();
        let (reply, lease) = self.show_inode(&caller, file.inode).await?;
        let stay = {
            let mut state = file.state();
            state.accept_under(reply, lease)?;
            let is_same = state.pages_count == state.attributes.change_count;
            let is_covered = self.is_covered(file.inode, &state);
            let most = state.pause_max();
            state.paged.handle_look(Instant::now(), most, is_covered, is_same);
            is_same || state.shows_other_version() || !state.is_only_read()
        };
        if stay {
            return Ok(());
        }
        self.refresh(file).await?;
        let shown = {
            let state = file.state();
            if state.versions || !state.is_only_read() {
                return Ok(());
            }
            state.attributes.change_count
        };
        // Reads hold their pages until they are answered.
        self.reads.earlier(file.inode).await;
        self.pages.drop_all(file.inode).await;
        let mut state = file.state();
        state.pages_count = state.pages_count.max(shown);
        Ok(())
    }

    /// Whether programs here may read pages of the file that another host has changed since.
    fn may_be_older(&self, file: &File, state: &State) -> bool {
        let stands = self.cluster.is_ticket_valid() && self.is_covered(file.inode, state);
        !stands && state.is_only_read() && !state.versions && state.unpublished.is_none()
    }
}

impl State {
    fn is_only_read(&self) -> bool {
        self.write_opens == 0
    }

    /// How long a look that shows nothing new puts off the next one at most.
    fn pause_max(&self) -> Duration {
        let has_object = self.content.as_ref().is_some_and(|content| content.origin.is_some());
        if has_object { OBJECT_PAUSE_MAX } else { PAUSE_MAX }
    }

    /// Whether what was shown last is another version of the object than the bytes that are read.
    fn shows_other_version(&self) -> bool {
        let (Some(held), Some(shown)) = (&self.access, &self.content) else { return false };
        are_other_versions(&held.content, shown)
    }
}

/// How long what is read so may be behind: less than people wait for who watch a file.
const PERIOD: Duration = Duration::from_secs(1);

/// The same of a file that does not change, and on which no lease is granted for all that: another
/// host has it open for writing, or leases in its directory are not worth their while.
const PAUSE_MAX: Duration = Duration::from_secs(8);

/// The same of a file that has an object in a bucket: what changes there is another version, whose
/// pages stay, and below links that look at their objects again no lease is ever granted.
const OBJECT_PAUSE_MAX: Duration = Duration::from_secs(128);

/// Files that one mount asks about in a [`PERIOD`]: 500 mounts with thousands of such files each
/// take half of what a metadata server answers at most.
const A_ROUND: usize = 20;

/// Looks under way, each of which may wait for reads of its file, and take half of the threads that
/// locks need as well.
const LOOKS_MAX: usize = 32;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_changes_is_looked_at_each_second_and_one_that_does_not_less_often() {
        let mut paged = Paged::default();
        assert_eq!(paged.due, None, "nobody reads it");
        paged.handle_open();
        let opened = paged.due.expect("it is open");
        paged.handle_open();
        assert_eq!(paged.due, Some(opened));

        let mut now = Instant::now() + PERIOD;
        let mut look = |is_covered, is_same| {
            paged.handle_look(now, PAUSE_MAX, is_covered, is_same);
            let after = paged.due.expect("it is open") - now;
            now += after;
            after
        };
        for seconds in [2, 4, 8, 8] {
            assert_eq!(look(false, true), Duration::from_secs(seconds));
        }
        assert_eq!(look(false, false), PERIOD, "it has changed");
        assert_eq!(look(false, true), 2 * PERIOD);
        assert_eq!(look(true, true), Duration::ZERO, "as soon as the lease is taken back");
        assert_eq!(look(false, true), 2 * PERIOD);
        paged.handle_gone();
        assert_eq!(paged.due, None);
    }
}
