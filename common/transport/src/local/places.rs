//! Who has how many connections to a local socket.
//!
//! Everybody on the machine may connect. So nobody takes the places of all, and root, who may have
//! to look why nothing goes, has places of its own.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Counts connections by user.
#[derive(Debug)]
pub(super) struct Places {
    /// Of root, and of all others together.
    all_max: usize,
    of_user_max: usize,
    taken: Arc<Mutex<BTreeMap<u32, usize>>>,
}

impl Places {
    pub(super) fn new(all_max: usize, of_user_max: usize) -> Self {
        Self { all_max, of_user_max, taken: Arc::default() }
    }

    /// Counts a connection of a user until the guard is dropped. `None`: there are too many.
    pub(super) fn take(&self, uid: u32) -> Option<Place> {
        let mut taken = lock(&self.taken);
        let own = taken.get(&uid).copied().unwrap_or(0);
        let is_free = if uid == ROOT {
            own < self.all_max
        } else {
            let others: usize =
                taken.iter().filter(|(user, _)| **user != ROOT).map(|(_, count)| count).sum();
            own < self.of_user_max && others < self.all_max
        };
        is_free.then(|| {
            taken.insert(uid, own + 1);
            Place { uid, taken: Arc::clone(&self.taken) }
        })
    }
}

/// A counted connection.
#[derive(Debug)]
pub(super) struct Place {
    uid: u32,
    taken: Arc<Mutex<BTreeMap<u32, usize>>>,
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = lock(&self.taken);
        if let Some(count) = taken.get_mut(&self.uid) {
            *count -= 1;
            if *count == 0 {
                taken.remove(&self.uid);
            }
        }
    }
}

/// A panic elsewhere cannot leave plain counters broken.
fn lock(taken: &Mutex<BTreeMap<u32, usize>>) -> MutexGuard<'_, BTreeMap<u32, usize>> {
    taken.lock().unwrap_or_else(PoisonError::into_inner)
}

const ROOT: u32 = 0;

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(places: &Places, uid: u32) -> Vec<Place> {
        std::iter::from_fn(|| places.take(uid)).collect()
    }

    #[test]
    fn nobody_takes_the_places_of_all_and_root_has_its_own() {
        let places = Places::new(5, 2);
        let mut first = fill(&places, 1000);
        assert_eq!(first.len(), 2);
        let (second, third) = (fill(&places, 1001), fill(&places, 1002));
        assert_eq!((second.len(), third.len()), (2, 1), "all others have five");
        assert_eq!(fill(&places, 1003).len(), 0);
        let root = fill(&places, ROOT);
        assert_eq!(root.len(), 5);
        first.pop();
        assert!(places.take(1003).is_some());
        drop((first, second, third, root));
        assert!(lock(&places.taken).is_empty());
    }
}
