//! One index of the log, seen a piece at a time while the store goes on changing.
//!
//! A pass goes through the store in key order, a piece in each turn of the engine. A change of a
//! key that the pass has not reached first sets the key's old value aside; the pass emits what was
//! set aside in place of what it meets. So what comes out is the store as it was at the beginning,
//! whatever the engine that keeps it.
//!
//! # Bounds
//! What is set aside and what is gathered but not fetched take [`MEMORY_MAX`] at most. From a
//! quarter of that on, each key that is set aside moves the pass on by `PAIRS_A_KEY` pairs, so
//! that changes slow down and the pass comes to its end: with keys of 150 bytes within 40 million
//! pairs, if what is gathered is fetched as fast. Half of the bound is the most that is gathered,
//! and less where that would leave no quarter of it: the rest is left to what is set aside until
//! somebody fetches, who then gets all that is gathered. Past the bound (more is changed meanwhile
//! than the disk takes of what is gathered) the run is given up. Who changes much and has time
//! waits before it comes to that, once half of the bound is taken ([`Run::is_short`]).

use std::{collections::BTreeMap, mem, ops::Bound};

use millrace_types::LogIndex;

use super::format::{BODY_LEN_MAX, pair_len};
use crate::store::{Batch, Pair, StoreError, View};

/// What a run may keep in memory, in bytes; half as much more is with whoever writes it out.
pub const MEMORY_MAX: usize = 64 << 20;

/// What is gathered at once at least: some thousand pairs, a millisecond.
const PIECE_MIN: usize = 256 << 10;

/// What that grows to as memory fills up.
const PIECE_MAX: usize = 4 << 20;

/// By how much the pass is moved on for a key that is set aside while memory runs short.
const PAIRS_A_KEY: usize = 128;

/// Pairs of one look at the store: few enough that values of any size stay in bounds.
const SCAN_PAIRS: usize = 64;

/// Bytes besides key and value that something in a map takes, about.
const OVERHEAD: usize = 64;

/// What a run sees of the store.
#[derive(Debug)]
pub struct Run {
    /// What it may keep in memory, in bytes.
    memory_max: usize,
    index: LogIndex,
    /// Keys that begin so are left out.
    without: Option<Vec<u8>>,
    /// Everything up to this key has been passed.
    passed: Option<Vec<u8>>,
    /// Values as they were, of keys that the pass has not reached.
    aside: BTreeMap<Vec<u8>, Option<Vec<u8>>>,
    aside_bytes: usize,
    /// Gathered and not fetched.
    ready: Vec<Pair>,
    ready_bytes: usize,
    ended: bool,
}

/// Why a run came to nothing.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The store failed.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// More was changed meanwhile than memory holds.
    #[error("changes come faster than what there was can be written")]
    Overrun,
    /// A pair is larger than what is fetched at once.
    #[error(
        "a pair of table {} is too long for a snapshot: it has {bytes} bytes",
        table.escape_ascii()
    )]
    TooLong {
        /// The first byte of its key.
        table: u8,
        /// Bytes of key and value.
        bytes: usize,
    },
}

impl Run {
    /// Begins at `index`, which the store shows now. Keys that begin with `without` are left out.
    #[must_use]
    pub fn new(index: LogIndex, without: Option<Vec<u8>>) -> Self {
        Self::within(MEMORY_MAX, index, without)
    }

    /// The same with another bound than [`MEMORY_MAX`].
    pub(crate) fn within(memory_max: usize, index: LogIndex, without: Option<Vec<u8>>) -> Self {
        Self {
            memory_max,
            index,
            without,
            passed: None,
            aside: BTreeMap::new(),
            aside_bytes: 0,
            ready: Vec::new(),
            ready_bytes: 0,
            ended: false,
        }
    }

    /// The index.
    #[must_use]
    pub fn index(&self) -> LogIndex {
        self.index
    }

    /// Must be called before `batch` is committed to the store that `view` shows.
    ///
    /// # Errors
    /// [`RunError`]: the run is of no use any more.
    pub fn before_commit(&mut self, view: &dyn View, batch: &Batch) -> Result<(), RunError> {
        let mut keys = 0;
        for (key, _) in batch.iter() {
            if self.has_passed(key) || self.aside.contains_key(key) {
                continue;
            }
            let old = view.get(key)?;
            self.aside_bytes += OVERHEAD + key.len() + old.as_ref().map_or(0, Vec::len);
            self.aside.insert(key.to_vec(), old);
            keys += 1;
        }
        if self.memory() > self.memory_max / 4 {
            // A quarter is left to what is set aside next.
            let room = (self.memory_max / 4 * 3).saturating_sub(self.aside_bytes);
            self.advance(view, keys * PAIRS_A_KEY, room.min(self.ready_max()))?;
        }
        if self.memory() > self.memory_max { Err(RunError::Overrun) } else { Ok(()) }
    }

