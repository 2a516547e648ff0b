//! The clients' sessions at this daemon: who has shown which ticket on which connection.
//!
//! A ticket counts until it expires, in the metadata server's time; the newest one shown on any
//! connection counts for all connections of the session. A connection with a higher number ends
//! those with a lower one, so that what a client sent before it lost its connection is never
//! applied after what it sends now.
//!
//! # Bounds
//! The metadata server gives tickets to [`SESSIONS_MAX`] sessions at a time. As many are known
//! here; past it those go whose ticket has run out, then those without a connection. A connection
//! shows one session at a time, so that a server's bounds on connections bound those kept here.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use millrace_protocol::{
    capability::{Purpose, Signed},
    session::{SESSIONS_MAX, Ticket},
};
use millrace_types::{ErrorKind, Failure, HostId, SessionId, Timestamp};

use crate::cluster::Cluster;

/// All sessions.
#[derive(Debug, Default)]
pub(crate) struct Sessions {
    known: Mutex<HashMap<SessionId, Known>>,
}

#[derive(Debug)]
struct Known {
    session: Arc<Session>,
    /// By number; several connections may share one.
    connections: Vec<(u64, Arc<dyn Cut>)>,
}

impl Known {
    /// Whether the connection would be a further one, and its place is kept for others.
    fn refuses(&self, connection: &dyn Cut, number: u64) -> bool {
        let another = |(of, held): &(u64, Arc<dyn Cut>)| {
            held.id() != connection.id() && *of == number && !held.is_closed()
        };
        connection.is_unwanted() && self.connections.iter().any(another)
    }
}

/// A connection that can be cut.
pub(crate) trait Cut: Send + Sync + std::fmt::Debug {
    /// Tells connections apart.
    fn id(&self) -> u64;
    /// Ends the connection and its requests.
    fn cut(&self, reason: &str);
    /// Whether it has ended.
    fn is_closed(&self) -> bool;
    /// Whether it has shown no ticket before, and this host has few places left for connections:
    /// then it is let in for a session that has no other.
    fn is_unwanted(&self) -> bool;
}

/// One session.
#[derive(Debug)]
struct Session {
    id: SessionId,
    expires: AtomicI64,
    /// The highest connection number shown.
    newest: AtomicU64,
}

/// A session as one of its connections has shown it; remembered by the connection.
#[derive(Clone, Debug)]
pub(crate) struct Attached {
    session: Arc<Session>,
    number: u64,
}

/// Who is at the other end of a connection, by its certificate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) host: HostId,
    pub(crate) fingerprint: [u8; 32],
}

impl Attached {
    /// The session's id.
    pub(crate) fn id(&self) -> SessionId {
        self.session.id
    }

    /// Whether its newest ticket still counts, and no newer connection has taken it over.
    pub(crate) fn is_live(&self, cluster: &Cluster) -> bool {
        let expires = Timestamp(self.session.expires.load(Ordering::Acquire));
        let is_newest = self.number >= self.session.newest.load(Ordering::Acquire);
        is_newest && cluster.now().is_ok_and(|now| now < expires)
    }

    /// As [`Self::is_live`], in words.
    ///
    /// # Errors
    /// [`ErrorKind::TicketExpired`].
    pub(crate) fn check_live(&self, cluster: &Cluster) -> Result<(), Failure> {
        cluster.now()?;
        if self.is_live(cluster) { Ok(()) } else { Err(ErrorKind::TicketExpired.into()) }
    }
}

impl Sessions {
    /// Takes a ticket that was shown on a connection. May be dropped at its await.
    ///
    /// # Errors
    /// Those of [`Cluster::verify`]; [`ErrorKind::Forbidden`] when the ticket was made for another
    /// certificate; [`ErrorKind::TicketExpired`]; [`ErrorKind::Unavailable`] when a newer
    /// connection has taken the session over, or this one has ended; [`ErrorKind::Busy`] past the
    /// bound.
    pub(crate) async fn attach(
        &self,
        cluster: &Cluster,
        holder: Holder,
        ticket: &Signed,
        number: u64,
        connection: Arc<dyn Cut>,
    ) -> Result<Attached, Failure> {
        let ticket: Ticket = cluster.verify(Purpose::Ticket, ticket).await?;
        if ticket.host != holder.host || ticket.fingerprint != holder.fingerprint {
            let words = format!("the ticket of {} was made for another node", ticket.session);
            return Err(Failure::new(ErrorKind::Forbidden, words));
        }
        if cluster.now()? >= ticket.expires {
            return Err(ErrorKind::TicketExpired.into());
        }
        if connection.is_closed() {
            let words = "the connection has ended: nobody would forget it";
            return Err(Failure::new(ErrorKind::Unavailable, words));
        }
        let now = cluster.now()?;
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(&ticket.session) && !make_room(&mut known, now) {
            let words = "this host knows as many sessions as it may";
            return Err(Failure::new(ErrorKind::Busy, words));
        }
        let entry = known.entry(ticket.session).or_insert_with(|| Known {
            session: Arc::new(Session {
                id: ticket.session,
                expires: AtomicI64::new(ticket.expires.0),
                newest: AtomicU64::new(number),
            }),
            connections: Vec::new(),
        });
        let newest = entry.session.newest.fetch_max(number, Ordering::AcqRel);
        // With no connection left the numbers begin anew: the client may have been restarted.
        if entry.connections.is_empty() {
            entry.session.newest.store(number, Ordering::Release);
        } else if newest > number {
            let words = "a newer connection has taken the session over";
            return Err(Failure::new(ErrorKind::Unavailable, words));
        } else if entry.refuses(&*connection, number) {
            let words = "this host keeps its places for who has no connection yet";
            return Err(Failure::new(ErrorKind::Busy, words));
        }
        entry.session.expires.fetch_max(ticket.expires.0, Ordering::AcqRel);
        entry.connections.retain(|(older, connection)| {
            if *older < number {
                connection.cut("a newer connection of the session");
            }
            *older >= number
        });
        if !entry.connections.iter().any(|(_, held)| held.id() == connection.id()) {
            entry.connections.push((number, connection));
        }
        Ok(Attached { session: Arc::clone(&entry.session), number })
    }

