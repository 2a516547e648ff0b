//! What the programs of this mount hold, as the server has answered: what is declared to a server
//! that was restarted, and what is lost with a session.
//!
//! The kernel names whoever locks by where it keeps something of a process or an open file, and
//! gives that name to the next one as soon as it has been told that the one before is closed. Locks
//! of a program that was let go end later than that: what was written under them is stored first,
//! and a write may go on without its program. So the server knows owners by numbers from here, one
//! for all files of a process, since it looks for circles of waits; and who is let go leaves the
//! file before the kernel hears of it ([`HeldLocks::leave`]): the next one of that name is another
//! owner there, and waits.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::{
    lock::{Lock, LockSpace},
    session::Held,
};
use millrace_types::{HeldRanges, InodeId, LockKind, LockRange, SessionId};
use tokio::sync::{Notify, OwnedMutexGuard};

/// Owners that hold something, or ask.
#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    owners: Mutex<Owners>,
    /// Files whose ranges were locked here, while the kernel knows them.
    ranged: Mutex<HashSet<InodeId>>,
    /// One of the owners is forgotten.
    forgotten: Notify,
}

#[derive(Debug, Default)]
struct Owners {
    by_key: BTreeMap<Key, Arc<Owner>>,
    /// As whom the kernel's owners ask now, while they hold something, or ask.
    present: HashMap<Asker, Key>,
    /// The numbers of those.
    named: HashMap<(LockSpace, u64), Named>,
    /// The last number; 0 is nobody's.
    last: u64,
}

/// One of the kernel's owners.
#[derive(Debug)]
struct Named {
    number: u64,
    /// On so many files it is present.
    files: usize,
}

/// Whose locks on what, as the server knows it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key {
    inode: InodeId,
    space: LockSpace,
    owner: u64,
}

/// Whose locks on what, as the kernel says it at this moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Asker {
    inode: InodeId,
    space: LockSpace,
    owner: u64,
}

/// One owner's locks on one file.
#[derive(Debug)]
pub(crate) struct Owner {
    key: Key,
    /// Who it is for the kernel, or was.
    asker: Option<Asker>,
    /// Held while one of its exchanges is on its way: what they do to its locks is then what they
    /// are answered, in that order.
    turn: Arc<tokio::sync::Mutex<()>>,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Under which they are held.
    session: SessionId,
    held: HeldRanges,
    process: u32,
    /// The open files through which it has asked.
    handles: BTreeSet<u64>,
}

/// An owner that is asking. When the last one of it is dropped, an owner that holds nothing is
/// forgotten.
#[derive(Clone, Debug)]
pub(crate) struct Asking {
    all: Arc<HeldLocks>,
    owner: Option<Arc<Owner>>,
}

/// What one owner held of a range before.
pub(crate) type Before = Vec<(LockRange, Option<LockKind>)>;

impl Key {
    /// The right of this mount to append to a file.
    pub(crate) fn of_append(inode: InodeId) -> Self {
        Self { inode, space: LockSpace::Append, owner: 0 }
    }

    /// Whose lock it is.
    pub(crate) fn of(lock: &Lock) -> Self {
        Self { inode: lock.inode, space: lock.space, owner: lock.owner }
    }

    /// Unlocks everything of that owner.
    pub(crate) fn nothing(self) -> Lock {
        self.names(Lock {
            inode: self.inode,
            space: self.space,
            owner: self.owner,
            kind: None,
            range: LockRange::WHOLE,
            process: 0,
        })
    }

    /// A lock as the server is asked for it, in this owner's name.
    pub(crate) fn names(self, lock: Lock) -> Lock {
        Lock { owner: self.owner, ..lock }
    }
}

impl Asker {
    /// The process that the kernel calls `owner`, about ranges of a file.
    pub(crate) fn of_process(inode: InodeId, owner: u64) -> Self {
        Self { inode, space: LockSpace::Range, owner }
    }

    /// Who asks for a lock, or gives one back.
    pub(crate) fn of(lock: &Lock) -> Self {
        Self { inode: lock.inode, space: lock.space, owner: lock.owner }
    }
}

impl HeldLocks {
    /// An owner that is about to ask for a lock through the open file `handle`.
    pub(crate) fn asking(
        self: &Arc<Self>,
        asker: Asker,
        handle: u64,
        session: SessionId,
    ) -> Asking {
        if asker.space == LockSpace::Range {
            let mut ranged = lock(&self.ranged);
            if ranged.len() < RANGED_MAX {
                ranged.insert(asker.inode);
            }
        }
        let mut owners = lock(&self.owners);
        let key = owners.present(asker);
        let owner = owners.owner(key, Some(asker), session);
        lock(&owner.state).handles.insert(handle);
        Asking { all: Arc::clone(self), owner: Some(owner) }
    }

