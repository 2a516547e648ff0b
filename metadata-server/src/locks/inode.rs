//! The locks of one inode, and the queue for them.
//!
//! Somebody is in the way of all who wait: only who waits for something that was just given up can
//! have it now.
//!
//! A file may have locks of as many owners as there are in all. So no question is answered by going
//! through them: what is on some bytes is found by an index ([`Intervals`]), what is a session's by
//! its number, and how much there is is counted.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::lock::{Lock, LockConflict, LockSpace};
use millrace_types::{HeldRanges, LockKind, LockRange, SessionId};

use super::{
    intervals::{Intervals, Item},
    piece::{Owner, Piece},
    queue::{Queue, State, Wait},
    steps,
};

/// What is held of an inode, and waited for.
#[derive(Debug, Default)]
pub(super) struct InodeLocks {
    flocks: BTreeMap<Owner, Held<LockKind>>,
    appends: BTreeMap<Owner, Held<LockKind>>,
    ranges: BTreeMap<Owner, Held<HeldRanges>>,
    /// The same by where they lie.
    index: Intervals,
    /// While anybody waits.
    queue: Option<Box<Queue>>,
    /// Where something was given up since it was last looked who can have it.
    given_up: Vec<(LockSpace, LockRange)>,
}

#[derive(Debug)]
struct Held<T> {
    what: T,
    /// That asked last.
    process: u32,
}

impl InodeLocks {
    /// Writes down what nobody is in the way of; returns how many locks the owner had in that
    /// space, and has.
    pub(super) fn set(&mut self, owner: Owner, lock: &Lock) -> (usize, usize) {
        let process = lock.process;
        let wholes = match lock.space {
            LockSpace::Flock => &mut self.flocks,
            LockSpace::Append => &mut self.appends,
            LockSpace::Range => return self.set_range(owner, lock),
        };
        let before = match lock.kind {
            None => wholes.remove(&owner),
            Some(kind) => wholes.insert(owner, Held { what: kind, process }),
        };
        if before.as_ref().is_some_and(|held| lock.kind < Some(held.what)) {
            self.given_up.push((lock.space, LockRange::WHOLE));
        }
        (usize::from(before.is_some()), usize::from(lock.kind.is_some()))
    }

    fn set_range(&mut self, owner: Owner, lock: &Lock) -> (usize, usize) {
        let new = || Held { what: HeldRanges::default(), process: lock.process };
        let held = self.ranges.entry(owner).or_insert_with(new);
        let before = held.what.len();
        // Who unlocks gives up whatever lies there; who reads on, what nobody else could read.
        let is_less = match lock.kind {
            None => held.what.in_the_way(lock.range, LockKind::Write).is_some(),
            Some(LockKind::Read) => held.what.in_the_way(lock.range, LockKind::Read).is_some(),
            Some(LockKind::Write) => false,
        };
        // What it touches may become one with it.
        let LockRange { start, last } = lock.range;
        let near = LockRange {
            start: start.saturating_sub(1),
            last: last.saturating_add(1).min(LockRange::END),
        };
        self.index.remove(items(owner, &held.what, near));
        held.what.set(lock.range, lock.kind);
        self.index.insert(items(owner, &held.what, near));
        if lock.kind.is_some() {
            held.process = lock.process;
        }
        let after = held.what.len();
        if after == 0 {
            self.ranges.remove(&owner);
        }
        if is_less {
            self.given_up.push((lock.space, lock.range));
        }
        (before, after)
    }

    /// Whether the owner holds what the lock asks for, or more.
    pub(super) fn holds(&self, owner: Owner, lock: &Lock) -> bool {
        let Some(kind) = lock.kind else { return false };
        match self.wholes(lock.space) {
            Some(wholes) => wholes.get(&owner).is_some_and(|held| held.what == kind),
            None => {
                let held = self.ranges.get(&owner);
                held.is_some_and(|held| held.what.covers(lock.range, kind))
            }
        }
    }

    /// What the owner holds under `flock`.
    pub(super) fn flock_of(&self, owner: Owner) -> Option<LockKind> {
        self.flocks.get(&owner).map(|held| held.what)
    }

