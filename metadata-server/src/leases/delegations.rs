//! Directories in which one session makes files by itself: the rest of a lease that is about more
//! than looking.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use millrace_types::{InodeId, SessionId, Timestamp};

/// Who has which directory, and which inode ids for it.
#[derive(Debug, Default)]
pub struct Delegations {
    by_key: HashMap<InodeId, Delegation>,
    /// Until when directories that others wanted to use are given to nobody.
    contested: HashMap<InodeId, Timestamp>,
}

#[derive(Debug)]
struct Delegation {
    session: SessionId,
    /// Ids that were given with it and are not published. What the targets hold of them is nobody
    /// else's business.
    ids: BTreeSet<InodeId>,
    /// When it was given.
    began: Timestamp,
    /// It was declared after a restart: nobody knows which ids were given with it.
    is_declared: bool,
    /// When its holder last asked for ids, or published.
    used: Timestamp,
    /// It is taken back.
    ending: bool,
}

/// A directory that others wanted to use is delegated to nobody for so long: who works there
/// together would otherwise take it from each other all the time.
pub const CONTESTED: Duration = Duration::from_secs(4);

/// A delegation that is not used for so long is taken back: while it stands, no check of the
/// targets looks at ids as new as its own.
pub const IDLE_MAX: Duration = Duration::from_secs(30);

/// However much it is used, it is taken back after so long: its holder may have lost ids.
pub const LIFE_MAX: Duration = Duration::from_secs(300);

/// Ids that are out with one delegation at most.
pub const IDS_MAX: usize = 1024;

/// Past so many contested directories those that are over are forgotten; if none is, all.
const CONTESTED_MAX: usize = 1 << 16;

impl Delegations {
    /// Who has this one.
    #[must_use]
    pub fn holder(&self, key: InodeId) -> Option<SessionId> {
        self.by_key.get(&key).map(|delegation| delegation.session)
    }

    /// Whether it may not be given to anybody yet.
    pub fn is_contested(&mut self, key: InodeId, now: Timestamp) -> bool {
        let Some(until) = self.contested.get(&key) else { return false };
        let is_contested = now < *until;
        if !is_contested {
            self.contested.remove(&key);
        }
        is_contested
    }

    /// It is given to this session, whose lease covers the whole directory.
    ///
    /// # Panics
    /// Where another session has it.
    pub fn give(&mut self, key: InodeId, session: SessionId, now: Timestamp) {
        let new = || Delegation {
            session,
            ids: BTreeSet::new(),
            began: now,
            is_declared: false,
            used: now,
            ending: false,
        };
        let delegation = self.by_key.entry(key).or_insert_with(new);
        assert_eq!(delegation.session, session, "one session has a directory");
        delegation.used = now;
    }

    /// It is the session's from before a restart, with ids that nobody knows.
    ///
    /// # Panics
    /// Where another session has it.
    pub fn declare(&mut self, key: InodeId, session: SessionId, now: Timestamp) {
        self.give(key, session, now);
        if let Some(delegation) = self.by_key.get_mut(&key) {
            delegation.is_declared = true;
        }
    }

    /// Whether more ids may be given with it.
    #[must_use]
    pub fn has_room(&self, key: InodeId) -> bool {
        self.by_key.get(&key).is_none_or(|delegation| delegation.ids.len() < IDS_MAX)
    }

    /// Whether the session may make a file with this id in the directory.
    #[must_use]
    pub fn admits(&self, key: InodeId, session: SessionId, inode: InodeId) -> bool {
        self.by_key.get(&key).is_some_and(|delegation| {
            let is_out = delegation.is_declared || delegation.ids.contains(&inode);
            delegation.session == session && is_out
        })
    }

    /// These ids were given with it.
    pub fn handle_given(&mut self, key: InodeId, ids: impl IntoIterator<Item = InodeId>) {
        if let Some(delegation) = self.by_key.get_mut(&key) {
            delegation.ids.extend(ids);
        }
    }

    /// An inode was made under it.
    pub fn handle_published(&mut self, key: InodeId, inode: InodeId, now: Timestamp) {
        if let Some(delegation) = self.by_key.get_mut(&key)
            && delegation.ids.remove(&inode)
        {
            delegation.used = now;
        }
    }

    /// Others want to use it: it is taken back from the session that this returns, unless it is
    /// already.
    pub fn contest(&mut self, key: InodeId, now: Timestamp) -> Option<SessionId> {
        if !self.by_key.contains_key(&key) {
            return None;
        }
        self.handle_shared(key, now);
        self.begin_end(key)
    }

    /// Several use it: it is given to nobody for [`CONTESTED`].
    pub fn handle_shared(&mut self, key: InodeId, now: Timestamp) {
        if self.contested.len() >= CONTESTED_MAX {
            self.contested.retain(|_, until| now < *until);
            if self.contested.len() >= CONTESTED_MAX {
                self.contested.clear();
            }
        }
        self.contested.insert(key, now.plus(CONTESTED));
    }

