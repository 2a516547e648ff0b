//! Makes a store that failed anew, from the log, while the server runs.
//!
//! A store fails for good when its disk was full at the wrong moment or answered with an error. The
//! log is the truth: what was logged and is not seen in the old store is seen in the new one. Reads
//! are answered by what is left of the old one until then.

use std::{ops::Bound, sync::Arc, time::Duration};

use millrace_types::Timestamp;

use super::{Core, StartError, StoreBox, sessions};
use crate::{
    engine::rebuild,
    store::{Batch, MetaStore, Pair, StoreError, View},
    targets::map,
};

/// When to try, and how long to wait after the next failure.
#[derive(Debug)]
pub(super) struct Repair {
    at: Timestamp,
    pause: Duration,
}

impl Repair {
    pub(super) fn new(now: Timestamp) -> Self {
        Self { at: now, pause: PAUSE_MIN }
    }
}

impl Core {
    /// Repairs a broken store, if it is time and there is room for it.
    pub(super) fn repair(&mut self) {
        if self.broken.is_none() || self.now() < self.repair.at {
            return;
        }
        if !self.room.is_enough_after(&self.settings.store_dir()) {
            // The look goes through the store's files, and each refused change asks for one.
            self.repair.at = self.now().plus(PAUSE_MIN);
            return;
        }
        match self.rebuild() {
            Ok(()) => tracing::warn!("the store was made anew from the command log"),
            Err(error) => tracing::error!(%error, "the store cannot be made anew"),
        }
        // Replaying took its time. A store that breaks again and again is not for ever tried anew.
        self.repair.at = self.now().plus(self.repair.pause);
        self.repair.pause = (self.repair.pause * 2).min(PAUSE_MAX);
    }

    fn rebuild(&mut self) -> Result<(), StartError> {
        // The old one lets go of its files first.
        self.store = StoreBox(Box::new(NoStore));
        self.end_snapshot("the store is made anew");
        self.census = None;
        let doubtful = rebuild::Standing::Doubtful;
        let recovered = rebuild::recover_store(&self.settings, self.log.last(), &doubtful)?;
        self.store = StoreBox(recovered.store);
        self.catch_up()?;
        self.broken = None;
        // The marker comes back with that: a start before it makes the store anew, and doubts too.
        self.distrust("the store failed and was made anew from the command log".to_owned());
        Ok(())
    }

    /// Brings what is derived from the store in step with it: the last command before the failure
    /// may be new to it. Sessions get the time that a restart would give them.
    fn catch_up(&mut self) -> Result<(), StoreError> {
        let index = self.log.last();
        (self.map_index, self.links_index) = (index, index);
        self.map = Arc::new(map::read(&*self.store.0)?);
        self.registry.handle_map(&self.map, self.clock.instant());
        let now = self.clock.now();
        self.sessions_by_nonce.clear();
        for (session, record) in sessions(&*self.store.0)? {
            self.expiry.handle_ticket(session, now);
            self.sessions_by_nonce.insert((record.host, record.nonce), session);
        }
        self.log
            .syncer()
            .sync_all()
            .map_err(|_| StoreError::Inconsistent("the command log cannot be synced".to_owned()))?;
        self.load_keys()
    }
}

/// Stands in while the old store is gone and the new one is not there: it answers nothing.
struct NoStore;

impl NoStore {
    fn error() -> StoreError {
        StoreError::Inconsistent("the store is being made anew".to_owned())
    }
}

impl View for NoStore {
    fn get(&self, _: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        Err(Self::error())
    }

    fn scan(&self, _: Bound<&[u8]>, _: Bound<&[u8]>, _: usize) -> Result<Vec<Pair>, StoreError> {
        Err(Self::error())
    }
}

impl MetaStore for NoStore {
    fn commit(&mut self, _: &Batch) -> Result<(), StoreError> {
        Err(Self::error())
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        Err(Self::error())
    }
}

/// A full disk that got room again is repaired at once.
const PAUSE_MIN: Duration = Duration::from_secs(1);

/// A replay of a long log takes minutes, in which nothing is answered.
const PAUSE_MAX: Duration = Duration::from_secs(600);
