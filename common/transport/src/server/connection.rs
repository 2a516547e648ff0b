//! A connection as the service sees it.

use std::{
    any::Any,
    fmt,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
};

use millrace_protocol::version::ProtocolVersion;

use super::admission::Crowd;
use crate::{
    PeerIdentity,
    failure::CloseCode,
    same_host::{Attached, is_same_host},
};

/// Names a connection; never used twice in the life of a server process.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

impl fmt::Display for ConnectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "conn{}", self.0)
    }
}

/// A peer that has been let in.
pub struct Connection {
    id: ConnectionId,
    quic: quinn::Connection,
    version: ProtocolVersion,
    peer: PeerIdentity,
    crowd: Crowd,
    streams: Attached,
    state: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

impl Connection {
    /// Must be called on the runtime of the connection's socket.
    pub(super) fn new(
        id: ConnectionId,
        quic: quinn::Connection,
        version: ProtocolVersion,
        peer: PeerIdentity,
        crowd: Crowd,
        streams_max: usize,
    ) -> Self {
        let (streams, state) = (Attached::new(streams_max), Mutex::new(None));
        Self { id, quic, version, peer, crowd, streams, state }
    }

    /// Whether the server has less than half of its places left: they are for peers that have no
    /// connection yet.
    #[must_use]
    pub fn is_crowded(&self) -> bool {
        self.crowd.is_dense()
    }

    /// The version of the protocol that both ends speak.
    #[must_use]
    pub fn version(&self) -> ProtocolVersion {
        self.version
    }

    /// Its number.
    #[must_use]
    pub fn id(&self) -> ConnectionId {
        self.id
    }

    /// What the peer's certificate says.
    #[must_use]
    pub fn peer(&self) -> &PeerIdentity {
        &self.peer
    }

    /// Whether its peer is a process of this host, as far as addresses say.
    pub(super) fn is_of_this_host(&self) -> bool {
        is_same_host(&self.quic)
    }

    /// Where the peer is now.
    #[must_use]
    pub fn remote(&self) -> SocketAddr {
        let remote = self.quic.remote_address();
        SocketAddr::new(remote.ip().to_canonical(), remote.port())
    }

    /// Remembers something about this connection, for example the session that was attached. There
    /// is one place; the last value stays.
    pub fn set_state<T: Any + Send + Sync>(&self, state: Arc<T>) {
        *self.state.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }

    /// What [`Self::set_state`] remembered, if it was a `T`.
    #[must_use]
    pub fn state<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner).clone();
        state?.downcast().ok()
    }

    /// Ends the connection: all its requests are cancelled, and the peer sees
    /// [`Unavailable`](millrace_types::ErrorKind::Unavailable) with the reason.
    pub fn close(&self, reason: &str) {
        self.quic.close(CloseCode::Service.code(), reason.as_bytes());
        self.streams.end();
    }

    /// It has ended: no local stream of it outlives it.
    pub(super) fn end_streams(&self) {
        self.streams.end();
    }

    /// Whether it has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.quic.close_reason().is_some()
    }
}

impl AsRef<Attached> for Connection {
    fn as_ref(&self) -> &Attached {
        &self.streams
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("id", &self.id)
            .field("remote", &self.remote())
            .field("peer", &self.peer)
            .finish_non_exhaustive()
    }
}