    /// Those that nobody has used for [`IDLE_MAX`], or that are older than [`LIFE_MAX`]. They are
    /// taken back from now on.
    pub fn poll_idle(&mut self, now: Timestamp) -> Vec<(InodeId, SessionId)> {
        let is_idle = |delegation: &Delegation| {
            delegation.used.plus(IDLE_MAX) < now || delegation.began.plus(LIFE_MAX) < now
        };
        let idle = self.by_key.iter().filter(|(_, delegation)| is_idle(delegation));
        let idle = idle.map(|(key, _)| *key).collect();
        self.begin_ends(idle)
    }

    /// All that are not taken back yet: they are from now on.
    pub fn begin_end_all(&mut self) -> Vec<(InodeId, SessionId)> {
        self.begin_ends(self.by_key.keys().copied().collect())
    }

    /// The lease of this session has ended.
    pub fn end(&mut self, key: InodeId, session: SessionId) {
        if self.holder(key) == Some(session) {
            self.by_key.remove(&key);
        }
    }

    /// All leases of this session have ended.
    pub fn end_all(&mut self, session: SessionId) {
        self.by_key.retain(|_, delegation| delegation.session != session);
    }

    /// The lowest id that was given and may still be published; 0 where nobody knows.
    #[must_use]
    pub fn lowest(&self) -> Option<InodeId> {
        let lowest = |delegation: &Delegation| match delegation.is_declared {
            true => Some(InodeId(0)),
            false => delegation.ids.first().copied(),
        };
        self.by_key.values().filter_map(lowest).min()
    }

    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    fn begin_ends(&mut self, keys: Vec<InodeId>) -> Vec<(InodeId, SessionId)> {
        keys.into_iter().filter_map(|key| Some((key, self.begin_end(key)?))).collect()
    }

    /// It is taken back from the session that this returns, unless it is already.
    pub fn begin_end(&mut self, key: InodeId) -> Option<SessionId> {
        let delegation = self.by_key.get_mut(&key)?;
        let begins = !std::mem::replace(&mut delegation.ending, true);
        begins.then_some(delegation.session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: InodeId = InodeId(7);
    const SESSION: SessionId = SessionId(1);

    fn at(seconds: u64) -> Timestamp {
        Timestamp(0).plus(Duration::from_secs(seconds))
    }

    #[test]
    fn what_others_want_is_taken_back_once_and_given_to_nobody_for_a_while() {
        let mut delegations = Delegations::default();
        assert_eq!(delegations.contest(KEY, at(1)), None);
        assert!(!delegations.is_contested(KEY, at(1)), "nobody had it");
        delegations.give(KEY, SESSION, at(1));
        assert_eq!(delegations.contest(KEY, at(2)), Some(SESSION));
        assert_eq!(delegations.contest(KEY, at(3)), None, "it is on its way");
        delegations.end(KEY, SessionId(2));
        assert_eq!(delegations.holder(KEY), Some(SESSION), "the lease of another has ended");
        delegations.end(KEY, SESSION);
        assert_eq!(delegations.holder(KEY), None);
        assert!(delegations.is_contested(KEY, at(6)));
        assert!(!delegations.is_contested(KEY, at(7)));
    }

    #[test]
    fn the_lowest_id_is_one_that_may_still_be_published() {
        let mut delegations = Delegations::default();
        for (key, ids) in [(7, [20, 21]), (8, [30, 31])] {
            delegations.give(InodeId(key), SESSION, at(1));
            delegations.handle_given(InodeId(key), ids.map(InodeId));
        }
        assert_eq!(delegations.lowest(), Some(InodeId(20)));
        delegations.handle_published(KEY, InodeId(20), at(2));
        assert_eq!(delegations.lowest(), Some(InodeId(21)));
        delegations.end(KEY, SESSION);
        assert_eq!(delegations.lowest(), Some(InodeId(30)));
        delegations.end_all(SESSION);
        assert_eq!(delegations.lowest(), None);
    }

    #[test]
    fn what_is_not_used_is_taken_back_once() {
        let mut delegations = Delegations::default();
        delegations.give(KEY, SESSION, at(1));
        delegations.handle_given(KEY, [InodeId(20)]);
        delegations.handle_published(KEY, InodeId(20), at(20));
        assert_eq!(delegations.poll_idle(at(50)), []);
        assert_eq!(delegations.poll_idle(at(51)), [(KEY, SESSION)]);
        assert_eq!(delegations.poll_idle(at(52)), []);
    }

    #[test]
    fn what_is_remembered_of_contests_is_bounded() {
        let mut delegations = Delegations::default();
        for key in 0..2 * CONTESTED_MAX as u64 {
            delegations.give(InodeId(key), SESSION, at(1));
            delegations.contest(InodeId(key), at(1));
        }
        assert!(delegations.contested.len() <= CONTESTED_MAX);
    }
}
