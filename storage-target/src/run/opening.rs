//! Opening the targets: all at the start, and later those whose disks could not be opened then.

use std::{io, path::Path, sync::Arc, time::Duration};

use futures::future::{join_all, select_all};
use millrace_runtime::{Clock, Random};
use millrace_transport::Peer;
use millrace_types::ClusterId;
use tokio::{
    runtime::Handle,
    task::{JoinHandle, JoinSet},
    time::timeout,
};

use super::StartError;
use crate::{
    daemon::Daemon,
    disk::BufferPool,
    format::batch::BootId,
    hydration::Hydrator,
    links::Links,
    metrics::Counters,
    misses::Misses,
    release::Releaser,
    settings::{Settings, TargetSettings},
    store::Store,
    volume::{PlaceOptions, Volume},
};

#[cfg(test)]
mod tests;

/// Longest time that an acknowledged write stays unsynced without anybody asking.
const SYNC_INTERVAL: Duration = Duration::from_secs(1);

/// How long a start waits for disks once there is one that can be served.
const START_MAX: Duration = Duration::from_secs(30);

/// The first pause before another attempt to open a target, and the longest: each is twice as long
/// as the one before.
const PAUSE_MIN: Duration = Duration::from_secs(1);
const PAUSE_MAX: Duration = Duration::from_secs(60);

/// What targets are opened with.
#[derive(Debug)]
pub(super) struct Opener {
    pub(super) settings: Settings,
    pub(super) cluster: ClusterId,
    /// The kernel's boot id.
    pub(super) boot: BootId,
    pub(super) links: Links,
    pub(super) counters: Counters,
    /// Where requests to buckets run.
    pub(super) buckets: Handle,
    /// Reads that had to wait for one.
    pub(super) misses: Misses,
}

/// A target of the settings, and what it has of the memory.
#[derive(Clone, Debug)]
pub(super) struct Table {
    target: TargetSettings,
    pool: BufferPool,
}

/// A target that is being opened.
type Opening = JoinHandle<Result<Volume, StartError>>;

/// A target that is not open.
#[derive(Debug)]
pub(super) struct Missing {
    table: Table,
    /// The attempt of the start, if that has not ended.
    opening: Option<Opening>,
}

/// A target of the start.
#[derive(Debug)]
struct Starting {
    table: Table,
    opening: Opening,
    /// What the attempt came to, if it has ended.
    ended: Option<Result<Volume, StartError>>,
}

impl Opener {
    /// Opens all targets. What of them cannot be opened, or takes too long, is logged and comes
    /// second, as long as there is one that can.
    ///
    /// # Errors
    /// [`StartError`] when none can be opened, or one is not what the settings say.
    pub(super) async fn open_all(
        self: &Arc<Self>,
        pool: &BufferPool,
    ) -> Result<(Vec<Store>, Vec<Missing>), StartError> {
        let targets = self.settings.targets();
        let pools = pool.divide(targets.len());
        // All disks at once: each start reads its journal.
        let starting = targets.into_iter().zip(pools).map(|(target, pool)| {
            let table = Table { target, pool };
            Starting { opening: self.begin(&table, true), table, ended: None }
        });
        self.gather(starting.collect(), START_MAX).await
    }

    async fn gather(
        &self,
        mut starting: Vec<Starting>,
        patience: Duration,
    ) -> Result<(Vec<Store>, Vec<Missing>), StartError> {
        drop(timeout(patience, join_all(starting.iter_mut().map(Starting::end))).await);
        while !starting.iter().any(|one| matches!(one.ended, Some(Ok(_)))) {
            let left = starting.iter_mut().filter(|one| one.ended.is_none());
            let left: Vec<_> = left.map(|one| Box::pin(one.end())).collect();
            if left.is_empty() {
                break;
            }
            drop(select_all(left).await);
        }
        let mut stores: Vec<Store> = Vec::new();
        let (mut missing, mut first) = (Vec::new(), None);
        for Starting { table, opening, ended } in starting {
            let place = table.target.directory.display();
            match ended {
                Some(Ok(volume)) => {
                    table.check_only(&volume, stores.iter())?;
                    stores.push(self.store(volume));
                }
                Some(Err(error)) if error.is_of_settings() => return Err(error),
                Some(Err(error)) => {
                    tracing::error!(%place, %error, "a target cannot be opened");
                    first = first.or(Some(error));
                    missing.push(Missing { table, opening: None });
                }
                None => {
                    tracing::error!(%place, "a disk does not answer; its target is not served yet");
                    missing.push(Missing { table, opening: Some(opening) });
                }
            }
        }
        match stores.is_empty() {
            true => Err(first.unwrap_or(StartError::NoTarget)),
            false => Ok((stores, missing)),
        }
    }

    /// Opens the other targets as soon as that is possible, and makes room on them as on the first.
    /// Until it is dropped.
    pub(super) async fn open_missing(
        self: Arc<Self>,
        missing: Vec<Missing>,
        daemon: Arc<Daemon>,
        metadata: Peer,
    ) {
        let mut tasks = JoinSet::new();
        for one in missing {
            let (opener, daemon) = (Arc::clone(&self), Arc::clone(&daemon));
            let metadata = metadata.clone();
            drop(tasks.spawn(async move {
                let store = opener.open_later(one, &daemon).await;
                store.releaser().clone().run(metadata, daemon.cluster.clone()).await;
            }));
        }
        // A panic ends what is done for one target alone.
        while tasks.join_next().await.is_some() {}
    }