    /// The next pairs, in key order and in blocks of at most [`BODY_LEN_MAX`]: all that is
    /// gathered, so that memory is free for what changes until the next call. None at the end.
    ///
    /// # Errors
    /// [`RunError`]: the run is of no use any more.
    pub fn fetch_blocks(&mut self, view: &dyn View) -> Result<Vec<Vec<Pair>>, RunError> {
        // The more is set aside, the more is gathered, up to 4 MiB and some ten milliseconds.
        let bytes = PIECE_MIN + self.memory() * PIECE_MAX / self.memory_max;
        let mut block = self.fetch(view, bytes)?;
        let mut blocks = Vec::new();
        while !block.is_empty() {
            blocks.push(block);
            block = self.fetch(view, 0)?;
        }
        Ok(blocks)
    }

    /// The next pairs, in key order, `bytes` of them or a little more, as far as they fit into a
    /// block; none at the end.
    fn fetch(&mut self, view: &dyn View, bytes: usize) -> Result<Vec<Pair>, RunError> {
        let most = self.ready_max();
        while !self.ended && self.ready_bytes < bytes.min(most) {
            self.advance(view, SCAN_PAIRS, most)?;
        }
        let mut len = 0;
        let mut fit = |pair: &Pair| {
            len += pair_len(pair);
            len <= BODY_LEN_MAX
        };
        let count = self.ready.iter().take_while(|pair| fit(pair)).count();
        if let (0, Some(pair)) = (count, self.ready.first()) {
            // Nothing at all would be the end.
            let table = pair.0.first().copied().unwrap_or_default();
            return Err(RunError::TooLong { table, bytes: pair_len(pair) });
        }
        let rest = self.ready.split_off(count);
        self.ready_bytes = rest.iter().map(pair_len).sum();
        Ok(mem::replace(&mut self.ready, rest))
    }

    /// Bytes that it keeps in memory.
    #[must_use]
    pub fn memory(&self) -> usize {
        self.aside_bytes + self.ready_bytes
    }

    /// Whether more than half of the bound is taken: whoever changes much, and has time, had better
    /// wait until this is over. It is when what is gathered is fetched, or the pass has come to
    /// what was set aside.
    #[must_use]
    pub fn is_short(&self) -> bool {
        self.memory() > self.memory_max / 2
    }

    /// With so much gathered and not fetched, changes move the pass on no more: that would only
    /// take from the memory for what they set aside.
    fn ready_max(&self) -> usize {
        self.memory_max / 2
    }

    fn has_passed(&self, key: &[u8]) -> bool {
        self.ended || self.passed.as_deref().is_some_and(|passed| key <= passed)
    }

    /// Passes `count` pairs of the store, or some more; fewer when `ready_max` bytes are gathered.
    fn advance(
        &mut self,
        view: &dyn View,
        count: usize,
        ready_max: usize,
    ) -> Result<(), StoreError> {
        let mut left = count;
        while left > 0 && !self.ended && self.ready_bytes < ready_max {
            let from = self.passed.as_deref().map_or(Bound::Unbounded, Bound::Excluded);
            let met = view.scan(from, Bound::Unbounded, SCAN_PAIRS)?;
            left = left.saturating_sub(met.len().max(1));
            self.ended = met.len() < SCAN_PAIRS;
            let last = met.last().map(|(key, _)| key.clone());
            let behind = match &last {
                Some(last) if !self.ended => self.aside.split_off(&successor(last)),
                _ => BTreeMap::new(),
            };
            let aside = mem::replace(&mut self.aside, behind);
            self.passed = last.or_else(|| self.passed.take());
            self.emit(met, aside);
        }
        Ok(())
    }

    /// Takes what the pass met, and in its place what was set aside of the same stretch.
    fn emit(&mut self, met: Vec<Pair>, aside: BTreeMap<Vec<u8>, Option<Vec<u8>>>) {
        let mut aside = aside.into_iter().peekable();
        for (key, value) in met {
            while let Some((older, old)) = aside.next_if(|(older, _)| *older < key) {
                self.emit_old(older, old);
            }
            match aside.next_if(|(same, _)| *same == key) {
                Some((same, old)) => self.emit_old(same, old),
                None => self.emit_pair(key, value),
            }
        }
        for (key, old) in aside {
            self.emit_old(key, old);
        }
    }

    fn emit_old(&mut self, key: Vec<u8>, old: Option<Vec<u8>>) {
        self.aside_bytes -= OVERHEAD + key.len() + old.as_ref().map_or(0, Vec::len);
        if let Some(value) = old {
            self.emit_pair(key, value);
        }
    }

    fn emit_pair(&mut self, key: Vec<u8>, value: Vec<u8>) {
        if self.without.as_deref().is_some_and(|prefix| key.starts_with(prefix)) {
            return;
        }
        let pair = (key, value);
        self.ready_bytes += pair_len(&pair);
        self.ready.push(pair);
    }
}

/// The smallest key above `key`.
fn successor(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

#[cfg(test)]
mod tests;
