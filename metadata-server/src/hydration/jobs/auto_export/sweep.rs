//! Walks over a link, or over a directory that has another name: what differs from the bucket is
//! put into the queue.
//!
//! Of each link one walk is under way at a time, and they take turns a page at a time. One whose
//! link finds no room in the queue waits where it is, and holds up no other.

use std::collections::{BTreeMap, VecDeque};

use millrace_types::{ErrorKind, Failure, InodeId, LinkId};
use tokio::time::Instant;

use super::{AutoExporter, Environment, State, queue::Waiting};
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
    /// The link's.
    directory: InodeId,
    top: InodeId,
    due: Instant,
    /// Also symbolic links and marks of directories, because they have other keys than before, or
    /// nobody knows what was written. Nothing here says whether the bucket has them, and to ask
    /// costs a request each.
    is_all: bool,
}

impl Sweep {
    pub(super) fn of_link(link: LinkId, directory: InodeId, due: Instant) -> Self {
        Self { link, directory, top: directory, due, is_all: false }
    }

    pub(super) fn of_all(link: LinkId, directory: InodeId, due: Instant) -> Self {
        Self { link, directory, top: directory, due, is_all: true }
    }

    /// Below one directory of the link.
    pub(super) fn of_tree(link: LinkId, directory: InodeId, top: InodeId, due: Instant) -> Self {
        Self { link, directory, top, due, is_all: true }
    }
}

/// Directories whose walks wait; of more, everything below a link that has the most is looked at.
const SWEEPS_MAX: usize = 10_000;

/// Lets a walk wait, in the place of the same one.
pub(super) fn put(sweeps: &mut VecDeque<Sweep>, sweep: Sweep) {
    let same = |known: &Sweep| (known.top, known.is_all) == (sweep.top, sweep.is_all);
    sweeps.retain(|known| !same(known));
    if sweeps.len() >= SWEEPS_MAX {
        merge(sweeps);
    }
    sweeps.push_back(sweep);
}

/// Has one walk, over the whole link, take the place of all those of the link that has the most.
fn merge(sweeps: &mut VecDeque<Sweep>) {
    let mut counts = BTreeMap::new();
    for sweep in sweeps.iter() {
        *counts.entry(sweep.link).or_insert(0_usize) += 1;
    }
    let most = counts.into_iter().max_by_key(|(_, count)| *count).map(|(link, _)| link);
    let of_most = sweeps.iter().filter(|sweep| Some(sweep.link) == most);
    let Some(last) = of_most.max_by_key(|sweep| sweep.due).copied() else { return };
    sweeps.retain(|sweep| sweep.link != last.link);
    sweeps.push_back(Sweep::of_all(last.link, last.directory, last.due));
}

/// Takes a walk that is due, of a link that is not being walked over.
fn take(
    sweeps: &mut VecDeque<Sweep>,
    now: Instant,
    walking: &BTreeMap<LinkId, Sweep>,
) -> Option<Sweep> {
    let may_begin = |sweep: &Sweep| sweep.due <= now && !walking.contains_key(&sweep.link);
    let at = sweeps.iter().position(may_begin)?;
    sweeps.remove(at)
}

/// When the next walk is due of a link that is not being walked over.
fn next(sweeps: &VecDeque<Sweep>, walking: &BTreeMap<LinkId, Sweep>) -> Option<Instant> {
    let may_begin = sweeps.iter().filter(|sweep| !walking.contains_key(&sweep.link));
    may_begin.map(|sweep| sweep.due).min()
}

/// A walk that is under way.
#[derive(Debug)]
pub(super) struct Walking {
    sweep: Sweep,
    walk: Walk,
    /// What it found and had no room yet.
    found: VecDeque<InodeId>,
}

/// What a step of a walk came to.
enum Step {
    Further,
    /// There is no room for what it found.
    Stuck,
    Ended,
}

impl<E: Environment> AutoExporter<E> {
    /// Begins the walks that are due, and drops those that are over. When the next one is due.
    pub(super) fn begin_walks(&self, walks: &mut Vec<Walking>) -> Option<Instant> {
        let now = Instant::now();
        let mut state = self.state();
        let State { sweeps, walking, .. } = &mut *state;
        // Also that over a link which exports by itself no more.
        walks.retain(|walk| walking.get(&walk.sweep.link) == Some(&walk.sweep));
        while let Some(sweep) = take(sweeps, now, walking) {
            walking.insert(sweep.link, sweep);
            let walk = Walk::new(sweep.top, Unlisted::Leave);
            walks.push(Walking { sweep, walk, found: VecDeque::new() });
        }
        next(sweeps, walking)
    }

    /// Makes a step of each walk. Whether any of them came further.
    pub(super) async fn walk_on(&self, walks: &mut [Walking]) -> bool {
        let mut is_further = false;
        for walking in walks {
            match self.step(walking).await {
                Step::Stuck => continue,
                Step::Further => {}
                Step::Ended => drop(self.state().walking.remove(&walking.sweep.link)),
            }
            is_further = true;
        }
        is_further
    }

