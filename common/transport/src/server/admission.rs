//! Counts connections, in all and for each host.
//!
//! Mounts come in any number, and every one of them stays for as long as it is mounted. So the last
//! places are kept for those without whom a cluster cannot be served or helped: its servers, and
//! its operators.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::session::Role;
use millrace_types::HostId;

pub(super) struct Admission {
    all_max: usize,
    /// Places of `all_max` that no client takes.
    kept: usize,
    per_host_max: usize,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Default)]
struct Counts {
    all: usize,
    /// Those of `all` that are clients'.
    clients: usize,
    per_host: BTreeMap<HostId, usize>,
}

impl Admission {
    pub(super) fn new(all_max: usize, per_host_max: usize) -> Self {
        Self { all_max, kept: all_max / KEPT_SHARE, per_host_max, counts: Arc::default() }
    }

    /// Counts a connection until the guard is dropped, or says which limit is reached.
    pub(super) fn enter(&self, role: Role, host: HostId) -> Result<Admitted, &'static str> {
        let is_client = role == Role::Client;
        let mut counts = lock(&self.counts);
        if counts.all >= self.all_max {
            return Err("the server has as many connections as it may");
        }
        // What the others have of their places already is not kept for them once more.
        let others = (counts.all - counts.clients).max(self.kept);
        if is_client && counts.clients + others >= self.all_max {
            return Err("the server has as many connections of clients as it may");
        }
        let of_host = counts.per_host.entry(host).or_default();
        if *of_host >= self.per_host_max {
            return Err("the host has as many connections as it may");
        }
        *of_host += 1;
        counts.all += 1;
        counts.clients += usize::from(is_client);
        Ok(Admitted { host, is_client, counts: Arc::clone(&self.counts) })
    }

    pub(super) fn count(&self) -> usize {
        lock(&self.counts).all
    }

    pub(super) fn crowd(&self) -> Crowd {
        Crowd { all_max: self.all_max, counts: Arc::clone(&self.counts) }
    }
}

/// How full the server is.
pub(super) struct Crowd {
    all_max: usize,
    counts: Arc<Mutex<Counts>>,
}

impl Crowd {
    /// Whether more than half of the places are taken.
    pub(super) fn is_dense(&self) -> bool {
        lock(&self.counts).all > self.all_max / 2
    }
}

/// A counted connection.
pub(super) struct Admitted {
    host: HostId,
    is_client: bool,
    counts: Arc<Mutex<Counts>>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        counts.all -= 1;
        counts.clients -= usize::from(self.is_client);
        if let Some(of_host) = counts.per_host.get_mut(&self.host) {
            *of_host -= 1;
            if *of_host == 0 {
                counts.per_host.remove(&self.host);
            }
        }
    }
}

/// A panic elsewhere cannot leave plain counters broken.
fn lock(counts: &Mutex<Counts>) -> MutexGuard<'_, Counts> {
    counts.lock().unwrap_or_else(PoisonError::into_inner)
}

/// One of so many places is kept from clients: 256 of a metadata server's 2,048, and none where
/// there are fewer than this.
const KEPT_SHARE: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_in_all_and_for_each_host_and_free_up() {
        let admission = Admission::new(3, 2);
        let (one, two) = (HostId([1; 16]), HostId([2; 16]));
        let enter = |host| admission.enter(Role::Client, host);
        let first = enter(one).ok();
        assert!(!admission.crowd().is_dense(), "1 of 3");
        let _second = enter(one).ok().unwrap();
        assert!(enter(one).err().unwrap().contains("host"));
        let _third = enter(two).ok().unwrap();
        assert!(enter(two).err().unwrap().contains("server"));
        assert!(admission.crowd().is_dense());
        drop(first);
        assert_eq!(admission.count(), 2);
        assert!(enter(one).is_ok());
        // The guard above was dropped at once.
        assert_eq!(admission.count(), 2);
    }

    #[test]
    fn the_last_places_are_no_clients() {
        let admission = Admission::new(16, 16);
        let host = HostId([1; 16]);
        let enter = |role| admission.enter(role, host);
        let mut clients: Vec<_> = (0..14).map(|_| enter(Role::Client).ok().unwrap()).collect();
        assert!(enter(Role::Client).err().unwrap().contains("clients"));
        let target = enter(Role::Target).ok().unwrap();
        assert!(enter(Role::Client).is_err(), "the other place is kept still");
        let _admin = enter(Role::Admin).ok().unwrap();
        assert!(enter(Role::Metadata).is_err(), "all places are taken");
        // A place of the others is theirs again; one of a client is whoever's comes first.
        drop(target);
        assert!(enter(Role::Client).is_err());
        clients.pop();
        assert!(enter(Role::Client).is_ok());
        let (_second, _third) = (enter(Role::Target).ok(), enter(Role::Metadata).ok());
        assert_eq!(admission.count(), 16);
        assert!(enter(Role::Client).is_err());
    }

    #[test]
    fn others_take_clients_places_while_nobody_is_there() {
        let admission = Admission::new(8, 8);
        let host = HostId([1; 16]);
        let _servers: Vec<_> =
            (0..7).map(|_| admission.enter(Role::Target, host).ok().unwrap()).collect();
        let _client = admission.enter(Role::Client, host).ok().unwrap();
        assert!(admission.enter(Role::Admin, host).is_err());
    }
}
