//! The targets that a daemon serves: those that were open when it began, and those whose disks came
//! later.

use std::sync::{Mutex, OnceLock, PoisonError};

use futures::future::join_all;
use millrace_types::TargetId;

use crate::store::Store;

/// A place for each target of the settings, whether it is open or not.
#[derive(Debug)]
pub(crate) struct Stores {
    places: Vec<OnceLock<Store>>,
    /// From then on none is taken in: nobody would close it.
    closed: Mutex<bool>,
}

impl Stores {
    /// For so many targets, of which these are open.
    pub(crate) fn new(mut open: Vec<Store>, count: usize) -> Self {
        open.sort_unstable_by_key(Store::id);
        let mut places: Vec<_> = open.into_iter().map(OnceLock::from).collect();
        places.resize_with(count.max(places.len()), OnceLock::new);
        Self { places, closed: Mutex::new(false) }
    }

    /// Those that are open, in the order in which they were opened.
    pub(crate) fn values(&self) -> impl Iterator<Item = &Store> {
        self.places.iter().filter_map(OnceLock::get)
    }

    /// One that is open.
    pub(crate) fn get(&self, target: &TargetId) -> Option<&Store> {
        self.values().find(|store| store.id() == *target)
    }

    /// How many are open.
    pub(crate) fn open_count(&self) -> usize {
        self.values().count()
    }

    /// How many there are, open or not.
    pub(crate) fn count(&self) -> usize {
        self.places.len()
    }

    /// Closes all at once: behind a disk that hangs the others come to their end in order.
    pub(crate) async fn close(&self) {
        *self.closed.lock().unwrap_or_else(PoisonError::into_inner) = true;
        let closing = self.values().map(|store| async move {
            if let Err(error) = store.volume().close().await {
                tracing::error!(target = %store.id(), %error, "the target is not closed in order");
            }
        });
        drop(join_all(closing).await);
    }

    /// Takes in one of those that were not open, unless all are closed.
    pub(super) fn add(&self, store: Store) {
        let closed = self.closed.lock().unwrap_or_else(PoisonError::into_inner);
        if *closed {
            return;
        }
        let mut left = Some(store);
        for place in &self.places {
            left = left.and_then(|store| place.set(store).err());
        }
        assert!(left.is_none(), "there is a place for each target");
    }
}
