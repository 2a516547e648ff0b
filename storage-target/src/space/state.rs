//! Everything that changes together, under the one lock of the space.

use std::collections::{BTreeSet, VecDeque};

use bytes::Bytes;

use super::{
    Allocator, Extent, Layout, Purpose, Refusal, RegionMap, ReplayError, Spot, StoredSummaries,
    Summary, Totals,
    ahead::{Ahead, Place, Window},
    owned::Owned,
    totals::kept_back,
};
use crate::format::{
    FormatError,
    change::Effects,
    extent::page_count,
    fact::{Fact, StateTotals},
    free_map::{SUMMARY_GROUP, encode_summaries},
    key::Key,
    table::{Entry, TableKey},
};

/// Extents that are freed before others get the lock: at a few microseconds each, for the free runs
/// of a region are counted anew, a millisecond.
const RELEASED_AT_ONCE: usize = 256;

#[derive(Debug)]
pub(super) struct State {
    layout: Layout,
    allocator: Allocator,
    /// Summaries as the newest checkpoint has them; four bytes each.
    recorded: Vec<[u8; 4]>,
    /// Regions whose pages records have taken or given up since the newest checkpoint.
    changed: BTreeSet<u32>,
    /// Promised, and not given out yet.
    promised: u64,
    /// Given out, and in no record yet; by reservation. Those set aside too, by window.
    held: Owned,
    ahead: Ahead,
    next_owner: u64,
    /// Given up, and not to be used again yet; by the sequence of the record.
    quarantined: Owned,
    /// The same in the order of sequences. What a replay has taken again is here still.
    queue: VecDeque<(u64, Extent)>,
    newest: u64,
    index: u64,
    used: StateTotals,
    /// Of the regions that have not grown, how many can.
    growable: u32,
}

impl State {
    pub(super) fn restore(
        layout: Layout,
        grown: u32,
        stored: StoredSummaries,
        used: StateTotals,
    ) -> Result<Self, FormatError> {
        assert!(grown <= layout.region_count(), "no more regions than the layout has");
        let count = index_of(grown);
        let is_too_long = stored.regions() > grown;
        let mut summaries = stored.into_summaries();
        if is_too_long {
            return Err(FormatError::Impossible { what: "a region's summary", field: "place" });
        }
        // Also what a checkpoint says of empty ones that a loss of power has taken away.
        summaries.resize(count, Summary::EMPTY);
        let allocator = Allocator::restore(layout.regions, &summaries);
        let recorded = summaries.into_iter().map(Summary::encode).collect();
        let in_use = allocator.total_pages() - allocator.free_pages();
        let named = used.clean_pages + used.written_pages;
        // What no section uses, nodes of the index do.
        let index = in_use.checked_sub(named).ok_or(FormatError::Impossible {
            what: "the totals",
            field: "count of pages: the free maps say less",
        })?;
        Ok(Self {
            layout,
            allocator,
            recorded,
            changed: BTreeSet::new(),
            promised: 0,
            held: Owned::default(),
            ahead: Ahead::default(),
            next_owner: 0,
            quarantined: Owned::default(),
            queue: VecDeque::new(),
            newest: 0,
            index,
            used,
            growable: layout.region_count() - grown,
        })
    }

    pub(super) fn promise(&mut self, pages: u64, purpose: Purpose) -> Result<u64, Refusal> {
        if self.missing(pages, purpose) > 0 {
            return Err(Refusal::Full);
        }
        self.promised += pages;
        self.next_owner += 1;
        self.check();
        Ok(self.next_owner)
    }

    pub(super) fn missing(&self, pages: u64, purpose: Purpose) -> u64 {
        // Of what has grown: so much is there also when nothing more can be had.
        let kept = kept_back(self.allocator.total_pages());
        let kept = match purpose {
            Purpose::Store => kept,
            Purpose::Free => kept / 2,
            Purpose::Index => 0,
        };
        (pages + kept).saturating_sub(self.free_pages())
    }

