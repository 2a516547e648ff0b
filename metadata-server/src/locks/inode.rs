//! The locks of one inode, and the queue for them.
//!
//! Somebody is in the way of all who wait: only who waits for something that was just given up can
//! have it now.

use std::collections::BTreeMap;

use millrace_protocol::lock::{Lock, LockConflict, LockSpace};
use millrace_types::{HeldRanges, LockKind, LockRange, SessionId};

/// Whose a lock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Owner {
    pub(super) session: SessionId,
    /// As the session numbers its owners.
    pub(super) number: u64,
}

/// Somebody who waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) owner: Owner,
    pub(super) space: LockSpace,
    pub(super) kind: LockKind,
    pub(super) range: LockRange,
    pub(super) process: u32,
    pub(super) state: State,
}

/// How far a wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum State {
    /// Somebody is in the way.
    Queued,
    /// Its turn has come: nobody else gets what it waits for until it is claimed or cancelled.
    Reserved,
    /// It would never have ended.
    Deadlocked,
}

impl Wait {
    /// Whether it is the wait for that lock.
    pub(super) fn is_for(&self, owner: Owner, lock: &Lock) -> bool {
        (self.owner, self.space, self.range) == (owner, lock.space, lock.range)
            && lock.kind == Some(self.kind)
    }
}

/// What is held of an inode, and waited for.
#[derive(Debug, Default)]
pub(super) struct InodeLocks {
    flocks: BTreeMap<Owner, Held<LockKind>>,
    appends: BTreeMap<Owner, Held<LockKind>>,
    ranges: BTreeMap<Owner, Held<HeldRanges>>,
    /// In the order of arrival.
    pub(super) waits: BTreeMap<u64, Wait>,
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
        held.what.set(lock.range, lock.kind);
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

    /// Whether the session holds the right to append.
    pub(super) fn may_append(&self, session: SessionId) -> bool {
        self.appends.keys().any(|owner| owner.session == session)
    }

    /// Whether somebody waits for the right to append, behind whoever has it.
    pub(super) fn is_append_wanted(&self) -> bool {
        let of_appends = |wait: &&Wait| wait.space == LockSpace::Append;
        self.waits.values().filter(of_appends).any(|wait| wait.state == State::Queued)
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

    /// Every other owner whose lock, or reservation, is in the way.
    pub(super) fn in_the_way(
        &self,
        space: LockSpace,
        owner: Owner,
        kind: LockKind,
        range: LockRange,
    ) -> Vec<Owner> {
        let holders = self.conflicts(space, owner, kind, range).map(|(holder, _)| holder);
        let reserved = self.reserved(space, owner, kind, range).map(|wait| wait.owner);
        holders.chain(reserved).collect()
    }

    /// One lock, or reservation, that is in the way.
    pub(super) fn conflict(
        &self,
        space: LockSpace,
        owner: Owner,
        kind: LockKind,
        range: LockRange,
    ) -> Option<LockConflict> {
        let shown =
            |holder: Owner, process| if holder.session == owner.session { process } else { 0 };
        let held = self.conflicts(space, owner, kind, range).next();
        let held = held
            .map(|(holder, found)| LockConflict { process: shown(holder, found.process), ..found });
        held.or_else(|| {
            let wait = self.reserved(space, owner, kind, range).next()?;
            let process = shown(wait.owner, wait.process);
            Some(LockConflict { range: wait.range, kind: wait.kind, process })
        })
    }

    /// Takes a wait out, with what is reserved for it.
    pub(super) fn end_wait(&mut self, arrival: u64) -> Option<Wait> {
        let wait = self.waits.remove(&arrival)?;
        if wait.state == State::Reserved {
            self.given_up.push((wait.space, wait.range));
        }
        Some(wait)
    }

    /// What was reserved is about to be held: nothing is given up with the end of that wait.
    pub(super) fn handle_claim(&mut self) {
        self.given_up.clear();
    }

    /// Who may be able to have by now what it waits for, in the order of arrival.
    fn candidates(&self) -> Vec<(u64, Wait)> {
        let is_candidate = |wait: &Wait| {
            let mut given_up = self.given_up.iter();
            wait.state == State::Queued
                && given_up.any(|(space, range)| *space == wait.space && range.overlaps(wait.range))
        };
        let candidates = self.waits.iter().filter(|(_, wait)| is_candidate(wait));
        candidates.map(|(arrival, wait)| (*arrival, *wait)).collect()
    }

    /// Reserves what nobody is in the way of, in the order of arrival; returns whose.
    pub(super) fn reserve(&mut self) -> Vec<(u64, Owner)> {
        if self.given_up.is_empty() {
            return Vec::new();
        }
        let mut reserved = Vec::new();
        let candidates = self.candidates();
        self.given_up.clear();
        for (arrival, wait) in candidates {
            let Wait { owner, space, kind, range, .. } = wait;
            let free = self.conflicts(space, owner, kind, range).next().is_none()
                && self.reserved(space, owner, kind, range).next().is_none();
            if free {
                self.waits.insert(arrival, Wait { state: State::Reserved, ..wait });
                reserved.push((arrival, owner));
            }
        }
        reserved
    }

    /// Drops everything that the session holds; returns how many locks that were.
    pub(super) fn drop_session(&mut self, session: SessionId) -> usize {
        let before = self.len();
        let of_session = |owner: &Owner| owner.session == session;
        for space in [LockSpace::Flock, LockSpace::Append] {
            if self.wholes(space).is_some_and(|wholes| wholes.keys().any(of_session)) {
                self.given_up.push((space, LockRange::WHOLE));
            }
        }
        let ranges = self.ranges.iter().filter(|(owner, _)| of_session(owner));
        let ranges = ranges.flat_map(|(_, held)| held.what.iter()).map(|(range, _)| range);
        // One range over them all: there may be very many.
        let over_all = ranges.reduce(|one, other| LockRange {
            start: one.start.min(other.start),
            last: one.last.max(other.last),
        });
        self.given_up.extend(over_all.map(|range| (LockSpace::Range, range)));
        self.flocks.retain(|owner, _| owner.session != session);
        self.appends.retain(|owner, _| owner.session != session);
        self.ranges.retain(|owner, _| owner.session != session);
        before - self.len()
    }

    /// Whether the session holds something, or waits.
    pub(super) fn has(&self, session: SessionId) -> bool {
        let of_session = |owner: &Owner| owner.session == session;
        self.flocks.keys().chain(self.appends.keys()).any(of_session)
            || self.ranges.keys().any(of_session)
            || self.waits.values().any(|wait| of_session(&wait.owner))
    }

    /// Whether nothing is held or waited for.
    pub(super) fn is_empty(&self) -> bool {
        self.len() == 0 && self.waits.is_empty()
    }

    fn len(&self) -> usize {
        let ranges = self.ranges.values().map(|held| held.what.len()).sum::<usize>();
        self.flocks.len() + self.appends.len() + ranges
    }

    /// Locks of others that are in the way: one of each owner.
    fn conflicts(
        &self,
        space: LockSpace,
        owner: Owner,
        kind: LockKind,
        range: LockRange,
    ) -> impl Iterator<Item = (Owner, LockConflict)> + '_ {
        let wholes = self.wholes(space).into_iter().flatten();
        let wholes =
            wholes.filter(move |(_, held)| held.what.excludes(kind)).map(|(owner, held)| {
                let (range, kind) = (LockRange::WHOLE, held.what);
                (*owner, LockConflict { range, kind, process: held.process })
            });
        let ranges = (space == LockSpace::Range).then_some(&self.ranges).into_iter().flatten();
        let ranges = ranges.filter_map(move |(owner, held)| {
            let (range, kind) = held.what.in_the_way(range, kind)?;
            Some((*owner, LockConflict { range, kind, process: held.process }))
        });
        wholes.chain(ranges).filter(move |(holder, _)| *holder != owner)
    }