    /// The session that holds the right to append.
    pub(super) fn may_append(&self) -> Option<SessionId> {
        self.appends.keys().next().map(|owner| owner.session)
    }

    /// Whether somebody waits for the right to append, behind whoever has it.
    pub(super) fn is_append_wanted(&self) -> bool {
        let (space, kind, range) = (LockSpace::Append, LockKind::Write, LockRange::WHOLE);
        self.queue.iter().any(|queue| queue.is_wanted(Piece { space, kind, range }))
    }

    fn wholes(&self, space: LockSpace) -> Option<&BTreeMap<Owner, Held<LockKind>>> {
        match space {
            LockSpace::Flock => Some(&self.flocks),
            LockSpace::Append => Some(&self.appends),
            LockSpace::Range => None,
        }
    }

    /// Whether unlocking leaves something of one lock on both sides.
    pub(super) fn splits(&self, owner: Owner, lock: &Lock) -> bool {
        let held = self.ranges.get(&owner).filter(|_| lock.space == LockSpace::Range);
        held.is_some_and(|held| held.what.splits(lock.range))
    }

    /// Other owners whose locks, or reservations, are in the way; some more than once.
    pub(super) fn in_the_way(
        &self,
        owner: Owner,
        piece: Piece,
    ) -> impl Iterator<Item = Owner> + '_ {
        self.excluding(piece, Some(owner))
    }

    /// Owners other than `except` whose locks, or reservations, are in the way of a piece; some
    /// more than once.
    pub(super) fn excluding(
        &self,
        piece: Piece,
        except: Option<Owner>,
    ) -> impl Iterator<Item = Owner> + '_ {
        let reserved = self.reserved(piece, except).map(|wait| wait.owner);
        self.holders(piece, except).chain(reserved)
    }

    /// Whether a lock of this owner is in the way of somebody else's piece.
    pub(super) fn is_held_by(&self, holder: Owner, piece: Piece) -> bool {
        let held = self.ranges.get(&holder).filter(|_| piece.space == LockSpace::Range);
        held.is_some_and(|held| held.what.in_the_way(piece.range, piece.kind).is_some())
    }

    /// Whether an owner has locks of ranges here, or reservations.
    pub(super) fn has_ranges(&self, owner: Owner) -> bool {
        self.ranges.contains_key(&owner) || self.reserved_of(owner).next().is_some()
    }

    /// What is reserved for an owner.
    pub(super) fn reserved_of(&self, owner: Owner) -> impl Iterator<Item = Piece> + '_ {
        self.queue.iter().flat_map(move |queue| queue.reserved_of(owner))
    }

    /// One lock, or reservation, that is in the way.
    pub(super) fn conflict(&self, owner: Owner, piece: Piece) -> Option<LockConflict> {
        let shown =
            |holder: Owner, process| if holder.session == owner.session { process } else { 0 };
        if let Some(holder) = self.holders(piece, Some(owner)).next() {
            let (range, kind, process) = self.held(holder, piece)?;
            return Some(LockConflict { range, kind, process: shown(holder, process) });
        }
        let wait = self.reserved(piece, Some(owner)).next()?;
        let Piece { kind, range, .. } = wait.piece;
        Some(LockConflict { range, kind, process: shown(wait.owner, wait.process) })
    }

    /// Where the holder is in the way of a piece first, with what, and by which process.
    fn held(&self, holder: Owner, piece: Piece) -> Option<(LockRange, LockKind, u32)> {
        match self.wholes(piece.space) {
            Some(wholes) => {
                let held = wholes.get(&holder)?;
                Some((LockRange::WHOLE, held.what, held.process))
            }
            None => {
                let held = self.ranges.get(&holder)?;
                let (range, kind) = held.what.in_the_way(piece.range, piece.kind)?;
                Some((range, kind, held.process))
            }
        }
    }

    /// A wait that is there.
    pub(super) fn wait(&self, arrival: u64) -> Option<&Wait> {
        self.queue.iter().find_map(|queue| queue.get(arrival))
    }

    /// The waits of a session, by their arrivals.
    pub(super) fn waits_of(&self, session: SessionId) -> impl Iterator<Item = u64> + '_ {
        self.queue.iter().flat_map(move |queue| queue.of_session(session))
    }

    /// Whether somebody is queued for what a piece is in the way of, if that is somebody else's.
    pub(super) fn is_waited_for(&self, piece: Piece) -> bool {
        self.queue.iter().any(|queue| queue.is_waited_for(piece))
    }

    /// Queues a wait that has just arrived.
    pub(super) fn add_wait(&mut self, arrival: u64, wait: Wait) {
        self.queue.get_or_insert_default().add(arrival, wait);
    }

    /// A wait would never end.
    pub(super) fn fail_wait(&mut self, arrival: u64) -> Option<Wait> {
        self.queue.as_mut()?.change(arrival, State::Deadlocked)
    }

    /// Takes a wait out, with what is reserved for it.
    pub(super) fn end_wait(&mut self, arrival: u64) -> Option<Wait> {
        let wait = self.queue.as_mut()?.remove(arrival)?;
        if wait.state == State::Reserved {
            self.given_up.push((wait.piece.space, wait.piece.range));
        }
        self.queue.take_if(|queue| queue.is_empty());
        Some(wait)
    }

    /// What was reserved is about to be held: nothing is given up with the end of that wait.
    pub(super) fn handle_claim(&mut self) {
        self.given_up.clear();
    }

    /// Those who wait for something that was given up: of all who wait for the same the first one,
    /// and for what.
    fn candidates(&self) -> BTreeSet<(u64, Piece)> {
        let Some(queue) = &self.queue else { return BTreeSet::new() };
        let given_up = self.given_up.iter();
        let pieces = given_up.flat_map(|&(space, range)| queue.wanted(space, range));
        pieces.filter_map(|piece| Some((queue.first(piece)?, piece))).collect()
    }

    /// Reserves what nobody is in the way of, in the order of arrival; returns whose.
    pub(super) fn reserve(&mut self) -> Vec<(u64, Wait)> {
        let mut next = self.candidates();
        self.given_up.clear();
        let mut reserved = Vec::new();
        // Who is in the way of a piece, and so of all others who wait for it.
        let mut only = BTreeMap::new();
        while let Some((arrival, piece)) = next.pop_first() {
            let owner = self.wait(arrival).map(|wait| wait.owner);
            let holder = owner.and_then(|owner| self.in_the_way(owner, piece).next());
            let Some(queue) = &mut self.queue else { break };
            if holder.is_none() {
                reserved.extend(queue.change(arrival, State::Reserved).map(|wait| (arrival, wait)));
            }
            let behind = match (holder, only.get(&piece)) {
                (None, None) => queue.after(piece, arrival),
                (None, Some(&owner)) => queue.after_of(piece, owner, arrival),
                // Of the waits for that, it is not in the way of its own alone.
                (Some(holder), None) => {
                    only.insert(piece, holder);
                    queue.after_of(piece, holder, arrival)
                }
                // Each of the two is in the way of the other, and of all others.
                (Some(_), Some(_)) => None,
            };
            next.extend(behind.map(|arrival| (arrival, piece)));
        }
        reserved
    }

    /// Drops everything that the session holds; returns how many locks of which owner in which
    /// space that were.
    pub(super) fn drop_session(&mut self, session: SessionId) -> Vec<(LockSpace, Owner, usize)> {
        let mut dropped = Vec::new();
        for space in [LockSpace::Flock, LockSpace::Append] {
            let wholes = match space {
                LockSpace::Flock => &mut self.flocks,
                _ => &mut self.appends,
            };
            let owners: Vec<_> =
                wholes.range(Owner::all_of(session)).map(|(owner, _)| *owner).collect();
            for owner in &owners {
                steps::look();
                wholes.remove(owner);
            }
            if !owners.is_empty() {
                self.given_up.push((space, LockRange::WHOLE));
            }
            dropped.extend(owners.into_iter().map(|owner| (space, owner, 1)));
        }
        self.drop_ranges(session, &mut dropped);
        dropped
    }

    fn drop_ranges(&mut self, session: SessionId, dropped: &mut Vec<(LockSpace, Owner, usize)>) {
        let owners = self.ranges.range(Owner::all_of(session)).map(|(owner, _)| *owner);
        // One range over them all: there may be very many.
        let mut over_all: Option<LockRange> = None;
        for owner in owners.collect::<Vec<_>>() {
            let Some(held) = self.ranges.remove(&owner) else { continue };
            self.index.remove(items(owner, &held.what, LockRange::WHOLE));
            for (range, _) in held.what.iter().inspect(|_| steps::look()) {
                over_all = Some(over_all.map_or(range, |before| LockRange {
                    start: before.start.min(range.start),
                    last: before.last.max(range.last),
                }));
            }
            dropped.push((LockSpace::Range, owner, held.what.len()));
        }
        self.given_up.extend(over_all.map(|range| (LockSpace::Range, range)));
    }

    /// Whether the session holds something, or waits.
    pub(super) fn has(&self, session: SessionId) -> bool {
        let owners = Owner::all_of(session);
        self.flocks.range(owners.clone()).next().is_some()
            || self.appends.range(owners.clone()).next().is_some()
            || self.ranges.range(owners).next().is_some()
            || self.waits_of(session).next().is_some()
    }

    /// Whether nothing is held or waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.flocks.is_empty()
            && self.appends.is_empty()
            && self.ranges.is_empty()
            && self.queue.is_none()
    }

    /// Owners other than `except` whose locks are in the way of a piece; some more than once.
    fn holders(&self, piece: Piece, except: Option<Owner>) -> impl Iterator<Item = Owner> + '_ {
        let wholes = self.wholes(piece.space).into_iter().flatten().inspect(|_| steps::look());
        let others = wholes.filter(move |(owner, _)| Some(**owner) != except);
        // Who may write has a whole file alone: beside others everybody reads.
        let others = others.take(if piece.kind == LockKind::Read { 1 } else { usize::MAX });
        let others = others.filter(move |(_, held)| held.what.excludes(piece.kind));
        let ranges = self.index.excluding(piece, except).map(|item| item.owner);
        others.map(|(owner, _)| *owner).chain(ranges)
    }

    /// Reservations of others than `except` that are in the way of a piece.
    fn reserved(&self, piece: Piece, except: Option<Owner>) -> impl Iterator<Item = &Wait> + '_ {
        self.queue.iter().flat_map(move |queue| queue.reserved(piece, except))
    }
}