    pub(super) fn is_cramped(&self, spot: &Spot) -> bool {
        let wanted = u64::from(spot.until - spot.pages.start);
        self.allocator.free_pages() < self.promised + wanted
    }

    pub(super) fn place(&mut self, pages: u64, owner: u64) -> Result<Vec<Extent>, Refusal> {
        let extents = loop {
            match self.allocator.allocate(pages) {
                // What was promised is there, but it may have been set aside since.
                Err(Refusal::Full) => {
                    let window = self.ahead.remove_oldest();
                    self.close(&window.expect("what is promised can be placed"));
                }
                other => break other?,
            }
        };
        self.promised -= pages;
        for &extent in &extents {
            self.held.insert(extent, owner);
        }
        self.check();
        Ok(extents)
    }

    pub(super) fn place_at(&mut self, spot: &Spot, owner: u64) -> Result<Vec<Extent>, Refusal> {
        let pages = u64::from(spot.pages.end - spot.pages.start);
        let behind = match self.ahead.take(spot) {
            Place::Here(extent, window) => {
                let held = page_count(&self.held.remove(extent, Some(window)));
                assert_eq!(held, extent.pages, "a window holds its pages");
                self.promised -= pages;
                self.held.insert(extent, owner);
                self.check();
                return Ok(vec![extent]);
            }
            Place::Behind(page) => Some(page),
            Place::Elsewhere => return self.place(pages, owner),
            Place::Unknown => None,
        };
        let allowance = Ahead::allowance(self.free_pages());
        let aside = u64::from(spot.until - spot.pages.end).min(allowance);
        let run = match spot.is_shared {
            // Not behind the last one: that may be a region of large things.
            true => self.take_small_run(pages, aside)?,
            false => self.take_run(behind, pages, aside)?,
        };
        let Some(run) = run else { return self.place(pages, owner) };
        self.promised -= pages;
        let taken = Extent { pages, ..run };
        let rest = Extent { first: taken.end(), pages: run.pages - pages };
        self.held.insert(taken, owner);
        if rest.pages > 0 {
            self.next_owner += 1;
            self.held.insert(rest, self.next_owner);
            let until = spot.pages.end + u32::try_from(rest.pages).expect("pages of a chunk");
            let window = Spot { until, ..spot.clone() };
            if let Some(old) = self.ahead.open(&window, rest.first, self.next_owner) {
                self.close(&old);
            }
            while let Some(old) = self.ahead.shrink(self.free_pages()) {
                self.close(&old);
            }
        }
        self.check();
        Ok(vec![taken])
    }

    /// Takes a run of some pages with others behind them: at a certain page, or anywhere. `None`:
    /// there is none.
    fn take_run(
        &mut self,
        behind: Option<u64>,
        pages: u64,
        aside: u64,
    ) -> Result<Option<Extent>, Refusal> {
        for aside in [aside, 0] {
            if self.has_room(pages, aside)
                && let Some(first) = behind
            {
                let extent = Extent { first, pages: pages + aside };
                if self.allocator.is_all(false, extent)? {
                    self.allocator.take(extent)?;
                    return Ok(Some(extent));
                }
            }
        }
        let is_there = aside > 0 && self.has_room(pages, aside);
        if is_there { self.allocator.allocate_run(pages + aside) } else { Ok(None) }
    }

    /// Takes a run where small things are, or nothing is; also with fewer pages behind them.
    fn take_small_run(&mut self, pages: u64, aside: u64) -> Result<Option<Extent>, Refusal> {
        for aside in [aside, aside / 4] {
            if aside > 0
                && self.has_room(pages, aside)
                && let Some(run) = self.allocator.allocate_small_run(pages + aside)?
            {
                return Ok(Some(run));
            }
        }
        Ok(None)
    }

