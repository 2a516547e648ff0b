//! Links that export by themselves: a file goes to the bucket once it has been left alone.
//!
//! ```text
//!   the engine notes what is written, made or renamed ─▶ which link, and since when ─▶ queue
//!   at a start, and when a link begins to export: a walk over it finds what differs ─▶ queue
//!   queue ─▶ due, and nobody has it open ─▶ the export of one file, as in a job
//!                                             └▶ a failure that may pass: later again
//! ```
//!
//! The queue is in memory: what a restart forgets, the walk finds. A file is sent as jobs send it,
//! with the same record of what is under way, so that an end in the middle is settled like theirs.
//! While a job exports or releases, nothing is sent here: see [`Alone`].

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use millrace_protocol::{
    admin::{JobFailure, JobKind},
    bucket::{AUTO_EXPORT_FAILURES_MAX, AutoExport},
    selection::Selection,
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, InodeId, LinkId, Timestamp};
use tokio::{
    sync::{Notify, Semaphore},
    time::{Instant, sleep_until},
};

use self::{
    queue::{Queue, Waiting},
    sweep::Sweep,
};
use super::{
    Alone, Context, Filter, PAUSE, Progress,
    export::{self, Counted, FILES_MAX, UPLOADS_MAX},
    file_export::Sent,
    marks::Unmarked,
    settle,
    start::fresh,
};
use crate::{
    hydration::{
        environment::Environment,
        import::{Importer, broken},
        links::link_id,
        walk::{inode, path_of, refused},
    },
    leases::touched::writers,
    namespace::{Body, Inode, tree},
    store::{
        View, keys,
        records::{self, AutoExportRecord, JobRecord, LinkRecord},
    },
    written::Noted,
};

mod queue;
mod sweep;

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
    sweeps: VecDeque<Sweep>,
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
}

/// Failures that are remembered of one link.
const FAILING_MAX: usize = 10_000;

/// Inodes that are looked up in one query.
const LOOKUPS: usize = 256;

