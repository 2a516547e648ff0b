//! A store whose changes are written by a thread of its own, some moments after they are visible.
//!
//! ```text
//!   commit ─▶ recent changes ──────────────▶ get, scan: recent ones over those of the store
//!               └─▶ queue ─▶ writer: groups of batches, each as one ─▶ the store
//! ```
//!
//! The log decides what happened, so nobody has to wait for the store; and most batches change what
//! the one before has changed too (the directory, the session, the applied index), which is
//! written once a group instead of once a batch. A group is made of whole batches in their order:
//! whatever a kill leaves in the store, it is a beginning of them.

use std::{
    collections::{BTreeMap, VecDeque},
    io,
    ops::Bound,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use super::{Batch, MetaStore, Pair, StoreError, View, borrow, memory::is_empty_range};

/// A store that is changed behind its owner. `S` must allow reads in one clone of it while another
/// commits; what they show of such a batch does not matter.
#[derive(Debug)]
pub struct Behind<S> {
    recent: Recent,
    store: S,
    writer: Writer,
}

/// How much is written together, and how long it may stay behind.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// The first batch of a group waits so long for others.
    pub delay: Duration,
    /// Bytes that are written as one, unless one batch alone has more
    /// ([`Batch::bytes_that_recur`]).
    pub group_bytes: usize,
    /// With so many bytes behind, nobody waits for others.
    pub hurry_bytes: usize,
    /// With more bytes behind than this, the owner waits.
    pub behind_bytes: usize,
}

impl Default for Pace {
    /// What a kill loses of it is replayed from the log, 20 ms of commands; the memory is what some
    /// thousands of commands change.
    fn default() -> Self {
        Self {
            delay: Duration::from_millis(20),
            group_bytes: 64 << 10,
            hurry_bytes: 256 << 10,
            behind_bytes: 1 << 20,
        }
    }
}

/// Changes that are visible and may not be in the store yet.
#[derive(Debug, Default)]
struct Recent {
    by_key: BTreeMap<Vec<u8>, Arc<Numbered>>,
    /// In their order.
    batches: VecDeque<Arc<Numbered>>,
    /// Of the last one.
    number: u64,
}

#[derive(Debug)]
struct Numbered {
    number: u64,
    batch: Batch,
}

/// The thread, and what it shares with the owner. Dropping this waits until all is written.
#[derive(Debug)]
struct Writer {
    shared: Arc<Shared>,
    pace: Pace,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// For the writer: there is something to do.
    work: Condvar,
    /// For the owner: something is done.
    done: Condvar,
}

#[derive(Debug, Default)]
struct State {
    queue: VecDeque<Arc<Numbered>>,
    /// Bytes of all batches that are not in the store.
    behind_bytes: usize,
    /// Everything up to here is in the store.
    written: u64,
    /// The owner waits, or goes.
    is_urgent: bool,
    is_closing: bool,
    /// The thread has ended.
    has_ended: bool,
    /// Why, until the owner was told.
    failure: Option<StoreError>,
}

impl<S: MetaStore + Clone + 'static> Behind<S> {
    /// Puts a thread between a store and its owner.
    ///
    /// # Errors
    /// When it cannot be started.
    pub fn new(store: S, pace: Pace) -> Result<Self, StoreError> {
        let shared = Arc::new(Shared::default());
        let (written, of_thread) = (store.clone(), Arc::clone(&shared));
        let thread = thread::Builder::new()
            .name(NAME.to_owned())
            .spawn(move || of_thread.run(written, &pace))
            .map_err(|source| StoreError::Engine { engine: NAME, source })?;
        let writer = Writer { shared, pace, thread: Some(thread) };
        Ok(Self { recent: Recent::default(), store, writer })
    }
}

impl<S: View> View for Behind<S> {
    fn get(&self, key: &[u8]) -> Result<Option<Vec<u8>>, StoreError> {
        match self.recent.get(key) {
            Some(change) => Ok(change.map(<[u8]>::to_vec)),
            None => self.store.get(key),
        }
    }

