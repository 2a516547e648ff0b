//! The answering side: accepts connections of known roles and hands their requests to a service.
//!
//! ```text
//! datagram ─▶ handshake (bounded in number and time) ─▶ certificate: cluster, role ─▶ connection
//!                                                                                        │
//!   reply ◀── service.handle(call) ◀── kind allowed for the role? ◀── frame ◀── stream ◀──┘
//! ```
//!
//! Handlers run on the endpoint's own thread. A handler is dropped at its next await when the caller
//! takes its request back, when its connection ends or when its deadline passes: work that must not
//! be cut belongs into a task or a thread of its own.

mod accept;
mod call;

use std::{
    any::Any,
    fmt, io,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use millrace_protocol::{RequestKind, session::Role};
use millrace_runtime::{Drained, Shutdown};
use quinn::TokioRuntime;

pub use self::call::IncomingCall;
use self::{accept::Acceptor, call::Limits};
use crate::{
    endpoint::EndpointError,
    identity::{Identity, PeerIdentity},
    reactor::Reactor,
    settings::TransportSettings,
    socket, tls,
};

/// What a daemon does with requests.
#[async_trait::async_trait]
pub trait Service: Send + Sync + 'static {
    /// Whether a peer of `role` may send requests of `kind`. Others are answered
    /// [`ErrorKind::Forbidden`](millrace_types::ErrorKind::Forbidden) and logged.
    fn admits(&self, kind: RequestKind, role: Role) -> bool;

    /// Answers one request. May be dropped at any await: see the module's page.
    async fn handle(&self, call: IncomingCall);

    /// A peer has connected.
    fn connected(&self, _connection: &Arc<ConnectionContext>) {}

    /// A peer's connection has ended; its requests are dropped.
    fn disconnected(&self, _connection: &Arc<ConnectionContext>) {}
}

/// Numbers the connections of a server's life.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct ConnectionId(pub u64);

/// One connection, as its requests see it.
pub struct ConnectionContext {
    /// Its number.
    pub id: ConnectionId,
    /// Who is at the other end.
    pub peer: PeerIdentity,
    /// From where.
    pub remote: SocketAddr,
    connection: quinn::Connection,
    slot: Mutex<Option<Arc<dyn Any + Send + Sync>>>,
}

impl ConnectionContext {
    /// Remembers something for the connection, such as its session.
    pub fn remember<T: Any + Send + Sync>(&self, value: Arc<T>) {
        *self.slot.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
    }

    /// What was remembered, if it is a `T`.
    #[must_use]
    pub fn recall<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        let slot = self.slot.lock().unwrap_or_else(PoisonError::into_inner);
        slot.clone()?.downcast().ok()
    }

    /// Cuts the connection: its requests are dropped, and the peer sees `reason`.
    pub fn close(&self, reason: &str) {
        self.connection.close(crate::link::CLOSED, reason.as_bytes());
    }
}

impl fmt::Debug for ConnectionContext {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let peer = &self.peer;
        write!(f, "{} {} at {} (#{})", peer.role.name(), peer.host, self.remote, self.id.0)
    }
}

/// Limits of a server. Everything over one is refused or waits at the caller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerSettings {
    /// How connections behave.
    pub transport: TransportSettings,
    /// Connections at a time. Default 4,096: two for each of 2,000 client hosts.
    pub connections_max: usize,
    /// Connections of one node at a time. Default 64.
    pub connections_per_host_max: usize,
    /// Handshakes at a time; each costs about a millisecond of CPU. Default 64.
    pub handshakes_max: usize,
    /// A handshake takes at most this long. Default 5 s.
    pub handshake_timeout: Duration,
    /// The frame of a request arrives within this time once its stream is open. Default 10 s.
    pub frame_timeout: Duration,
    /// Requests of all connections at a time. Default 1,024.
    pub requests_max: usize,
}

impl Default for ServerSettings {
    fn default() -> Self {
        Self {
            transport: TransportSettings::default(),
            connections_max: 4096,
            connections_per_host_max: 64,
            handshakes_max: 64,
            handshake_timeout: Duration::from_secs(5),
            frame_timeout: Duration::from_secs(10),
            requests_max: 1024,
        }
    }
}

/// A listening server. It runs until [`Self::drain`] or until it is dropped.
#[derive(Debug)]
pub struct Server {
    endpoint: quinn::Endpoint,
    local_address: SocketAddr,
    stopping: Shutdown,
    _reactor: Reactor,
}

impl Server {
    /// Listens at `address` in the name of `identity`; port 0 lets the system choose.
    ///
    /// # Errors
    /// [`EndpointError`] when the address is taken or the identity does not serve TLS.
    pub fn start(
        identity: &Identity,
        address: SocketAddr,
        settings: ServerSettings,
        service: Arc<dyn Service>,
        reactor: &Reactor,
    ) -> Result<Self, EndpointError> {
        let config = tls::server_config(identity, &settings.transport)?;
        let endpoint_config = tls::endpoint_config(identity, &settings.transport);
        let _entered = reactor.handle().enter();
        let socket = socket::bind(address, &settings.transport)?;
        let endpoint = quinn::Endpoint::new_with_abstract_socket(
            endpoint_config,
            Some(config.clone()),
            socket,
            Arc::new(TokioRuntime),
        )?;
        let local_address = endpoint.local_addr()?;

        let stopping = Shutdown::new();
        let acceptor = Acceptor::new(
            identity.copy(),
            config,
            Limits::new(settings),
            service,
            stopping.clone(),
            reactor.handle().clone(),
        );
        let accepting = acceptor.run(endpoint.clone());
        drop(stopping.tasks().spawn_on(reactor.handle(), "accept", accepting));
        let _reactor = reactor.clone();
        Ok(Self { endpoint, local_address, stopping, _reactor })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_address(&self) -> SocketAddr {
        self.local_address
    }

    /// Takes no new requests, lets those that run finish within `deadline`, then closes; tells
    /// whether all had finished.
    pub async fn drain(&self, deadline: Duration) -> bool {
        let drained = self.stopping.finish(deadline).await;
        self.endpoint.close(crate::link::CLOSED, b"the server stops");
        // Lets the last replies and the close leave the socket.
        let left = tokio::time::timeout(Duration::from_secs(1), self.endpoint.wait_idle()).await;
        drained == Drained::Cleanly && left.is_ok()
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stopping.begin("the server stops");
        self.endpoint.close(crate::link::CLOSED, b"the server stops");
    }
}

/// What [`Server::start`] can fail with besides TLS.
impl From<EndpointError> for io::Error {
    fn from(error: EndpointError) -> Self {
        match error {
            EndpointError::Socket(error) => error,
            error @ EndpointError::Tls(_) => Self::other(error),
        }
    }
}
