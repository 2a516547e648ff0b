//! Decides when a session is dead.
//!
//! Owns no clock: the engine feeds it openings, renewals and the present time, and ends the
//! sessions that it names.
//!
//! ```text
//!              renewed                 silent for a lease
//!            ┌────────┐                and the clock error
//!  opened ──▶│ alive  │───────────────────────────────────▶ dead ──▶ (ended by a command)
//!            └────────┘
//! ```
//!
//! A ticket runs out after one lease; the session stands for the clock error longer, because a
//! target whose clock is behind still takes its writes. Who lets others wait for too long gets no
//! further ticket ([`crate::leases::Owed`]), and ends so too.

use std::{collections::BTreeMap, time::Duration};

use millrace_types::{SessionId, Timestamp};

/// The leases of all sessions.
#[derive(Debug)]
pub struct Expiry {
    lease: Duration,
    clock_error: Duration,
    /// When each session's last ticket runs out, or later where nobody could be heard.
    tickets: BTreeMap<SessionId, Timestamp>,
}

impl Expiry {
    /// No sessions yet. Tickets are good for `lease`; clocks differ by `clock_error` at most.
    #[must_use]
    pub fn new(lease: Duration, clock_error: Duration) -> Self {
        Self { lease, clock_error, tickets: BTreeMap::new() }
    }

    /// Length of a lease.
    #[must_use]
    pub fn lease(&self) -> Duration {
        self.lease
    }

    /// A ticket is given out at `now`; returns when it runs out.
    pub fn handle_ticket(&mut self, session: SessionId, now: Timestamp) -> Timestamp {
        let expires = now.plus(self.lease);
        let ticket = self.tickets.entry(session).or_insert(expires);
        *ticket = expires.max(*ticket);
        expires
    }

    /// Nobody could renew for so long before `now`: every session stands that much longer, but not
    /// longer than one that renews now. A ticket that was given out runs out when it says.
    pub fn forgive(&mut self, unheard: Duration, now: Timestamp) {
        let renewed = now.plus(self.lease);
        for expires in self.tickets.values_mut() {
            *expires = expires.plus(unheard).min(renewed).max(*expires);
        }
    }

    /// The session has ended.
    pub fn handle_end(&mut self, session: SessionId) {
        self.tickets.remove(&session);
    }

    /// A session that is dead at `now`, if there is one; named again until it has ended.
    #[must_use]
    pub fn poll_dead(&self, now: Timestamp) -> Option<SessionId> {
        let dead = |expires: &Timestamp| expires.plus(self.clock_error) < now;
        self.tickets.iter().find_map(|(session, expires)| dead(expires).then_some(*session))
    }

    /// When the session's last ticket runs out.
    #[must_use]
    pub fn expires(&self, session: SessionId) -> Option<Timestamp> {
        self.tickets.get(&session).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_is_dead_only_after_its_ticket_and_the_clock_error() {
        let seconds = |count: i64| Timestamp::from_parts(count, 0);
        let mut expiry = Expiry::new(Duration::from_secs(30), Duration::from_secs(2));
        assert_eq!(expiry.handle_ticket(SessionId(1), seconds(0)), seconds(30));
        expiry.handle_ticket(SessionId(2), seconds(1));
        assert_eq!(expiry.poll_dead(seconds(32)), None);
        expiry.handle_ticket(SessionId(2), seconds(20));
        assert_eq!(expiry.poll_dead(seconds(33)), Some(SessionId(1)));
        expiry.handle_end(SessionId(1));
        assert_eq!(expiry.poll_dead(seconds(33)), None);
        assert_eq!(expiry.poll_dead(seconds(53)), Some(SessionId(2)));
        // Its ticket is good until 50. Nobody was heard from 41 to 101.
        expiry.forgive(Duration::from_secs(60), seconds(101));
        assert_eq!(expiry.poll_dead(seconds(112)), None);
        assert_eq!(expiry.poll_dead(seconds(113)), Some(SessionId(2)));
        // Who has renewed since needs no more.
        expiry.handle_ticket(SessionId(2), seconds(200));
        expiry.forgive(Duration::from_secs(60), seconds(201));
        assert_eq!(expiry.poll_dead(seconds(233)), None);
        assert_eq!(expiry.poll_dead(seconds(234)), Some(SessionId(2)));
    }
}
