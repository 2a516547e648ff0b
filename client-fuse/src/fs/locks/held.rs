//! What the programs of this mount hold, as the server has answered: what is declared to a server
//! that was restarted, and what is lost with a session.

use std::{
    collections::{BTreeMap, BTreeSet, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::{
    lock::{Lock, LockSpace},
    session::Held,
};
use millrace_types::{HeldRanges, InodeId, LockKind, LockRange, SessionId};
use tokio::sync::OwnedMutexGuard;

/// Owners that hold something, or ask.
#[derive(Debug, Default)]
pub(crate) struct HeldLocks {
    owners: Mutex<BTreeMap<Key, Arc<Owner>>>,
    /// Files whose ranges were locked here, while the kernel knows them.
    ranged: Mutex<HashSet<InodeId>>,
}

/// Whose locks on what.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Key {
    inode: InodeId,
    space: LockSpace,
    owner: u64,
}

/// One owner's locks on one file.
#[derive(Debug)]
pub(crate) struct Owner {
    key: Key,
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
    /// The locks of the process `owner` on ranges of a file.
    pub(crate) fn of_process(inode: InodeId, owner: u64) -> Self {
        Self { inode, space: LockSpace::Range, owner }
    }

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
        let (inode, space, owner) = (self.inode, self.space, self.owner);
        Lock { inode, space, owner, kind: None, range: LockRange::WHOLE, process: 0 }
    }
}

impl HeldLocks {
    /// An owner that is about to ask for a lock through the open file `handle`.
    pub(crate) fn asking(self: &Arc<Self>, key: Key, handle: u64, session: SessionId) -> Asking {
        let asking = self.asking_for_all(key, session);
        lock(&asking.state).handles.insert(handle);
        asking
    }

    /// An owner that is about to ask for a lock through no open file in particular.
    pub(crate) fn asking_for_all(self: &Arc<Self>, key: Key, session: SessionId) -> Asking {
        if key.space == LockSpace::Range {
            let mut ranged = lock(&self.ranged);
            if ranged.len() < RANGED_MAX {
                ranged.insert(key.inode);
            }
        }
        let mut owners = lock(&self.owners);
        let owner = owners.entry(key).or_insert_with(|| {
            let state = State {
                session,
                held: HeldRanges::default(),
                process: 0,
                handles: BTreeSet::new(),
            };
            Arc::new(Owner { key, turn: Arc::default(), state: Mutex::new(state) })
        });
        Asking { all: Arc::clone(self), owner: Some(Arc::clone(owner)) }
    }

    /// Whether the mount may append to a file, any at all.
    pub(crate) fn has_appends(&self) -> bool {
        let held = |owner: &Arc<Owner>| !lock(&owner.state).held.is_empty();
        let owners = lock(&self.owners);
        owners.iter().any(|(key, owner)| key.space == LockSpace::Append && held(owner))
    }

    /// An owner that holds something, or asks.
    pub(crate) fn find(self: &Arc<Self>, key: Key) -> Option<Asking> {
        let owner = lock(&self.owners).get(&key).cloned()?;
        Some(Asking { all: Arc::clone(self), owner: Some(owner) })
    }

    /// Owners that have asked through the open file `handle`.
    pub(crate) fn through(&self, handle: u64) -> Vec<Key> {
        let owners = lock(&self.owners);
        let through = owners.values().filter(|owner| lock(&owner.state).handles.contains(&handle));
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
        owners.range(first..).next().is_some_and(|(key, _)| key.inode == inode)
    }

    /// The kernel has forgotten the inode.
    pub(crate) fn forget(&self, inode: InodeId) {
        lock(&self.ranged).remove(&inode);
    }

    /// Everything that is held under `session`.
    pub(crate) fn declared(&self, session: SessionId) -> Vec<Held> {
        let mut all = Vec::new();
        for owner in lock(&self.owners).values() {
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
        for owner in lock(&self.owners).values() {
            let lost = owner.lose_all_but(session);
            if !lost.is_empty() {
                inodes.insert(owner.key.inode);
                handles.extend(lost);
            }
        }
        (handles, inodes)
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
        if owners.get(&key).is_some_and(idle) {
            owners.remove(&key);
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

    fn taken(owner: u64, kind: LockKind) -> Lock {
        Lock { kind: Some(kind), process: 9, ..key(owner).nothing() }
    }

    #[test]
    fn who_holds_nothing_and_asks_for_nothing_is_forgotten() {
        let (locks, session) = (Arc::new(HeldLocks::default()), SessionId(1));
        let (first, second) = (locks.asking(key(1), 7, session), locks.asking(key(1), 8, session));
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
    fn with_a_session_goes_what_was_held_under_it_and_nothing_else() {
        let locks = Arc::new(HeldLocks::default());
        let (old, new) = (SessionId(1), SessionId(2));
        locks.asking(key(1), 7, old).record(old, &taken(1, LockKind::Write));
        locks.asking(key(2), 8, new).record(new, &taken(2, LockKind::Read));
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
        let owner = locks.asking(key(1), 7, old);
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
        drop(locks.asking(Key { space: LockSpace::Flock, ..key(1) }, 7, SessionId(1)));
        assert!(!locks.has_ranges(InodeId(5)));
        drop(locks.asking(key(1), 7, SessionId(1)));
        assert!(locks.has_ranges(InodeId(5)) && !locks.has_ranges(InodeId(6)));
        locks.forget(InodeId(5));
        assert!(!locks.has_ranges(InodeId(5)));
    }
}
