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

use std::collections::{BTreeMap, BTreeSet, HashMap};

use millrace_protocol::lock::{Lock, LockConflict, LockSpace, WAITS_PER_SESSION_MAX};
use millrace_types::{ErrorKind, InodeId, LockKind, SessionId};

use super::inode::{InodeLocks, Owner, State, Wait};

/// The locks of all sessions.
#[derive(Debug)]
pub struct LockTable {
    inodes: BTreeMap<InodeId, InodeLocks>,
    sessions: BTreeMap<SessionId, SessionLocks>,
    /// Waits in the space of ranges that are not over, by owner: the edges of who waits for whom.
    waiting: HashMap<Owner, BTreeSet<Place>>,
    /// Numbers the waits in the order of their arrival.
    arrivals: u64,
    pieces: usize,
    waits: usize,
    /// Sessions of which a wait is over.
    news: BTreeSet<SessionId>,
    /// Sessions that hold a right to append for which somebody waits.
    wants: BTreeSet<SessionId>,
    limits: Limits,
}

/// Where a wait stands: the inode, and the number of its arrival.
type Place = (InodeId, u64);

#[derive(Debug, Default)]
struct SessionLocks {
    /// Waits by the numbers that the session gave them.
    waits: BTreeMap<u64, Place>,
    /// Where it holds something, or waits.
    inodes: BTreeSet<InodeId>,
    /// Where it holds the right to append.
    appends: BTreeSet<InodeId>,
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
}

impl Default for Limits {
    /// What a database with a lock on each of many pages takes; in all 150 MB here.
    fn default() -> Self {
        Self {
            locks_per_session: 1 << 16,
            locks: 1 << 20,
            waits_per_session: WAITS_PER_SESSION_MAX,
            waits: 1 << 16,
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
            waiting: HashMap::new(),
            arrivals: 0,
            pieces: 0,
            waits: 0,
            news: BTreeSet::new(),
            wants: BTreeSet::new(),
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
        let owner = Owner { session, number: lock.owner };
        let outcome = self.decide(owner, lock, wait);
        self.serve(lock.inode);
        self.tidy(lock.inode, session);
        outcome
    }

    fn decide(&mut self, owner: Owner, lock: &Lock, wait: u64) -> Result<bool, ErrorKind> {
        let Some(kind) = lock.kind else {
            self.check_room(owner, lock)?;
            self.apply(owner, lock);
            return Ok(true);
        };
        let known = self.sessions.get(&owner.session).and_then(|locks| locks.waits.get(&wait));
        if let (true, Some(&place)) = (wait != 0, known) {
            return self.claim(owner, lock, wait, place);
        }
        self.check_room(owner, lock)?;
        let entry = self.inodes.entry(lock.inode).or_default();
        if lock.space == LockSpace::Flock && entry.flock_of(owner).is_some_and(|held| held != kind)
        {
            self.apply(owner, &Lock { kind: None, ..*lock });
        }
        let in_the_way = self.in_the_way(owner, lock, kind);
        if in_the_way.is_empty() {
            self.apply(owner, lock);
            self.break_circles(owner);
            return Ok(true);
        }
        if wait == 0 {
            return Err(ErrorKind::Locked);
        }
        if lock.space == LockSpace::Range && self.is_circle(owner, in_the_way) {
            return Err(ErrorKind::Deadlock);
        }
        self.queue(owner, lock, kind, wait)?;
        Ok(false)
    }

    /// Ends a wait of the session, and gives up what is reserved for it.
    pub fn cancel(&mut self, session: SessionId, wait: u64) {
        let place = self.sessions.get(&session).and_then(|locks| locks.waits.get(&wait));
        if let Some(&place) = place {
            self.end_wait(session, wait, place);
            self.serve(place.0);
            self.tidy(place.0, session);
        }
    }

    /// A lock that is in the way, as `session` may see it.
    #[must_use]
    pub fn test(&self, session: SessionId, lock: &Lock) -> Option<LockConflict> {
        let owner = Owner { session, number: lock.owner };
        let entry = self.inodes.get(&lock.inode)?;
        entry.conflict(lock.space, owner, lock.kind?, lock.range)
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
        let Some(locks) = self.sessions.get(&session) else { return Vec::new() };
        let ended = locks.waits.iter().filter(|(_, (inode, arrival))| {
            let wait = self.inodes.get(inode).and_then(|entry| entry.waits.get(arrival));
            wait.is_some_and(|wait| wait.state != State::Queued)
        });
        ended.map(|(number, _)| *number).collect()
    }

    /// Sessions of which waits have ended since the last call.
    pub fn poll_news(&mut self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.news)
    }

