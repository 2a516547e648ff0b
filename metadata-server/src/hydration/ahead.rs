//! Fetching before anybody asks: what is beside that for which readers had to wait.
//!
//! ```text
//!   targets report misses ─▶ which file, link and directory ─▶ the link's policy
//!        ahead:        demand of the directory ─▶ its next small files ─┐
//!        chunk, file:  the rest of it ────────────────────────────────┴▶ FetchAhead to targets
//! ```
//!
//! Nothing here is needed for anything but speed. It holds only what is in memory, sends a few
//! requests to each target at a time, and stops for a while where something fails or there is no
//! room: readers fetch for themselves what it leaves out.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_protocol::{
    ahead::{FetchPolicy, LinkFetches, Miss},
    capability::Content,
};
use millrace_types::{ByteLen, ChunkIndex, ErrorKind, Failure, InodeId, LinkId, MapEpoch};
use tokio::{sync::Notify, time::Instant};
use tokio_util::sync::CancellationToken;

use self::{
    demand::{Demand, Step},
    rest::Rest,
    sender::{Piece, Sender, Sent},
};
use super::{
    environment::Environment,
    import::broken,
    links::link_id,
    metrics::FollowCounts,
    spread::{Place, runs},
};
use crate::{
    namespace::{Body, Inode, tree},
    store::{
        View, keys,
        records::{FetchRecord, LinkRecord},
    },
};

mod demand;
mod rest;
mod sender;

/// Files up to this size are fetched because others of their directory are read. At 90 MB/s, what
/// one connection to S3 gives, 4 MiB take 50 ms: beyond it the wait for the first byte, which
/// fetching ahead saves, is a small part of the whole.
const SMALL_MAX: u64 = 4 << 20;

/// Misses that wait to be looked up: 24 bytes each.
const WAITING_MAX: usize = 16_384;

/// Misses that are looked up, and entries of a directory that are looked at, in one query.
const LOOKUPS: usize = 256;

/// Entries that are looked at in vain count as a file for each so many: a directory of millions in
/// which hardly anything is small is not walked through for a handful of misses.
const LOOKS_PER_FILE: u64 = 8;

/// Pieces of work between two looks at what has come in.
const STEPS: usize = 8;

/// What the log says of a target that is left alone.
const ALONE: &str = "nothing is fetched ahead of readers for a while";

/// Links whose policies are read; far beyond what anybody makes by hand.
const LINKS_MAX: usize = 10_000;

/// The pause before the policies are read again.
const RELOAD: Duration = Duration::from_secs(1);

/// Fetches ahead of readers. One per server.
#[derive(Debug)]
pub(super) struct Ahead<E> {
    environment: Arc<E>,
    counts: FollowCounts,
    state: Mutex<State>,
    news: Notify,
}

#[derive(Debug, Default)]
struct State {
    misses: VecDeque<Miss>,
    links: BTreeMap<LinkId, Fetches>,
}

/// What is fetched below a link, and what was.
#[derive(Clone, Copy, Debug)]
struct Fetches {
    policy: FetchPolicy,
    files: u64,
    bytes: u64,
}

/// What nobody has set.
const DEFAULT: Fetches = Fetches { policy: FetchPolicy::Ahead, files: 0, bytes: 0 };

/// Everything that is to be done.
#[derive(Default)]
struct Work {
    demand: Demand,
    rest: Rest,
    sender: Sender,
}

/// A file that somebody waited for.
struct Missed {
    link: LinkId,
    directory: Option<InodeId>,
    content: Content,
    chunk: ChunkIndex,
}

impl<E: Environment> Ahead<E> {
    pub(super) fn new(environment: Arc<E>, counts: FollowCounts) -> Self {
        Self { environment, counts, state: Mutex::default(), news: Notify::new() }
    }

    /// Takes a target's report. Never waits; what is too much is forgotten.
    pub(super) fn note(&self, misses: &[Miss]) {
        self.counts.missed(misses.len());
        let mut state = self.state();
        let room = WAITING_MAX.saturating_sub(state.misses.len());
        state.misses.extend(misses.iter().take(room));
        drop(state);
        self.news.notify_one();
    }