    /// A connection has ended, or shows another session now.
    pub(crate) fn forget(&self, session: SessionId, connection: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = known.get_mut(&session) {
            entry.connections.retain(|(_, held)| held.id() != connection);
        }
    }

    /// Connections of all sessions.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> usize {
        let known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        known.values().map(|known| known.connections.len()).sum()
    }
}

/// Whether there is room for one more session: made, if need be, at the cost of those whose ticket
/// has run out, and then of those without a connection.
fn make_room(known: &mut HashMap<SessionId, Known>, now: Timestamp) -> bool {
    if known.len() < SESSIONS_MAX {
        return true;
    }
    let expired = |known: &Known| known.session.expires.load(Ordering::Acquire) <= now.0;
    forget_where(known, expired);
    if known.len() >= SESSIONS_MAX {
        forget_where(known, |known| known.connections.is_empty());
    }
    known.len() < SESSIONS_MAX
}

/// Forgets sessions. What is still at work for one of them is refused from now on: nobody here
/// would know that it was overtaken.
fn forget_where(known: &mut HashMap<SessionId, Known>, which: impl Fn(&Known) -> bool) {
    known.retain(|_, known| {
        let goes = which(known);
        if goes {
            known.session.expires.store(i64::MIN, Ordering::Release);
        }
        !goes
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, Default)]
    struct Connection {
        id: u64,
        is_closed: bool,
        is_unwanted: bool,
    }

    impl Cut for Connection {
        fn id(&self) -> u64 {
            self.id
        }

        fn cut(&self, _: &str) {}

        fn is_closed(&self) -> bool {
            self.is_closed
        }

        fn is_unwanted(&self) -> bool {
            self.is_unwanted
        }
    }

    fn session(id: u64, expires: i64, connected: bool) -> (SessionId, Known) {
        let connection = Connection { id: 1, ..Connection::default() };
        session_with(id, expires, connected.then_some(connection))
    }

    fn session_with(id: u64, expires: i64, connection: Option<Connection>) -> (SessionId, Known) {
        let session = Session {
            id: SessionId(id),
            expires: AtomicI64::new(expires),
            newest: AtomicU64::new(1),
        };
        let held = |connection: Connection| (1, Arc::new(connection) as Arc<dyn Cut>);
        let connections = connection.into_iter().map(held).collect();
        (SessionId(id), Known { session: Arc::new(session), connections })
    }

    #[test]
    fn a_session_gets_further_connections_while_there_are_places() {
        let of = |id, is_unwanted| Connection { id, is_unwanted, is_closed: false };
        let (_, known) = session(1, 0, true);
        assert!(!known.refuses(&of(2, false), 1));
        assert!(known.refuses(&of(2, true), 1));
        assert!(!known.refuses(&of(1, true), 1), "it is no further one");
        assert!(!known.refuses(&of(2, true), 2), "it takes the place of those before");
        let (_, known) = session(1, 0, false);
        assert!(!known.refuses(&of(2, true), 1), "it is the first");
        let ended = Connection { id: 1, is_closed: true, is_unwanted: false };
        let (_, known) = session_with(1, 0, Some(ended));
        assert!(!known.refuses(&of(2, true), 1), "the other has ended");
    }

    fn full(expires: i64, connected: bool) -> HashMap<SessionId, Known> {
        (0..SESSIONS_MAX as u64).map(|id| session(id, expires, connected)).collect()
    }

    #[test]
    fn a_full_table_forgets_what_has_expired_although_its_connection_lives() {
        let mut known = full(100, true);
        let (id, live) = session(7, 101, true);
        known.insert(id, live);
        let dead = Arc::clone(&known[&SessionId(8)].session);
        assert!(!make_room(&mut known, Timestamp(99)), "all are in use");
        assert_eq!(known.len(), SESSIONS_MAX);
        assert!(make_room(&mut known, Timestamp(100)));
        assert_eq!(known.keys().collect::<Vec<_>>(), [&SessionId(7)]);
        // Whatever is still at work for it sees that it has ended.
        assert_eq!(dead.expires.load(Ordering::Acquire), i64::MIN);
    }

    #[test]
    fn a_full_table_forgets_sessions_without_a_connection_before_it_refuses() {
        let mut known = full(100, false);
        let (id, live) = session(7, 100, true);
        known.insert(id, live);
        assert!(make_room(&mut known, Timestamp(99)));
        assert_eq!(known.keys().collect::<Vec<_>>(), [&SessionId(7)]);
    }
}
