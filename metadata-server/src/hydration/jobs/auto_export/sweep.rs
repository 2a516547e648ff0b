//! Walks over a link, or over a directory that has another name: what differs from the bucket is
//! put into the queue.

use std::collections::VecDeque;

use millrace_types::{ErrorKind, Failure, InodeId, LinkId};
use tokio::time::Instant;

use super::{AutoExporter, Environment, queue::Waiting};
use crate::{
    hydration::{
        destination::destination,
        walk::{Unlisted, Walk},
    },
    namespace::{Body, Inode, ObjectState},
    store::View,
};

/// A walk that is to be made.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Sweep {
    pub(super) link: LinkId,
    top: InodeId,
    due: Instant,
    /// Also symbolic links and marks of directories, because they have other keys than before, or
    /// nobody knows what was written. Nothing here says whether the bucket has them, and to ask
    /// costs a request each.
    is_all: bool,
}

impl Sweep {
    pub(super) fn of_link(link: LinkId, directory: InodeId, due: Instant) -> Self {
        Self { link, top: directory, due, is_all: false }
    }

    pub(super) fn of_all(link: LinkId, directory: InodeId, due: Instant) -> Self {
        Self { link, top: directory, due, is_all: true }
    }
}

/// Directories whose walks wait; of more, everything below their links is looked at.
const SWEEPS_MAX: usize = 10_000;

/// Lets a walk wait, in the place of the same one.
pub(super) fn put(sweeps: &mut VecDeque<Sweep>, sweep: Sweep) {
    let same = |known: &Sweep| (known.top, known.is_all) == (sweep.top, sweep.is_all);
    sweeps.retain(|known| !same(known));
    if sweeps.len() >= SWEEPS_MAX {
        // The renamed files among them are found by the walk at the next start, or by a job.
        sweeps.pop_front();
    }
    sweeps.push_back(sweep);
}

/// Takes a walk that is due.
pub(super) fn take(sweeps: &mut VecDeque<Sweep>, now: Instant) -> Option<Sweep> {
    let at = sweeps.iter().position(|sweep| sweep.due <= now)?;
    sweeps.remove(at)
}

/// When the next walk is due.
pub(super) fn next(sweeps: &VecDeque<Sweep>) -> Option<Instant> {
    sweeps.iter().map(|sweep| sweep.due).min()
}

impl<E: Environment> AutoExporter<E> {
    /// Makes a walk. What is written meanwhile is put into the queue between its pages.
    pub(super) async fn sweep(&self, sweep: Sweep) {
        let mut walk = Walk::new(sweep.top, Unlisted::Leave);
        loop {
            match walk.next(&*self.environment, &self.importer).await {
                Ok(None) => return,
                Ok(Some(page)) => {
                    let query = self.environment.read(move |view| {
                        let wanted = page.iter().filter_map(|inode| {
                            match differs(view, inode, sweep.is_all) {
                                Ok(true) => Some(Ok(inode.id)),
                                Ok(false) => None,
                                Err(failure) => Some(Err(failure)),
                            }
                        });
                        wanted.collect::<Result<Vec<_>, _>>()
                    });
                    match query.await {
                        Ok(wanted) => self.put_found(sweep.link, &wanted).await,
                        Err(failure) => return self.put_off(sweep, &failure),
                    }
                }
                // Removed meanwhile.
                Err((_, failure)) if failure.kind == ErrorKind::Stale => {}
                Err((_, failure)) => return self.put_off(sweep, &failure),
            }
            Box::pin(self.sort_noted()).await;
        }
    }

    /// Puts what a walk found into the queue, when there is room.
    async fn put_found(&self, link: LinkId, found: &[InodeId]) {
        for &inode in found {
            while !self.put_one(link, inode) {
                // Some of it may be due.
                self.sending.notify_one();
                tokio::select! {
                    () = self.sorting.notified() => {}
                    () = tokio::time::sleep(super::PAUSE) => {}
                }
                Box::pin(self.sort_noted()).await;
            }
        }
        self.sending.notify_one();
    }

    /// False when there is no room.
    fn put_one(&self, link: LinkId, inode: InodeId) -> bool {
        let mut state = self.state();
        let waiting = Waiting { link, due: Instant::now(), failed: 0 };
        // Of a link that does so no more nothing is put there, which is as good.
        !state.links.contains_key(&link) || state.queue.put_new(inode, waiting)
    }

    fn put_off(&self, sweep: Sweep, failure: &Failure) {
        tracing::warn!(%failure, "a walk for files to export begins again in a moment");
        let due = Instant::now() + super::PAUSE;
        put(&mut self.state().sweeps, Sweep { due, ..sweep });
    }
}

/// Whether the bucket lacks something of an inode, as far as the inode says.
fn differs(view: &dyn View, inode: &Inode, is_all: bool) -> Result<bool, Failure> {
    match &inode.body {
        Body::File(file) => match file.state {
            ObjectState::Local | ObjectState::Dirty => Ok(true),
            // Both wait for a person.
            ObjectState::Conflict | ObjectState::Lost => Ok(false),
            ObjectState::Clean | ObjectState::Exported => match destination(view, inode) {
                Ok(there) => Ok(!file.origin.as_ref().is_some_and(|origin| there.is_of(origin))),
                Err(failure) if failure.kind == ErrorKind::Internal => Err(failure),
                Err(_) => Ok(false),
            },
        },
        Body::Symlink(_) | Body::Directory(_) => Ok(is_all),
        Body::Special => Ok(false),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn the_same_walk_waits_once_and_whichever_is_due_comes() {
        let now = Instant::now();
        let later = now + Duration::from_secs(9);
        let mut sweeps = VecDeque::new();
        put(&mut sweeps, Sweep::of_link(LinkId(1), InodeId(5), now));
        put(&mut sweeps, Sweep::of_link(LinkId(1), InodeId(5), later));
        put(&mut sweeps, Sweep::of_all(LinkId(1), InodeId(6), now));
        assert_eq!((sweeps.len(), next(&sweeps)), (2, Some(now)));
        assert_eq!(take(&mut sweeps, now).map(|sweep| sweep.top), Some(InodeId(6)));
        assert_eq!((take(&mut sweeps, now), next(&sweeps)), (None, Some(later)));
    }
}