    /// Whether setting pages aside takes none from others who have a promise.
    fn has_room(&self, pages: u64, aside: u64) -> bool {
        let others = self.promised - pages;
        self.allocator.free_pages() >= others + pages + aside
    }

    /// Gives up what is left of a window.
    fn close(&mut self, window: &Window) {
        for extent in window.extents() {
            let held = page_count(&self.held.remove(extent, Some(window.owner)));
            assert_eq!(held, extent.pages, "a window holds its pages");
            self.allocator.free(extent).expect("maps of held pages stay in memory");
        }
    }

    /// Free, and promised to nobody; those set aside too.
    fn free_pages(&self) -> u64 {
        self.allocator.free_pages() + self.ahead.pages() - self.promised
    }

    /// Ends a reservation: what no record has taken is free again.
    pub(super) fn give_back(&mut self, extents: &[Extent], promised: u64, owner: u64) {
        self.promised -= promised;
        for &extent in extents {
            for part in self.held.remove(extent, Some(owner)) {
                self.allocator.free(part).expect("maps of held pages stay in memory");
            }
        }
        self.check();
    }

    pub(super) fn hand_to_index(&mut self, extents: &[Extent], owner: u64) {
        for &extent in extents {
            let held = page_count(&self.held.remove(extent, Some(owner)));
            assert_eq!(held, extent.pages, "the index gets pages that no record has taken");
            self.note_change(extent);
            self.index += extent.pages;
        }
        self.check();
    }

    pub(super) fn commit(&mut self, sequence: u64, effects: &Effects) {
        for &extent in &effects.taken {
            let held = page_count(&self.held.remove(extent, None));
            assert_eq!(held, extent.pages, "a record takes pages that are held: {extent:?}");
            self.note_change(extent);
        }
        self.give_up(sequence, effects);
        self.check();
    }

    /// Frees a few; returns how many pages, and whether that was all.
    pub(super) fn release(&mut self, end: u64) -> Result<(u64, bool), Refusal> {
        let before = self.quarantined.pages();
        for _ in 0..RELEASED_AT_ONCE {
            let front = self.queue.front().filter(|entry| entry.0 < end);
            let Some(&(sequence, extent)) = front else {
                self.check();
                return Ok((before - self.quarantined.pages(), true));
            };
            for (part, owner) in self.quarantined.within(extent.numbers()).collect::<Vec<_>>() {
                if owner == sequence {
                    self.allocator.free(part)?;
                    self.quarantined.remove(part, Some(sequence));
                }
            }
            self.queue.pop_front();
        }
        self.check();
        Ok((before - self.quarantined.pages(), false))
    }

    pub(super) fn replay(&mut self, sequence: u64, effects: &Effects) -> Result<(), ReplayError> {
        for &extent in &effects.given_up {
            self.must_be(true, extent)?;
            if self.quarantined.within(extent.numbers()).next().is_some() {
                return Err(ReplayError::Impossible { extent });
            }
        }
        for &extent in &effects.taken {
            self.must_be_free_or_quarantined(extent)?;
        }
        let mut used = self.used;
        let counts = [
            (&mut used.clean_pages, effects.clean_pages_more),
            (&mut used.written_pages, effects.written_pages_more),
        ];
        for (count, more) in counts {
            let extent = Extent { first: 0, pages: 0 };
            let sum = count.checked_add_signed(more);
            *count = sum.ok_or(ReplayError::Impossible { extent })?;
        }
        for &extent in &effects.taken {
            let known = self.quarantined.remove(extent, None);
            let mut at = extent.first;
            for gap_end in known.iter().map(|part| part.first).chain([extent.end()]) {
                if at < gap_end {
                    let gap = Extent { first: at, pages: gap_end - at };
                    self.allocator.take(gap).expect("looked at above");
                }
                at = known.iter().find(|part| part.first == gap_end).map_or(at, |part| part.end());
            }
            self.note_change(extent);
        }
        self.give_up(sequence, effects);
        self.check();
        Ok(())
    }

