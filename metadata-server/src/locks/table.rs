//! Who holds which lock, and who waits for one. Pure: no clock, no network, no session's life.
//!
//! The rules are Linux's. An owner is never in its own way: it changes, splits and merges what it
//! holds. Of two owners one can write or both can read. Who waits is served in the order of
//! arrival, and nobody waits for what itself only waits: a lock that nobody's lock is in the way of
//! can always be had. Anything else would make deadlocks of what is none on a local file system.
//!
//! When its turn has come a wait is *reserved*: from then on it is in the way of others as the lock
//! will be, until it is claimed or cancelled. So a wait that was given up changes nothing, whatever
//! its owner held before.
//!
//! All of an operation is one turn of the engine, during which nobody else is served. So no
//! operation goes through what it does not change or answer, however much one session has made
//! there be of that; and the search for deadlocks (`circles`) has a bound.

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::lock::{Lock, LockConflict, LockSpace, WAITS_PER_SESSION_MAX};
use millrace_types::{ErrorKind, InodeId, SessionId};

use super::{
    circles::{Owners, Place, Search},
    inode::InodeLocks,
    piece::{Owner, Piece},
    queue::{State, Wait},
};

/// The locks of all sessions.
#[derive(Debug)]
pub struct LockTable {
    inodes: BTreeMap<InodeId, InodeLocks>,
    sessions: BTreeMap<SessionId, SessionLocks>,
    /// What they hold and wait for in the space of ranges: the edges of who waits for whom.
    owners: Owners,
    /// Numbers the waits in the order of their arrival.
    arrivals: u64,
    pieces: usize,
    waits: usize,
    /// Sessions of which a wait is over.
    news: BTreeSet<SessionId>,
    /// Sessions that hold a right to append for which somebody waits.
    wants: BTreeSet<SessionId>,
    /// What this operation may still look at to find deadlocks.
    looks_left: usize,
    limits: Limits,
}

#[derive(Debug, Default)]
struct SessionLocks {
    /// Waits by the numbers that the session gave them.
    waits: BTreeMap<u64, Place>,
    /// Those of them that are over: reserved, or failed.
    ended: BTreeSet<u64>,
    /// Where it holds something, or waits.
    inodes: BTreeSet<InodeId>,
    /// Where it holds the right to append, and others wait for it.
    wanted: BTreeSet<InodeId>,
    pieces: usize,
}

/// How much may be held and waited for. Past it a request is refused with
/// [`ErrorKind::NoLocks`].
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Locks of one session; a locked range that lies apart counts as one.
    pub locks_per_session: usize,
    /// Locks of all sessions.
    pub locks: usize,
    /// Waits of one session.
    pub waits_per_session: usize,
    /// Waits of all sessions.
    pub waits: usize,
    /// Locks, waits and owners that one operation looks at to find deadlocks. Past it there is
    /// none, as far as it knows.
    pub looks: usize,
}

impl Default for Limits {
    /// What a database with a lock on each of many pages takes; in all 250 MB here. A search that
    /// is given up has taken some tens of milliseconds.
    fn default() -> Self {
        Self {
            locks_per_session: 1 << 16,
            locks: 1 << 20,
            waits_per_session: WAITS_PER_SESSION_MAX,
            waits: 1 << 16,
            looks: 1 << 17,
        }
    }
}

/// How many there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Locks that are held.
    pub locks: usize,
    /// Waits that are not claimed.
    pub waits: usize,
}

impl LockTable {
    /// No locks.
    #[must_use]
    pub fn new(limits: Limits) -> Self {
        Self {
            inodes: BTreeMap::new(),
            sessions: BTreeMap::new(),
            owners: Owners::default(),
            arrivals: 0,
            pieces: 0,
            waits: 0,
            news: BTreeSet::new(),
            wants: BTreeSet::new(),
            looks_left: 0,
            limits,
        }
    }

    /// Takes, changes or gives back a lock. `false`: it is queued under the number `wait`, or was
    /// before; asked again once it is over, it is claimed, or fails. With 0 nothing is queued.
    ///
    /// Under `flock` another kind than the one that is held costs that one, also when the new one
    /// cannot be had.
    ///
    /// # Errors
    /// [`ErrorKind::Locked`] when somebody is in the way and `wait` is 0; [`ErrorKind::Deadlock`]
    /// when the wait would never end; [`ErrorKind::NoLocks`] past the limits;
    /// [`ErrorKind::InvalidArgument`] when `wait` names a wait for another lock.
    pub fn set(&mut self, session: SessionId, lock: &Lock, wait: u64) -> Result<bool, ErrorKind> {
        self.looks_left = self.limits.looks;
        let owner = Owner { session, number: lock.owner };
        let outcome = self.decide(owner, lock, wait);
        self.serve(lock.inode);
        self.tidy(lock.inode, session);
        outcome
    }

