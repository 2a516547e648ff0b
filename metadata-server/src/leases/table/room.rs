//! How many leases there may be, and which go to make room for others.
//!
//! A client does not say what it has no use for any more. So where there is no room for one more
//! lease, a few of the oldest are taken back, and whoever asks again once they are acknowledged is
//! granted it. Nobody waits for them. What is removed is kept by nobody.

use std::collections::{BTreeMap, HashMap};

use millrace_protocol::lease::Recall;
use millrace_types::{InodeId, SessionId};

use super::{ALL, Table};

/// This part of what a session may hold is taken back at a time: 64 leases of 65,536.
const PART: usize = 1024;

/// What a session holds leases on, in the order in which it was last granted something of them.
#[derive(Debug, Default)]
pub(super) struct Keys {
    numbers: HashMap<InodeId, u64>,
    by_number: BTreeMap<u64, InodeId>,
    last: u64,
}

impl Keys {
    /// Puts a key behind all others. Tells whether it is new.
    pub(super) fn insert(&mut self, key: InodeId) -> bool {
        self.last += 1;
        self.by_number.insert(self.last, key);
        let before = self.numbers.insert(key, self.last);
        if let Some(before) = before {
            self.by_number.remove(&before);
        }
        before.is_none()
    }

    /// Takes a key out; tells whether it was there.
    pub(super) fn remove(&mut self, key: InodeId) -> bool {
        let number = self.numbers.remove(&key);
        number.is_some_and(|number| self.by_number.remove(&number).is_some())
    }

    pub(super) fn len(&self) -> usize {
        self.numbers.len()
    }

    /// From the oldest on.
    pub(super) fn iter(&self) -> impl Iterator<Item = InodeId> + '_ {
        self.by_number.values().copied()
    }
}

impl Table {
    /// Whether the session can hold one lease more. If not, some are taken back, so that it soon
    /// can.
    pub(super) fn has_room(&mut self, session: SessionId) -> bool {
        let Some(state) = self.sessions.get(&session) else { return false };
        if state.keys.len() >= self.limits.of_session {
            self.take_oldest(session);
            return false;
        }
        if self.leases < self.limits.of_all {
            return true;
        }
        if !self.giver.is_some_and(|giver| self.is_giving(giver)) {
            let sessions = self.sessions.iter();
            let most = sessions.max_by_key(|(session, state)| (state.keys.len(), **session));
            self.giver = most.map(|(session, _)| *session);
            if let Some(giver) = self.giver {
                self.take_oldest(giver);
            }
        }
        false
    }

    /// The inode is gone, and no other gets its id: whatever is kept of it takes no room.
    pub fn handle_gone(&mut self, key: InodeId) {
        for session in self.by_key.remove(&key).into_iter().flat_map(BTreeMap::into_keys) {
            self.delegations.end(key, session);
            if let Some(state) = self.sessions.get_mut(&session)
                && state.keys.remove(key)
            {
                self.leases -= 1;
            }
        }
    }

    /// Takes the oldest leases of a session back, unless that is under way. Not those with which it
    /// makes files by itself: they end when they are not used.
    fn take_oldest(&mut self, session: SessionId) {
        if self.is_giving(session) {
            return;
        }
        let Some(state) = self.sessions.get(&session) else { return };
        let may_go = |key: &InodeId| {
            let held = self.by_key.get(key).and_then(|holders| holders.get(&session));
            held.is_some_and(|held| held.ending == 0)
                && self.delegations.holder(*key) != Some(session)
        };
        let count = self.limits.of_session.div_ceil(PART);
        let oldest: Vec<_> = state.keys.iter().filter(may_go).take(count).collect();
        for key in oldest {
            self.push(session, Recall::Lease(key), None, Some((key, ALL)));
        }
        if let Some(state) = self.sessions.get_mut(&session) {
            state.giving = state.queue.last();
        }
    }

    /// Whether the session has not acknowledged yet what was taken back from it to make room.
    fn is_giving(&self, session: SessionId) -> bool {
        let state = self.sessions.get(&session);
        state.is_some_and(|state| state.ending || state.queue.is_pending(state.giving))
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::Timestamp;

    use super::*;
    use crate::leases::{
        Holding,
        table::{Counts, Limits},
    };

    const NOW: Timestamp = Timestamp(0);
    const ONE: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);