    /// Reservations of others that are in the way.
    fn reserved(
        &self,
        space: LockSpace,
        owner: Owner,
        kind: LockKind,
        range: LockRange,
    ) -> impl Iterator<Item = &Wait> + '_ {
        self.waits.values().filter(move |wait| {
            wait.state == State::Reserved
                && wait.space == space
                && wait.owner != owner
                && wait.kind.excludes(kind)
                && wait.range.overlaps(range)
        })
    }
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

    /// The numbers of those who are looked at, and of those who can have what they wait for.
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
        for number in 0..waits {
            let Lock { space, range, process, .. } = byte(number, write);
            let (kind, state) = (LockKind::Write, State::Queued);
            let owner = owner(locks + number);
            entry.waits.insert(number, Wait { owner, space, kind, range, process, state });
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
        entry.waits.get_mut(&7).unwrap().state = State::Queued;
        entry.set(owner(7), &byte(7, write));
        assert_eq!(look(&mut entry), nobody());
        // Everybody of one of the sessions, from the first byte to the last.
        assert_eq!(entry.drop_session(SessionId(1)), 500);
        let even: Vec<_> = (0..waits).filter(|number| number % 2 == 0).collect();
        assert_eq!(look(&mut entry), ((0..waits).collect(), even));
    }

    #[test]
    fn who_gives_up_what_is_reserved_lets_others_have_it_and_who_claims_it_does_not() {
        let write = Some(LockKind::Write);
        let mut entry = InodeLocks::default();
        for (arrival, state) in [(1, State::Reserved), (2, State::Queued)] {
            let Lock { space, range, process, .. } = byte(3, write);
            let (kind, owner) = (LockKind::Write, owner(arrival));
            entry.waits.insert(arrival, Wait { owner, space, kind, range, process, state });
        }
        let mut claimed = InodeLocks { waits: entry.waits.clone(), ..InodeLocks::default() };
        assert!(claimed.end_wait(1).is_some());
        claimed.handle_claim();
        assert_eq!(look(&mut claimed), (vec![], vec![]));
        assert!(entry.end_wait(1).is_some() && entry.end_wait(1).is_none());
        assert_eq!(look(&mut entry), (vec![2], vec![2]));
        assert!(entry.end_wait(2).is_some());
        assert!(look(&mut entry).0.is_empty());
    }
}
