//! Bytes that programs wrote and that targets have not acknowledged yet, for one file.
//!
//! The file is divided into *slots* of one transfer (or one chunk, where chunks are smaller).
//! Within a slot, written bytes are kept as extents that never touch each other. A slot is sent as
//! a whole: its extents become *flights*, and nothing else of that slot is sent until all of them
//! have been answered. So no block has two writes in flight, and a later write of the same bytes
//! cannot be overtaken by an earlier one.
//!
//! Writes are numbered. Whoever waits for what was written by a moment waits for slots with bytes
//! of a number up to that of the last write by then ([`Awaited`]), however much is written after
//! it.
//!
//! What grows the file is known of each slot: until it has landed, nobody has stored anything where
//! it lies, and no size that includes it may be told.
//!
//! Each flight knows the session in which it was written: by the next one others may have the right
//! to write there.
//!
//! Reads look through both: flights first, then the extents written after them.
//!
//! What targets copy into the file by themselves (`copies`) has no bytes here, and is known for
//! what it does to the file's end alone.

use std::{collections::BTreeMap, ops::Range};

use bytes::Bytes;
use millrace_types::SessionId;

use self::copies::Copies;
pub(crate) use self::copies::CopyNumber;

mod copies;
#[cfg(test)]
mod tests;

/// The buffered bytes of one file.
#[derive(Debug)]
pub(crate) struct WriteBuffer {
    slot_size: u64,
    slots: BTreeMap<u64, Slot>,
    dirty_bytes: u64,
    flight_bytes: u64,
    /// The number of the last write.
    last: u64,
    /// In which the oldest was written of what waits.
    session: Option<SessionId>,
    copies: Copies,
}

#[derive(Debug, Default)]
struct Slot {
    /// In order of their start; neighbours do not touch.
    extents: Vec<Extent>,
    flights: Vec<Flight>,
    /// The first write of which something may be in the extents, while there are any.
    dirty_since: u64,
    /// The same of the flights.
    flying_since: u64,
    /// The first byte in the extents that lay behind the end of the file when it was written.
    grows_from: Option<u64>,
    /// The same of the flights.
    flight_grows_from: Option<u64>,
}

/// What was written to part of a file by a moment.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Awaited {
    start: u64,
    end: u64,
    /// The number of the last write by then.
    until: u64,
}

#[derive(Debug)]
struct Extent {
    start: u64,
    data: Vec<u8>,
}

/// Bytes on their way to a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Flight {
    /// First byte, counted from the start of the file.
    pub(crate) start: u64,
    /// The bytes; at least 1, within one slot.
    pub(crate) data: Bytes,
    /// In which they were written, or the oldest of what waited with them.
    pub(crate) session: Option<SessionId>,
}

impl Flight {
    /// One past the last byte.
    pub(crate) fn end(&self) -> u64 {
        self.start + u64::try_from(self.data.len()).expect("a length in memory fits in 64 bits")
    }
}

/// Which part of a file a slot is: byte offset divided by the slot size.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct SlotIndex(u64);

impl WriteBuffer {
    /// An empty buffer with slots of `slot_size` bytes.
    pub(crate) fn new(slot_size: u64) -> Self {
        assert!(slot_size > 0, "a slot holds bytes");
        let (slots, session, copies) = (BTreeMap::new(), None, Copies::default());
        Self { slot_size, slots, dirty_bytes: 0, flight_bytes: 0, last: 0, session, copies }
    }

    /// Copies written bytes in. Returns the slots that are filled to their end by it: a writer that
    /// goes forward is done with those.
    pub(crate) fn insert(&mut self, offset: u64, data: &[u8]) -> Vec<SlotIndex> {
        let mut filled = Vec::new();
        self.last += 1;
        let mut rest = data;
        let mut at = offset;
        while !rest.is_empty() {
            let index = at / self.slot_size;
            let slot_end = (index + 1) * self.slot_size;
            let room = usize::try_from(slot_end - at).unwrap_or(usize::MAX);
            let (part, behind) = rest.split_at(room.min(rest.len()));
            let slot = self.slots.entry(index).or_default();
            if slot.extents.is_empty() {
                slot.dirty_since = self.last;
            }
            self.dirty_bytes += slot.insert(at, part, self.slot_size);
            at += length(part);
            rest = behind;
            if at == slot_end {
                filled.push(SlotIndex(index));
            }
        }
        filled
    }

    /// Records in which session the next write is made.
    pub(crate) fn record_session(&mut self, session: SessionId) {
        if self.dirty_bytes == 0 {
            self.session = Some(session);
        }
    }

