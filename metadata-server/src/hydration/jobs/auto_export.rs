//! Links that export by themselves: a file goes to the bucket once it has been left alone.
//!
//! ```text
//!   the engine notes what is written, made or renamed ─▶ which link, and since when ─▶ queue
//!   at a start, and when a link begins to export: a walk over it finds what differs ─▶ queue
//!   queue ─▶ due, its link's turn, and nobody has it open ─▶ the export of one file, as in a job
//!                                             └▶ a failure that may pass: later again
//! ```
//!
//! Links share what there is: places in the queue, files under way and walks. One whose bucket does
//! not answer holds up no other.
//!
//! The queue is in memory: what a restart forgets, the walk finds. A file is sent as jobs send it,
//! with the same record of what is under way, so that an end in the middle is settled like theirs.
//! Below links that a job exports or releases nothing is sent here meanwhile: see [`Alone`].

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_protocol::{
    admin::JobFailure,
    bucket::{AUTO_EXPORT_FAILURES_MAX, AutoExport},
};
use millrace_types::{Failure, InodeId, LinkId};
use tokio::{
    sync::Notify,
    time::{Instant, sleep_until},
};

use self::{
    queue::{Queue, Waiting},
    standing::Standing,
    sweep::Sweep,
};
use super::{Alone, PAUSE, marks::Unmarked};
use crate::{
    hydration::{
        destination::link_of,
        environment::Environment,
        import::{Importer, broken},
        links::link_id,
        walk::{inode, path_of},
    },
    namespace::tree,
    store::{
        View, keys,
        records::{self, AutoExportRecord, LinkRecord},
    },
    written::Noted,
};

mod queue;
mod send;
mod standing;
mod sweep;
mod turns;

/// Sends what links export by themselves. One per server.
#[derive(Debug)]
pub(in crate::hydration) struct AutoExporter<E> {
    environment: Arc<E>,
    importer: Arc<Importer<E>>,
    unmarked: Arc<Unmarked>,
    state: Mutex<State>,
    reloading: tokio::sync::Mutex<()>,
    /// There may be a walk to begin, or room to go on with one.
    sorting: Notify,
    /// There may be something to send.
    sending: Notify,
}

#[derive(Debug, Default)]
struct State {
    links: BTreeMap<LinkId, Followed>,
    queue: Queue,
    /// Files that are being sent: each once, since the second would settle what the first has
    /// begun. What is due of them meanwhile comes after.
    under_way: HashMap<InodeId, UnderWay>,
    /// How many files were sent, or tried: the time by which links take turns.
    turns: u64,
    sweeps: VecDeque<Sweep>,
    /// The walk that is under way over each link.
    walking: BTreeMap<LinkId, Sweep>,
}

#[derive(Debug)]
struct UnderWay {
    link: LinkId,
    again: Option<Waiting>,
}

/// A link that exports by itself, and what became of that since the server began to run.
#[derive(Debug)]
struct Followed {
    directory: InodeId,
    quiet: Duration,
    files: u64,
    bytes: u64,
    failing: BTreeMap<InodeId, Failure>,
    standing: Standing,
    /// When its last turn was.
    turn: u64,
}

/// Failures that are remembered of one link.
const FAILING_MAX: usize = 10_000;

/// Inodes that are looked up in one query.
const LOOKUPS: usize = 256;

impl<E: Environment> AutoExporter<E> {
    pub(super) fn new(
        environment: Arc<E>,
        importer: Arc<Importer<E>>,
        unmarked: Arc<Unmarked>,
    ) -> Self {
        let (sorting, sending) = (Notify::new(), Notify::new());
        let (state, reloading) = (Mutex::default(), tokio::sync::Mutex::default());
        Self { environment, importer, unmarked, state, reloading, sorting, sending }
    }

