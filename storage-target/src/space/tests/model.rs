//! The whole space beside plain sets of pages, over checkpoints, kills and lost ends of a journal.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use millrace_runtime::Random;

use super::{
    super::{
        Extent, Layout, Purpose, REGION_PAGES, Refusal, RegionMap, ReplayError, Reservation, Space,
        Spot, StoredSummaries, Totals,
    },
    chunk_key,
};
use crate::format::{
    change::Effects,
    extent::join,
    fact::{Fact, FactNumber, StateTotals},
    key::Key,
    table::{KeyRange, TableKey},
};

const REGIONS: u32 = 6;

fn layout() -> Layout {
    let layout = Layout::new(256 + 4096 + u64::from(REGIONS) * u64::from(REGION_PAGES) + 77);
    layout.expect("room for regions")
}

/// What the index holds of the space.
type Stored = BTreeMap<Key, Bytes>;

struct World {
    random: Random,
    space: Space,
    grown: u32,
    /// As of the newest checkpoint.
    stored: Stored,
    /// All records that count; the sequence of the first is 1.
    records: Vec<Record>,
    /// Pages that they name, and what was written there.
    used: BTreeMap<u64, u64>,
    /// What was written to each page last: the number of a reservation.
    contents: BTreeMap<u64, u64>,
    written: u64,
    /// How many of them the newest checkpoint contains.
    through: usize,
    /// Records below this will be there after any stop.
    released: u64,
    reservations: Vec<Reservation>,
    /// Where the newest part of each chunk ends.
    ends: BTreeMap<u64, u32>,
    index: Vec<Extent>,
    defect: Option<Defect>,
}

#[derive(Clone, Debug)]
struct Record {
    effects: Effects,
    /// What was written to the pages taken.
    written: u64,
}

/// What an owner of the space must not do.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Defect {
    /// The index is frozen with a record that came after its maps had been taken.
    RecordBetween,
    /// The pages of the index are not claimed.
    IndexNotClaimed,
    /// The quarantine is freed before the records are durable.
    FreedTooEarly,
}

impl World {
    fn new(seed: u64, defect: Option<Defect>) -> Self {
        Self {
            random: Random::seeded(seed),
            space: Space::new(layout(), 2),
            grown: 2,
            stored: Stored::new(),
            records: Vec::new(),
            used: BTreeMap::new(),
            contents: BTreeMap::new(),
            written: 0,
            through: 0,
            released: 0,
            reservations: Vec::new(),
            ends: BTreeMap::new(),
            index: Vec::new(),
            defect,
        }
    }

    fn chance(&self, percent: u64) -> bool {
        self.random.within(0..100) < percent
    }

    fn pick<T>(&self, among: &[T]) -> Option<usize> {
        let len = among.len() as u64;
        (len > 0).then(|| usize::try_from(self.random.within(0..len)).unwrap())
    }

    fn bring(&self, region: u32) {
        let value = self.stored.get(&TableKey::FreeMap(region).encode());
        let map = value.map(|value| RegionMap::decode(value).unwrap());
        self.space.bring(region, map).unwrap();
    }

    /// Asks again with the maps that are asked for.
    fn ask<T>(&self, mut ask: impl FnMut() -> Result<T, Refusal>) -> Result<T, Refusal> {
        loop {
            match ask() {
                Err(Refusal::Needs(region)) => self.bring(region),
                other => return other,
            }
        }
    }

    fn use_pages(&mut self, record: &Record) {
        for page in record.effects.given_up.iter().flat_map(|extent| extent.numbers()) {
            assert!(self.used.remove(&page).is_some(), "what is given up is in use");
        }
        for page in record.effects.taken.iter().flat_map(|extent| extent.numbers()) {
            let before = self.used.insert(page, record.written);
            assert!(before.is_none(), "what is taken is not in use");
        }
    }

    fn by_state(&self, count: usize) -> StateTotals {
        let sum = |more: fn(&Effects) -> i64| {
            u64::try_from(
                self.records[..count].iter().map(|record| more(&record.effects)).sum::<i64>(),
            )
            .unwrap()
        };
        StateTotals {
            clean_pages: sum(|effects| effects.clean_pages_more),
            written_pages: sum(|effects| effects.written_pages_more),
        }
    }

    fn step(&mut self) {
        match self.random.within(0..100) {
            0..30 => self.reserve(),
            30..60 => self.commit(),
            60..66 => drop(self.take_reservation()),
            66..80 => self.release(),
            80..84 => self.checkpoint(),
            84..88 => self.space.shrink(usize::try_from(self.random.within(0..3)).unwrap()),
            88..90 => self.grow(),
            90..92 => self.extend_index(),
            92..96 => self.restart(),
            _ => self.check(),
        }
    }

