//! Deletes the objects of what was removed here, where the link says so.
//!
//! ```text
//!   the removal of a last name, an export to another key (apply) ─▶ queue, in the log
//!   links that export by themselves: after the quiet time ─┐
//!   export jobs: at their end, below their top ────────────┴▶ is nobody here in need of it, and
//!                                      will nobody replace it? ─▶ delete if it is that version
//! ```
//!
//! It works in turn with the exports of each link, so that none of them puts a new version under a
//! key between the look at it and its deletion. What is not to be deleted now stays in the queue: a
//! restart begins with all of it. Links share the rounds, and one whose turn a job has, or whose
//! bucket is away or refuses, holds up no other.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use futures::{
    StreamExt as _,
    stream::{self, FuturesUnordered},
};
use millrace_object_source::{Error as BucketError, Tag};
use millrace_protocol::{
    admin::JobFailure,
    bucket::{DELETION_FAILURES_MAX, DeletePropagation},
    capability::Origin,
};
use millrace_types::{ErrorKind, Failure, InodeId, LinkId, Timestamp};
use tokio::{
    sync::Semaphore,
    time::{Instant, MissedTickBehavior},
};
use tokio_util::sync::CancellationToken;

use self::{
    aside::Aside,
    rounds::{Rounds, Share, part_of},
};
use super::{Alone, Context, alone::Claim};
use crate::{
    apply::place_of_key,
    hydration::{
        destination::prefix_of,
        environment::Environment,
        import::{Importer, broken, linked_anywhere},
        links::link_id,
        walk::refused,
    },
    namespace::{Body, Inode, tree},
    store::{
        View, keys,
        records::{self, AutoExportRecord, DeletePropagationRecord, DeletionRecord, LinkRecord},
    },
};

mod aside;
mod forget;
mod rounds;

/// Deletions of one link under way at the same time, if no others are at work; else its part of
/// them, and one at least.
const DELETIONS_MAX: usize = 16;

/// Deletions of all links under way at the same time.
const REQUESTS_MAX: usize = 32;

/// Links that have their turn at the same time. Those that wait for it are not counted: jobs that
/// have it for long hold up no others.
const LINKS_MAX: usize = 256;

/// Entries of the queue that are looked at in one query.
const PAGE_ENTRIES: usize = 256;

/// Pages of one link that are looked at for one round: a link with 200,000 entries that all are
/// aside is looked through in a minute.
const PAGES_MAX: usize = 16;

/// How often the queue is looked at.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// Deletes what the queue says. One per server.
#[derive(Debug)]
pub(in crate::hydration) struct Deleter<E> {
    environment: Arc<E>,
    importer: Arc<Importer<E>>,
    requests: Semaphore,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    deleted: BTreeMap<LinkId, u64>,
    aside: Aside,
    rounds: Rounds,
}

/// An entry of the queue.
#[derive(Debug, Clone)]
struct Queued {
    link: LinkId,
    /// Of the mark of a directory it ends in `/`.
    key: String,
    record: DeletionRecord,
}

/// What is to be done with an entry.
enum Verdict {
    Delete(LinkRecord),
    /// Something here may still need the object, or will replace it.
    Wait,
    /// It is somebody's object by now, or its link is gone.
    Drop,
}

/// How one entry ended.
enum Ended {
    Deleted,
    Dropped,
    Waits,
    Failed(Failure),
}

impl Ended {
    /// Whether the bucket cannot be reached.
    fn is_away(&self) -> bool {
        matches!(self, Self::Failed(failure) if failure.kind == ErrorKind::BucketUnavailable)
    }
}

impl<E: Environment> Deleter<E> {
    pub(super) fn new(environment: Arc<E>, importer: Arc<Importer<E>>) -> Self {
        let requests = Semaphore::new(REQUESTS_MAX);
        Self { environment, importer, requests, state: Mutex::default() }
    }

