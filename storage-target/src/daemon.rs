//! The daemon's answers, one method for each request; knows no transport.
//!
//! [`data`] serves clients (and other targets that export), [`control`] the metadata server,
//! [`export`] uploads, [`upkeep`] operators. [`crate::server`] translates between these and the
//! wire.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
};

use millrace_protocol::{cluster::TargetReport, session::Role};
use millrace_types::{ErrorKind, Failure, TargetId};
use tokio::sync::Semaphore;

use crate::{
    background::Background,
    changed::Changed,
    cluster::Cluster,
    links::Links,
    metrics::Counters,
    misses::Misses,
    sessions::{Attached, Sessions},
    store::Store,
};

mod control;
mod data;
mod export;
mod inline;
mod tallied;
mod upkeep;

pub(crate) use export::{Exporter, Remote};

/// Bodies of writes in memory before they are copied into the volume's buffers.
const BODIES_BYTES_MAX: usize = 64 * 1024 * 1024;

/// Everything that requests need.
#[derive(Debug)]
pub(crate) struct Daemon {
    pub(crate) stores: BTreeMap<TargetId, Store>,
    pub(crate) cluster: Cluster,
    pub(crate) sessions: Sessions,
    pub(crate) links: Links,
    pub(crate) exporter: Exporter,
    pub(crate) counters: Counters,
    pub(crate) changed: Changed,
    pub(crate) misses: Misses,
    /// Turns of fetches that no reader waits for.
    background: Background,
    /// One permit a byte, of [`BODIES_BYTES_MAX`].
    bodies: Arc<Semaphore>,
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
        stores: Vec<Store>,
        cluster: Cluster,
        links: Links,
        exporter: Exporter,
        counters: Counters,
        background: Background,
    ) -> Self {
        Self {
            stores: stores.into_iter().map(|store| (store.id(), store)).collect(),
            cluster,
            sessions: Sessions::default(),
            links,
            exporter,
            counters,
            changed: Changed::default(),
            misses: Misses::default(),
            background,
            bodies: Arc::new(Semaphore::new(BODIES_BYTES_MAX)),
            reclaimed_bytes: AtomicU64::new(0),
            introduced: AtomicBool::new(false),
        }
    }

    /// The store of a target.
    ///
    /// # Errors
    /// [`ErrorKind::StaleGroup`]: who asks here for a target of another host has an old map.
    fn store(&self, target: TargetId) -> Result<&Store, Failure> {
        self.stores.get(&target).ok_or_else(|| {
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