    async fn open_later(self: &Arc<Self>, missing: Missing, daemon: &Daemon) -> Store {
        let Missing { table, opening: mut begun } = missing;
        let place = table.target.directory.display();
        let mut pause = PAUSE_MIN;
        loop {
            let opening = match begun.take() {
                Some(opening) => opening,
                None => {
                    tokio::time::sleep(pause).await;
                    pause = PAUSE_MAX.min(pause * 2);
                    self.begin(&table, false)
                }
            };
            match self.take_in(&table, opening, daemon).await {
                Ok(store) => {
                    let target = store.id();
                    tracing::warn!(%target, %place, "a target was opened after the start");
                    return store;
                }
                // Such as a disk that is empty: it becomes a target at a start alone.
                Err(error) => tracing::error!(%place, %error, "a target cannot be opened yet"),
            }
        }
    }

    /// Has the daemon serve a target once it is open.
    async fn take_in(
        &self,
        table: &Table,
        opening: Opening,
        daemon: &Daemon,
    ) -> Result<Store, StartError> {
        let volume = opening.await.map_err(io::Error::other)??;
        table.check_only(&volume, daemon.stores.values())?;
        let store = self.store(volume);
        daemon.add(store.clone());
        Ok(store)
    }

    /// Opens a target in a task of its own: a panic is a failure like others. After the start none
    /// is made: where nothing is, a disk may have to be mounted.
    fn begin(self: &Arc<Self>, table: &Table, at_start: bool) -> Opening {
        let (opener, table) = (Arc::clone(self), table.clone());
        tokio::spawn(async move { Box::pin(opener.open(&table, at_start)).await })
    }

    /// Opens a target; `at_start` it is made where none is and the settings expect no certain one.
    async fn open(&self, table: &Table, at_start: bool) -> Result<Volume, StartError> {
        let TargetSettings { directory, capacity, id } = &table.target;
        let may_make = at_start && id.is_none();
        if may_make {
            let path = directory.clone();
            let made = tokio::task::spawn_blocking(move || make_directory(&path));
            made.await.map_err(io::Error::other)??;
        }
        let options = PlaceOptions {
            path: directory.clone(),
            cluster: self.cluster,
            new_target: may_make.then(|| Random::system().target_id()),
            capacity: *capacity,
            disk_engine: self.settings.disk_engine,
            sync_interval: SYNC_INTERVAL,
            boot: self.boot,
            cache_bytes: usize::try_from(self.settings.index_cache.0).unwrap_or(usize::MAX),
        };
        let volume = Volume::open_at(&options, table.pool.clone()).await?;
        match id.filter(|&expected| expected != volume.target()) {
            None => Ok(volume),
            Some(expected) => {
                let path = directory.clone();
                Err(StartError::OtherTarget { path, found: volume.target(), expected })
            }
        }
    }

    /// Puts a target together with the buckets behind it.
    fn store(&self, volume: Volume) -> Store {
        let volume = Arc::new(volume);
        let upkeep = &self.counters.upkeep;
        volume.measure(upkeep.disk.clone(), upkeep.journal.clone());
        let releaser = Releaser::new(Arc::clone(&volume), self.settings.release.watermarks());
        volume.set_judge(releaser.judge());
        volume.start_scrub(self.settings.scrub.scrub(), Clock::system());
        let (links, buckets) = (self.links.clone(), self.buckets.clone());
        let hydrator = Hydrator::new(Arc::clone(&volume), links, releaser.clone(), buckets);
        Store::new(volume, hydrator, releaser, self.misses.clone())
    }
}

impl Starting {
    /// Waits until the attempt has ended. May be dropped at its await.
    async fn end(&mut self) {
        if self.ended.is_none() {
            let ended = (&mut self.opening).await;
            let ended = ended.unwrap_or_else(|error| Err(io::Error::other(error).into()));
            self.ended = Some(ended);
        }
    }
}

impl Table {
    /// Refuses a target that is open already: one of the two is a copy of the other.
    fn check_only<'a>(
        &self,
        volume: &Volume,
        mut open: impl Iterator<Item = &'a Store>,
    ) -> Result<(), StartError> {
        let target = volume.target();
        match open.any(|store| store.id() == target) {
            true => Err(StartError::Twice { path: self.target.directory.clone(), target }),
            false => Ok(()),
        }
    }
}

/// Makes the last part of the path only: a missing parent means a disk that is not mounted. Where a
/// device should be nothing is made; `/dev/shm` has no devices, but what lies in memory.
fn make_directory(path: &Path) -> Result<(), StartError> {
    if path.starts_with("/dev") && !path.starts_with("/dev/shm") {
        return Ok(());
    }
    match std::fs::create_dir(path) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
            Err(StartError::Directory { path: path.to_owned(), source: error })
        }
        _ => Ok(()),
    }
}