/// What an owner holds of some bytes.
fn items(owner: Owner, held: &HeldRanges, range: LockRange) -> impl Iterator<Item = Item> + '_ {
    held.overlapping(range).map(move |(range, kind)| {
        let piece = Piece { space: LockSpace::Range, kind, range };
        Item { piece, owner, number: 0 }
    })
}

#[cfg(test)]
mod tests {
    use millrace_types::InodeId;

    use super::*;

    fn owner(number: u64) -> Owner {
        Owner { session: SessionId(1 + number % 2), number }
    }

    /// A lock on one byte, which has the number of its owner.
    fn byte(number: u64, kind: Option<LockKind>) -> Lock {
        let (inode, space) = (InodeId(5), LockSpace::Range);
        let range = LockRange { start: number, last: number };
        Lock { inode, space, owner: number, kind, range, process: 7 }
    }

    /// Somebody waits for what the lock asks for.
    fn wait(entry: &mut InodeLocks, arrival: u64, owner: Owner, lock: &Lock, state: State) {
        let (piece, process) = (Piece::of(lock).unwrap(), lock.process);
        entry.add_wait(arrival, Wait { owner, number: arrival, piece, process, state });
    }

    /// The numbers of those who are looked at first, and of those who can have what they wait for.
    fn look(entry: &mut InodeLocks) -> (Vec<u64>, Vec<u64>) {
        let candidates = entry.candidates().into_iter().map(|(arrival, _)| arrival).collect();
        (candidates, entry.reserve().into_iter().map(|(arrival, _)| arrival).collect())
    }