    /// An owner that is not the kernel's, about to ask for a lock through no open file.
    pub(crate) fn asking_here(self: &Arc<Self>, key: Key, session: SessionId) -> Asking {
        let owner = lock(&self.owners).owner(key, None, session);
        Asking { all: Arc::clone(self), owner: Some(owner) }
    }

    /// As whom the server knows the kernel's owner, if it holds something or asks.
    pub(crate) fn present(&self, asker: Asker) -> Option<Key> {
        lock(&self.owners).present.get(&asker).copied()
    }

    /// What the kernel's owner holds as `key`, or asks for, ends a little later. Whoever has its
    /// name after this is another owner.
    pub(crate) fn leave(&self, asker: Asker, key: Key) {
        let mut owners = lock(&self.owners);
        if owners.present.get(&asker) == Some(&key) {
            owners.leave(asker);
        }
    }

    /// The same for whoever has asked through the open file `handle` only, which is closed for
    /// good.
    pub(crate) fn leave_through(&self, handle: u64) {
        let mut owners = lock(&self.owners);
        let only = BTreeSet::from([handle]);
        let through = |key: &Key| {
            owners.by_key.get(key).is_some_and(|owner| lock(&owner.state).handles == only)
        };
        let present = owners.present.iter();
        let left: Vec<_> =
            present.filter(|(_, key)| through(key)).map(|(&asker, _)| asker).collect();
        for asker in left {
            owners.leave(asker);
        }
    }

    /// Whether the mount may append to a file, any at all.
    pub(crate) fn has_appends(&self) -> bool {
        let held = |owner: &Arc<Owner>| !lock(&owner.state).held.is_empty();
        let owners = lock(&self.owners);
        owners.by_key.iter().any(|(key, owner)| key.space == LockSpace::Append && held(owner))
    }

    /// An owner that holds something, or asks.
    pub(crate) fn find(self: &Arc<Self>, key: Key) -> Option<Asking> {
        let owner = lock(&self.owners).by_key.get(&key).cloned()?;
        Some(Asking { all: Arc::clone(self), owner: Some(owner) })
    }

    /// Owners that have asked through the open file `handle`.
    pub(crate) fn through(&self, handle: u64) -> Vec<Key> {
        let owners = lock(&self.owners);
        let asked = |owner: &&Arc<Owner>| lock(&owner.state).handles.contains(&handle);
        let through = owners.by_key.values().filter(asked);
        through.map(|owner| owner.key).collect()
    }

    /// Whether ranges of the file were locked here: the close of any descriptor may end locks then.
    pub(crate) fn has_ranges(&self, inode: InodeId) -> bool {
        let ranged = lock(&self.ranged);
        ranged.contains(&inode) || ranged.len() >= RANGED_MAX
    }

    /// Whether any owner holds something of the file, or asks.
    pub(crate) fn concern(&self, inode: InodeId) -> bool {
        let first = Key { inode, space: LockSpace::Flock, owner: 0 };
        let owners = lock(&self.owners);
        owners.by_key.range(first..).next().is_some_and(|(key, _)| key.inode == inode)
    }

    /// Whether the server may know of locks of this kind that others here have on the file.
    pub(crate) fn has_others(&self, of: Key) -> bool {
        let owners = lock(&self.owners);
        owners.of_file(of).any(|owner| owner.key != of)
    }

    /// Whether some of those have left the file, and what they had has not ended yet.
    pub(crate) fn has_left(&self, of: Key) -> bool {
        let owners = lock(&self.owners);
        owners.of_file(of).any(|owner| {
            let present = owner.asker.map(|asker| owners.present.get(&asker));
            owner.key != of && present.is_some_and(|present| present != Some(&owner.key))
        })
    }

    /// Returns when none have. May be dropped at its await.
    pub(crate) async fn until_ended(&self, of: Key) {
        loop {
            let forgotten = self.forgotten.notified();
            if !self.has_left(of) {
                return;
            }
            forgotten.await;
        }
    }

    /// The kernel has forgotten the inode.
    pub(crate) fn forget(&self, inode: InodeId) {
        lock(&self.ranged).remove(&inode);
    }