    /// Turns what is dirty in a slot into flights. `None` when nothing is, or when flights of the
    /// slot are still out.
    pub(crate) fn take_off(&mut self, index: SlotIndex) -> Option<Vec<Flight>> {
        let session = self.session;
        let slot = self.slots.get_mut(&index.0)?;
        if !slot.flights.is_empty() || slot.extents.is_empty() {
            return None;
        }
        let extents = std::mem::take(&mut slot.extents);
        slot.flying_since = slot.dirty_since;
        slot.flight_grows_from = slot.grows_from.take();
        slot.flights = extents
            .into_iter()
            .map(|extent| Flight { start: extent.start, data: extent.data.into(), session })
            .collect();
        let bytes: u64 = slot.flights.iter().map(|flight| length(&flight.data)).sum();
        self.dirty_bytes -= bytes;
        self.flight_bytes += bytes;
        Some(slot.flights.clone())
    }

    /// Forgets the flights of a slot: acknowledged, or given up. Returns how many bytes they were.
    pub(crate) fn land(&mut self, index: SlotIndex) -> u64 {
        let Some(slot) = self.slots.get_mut(&index.0) else {
            return 0;
        };
        let flights = std::mem::take(&mut slot.flights);
        slot.flight_grows_from = None;
        let bytes = flights.iter().map(|flight| length(&flight.data)).sum();
        self.flight_bytes -= bytes;
        if slot.extents.is_empty() {
            self.slots.remove(&index.0);
        }
        bytes
    }

    /// Drops what is dirty from `from` on (the file is cut there). Flights are left to land.
    /// Returns how many bytes were dropped.
    pub(crate) fn cut(&mut self, from: u64) -> u64 {
        let before = self.dirty_bytes;
        for slot in self.slots.range_mut(from / self.slot_size..).map(|(_, slot)| slot) {
            for extent in &mut slot.extents {
                let keep = usize::try_from(from.saturating_sub(extent.start)).unwrap_or(usize::MAX);
                let dropped = extent.data.len().saturating_sub(keep);
                extent.data.truncate(keep);
                self.dirty_bytes -= u64::try_from(dropped).expect("a length fits");
            }
            slot.extents.retain(|extent| !extent.data.is_empty());
            slot.grows_from = slot.grows_from.filter(|&at| at < from);
        }
        self.slots.retain(|_, slot| !slot.extents.is_empty() || !slot.flights.is_empty());
        before - self.dirty_bytes
    }

    /// Writes what is buffered of `offset..offset + target.len()` over `target`.
    pub(crate) fn overlay(&self, offset: u64, target: &mut [u8]) {
        let range = offset..offset + length(target);
        for slot in self.slots_of(&range) {
            for flight in &slot.flights {
                copy_common(flight.start, &flight.data, offset, target);
            }
            for extent in &slot.extents {
                copy_common(extent.start, &extent.data, offset, target);
            }
        }
    }

    /// The bytes of `range`, if all of them are buffered.
    pub(crate) fn read_covered(&self, range: &Range<u64>) -> Option<Vec<u8>> {
        let mut held: Vec<Range<u64>> = Vec::new();
        for slot in self.slots_of(range) {
            held.extend(slot.flights.iter().map(|flight| span(flight.start, &flight.data)));
            held.extend(slot.extents.iter().map(|extent| span(extent.start, &extent.data)));
        }
        held.sort_unstable_by_key(|span| span.start);
        let reached = held.iter().fold(range.start, |reached, span| {
            if span.start <= reached { reached.max(span.end) } else { reached }
        });
        if reached < range.end {
            return None;
        }
        let mut bytes = vec![0; usize::try_from(range.end - range.start).ok()?];
        self.overlay(range.start, &mut bytes);
        Some(bytes)
    }

    /// Whether any byte of `range` is buffered.
    pub(crate) fn overlaps(&self, range: &Range<u64>) -> bool {
        let meets = |start, data: &[u8]| {
            let held = span(start, data);
            held.start < range.end && range.start < held.end
        };
        self.slots_of(range).any(|slot| {
            slot.flights.iter().any(|flight| meets(flight.start, &flight.data))
                || slot.extents.iter().any(|extent| meets(extent.start, &extent.data))
        })
    }

    /// One past the last byte; 0 where nothing is buffered.
    pub(crate) fn end(&self) -> u64 {
        self.slots.values().next_back().and_then(Slot::end).unwrap_or(0)
    }

    /// The first byte at or behind `offset` that waits or is on its way.
    pub(crate) fn first_behind(&self, offset: u64) -> Option<u64> {
        let first = |slot: &Slot| {
            let (waiting, flying) = slot.first_behind(offset);
            waiting.into_iter().chain(flying).min()
        };
        let copied = self.copies.first_behind(offset);
        self.slots.values().find_map(first).into_iter().chain(copied).min()
    }