    pub(super) fn claim_index(&mut self, extent: Extent) -> Result<(), ReplayError> {
        let beyond = extent.first < self.layout.regions || extent.end() > self.allocator.end_page();
        if beyond || extent.pages == 0 {
            return Err(ReplayError::Impossible { extent });
        }
        // Asked for the maps alone.
        self.allocator.is_all(true, extent)?;
        // What is free of it was handed to the index after the checkpoint. What is in quarantine
        // was given up before that, by a record that is durable.
        let known = page_count(&self.quarantined.remove(extent, None));
        let claimed = known + self.allocator.cover(extent)?;
        if claimed > 0 {
            self.note_change(extent);
        }
        self.index += claimed;
        self.check();
        Ok(())
    }

    pub(super) fn bring(
        &mut self,
        region: u32,
        stored: Option<RegionMap>,
    ) -> Result<(), FormatError> {
        let impossible =
            FormatError::Impossible { what: "the free map of a region", field: "count of pages" };
        if region >= self.allocator.regions() {
            return Err(impossible);
        }
        if self.allocator.map(region).is_some() {
            return Ok(());
        }
        let mut map = stored.unwrap_or_default();
        let recorded = self.recorded(region);
        if Summary::of(&map, recorded.class) != recorded {
            return Err(impossible);
        }
        let place = self.allocator.region(region);
        for (extent, _) in self.quarantined.within(place.numbers()) {
            map.cover(within(extent, place));
        }
        if self.allocator.bring(region, map) { Ok(()) } else { Err(impossible) }
    }

    pub(super) fn checkpoint(&mut self) -> Result<Vec<(Key, Option<Bytes>)>, Refusal> {
        let mut entries = Vec::new();
        let mut groups = BTreeSet::new();
        let mut recorded = Vec::with_capacity(self.changed.len());
        for &region in &self.changed {
            let map = self.recorded_map(region)?;
            let summary = Summary::of(&map, self.recorded_class(region));
            let key = TableKey::FreeMap(region).encode();
            let value = (summary != Summary::EMPTY).then(|| map.encode().into());
            entries.push((key, value));
            groups.insert(region / SUMMARY_GROUP);
            recorded.push((region, summary.encode()));
        }
        for (region, summary) in recorded {
            self.recorded[index_of(region)] = summary;
        }
        for group in groups {
            let first = group * SUMMARY_GROUP;
            let end = (first + SUMMARY_GROUP).min(self.allocator.regions());
            let summaries: Vec<_> = (first..end).map(|region| self.recorded(region)).collect();
            let value = encode_summaries(&summaries).map(Bytes::from);
            entries.push((TableKey::Summaries(group).encode(), value));
        }
        let (key, value) = Entry::Fact(Fact::Totals(self.used)).encode();
        entries.push((key, Some(value)));
        self.changed.clear();
        Ok(entries)
    }

    pub(super) fn shrink(&mut self, count: usize) {
        let held: BTreeSet<u32> = self
            .held
            .iter()
            .flat_map(|extent| self.allocator.parts(extent))
            .map(|(region, _)| region)
            .collect();
        let changed = &self.changed;
        self.allocator.shrink(count, |region| changed.contains(&region) || held.contains(&region));
    }

    pub(super) fn grow(&mut self, regions: u32) {
        let count = self.allocator.regions() + regions;
        assert!(count <= self.layout.region_count(), "no more regions than the layout has");
        self.allocator.grow(regions);
        self.recorded.resize(index_of(count), Summary::EMPTY.encode());
        self.growable = self.growable.saturating_sub(regions);
        self.check();
    }

    pub(super) fn set_growable(&mut self, regions: u32) {
        self.growable = regions.min(self.layout.region_count() - self.allocator.regions());
    }

    pub(super) fn regions(&self) -> u32 {
        self.allocator.regions()
    }