    /// Files whose right to append the session holds, and others wait for; in ascending order.
    pub fn wanted(&self, session: SessionId) -> impl Iterator<Item = InodeId> + '_ {
        let appends = self.sessions.get(&session).map(|locks| &locks.appends);
        let wanted =
            |inode: &InodeId| self.inodes.get(inode).is_some_and(InodeLocks::is_append_wanted);
        appends.into_iter().flatten().copied().filter(wanted)
    }

    /// Sessions that others have begun to wait for since the last call.
    pub fn poll_wants(&mut self) -> BTreeSet<SessionId> {
        std::mem::take(&mut self.wants)
    }

    /// The session has closed the inode for good, or it is gone: so are its locks and waits there.
    pub fn handle_close(&mut self, session: SessionId, inode: InodeId) {
        let Some(locks) = self.sessions.get(&session) else { return };
        let here = locks.waits.iter().filter(|(_, place)| place.0 == inode);
        let waits: Vec<_> = here.map(|(number, place)| (*number, *place)).collect();
        for (number, place) in waits {
            self.end_wait(session, number, place);
        }
        if let Some(entry) = self.inodes.get_mut(&inode) {
            let freed = entry.drop_session(session);
            self.pieces -= freed;
            if let Some(locks) = self.sessions.get_mut(&session) {
                locks.pieces -= freed;
                locks.appends.remove(&inode);
            }
        }
        self.serve(inode);
        self.tidy(inode, session);
    }

    /// The session has ended, and with it everything that it holds or waits for.
    pub fn handle_end(&mut self, session: SessionId) {
        let inodes = self.sessions.get(&session).map(|locks| locks.inodes.clone());
        for inode in inodes.into_iter().flatten() {
            self.handle_close(session, inode);
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
    fn claim(
        &mut self,
        owner: Owner,
        lock: &Lock,
        wait: u64,
        place: Place,
    ) -> Result<bool, ErrorKind> {
        let entry = self.inodes.get(&place.0).and_then(|entry| entry.waits.get(&place.1));
        let queued = entry.expect("a session's waits stand in the queues of their inodes");
        if place.0 != lock.inode || !queued.is_for(owner, lock) {
            return Err(ErrorKind::InvalidArgument);
        }
        match queued.state {
            State::Queued => return Ok(false),
            State::Deadlocked => {
                self.end_wait(owner.session, wait, place);
                return Err(ErrorKind::Deadlock);
            }
            State::Reserved => {}
        }
        self.end_wait(owner.session, wait, place);
        self.check_room(owner, lock)?;
        if let Some(entry) = self.inodes.get_mut(&place.0) {
            entry.handle_claim();
        }
        self.apply(owner, lock);
        self.break_circles(owner);
        Ok(true)
    }

    fn queue(
        &mut self,
        owner: Owner,
        lock: &Lock,
        kind: LockKind,
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
        let (space, range, process) = (lock.space, lock.range, lock.process);
        let wait = Wait { owner, space, kind, range, process, state: State::Queued };
        self.inodes.entry(lock.inode).or_default().waits.insert(self.arrivals, wait);
        match space {
            LockSpace::Range => drop(self.waiting.entry(owner).or_default().insert(place)),
            LockSpace::Append => {
                let holders = self.in_the_way(owner, lock, kind);
                self.wants.extend(holders.into_iter().map(|holder| holder.session));
            }
            LockSpace::Flock => {}
        }
        Ok(())
    }

    /// Takes a wait out of the queue, whatever its state.
    fn end_wait(&mut self, session: SessionId, number: u64, place: Place) {
        if let Some(locks) = self.sessions.get_mut(&session) {
            locks.waits.remove(&number);
        }
        let wait = self.inodes.get_mut(&place.0).and_then(|entry| entry.end_wait(place.1));
        if let Some(wait) = wait {
            self.waits -= 1;
            self.leave_graph(wait.owner, place);
        }
    }

    fn leave_graph(&mut self, owner: Owner, place: Place) {
        if let Some(places) = self.waiting.get_mut(&owner) {
            places.remove(&place);
            if places.is_empty() {
                self.waiting.remove(&owner);
            }
        }
    }

    /// Writes a lock down that nobody is in the way of.
    fn apply(&mut self, owner: Owner, lock: &Lock) {
        let entry = self.inodes.entry(lock.inode).or_default();
        let (before, after) = entry.set(owner, lock);
        let session = self.sessions.entry(owner.session).or_default();
        session.inodes.insert(lock.inode);
        session.pieces = session.pieces + after - before;
        if lock.space == LockSpace::Append {
            let entry = &self.inodes[&lock.inode];
            match entry.may_append(owner.session) {
                false => drop(session.appends.remove(&lock.inode)),
                true => drop(session.appends.insert(lock.inode)),
            }
            // Those behind it in the queue wait for this one from now on.
            if lock.kind.is_some() && entry.is_append_wanted() {
                self.wants.insert(owner.session);
            }
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
        for &(arrival, owner) in &reserved {
            self.leave_graph(owner, (inode, arrival));
            self.news.insert(owner.session);
        }
        for (_, owner) in reserved {
            self.break_circles(owner);
        }
    }

    /// Forgets what is empty.
    fn tidy(&mut self, inode: InodeId, session: SessionId) {
        let entry = self.inodes.get(&inode);
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

    fn in_the_way(&self, owner: Owner, lock: &Lock, kind: LockKind) -> Vec<Owner> {
        let entry = self.inodes.get(&lock.inode);
        entry.map_or_else(Vec::new, |entry| entry.in_the_way(lock.space, owner, kind, lock.range))
    }

    /// Whether one of these owners waits for `owner`, however many wait between them.
    fn is_circle(&self, owner: Owner, mut next: Vec<Owner>) -> bool {
        let mut seen = BTreeSet::new();
        while let Some(holder) = next.pop() {
            if holder == owner {
                return true;
            }
            if !seen.insert(holder) {
                continue;
            }
            for (inode, arrival) in self.waiting.get(&holder).into_iter().flatten() {
                let entry = &self.inodes[inode];
                let wait = &entry.waits[arrival];
                next.extend(entry.in_the_way(wait.space, wait.owner, wait.kind, wait.range));
            }
        }
        false
    }

    /// The owner has something more, which others may wait for. If it waits itself, in another of
    /// its threads, that may have closed a circle: such a wait fails.
    fn break_circles(&mut self, owner: Owner) {
        let places: Vec<_> = self.waiting.get(&owner).into_iter().flatten().copied().collect();
        for place in places {
            let entry = &self.inodes[&place.0];
            let wait = &entry.waits[&place.1];
            let in_the_way = entry.in_the_way(wait.space, wait.owner, wait.kind, wait.range);
            if !self.is_circle(owner, in_the_way) {
                continue;
            }
            self.leave_graph(owner, place);
            self.news.insert(owner.session);
            let entry = self.inodes.get_mut(&place.0).expect("it was just seen");
            entry.waits.get_mut(&place.1).expect("it was just seen").state = State::Deadlocked;
        }
    }
}

#[cfg(test)]
mod tests;