    fn scan(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Pair>, StoreError> {
        let mut pairs = Vec::new();
        let mut from = from.map(<[u8]>::to_vec);
        while pairs.len() < limit && !is_empty_range(borrow(&from), to) {
            let wanted = limit - pairs.len();
            let stored = self.store.scan(borrow(&from), to, wanted)?;
            // Up to here the store has been looked at.
            let last = stored.last().filter(|_| stored.len() == wanted);
            let last = last.map(|(key, _)| key.clone());
            let end = last.as_deref().map_or(to, Bound::Included);
            merge(&mut pairs, limit, stored, self.recent.range(borrow(&from), end));
            match last {
                Some(last) => from = Bound::Excluded(last),
                None => break,
            }
        }
        pairs.truncate(limit);
        Ok(pairs)
    }
}

impl<S: MetaStore> MetaStore for Behind<S> {
    fn commit(&mut self, batch: &Batch) -> Result<(), StoreError> {
        let batch = self.recent.push(batch.clone());
        let written = self.writer.put(batch)?;
        self.recent.forget(written);
        Ok(())
    }

    fn poll_failure(&mut self) -> Result<(), StoreError> {
        self.writer.shared.lock().outcome().map(drop)
    }

    fn checkpoint(&mut self) -> Result<(), StoreError> {
        self.writer.wait_for(self.recent.number)?;
        self.recent.forget(self.recent.number);
        self.store.checkpoint()
    }
}

/// Adds what the store has with what has changed over it, in key order, until there are `limit`.
fn merge<'a>(
    pairs: &mut Vec<Pair>,
    limit: usize,
    stored: Vec<Pair>,
    recent: impl Iterator<Item = (&'a [u8], Option<&'a [u8]>)>,
) {
    let mut stored = stored.into_iter().peekable();
    for (key, value) in recent {
        while let Some(pair) = stored.next_if(|(stored, _)| stored.as_slice() < key) {
            pairs.push(pair);
        }
        stored.next_if(|(stored, _)| stored.as_slice() == key);
        if pairs.len() >= limit {
            return;
        }
        pairs.extend(value.map(|value| (key.to_vec(), value.to_vec())));
    }
    pairs.extend(stored);
}

impl Recent {
    fn push(&mut self, batch: Batch) -> Arc<Numbered> {
        self.number += 1;
        let numbered = Arc::new(Numbered { number: self.number, batch });
        for (key, _) in numbered.batch.iter() {
            // Most keys of a batch are in the one before.
            match self.by_key.get_mut(key) {
                Some(last) => *last = Arc::clone(&numbered),
                None => drop(self.by_key.insert(key.to_vec(), Arc::clone(&numbered))),
            }
        }
        self.batches.push_back(Arc::clone(&numbered));
        numbered
    }

    /// What the last change of `key` made of it.
    fn get(&self, key: &[u8]) -> Option<Option<&[u8]>> {
        self.by_key.get(key)?.batch.get(key)
    }

    /// The last changes within bounds that are not empty, in key order.
    fn range(
        &self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
    ) -> impl Iterator<Item = (&[u8], Option<&[u8]>)> {
        let range = self.by_key.range::<[u8], _>((from, to));
        range.filter_map(|(key, last)| Some((key.as_slice(), last.batch.get(key)?)))
    }

    /// The store has everything up to `written`.
    fn forget(&mut self, written: u64) {
        while let Some(batch) = self.batches.pop_front_if(|batch| batch.number <= written) {
            for (key, _) in batch.batch.iter() {
                if self.by_key.get(key).is_some_and(|last| last.number == batch.number) {
                    self.by_key.remove(key);
                }
            }
        }
    }
}

impl Writer {
    /// Has a batch written, and waits while too much is not; returns up to where all is.
    fn put(&self, batch: Arc<Numbered>) -> Result<u64, StoreError> {
        let mut state = self.shared.lock();
        let before = state.behind_bytes;
        state.behind_bytes += batch.batch.bytes();
        state.queue.push_back(batch);
        let hurries = before < self.pace.hurry_bytes && state.behind_bytes >= self.pace.hurry_bytes;
        if state.queue.len() == 1 || hurries {
            self.shared.work.notify_one();
        }
        if state.behind_bytes > self.pace.behind_bytes {
            state = self.wait(state, |state| state.behind_bytes > self.pace.behind_bytes);
        }
        state.outcome()
    }

