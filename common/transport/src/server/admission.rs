//! Counts connections, in all and for each host.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_types::HostId;

pub(super) struct Admission {
    all_max: usize,
    per_host_max: usize,
    counts: Arc<Mutex<Counts>>,
}

#[derive(Default)]
struct Counts {
    all: usize,
    per_host: BTreeMap<HostId, usize>,
}

impl Admission {
    pub(super) fn new(all_max: usize, per_host_max: usize) -> Self {
        Self { all_max, per_host_max, counts: Arc::default() }
    }

    /// Counts a connection until the guard is dropped, or says which limit is reached.
    pub(super) fn enter(&self, host: HostId) -> Result<Admitted, &'static str> {
        let mut counts = lock(&self.counts);
        if counts.all >= self.all_max {
            return Err("the server has as many connections as it may");
        }
        let of_host = counts.per_host.entry(host).or_default();
        if *of_host >= self.per_host_max {
            return Err("the host has as many connections as it may");
        }
        *of_host += 1;
        counts.all += 1;
        Ok(Admitted { host, counts: Arc::clone(&self.counts) })
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
    counts: Arc<Mutex<Counts>>,
}

impl Drop for Admitted {
    fn drop(&mut self) {
        let mut counts = lock(&self.counts);
        counts.all -= 1;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_hold_in_all_and_for_each_host_and_free_up() {
        let admission = Admission::new(3, 2);
        let (one, two) = (HostId([1; 16]), HostId([2; 16]));
        let first = admission.enter(one).ok();
        assert!(!admission.crowd().is_dense(), "1 of 3");
        let _second = admission.enter(one).ok().unwrap();
        assert!(admission.enter(one).err().unwrap().contains("host"));
        let _third = admission.enter(two).ok().unwrap();
        assert!(admission.enter(two).err().unwrap().contains("server"));
        assert!(admission.crowd().is_dense());
        drop(first);
        assert_eq!(admission.count(), 2);
        assert!(admission.enter(one).is_ok());
        // The guard above was dropped at once.
        assert_eq!(admission.count(), 2);
    }
}
