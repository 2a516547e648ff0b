//! Links that are listed again by themselves: rounds over the directories that have been listed.
//!
//! A round looks at each listed directory below a link, one after the other, and lists those again
//! whose last listing is older than the interval; one that nobody has looked into stays unlisted.
//! So two links take two of the listings that run at a time at most ([`ROUNDS_MAX`]), whatever they
//! hold, and readers keep the rest. A round that takes longer than its interval is followed by the
//! next one at once.
//!
//! Nothing here must last: when a directory was listed is in its inode, so that after a restart a
//! round goes on with what is due.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use millrace_protocol::{
    metadata::FileKind,
    refresh::{
        REFRESH_INTERVAL_SECONDS_MAX, REFRESH_INTERVAL_SECONDS_MIN, RefreshInterval,
        SetRefreshInterval,
    },
};
use millrace_types::{ErrorKind, Failure, InodeId, LinkId, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use super::{
    environment::Environment,
    import::{Importer, broken},
    links::{link_at, link_id},
};
use crate::{
    command::{self, Command},
    namespace::{Body, LinkedDirectory, tree},
    store::{
        View, keys,
        records::{self, LinkRecord, RefreshIntervalRecord},
    },
};

/// Rounds that are under way at a time.
const ROUNDS_MAX: usize = 2;

/// How often it is looked which link is due.
const LOOK: Duration = Duration::from_secs(1);

/// Names of one query: keeps it short.
const NAMES_MAX: usize = 1000;

/// The most directories of one way down. The keys of a bucket have no more; renames can.
const DEPTH_MAX: usize = 4096;

/// Lists links again. One per server.
#[derive(Debug)]
pub(super) struct Refresher<E> {
    environment: Arc<E>,
    importer: Arc<Importer<E>>,
    state: Mutex<HashMap<LinkId, Progress>>,
    changed: Notify,
}

/// What became of a link's rounds.
#[derive(Debug, Clone, Default)]
struct Progress {
    running: bool,
    begun: Option<Timestamp>,
    ended: Option<Timestamp>,
    directories: u64,
    failed: u64,
    failure: Option<String>,
}

/// A link that is listed again by itself.
#[derive(Debug, Clone, Copy)]
struct Due {
    link: LinkId,
    top: InodeId,
    every: Duration,
}

impl<E: Environment> Refresher<E> {
    pub(super) fn new(environment: Arc<E>, importer: Arc<Importer<E>>) -> Self {
        Self { environment, importer, state: Mutex::default(), changed: Notify::new() }
    }

    /// Sets a link's interval.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an interval beyond its limits; when the directory is not
    /// the top of a link.
    pub(super) async fn set(&self, request: &SetRefreshInterval) -> Result<LinkId, Failure> {
        let limits = REFRESH_INTERVAL_SECONDS_MIN..=REFRESH_INTERVAL_SECONDS_MAX;
        if let Some(seconds) = request.every_seconds
            && !limits.contains(&seconds)
        {
            let (least, most) = (limits.start(), limits.end());
            let words = format!("an interval has {least} to {most} seconds");
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        let link = link_at(&*self.environment, &self.importer, &request.path).await?;
        let every_seconds = request.every_seconds;
        let set = command::SetRefreshInterval { link, every_seconds };
        self.environment.execute(Command::SetRefreshInterval(set), true).await?;
        self.changed.notify_one();
        Ok(link)
    }

    /// The links that are listed again by themselves.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub(super) async fn status(&self) -> Result<Vec<RefreshInterval>, Failure> {
        let all = self.environment.read(intervals).await?;
        let state = self.state();
        let one = |due: Due| {
            let progress = state.get(&due.link).cloned().unwrap_or_default();
            RefreshInterval {
                link: due.link,
                every_seconds: u32::try_from(due.every.as_secs()).unwrap_or(u32::MAX),
                running: progress.running,
                ended: progress.ended,
                directories: progress.directories,
                failed: progress.failed,
                failure: progress.failure,
            }
        };
        Ok(all.into_iter().map(one).collect())
    }

    /// Lists what is due until `stop`.
    pub(super) async fn run(&self, stop: CancellationToken) {
        tokio::select! {
            () = stop.cancelled() => {}
            () = self.work() => {}
        }
    }

    async fn work(&self) {
        let mut rounds = FuturesUnordered::new();
        loop {
            match self.environment.read(intervals).await {
                Ok(mut all) => {
                    // Who waited longest comes first, so that short intervals starve nobody.
                    let begun =
                        |due: &Due| self.state().get(&due.link).and_then(|progress| progress.begun);
                    all.sort_by_cached_key(begun);
                    self.state().retain(|link, _| all.iter().any(|due| due.link == *link));
                    for due in all {
                        if rounds.len() < ROUNDS_MAX && self.begin(due) {
                            rounds.push(self.round(due));
                        }
                    }
                }
                Err(failure) => {
                    tracing::debug!(%failure, "links that are listed by themselves are unknown");
                }
            }
            tokio::select! {
                Some(()) = rounds.next(), if !rounds.is_empty() => {}
                () = self.changed.notified() => {}
                () = tokio::time::sleep(LOOK) => {}
            }
        }
    }

    /// Whether a round is due; it has begun then.
    fn begin(&self, due: Due) -> bool {
        let now = self.environment.now();
        let mut state = self.state();
        let progress = state.entry(due.link).or_default();
        let is_due = progress.begun.is_none_or(|begun| begun.plus(due.every) <= now);
        if progress.running || !is_due {
            return false;
        }
        (progress.running, progress.begun) = (true, Some(now));
        true
    }

    async fn round(&self, due: Due) {
        let ended = self.walk(due).await;
        let now = self.environment.now();
        let mut state = self.state();
        let Some(progress) = state.get_mut(&due.link) else { return };
        progress.running = false;
        match ended {
            Ok(()) => progress.ended = Some(now),
            Err(failure) => progress.failure = Some(failure.to_string()),
        }
    }

    async fn walk(&self, due: Due) -> Result<(), Failure> {
        let mut open = vec![(due.top, 0, 1)];
        self.look_at(due, due.top).await?;
        while let Some((directory, cookie, level)) = open.last_mut() {
            let (id, after, level) = (*directory, *cookie, *level);
            let query = self.environment.read(move |view| below(view, id, after));
            let (found, last) = query.await?;
            match last {
                Some(last) => *cookie = last,
                None => drop(open.pop()),
            }
            for directory in found {
                self.look_at(due, directory).await?;
                if level < DEPTH_MAX {
                    open.push((directory, 0, level + 1));
                }
            }
        }
        Ok(())
    }

    /// Lists a directory again, if its last listing is old.
    ///
    /// # Errors
    /// That the round is to end: the server stops, or the link is listed by itself no more.
    async fn look_at(&self, due: Due, directory: InodeId) -> Result<(), Failure> {
        let listed = self.environment.read(move |view| listed(view, due.link, directory)).await?;
        let now = self.environment.now();
        if listed.is_none_or(|listed| now < listed.plus(due.every)) {
            return Ok(());
        }
        let _turn = self.importer.turn(directory).await?;
        let refreshed = self.importer.refresh(directory, |_| ()).await;
        let mut state = self.state();
        let Some(progress) = state.get_mut(&due.link) else {
            return Err(ErrorKind::Cancelled.into());
        };
        match refreshed {
            Ok(()) => progress.directories += 1,
            // A directory may go meanwhile.
            Err(failure) if failure.kind == ErrorKind::NotFound => {}
            Err(failure) => {
                progress.failed += 1;
                progress.failure = Some(failure.to_string());
            }
        }
        Ok(())
    }

    fn state(&self) -> MutexGuard<'_, HashMap<LinkId, Progress>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The links that are listed again by themselves.
fn intervals(view: &dyn View) -> Result<Vec<Due>, Failure> {
    let table = keys::refresh_intervals();
    let all = tree::scan::<RefreshIntervalRecord>(view, &table, usize::MAX).map_err(broken)?;
    let mut due = Vec::with_capacity(all.len());
    for (key, record) in all {
        let link = link_id(&key, &table);
        let known: Option<LinkRecord> = records::read(view, &keys::link(link)).map_err(broken)?;
        if let Some(known) = known.filter(|known| !known.removing) {
            let every = Duration::from_secs(record.every_seconds.into());
            due.push(Due { link, top: known.directory, every });
        }
    }
    Ok(due)
}

/// When a directory of a link was listed; `None` for one that is not to be listed again.
fn listed(view: &dyn View, link: LinkId, directory: InodeId) -> Result<Option<Timestamp>, Failure> {
    let Some(inode) = tree::find(view, directory).map_err(broken)? else { return Ok(None) };
    let Body::Directory(body) = &inode.body else { return Ok(None) };
    let linked = body.linked.as_ref().filter(|linked| linked.link == link);
    let listed = linked.and_then(|linked| linked.listed);
    Ok(listed.filter(|listed| *listed != LinkedDirectory::NEVER_AGAIN))
}

/// The directories among some names of a directory, and where the next ones begin.
fn below(
    view: &dyn View,
    directory: InodeId,
    cookie: u64,
) -> Result<(Vec<InodeId>, Option<u64>), Failure> {
    let page = tree::list(view, directory, cookie, NAMES_MAX).map_err(broken)?;
    let last = (page.len() == NAMES_MAX).then(|| page.last().map(|(_, entry)| entry.cookie));
    let directories = page.into_iter().filter(|(_, entry)| entry.kind == FileKind::Directory);
    Ok((directories.map(|(_, entry)| entry.inode).collect(), last.flatten()))
}