    pub(super) fn changed_regions(&self) -> usize {
        self.changed.len()
    }

    pub(super) fn totals(&self) -> Totals {
        let all = u64::from(self.layout.region_count()) * u64::from(super::REGION_PAGES);
        let growable = u64::from(self.growable) * u64::from(super::REGION_PAGES);
        Totals {
            capacity: self.layout.capacity,
            fixed: self.layout.fixed_pages(),
            ungrown: all - self.allocator.total_pages(),
            growable,
            free: self.free_pages(),
            reserved: self.promised + self.held.pages() - self.ahead.pages(),
            quarantined: self.quarantined.pages(),
            index: self.index,
            clean: self.used.clean_pages,
            written: self.used.written_pages,
            kept_back: kept_back(self.allocator.total_pages() + growable),
        }
    }

    /// Puts pages into quarantine and changes the counts of those in use. The pages taken are no
    /// longer free.
    fn give_up(&mut self, sequence: u64, effects: &Effects) {
        assert!(sequence >= self.newest, "records come in order");
        self.newest = sequence;
        for &extent in &effects.given_up {
            self.note_change(extent);
            self.quarantined.insert(extent, sequence);
            self.queue.push_back((sequence, extent));
        }
        let StateTotals { clean_pages, written_pages } = &mut self.used;
        let counts =
            [(clean_pages, effects.clean_pages_more), (written_pages, effects.written_pages_more)];
        for (count, more) in counts {
            *count = count.checked_add_signed(more).expect("no more is given up than there is");
        }
    }

    fn note_change(&mut self, extent: Extent) {
        self.changed.extend(self.allocator.parts(extent).into_iter().map(|(region, _)| region));
    }

    fn must_be(&mut self, used: bool, extent: Extent) -> Result<(), ReplayError> {
        match self.allocator.is_all(used, extent) {
            Ok(true) => Ok(()),
            Ok(false) => Err(ReplayError::Impossible { extent }),
            Err(refusal) => Err(refusal.into()),
        }
    }

    fn must_be_free_or_quarantined(&mut self, extent: Extent) -> Result<(), ReplayError> {
        let known: Vec<Extent> =
            self.quarantined.within(extent.numbers()).map(|(part, _)| part).collect();
        if page_count(&known) == extent.pages {
            return Ok(());
        }
        let mut at = extent.first;
        for part in known {
            if at < part.first {
                self.must_be(false, Extent { first: at, pages: part.first - at })?;
            }
            at = part.end();
        }
        if at < extent.end() || extent.pages == 0 {
            self.must_be(false, Extent { first: at, pages: extent.end() - at })?;
        }
        Ok(())
    }

    fn recorded(&self, region: u32) -> Summary {
        Summary::decode(self.recorded[index_of(region)]).expect("encoded here")
    }

    /// What the region serves, of those pages that records name.
    fn recorded_class(&self, region: u32) -> super::Class {
        match self.allocator.summary(region).class {
            super::Class::Empty => self.recorded(region).class,
            class => class,
        }
    }

    /// The map of a region as the records say.
    fn recorded_map(&self, region: u32) -> Result<RegionMap, Refusal> {
        let mut map = self.allocator.map(region).ok_or(Refusal::Needs(region))?;
        let place = self.allocator.region(region);
        let held = self.held.within(place.numbers());
        for (extent, _) in held.chain(self.quarantined.within(place.numbers())) {
            map.give(within(extent, place));
        }
        Ok(map)
    }

    /// Pages that are used for nothing that is counted elsewhere must be free.
    fn check(&self) {
        self.totals().check();
    }
}

/// Where an extent lies in a region that contains it.
fn within(extent: Extent, region: Extent) -> std::ops::Range<u32> {
    let number = |page: u64| u32::try_from(page - region.first).expect("within the region");
    number(extent.first)..number(extent.end())
}

fn index_of(region: u32) -> usize {
    usize::try_from(region).expect("32 bits fit")
}
