//! Journal and index together, as an engine uses them: every change is a record and an entry;
//! checkpoints move the journal's start. After a cut of power or a kill at any moment what is there
//! is a prefix of the history, and no shorter than what was promised.
//!
//! A failure names its seed; `MILLRACE_SEED=n` runs that one alone, `MILLRACE_SEEDS=n` as many.

use std::{collections::BTreeMap, env};

use bytes::Bytes;
use millrace_runtime::Random;
use millrace_types::TargetId;

use super::{Journal, JournalError, RING, options};
use crate::{
    disk::{
        BufferPool,
        simulated::{Flush, SimulatedDisk},
    },
    format::{
        batch::Position,
        root::{RootRecord, Segment},
    },
    index::{self, Index, Key},
};

const SEEDS: u64 = 300;
const ROUNDS: u64 = 10;
const SEGMENT: Segment = Segment { first: 300, pages: 3000 };

/// A key and its new value.
type Change = (Key, Option<Bytes>);

/// Where the journal goes on from, kept among the entries themselves.
fn position_key() -> Key {
    Key::new(&[0xFF]).unwrap()
}

/// A store of keys and values that survives.
struct Store {
    journal: Journal,
    index: Index,
}

impl Store {
    fn index_options(disk: &SimulatedDisk) -> index::Options {
        index::Options {
            target: TargetId([7; 8]),
            disk: disk.queue(),
            pool: BufferPool::new(0),
            first_root_page: 0,
            cache_bytes: 256 * 1024,
        }
    }

    async fn create(disk: &SimulatedDisk) -> Self {
        let index = Index::create(Self::index_options(disk), &[SEGMENT]).await.unwrap();
        let (journal, _) = Journal::open(options(disk), RING.start()).await.unwrap();
        Self { journal, index }
    }

    /// Opens it; returns also the records replayed, whether the index had them or not.
    async fn open(disk: &SimulatedDisk) -> anyhow::Result<(Self, Vec<(u64, Bytes)>)> {
        let index = Index::open(Self::index_options(disk)).await?;
        let stored = index.get(&position_key()).await?;
        let start = match stored {
            Some(bytes) => Position::decode(&bytes)?,
            None => RING.start(),
        };
        let through = index.statistics().through;
        let (journal, replayed) = Journal::open(options(disk), start).await?;
        for (sequence, record) in &replayed.records {
            if *sequence > through {
                put(&index, &decode(record));
            }
        }
        // What is there must stay there, whatever happens next.
        journal.sync(journal.next_sequence() - 1).await?;
        Ok((Self { journal, index }, replayed.records))
    }

    async fn change(&self, change: &Change) -> anyhow::Result<u64> {
        let record = encode(change);
        let sequence = match self.journal.append(record.clone()) {
            Err(JournalError::Full) => {
                self.checkpoint().await?;
                self.journal.append(record)?
            }
            other => other?,
        };
        put(&self.index, change);
        Ok(sequence)
    }

    async fn checkpoint(&self) -> anyhow::Result<()> {
        let through = self.journal.next_sequence() - 1;
        let position = self.journal.position();
        self.index.put(position_key(), Bytes::from(position.encode()));
        assert!(self.index.freeze(through), "one checkpoint at a time");
        // What the index holds must be durable in the journal: else it would hold a change whose
        // predecessors are lost.
        self.journal.sync(through).await?;
        self.index.checkpoint().await?;
        self.journal.release(position);
        Ok(())
    }

    async fn contents(&self) -> anyhow::Result<BTreeMap<Key, Bytes>> {
        let mut found = BTreeMap::new();
        let mut from = Some(Key::new(&[0]).unwrap());
        while let Some(key) = from {
            let scan = self.index.scan(key, Some(position_key()), 200).await?;
            found.extend(scan.entries);
            from = scan.next;
        }
        Ok(found)
    }
}

fn put(index: &Index, (key, value): &Change) {
    match value {
        Some(value) => index.put(*key, value.clone()),
        None => index.remove(*key),
    }
}

fn encode((key, value): &Change) -> Bytes {
    let mut bytes = vec![u8::from(value.is_some())];
    bytes.extend_from_slice(key.as_slice());
    bytes.extend_from_slice(value.as_deref().unwrap_or_default());
    Bytes::from(bytes)
}

fn decode(record: &Bytes) -> Change {
    let key = Key::new(&record[1..3]).unwrap();
    (key, (record[0] == 1).then(|| record.slice(3..)))
}

fn random_change(random: &Random) -> Change {
    let number = u16::try_from(random.within(0..400)).unwrap();
    let key = Key::new(&number.to_be_bytes()).unwrap();
    let mut value = vec![0; usize::try_from(random.within(0..1500)).unwrap()];
    random.fill(&mut value);
    (key, (random.within(0..4) > 0).then(|| Bytes::from(value)))
}

/// The changes made so far, in order, and how many of them were promised.
#[derive(Default)]
struct History {
    changes: Vec<Change>,
    /// To survive a loss of power.
    durable: usize,
    /// To survive a kill.
    written: usize,
}

