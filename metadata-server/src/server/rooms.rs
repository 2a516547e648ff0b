//! Places for work in the background: how much may wait for buckets, for targets, and for the rest.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use millrace_types::{ErrorKind, Failure, HostId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// Counts what waits. Each of the three has [`ROOMS`] places of its own, so that a bucket that says
/// nothing keeps nobody from cutting a file, and no client takes all that there are for buckets.
#[derive(Debug)]
pub(super) struct Rooms {
    /// For what waits for targets, and has an end soon.
    targets: Arc<Semaphore>,
    /// For what waits for buckets,
    buckets: Arc<Semaphore>,
    /// of which a client has so many.
    clients: Mutex<HashMap<HostId, Weak<Semaphore>>>,
    /// For what administrators and targets ask for.
    others: Arc<Semaphore>,
}

/// A place, given back when it is dropped.
#[derive(Debug)]
pub(super) struct Room {
    _place: OwnedSemaphorePermit,
    _of_client: Option<(Arc<Semaphore>, OwnedSemaphorePermit)>,
}

impl Rooms {
    pub(super) fn new() -> Self {
        let places = || Arc::new(Semaphore::new(ROOMS));
        let (targets, buckets, others) = (places(), places(), places());
        Self { targets, buckets, clients: Mutex::default(), others }
    }

    /// For what waits for targets.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when none is left, as for the others.
    pub(super) fn for_targets(&self) -> Result<Room, Failure> {
        Ok(Room { _place: place(&self.targets)?, _of_client: None })
    }

    /// For what this client waits for at a bucket.
    pub(super) fn for_bucket(&self, client: HostId) -> Result<Room, Failure> {
        let own = self.of_client(client);
        let of_client = place(&own)?;
        Ok(Room { _place: place(&self.buckets)?, _of_client: Some((own, of_client)) })
    }

    /// For the rest.
    pub(super) fn for_others(&self) -> Result<Room, Failure> {
        Ok(Room { _place: place(&self.others)?, _of_client: None })
    }

    /// The places of a client: made anew when it has none in use.
    fn of_client(&self, client: HostId) -> Arc<Semaphore> {
        let mut clients = self.clients.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(own) = clients.get(&client).and_then(Weak::upgrade) {
            return own;
        }
        clients.retain(|_, own| own.strong_count() > 0);
        let own = Arc::new(Semaphore::new(ROOMS_OF_CLIENT));
        clients.insert(client, Arc::downgrade(&own));
        own
    }
}

fn place(of: &Arc<Semaphore>) -> Result<OwnedSemaphorePermit, Failure> {
    Arc::clone(of).try_acquire_owned().map_err(|_| {
        Failure::new(ErrorKind::Busy, "too many requests wait for buckets and targets")
    })
}

/// As many as wait for the engine. Each holds a few KiB.
const ROOMS: usize = 4096;

/// A quarter of them: programs of one host that look names up in a bucket that does not answer.
const ROOMS_OF_CLIENT: usize = ROOMS / 4;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_that_waits_for_buckets_keeps_nobody_from_theirs_nor_from_targets() {
        let rooms = Rooms::new();
        let [first, second] = [HostId([1; 16]), HostId([2; 16])];
        let taken: Vec<_> = (0..ROOMS_OF_CLIENT).map(|_| rooms.for_bucket(first)).collect();
        assert!(taken.iter().all(Result::is_ok));
        assert_eq!(rooms.for_bucket(first).unwrap_err().kind, ErrorKind::Busy);
        let other = rooms.for_bucket(second).unwrap();
        let others = (3..8).flat_map(|number| vec![HostId([number; 16]); ROOMS_OF_CLIENT]);
        let more: Vec<_> = others.map_while(|host| rooms.for_bucket(host).ok()).collect();
        assert_eq!(more.len(), ROOMS - ROOMS_OF_CLIENT - 1, "all together have a bound too");
        rooms.for_targets().unwrap();
        rooms.for_others().unwrap();
        drop((taken, other, more));
        rooms.for_bucket(first).unwrap();
        assert_eq!(rooms.clients.lock().unwrap().len(), 1, "who waits for nothing is forgotten");
    }
}
