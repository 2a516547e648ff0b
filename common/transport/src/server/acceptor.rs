//! Lets connections in and takes their requests.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use millrace_protocol::version::ProtocolVersion;
use millrace_runtime::Shutdown;
use quinn::{ConnectionError, Incoming, ServerConfig, crypto::rustls::QuicServerConfig};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio_util::task::TaskTracker;

use super::{Connection, ConnectionId, Service, admission::Admission, refusals::Refusals, request};
use crate::{
    PeerIdentity, TransportSettings,
    endpoint::{CLOSE_PAUSE, Endpoint, transport_config},
    failure::{self, CloseCode},
    identity::of_connection,
    same_host::HostSocket,
    stream::{FrameReader, FrameSender, negotiated},
    windows::WindowShares,
};
use millrace_protocol::same_host::FoundSocket;

/// The state that all sockets of one server share.
pub(super) struct Acceptor {
    pub(super) service: Arc<dyn Service>,
    pub(super) refusals: Refusals,
    pub(super) shutdown: Shutdown,
    pub(super) message_timeout: Duration,
    handshake_timeout: Duration,
    handshakes: Arc<Semaphore>,
    handshakes_max: usize,
    admission: Admission,
    windows: WindowShares,
    local_config: Arc<ServerConfig>,
    remote_config: Arc<ServerConfig>,
    pub(super) requests: TaskTracker,
    next_id: AtomicU64,
    /// Where peers of this host get past the network.
    same_host: Option<Arc<HostSocket<Connection>>>,
}

impl Acceptor {
    pub(super) fn new(
        tls: QuicServerConfig,
        settings: &TransportSettings,
        service: Arc<dyn Service>,
        shutdown: &Shutdown,
        same_host: Option<Arc<HostSocket<Connection>>>,
    ) -> Arc<Self> {
        let windows = WindowShares::of_server(settings);
        let handshakes_max = settings.handshakes_max as usize;
        let mut base = ServerConfig::with_crypto(Arc::new(tls));
        base.max_incoming(handshakes_max)
            .incoming_buffer_size(INCOMING_BUFFER)
            .incoming_buffer_size_total(INCOMING_BUFFER_TOTAL);
        let config = |peer: SocketAddr| {
            let mut config = base.clone();
            let transport = transport_config(settings, peer, &windows.least());
            config.transport_config(Arc::new(transport));
            Arc::new(config)
        };
        let connections_max = windows.members_max().min(settings.connections_max as usize);
        Arc::new(Self {
            local_config: config(([127, 0, 0, 1], 0).into()),
            remote_config: config(([0, 0, 0, 0], 0).into()),
            handshakes: Arc::new(Semaphore::new(handshakes_max)),
            admission: Admission::new(connections_max, settings.connections_per_host_max as usize),
            service,
            refusals: Refusals::default(),
            shutdown: shutdown.clone(),
            message_timeout: settings.message_timeout(),
            handshake_timeout: settings.handshake_timeout(),
            handshakes_max,
            windows,
            requests: TaskTracker::new(),
            next_id: AtomicU64::new(1),
            same_host,
        })
    }

    /// What an endpoint is opened with; each connection then gets what suits its peer.
    pub(super) fn base_config(&self) -> ServerConfig {
        self.remote_config.as_ref().clone()
    }

    pub(super) fn connection_count(&self) -> usize {
        self.admission.count()
    }

    /// Where a peer of this host gets past the network. `None`: it is none, or there is no way.
    pub(super) fn show_socket(&self, connection: &Arc<Connection>) -> Option<FoundSocket> {
        let socket = self.same_host.as_ref().filter(|_| connection.is_of_this_host())?;
        Some(socket.show(connection))
    }

    /// Serves one socket until shutdown.
    pub(super) async fn serve(self: Arc<Self>, endpoint: Endpoint) {
        loop {
            let incoming = tokio::select! {
                biased;
                () = self.shutdown.draining() => break,
                incoming = endpoint.quic().accept() => incoming,
            };
            match incoming {
                Some(incoming) => self.admit(incoming),
                None => break,
            }
        }
        self.requests.close();
        tokio::select! {
            () = self.requests.wait() => {}
            () = self.shutdown.stopped() => {}
        }
        // For answers that were written just before the shutdown began.
        tokio::time::sleep(DELIVERY_PAUSE).await;
        let why = b"the server shuts down";
        endpoint.quic().close(CloseCode::Shutdown.code(), why);
        drop(tokio::time::timeout(CLOSE_PAUSE, endpoint.quic().wait_idle()).await);
    }