    /// Everything that is held under `session`.
    pub(crate) fn declared(&self, session: SessionId) -> Vec<Held> {
        let mut all = Vec::new();
        for owner in lock(&self.owners).by_key.values() {
            let state = lock(&owner.state);
            if state.session == session {
                all.extend(state.held.iter().map(|(range, kind)| {
                    let (kind, process) = (Some(kind), state.process);
                    Held::Lock(Lock { kind, range, process, ..owner.key.nothing() })
                }));
            }
        }
        all
    }

    /// Forgets what is held under other sessions than `session`, which have ended; returns the open
    /// files that it was held through, and the files.
    pub(crate) fn lose_all_but(&self, session: SessionId) -> (BTreeSet<u64>, BTreeSet<InodeId>) {
        let (mut handles, mut inodes) = (BTreeSet::new(), BTreeSet::new());
        for owner in lock(&self.owners).by_key.values() {
            let lost = owner.lose_all_but(session);
            if !lost.is_empty() {
                inodes.insert(owner.key.inode);
                handles.extend(lost);
            }
        }
        (handles, inodes)
    }
}

impl Owners {
    /// Owners of locks on the same file, of the same kind.
    fn of_file(&self, of: Key) -> impl Iterator<Item = &Owner> {
        let all = Key { owner: 0, ..of }..=Key { owner: u64::MAX, ..of };
        self.by_key.range(all).map(|(_, owner)| &**owner)
    }

    /// As whom `asker` asks now: as before, if it holds something or asks already.
    fn present(&mut self, asker: Asker) -> Key {
        if let Some(&key) = self.present.get(&asker) {
            return key;
        }
        let Asker { inode, space, owner } = asker;
        let last = &mut self.last;
        let mut next = || {
            *last += 1;
            *last
        };
        let named = self.named.entry((space, owner));
        let named = named.or_insert_with(|| Named { number: next(), files: 0 });
        named.files += 1;
        let mut key = Key { inode, space, owner: named.number };
        if self.by_key.contains_key(&key) {
            // It has left, and its locks are there still. Only here is it called otherwise: of a
            // circle of waits in which this file is, nobody is told.
            key.owner = next();
        }
        self.present.insert(asker, key);
        key
    }

    fn leave(&mut self, asker: Asker) {
        if self.present.remove(&asker).is_none() {
            return;
        }
        let name = (asker.space, asker.owner);
        if let Some(named) = self.named.get_mut(&name) {
            named.files -= 1;
            if named.files == 0 {
                self.named.remove(&name);
            }
        }
    }

    fn owner(&mut self, key: Key, asker: Option<Asker>, session: SessionId) -> Arc<Owner> {
        let owner = self.by_key.entry(key).or_insert_with(|| {
            let state = State {
                session,
                held: HeldRanges::default(),
                process: 0,
                handles: BTreeSet::new(),
            };
            Arc::new(Owner { key, asker, turn: Arc::default(), state: Mutex::new(state) })
        });
        Arc::clone(owner)
    }

    fn forget(&mut self, key: Key) {
        let Some(owner) = self.by_key.remove(&key) else { return };
        if let Some(asker) = owner.asker
            && self.present.get(&asker) == Some(&key)
        {
            self.leave(asker);
        }
    }
}

/// What lets one of an owner's exchanges go on its way.
pub(crate) type Turn = OwnedMutexGuard<()>;

impl Owner {
    /// Waits until none of the owner's exchanges is on its way.
    pub(crate) async fn turn(&self) -> Turn {
        Arc::clone(&self.turn).lock_owned().await
    }

    /// Whose locks on what.
    pub(crate) fn key(&self) -> Key {
        self.key
    }

    /// It has what it asked for through the open file `handle`.
    pub(crate) fn handle_asked(&self, handle: u64) {
        lock(&self.state).handles.insert(handle);
    }

    /// One of its descriptors of the open file `handle` is closed, by which its locks have ended.
    pub(crate) fn handle_closed(&self, handle: u64) {
        lock(&self.state).handles.remove(&handle);
    }

    /// Whether something is held under `session`.
    pub(crate) fn holds_under(&self, session: SessionId) -> bool {
        let state = lock(&self.state);
        state.session == session && !state.held.is_empty()
    }

    /// What is held of the range.
    pub(crate) fn within(&self, range: LockRange) -> Before {
        lock(&self.state).held.within(range)
    }