impl History {
    /// Changes until the power goes, or enough is enough.
    async fn grow(&mut self, store: &Store, random: &Random, steps: u64) -> anyhow::Result<()> {
        for _ in 0..steps {
            let change = random_change(random);
            // In the history before anybody can tell whether it arrived.
            self.changes.push(change.clone());
            let sequence = match store.change(&change).await {
                Ok(sequence) => sequence,
                Err(error) => {
                    // A checkpoint failed before it could be appended.
                    self.changes.pop();
                    return Err(error);
                }
            };
            assert_eq!(sequence, self.changes.len() as u64);
            match random.within(0..100) {
                0..25 => {
                    store.journal.sync(sequence).await?;
                    self.durable = self.changes.len();
                    self.written = self.durable;
                }
                25..50 => {
                    store.journal.write(sequence).await?;
                    self.written = self.changes.len();
                }
                50..54 => {
                    store.checkpoint().await?;
                    self.durable = self.changes.len();
                    self.written = self.durable;
                }
                _ => {}
            }
        }
        Ok(())
    }

    /// What a prefix of it comes to.
    fn state(&self, count: usize) -> BTreeMap<Key, Bytes> {
        let mut state = BTreeMap::new();
        for (key, value) in &self.changes[..count] {
            match value {
                Some(value) => state.insert(*key, value.clone()),
                None => state.remove(key),
            };
        }
        state
    }
}

async fn live(seed: u64, flush: Flush) -> Result<(), String> {
    let random = Random::seeded(seed);
    let disk = SimulatedDisk::new(16 << 20, seed);
    let mut store = Store::create(&disk).await;
    let mut history = History::default();
    for round in 0..ROUNDS {
        let complain = |what: String| format!("seed {seed}, round {round}: {what}");
        disk.set_flush(flush);
        let killed = random.within(0..4) == 0;
        if !killed {
            disk.cut_power_in(random.within(0..80));
        }
        let outcome = history.grow(&store, &random, random.within(1..150)).await;
        if outcome.is_err() && !disk.is_off() {
            return Err(complain(format!("{outcome:?}")));
        }
        drop(store);
        if !killed {
            disk.restart();
        }
        let records;
        (store, records) =
            Store::open(&disk).await.map_err(|error| complain(format!("{error:#}")))?;
        let count = usize::try_from(store.journal.next_sequence() - 1).unwrap();
        let promised = if killed { history.written } else { history.durable };
        if !(promised..=history.changes.len()).contains(&count) {
            return Err(complain(format!("{count} changes, but {promised} were promised")));
        }
        let right = |(sequence, record): &(u64, Bytes)| {
            let nth = usize::try_from(*sequence).unwrap() - 1;
            encode(&history.changes[nth]) == *record
        };
        if !records.iter().all(right) {
            return Err(complain("a record is another".into()));
        }
        let found = store.contents().await.map_err(|error| complain(format!("{error:#}")))?;
        if found != history.state(count) {
            return Err(complain(format!("the entries are not those after {count} changes")));
        }
        history.changes.truncate(count);
        (history.durable, history.written) = (count, count);
    }
    Ok(())
}

fn seeds() -> std::ops::Range<u64> {
    let number = |name: &str| env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    match (number("MILLRACE_SEED"), number("MILLRACE_SEEDS")) {
        (Some(seed), _) => seed..seed + 1,
        (None, count) => 0..count.unwrap_or(SEEDS),
    }
}

#[tokio::test]
async fn a_cut_at_any_moment_leaves_a_prefix_of_the_history_with_all_that_was_promised() {
    for seed in seeds() {
        if let Err(complaint) = live(seed, Flush::Honest).await {
            panic!("{complaint}; run again with MILLRACE_SEED={seed}");
        }
    }
}

#[tokio::test]
async fn syncs_that_do_nothing_are_found_out() {
    for flush in [Flush::Lying, Flush::LyingByTurns] {
        let mut found_out = 0;
        for seed in 0..30 {
            found_out += usize::from(live(seed, flush).await.is_err());
        }
        assert!(found_out > 15, "the test would not notice {flush:?}: {found_out} of 30");
    }
}

#[tokio::test]
async fn a_root_that_rotted_in_both_copies_is_made_good_by_the_journal() {
    for seed in 0..20 {
        let random = Random::seeded(seed);
        let disk = SimulatedDisk::new(16 << 20, seed);
        let store = Store::create(&disk).await;
        let mut history = History::default();
        history.grow(&store, &random, 40 + 40 * seed).await.unwrap();
        store.checkpoint().await.unwrap();
        history.grow(&store, &random, 5).await.unwrap();
        store.journal.sync(store.journal.next_sequence() - 1).await.unwrap();
        let slot = RootRecord::slot(store.index.statistics().generation);
        drop(store);
        for copy in [slot, slot + 1] {
            disk.flip(copy * 4096 + 50, 1);
        }
        // The older root stands, and the place in the journal that it knows. The records from there
        // on are still in the ring, which is never filled to more than half between checkpoints.
        let (store, _) = Store::open(&disk).await.unwrap();
        let expected = history.state(history.changes.len());
        assert_eq!(store.contents().await.unwrap(), expected, "seed {seed}");
    }
}
