//! A disk that is filled, half emptied and refilled, as a target does it: with reservations,
//! records, quarantine, checkpoints and starts in between.

use std::collections::BTreeMap;

use bytes::Bytes;
use millrace_runtime::Random;

use super::super::{
    Extent, Layout, Purpose, REGION_PAGES, Refusal, RegionMap, ReplayError, Space, StoredSummaries,
};
use crate::format::{
    change::Effects,
    extent::page_count,
    fact::{Fact, FactNumber, StateTotals},
    key::Key,
    table::{KeyRange, TableKey},
};

/// Regions of the disk: 4 GiB.
const REGIONS: u32 = 128;

fn layout() -> Layout {
    let regions = u64::from(REGIONS) * u64::from(REGION_PAGES);
    // The ring has 1/64.
    Layout::new(256 + regions + regions / 60).expect("room for regions")
}

/// Sizes in pages: small files, pictures, parts of large files, and chunks of 64 MiB.
fn size(random: &Random) -> u64 {
    match random.within(0..100) {
        0..40 => random.within(1..16),
        40..80 => random.within(16..48),
        80..98 => random.within(128..2177),
        _ => 16_384,
    }
}

struct Target {
    random: Random,
    space: Space,
    stored: BTreeMap<Key, Bytes>,
    sequence: u64,
    objects: Vec<Vec<Extent>>,
}

impl Target {
    fn bring(&self, region: u32) {
        let value = self.stored.get(&TableKey::FreeMap(region).encode());
        let map = value.map(|value| RegionMap::decode(value).unwrap());
        self.space.bring(region, map).unwrap();
    }

    fn ask<T>(&self, mut ask: impl FnMut() -> Result<T, Refusal>) -> T {
        loop {
            match ask() {
                Ok(answer) => return answer,
                Err(Refusal::Needs(region)) => self.bring(region),
                Err(Refusal::Full) => panic!("what is promised can be placed"),
            }
        }
    }

    fn commit(&mut self, taken: Vec<Extent>, given_up: Vec<Extent>) {
        let count = |extents: &[Extent]| i64::try_from(page_count(extents)).unwrap();
        let effects = Effects {
            written_pages_more: count(&taken) - count(&given_up),
            taken,
            given_up,
            ..Effects::default()
        };
        self.sequence += 1;
        self.space.commit(self.sequence, &effects);
    }

    /// Stores objects until one is refused.
    fn fill(&mut self, free_percent: u64) {
        let totals = self.space.totals();
        let least = (totals.capacity - totals.fixed) * free_percent / 100;
        loop {
            let pages = size(&self.random);
            if self.space.totals().free < least + pages {
                return;
            }
            let Ok(mut reservation) = self.space.reserve(pages, Purpose::Store) else { return };
            let extents = self.ask(|| reservation.place(pages).map(<[Extent]>::to_vec));
            self.commit(extents.clone(), Vec::new());
            self.objects.push(extents);
        }
    }

    fn delete_half(&mut self) {
        for _ in 0..self.objects.len() / 2 {
            let at = self.random.within(0..self.objects.len() as u64);
            let gone = self.objects.swap_remove(usize::try_from(at).unwrap());
            self.commit(Vec::new(), gone);
        }
        self.ask(|| self.space.release(self.sequence + 1));
    }

    /// Writes a checkpoint and starts again from it.
    fn restart(&mut self) {
        for (key, value) in self.ask(|| self.space.checkpoint()) {
            match value {
                Some(value) => self.stored.insert(key, value),
                None => self.stored.remove(&key),
            };
        }
        let mut summaries = StoredSummaries::default();
        let range = KeyRange::table(4);
        for (at, (_, value)) in (0..).zip(self.stored.range(range.from..range.until)) {
            summaries.add(at, value).unwrap();
        }
        let totals = &self.stored[&TableKey::Fact(FactNumber::Totals).encode()];
        let Ok(Fact::Totals(totals)) = Fact::decode(FactNumber::Totals, totals) else {
            panic!("totals")
        };
        let expected = self.objects.iter().map(|object| page_count(object)).sum();
        assert_eq!(totals, StateTotals { clean_pages: 0, written_pages: expected });
        let before = self.space.totals();
        self.space = Space::restore(layout(), REGIONS, summaries, totals).unwrap();
        assert_eq!(self.space.totals(), before, "everything is where it was");
    }