    fn decide(&mut self, owner: Owner, lock: &Lock, wait: u64) -> Result<bool, ErrorKind> {
        let Some(wanted) = Piece::of(lock) else {
            self.check_room(owner, lock)?;
            self.apply(owner, lock);
            return Ok(true);
        };
        let known = self.sessions.get(&owner.session).and_then(|locks| locks.waits.get(&wait));
        if let (true, Some(&place)) = (wait != 0, known) {
            return self.claim(owner, lock, place);
        }
        self.check_room(owner, lock)?;
        let entry = self.inodes.entry(lock.inode).or_default();
        let before = entry.flock_of(owner).filter(|_| lock.space == LockSpace::Flock);
        if before.is_some_and(|held| held != wanted.kind) {
            self.apply(owner, &Lock { kind: None, ..*lock });
        }
        if self.is_free(lock.inode, owner, wanted) {
            self.apply(owner, lock);
            self.break_circles(lock.inode, &[(owner, wanted)]);
            return Ok(true);
        }
        if wait == 0 {
            return Err(ErrorKind::Locked);
        }
        if lock.space == LockSpace::Range && self.is_circle(owner, lock.inode, wanted) {
            return Err(ErrorKind::Deadlock);
        }
        self.queue(owner, lock, wanted, wait)?;
        Ok(false)
    }

    /// Ends a wait of the session, and gives up what is reserved for it.
    pub fn cancel(&mut self, session: SessionId, wait: u64) {
        let place = self.sessions.get(&session).and_then(|locks| locks.waits.get(&wait));
        if let Some(&place) = place {
            self.looks_left = self.limits.looks;
            self.end_wait(place);
            self.serve(place.0);
            self.tidy(place.0, session);
        }
    }

    /// A lock that is in the way, as `session` may see it.
    #[must_use]
    pub fn test(&self, session: SessionId, lock: &Lock) -> Option<LockConflict> {
        let owner = Owner { session, number: lock.owner };
        let entry = self.inodes.get(&lock.inode)?;
        entry.conflict(owner, Piece::of(lock)?)
    }

    /// Whether the owner holds all that is asked for, or more.
    #[must_use]
    pub fn holds(&self, session: SessionId, lock: &Lock) -> bool {
        let owner = Owner { session, number: lock.owner };
        self.inodes.get(&lock.inode).is_some_and(|entry| entry.holds(owner, lock))
    }

    /// The session's waits that are over: reserved, or failed.
    #[must_use]
    pub fn ended(&self, session: SessionId) -> Vec<u64> {
        let ended = self.sessions.get(&session).map(|locks| &locks.ended);
        ended.into_iter().flatten().copied().collect()
    }