    /// Reads which links export by themselves. Of one that did not before, everything is looked at.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(in crate::hydration) async fn reload(&self) -> Result<(), Failure> {
        // What was read first must be applied first.
        let _one = self.reloading.lock().await;
        let links = self.environment.read(followed).await?;
        // Before anything is looked at: what is written meanwhile comes by itself.
        self.environment.written().listen(!links.is_empty());
        let now = Instant::now();
        let mut state = self.state();
        let State { links: known, queue, sweeps, walking, .. } = &mut *state;
        known.retain(|link, _| {
            let stays = links.contains_key(link);
            if !stays {
                queue.forget(*link);
                sweeps.retain(|sweep| sweep.link != *link);
                walking.remove(link);
            }
            stays
        });
        for (link, (directory, quiet)) in links {
            match known.get_mut(&link) {
                Some(followed) => {
                    followed.quiet = quiet;
                    queue.hasten(link, now + quiet);
                }
                None => {
                    known.insert(link, Followed::new(directory, quiet));
                    sweep::put(sweeps, Sweep::of_link(link, directory, now + quiet));
                }
            }
        }
        drop(state);
        self.sorting.notify_one();
        self.sending.notify_one();
        Ok(())
    }

    /// How links export by themselves.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(in crate::hydration) async fn status(&self) -> Result<Vec<AutoExport>, Failure> {
        let mut all = Vec::new();
        let mut failing = Vec::new();
        {
            let state = self.state();
            for (link, followed) in &state.links {
                all.push(AutoExport {
                    link: *link,
                    quiet_seconds: u32::try_from(followed.quiet.as_secs()).unwrap_or(u32::MAX),
                    waiting: state.waiting(*link) as u64,
                    files: followed.files,
                    bytes: followed.bytes,
                    failing: followed.failing.len() as u64,
                    failures: Vec::new(),
                });
                let first = followed.failing.iter().take(AUTO_EXPORT_FAILURES_MAX);
                failing.push(first.map(|(id, failure)| (*id, failure.clone())).collect::<Vec<_>>());
            }
        }
        for (link, failing) in all.iter_mut().zip(failing) {
            for (id, failure) in failing {
                match inode(&*self.environment, id).await {
                    Ok(inode) => {
                        let path = path_of(&*self.environment, &inode).await;
                        link.failures.push(JobFailure { path, failure });
                    }
                    // Removed since.
                    Err(_) => link.failing = link.failing.saturating_sub(1),
                }
            }
        }
        Ok(all)
    }

    /// Exports for as long as it is polled. May be dropped at any time.
    pub(super) async fn run(&self, alone: &Alone) {
        while let Err(failure) = self.reload().await {
            tracing::warn!(%failure, "it cannot be read which links export by themselves");
            tokio::time::sleep(PAUSE).await;
        }
        self.take_up();
        tokio::join!(self.sort(), self.send(alone));
    }

    /// What was being sent or walked over when this was dropped is looked at again.
    fn take_up(&self) {
        let now = Instant::now();
        let mut state = self.state();
        for (id, UnderWay { link, .. }) in std::mem::take(&mut state.under_way) {
            state.put_new(id, Waiting { link, due: now, failed: 0 }, now);
        }
        for (_, sweep) in std::mem::take(&mut state.walking) {
            sweep::put(&mut state.sweeps, sweep);
        }
    }

    /// Puts what happened into the queue, and what walks find. What is written while walks are
    /// under way is put there between their pages.
    async fn sort(&self) {
        let mut walks = Vec::new();
        loop {
            self.sort_noted().await;
            let next = self.begin_walks(&mut walks);
            if self.walk_on(&mut walks).await {
                continue;
            }
            tokio::select! {
                () = self.environment.written().news() => {}
                () = self.sorting.notified() => {}
                () = until(next) => {}
                // There may be room for what a walk has found.
                () = tokio::time::sleep(PAUSE), if !walks.is_empty() => {}
            }
        }
    }

    async fn sort_noted(&self) {
        let Noted { changed, moved, missed } = self.environment.written().take();
        let inodes: Vec<InodeId> = changed.union(&moved).copied().collect();
        for some in inodes.chunks(LOOKUPS) {
            let some = some.to_vec();
            let query = self.environment.read(move |view| {
                let found = some.into_iter().map(|id| place_of(view, id));
                Ok(found.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect::<Vec<_>>())
            });
            match query.await {
                Ok(places) => places.into_iter().for_each(|place| {
                    let is_tree = place.is_directory && moved.contains(&place.inode);
                    self.handle_change(&place, is_tree);
                }),
                Err(failure) => {
                    tracing::warn!(%failure, "what was written cannot be looked up now");
                    return self.look_at_everything();
                }
            }
        }
        if missed {
            self.look_at_everything();
        }
        self.sending.notify_one();
    }

    fn handle_change(&self, place: &Place, is_tree: bool) {
        let now = Instant::now();
        let mut state = self.state();
        let Some(followed) = state.links.get(&place.link) else { return };
        let (directory, due) = (followed.directory, now + followed.quiet);
        let waiting = Waiting::changed(place.link, now, followed.quiet);
        if is_tree {
            let sweep = Sweep::of_tree(place.link, directory, place.inode, due);
            sweep::put(&mut state.sweeps, sweep);
        } else {
            let left_out = state.queue.put(place.inode, waiting);
            state.make_up(left_out, now);
        }
    }

    /// Something was written and nobody knows what.
    fn look_at_everything(&self) {
        let now = Instant::now();
        let mut state = self.state();
        let State { links, sweeps, .. } = &mut *state;
        for (link, followed) in links {
            let due = now + followed.quiet.max(PAUSE);
            sweep::put(sweeps, Sweep::of_all(*link, followed.directory, due));
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each step leaves it whole, so that a panic elsewhere cannot have torn it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Files of a link that wait, or are being sent.
    fn waiting(&self, link: LinkId) -> usize {
        self.queue.count(link) + self.busy(link)
    }

    /// Files of a link that are being sent.
    fn busy(&self, link: LinkId) -> usize {
        self.under_way.values().filter(|one| one.link == link).count()
    }

    /// Lets a file wait that does not yet, for whatever, if its link exports by itself still.
    fn put_new(&mut self, inode: InodeId, waiting: Waiting, now: Instant) {
        if self.links.contains_key(&waiting.link) {
            let left_out = self.queue.put_new(inode, waiting);
            self.make_up(left_out, now);
        }
    }

    /// A file of this link has no room in the queue: a walk will find it.
    fn make_up(&mut self, left_out: Option<LinkId>, now: Instant) {
        let Some(link) = left_out else { return };
        if let Some(followed) = self.links.get(&link) {
            let due = now + followed.quiet.max(PAUSE);
            sweep::put(&mut self.sweeps, Sweep::of_all(link, followed.directory, due));
        }
    }
}

impl Followed {
    fn new(directory: InodeId, quiet: Duration) -> Self {
        let (failing, standing) = (BTreeMap::new(), Standing::default());
        Self { directory, quiet, files: 0, bytes: 0, failing, standing, turn: 0 }
    }
}

/// An inode below a link.
struct Place {
    inode: InodeId,
    link: LinkId,
    is_directory: bool,
}

/// The links that export by themselves, with their directories and quiet times.
fn followed(view: &dyn View) -> Result<BTreeMap<LinkId, (InodeId, Duration)>, Failure> {
    let known = tree::scan::<AutoExportRecord>(view, &keys::auto_exports(), usize::MAX);
    let mut links = BTreeMap::new();
    for (key, AutoExportRecord { quiet_seconds }) in known.map_err(broken)? {
        let link = link_id(&key, &keys::auto_exports());
        let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        if let Some(record) = record.filter(|record| !record.removing) {
            links.insert(link, (record.directory, Duration::from_secs(quiet_seconds.into())));
        }
    }
    Ok(links)
}

/// Where an inode is, if that is below a link.
fn place_of(view: &dyn View, id: InodeId) -> Result<Option<Place>, Failure> {
    let Some(inode) = tree::find(view, id).map_err(broken)? else { return Ok(None) };
    let link = link_of(view, &inode)?;
    Ok(link.map(|link| Place { inode: id, link, is_directory: inode.is_directory() }))
}

/// Waits until then; without a moment, for ever.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_has_no_room_or_gives_it_to_another_link_is_found_by_a_walk() {
        let now = Instant::now();
        let mut state = State { queue: Queue::with_places(2), ..State::default() };
        for link in [1, 2] {
            state.links.insert(LinkId(link), Followed::new(InodeId(link.into()), Duration::ZERO));
        }
        for (inode, link) in [(10, 1), (11, 1), (20, 2), (21, 2), (30, 3)] {
            let waiting = Waiting::changed(LinkId(link), now, Duration::ZERO);
            state.put_new(InodeId(inode), waiting, now);
        }
        let counts = [1, 2, 3].map(|link| state.queue.count(LinkId(link)));
        assert_eq!(counts, [1, 1, 0], "a link that does so no more has nothing there");
        let walk = |link: u32| Sweep::of_all(LinkId(link), InodeId(link.into()), now + PAUSE);
        assert_eq!(state.sweeps, [walk(1), walk(2)]);
    }
}
