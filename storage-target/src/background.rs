//! Turns of fetches that no reader waits for: jobs, and what is fetched ahead of readers.
//!
//! Of the requests that a daemon has in flight to a bucket some are left for readers. Each link has
//! turns of its own: a bucket that hangs holds up nothing of another.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use millrace_protocol::capability::Content;
use millrace_types::{ErrorKind, Failure, LinkId, MIB};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A fetch of more bytes takes two turns: with 48 turns 24 streams of 8 MiB are three quarters of
/// the 256 MiB that a daemon has in flight to a bucket by default.
const SMALL: u64 = 4 * MIB;

/// The turns of all links.
#[derive(Debug)]
pub(crate) struct Background {
    each: u32,
    links: Mutex<HashMap<LinkId, Arc<Semaphore>>>,
}

impl Background {
    /// Three quarters of the requests that a daemon may have in flight to one bucket, and two at
    /// least.
    pub(crate) fn new(requests_max: usize) -> Self {
        let each = u32::try_from(requests_max / 4 * 3).unwrap_or(u32::MAX >> 8);
        Self { each: each.clamp(2, u32::MAX >> 8), links: Mutex::default() }
    }

    /// Waits for the turn of a fetch for a file. May be dropped at its await.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for a file without an object.
    pub(crate) async fn turns(&self, content: &Content) -> Result<OwnedSemaphorePermit, Failure> {
        let link = content.origin.as_ref().ok_or(ErrorKind::InvalidArgument)?.link;
        let turns = {
            let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
            let fresh = || Arc::new(Semaphore::new(self.each as usize));
            Arc::clone(links.entry(link).or_insert_with(fresh))
        };
        let count = if content.origin_length > SMALL { 2 } else { 1 };
        turns.acquire_many_owned(count).await.map_err(|_| ErrorKind::Unavailable.into())
    }
}
