//! The daemon's answers, one method for each request; knows no transport.
//!
//! [`data`] serves clients (and other targets that export or copy), [`copies`] what clients have
//! targets copy, [`control`] the metadata server, `hydrate` and [`export`] its jobs, [`upkeep`]
//! operators.
//! [`crate::server`] translates between these and the wire. `bodies` and `replies` bound what is on
//! its way from and to clients, and what each session has of that; `stores` are the targets.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_protocol::{cluster::TargetReport, session::Role};
use millrace_types::{ErrorKind, Failure, TargetId};

use self::{bodies::Bodies, copies::Copies, replies::Replies};
use crate::{
    background::Background,
    changed::Changed,
    cluster::Cluster,
    links::Links,
    metrics::Counters,
    sessions::{Attached, Sessions},
    store::{Hold, Store},
};

mod bodies;
mod control;
mod copies;
mod data;
mod export;
mod hydrate;
mod inline;
mod replies;
mod stores;
mod tallied;
#[cfg(test)]
pub(crate) mod tests;
mod upkeep;

pub(crate) use export::{Exporter, Remote};
pub(crate) use stores::Stores;

/// When to ask again for a target whose disk is not open, or that serves nobody now.
const PAUSE: Duration = Duration::from_secs(1);

/// Everything that requests need.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) stores: Stores,
    pub(crate) cluster: Cluster,
    pub(crate) sessions: Sessions,
    pub(crate) links: Links,
    pub(crate) exporter: Exporter,
    pub(crate) counters: Counters,
    pub(crate) changed: Changed,
    /// Turns of fetches that no reader waits for.
    background: Arc<Background>,
    bodies: Bodies,
    copies: Copies,
    replies: Replies,
    pub(crate) reclaimed_bytes: AtomicU64,
    /// The cluster has been told of the targets: none of them is blank to it any more.
    pub(crate) introduced: AtomicBool,
}

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) role: Role,
    /// The session that was shown on the connection.
    pub(crate) session: Option<Arc<Attached>>,
}

impl Daemon {
    pub(crate) fn new(
        stores: Stores,
        cluster: Cluster,
        links: Links,
        exporter: Exporter,
        counters: Counters,
        background: Background,
    ) -> Self {
        let bodies = Bodies::new(stores.count());
        stores.values().for_each(|store| bodies.add(store.id()));
        // All of them have the same one.
        let first = stores.values().next();
        let pool_bytes = first.map_or(0, |store| store.volume().pool().budget_bytes());
        Self {
            stores,
            cluster,
            sessions: Sessions::default(),
            links,
            exporter,
            counters,
            changed: Changed::default(),
            background: Arc::new(background),
            bodies,
            copies: Copies::default(),
            replies: Replies::new(pool_bytes),
            reclaimed_bytes: AtomicU64::new(0),
            introduced: AtomicBool::new(false),
        }
    }

    /// Serves a target, too, whose disk came later than the others, as soon as the metadata server
    /// has taken it for what it was, or could not compare it.
    pub(crate) fn add(&self, store: Store) {
        let words = format!("target {} has yet to show that it is no older copy", store.id());
        drop(store.hold_back(Some(Hold::Unseen(words))));
        self.bodies.add(store.id());
        self.stores.add(store);
    }

    /// The store of a target.
    ///
    /// # Errors
    /// Those of [`Self::open_store`]; [`ErrorKind::Busy`] while the target serves nobody.
    fn store(&self, target: TargetId) -> Result<&Store, Failure> {
        let store = self.open_store(target)?;
        match store.held_back() {
            None => Ok(store),
            Some(why) => Err(Failure::new(ErrorKind::Busy, why).retry_after(PAUSE)),
        }
    }

    /// The same, also of a target that serves nobody.
    ///
    /// # Errors
    /// [`ErrorKind::StaleGroup`]: who asks here for a target of another host has an old map.
    /// [`ErrorKind::Busy`] while the disk of one of this host is not open.
    fn open_store(&self, target: TargetId) -> Result<&Store, Failure> {
        self.stores.get(&target).ok_or_else(|| {
            let map = self.cluster.map();
            let host = |target| map.host_of(target).map(|host| host.id);
            let here = self.stores.values().find_map(|store| host(store.id()));
            if here.is_some() && host(target) == here {
                let words = format!("the disk of target {target} is not open yet");
                return Failure::new(ErrorKind::Busy, words).retry_after(PAUSE);
            }
            let words = format!("target {target} is not served by this host");
            Failure::new(ErrorKind::StaleGroup, words)
        })
    }

    /// The state of every target, for the metadata server.
    pub(crate) fn reports(&self) -> Vec<TargetReport> {
        let introduced = self.introduced.load(Ordering::Relaxed);
        self.stores
            .values()
            .map(|store| {
                let statistics = store.volume().statistics();
                TargetReport {
                    id: store.id(),
                    capacity: statistics.capacity,
                    used: statistics.used,
                    inode_max: statistics.inode_max,
                    loss_count: statistics.loss_count,
                    bad_blocks: statistics.bad_blocks,
                    blank: statistics.blank && !introduced,
                }
            })
            .collect()
    }

    /// Bytes fetched from buckets since the start.
    pub(crate) fn hydrated_bytes(&self) -> u64 {
        self.stores.values().map(|store| store.hydrator().fetched_bytes()).sum()
    }
}