    /// Reads what is fetched below which link.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(super) async fn reload(&self) -> Result<(), Failure> {
        let policies = self.environment.read(policies).await?;
        let mut state = self.state();
        for (&link, &policy) in &policies {
            state.links.entry(link).or_insert(DEFAULT).policy = policy;
        }
        state.links.retain(|link, _| policies.contains_key(link));
        Ok(())
    }

    /// What all links fetch, and what they did.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(super) async fn status(&self) -> Result<Vec<LinkFetches>, Failure> {
        self.reload().await?;
        let state = self.state();
        let fetches = |(&link, &Fetches { policy, files, bytes }): (&LinkId, &Fetches)| {
            LinkFetches { link, policy, files, bytes }
        };
        Ok(state.links.iter().map(fetches).collect())
    }

    /// Fetches until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.fetch() => {}
        }
    }

    async fn fetch(&self) {
        while let Err(failure) = self.reload().await {
            tracing::warn!(%failure, "it cannot be read what links fetch ahead of readers");
            tokio::time::sleep(RELOAD).await;
        }
        let mut work = Work::default();
        loop {
            self.sort(&mut work).await;
            self.fill(&mut work).await;
            let sender = &mut work.sender;
            tokio::select! {
                Some(sent) = sender.next(Instant::now), if !sender.is_idle() => {
                    self.take(sent, &mut work);
                }
                () = self.news.notified() => {}
            }
        }
    }

    /// Looks up what was missed.
    async fn sort(&self, work: &mut Work) {
        loop {
            let misses: Vec<Miss> = {
                let mut state = self.state();
                let count = state.misses.len().min(LOOKUPS);
                state.misses.drain(..count).collect()
            };
            if misses.is_empty() {
                return;
            }
            // Before the files, as everywhere here: see `Sender::put`.
            let epoch = match self.environment.map().await {
                Ok(map) => map.epoch,
                Err(failure) => return tracing::debug!(%failure, "there is no map"),
            };
            let query = self.environment.read(move |view| {
                let found = misses.into_iter().map(|miss| look(view, miss));
                Ok(found.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect::<Vec<_>>())
            });
            match query.await {
                Ok(found) => found.into_iter().for_each(|one| self.sort_one(work, epoch, one)),
                Err(failure) => tracing::debug!(%failure, "what was missed cannot be looked up"),
            }
        }
    }

    fn sort_one(&self, work: &mut Work, epoch: MapEpoch, missed: Missed) {
        let Missed { link, directory, content, chunk } = missed;
        let now = Instant::now();
        match self.policy(link) {
            FetchPolicy::Asked => {}
            FetchPolicy::Chunk => work.rest.put(epoch, link, content, Some(chunk), now),
            FetchPolicy::File => work.rest.put(epoch, link, content, None, now),
            FetchPolicy::Ahead => {
                if let Some(directory) = directory
                    && content.origin_length <= SMALL_MAX
                {
                    work.demand.miss(directory, link, content.inode, now);
                }
            }
        }
    }

    fn policy(&self, link: LinkId) -> FetchPolicy {
        self.state().links.get(&link).unwrap_or(&DEFAULT).policy
    }

    /// Sends as much as targets shall have at a time.
    async fn fill(&self, work: &mut Work) {
        // Before the files: see `Sender::put`.
        let map = match self.environment.map().await {
            Ok(map) => map,
            Err(failure) => return tracing::debug!(%failure, "there is no map"),
        };
        for _ in 0..STEPS {
            let now = Instant::now();
            work.sender.send(&self.environment, now);
            if !work.sender.has_room(&map, now) {
                return;
            }
            let mut pieces = Vec::new();
            let (rest, step) = (work.rest.next(map.epoch), work.demand.next());
            if rest.is_none() && step.is_none() {
                return;
            }
            // A link may have been told otherwise meanwhile.
            pieces.extend(rest.filter(|piece| {
                matches!(self.policy(piece.link), FetchPolicy::Chunk | FetchPolicy::File)
            }));
            match step {
                Some(step) if self.policy(step.link) == FetchPolicy::Ahead => {
                    pieces.extend(self.step(work, step).await);
                }
                Some(step) => work.demand.forget(step.directory),
                None => {}
            }
            for piece in pieces {
                if let Err(failure) = work.sender.put(&map, &piece, now) {
                    tracing::debug!(%failure, "a file cannot be fetched ahead");
                }
            }
        }
        // Answers and reports come first.
        self.news.notify_one();
    }

    /// The next files of a directory.
    async fn step(&self, work: &mut Work, step: Step) -> Vec<Piece> {
        match self.environment.read(move |view| page(view, step)).await {
            Ok(Page { pieces, looked, last }) => {
                let charge = (pieces.len() as u64).max(looked / LOOKS_PER_FILE);
                work.demand.took(step, charge, last, Instant::now());
                pieces
            }
            Err(failure) => {
                tracing::debug!(%failure, directory = %step.directory, "cannot be looked at");
                work.demand.forget(step.directory);
                Vec::new()
            }
        }
    }

    fn take(&self, sent: Sent, work: &mut Work) {
        let results = match sent.result {
            Ok(reply) => reply.results,
            // The map changed: it is looked up anew when somebody waits again.
            Err(failure) if failure.kind == ErrorKind::StaleGroup => return,
            Err(failure) => {
                if work.sender.leave_alone(sent.place, Instant::now()) {
                    tracing::info!(%failure, target = %sent.place.target, ALONE);
                }
                return;
            }
        };
        for (piece, result) in sent.pieces.iter().zip(results) {
            match result {
                Ok(ByteLen(0)) => {}
                Ok(ByteLen(bytes)) => {
                    self.counts.fetched_ahead(bytes);
                    let mut state = self.state();
                    let fetches = state.links.entry(piece.link).or_insert(DEFAULT);
                    (fetches.files, fetches.bytes) = (fetches.files + 1, fetches.bytes + bytes);
                }
                Err(failure) => Self::give_up(work, sent.place, piece, &failure),
            }
        }
    }

    /// Stops what a failure says is no use now. A single file is left to its readers.
    fn give_up(work: &mut Work, place: Place, piece: &Piece, failure: &Failure) {
        match failure.kind {
            ErrorKind::NoSpace => {
                if work.sender.leave_alone(place, Instant::now()) {
                    tracing::info!(%failure, target = %place.target, ALONE);
                }
            }
            ErrorKind::BucketUnavailable | ErrorKind::BucketDenied => match piece.directory {
                Some(directory) => work.demand.forget(directory),
                None => work.rest.forget(&piece.item.content),
            },
            _ => tracing::debug!(%failure, inode = %piece.item.content.inode, "not fetched ahead"),
        }
    }

    /// Whether reports wait to be looked at.
    #[cfg(test)]
    pub(super) fn has_news(&self) -> bool {
        !self.state().misses.is_empty()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The policies of all links.
fn policies(view: &dyn View) -> Result<BTreeMap<LinkId, FetchPolicy>, Failure> {
    let links = tree::scan::<LinkRecord>(view, &keys::links(), LINKS_MAX).map_err(broken)?;
    let set = tree::scan::<FetchRecord>(view, &keys::fetches(), LINKS_MAX).map_err(broken)?;
    let links = links.iter().map(|(key, _)| (link_id(key, &keys::links()), DEFAULT.policy));
    let set = set.iter().map(|(key, record)| (link_id(key, &keys::fetches()), record.policy));
    Ok(links.chain(set).collect())
}

/// The file of a miss, as long as it has that content.
fn look(view: &dyn View, miss: Miss) -> Result<Option<Missed>, Failure> {
    let Some(inode) = tree::find(view, miss.content.inode).map_err(broken)? else {
        return Ok(None);
    };
    let Some((link, content)) = backed(&inode) else { return Ok(None) };
    if content.generation != miss.content.generation {
        return Ok(None);
    }
    let directory = inode.parent.as_ref().map(|parent| parent.directory);
    Ok(Some(Missed { link, directory, content, chunk: miss.chunk }))
}

/// What of a file its object backs: the link, and its content.
fn backed(inode: &Inode) -> Option<(LinkId, Content)> {
    let Body::File(body) = &inode.body else { return None };
    let link = body.origin.as_ref()?.link;
    let mut content = inode.content()?;
    content.origin_length = content.origin_length.min(inode.size);
    (content.origin_length > 0 && body.inline.is_none()).then_some((link, content))
}

/// What was found in a directory.
struct Page {
    pieces: Vec<Piece>,
    /// Entries that were looked at.
    looked: u64,
    /// Behind which it goes on; `None` at the end.
    last: Option<u64>,
}

/// Some small files of a directory.
fn page(view: &dyn View, step: Step) -> Result<Page, Failure> {
    let listed = tree::list(view, step.directory, step.cookie, LOOKUPS).map_err(broken)?;
    let mut page = Page { pieces: Vec::new(), looked: 0, last: None };
    for (_, entry) in listed {
        if page.pieces.len() as u64 >= step.files {
            break;
        }
        (page.looked, page.last) = (page.looked + 1, Some(entry.cookie));
        let inode = tree::named(view, &entry).map_err(broken)?;
        let Some((link, content)) = backed(&inode) else { continue };
        let size = content.origin_length;
        if link == step.link && size <= SMALL_MAX {
            let directory = Some(step.directory);
            let items = runs(&content, size);
            page.pieces.extend(items.map(|item| Piece { link, directory, item, size }));
        }
    }
    Ok(page)
}
