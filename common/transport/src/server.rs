//! The listening side: connections are admitted, requests are read, checked and handed to a
//! service.
//!
//! A peer passes three gates: TLS (a certificate of this cluster), the roles that the service
//! allows at all, and [`Service::admits`] for each request. Every refusal is one WARN line with the
//! peer's address and the reason, at most ten lines a second.
//!
//! # Bounds
//! Handshakes under way, connections in all and for each host, requests for each connection, the
//! time to send a message, the length of a message and the memory for unread bytes are all limited
//! by [`TransportSettings`]; for [peers of this host](crate::TransportSettings::same_host_streams)
//! the buffers of local sockets take the place of windows. Only header and message are read before
//! the service is asked. A body is read when the service asks for it; until then QUIC's flow
//! control keeps all but `stream_window_bytes` of it at the sender. Windows are shared out so that
//! all connections together fit `receive_budget_bytes`, and so that requests whose bodies nobody
//! reads yet can never use up the window that the others need.
//!
//! # Threads
//! [`Service::handle`] runs on the single thread of the socket that the request came from. It must
//! never block; long work goes to another thread, from which [`IncomingCall`] can be answered too.

use std::{
    fmt, io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    os::unix::net::UnixListener as StdListener,
    sync::Arc,
};

use async_trait::async_trait;
use millrace_protocol::{RequestKind, session::Role};
use millrace_runtime::Shutdown;
use rustix::io::Errno;
use tokio_util::sync::CancellationToken;

use crate::{
    Identity, TransportSettings,
    endpoint::{Endpoint, EndpointParts},
    same_host::HostSocket,
    settings::SettingsError,
    socket::Sharing,
    tls::{self, ServerKeys, TlsError},
};

mod acceptor;
mod admission;
mod call;
mod connection;
mod refusals;
mod request;

use acceptor::Acceptor;
pub use call::{EncodedReply, IncomingCall};
pub use connection::{Connection, ConnectionId};

/// What a server does with requests.
#[async_trait]
pub trait Service: Send + Sync + 'static {
    /// Peers of other roles are not let in.
    fn allowed_roles(&self) -> &[Role];

    /// Whether a peer of this role may send this request.
    fn admits(&self, role: Role, kind: RequestKind) -> bool;

    /// Answers one request.
    ///
    /// The call may be kept and answered after this has returned. A call that is dropped without an
    /// answer is answered [`Internal`](millrace_types::ErrorKind::Internal). This future is not
    /// dropped before its end, except when the server has stopped; when the caller gives up,
    /// [`IncomingCall::cancelled`] says so.
    async fn handle(&self, call: IncomingCall);

    /// A peer has been let in; comes before its first request.
    fn connected(&self, _connection: &Arc<Connection>) {}

    /// A connection has ended. Requests of it may still be at work; all are cancelled.
    fn disconnected(&self, _connection: &Arc<Connection>) {}
}

/// A running server. It goes on when this handle is dropped; only shutdown ends it.
pub struct Server {
    local: SocketAddr,
    acceptor: Arc<Acceptor>,
}