    #[test]
    fn only_who_waits_for_what_was_given_up_is_looked_at() {
        let (locks, waits, write) = (1000, 100, Some(LockKind::Write));
        let mut entry = InodeLocks::default();
        for number in 0..locks {
            entry.set(owner(number), &byte(number, write));
        }
        for number in 1..waits {
            let other = owner(locks + number);
            wait(&mut entry, number, other, &byte(number, write), State::Queued);
        }
        let nobody = || (Vec::new(), Vec::new());
        assert_eq!(look(&mut entry), nobody(), "something was taken");
        entry.set(owner(5000), &byte(5000, write));
        entry.set(owner(5000), &byte(5000, None));
        assert_eq!(look(&mut entry), nobody(), "for which nobody waits");
        entry.set(owner(9), &byte(8, None));
        assert_eq!(look(&mut entry), nobody(), "it had nothing there");

        entry.set(owner(7), &byte(7, None));
        assert_eq!(look(&mut entry), (vec![7], vec![7]));
        assert_eq!(look(&mut entry), nobody(), "once");
        entry.set(owner(8), &byte(8, Some(LockKind::Read)));
        assert_eq!(look(&mut entry), (vec![8], vec![]), "others could read by now");
        let reserved = entry.end_wait(7).unwrap();
        entry.handle_claim();
        entry.add_wait(7, Wait { state: State::Queued, ..reserved });
        entry.set(owner(7), &byte(7, write));
        assert_eq!(look(&mut entry), nobody());
        // Everybody of one of the sessions, from the first byte to the last.
        assert_eq!(entry.drop_session(SessionId(1)).len(), 500);
        let even: Vec<_> = (1..waits).filter(|number| number % 2 == 0).collect();
        assert_eq!(look(&mut entry), ((1..waits).collect(), even));
    }

