//! The clients' sessions at this daemon: who has shown which ticket on which connection.
//!
//! A ticket counts until it expires, in the metadata server's time; the newest one shown on any
//! connection counts for all connections of the session. A connection with a higher number ends
//! those with a lower one, so that what a client sent before it lost its connection is never
//! applied after what it sends now.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicU64, Ordering},
    },
};

use millrace_protocol::{
    capability::{Purpose, Signed},
    session::Ticket,
};
use millrace_types::{ErrorKind, Failure, HostId, SessionId, Timestamp};

use crate::cluster::Cluster;

/// Sessions known at most: 16 mounts on each of 1,000 hosts.
const SESSIONS_MAX: usize = 16_384;

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

/// A connection that can be cut.
pub(crate) trait Cut: Send + Sync + std::fmt::Debug {
    /// Tells connections apart.
    fn id(&self) -> u64;
    /// Ends the connection and its requests.
    fn cut(&self, reason: &str);
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
    /// certificate; [`ErrorKind::TicketExpired`]; [`ErrorKind::SessionGone`] when a newer
    /// connection has taken the session over; [`ErrorKind::Busy`] past the bound.
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
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if !known.contains_key(&ticket.session) && known.len() >= SESSIONS_MAX {
            known.retain(|_, known| !known.connections.is_empty());
            if known.len() >= SESSIONS_MAX {
                return Err(Failure::new(ErrorKind::Busy, "too many sessions on this host"));
            }
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

    /// A connection has ended.
    pub(crate) fn forget(&self, session: SessionId, connection: u64) {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(entry) = known.get_mut(&session) {
            entry.connections.retain(|(_, held)| held.id() != connection);
        }
    }
}