impl Server {
    /// Binds `bind` and serves until `shutdown`: from then on no connection and no request is let
    /// in, those at work are finished, and the connections are closed.
    ///
    /// Port 0 takes a free one. On a host without IPv6 `[::]` is all addresses of IPv4.
    ///
    /// # Errors
    /// [`ServerError`] when a setting is out of range, the identity is unusable or the address
    /// cannot be bound.
    pub fn start(
        identity: &Identity,
        bind: SocketAddr,
        settings: TransportSettings,
        service: Arc<dyn Service>,
        shutdown: &Shutdown,
    ) -> Result<Self, ServerError> {
        settings.check()?;
        let keys = ServerKeys::derive(identity);
        let (same_host, listener) = same_host_socket(&settings).unzip();
        let tls = tls::server(identity)?;
        let acceptor = Acceptor::new(tls, &settings, service, shutdown, same_host.clone());
        let open = |bind: SocketAddr, sharing: Sharing| {
            let parts = EndpointParts {
                bind,
                sharing,
                config: keys.endpoint_config(),
                server: Some(acceptor.base_config()),
                stopped: CancellationToken::new(),
            };
            Endpoint::start("quic-server", parts, &settings)
        };
        let mut local = bind;
        let mut socket = same_host.zip(listener);
        for nth in 0..settings.server_sockets {
            let sharing = match (settings.server_sockets, nth) {
                (1, _) => Sharing::Alone,
                (_, 0) => Sharing::First,
                _ => Sharing::Further,
            };
            let opened = open(local, sharing).or_else(|error| match second_choice(local, &error) {
                Some(second) => open(second, sharing),
                None => Err(error),
            });
            let endpoint = opened.map_err(|source| ServerError::Bind { bind, source })?;
            local = endpoint
                .quic()
                .local_addr()
                .map_err(|source| ServerError::Bind { bind, source })?;
            let runtime = endpoint.runtime().clone();
            if let Some((socket, listener)) = socket.take() {
                let (acceptor, shutdown_too) = (Arc::clone(&acceptor), shutdown.clone());
                let serve = move |connection, stream| {
                    request::serve_stream(Arc::clone(&acceptor), connection, stream)
                };
                let serve = socket.serve(listener, shutdown_too, serve);
                drop(shutdown.tasks().spawn_on(&runtime, "local streams", serve));
            }
            let serve = Arc::clone(&acceptor).serve(endpoint);
            drop(shutdown.tasks().spawn_on(&runtime, "quic server", serve));
        }
        Ok(Self { local, acceptor })
    }

    /// Where it listens.
    #[must_use]
    pub fn local_addr(&self) -> SocketAddr {
        self.local
    }

    /// How many peers are connected.
    #[must_use]
    pub fn connection_count(&self) -> usize {
        self.acceptor.connection_count()
    }
}

impl fmt::Debug for Server {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Server").field(&self.local).finish()
    }
}

/// The socket through which peers of this host get past the network, unless there is to be none.
fn same_host_socket(
    settings: &TransportSettings,
) -> Option<(Arc<HostSocket<Connection>>, StdListener)> {
    let streams_max = usize::from(settings.same_host_streams);
    let bound =
        (streams_max > 0).then(|| HostSocket::bind(streams_max, settings.send_budget_bytes))?;
    match bound {
        Ok((socket, listener)) => Some((Arc::new(socket), listener)),
        Err(error) => {
            tracing::warn!(%error, "no local socket: peers of this host use the network");
            None
        }
    }
}

/// Where to listen instead when `bind` has failed with `error`: on a host that knows no IPv6, all
/// of its addresses are those of IPv4.
fn second_choice(bind: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    let is_all = matches!(bind.ip(), IpAddr::V6(ip) if ip.is_unspecified());
    let is_unknown = Errno::from_io_error(error) == Some(Errno::AFNOSUPPORT);
    (is_all && is_unknown).then(|| SocketAddr::new(Ipv4Addr::UNSPECIFIED.into(), bind.port()))
}

/// A server cannot start.
#[derive(Debug, thiserror::Error)]
pub enum ServerError {
    /// A setting is out of its range.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The identity is unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The address cannot be bound.
    #[error("cannot listen on {bind}: {source}")]
    Bind {
        /// Which address.
        bind: SocketAddr,
        /// Why.
        source: io::Error,
    },
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_ipv6_all_addresses_are_those_of_ipv4() {
        let second = |bind: &str, error: Errno| {
            second_choice(bind.parse().unwrap(), &error.into()).map(|second| second.to_string())
        };
        assert_eq!(second("[::]:1", Errno::AFNOSUPPORT).as_deref(), Some("0.0.0.0:1"));
        for (bind, error) in [
            ("[::]:1", Errno::ADDRINUSE),
            ("[::1]:1", Errno::AFNOSUPPORT),
            ("0.0.0.0:1", Errno::AFNOSUPPORT),
            ("10.0.0.1:1", Errno::AFNOSUPPORT),
        ] {
            assert_eq!(second(bind, error), None, "{bind}: {error}");
        }
    }
}