    /// Records that this range was just written, when the file ended at `size`.
    pub(crate) fn record_growth(&mut self, range: &Range<u64>, size: u64) {
        let from = range.start.max(size);
        if from >= range.end {
            return;
        }
        let (first, last) = (from / self.slot_size, range.end.div_ceil(self.slot_size));
        for (index, slot) in self.slots.range_mut(first..last) {
            let start = from.max(index * self.slot_size);
            slot.grows_from = Some(slot.grows_from.map_or(start, |known| known.min(start)));
        }
    }

    /// The file is found to end at `size`, whatever it was when this was written.
    pub(crate) fn renew_growth(&mut self, size: u64) {
        for slot in self.slots.values_mut() {
            (slot.grows_from, slot.flight_grows_from) = slot.first_behind(size);
        }
        self.copies.renew_growth(size);
    }

    /// The first byte that waits or is on its way, and lay behind the end of the file when it was
    /// written.
    pub(crate) fn first_growth(&self) -> Option<u64> {
        let first = |slot: &Slot| slot.grows_from.into_iter().chain(slot.flight_grows_from).min();
        let copied = self.copies.first_growth();
        self.slots.values().find_map(first).into_iter().chain(copied).min()
    }

    /// Whether a file that ends at `size` has a hole when this is stored. What is on its way may
    /// have gone to the content before, or fail: only what waits is sure to be stored.
    pub(crate) fn leaves_hole(&self, size: u64) -> bool {
        let mut reached = size;
        for extent in self.slots.values().flat_map(|slot| &slot.extents) {
            if extent.start > reached {
                return true;
            }
            reached = reached.max(extent.end());
        }
        self.end() > reached || self.copies.first_behind(reached).is_some()
    }

    /// The slots with something to send, in order.
    pub(crate) fn dirty_slots(&self) -> Vec<SlotIndex> {
        let dirty = self.slots.iter().filter(|(_, slot)| !slot.extents.is_empty());
        dirty.map(|(&index, _)| SlotIndex(index)).collect()
    }

    /// All that was written by now.
    pub(crate) fn written(&self) -> Awaited {
        self.written_to(&(0..u64::MAX))
    }

    /// What was written by now in the slots of `range`.
    pub(crate) fn written_to(&self, range: &Range<u64>) -> Awaited {
        Awaited { start: range.start, end: range.end, until: self.last }
    }

    /// The slots in which something of that waits to be sent, in order.
    pub(crate) fn dirty_slots_of(&self, awaited: Awaited) -> Vec<SlotIndex> {
        let slots = self.slots_holding(awaited);
        let dirty = slots.filter(|(_, slot)| slot.is_dirty_since(awaited.until));
        dirty.map(|(index, _)| SlotIndex(index)).collect()
    }

    /// Whether something of that waits or is on its way.
    pub(crate) fn holds(&self, awaited: Awaited) -> bool {
        self.slots_holding(awaited).next().is_some()
    }

    /// Whether something of that is on its way, or waits for what is.
    pub(crate) fn has_flights_before(&self, awaited: Awaited) -> bool {
        self.slots_holding(awaited).any(|(_, slot)| !slot.flights.is_empty())
    }

    /// Whether flights are out, or targets copy.
    pub(crate) fn has_flights(&self) -> bool {
        self.flight_bytes > 0 || !self.copies.is_empty()
    }

    /// Bytes that wait to be sent.
    #[cfg(test)]
    pub(crate) fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes
    }

    /// Bytes that wait or are on their way.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.dirty_bytes + self.flight_bytes
    }

    fn slots_of(&self, range: &Range<u64>) -> impl Iterator<Item = &Slot> {
        let first = range.start / self.slot_size;
        let last = range.end.div_ceil(self.slot_size).max(first);
        self.slots.range(first..last).map(|(_, slot)| slot)
    }

    fn slots_holding(&self, awaited: Awaited) -> impl Iterator<Item = (u64, &Slot)> {
        let Awaited { start, end, until } = awaited;
        let first = start / self.slot_size;
        let last = end.div_ceil(self.slot_size).max(first);
        let slots = self.slots.range(first..last).map(|(&index, slot)| (index, slot));
        slots.filter(move |(_, slot)| slot.is_dirty_since(until) || slot.is_flying_since(until))
    }
}

impl Slot {
    /// Whether something may wait that was written by the write of this number or before.
    fn is_dirty_since(&self, number: u64) -> bool {
        !self.extents.is_empty() && self.dirty_since <= number
    }