    /// Extents per object among those of these lengths.
    fn pieces(&self, lens: std::ops::Range<u64>) -> f64 {
        let of_class = || self.objects.iter().filter(|object| lens.contains(&page_count(object)));
        of_class().map(Vec::len).sum::<usize>() as f64 / of_class().count().max(1) as f64
    }

    /// What the disk needs beside the data, in percent of it: records in leaves 0.69 full, and
    /// everything that is neither data nor free.
    fn overhead_percent(&self) -> f64 {
        let mut bytes = 0;
        for object in &self.objects {
            let pages = page_count(object);
            let sections = pages.div_ceil(128);
            // Key, lengths and offset; the fixed part; each extent, cut at the sections' ends.
            bytes += sections * (19 + 5 + 40) + 8 * (object.len() as u64 + sections) + 4 * pages;
        }
        let totals = self.space.totals();
        let data = totals.clean + totals.written;
        let other = totals.quarantined + totals.reserved + totals.index;
        100.0 * (bytes as f64 / 0.69 / 4096.0 + other as f64) / data as f64
    }
}

#[test]
fn churn_with_records_and_starts_costs_no_space_and_keeps_objects_in_one_piece() {
    let mut target = Target {
        random: Random::seeded(11),
        space: Space::new(layout(), REGIONS),
        stored: BTreeMap::new(),
        sequence: 0,
        objects: Vec::new(),
    };
    for round in 0..11 {
        target.fill(10);
        let pieces = [1..16, 16..128, 128..16_384].map(|lens| target.pieces(lens));
        assert!(pieces.iter().all(|&pieces| pieces < 1.01), "round {round}: {pieces:?}");
        let chunks = target.pieces(16_384..16_385);
        assert!(chunks < 1.5, "round {round}: {chunks} pieces a chunk of 64 MiB");
        let overhead = target.overhead_percent();
        assert!(overhead < 1.0, "round {round}: {overhead} %");
        target.delete_half();
        target.restart();
        target.space.shrink(8);
    }
    // To the last page that clients may have, and back to none.
    target.fill(0);
    while let Ok(mut reservation) = target.space.reserve(1, Purpose::Store) {
        let extents = target.ask(|| reservation.place(1).map(<[Extent]>::to_vec));
        target.commit(extents.clone(), Vec::new());
        target.objects.push(extents);
    }
    let totals = target.space.totals();
    assert_eq!(totals.free, totals.kept_back, "whatever is free can be used to the last page");
    while !target.objects.is_empty() {
        if target.objects.len() == 1 {
            let last = target.objects.pop().unwrap();
            target.commit(Vec::new(), last);
        }
        target.delete_half();
    }
    target.ask(|| target.space.release(u64::MAX));
    let totals = target.space.totals();
    assert_eq!(totals.free + totals.fixed, totals.capacity, "nothing has leaked");
    target.restart();
    assert!(target.stored.len() == 1, "a free disk has no maps: {:?}", target.stored.keys());
}

#[test]
fn a_start_asks_for_the_maps_that_records_concern_and_no_others() {
    let space = Space::new(layout(), REGIONS);
    let first = layout().regions + 3 * u64::from(REGION_PAGES);
    let effects = Effects {
        taken: vec![Extent { first, pages: 5 }],
        written_pages_more: 5,
        ..Effects::default()
    };
    space.replay(1, &effects).unwrap();
    let entries: Vec<Key> = space.checkpoint().unwrap().into_iter().map(|(key, _)| key).collect();
    let expected = [
        TableKey::FreeMap(3).encode(),
        TableKey::Summaries(0).encode(),
        TableKey::Fact(FactNumber::Totals).encode(),
    ];
    assert_eq!(entries, expected);
    space.shrink(0);
    let effects = Effects { given_up: effects.taken, written_pages_more: -5, ..Effects::default() };
    assert_eq!(space.replay(2, &effects), Err(ReplayError::Needs(3)));
}