/// A file that is open is looked at again after the quiet time, but not more often.
const OPEN_PAUSE: Duration = Duration::from_secs(1);

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
        let State { links: known, queue, sweeps, .. } = &mut *state;
        known.retain(|link, _| {
            let stays = links.contains_key(link);
            if !stays {
                queue.forget(*link);
                sweeps.retain(|sweep| sweep.link != *link);
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

    /// What was being sent when this was dropped is looked at again.
    fn take_up(&self) {
        let now = Instant::now();
        let mut state = self.state();
        for (id, UnderWay { link, .. }) in std::mem::take(&mut state.under_way) {
            // There is room: these were taken out of it.
            let _ = state.queue.put_new(id, Waiting { link, due: now, failed: 0 });
        }
    }

    /// Puts what happened into the queue, and what walks find.
    async fn sort(&self) {
        loop {
            self.sort_noted().await;
            let now = Instant::now();
            let (due, next) = {
                let mut state = self.state();
                (sweep::take(&mut state.sweeps, now), sweep::next(&state.sweeps))
            };
            if let Some(sweep) = due {
                self.sweep(sweep).await;
                continue;
            }
            tokio::select! {
                () = self.environment.written().news() => {}
                () = self.sorting.notified() => {}
                () = until(next) => {}
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
            sweep::put(&mut state.sweeps, Sweep::of_all(place.link, place.inode, due));
        } else if !state.queue.put(place.inode, waiting) {
            sweep::put(&mut state.sweeps, Sweep::of_all(place.link, directory, due));
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

    /// Sends what is due.
    async fn send(&self, alone: &Alone) {
        let filter = Filter::compile(&Selection::default(), Timestamp(0)).expect("it has no words");
        let job = JobRecord {
            job: fresh(JobKind::Export, Vec::new()),
            caller: Caller::ROOT,
            root: InodeId::ROOT,
        };
        let context = Context {
            environment: &self.environment,
            importer: &self.importer,
            unmarked: &self.unmarked,
            job: &job,
            filter: &filter,
            files: None,
            dry_run: false,
            progress: &Progress::default(),
            outcomes: None,
            pace: None,
            elsewhere: None,
        };
        let uploads = Arc::new(Semaphore::new(UPLOADS_MAX));
        let mut files = FuturesUnordered::new();
        let mut turn = None;
        loop {
            while turn.is_some()
                && files.len() < FILES_MAX
                && !alone.is_wanted()
                && let Some((id, waiting)) = self.take_due()
            {
                let (context, uploads) = (&context, &uploads);
                files.push(
                    async move { (id, waiting, one(context, uploads, id, waiting.link).await) },
                );
            }
            if files.is_empty() {
                turn = None;
            }
            let next = self.state().queue.next();
            let is_due = next.is_some_and(|next| next <= Instant::now());
            tokio::select! {
                Some((id, waiting, result)) = files.next(), if !files.is_empty() => {
                    self.handle_end(id, waiting, result);
                }
                taken = alone.take_last(), if turn.is_none() && is_due => {
                    turn = Some(taken);
                    let Self { environment, importer, unmarked, .. } = self;
                    let removed = settle::removed(environment, importer, unmarked);
                    if let Err(failure) = Box::pin(removed).await {
                        tracing::warn!(%failure, "exports of removed files cannot be looked for");
                    }
                }
                () = self.sending.notified() => {}
                () = until(next), if !is_due => {}
            }
        }
    }

    fn take_due(&self) -> Option<(InodeId, Waiting)> {
        let now = Instant::now();
        let mut state = self.state();
        let State { queue, under_way, .. } = &mut *state;
        while let Some((id, waiting)) = queue.take(now) {
            // A walk may wait for room.
            self.sorting.notify_one();
            if let Some(same) = under_way.get_mut(&id) {
                same.again = Some(waiting);
                continue;
            }
            under_way.insert(id, UnderWay { link: waiting.link, again: None });
            return Some((id, waiting));
        }
        None
    }

    fn handle_end(&self, id: InodeId, waiting: Waiting, result: Result<Counted, Failure>) {
        let now = Instant::now();
        let mut state = self.state();
        let State { links, queue, under_way, sweeps } = &mut *state;
        let again = under_way.remove(&id).and_then(|same| same.again);
        if let Some(again) = again
            && let Some(followed) = links.get(&again.link)
            && !queue.put_new(id, again)
        {
            sweep::put(sweeps, Sweep::of_all(again.link, followed.directory, now));
        }
        let Some(followed) = links.get_mut(&waiting.link) else { return };
        let again = match result {
            Ok(Counted::Yes { sent }) => {
                followed.failing.remove(&id);
                if let Sent::Now(bytes) = sent {
                    followed.files += 1;
                    followed.bytes += bytes;
                    self.importer.counts.sent_by_itself(bytes);
                }
                return;
            }
            Ok(Counted::No) => return drop(followed.failing.remove(&id)),
            Err(failure) if failure.kind == ErrorKind::Stale => {
                return drop(followed.failing.remove(&id));
            }
            Err(failure) if failure.kind == ErrorKind::InUse => {
                Waiting { due: now + followed.quiet.max(OPEN_PAUSE), ..waiting }
            }
            Err(failure) => {
                self.importer.counts.failed_by_itself();
                let may_pass = may_pass(failure.kind);
                if waiting.failed == 0 {
                    tracing::warn!(inode = %id, %failure, "a file cannot go to its bucket now");
                }
                if followed.failing.len() < FAILING_MAX {
                    followed.failing.insert(id, failure);
                }
                waiting.after_failure(now, followed.quiet, may_pass)
            }
        };
        if !queue.put_new(id, again) {
            sweep::put(sweeps, Sweep::of_all(waiting.link, followed.directory, again.due));
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
        let under_way = self.under_way.values().filter(|one| one.link == link);
        self.queue.count(link) + under_way.count()
    }
}

impl Followed {
    fn new(directory: InodeId, quiet: Duration) -> Self {
        Self { directory, quiet, files: 0, bytes: 0, failing: BTreeMap::new() }
    }
}

/// An inode below a link.
struct Place {
    inode: InodeId,
    link: LinkId,
    is_directory: bool,
}

/// Exports one file, link or mark of a directory, as it is now.
async fn one<E: Environment>(
    context: &Context<'_, E>,
    uploads: &Arc<Semaphore>,
    id: InodeId,
    link: LinkId,
) -> Result<Counted, Failure> {
    let query = context.environment.read(move |view| {
        // Of another link by now, or of none.
        let stays = place_of(view, id)?.is_some_and(|place| place.link == link);
        if !stays {
            return Ok(None);
        }
        let is_written = !writers(view, id).map_err(broken)?.is_empty();
        Ok(Some((tree::inode(view, id).map_err(refused)?, is_written)))
    });
    let Some((inode, is_written)) = query.await? else { return Ok(Counted::No) };
    if is_written {
        return Err(ErrorKind::InUse.into());
    }
    match export::begin(context, uploads, inode) {
        Some(export) => export.await.result,
        None => Ok(Counted::No),
    }
}

/// Whether a failure may be gone by itself after a while.
fn may_pass(kind: ErrorKind) -> bool {
    let of_servers = matches!(
        kind,
        ErrorKind::NoSpace | ErrorKind::Disk | ErrorKind::StaleGroup | ErrorKind::Internal
    );
    let of_buckets = matches!(kind, ErrorKind::BucketUnavailable | ErrorKind::BucketDenied);
    kind.is_transient() || of_servers || of_buckets
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
    if inode.is_directory() {
        let link = link_of(&inode);
        return Ok(link.map(|link| Place { inode: id, link, is_directory: true }));
    }
    let Some(parent) = &inode.parent else { return Ok(None) };
    let directory = tree::find(view, parent.directory).map_err(broken)?;
    let link = directory.as_ref().and_then(link_of);
    Ok(link.map(|link| Place { inode: id, link, is_directory: false }))
}

fn link_of(directory: &Inode) -> Option<LinkId> {
    match &directory.body {
        Body::Directory(body) => body.linked.as_ref().map(|linked| linked.link),
        _ => None,
    }
}

/// Waits until then; without a moment, for ever.
async fn until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => std::future::pending().await,
    }
}
