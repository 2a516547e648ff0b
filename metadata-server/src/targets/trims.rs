//! Tells targets of shrinks: what lies past the new size must go before the file may grow again.
//!
//! A shrink is in the log, with a record of the trim, before anybody is asked; the record stays
//! until every target that may hold chunks has confirmed, or another content has taken the place of
//! this one. So a trim survives crashes of either side: [`Trims::run`] goes on with what a start
//! finds. Trims of one content never overlap, because one that arrived late could take away what
//! was written after a later one was confirmed.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use futures::future::try_join_all;
use millrace_protocol::{cluster::Map, target::Trim};
use millrace_types::{ErrorKind, Failure, HostId, InodeId, Layout, TargetId};
use tokio::sync::Mutex as AsyncMutex;

use super::peers::Peers;
use crate::{
    command::Command,
    engine::Handle,
    namespace::tree,
    store::{
        keys,
        records::{self, TrimRecord},
    },
};

/// How long one attempt may take. Trimming is a change of an index; a target that needs longer is
/// down, and the caller's own deadline decides how often it is tried again.
const ATTEMPT: Duration = Duration::from_secs(20);

/// How often pending trims are looked for that nobody waits for.
const SWEEP: Duration = Duration::from_secs(5);

/// The trims under way. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Trims {
    engine: Handle,
    peers: Peers,
    under_way: Arc<Mutex<HashMap<InodeId, Arc<AsyncMutex<()>>>>>,
}

impl Trims {
    /// Nothing is under way yet.
    #[must_use]
    pub fn new(engine: Handle, peers: Peers) -> Self {
        Self { engine, peers, under_way: Arc::default() }
    }

    /// Waits until no trim of the inode is pending. Run it where it is not dropped half way: the
    /// next one would wait for the attempt that was left behind.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] when a target does not answer: the trim stays pending.
    pub async fn settle(&self, inode: InodeId) -> Result<(), Failure> {
        let turn = {
            let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(under_way.entry(inode).or_default())
        };
        let guard = turn.lock().await;
        let result = self.trim(inode).await;
        drop(guard);
        let mut under_way = self.under_way.lock().unwrap_or_else(PoisonError::into_inner);
        // Two: the map's and ours. With more, somebody waits for it.
        if Arc::strong_count(&turn) == 2 {
            under_way.remove(&inode);
        }
        // Before the lock is given back: of two that end together the second must find two.
        drop(turn);
        drop(under_way);
        result
    }

    /// Settles what nobody waits for, until dropped.
    pub async fn run(&self) {
        loop {
            match self.pending().await {
                Ok(pending) => {
                    for inode in pending {
                        if let Err(failure) = self.settle(inode).await {
                            tracing::warn!(%inode, %failure, "a shrink is not confirmed yet");
                        }
                    }
                }
                Err(failure) => tracing::debug!(%failure, "cannot look for pending trims"),
            }
            tokio::time::sleep(SWEEP).await;
        }
    }

    async fn pending(&self) -> Result<Vec<InodeId>, Failure> {
        let found = self.engine.turn(|core| {
            tree::scan::<TrimRecord>(core.view(), &keys::trims(), SWEEP_MAX)
                .map_err(|error| core.failure(error.into()))
        });
        let found = found.await?;
        let inodes = found.iter().filter_map(|(key, _)| keys::number_at(key, 1));
        Ok(inodes.map(InodeId).collect())
    }

    async fn trim(&self, inode: InodeId) -> Result<(), Failure> {
        // The shrink must be on stable storage before any byte goes.
        let pending = self.engine.durable_turn(move |core| {
            records::read::<TrimRecord>(core.view(), &keys::trim(inode))
                .map_err(|error| core.failure(error.into()))
        });
        let Some(record) = pending.await? else {
            return Ok(());
        };
        let map = self.peers.map().await?;
        let asks = daemons(&map, record.layout).into_iter().map(|(host, targets)| {
            let request = Trim {
                targets,
                inode,
                generation: record.generation,
                layout: record.layout,
                write_epoch: record.write_epoch,
                size: record.size,
            };
            async move { self.peers.ask(host, &request, ATTEMPT).await }
        });
        try_join_all(asks).await.map_err(|failure| {
            let text = format!("a target has not confirmed the new size yet: {failure}");
            Failure::new(ErrorKind::Unavailable, text).retry_after(Duration::from_secs(1))
        })?;
        let confirmed = Command::Trimmed { inode, write_epoch: record.write_epoch };
        self.engine.turn(move |core| core.execute(None, confirmed)).await?;
        Ok(())
    }
}

/// The most pending trims of one sweep.
const SWEEP_MAX: usize = 256;

/// The daemons that may hold chunks of a layout, each with those targets.
fn daemons(map: &Map, layout: Layout) -> BTreeMap<HostId, Vec<TargetId>> {
    let groups: BTreeSet<_> = layout.groups().collect();
    let targets: BTreeSet<TargetId> = groups
        .into_iter()
        .filter_map(|group| map.group(layout.pool(), group))
        .flat_map(|group| group.targets.iter().copied())
        .collect();
    let mut daemons: BTreeMap<_, Vec<_>> = BTreeMap::new();
    for target in targets {
        if let Some(host) = map.host_of(target) {
            daemons.entry(host.id).or_default().push(target);
        }
    }
    daemons
}