    fn reserve(&mut self) {
        let pages = match self.random.within(0..10) {
            0..6 => self.random.within(1..40),
            6..9 => self.random.within(100..1500),
            _ => self.random.within(8000..17_000),
        };
        let purpose = if self.chance(80) { Purpose::Store } else { Purpose::Free };
        let before = self.space.totals();
        let kept = if purpose == Purpose::Store { before.kept_back } else { before.kept_back / 2 };
        match self.space.reserve(pages, purpose) {
            Ok(mut reservation) => {
                assert!(before.free >= pages + kept);
                let placed = self.random.within(0..pages + 1);
                if placed > 0 && self.chance(60) {
                    let spot = self.spot(placed);
                    self.ask(|| reservation.place_at(&spot).map(drop)).unwrap();
                } else if placed > 0 {
                    self.ask(|| reservation.place(placed).map(drop)).unwrap();
                }
                let before = Totals {
                    free: before.free - pages,
                    reserved: before.reserved + pages,
                    ..before
                };
                assert_eq!(self.space.totals(), before, "what is set aside is free");
                assert_eq!(reservation.promised(), pages - placed);
                self.written += 1;
                for page in reservation.extents().iter().flat_map(|extent| extent.numbers()) {
                    self.contents.insert(page, self.written);
                }
                self.reservations.push(reservation);
            }
            Err(refusal) => {
                assert_eq!(refusal, Refusal::Full);
                assert!(before.free < pages + kept, "what is free can be had");
                assert_eq!(self.space.totals(), before, "nothing has changed");
            }
        }
    }

    /// Some pages of one of a few chunks: mostly those behind the last ones.
    fn spot(&mut self, pages: u64) -> Spot {
        let chunk = self.random.within(0..4);
        let end = self.ends.entry(chunk).or_default();
        let start = match self.random.within(0..10) {
            0 => 0,
            1 => *end + 300,
            2 => end.saturating_sub(100),
            _ => *end,
        };
        *end = start + u32::try_from(pages).unwrap();
        let until = *end + u32::try_from(self.random.within(0..6000)).unwrap();
        let is_shared = chunk == 3;
        Spot { chunk: chunk_key(chunk), pages: start..*end, until, is_shared }
    }

    fn take_reservation(&mut self) -> Option<Reservation> {
        let at = self.pick(&self.reservations)?;
        Some(self.reservations.swap_remove(at))
    }

    /// A record takes some of a reservation's pages, and gives up some that are in use.
    fn commit(&mut self) {
        let mut effects = Effects::default();
        let mut clean = 0;
        let reservation = self.take_reservation();
        if let Some(reservation) = &reservation {
            let taken = reservation.extents().iter().flat_map(|extent| extent.numbers());
            let whole = self.chance(70);
            let taken: Vec<u64> = taken.filter(|page| whole || page % 3 > 0).collect();
            clean = i64::try_from(taken.len()).unwrap() / 2;
            effects.taken = join(taken);
        }
        let mut given_up = Vec::new();
        if self.chance(60) {
            let last = self.used.last_key_value().map_or(0, |(&page, _)| page);
            let from = self.random.within(layout().regions..last.max(layout().regions) + 1);
            let count = usize::try_from(self.random.within(1..1200)).unwrap();
            given_up.extend(self.used.range(from..).map(|(&page, _)| page).take(count));
        }
        let by_state = self.by_state(self.records.len());
        let gone = i64::try_from(given_up.len()).unwrap();
        let clean_gone = gone.min(i64::try_from(by_state.clean_pages).unwrap());
        effects.given_up = join(given_up);
        effects.clean_pages_more = clean - clean_gone;
        let taken: u64 = effects.taken.iter().map(|extent| extent.pages).sum();
        effects.written_pages_more =
            i64::try_from(taken).unwrap() - gone - effects.clean_pages_more;
        let first = effects.taken.first().map_or(0, |extent| extent.first);
        let written = self.contents.get(&first).copied().unwrap_or_default();
        let record = Record { effects, written };
        self.use_pages(&record);
        self.space.commit(self.records.len() as u64 + 1, &record.effects);
        self.records.push(record);
        // What the record has not taken is free again.
        drop(reservation);
    }

    fn release(&mut self) {
        let len = self.records.len() as u64;
        let end = self.random.within(len.saturating_sub(8)..len + 2);
        if self.defect != Some(Defect::FreedTooEarly) {
            self.released = self.released.max(end.min(self.records.len() as u64 + 1));
        }
        self.ask(|| self.space.release(end)).unwrap();
    }

    fn checkpoint(&mut self) {
        let entries = self.ask(|| self.space.checkpoint()).unwrap();
        for (key, value) in entries {
            match value {
                Some(value) => self.stored.insert(key, value),
                None => self.stored.remove(&key),
            };
        }
        assert_eq!(self.space.changed_regions(), 0);
        if self.defect == Some(Defect::RecordBetween) {
            self.commit();
        }
        self.through = self.records.len();
    }

    fn grow(&mut self) {
        if self.grown < REGIONS {
            self.grown += 1;
            self.space.grow(1);
        }
    }