    /// Whether something of the range is held for writing that `kind` does not keep.
    pub(crate) fn gives_up_writing(&self, range: LockRange, kind: Option<LockKind>) -> bool {
        let writes = |(_, held): &(LockRange, Option<LockKind>)| *held == Some(LockKind::Write);
        kind != Some(LockKind::Write) && self.within(range).iter().any(writes)
    }

    /// Takes over what the server has answered under `session`. What was held under another one has
    /// ended with that: whoever asks has its programs told before ([`Self::lose_all_but`]).
    pub(crate) fn record(&self, session: SessionId, answered: &Lock) {
        let mut state = lock(&self.state);
        if state.session != session {
            state.session = session;
            state.held = HeldRanges::default();
        }
        state.held.set(answered.range, answered.kind);
        if answered.kind.is_some() {
            state.process = answered.process;
        }
    }

    /// Forgets what is held under another session, which has ended; returns the open files that it
    /// was held through.
    pub(crate) fn lose_all_but(&self, session: SessionId) -> BTreeSet<u64> {
        let mut state = lock(&self.state);
        if state.session == session || state.held.is_empty() {
            return BTreeSet::new();
        }
        state.held = HeldRanges::default();
        state.handles.clone()
    }

    /// Forgets a lock that the server could not keep; returns the open files as above.
    pub(crate) fn lose(&self, range: LockRange) -> BTreeSet<u64> {
        let mut state = lock(&self.state);
        state.held.set(range, None);
        state.handles.clone()
    }
}

impl std::ops::Deref for Asking {
    type Target = Owner;

    fn deref(&self) -> &Owner {
        self.owner.as_deref().expect("it is taken when this is dropped")
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        let Some(owner) = self.owner.take() else { return };
        let mut owners = lock(&self.all.owners);
        let key = owner.key;
        drop(owner);
        let idle = |owner: &Arc<Owner>| {
            Arc::strong_count(owner) == 1 && lock(&owner.state).held.is_empty()
        };
        if owners.by_key.get(&key).is_some_and(idle) {
            owners.forget(key);
            drop(owners);
            self.all.forgotten.notify_waiters();
        }
    }
}