    /// The links whose removals reach the bucket.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(in crate::hydration) async fn status(&self) -> Result<Vec<DeletePropagation>, Failure> {
        let counts = self.environment.read(|view| {
            let mut counts = Vec::new();
            for (link, since) in links(view)? {
                let prefix = keys::deletions(link);
                let waiting = tree::scan::<DeletionRecord>(view, &prefix, COUNTED_MAX);
                counts.push((link, since, waiting.map_err(broken)?.len() as u64));
            }
            Ok(counts)
        });
        let counts = counts.await?;
        let state = self.state();
        let one = |(link, since, waiting): (LinkId, Timestamp, u64)| {
            let failing = state.aside.failing(link, since).count() as u64;
            let first = state.aside.failing(link, since).take(DELETION_FAILURES_MAX);
            let failure = |(key, failure): (&String, &Failure)| JobFailure {
                path: key.clone().into_bytes(),
                failure: failure.clone(),
            };
            let failures = first.map(failure).collect();
            let deleted = state.deleted.get(&link).copied().unwrap_or(0);
            DeletePropagation { link, waiting, deleted, failing, failures }
        };
        Ok(counts.into_iter().map(one).collect())
    }

    /// Works off what is due of links that export by themselves, for as long as it is polled.
    pub(super) async fn run(&self, alone: &Alone) {
        let mut looks = tokio::time::interval(LOOK_INTERVAL);
        looks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut busy, working) = (BTreeSet::new(), AtomicUsize::new(0));
        let mut links = FuturesUnordered::new();
        loop {
            tokio::select! {
                Some(link) = links.next(), if !links.is_empty() => {
                    busy.remove(&link);
                }
                _ = looks.tick() => match self.round(&busy, working.load(Ordering::Relaxed)).await {
                    Ok(round) => {
                        busy.extend(round.iter().map(|share| share.link));
                        let count = working.load(Ordering::Relaxed) + round.len();
                        let work = |share| self.work_off_link(alone, &working, share, count);
                        links.extend(round.into_iter().map(work));
                    }
                    Err(failure) => {
                        tracing::warn!(%failure, "the queue of deletions cannot be read");
                    }
                },
            }
        }
    }

    /// Works off shares of a link, which is one of `links` that are at work, for as long as
    /// anything of them can be deleted. It is counted as `working` while it has its turn. Which
    /// link it was.
    async fn work_off_link(
        &self,
        alone: &Alone,
        working: &AtomicUsize,
        first: Share,
        links: usize,
    ) -> LinkId {
        let (link, stop) = (first.link, CancellationToken::new());
        // One whose bucket is away shall keep few requests from others.
        let at_once = match self.state().rounds.has_failed(link) {
            true => 1,
            false => (DELETIONS_MAX / links.max(1)).max(1),
        };
        let mut next = Some(first);
        while let Some(share) = next.take() {
            let query = self.environment.read(move |view| Claim::of_link(view, link));
            // The next round tells why not.
            let Ok(claim) = query.await else { break };
            // As a job, so that exports which never stop make way.
            let turn = alone.take(Arc::new(claim)).await;
            working.fetch_add(1, Ordering::Relaxed);
            let ended = self.work_off(link, share.entries, at_once, &stop).await;
            working.fetch_sub(1, Ordering::Relaxed);
            drop(turn);
            // Where nothing can be deleted, it waits for the next round.
            if ended.iter().any(|(_, ended)| matches!(ended, Ended::Deleted)) {
                next = self.next_share(link, part_of(links)).await.unwrap_or_default();
            }
        }
        link
    }

    /// At the end of an export job, whose turn it is: deletes what was removed below its top, and
    /// counts it.
    pub(super) async fn finish(&self, context: &Context<'_, E>, stop: &CancellationToken) {
        let root = context.job.root;
        let places = match self.environment.read(move |view| below(view, root)).await {
            Ok(places) => places,
            Err(failure) => return context.fail_id(root, failure).await,
        };
        // One that came below the top since has another's turn, or nobody's.
        let turn = context.turn;
        let has_turn = |(link, _): &(LinkId, String)| turn.is_some_and(|turn| turn.has(*link));
        for (link, prefix) in places.into_iter().filter(has_turn) {
            let mut after = None;
            loop {
                let page = match self.page(link, after.take()).await {
                    Ok(page) => page,
                    Err(failure) => return context.fail_id(root, failure).await,
                };
                let Some(last) = page.last() else { break };
                after = Some(last.key.clone());
                let page: Vec<_> =
                    page.into_iter().filter(|one| one.key.starts_with(&prefix)).collect();
                let mut is_away = false;
                for (key, ended) in self.work_off(link, page, DELETIONS_MAX, stop).await {
                    is_away |= ended.is_away();
                    match ended {
                        Ended::Deleted => context.apart(key.into_bytes(), Ok(())),
                        Ended::Failed(failure) => context.apart(key.into_bytes(), Err(failure)),
                        Ended::Dropped | Ended::Waits => {}
                    }
                }
                // The rest of it would take as long each, and nobody else has its turn meanwhile.
                if is_away {
                    break;
                }
            }
        }
    }

    /// A round: a share of what is due of each link that exports by itself, and is not `busy`.
    /// So many have their turn.
    async fn round(&self, busy: &BTreeSet<LinkId>, working: usize) -> Result<Vec<Share>, Failure> {
        let query = self.environment.read(|view| {
            let mut all = Vec::new();
            for (link, _) in links(view)? {
                all.push((link, quiet_seconds(view, link)?));
            }
            Ok(all)
        });
        let mut round = Vec::new();
        for (link, quiet_seconds) in self.order(query.await?) {
            if busy.contains(&link) {
                continue;
            }
            if working + round.len() >= LINKS_MAX {
                break;
            }
            let share = self.share(link, quiet_seconds).await?;
            if !share.entries.is_empty() {
                round.push(share);
            }
        }
        let most = part_of(working + round.len());
        let mut state = self.state();
        for share in &mut round {
            state.rounds.cut(share, most);
        }
        drop(state);
        Ok(round)
    }

    /// What is due of a link behind its last share, if it still exports by itself: so many entries
    /// at most.
    async fn next_share(&self, link: LinkId, most: usize) -> Result<Option<Share>, Failure> {
        let query = self.environment.read(move |view| {
            let is_on = view.get(&keys::delete_propagation(link)).map_err(broken)?.is_some();
            Ok(quiet_seconds(view, link)?.filter(|_| is_on))
        });
        let Some(quiet_seconds) = query.await? else { return Ok(None) };
        let mut share = self.share(link, quiet_seconds).await?;
        self.state().rounds.cut(&mut share, most);
        Ok(Some(share).filter(|share| !share.entries.is_empty()))
    }

    /// The links whose turn it is, of all whose removals reach the bucket; what is known of others
    /// is forgotten.
    fn order(&self, all: Vec<(LinkId, Option<u32>)>) -> Vec<(LinkId, u32)> {
        let on: BTreeSet<LinkId> = all.iter().map(|(link, _)| *link).collect();
        let mut state = self.state();
        state.aside.keep_links(|link| on.contains(&link));
        state.rounds.keep_links(|link| on.contains(&link));
        let quiet = all.into_iter().filter_map(|(link, quiet)| Some((link, quiet?)));
        state.rounds.order(quiet.collect(), Instant::now())
    }

    /// What is due of a link, from where its last share ended.
    async fn share(&self, link: LinkId, quiet_seconds: u32) -> Result<Share, Failure> {
        let quiet = Duration::from_secs(quiet_seconds.into());
        let now = self.environment.now();
        let mut after = self.state().rounds.after(link);
        let mut entries = Vec::new();
        for _ in 0..PAGES_MAX {
            let page = self.page(link, after.take()).await?;
            let is_last = page.len() < PAGE_ENTRIES;
            after = page.last().filter(|_| !is_last).map(|last| last.key.clone());
            let moment = Instant::now();
            let state = self.state();
            entries.extend(page.into_iter().filter(|one| {
                one.record.queued.plus(quiet) <= now && state.aside.is_due(one, moment)
            }));
            if is_last || entries.len() >= PAGE_ENTRIES {
                break;
            }
        }
        self.state().rounds.handle_look(link, after);
        Ok(Share { link, entries })
    }

    /// Some entries of a link behind a key, or its first ones.
    async fn page(&self, link: LinkId, after: Option<String>) -> Result<Vec<Queued>, Failure> {
        let behind = after.clone();
        let query = self.environment.read(move |view| page(view, link, behind.as_deref()));
        let page = query.await?;
        let is_last = page.len() < PAGE_ENTRIES;
        self.state().aside.keep(link, after.as_deref(), &page, is_last);
        Ok(page)
    }

    /// Works off entries of a link, so many at a time. When its bucket cannot be reached, the rest
    /// of them wait.
    async fn work_off(
        &self,
        link: LinkId,
        entries: Vec<Queued>,
        at_once: usize,
        stop: &CancellationToken,
    ) -> Vec<(String, Ended)> {
        let is_away = &AtomicBool::new(false);
        let ended = stream::iter(entries).map(|entry| async move {
            let _request = self.requests.acquire().await.expect("it is never closed");
            if stop.is_cancelled() || is_away.load(Ordering::Relaxed) {
                return (entry.key, Ended::Waits);
            }
            let ended = self.one(&entry).await.unwrap_or_else(Ended::Failed);
            if ended.is_away() {
                is_away.store(true, Ordering::Relaxed);
            }
            self.note(&entry, &ended);
            (entry.key, ended)
        });
        let ended: Vec<_> = ended.buffer_unordered(at_once).collect().await;
        if self.state().rounds.handle_end(link, &ended, Instant::now()) {
            tracing::warn!(%link, "a bucket refuses deletions, or is away: they come more rarely");
        }
        ended
    }

    async fn one(&self, entry: &Queued) -> Result<Ended, Failure> {
        let wanted = entry.clone();
        let link = match self.environment.read(move |view| judge(view, &wanted)).await? {
            Verdict::Delete(link) => link,
            Verdict::Wait => return Ok(Ended::Waits),
            Verdict::Drop => {
                self.forget(entry).await?;
                return Ok(Ended::Dropped);
            }
        };
        // Of a removal that a loss of power takes back the object must be there.
        self.environment.settled().await?;
        let bucket = self.importer.bucket(&link.bucket)?;
        let key = &entry.key;
        if key.ends_with('/') {
            // Something else is below it, or the object has bytes: it is no mark of ours alone.
            if !bucket.unmark_directory(key).await? {
                return Ok(Ended::Waits);
            }
        } else {
            match bucket.delete(key, &Tag::new(entry.record.tag.clone())?).await {
                Ok(()) => {}
                Err(BucketError::Changed { .. }) => {
                    tracing::info!(key, "an object that was removed here is another one by now");
                    self.forget(entry).await?;
                    return Ok(Ended::Dropped);
                }
                Err(error) => return Err(error.into()),
            }
        }
        tracing::debug!(key, "deleted in the bucket");
        self.forget_deleted(entry).await?;
        Ok(Ended::Deleted)
    }

    fn note(&self, entry: &Queued, ended: &Ended) {
        let mut state = self.state();
        let failure = match ended {
            Ended::Deleted => {
                *state.deleted.entry(entry.link).or_default() += 1;
                return state.aside.forget(entry);
            }
            Ended::Dropped => return state.aside.forget(entry),
            Ended::Waits => None,
            Ended::Failed(failure) => Some(failure),
        };
        let is_new = state.aside.put(entry, failure.cloned(), Instant::now());
        if let Some(failure) = failure.filter(|_| is_new) {
            tracing::warn!(key = entry.key, %failure, "an object cannot be deleted now");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        // Each step leaves it whole, so that a panic elsewhere cannot have torn it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The most entries that are counted of one link.
const COUNTED_MAX: usize = 100_000;

/// The links whose removals reach the bucket, ascending, and since when.
fn links(view: &dyn View) -> Result<Vec<(LinkId, Timestamp)>, Failure> {
    let known = tree::scan::<LinkRecord>(view, &keys::links(), usize::MAX).map_err(broken)?;
    let mut links = Vec::new();
    for (key, _) in known {
        let link = link_id(&key, &keys::links());
        let on: Option<DeletePropagationRecord> =
            records::read(view, &keys::delete_propagation(link)).map_err(broken)?;
        links.extend(on.map(|on| (link, on.since)));
    }
    Ok(links)
}

/// How long files of a link are left alone before they go, if they do by themselves.
fn quiet_seconds(view: &dyn View, link: LinkId) -> Result<Option<u32>, Failure> {
    let export: Option<AutoExportRecord> =
        records::read(view, &keys::auto_export(link)).map_err(broken)?;
    Ok(export.map(|export| export.quiet_seconds))
}

fn page(view: &dyn View, link: LinkId, after: Option<&str>) -> Result<Vec<Queued>, Failure> {
    let table = keys::deletions(link);
    let first = after.map_or_else(|| table.clone(), |after| keys::deletion(link, after));
    let found = tree::scan_after::<DeletionRecord>(view, &table, &first, PAGE_ENTRIES);
    let entry = |(key, record): (Vec<u8>, DeletionRecord)| Queued {
        link,
        key: String::from_utf8_lossy(keys::after(&key, &table)).into_owned(),
        record,
    };
    Ok(found.map_err(broken)?.into_iter().map(entry).collect())
}

/// The links at and below a job's top, with what the keys of its part begin with.
fn below(view: &dyn View, root: InodeId) -> Result<Vec<(LinkId, String)>, Failure> {
    let top = tree::inode(view, root).map_err(refused)?;
    if !top.is_directory() {
        return Ok(Vec::new());
    }
    if let Some(linked) = linked_anywhere(view, root)? {
        let prefix = prefix_of(view, root)?;
        return Ok(prefix.map(|prefix| (linked.link, prefix)).into_iter().collect());
    }
    let mut found = Vec::new();
    for (link, _) in links(view)? {
        let record: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        let Some(record) = record else { continue };
        let directory = tree::find(view, record.directory).map_err(broken)?;
        if let Some(directory) = directory
            && tree::is_below(view, &directory, root).map_err(broken)?
        {
            found.push((link, String::new()));
        }
    }
    Ok(found)
}

fn judge(view: &dyn View, entry: &Queued) -> Result<Verdict, Failure> {
    let link: Option<LinkRecord> = records::read(view, &keys::link(entry.link)).map_err(broken)?;
    let Some(link) = link.filter(|link| !link.removing) else { return Ok(Verdict::Drop) };
    // It may have waited long for its turn: switched off meanwhile, or queued again.
    let now: Option<DeletionRecord> =
        records::read(view, &keys::deletion(entry.link, &entry.key)).map_err(broken)?;
    if now.as_ref() != Some(&entry.record) {
        return Ok(Verdict::Wait);
    }
    let is_its = |origin: &Origin| origin.link == entry.link && origin.key == entry.key;
    let needs = |inode: &Inode| match &inode.body {
        Body::File(file) => {
            let origin = file.origin.as_ref().filter(|origin| is_its(origin));
            origin.is_some_and(|origin| origin.tag == entry.record.tag)
        }
        _ => false,
    };
    let place = place(view, entry.link, &entry.key)?;
    if entry.key.ends_with('/') {
        return Ok(match place.inode {
            Some(inode) if inode.is_directory() => Verdict::Drop,
            _ => Verdict::Delete(link),
        });
    }
    match &place.inode {
        Some(inode) if inode.is_directory() => {}
        Some(inode) => match &inode.body {
            Body::File(file) if file.origin.as_ref().is_some_and(is_its) => {
                return Ok(Verdict::Drop);
            }
            // Its export replaces the object.
            Body::File(_) => return Ok(Verdict::Wait),
            _ => {}
        },
        None => {}
    }
    // Without a name and open still, or moved away and not exported yet.
    for id in entry.record.inodes.iter().copied().chain(place.moved) {
        let inode = tree::find(view, id).map_err(broken)?;
        if inode.as_ref().is_some_and(needs) {
            return Ok(Verdict::Wait);
        }
    }
    Ok(Verdict::Delete(link))
}

/// What is here where a key would be.
#[derive(Default)]
struct Place {
    inode: Option<Inode>,
    /// The file that had the name before.
    moved: Option<InodeId>,
}

fn place(view: &dyn View, link: LinkId, key: &str) -> Result<Place, Failure> {
    let Some((directory, name)) = place_of_key(view, link, key).map_err(broken)? else {
        return Ok(Place::default());
    };
    let entry = tree::entry(view, directory, &name).map_err(broken)?;
    let inode = entry.map(|entry| tree::named(view, &entry).map_err(broken)).transpose()?;
    let moved = view.get(&keys::moved_file(directory, name.as_bytes())).map_err(broken)?;
    let moved = moved.and_then(|id| id.as_slice().try_into().ok().map(u64::from_be_bytes));
    Ok(Place { inode, moved: moved.map(InodeId) })
}