    #[test]
    fn who_gives_up_what_is_reserved_lets_others_have_it_and_who_claims_it_does_not() {
        let write = Some(LockKind::Write);
        let two = || {
            let mut entry = InodeLocks::default();
            for (arrival, state) in [(1, State::Reserved), (2, State::Queued)] {
                wait(&mut entry, arrival, owner(arrival), &byte(3, write), state);
            }
            entry
        };
        let (mut entry, mut claimed) = (two(), two());
        assert!(claimed.end_wait(1).is_some());
        claimed.handle_claim();
        assert_eq!(look(&mut claimed), (vec![], vec![]));
        assert!(entry.end_wait(1).is_some() && entry.end_wait(1).is_none());
        assert_eq!(look(&mut entry), (vec![2], vec![2]));
        assert!(entry.end_wait(2).is_some());
        assert!(look(&mut entry).0.is_empty());
    }

    #[test]
    fn of_those_who_wait_for_the_same_who_holds_it_is_served_past_the_others() {
        let (read, write) = (Some(LockKind::Read), Some(LockKind::Write));
        let mut entry = InodeLocks::default();
        for number in [1, 2, 3] {
            entry.set(owner(number), &byte(9, read));
        }
        for (arrival, number) in [(1, 5), (2, 2), (3, 1), (4, 5), (5, 1)] {
            wait(&mut entry, arrival, owner(number), &byte(9, write), State::Queued);
        }
        wait(&mut entry, 6, owner(6), &byte(9, read), State::Queued);
        entry.set(owner(3), &byte(9, None));
        assert_eq!(
            look(&mut entry),
            (vec![1, 6], vec![6]),
            "two are in the way of those who write"
        );
        assert!(entry.end_wait(6).is_some());
        entry.set(owner(2), &byte(9, None));
        assert_eq!(look(&mut entry), (vec![1], vec![3, 5]), "in its own way nobody is");
        for arrival in [3, 5] {
            assert!(entry.end_wait(arrival).is_some());
        }
        entry.set(owner(1), &byte(9, None));
        assert_eq!(look(&mut entry), (vec![1], vec![1, 4]), "of one owner both");
        assert_eq!(entry.wait(2).map(|wait| wait.state), Some(State::Queued));
    }
}
