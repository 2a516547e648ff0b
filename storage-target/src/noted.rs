//! What requests note in passing, for a task that tells the metadata server.
//!
//! Noting takes one short lock. What is noted again within a while is not told again; what does not
//! fit is forgotten, because whoever meets the same again notes it again.

use std::{
    collections::{HashMap, VecDeque},
    hash::Hash,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use tokio::sync::Notify;

/// Things that wait to be told, or were told a moment ago. Cheap to clone.
#[derive(Debug)]
pub(crate) struct Noted<T> {
    inner: Arc<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    noted: Mutex<State<T>>,
    news: Notify,
    remembered_max: usize,
    again: Duration,
}

#[derive(Debug)]
struct State<T> {
    waiting: VecDeque<T>,
    /// Those that wait, and when the others were told.
    known: HashMap<T, Known>,
}

#[derive(Clone, Copy, Debug)]
enum Known {
    Waiting,
    Told(Instant),
}

impl<T> Clone for Noted<T> {
    fn clone(&self) -> Self {
        Self { inner: Arc::clone(&self.inner) }
    }
}

impl<T: Copy + Eq + Hash> Noted<T> {
    /// Remembers at most so many, and tells of one again after `again`.
    pub(crate) fn new(remembered_max: usize, again: Duration) -> Self {
        let noted = Mutex::new(State { waiting: VecDeque::default(), known: HashMap::default() });
        let inner = Inner { noted, news: Notify::new(), remembered_max, again };
        Self { inner: Arc::new(inner) }
    }

    pub(crate) fn insert(&self, thing: T, now: Instant) {
        let mut state = self.lock();
        let enough = |known: &Known| match known {
            Known::Waiting => true,
            Known::Told(when) => now.duration_since(*when) < self.inner.again,
        };
        if state.known.len() >= self.inner.remembered_max {
            state.known.retain(|_, known| enough(known));
        }
        if state.known.get(&thing).is_some_and(enough)
            || state.known.len() >= self.inner.remembered_max
        {
            return;
        }
        state.known.insert(thing, Known::Waiting);
        state.waiting.push_back(thing);
        drop(state);
        self.inner.news.notify_one();
    }

    /// At most `count` of what waits; it counts as told now.
    pub(crate) fn take(&self, count: usize, now: Instant) -> Vec<T> {
        let mut state = self.lock();
        let count = state.waiting.len().min(count);
        let taken: Vec<_> = state.waiting.drain(..count).collect();
        for thing in &taken {
            state.known.insert(*thing, Known::Told(now));
        }
        taken
    }

    /// These were not told after all.
    pub(crate) fn put_back(&self, things: Vec<T>) {
        let mut state = self.lock();
        for thing in things.into_iter().rev() {
            if !matches!(state.known.insert(thing, Known::Waiting), Some(Known::Waiting)) {
                state.waiting.push_front(thing);
            }
        }
    }

    /// Waits until something was noted that was not taken at once. May be dropped at its await.
    pub(crate) async fn news(&self) {
        self.inner.news.notified().await;
    }

    fn lock(&self) -> MutexGuard<'_, State<T>> {
        self.inner.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AGAIN: Duration = Duration::from_secs(1);

    #[test]
    fn a_thing_is_told_once_however_often_it_is_met_and_again_after_a_while() {
        let (noted, start) = (Noted::new(100, AGAIN), Instant::now());
        for _ in 0..100 {
            noted.insert(1, start);
        }
        noted.insert(2, start);
        assert_eq!(noted.take(10, start), [1, 2]);
        noted.insert(1, start + AGAIN / 2);
        assert!(noted.take(10, start).is_empty(), "just told");
        noted.insert(1, start + AGAIN);
        assert_eq!(noted.take(10, start), [1]);
    }

    #[test]
    fn what_is_remembered_is_bounded_and_old_things_make_room() {
        let (noted, start) = (Noted::new(1000, AGAIN), Instant::now());
        for thing in 0..1100 {
            noted.insert(thing, start);
        }
        let mut taken = 0;
        loop {
            let batch = noted.take(64, start);
            if batch.is_empty() {
                break;
            }
            assert!(batch.len() <= 64);
            taken += batch.len();
        }
        assert_eq!(taken, 1000);
        noted.insert(2000, start + AGAIN);
        assert_eq!(noted.take(64, start), [2000]);
    }

    #[test]
    fn what_could_not_be_told_comes_first_the_next_time() {
        let (noted, start) = (Noted::new(100, AGAIN), Instant::now());
        noted.insert(1, start);
        let failed = noted.take(10, start);
        noted.insert(2, start);
        noted.put_back(failed);
        assert_eq!(noted.take(10, start), [1, 2]);
    }
}
