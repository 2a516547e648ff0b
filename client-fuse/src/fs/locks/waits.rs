//! Programs that wait for locks: all of them behind one request to the server.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use tokio::sync::Notify;

/// Waits that are not over.
#[derive(Debug, Default)]
pub(crate) struct Waits {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    last: u64,
    waiting: HashMap<u64, Arc<Entry>>,
    /// Somebody asks the server for news of all.
    watched: bool,
}

#[derive(Debug, Default)]
struct Entry {
    told: Notify,
    /// As far as the server has said.
    ended: AtomicBool,
}

/// One wait, which is taken out when this is dropped.
#[derive(Debug)]
pub(crate) struct Wait<'a> {
    all: &'a Waits,
    entry: Arc<Entry>,
    number: u64,
}

impl Waits {
    /// One more, under a number that is never used again; tells as well whether nobody watches yet,
    /// which the caller has to see to.
    pub(crate) fn begin(&self) -> (Wait<'_>, bool) {
        let mut state = self.lock();
        state.last += 1;
        let number = state.last;
        let entry: Arc<Entry> = Arc::default();
        state.waiting.insert(number, Arc::clone(&entry));
        let unwatched = !std::mem::replace(&mut state.watched, true);
        (Wait { all: self, entry, number }, unwatched)
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// What the watcher says it knows; `None` when nobody waits, and it may go.
    pub(crate) fn known(&self) -> Option<Vec<u64>> {
        let mut state = self.lock();
        if state.waiting.is_empty() {
            state.watched = false;
            return None;
        }
        let known = state.waiting.iter().filter(|(_, entry)| entry.ended.load(Ordering::Acquire));
        Some(known.map(|(number, _)| *number).collect())
    }

    /// The server says that these have ended; returns those that nobody waits for any more.
    pub(crate) fn handle_ended(&self, ended: &[u64]) -> Vec<u64> {
        let state = self.lock();
        let mut unknown = Vec::new();
        for number in ended {
            match state.waiting.get(number) {
                Some(entry) => entry.tell(),
                None => unknown.push(*number),
            }
        }
        unknown
    }

    /// Nobody knows how the waits stand, since the server may be another one: all ask for
    /// themselves.
    pub(crate) fn handle_doubt(&self) {
        for entry in self.lock().waiting.values() {
            entry.tell();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each step leaves the state whole, so that a panic elsewhere cannot have torn it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Entry {
    fn tell(&self) {
        self.ended.store(true, Ordering::Release);
        self.told.notify_one();
    }
}

impl Wait<'_> {
    /// Names it to the server.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// The server has said that it is not over.
    pub(crate) fn goes_on(&self) {
        self.entry.ended.store(false, Ordering::Release);
    }

    /// Waits until it has to be asked for how it stands.
    pub(crate) async fn told(&self) {
        self.entry.told.notified().await;
    }
}

impl Drop for Wait<'_> {
    fn drop(&mut self) {
        self.all.lock().waiting.remove(&self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn one_watcher_serves_all_and_goes_with_the_last() {
        let waits = Waits::default();
        let (first, unwatched) = waits.begin();
        assert!(unwatched);
        let (second, unwatched) = waits.begin();
        assert!(!unwatched, "there is one");
        assert_eq!(waits.known(), Some(vec![]));
        assert_eq!(waits.handle_ended(&[second.number(), 77]), [77]);
        assert_eq!(waits.known(), Some(vec![second.number()]));
        second.told().await;
        second.goes_on();
        assert_eq!(waits.known(), Some(vec![]));
        assert!(futures::poll!(Box::pin(first.told())).is_pending());
        waits.handle_doubt();
        first.told().await;
        drop((first, second));
        assert_eq!(waits.known(), None);
        assert!(waits.begin().1, "the next one needs a watcher again");
    }
}