/// Each step leaves what it guards whole, so that a panic elsewhere cannot have torn it.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Files that are remembered to have had locks on ranges: 1 MiB. Past it, every file counts as one.
const RANGED_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests {
    use super::*;

    fn key(owner: u64) -> Key {
        Key { inode: InodeId(5), space: LockSpace::Range, owner }
    }

    /// A process of the kernel's.
    fn asker(owner: u64) -> Asker {
        Asker::of_process(InodeId(5), owner)
    }

    fn taken(owner: u64, kind: LockKind) -> Lock {
        Lock { kind: Some(kind), process: 9, ..key(owner).nothing() }
    }

    #[test]
    fn who_holds_nothing_and_asks_for_nothing_is_forgotten() {
        let (locks, session) = (Arc::new(HeldLocks::default()), SessionId(1));
        let (first, second) =
            (locks.asking(asker(70), 7, session), locks.asking(asker(70), 8, session));
        drop(first);
        assert_eq!(locks.through(7), [key(1)], "the other one still asks");
        second.record(session, &taken(1, LockKind::Read));
        drop(second);
        assert_eq!(locks.declared(session), [Held::Lock(taken(1, LockKind::Read))]);
        assert!(locks.declared(SessionId(2)).is_empty());
        let owner = locks.find(key(1)).expect("it holds something");
        owner.record(session, &key(1).nothing());
        drop(owner);
        assert!(locks.find(key(1)).is_none() && locks.through(8).is_empty());
    }

    #[test]
    fn whoever_has_the_name_of_one_that_has_closed_is_another_owner() {
        let (locks, session) = (Arc::new(HeldLocks::default()), SessionId(1));
        locks.asking(asker(70), 7, session).record(session, &taken(1, LockKind::Write));
        assert_eq!(locks.present(asker(70)), Some(key(1)));
        locks.leave(asker(70), key(2));
        assert_eq!(locks.present(asker(70)), Some(key(1)), "it is another one that has left");
        locks.leave(asker(70), key(1));
        assert_eq!(locks.present(asker(70)), None);
        let next = locks.asking(asker(70), 8, session);
        assert_eq!(next.key(), key(2), "as the lock of the first is there still");
        assert_eq!((locks.through(7), locks.through(8)), (vec![key(1)], vec![key(2)]));

        let first = locks.find(key(1)).expect("it is held");
        first.record(session, &key(1).nothing());
        drop(first);
        assert_eq!(locks.present(asker(70)), Some(key(2)), "the end of the first is not its own");
        drop(next);
        assert_eq!(locks.present(asker(70)), None, "it has asked for nothing in the end");
    }

    #[test]
    fn a_process_has_one_number_on_all_files_and_another_where_its_locks_end_later() {
        let (locks, session) = (Arc::new(HeldLocks::default()), SessionId(1));
        let other = Asker::of_process(InodeId(6), 70);
        locks.asking(asker(70), 7, session).record(session, &taken(1, LockKind::Write));
        let elsewhere = locks.asking(other, 8, session);
        assert_eq!(elsewhere.key(), Key { inode: InodeId(6), ..key(1) });
        locks.leave(asker(70), key(1));
        assert_eq!(locks.asking(asker(70), 9, session).key(), key(2));
        assert_eq!(locks.asking(other, 8, session).key(), elsewhere.key());
        let third = Asker::of_process(InodeId(7), 70);
        assert_eq!(locks.asking(third, 8, session).key(), Key { inode: InodeId(7), ..key(1) });
        drop(elsewhere);
        assert!(lock(&locks.owners).present.is_empty() && lock(&locks.owners).named.is_empty());
    }

    #[test]
    fn an_open_file_that_is_closed_takes_the_names_of_those_who_asked_through_it() {
        let (locks, session) = (Arc::new(HeldLocks::default()), SessionId(1));
        locks.asking(asker(70), 7, session).record(session, &taken(1, LockKind::Write));
        locks.asking(asker(80), 8, session).record(session, &taken(2, LockKind::Write));
        let both = locks.asking(asker(80), 7, session);
        locks.leave_through(7);
        let there = [70, 80].map(|owner| locks.present(asker(owner)));
        assert_eq!(there, [None, Some(key(2))], "the other one has asked through another, too");
        both.handle_closed(7);
        assert_eq!(locks.through(8), [key(2)]);
        assert_eq!(locks.through(7), [key(1)], "its locks are there until they are given back");
    }

    #[test]
    fn with_a_session_goes_what_was_held_under_it_and_nothing_else() {
        let locks = Arc::new(HeldLocks::default());
        let (old, new) = (SessionId(1), SessionId(2));
        locks.asking(asker(70), 7, old).record(old, &taken(1, LockKind::Write));
        locks.asking(asker(80), 8, new).record(new, &taken(2, LockKind::Read));
        let (handles, inodes) = locks.lose_all_but(new);
        assert_eq!((handles, inodes), (BTreeSet::from([7]), BTreeSet::from([InodeId(5)])));
        assert_eq!(locks.declared(new).len(), 1);
        assert!(locks.declared(old).is_empty());
    }

    #[test]
    fn what_was_held_under_a_session_that_ended_is_not_held_under_the_next() {
        let locks = Arc::new(HeldLocks::default());
        let (old, new) = (SessionId(1), SessionId(2));
        let [first, second] = [(0, 9), (10, 19)].map(|(start, last)| {
            let range = LockRange { start, last };
            Lock { range, ..taken(1, LockKind::Write) }
        });
        let owner = locks.asking(asker(70), 7, old);
        owner.record(old, &first);
        owner.record(new, &second);
        assert_eq!(locks.declared(new), [Held::Lock(second)]);
        assert!(locks.lose_all_but(new).0.is_empty());

        // To give something back is no reason to keep the rest.
        owner.record(new, &first);
        let newest = SessionId(3);
        owner.record(newest, &Lock { kind: None, ..first });
        assert!(locks.declared(newest).is_empty() && !owner.holds_under(newest));
        owner.record(newest, &second);
        assert_eq!(owner.lose_all_but(SessionId(4)), BTreeSet::from([7]), "once");
        assert!(owner.lose_all_but(SessionId(4)).is_empty());
    }

    #[test]
    fn files_whose_ranges_were_locked_are_known_until_the_kernel_forgets_them() {
        let locks = Arc::new(HeldLocks::default());
        drop(locks.asking(Asker { space: LockSpace::Flock, ..asker(70) }, 7, SessionId(1)));
        assert!(!locks.has_ranges(InodeId(5)));
        drop(locks.asking(asker(70), 7, SessionId(1)));
        assert!(locks.has_ranges(InodeId(5)) && !locks.has_ranges(InodeId(6)));
        locks.forget(InodeId(5));
        assert!(!locks.has_ranges(InodeId(5)));
    }
}
