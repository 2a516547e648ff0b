//! Delegations as a part of leases: one is given with a lease on everything in a directory, and
//! ends with it.

use millrace_protocol::lease::Recall;
use millrace_types::{InodeId, SessionId, Timestamp};

use super::{ALL, Table};
use crate::leases::marks::Debt;

impl Table {
    /// Lets the session alone make files in a directory, which its lease covers then as a whole.
    /// Others that have a lease there lose it: it can be given once they have.
    pub fn delegate(&mut self, session: SessionId, key: InodeId, now: Timestamp) -> bool {
        // Who has not heard of a name yet could make it by itself.
        let is_contested = self.delegations.is_contested(key, now) || self.unheard.is_any_in(key);
        if !self.is_free(session, key, now) || is_contested || !self.delegations.has_room(key) {
            return false;
        }
        let holders = self.by_key.get(&key).into_iter().flatten();
        let others = holders.filter(|(holder, _)| **holder != session);
        let others: Vec<_> = others.map(|(holder, held)| (*holder, held.ending > 0)).collect();
        if !others.is_empty() {
            for (other, _) in others.into_iter().filter(|(_, is_ending)| !is_ending) {
                self.push(other, Recall::Lease(key), None, Some((key, ALL)));
            }
            return false;
        }
        if !self.grant(session, key, ALL, now) {
            return false;
        }
        self.delegations.give(key, session, now);
        true
    }

    /// The session has a delegation from before the restart, with files that are not published. It
    /// must not have declared yet what it keeps; tells whether it may keep this.
    pub fn declare_delegation(&mut self, session: SessionId, key: InodeId, now: Timestamp) -> bool {
        let holder = self.delegations.holder(key);
        let is_full = self.leases >= self.limits.of_all;
        let is_others = holder.is_some_and(|holder| holder != session);
        if !self.undeclared.contains(&session) || is_others || is_full {
            return false;
        }
        let most = self.limits.of_session;
        let state = self.session(session);
        if state.keys.len() >= most {
            return false;
        }
        if state.keys.insert(key) {
            self.leases += 1;
            self.granted += 1;
        }
        self.by_key.entry(key).or_default().entry(session).or_default().holding = ALL;
        self.delegations.declare(key, session, now);
        // Nobody knows which ids it has: it is taken back when the session listens.
        if self.delegations.begin_end(key).is_some() {
            self.push(session, Recall::Lease(key), None, Some((key, ALL)));
        }
        true
    }

    /// These ids were given with a delegation that was just given.
    pub fn handle_given(&mut self, key: InodeId, ids: impl IntoIterator<Item = InodeId>) {
        self.delegations.handle_given(key, ids);
    }

    /// Whether the session has not said yet what it has from before a restart.
    #[must_use]
    pub fn is_undeclared(&self, session: SessionId) -> bool {
        self.undeclared.contains(&session)
    }

    /// Whether the session may make a file with an id that it was given, or declared.
    #[must_use]
    pub fn admits(&self, key: InodeId, session: SessionId, inode: InodeId) -> bool {
        self.delegations.admits(key, session, inode)
    }

    /// An inode was made that its maker had the id of.
    pub fn handle_published(&mut self, key: InodeId, inode: InodeId, now: Timestamp) {
        self.delegations.handle_published(key, inode, now);
    }

    /// The lowest inode id that was given with a delegation and may still be used; 0 where nobody
    /// knows yet.
    #[must_use]
    pub fn lowest_given(&self) -> Option<InodeId> {
        if self.undeclared.is_empty() { self.delegations.lowest() } else { Some(InodeId(0)) }
    }

    /// Takes back all delegations.
    pub fn end_delegations(&mut self) {
        let all = self.delegations.begin_end_all();
        self.take_delegations_back(all);
    }

    /// Takes back delegations that are not used.
    pub fn end_idle_delegations(&mut self, now: Timestamp) {
        let idle = self.delegations.poll_idle(now);
        self.take_delegations_back(idle);
    }

    fn take_delegations_back(&mut self, delegations: Vec<(InodeId, SessionId)>) {
        for (key, session) in delegations {
            self.push(session, Recall::Lease(key), None, Some((key, ALL)));
        }
    }

    /// Others use a directory in which a session makes files by itself: that ends. Whoever owes
    /// `debt` waits for it.
    pub(super) fn contest(&mut self, key: InodeId, debt: Option<Debt>, now: Timestamp) {
        let Some(holder) = self.delegations.holder(key) else { return };
        let begins = self.delegations.contest(key, now).is_some();
        if begins || debt.is_some() {
            self.push(holder, Recall::Lease(key), debt, Some((key, ALL)));
        }
    }
}
