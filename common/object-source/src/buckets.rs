//! The open buckets of a process: each opened once, shared by all links into it.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use crate::{Bucket, Error, LinkSpec, Settings};

/// Opens buckets and keeps them, so that limits, connections and counters are per bucket and not
/// per link or request.
#[derive(Debug)]
pub struct Buckets {
    settings: Settings,
    open: Mutex<HashMap<LinkSpec, Arc<Bucket>>>,
}

/// The most buckets that are kept open. Beyond it one that nobody uses now makes room.
const OPEN_MAX: usize = 256;

impl Buckets {
    /// No bucket is open yet.
    #[must_use]
    pub fn new(settings: Settings) -> Self {
        Self { settings, open: Mutex::new(HashMap::new()) }
    }

    /// The bucket of a link, opened if it is not yet.
    ///
    /// # Errors
    /// Those of [`Bucket::open`]; [`Error::Busy`] with 256 buckets in use at once.
    pub fn bucket(&self, spec: &LinkSpec) -> Result<Arc<Bucket>, Error> {
        let key = spec.without_prefix();
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(bucket) = open.get(&key) {
            return Ok(Arc::clone(bucket));
        }
        if open.len() >= OPEN_MAX {
            open.retain(|_, bucket| Arc::strong_count(bucket) > 1);
        }
        if open.len() >= OPEN_MAX {
            return Err(Error::Busy { message: format!("{OPEN_MAX} buckets are in use") });
        }
        let bucket = Arc::new(Bucket::open(&key, &self.settings)?);
        open.insert(key, Arc::clone(&bucket));
        Ok(bucket)
    }

    /// The buckets that are open now, for metrics.
    #[must_use]
    pub fn open(&self) -> Vec<Arc<Bucket>> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.values().cloned().collect()
    }
}