    fn extend_index(&mut self) {
        let pages = self.random.within(1..600);
        let Ok(mut reservation) = self.space.reserve(pages, Purpose::Index) else { return };
        self.ask(|| reservation.place(pages).map(drop)).unwrap();
        self.index.extend(reservation.into_index());
    }

    /// Starts again from what the index has. Records that nobody was told to be durable may be
    /// gone: always some of the last.
    fn restart(&mut self) {
        self.reservations.clear();
        let least = self.through.max(usize::try_from(self.released).unwrap().saturating_sub(1));
        let lost = self.random.within(0..(self.records.len() - least) as u64 + 1);
        let count = self.records.len() - usize::try_from(lost).unwrap();
        self.records.truncate(count);
        self.used.clear();
        for record in self.records.clone() {
            self.use_pages(&record);
        }
        let mut summaries = StoredSummaries::default();
        let range = KeyRange::table(4);
        for (key, value) in self.stored.range(range.from..range.until) {
            let TableKey::Summaries(group) = TableKey::decode(key.as_slice()).unwrap() else {
                panic!("{key:?}")
            };
            summaries.add(group, value).unwrap();
        }
        let totals = self.stored.get(&TableKey::Fact(FactNumber::Totals).encode());
        let totals = totals.map(|value| Fact::decode(FactNumber::Totals, value).unwrap());
        let totals = match totals {
            Some(Fact::Totals(totals)) => totals,
            _ => StateTotals::default(),
        };
        assert_eq!(totals, self.by_state(self.through));
        self.space = Space::restore(layout(), self.grown, summaries, totals).unwrap();
        for at in self.through..count {
            while let Err(error) = self.space.replay(at as u64 + 1, &self.records[at].effects) {
                let ReplayError::Needs(region) = error else { panic!("{error}") };
                self.bring(region);
            }
        }
        let index = self.index.iter().filter(|_| self.defect != Some(Defect::IndexNotClaimed));
        for &extent in index {
            while let Err(error) = self.space.claim_index(extent) {
                let ReplayError::Needs(region) = error else { panic!("{error}") };
                self.bring(region);
            }
        }
        self.check();
    }

    /// Every page is where the model has it.
    fn check(&self) {
        let totals = self.space.totals();
        let used = &self.used;
        let by_state = self.by_state(self.records.len());
        assert_eq!((totals.clean, totals.written), (by_state.clean_pages, by_state.written_pages));
        let index: BTreeSet<u64> = self.index.iter().flat_map(|extent| extent.numbers()).collect();
        assert_eq!(totals.index, index.len() as u64);
        let free_of = |pages: &BTreeSet<u64>| pages.iter().all(|page| !used.contains_key(page));
        assert!(free_of(&index), "no page has two owners");
        let as_written = |(page, written): (&u64, &u64)| self.contents.get(page) == Some(written);
        assert!(used.iter().all(as_written), "what a record names is not written again");
        let promised: u64 = self.reservations.iter().map(Reservation::promised).sum();
        let held = self.reservations.iter().flat_map(Reservation::extents);
        let held: BTreeSet<u64> = held.flat_map(|extent| extent.numbers()).collect();
        assert_eq!(totals.reserved, promised + held.len() as u64);
        assert!(free_of(&held) && index.is_disjoint(&held), "no page has two owners");
    }

    /// Ends everything that is under way, and finds every page free that no record names.
    fn finish(&mut self) {
        self.check();
        self.reservations.clear();
        self.ask(|| self.space.release(u64::MAX)).unwrap();
        self.check();
        let totals = self.space.totals();
        let used = self.used.len() + page_count(&self.index);
        let in_regions = u64::from(self.grown) * u64::from(REGION_PAGES);
        assert_eq!(totals.free, in_regions - used as u64, "nothing has leaked");
        let Totals { quarantined, reserved, .. } = totals;
        assert_eq!((quarantined, reserved), (0, 0));
    }
}

fn page_count(extents: &[Extent]) -> usize {
    usize::try_from(crate::format::extent::page_count(extents)).unwrap()
}

fn run(seed: u64, defect: Option<Defect>) {
    let mut world = World::new(seed, defect);
    for _ in 0..250 {
        world.step();
    }
    world.finish();
    world.checkpoint();
    world.restart();
    world.finish();
}

#[test]
fn space_agrees_with_plain_sets_of_pages_over_checkpoints_stops_and_lost_ends() {
    (0..40).for_each(|seed| run(seed, None));
}

/// A test of the test: what the owner must not do is found.
fn is_found(defect: Defect) -> bool {
    (0..200).any(|seed| std::panic::catch_unwind(|| run(seed, Some(defect))).is_err())
}

#[test]
fn a_record_between_maps_and_freeze_is_found() {
    assert!(is_found(Defect::RecordBetween));
}

#[test]
fn pages_of_the_index_that_nobody_claimed_are_found() {
    assert!(is_found(Defect::IndexNotClaimed));
}

#[test]
fn pages_freed_before_their_record_is_durable_are_found() {
    assert!(is_found(Defect::FreedTooEarly));
}