    fn is_flying_since(&self, number: u64) -> bool {
        !self.flights.is_empty() && self.flying_since <= number
    }

    /// The first bytes at or behind `offset` that wait, and that are on their way.
    fn first_behind(&self, offset: u64) -> (Option<u64>, Option<u64>) {
        let first = |start: u64, end: u64| (end > offset).then(|| start.max(offset));
        let waiting = self.extents.iter().filter_map(|extent| first(extent.start, extent.end()));
        let flying = self.flights.iter().filter_map(|flight| first(flight.start, flight.end()));
        (waiting.min(), flying.min())
    }

    /// One past its last byte.
    fn end(&self) -> Option<u64> {
        let extents = self.extents.iter().map(Extent::end);
        let flights = self.flights.iter().map(|flight| span(flight.start, &flight.data).end);
        extents.chain(flights).max()
    }

    /// Returns by how much the dirty bytes grew.
    fn insert(&mut self, start: u64, data: &[u8], slot_size: u64) -> u64 {
        let end = start + length(data);
        if let Some(last) = self.extents.last_mut()
            && last.end() == start
        {
            // The common case: a program that writes forward.
            last.data.extend_from_slice(data);
            return length(data);
        }
        let first = self.extents.partition_point(|extent| extent.end() < start);
        let behind = self.extents.partition_point(|extent| extent.start <= end);
        if first == behind {
            let mut bytes = Vec::with_capacity(capacity(start, data, slot_size));
            bytes.extend_from_slice(data);
            self.extents.insert(first, Extent { start, data: bytes });
            return length(data);
        }
        let before: u64 =
            self.extents[first..behind].iter().map(|extent| length(&extent.data)).sum();
        let touched: Vec<Extent> = self.extents.drain(first..behind).collect();
        let merged = merge(touched, start, data);
        let grown = length(&merged.data) - before;
        self.extents.insert(first, merged);
        grown
    }
}

impl Extent {
    fn end(&self) -> u64 {
        self.start + length(&self.data)
    }
}

/// Joins extents that touch `data` with it; where they overlap, `data` counts.
fn merge(touched: Vec<Extent>, start: u64, data: &[u8]) -> Extent {
    let end = start + length(data);
    let mut extents = touched.into_iter();
    let first = extents.next().expect("called with the extents that are touched");
    let (whole_start, mut whole) = if first.start <= start {
        let keep = usize::try_from(start - first.start).expect("within a slot");
        let tail_from = usize::try_from(end - first.start).expect("within a slot");
        let mut whole = first.data;
        let tail = whole.get(tail_from..).map(<[u8]>::to_vec).unwrap_or_default();
        whole.truncate(keep);
        whole.extend_from_slice(data);
        whole.extend_from_slice(&tail);
        (first.start, whole)
    } else {
        let mut whole = data.to_vec();
        append_tail(&mut whole, &first, end);
        (start, whole)
    };
    for extent in extents {
        append_tail(&mut whole, &extent, end);
    }
    Extent { start: whole_start, data: whole }
}

fn append_tail(whole: &mut Vec<u8>, extent: &Extent, end: u64) {
    let covered = usize::try_from(end.saturating_sub(extent.start)).expect("within a slot");
    if let Some(tail) = extent.data.get(covered..) {
        whole.extend_from_slice(tail);
    }
}

/// A new extent at a slot's start, or one that is large already, most likely grows to the slot's
/// end: room for that is taken at once. A small one elsewhere takes what it needs.
fn capacity(start: u64, data: &[u8], slot_size: u64) -> usize {
    let to_end = slot_size - start % slot_size;
    let room = usize::try_from(to_end).unwrap_or(usize::MAX);
    if data.len() >= GROWING_LEN_MIN { room } else { data.len() }
}

/// A write of a page cluster or more is taken for the beginning of a longer one.
const GROWING_LEN_MIN: usize = 64 * 1024;

fn copy_common(start: u64, data: &[u8], offset: u64, target: &mut [u8]) {
    let from = start.max(offset);
    let to = (start + length(data)).min(offset + length(target));
    if from < to {
        let within = |base: u64| {
            let at = |position: u64| usize::try_from(position - base).expect("within a buffer");
            at(from)..at(to)
        };
        target[within(offset)].copy_from_slice(&data[within(start)]);
    }
}

fn span(start: u64, data: &[u8]) -> Range<u64> {
    start..start + length(data)
}

fn length(bytes: &[u8]) -> u64 {
    u64::try_from(bytes.len()).expect("a length in memory fits in 64 bits")
}