    /// Sessions of which waits have ended since the last call.
    pub fn poll_news(&mut self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.news)
    }

    /// Files whose right to append the session holds, and others wait for; in ascending order.
    pub fn wanted(&self, session: SessionId) -> impl Iterator<Item = InodeId> + '_ {
        let wanted = self.sessions.get(&session).map(|locks| &locks.wanted);
        wanted.into_iter().flatten().copied()
    }

    /// Sessions that others have begun to wait for since the last call.
    pub fn poll_wants(&mut self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.wants)
    }

    /// The session has closed the inode for good, or it is gone: so are its locks and waits there.
    pub fn handle_close(&mut self, session: SessionId, inode: InodeId) {
        self.looks_left = self.limits.looks;
        self.close(session, inode);
    }

    /// The session has ended, and with it everything that it holds or waits for.
    pub fn handle_end(&mut self, session: SessionId) {
        self.looks_left = self.limits.looks;
        let inodes = self.sessions.get(&session).map(|locks| locks.inodes.clone());
        for inode in inodes.into_iter().flatten() {
            self.close(session, inode);
        }
        self.news.remove(&session);
        self.wants.remove(&session);
    }

    /// How much is held and waited for.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts { locks: self.pieces, waits: self.waits }
    }

    /// What came of a wait that is known.
    fn claim(&mut self, owner: Owner, lock: &Lock, place: Place) -> Result<bool, ErrorKind> {
        let entry = self.inodes.get(&place.0).and_then(|entry| entry.wait(place.1));
        let queued = entry.expect("a session's waits stand in the queues of their inodes");
        if place.0 != lock.inode || !queued.is_for(owner, lock) {
            return Err(ErrorKind::InvalidArgument);
        }
        match queued.state {
            State::Queued => return Ok(false),
            State::Deadlocked => {
                self.end_wait(place);
                return Err(ErrorKind::Deadlock);
            }
            State::Reserved => {}
        }
        let wanted = queued.piece;
        self.end_wait(place);
        self.check_room(owner, lock)?;
        if let Some(entry) = self.inodes.get_mut(&place.0) {
            entry.handle_claim();
        }
        self.apply(owner, lock);
        self.break_circles(place.0, &[(owner, wanted)]);
        Ok(true)
    }

    fn queue(
        &mut self,
        owner: Owner,
        lock: &Lock,
        piece: Piece,
        number: u64,
    ) -> Result<(), ErrorKind> {
        let session = self.sessions.entry(owner.session).or_default();
        let full = session.waits.len() >= self.limits.waits_per_session;
        if full || self.waits >= self.limits.waits {
            return Err(ErrorKind::NoLocks);
        }
        self.arrivals += 1;
        let place = (lock.inode, self.arrivals);
        session.waits.insert(number, place);
        session.inodes.insert(lock.inode);
        self.waits += 1;
        let process = lock.process;
        let wait = Wait { owner, number, piece, process, state: State::Queued };
        let entry = self.inodes.entry(lock.inode).or_default();
        entry.add_wait(self.arrivals, wait);
        match piece.space {
            LockSpace::Range => self.owners.wait(owner, place),
            LockSpace::Append => {
                let holders = entry.in_the_way(owner, piece);
                self.wants.extend(holders.map(|holder| holder.session));
            }
            LockSpace::Flock => {}
        }
        Ok(())
    }

    /// Takes a wait out of the queue, whatever its state.
    fn end_wait(&mut self, place: Place) {
        let wait = self.inodes.get_mut(&place.0).and_then(|entry| entry.end_wait(place.1));
        let Some(Wait { owner, number, piece, state, .. }) = wait else { return };
        self.waits -= 1;
        if let Some(locks) = self.sessions.get_mut(&owner.session) {
            locks.waits.remove(&number);
            locks.ended.remove(&number);
        }
        match state {
            State::Reserved if piece.space == LockSpace::Range => self.owners.hold(owner, 1, 0),
            State::Queued if piece.space == LockSpace::Range => self.owners.end_wait(owner, place),
            State::Queued | State::Reserved | State::Deadlocked => {}
        }
    }

    /// The session is to be told that a wait is over.
    fn tell(&mut self, wait: &Wait) {
        let session = wait.owner.session;
        self.news.insert(session);
        if let Some(locks) = self.sessions.get_mut(&session) {
            locks.ended.insert(wait.number);
        }
    }

    fn close(&mut self, session: SessionId, inode: InodeId) {
        let Some(entry) = self.inodes.get(&inode) else { return };
        let waits: Vec<_> = entry.waits_of(session).collect();
        for arrival in waits {
            self.end_wait((inode, arrival));
        }
        let dropped = self.inodes.get_mut(&inode).map(|entry| entry.drop_session(session));
        for (space, owner, count) in dropped.into_iter().flatten() {
            self.pieces -= count;
            if space == LockSpace::Range {
                self.owners.hold(owner, count, 0);
            }
            if let Some(locks) = self.sessions.get_mut(&session) {
                locks.pieces -= count;
            }
        }
        self.serve(inode);
        self.tidy(inode, session);
    }

    /// Writes a lock down that nobody is in the way of.
    fn apply(&mut self, owner: Owner, lock: &Lock) {
        let entry = self.inodes.entry(lock.inode).or_default();
        let (before, after) = entry.set(owner, lock);
        let session = self.sessions.entry(owner.session).or_default();
        session.inodes.insert(lock.inode);
        session.pieces = session.pieces + after - before;
        if lock.space == LockSpace::Range {
            self.owners.hold(owner, before, after);
        }
        // Those behind it in the queue wait for this one from now on.
        let may_append = lock.space == LockSpace::Append && lock.kind.is_some();
        if may_append && entry.is_append_wanted() {
            self.wants.insert(owner.session);
        }
        self.pieces = self.pieces + after - before;
    }

    /// A lock adds two pieces at most, in the middle of one of another kind; unlocking adds one in
    /// the middle of another.
    fn check_room(&self, owner: Owner, lock: &Lock) -> Result<(), ErrorKind> {
        let more = match lock.kind {
            Some(_) => 2,
            None => {
                let entry = self.inodes.get(&lock.inode);
                usize::from(entry.is_some_and(|entry| entry.splits(owner, lock)))
            }
        };
        let held = self.sessions.get(&owner.session).map_or(0, |locks| locks.pieces);
        let fits =
            held + more <= self.limits.locks_per_session && self.pieces + more <= self.limits.locks;
        (more == 0 || fits).then_some(()).ok_or(ErrorKind::NoLocks)
    }

    /// Reserves what can be had by now, in the order of arrival.
    fn serve(&mut self, inode: InodeId) {
        let Some(entry) = self.inodes.get_mut(&inode) else { return };
        let reserved = entry.reserve();
        for (arrival, wait) in &reserved {
            if wait.piece.space == LockSpace::Range {
                self.owners.end_wait(wait.owner, (inode, *arrival));
                self.owners.hold(wait.owner, 0, 1);
            }
            self.tell(wait);
        }
        let gained: Vec<_> = reserved.iter().map(|(_, wait)| (wait.owner, wait.piece)).collect();
        self.break_circles(inode, &gained);
    }

    /// Forgets what is empty, and notes whose right to append is wanted.
    fn tidy(&mut self, inode: InodeId, session: SessionId) {
        let entry = self.inodes.get(&inode);
        let holder = entry.and_then(InodeLocks::may_append);
        let wanted = holder.filter(|_| entry.is_some_and(InodeLocks::is_append_wanted));
        for session in holder.into_iter().chain([session]) {
            let Some(locks) = self.sessions.get_mut(&session) else { continue };
            match wanted == Some(session) {
                true => drop(locks.wanted.insert(inode)),
                false => drop(locks.wanted.remove(&inode)),
            }
        }
        if !entry.is_some_and(|entry| entry.has(session))
            && let Some(locks) = self.sessions.get_mut(&session)
        {
            locks.inodes.remove(&inode);
            if locks.inodes.is_empty() {
                self.sessions.remove(&session);
            }
        }
        if self.inodes.get(&inode).is_some_and(InodeLocks::is_empty) {
            self.inodes.remove(&inode);
        }
    }

    fn is_free(&self, inode: InodeId, owner: Owner, wanted: Piece) -> bool {
        let entry = self.inodes.get(&inode);
        entry.is_none_or(|entry| entry.in_the_way(owner, wanted).next().is_none())
    }

    /// Whether somebody in the way of what the owner wants waits for the owner, however many wait
    /// between them.
    fn is_circle(&mut self, owner: Owner, inode: InodeId, wanted: Piece) -> bool {
        // For who has nothing nobody waits.
        self.owners.holds(owner)
            && Search::new(owner, &self.inodes, &self.owners, &mut self.looks_left)
                .is_circle(inode, wanted)
    }

    /// The owners have something more of an inode, which others may wait for. If one waits itself,
    /// in another of its threads, that may have closed a circle: such a wait fails.
    fn break_circles(&mut self, inode: InodeId, gained: &[(Owner, Piece)]) {
        let Some(entry) = self.inodes.get(&inode) else { return };
        let is_range = |piece: Piece| piece.space == LockSpace::Range;
        if !gained.iter().any(|(_, piece)| is_range(*piece) && entry.is_waited_for(*piece)) {
            return;
        }
        for (owner, _) in gained {
            self.break_circles_of(*owner);
        }
    }

    fn break_circles_of(&mut self, owner: Owner) {
        let waits: Vec<_> = self.owners.waits(owner).collect();
        if waits.is_empty() {
            return;
        }
        let mut search = Search::new(owner, &self.inodes, &self.owners, &mut self.looks_left);
        let is_circle = |(inode, arrival): &Place| {
            let wait = self.inodes.get(inode).and_then(|entry| entry.wait(*arrival));
            wait.is_some_and(|wait| search.is_circle(*inode, wait.piece))
        };
        let circles: Vec<_> = waits.into_iter().filter(is_circle).collect();
        for place in circles {
            self.owners.end_wait(owner, place);
            let entry = self.inodes.get_mut(&place.0);
            if let Some(wait) = entry.and_then(|entry| entry.fail_wait(place.1)) {
                self.tell(&wait);
            }
        }
    }
}

#[cfg(test)]
mod tests;