    /// Returns when everything up to `number` is in the store.
    fn wait_for(&self, number: u64) -> Result<(), StoreError> {
        let state = self.shared.lock();
        self.wait(state, |state| state.written < number).outcome().map(drop)
    }

    /// Waits for the thread as long as `is_due`.
    fn wait<'a>(
        &self,
        mut state: MutexGuard<'a, State>,
        is_due: impl Fn(&State) -> bool,
    ) -> MutexGuard<'a, State> {
        state.is_urgent = true;
        self.shared.work.notify_one();
        let is_due = |state: &mut State| is_due(state) && !state.has_ended;
        let waited = self.shared.done.wait_while(state, is_due);
        state = waited.unwrap_or_else(PoisonError::into_inner);
        state.is_urgent = false;
        state
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.lock().is_closing = true;
        self.shared.work.notify_one();
        // What it has panicked with was shown by the panic.
        drop(self.thread.take().map(JoinHandle::join));
    }
}

impl Shared {
    /// The thread: writes until the owner goes or the store fails.
    fn run<S: MetaStore>(self: Arc<Self>, mut store: S, pace: &Pace) {
        let ended = Ended(&self);
        loop {
            let batches = self.next(pace);
            if batches.is_empty() {
                break;
            }
            for group in Group::of(batches, pace.group_bytes) {
                if let Err(error) = store.commit(&group.batch) {
                    self.lock().failure = Some(error);
                    return;
                }
                self.handle_written(&group);
            }
        }
        drop(ended);
    }

    /// What is to be written, when it is time; nothing at the end.
    fn next(&self, pace: &Pace) -> VecDeque<Arc<Numbered>> {
        let is_idle = |state: &mut State| state.queue.is_empty() && !state.is_closing;
        let waited = self.work.wait_while(self.lock(), is_idle);
        let state = waited.unwrap_or_else(PoisonError::into_inner);
        let may_wait = |state: &mut State| {
            !state.is_urgent && !state.is_closing && state.behind_bytes < pace.hurry_bytes
        };
        let waited = self.work.wait_timeout_while(state, pace.delay, may_wait);
        let (mut state, _) = waited.unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.queue)
    }

    fn handle_written(&self, group: &Group) {
        let mut state = self.lock();
        state.written = group.last;
        state.behind_bytes -= group.behind_bytes;
        if state.is_urgent {
            self.done.notify_one();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each step leaves the state whole, so that a panic elsewhere cannot have torn it.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// Up to where all is written, unless the thread has ended.
    fn outcome(&mut self) -> Result<u64, StoreError> {
        if !self.has_ended {
            return Ok(self.written);
        }
        let ended = || StoreError::Engine { engine: NAME, source: io::Error::other(ENDED) };
        Err(self.failure.take().unwrap_or_else(ended))
    }
}

/// Tells the owner that the thread has ended, however it did.
struct Ended<'a>(&'a Shared);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.lock().has_ended = true;
        self.0.done.notify_one();
    }
}

/// Batches that are written as one.
#[derive(Debug, Default)]
struct Group {
    batch: Batch,
    /// Of it.
    bytes: usize,
    /// The last of them.
    last: u64,
    /// Bytes of them all.
    behind_bytes: usize,
}

impl Group {
    /// Puts batches together that come one after the other, up to `group_bytes` what they make.
    fn of(batches: VecDeque<Arc<Numbered>>, group_bytes: usize) -> Vec<Self> {
        let mut groups: Vec<Self> = Vec::new();
        for batch in &batches {
            match groups.last_mut() {
                Some(group) if group.bytes_with(&batch.batch) <= group_bytes => group.add(batch),
                _ => {
                    let mut group = Self::default();
                    group.add(batch);
                    groups.push(group);
                }
            }
        }
        groups
    }

    fn bytes_with(&self, batch: &Batch) -> usize {
        self.bytes + batch.bytes_that_recur() - self.batch.bytes_replaced(batch)
    }

    fn add(&mut self, Numbered { number, batch }: &Numbered) {
        self.bytes = self.bytes_with(batch);
        self.batch.extend(batch);
        self.last = *number;
        self.behind_bytes += batch.bytes();
    }
}

const NAME: &str = "store-writer";

/// Of the thread, to whom it matters after it has told why.
const ENDED: &str = "nothing is written to the store any more";

#[cfg(test)]
mod tests;