    /// Two sessions that listen.
    fn table() -> Table {
        let mut table = Table::after_restart(Limits { of_session: 3, of_all: 4, queue: 8 }, []);
        for session in [ONE, OTHER] {
            table.handle_listening(session, 0, NOW);
        }
        table
    }

    fn grant(table: &mut Table, session: SessionId, key: u64) -> bool {
        table.grant(session, InodeId(key), Holding::NAMES, NOW)
    }

    /// What the session hears, which it acknowledges.
    fn hear(table: &mut Table, session: SessionId) -> Vec<Recall> {
        let told = table.poll_recalls(session).expect("it listens");
        table.handle_listening(session, told.through, NOW);
        told.recalls
    }

    #[test]
    fn what_is_gone_takes_no_room() {
        let mut table = table();
        assert!(grant(&mut table, ONE, 100) && grant(&mut table, OTHER, 100));
        for key in 1..=10 {
            assert!(grant(&mut table, ONE, key), "{key}");
            assert!(table.delegate(ONE, InodeId(key), NOW), "{key}");
            table.handle_gone(InodeId(key));
            let Counts { leases, delegations, .. } = table.counts();
            assert_eq!((leases, delegations), (2, 0), "{key}");
        }
        table.handle_gone(InodeId(100));
        assert!(table.is_idle() && table.by_key.is_empty());
        assert_eq!((hear(&mut table, ONE), hear(&mut table, OTHER)), (vec![], vec![]));
    }

    #[test]
    fn an_acknowledgement_of_what_is_gone_ends_nothing_else() {
        let mut table = table();
        assert!([1, 2, 3].into_iter().all(|key| grant(&mut table, ONE, key)));
        assert!(!grant(&mut table, ONE, 4), "it has as many as it may");
        table.handle_gone(InodeId(1));
        assert!(grant(&mut table, ONE, 4));
        assert_eq!(hear(&mut table, ONE), [Recall::Lease(InodeId(1))]);
        assert_eq!(table.counts().leases, 3);
    }

    #[test]
    fn a_session_that_is_full_gives_its_oldest_lease_back_for_another() {
        let mut table = table();
        assert!([1, 2, 3].into_iter().all(|key| grant(&mut table, ONE, key)));
        for _ in 0..10 {
            assert!(!grant(&mut table, ONE, 4), "it has as many as it may");
        }
        assert!(grant(&mut table, ONE, 3), "what it has it may have more of");
        assert_eq!(hear(&mut table, ONE), [Recall::Lease(InodeId(1))], "once");
        assert!(grant(&mut table, ONE, 4));
        assert_eq!(table.counts().leases, 3);
        assert!(!grant(&mut table, ONE, 1));
        assert_eq!(hear(&mut table, ONE), [Recall::Lease(InodeId(2))]);
        assert!(grant(&mut table, ONE, 1));
    }

    #[test]
    fn what_a_session_was_granted_again_is_not_its_oldest_lease() {
        let mut table = table();
        assert!([1, 2, 3, 1].into_iter().all(|key| grant(&mut table, ONE, key)));
        assert_eq!(table.counts().leases, 3);
        assert!(!grant(&mut table, ONE, 4));
        assert_eq!(hear(&mut table, ONE), [Recall::Lease(InodeId(2))]);
    }

    #[test]
    fn a_directory_in_which_a_session_makes_files_by_itself_is_not_given_back_for_room() {
        let mut table = table();
        assert!(table.delegate(ONE, InodeId(1), NOW));
        assert!([2, 3].into_iter().all(|key| grant(&mut table, ONE, key)));
        assert!(!grant(&mut table, ONE, 4));
        assert_eq!(hear(&mut table, ONE), [Recall::Lease(InodeId(2))]);
    }

    #[test]
    fn where_all_have_too_many_who_has_most_gives_some_back() {
        let mut table = table();
        assert!([1, 2, 3].into_iter().all(|key| grant(&mut table, ONE, key)));
        assert!(grant(&mut table, OTHER, 4));
        for _ in 0..10 {
            assert!(!grant(&mut table, OTHER, 5));
        }
        assert_eq!(hear(&mut table, OTHER), []);
        assert_eq!(hear(&mut table, ONE), [Recall::Lease(InodeId(1))]);
        assert!(grant(&mut table, OTHER, 5));
        assert!(!grant(&mut table, OTHER, 6));
        table.handle_end(ONE);
        assert!(grant(&mut table, OTHER, 6), "its end gives back all that it had");
    }
}
