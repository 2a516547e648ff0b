//! Those who wait for locks of one file.
//!
//! Thousands may wait for the same. So those are kept together: whoever asks who could have
//! something by now looks once at each thing that is waited for, not at each wait.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::lock::{Lock, LockSpace};
use millrace_types::{LockKind, LockRange, SessionId};

use super::{
    intervals::{Intervals, Item},
    piece::{Owner, Piece},
    steps,
};

/// Somebody who waits.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wait {
    pub(super) owner: Owner,
    /// As the session numbers its waits.
    pub(super) number: u64,
    pub(super) piece: Piece,
    pub(super) process: u32,
    pub(super) state: State,
}

/// How far a wait is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
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
        self.owner == owner && Piece::of(lock) == Some(self.piece)
    }
}

/// The waits, by the numbers of their arrival.
#[derive(Debug, Default)]
pub(super) struct Queue {
    waits: BTreeMap<u64, Wait>,
    by_owner: BTreeSet<(Owner, State, u64)>,
    /// Those that are queued.
    queued: BTreeSet<(Piece, u64)>,
    queued_by_owner: BTreeSet<(Piece, Owner, u64)>,
    /// What those wait for, each once.
    wanted: Intervals,
    reserved: Intervals,
}

impl Queue {
    /// Adds a wait that has just arrived.
    pub(super) fn add(&mut self, arrival: u64, wait: Wait) {
        self.waits.insert(arrival, wait);
        self.list(arrival, &wait);
    }

    /// Takes a wait out.
    pub(super) fn remove(&mut self, arrival: u64) -> Option<Wait> {
        let wait = self.waits.remove(&arrival)?;
        self.unlist(arrival, &wait);
        Some(wait)
    }

    /// A wait gets on, and is returned as it is then.
    pub(super) fn change(&mut self, arrival: u64, state: State) -> Option<Wait> {
        let wait = self.remove(arrival)?;
        let wait = Wait { state, ..wait };
        self.add(arrival, wait);
        Some(wait)
    }

    pub(super) fn get(&self, arrival: u64) -> Option<&Wait> {
        self.waits.get(&arrival)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waits.is_empty()
    }

    /// All of a session, whatever their states.
    pub(super) fn of_session(&self, session: SessionId) -> impl Iterator<Item = u64> + '_ {
        let (first, last) = Owner::all_of(session).into_inner();
        let all = (first, State::Queued, 0)..=(last, State::Deadlocked, u64::MAX);
        self.by_owner.range(all).inspect(|_| steps::look()).map(|(_, _, arrival)| *arrival)
    }

    /// What is reserved for an owner.
    pub(super) fn reserved_of(&self, owner: Owner) -> impl Iterator<Item = Piece> + '_ {
        let all = (owner, State::Reserved, 0)..=(owner, State::Reserved, u64::MAX);
        let waits = self.by_owner.range(all).filter_map(|(_, _, arrival)| self.get(*arrival));
        waits.map(|wait| wait.piece)
    }

    /// Reservations of others than `except` that are in the way of a piece.
    pub(super) fn reserved(
        &self,
        piece: Piece,
        except: Option<Owner>,
    ) -> impl Iterator<Item = &Wait> + '_ {
        let reserved = self.reserved.excluding(piece, except);
        reserved.filter_map(|item| self.get(item.number))
    }

    /// Whether somebody is queued for exactly that.
    pub(super) fn is_wanted(&self, piece: Piece) -> bool {
        self.first(piece).is_some()
    }

    /// Whether somebody is queued for what a piece is in the way of, if that is somebody else's.
    pub(super) fn is_waited_for(&self, piece: Piece) -> bool {
        self.wanted.excluding(piece, None).next().is_some()
    }

    /// What those are queued for who wait for some of these bytes.
    pub(super) fn wanted(
        &self,
        space: LockSpace,
        range: LockRange,
    ) -> impl Iterator<Item = Piece> + '_ {
        let kinds = [LockKind::Read, LockKind::Write].into_iter();
        let pieces = kinds.map(move |kind| Piece { space, kind, range });
        pieces.flat_map(|piece| self.wanted.overlapping(piece, None)).map(|item| item.piece)
    }

    /// Who was queued first for that.
    pub(super) fn first(&self, piece: Piece) -> Option<u64> {
        self.after(piece, 0)
    }

    /// Who was queued first for that behind an arrival.
    pub(super) fn after(&self, piece: Piece, arrival: u64) -> Option<u64> {
        steps::look();
        let behind = (piece, arrival + 1)..=(piece, u64::MAX);
        self.queued.range(behind).next().map(|(_, arrival)| *arrival)
    }

    /// As [`Self::after`], among the waits of one owner.
    pub(super) fn after_of(&self, piece: Piece, owner: Owner, arrival: u64) -> Option<u64> {
        steps::look();
        let behind = (piece, owner, arrival + 1)..=(piece, owner, u64::MAX);
        self.queued_by_owner.range(behind).next().map(|(_, _, arrival)| *arrival)
    }

    fn list(&mut self, arrival: u64, wait: &Wait) {
        let Wait { owner, piece, state, .. } = *wait;
        self.by_owner.insert((owner, state, arrival));
        match state {
            State::Queued => {
                if !self.is_wanted(piece) {
                    self.wanted.insert([wanted(piece)]);
                }
                self.queued.insert((piece, arrival));
                self.queued_by_owner.insert((piece, owner, arrival));
            }
            State::Reserved => self.reserved.insert([Item { piece, owner, number: arrival }]),
            State::Deadlocked => {}
        }
    }

    fn unlist(&mut self, arrival: u64, wait: &Wait) {
        let Wait { owner, piece, state, .. } = *wait;
        self.by_owner.remove(&(owner, state, arrival));
        match state {
            State::Queued => {
                self.queued.remove(&(piece, arrival));
                self.queued_by_owner.remove(&(piece, owner, arrival));
                if !self.is_wanted(piece) {
                    self.wanted.remove([wanted(piece)]);
                }
            }
            State::Reserved => self.reserved.remove([Item { piece, owner, number: arrival }]),
            State::Deadlocked => {}
        }
    }
}

/// What is waited for, of whomever.
fn wanted(piece: Piece) -> Item {
    Item { piece, owner: Owner::default(), number: 0 }
}