    /// Looks at the next page, when all of the last one had room.
    async fn step(&self, walking: &mut Walking) -> Step {
        if !self.put_found(walking) {
            return Step::Stuck;
        }
        let sweep = walking.sweep;
        let page = match walking.walk.next(&*self.environment, &self.importer).await {
            Ok(None) => return Step::Ended,
            Ok(Some(page)) => page,
            // Removed meanwhile.
            Err((_, failure)) if failure.kind == ErrorKind::Stale => return Step::Further,
            // It would be the next time, too.
            Err((_, failure)) if failure.kind == ErrorKind::NotSupported => {
                tracing::warn!(%failure, "some files are not exported by themselves");
                return Step::Further;
            }
            Err((_, failure)) => return self.put_off(sweep, &failure),
        };
        let query = self.environment.read(move |view| {
            let wanted = page.iter().filter_map(|inode| match differs(view, inode, sweep.is_all) {
                Ok(true) => Some(Ok(inode.id)),
                Ok(false) => None,
                Err(failure) => Some(Err(failure)),
            });
            wanted.collect::<Result<VecDeque<_>, _>>()
        });
        match query.await {
            Ok(wanted) => walking.found = wanted,
            Err(failure) => return self.put_off(sweep, &failure),
        }
        self.put_found(walking);
        Step::Further
    }

    /// Puts what a walk found into the queue, as far as there is room. Whether that was all.
    fn put_found(&self, walking: &mut Walking) -> bool {
        while let Some(&inode) = walking.found.front() {
            if !self.put_one(walking.sweep.link, inode) {
                break;
            }
            walking.found.pop_front();
        }
        // Some of it may be due.
        self.sending.notify_one();
        walking.found.is_empty()
    }

    /// False when there is no room.
    fn put_one(&self, link: LinkId, inode: InodeId) -> bool {
        let now = Instant::now();
        let mut state = self.state();
        if !state.links.contains_key(&link) {
            // Of a link that does so no more nothing is put there, which is as good.
            return true;
        }
        match state.queue.put_new(inode, Waiting { link, due: now, failed: 0 }) {
            Some(left_out) if left_out == link => false,
            left_out => {
                state.make_up(left_out, now);
                true
            }
        }
    }

    fn put_off(&self, sweep: Sweep, failure: &Failure) -> Step {
        tracing::warn!(%failure, "a walk for files to export begins again in a moment");
        let due = Instant::now() + super::PAUSE;
        put(&mut self.state().sweeps, Sweep { due, ..sweep });
        Step::Ended
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
        let (mut sweeps, nobody) = (VecDeque::new(), BTreeMap::new());
        put(&mut sweeps, Sweep::of_link(LinkId(1), InodeId(5), now));
        put(&mut sweeps, Sweep::of_link(LinkId(1), InodeId(5), later));
        put(&mut sweeps, Sweep::of_all(LinkId(1), InodeId(6), now));
        assert_eq!((sweeps.len(), next(&sweeps, &nobody)), (2, Some(now)));
        assert_eq!(take(&mut sweeps, now, &nobody).map(|sweep| sweep.top), Some(InodeId(6)));
        assert_eq!((take(&mut sweeps, now, &nobody), next(&sweeps, &nobody)), (None, Some(later)));
    }

    #[test]
    fn a_link_with_too_many_directories_is_walked_over_whole_and_the_walks_of_others_stay() {
        let now = Instant::now();
        let (first, other) = (LinkId(1), LinkId(2));
        let mut sweeps = VecDeque::new();
        put(&mut sweeps, Sweep::of_tree(other, InodeId(1), InodeId(2), now));
        for top in 10..10 + SWEEPS_MAX as u64 {
            let due = now + Duration::from_secs(top);
            put(&mut sweeps, Sweep::of_tree(first, InodeId(3), InodeId(top), due));
        }
        // The last one came when all places were taken.
        let last = now + Duration::from_secs(8 + SWEEPS_MAX as u64);
        let merged = Sweep::of_all(first, InodeId(3), last);
        assert_eq!(sweeps.len(), 3);
        assert!(sweeps.contains(&merged), "when the last of them is due");
        assert!(sweeps.contains(&Sweep::of_tree(other, InodeId(1), InodeId(2), now)));
    }

    #[test]
    fn a_link_that_is_being_walked_over_holds_up_no_other() {
        let now = Instant::now();
        let (first, other) = (LinkId(1), LinkId(2));
        let mut sweeps = VecDeque::new();
        put(&mut sweeps, Sweep::of_link(first, InodeId(5), now));
        put(&mut sweeps, Sweep::of_link(other, InodeId(6), now));
        let mut walking = BTreeMap::from([(first, Sweep::of_all(first, InodeId(5), now))]);
        assert_eq!(take(&mut sweeps, now, &walking).map(|sweep| sweep.link), Some(other));
        assert_eq!((take(&mut sweeps, now, &walking), next(&sweeps, &walking)), (None, None));
        walking.clear();
        assert_eq!(next(&sweeps, &walking), Some(now));
        assert_eq!(take(&mut sweeps, now, &walking).map(|sweep| sweep.link), Some(first));
    }
}