    /// Begins a handshake, unless too many are under way.
    fn admit(self: &Arc<Self>, incoming: Incoming) {
        let remote = incoming.remote_address();
        let Ok(permit) = Arc::clone(&self.handshakes).try_acquire_owned() else {
            self.refusals.warn(remote, "too many handshakes under way");
            return incoming.refuse();
        };
        let crowded = self.handshakes.available_permits() < self.handshakes_max / 2;
        if crowded && incoming.may_retry() {
            // The peer must prove its address before it costs us a handshake.
            return drop(incoming.retry());
        }
        let local = remote.ip().to_canonical().is_loopback();
        let config = match local {
            true => Arc::clone(&self.local_config),
            false => Arc::clone(&self.remote_config),
        };
        let acceptor = Arc::clone(self);
        drop(tokio::spawn(async move {
            match acceptor.handshake(incoming, config, permit).await {
                Ok((quic, version, peer)) => acceptor.connection(quic, version, peer).await,
                Err(Some(why)) => acceptor.refusals.warn(remote, &why),
                Err(None) => {}
            }
        }));
    }

    /// Finishes a handshake and looks at the certificate. Fails with the reason, if it is a
    /// refusal.
    async fn handshake(
        &self,
        incoming: Incoming,
        config: Arc<ServerConfig>,
        _permit: OwnedSemaphorePermit,
    ) -> Result<(quinn::Connection, ProtocolVersion, PeerIdentity), Option<String>> {
        let refusal = |error: ConnectionError| {
            let why = failure::handshake_refusal(&error);
            if why.is_none() {
                tracing::debug!(%error, "handshake not finished");
            }
            why
        };
        let connecting = incoming.accept_with(config).map_err(refusal)?;
        let quic = tokio::time::timeout(self.handshake_timeout, connecting)
            .await
            .map_err(|_| Some("the handshake takes too long".to_owned()))?
            .map_err(refusal)?;
        let refuse = |why: String| {
            quic.close(CloseCode::Refused.code(), why.as_bytes());
            Some(why)
        };
        let version = negotiated(&quic).map_err(|failure| refuse(failure.message))?;
        let peer = of_connection(&quic).map_err(|failure| refuse(failure.message))?;
        if !self.service.allowed_roles().contains(&peer.role) {
            let role = peer.role.name();
            return Err(refuse(format!("peers of role {role} are not served here")));
        }
        Ok((quic, version, peer))
    }

    /// Serves a connection until it ends.
    async fn connection(
        self: &Arc<Self>,
        quic: quinn::Connection,
        version: ProtocolVersion,
        peer: PeerIdentity,
    ) {
        let remote = quic.remote_address();
        let _admitted = match self.admission.enter(peer.role, peer.host) {
            Ok(admitted) => admitted,
            Err(why) => {
                quic.close(CloseCode::Limit.code(), why.as_bytes());
                return self.refusals.warn(remote, why);
            }
        };
        let id = ConnectionId(self.next_id.fetch_add(1, Ordering::Relaxed));
        let _share = self.windows.join(&quic);
        let connection = Arc::new(Connection::new(
            id,
            quic.clone(),
            version,
            peer,
            self.admission.crowd(),
            self.same_host.as_ref().map_or(0, |socket| socket.streams_max()),
        ));
        tracing::debug!(%id, %remote, role = connection.peer().role.name(), "peer connected");
        self.service.connected(&connection);
        let ended = loop {
            match quic.accept_bi().await {
                Ok((send, receive)) => {
                    let (acceptor, connection) = (Arc::clone(self), Arc::clone(&connection));
                    let reader = FrameReader::new(receive, connection.version());
                    let sender = FrameSender::Quic(send);
                    let serve = request::serve(acceptor, connection, sender, reader);
                    drop(self.requests.spawn(serve));
                }
                Err(ended) => break ended,
            }
        };
        tracing::debug!(%id, %remote, %ended, "peer disconnected");
        connection.end_streams();
        if let Some(socket) = &self.same_host {
            socket.forget(&connection);
        }
        self.service.disconnected(&connection);
    }
}

/// What a peer may send before its handshake is begun.
const INCOMING_BUFFER: u64 = 64 * 1024;
const INCOMING_BUFFER_TOTAL: u64 = 8 * 1024 * 1024;

/// What the endpoint has taken, it sends within microseconds; a lost packet is sent again within
/// a few milliseconds.
const DELIVERY_PAUSE: Duration = Duration::from_millis(20);
