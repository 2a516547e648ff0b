//! Handshakes, admission and the streams of each connection.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_runtime::Shutdown;
use millrace_types::{ErrorKind, HostId};
use quinn::{Connection, Endpoint, Incoming, ServerConfig};
use tokio::{runtime::Handle, sync::OwnedSemaphorePermit};
use tracing::{debug, warn};

use super::{
    ConnectionContext, ConnectionId, Service,
    call::{self, Limits},
};
use crate::{
    endpoint::peer_identity,
    identity::{Identity, PeerIdentity},
    link::CLOSED,
    tls,
};

/// Refusals are logged at most this often; those between are counted.
const REFUSAL_LOG_INTERVAL: Duration = Duration::from_millis(200);

/// Takes connections in.
pub(super) struct Acceptor(Arc<Shared>);

struct Shared {
    identity: Identity,
    /// For peers on this host: datagrams of full size from the first packet on.
    loopback_config: Arc<ServerConfig>,
    limits: Limits,
    service: Arc<dyn Service>,
    stopping: Shutdown,
    handle: Handle,
    connections: Mutex<BTreeMap<HostId, usize>>,
    numbers: AtomicU64,
    refusals: Refusals,
}

impl Acceptor {
    pub(super) fn new(
        identity: Identity,
        config: ServerConfig,
        limits: Limits,
        service: Arc<dyn Service>,
        stopping: Shutdown,
        handle: Handle,
    ) -> Self {
        let mut loopback_config = config;
        let loopback = std::net::Ipv4Addr::LOCALHOST.into();
        let transport = tls::transport_config(&limits.settings.transport, Some(loopback));
        loopback_config.transport_config(transport);
        Self(Arc::new(Shared {
            identity,
            loopback_config: Arc::new(loopback_config),
            limits,
            service,
            stopping,
            handle,
            connections: Mutex::default(),
            numbers: AtomicU64::new(0),
            refusals: Refusals::default(),
        }))
    }

    /// Accepts until the server stops.
    pub(super) async fn run(self, endpoint: Endpoint) {
        let shared = self.0;
        loop {
            let incoming = tokio::select! {
                () = shared.stopping.draining() => return,
                incoming = endpoint.accept() => incoming,
            };
            let Some(incoming) = incoming else { return };
            let Ok(permit) = Arc::clone(&shared.limits.handshakes).try_acquire_owned() else {
                shared.refusals.log(incoming.remote_address(), "too many handshakes at a time");
                incoming.refuse();
                continue;
            };
            let serving = Arc::clone(&shared).serve(incoming, permit);
            drop(shared.stopping.tasks().spawn_on(&shared.handle, "connection", serving));
        }
    }
}

impl Shared {
    /// One connection from handshake to end.
    async fn serve(self: Arc<Self>, incoming: Incoming, handshake: OwnedSemaphorePermit) {
        let remote = incoming.remote_address();
        let connection = match self.shake_hands(incoming).await {
            Ok(connection) => connection,
            Err(reason) => return self.refusals.log(remote, &reason),
        };
        drop(handshake);
        let peer = match self.identify(&connection) {
            Ok(peer) => peer,
            Err(reason) => {
                connection.close(CLOSED, reason.as_bytes());
                return self.refusals.log(remote, &reason);
            }
        };
        let Some(_counted) = Counted::begin(&self, peer.host) else {
            connection.close(CLOSED, b"too many connections");
            return self.refusals.log(remote, "too many connections");
        };
        let id = ConnectionId(self.numbers.fetch_add(1, Ordering::Relaxed) + 1);
        let (slot, handle) = (Mutex::new(None), connection.clone());
        let context = Arc::new(ConnectionContext { id, peer, remote, connection: handle, slot });
        debug!(?context, "connected");
        self.service.connected(&context);
        self.serve_streams(&connection, &context).await;
        self.service.disconnected(&context);
        debug!(?context, "disconnected");
    }

    async fn shake_hands(&self, incoming: Incoming) -> Result<Connection, String> {
        let loopback = incoming.remote_address().ip().is_loopback();
        let connecting = if loopback {
            incoming.accept_with(Arc::clone(&self.loopback_config))
        } else {
            incoming.accept()
        };
        let connecting = connecting.map_err(|error| error.to_string())?;
        match tokio::time::timeout(self.limits.settings.handshake_timeout, connecting).await {
            Ok(connected) => connected.map_err(|error| format!("handshake failed: {error}")),
            Err(_) => Err("the handshake took too long".to_owned()),
        }
    }

    fn identify(&self, connection: &Connection) -> Result<PeerIdentity, String> {
        let peer = peer_identity(connection).ok_or("its certificate names no node")?;
        let cluster = self.identity.names().cluster;
        if peer.cluster != cluster {
            return Err(format!("it belongs to cluster {}, not to {cluster}", peer.cluster));
        }
        Ok(peer)
    }

    async fn serve_streams(&self, connection: &Connection, context: &Arc<ConnectionContext>) {
        loop {
            let stream = tokio::select! {
                () = self.stopping.draining() => return,
                stream = connection.accept_bi() => stream,
            };
            let Ok((send, receive)) = stream else { return };
            // Waiting here holds the peer back: it may only open so many streams.
            let requests = Arc::clone(&self.limits.requests);
            let Ok(permit) = requests.acquire_owned().await else { return };
            let (service, context) = (Arc::clone(&self.service), Arc::clone(context));
            let frame_timeout = self.limits.settings.frame_timeout;
            let request = async move {
                let served = call::serve(&*service, &context, (send, receive), frame_timeout).await;
                if let Err(refused) = served {
                    let kind =
                        refused.kind.map_or("unreadable", millrace_protocol::RequestKind::name);
                    warn!(peer = ?context, request = kind, "request refused: {}", refused.reason);
                    if refused.failure == ErrorKind::Protocol {
                        context.close("malformed frame");
                    }
                }
                drop(permit);
            };
            drop(self.stopping.tasks().spawn_on(&self.handle, "request", request));
        }
    }
}

/// A connection within the limits, for as long as it lives.
struct Counted {
    shared: Arc<Shared>,
    host: HostId,
}

impl Counted {
    fn begin(shared: &Arc<Shared>, host: HostId) -> Option<Self> {
        let settings = &shared.limits.settings;
        let mut connections = shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        let total: usize = connections.values().sum();
        let of_host = connections.get(&host).copied().unwrap_or(0);
        if total >= settings.connections_max || of_host >= settings.connections_per_host_max {
            return None;
        }
        connections.insert(host, of_host + 1);
        Some(Self { shared: Arc::clone(shared), host })
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        let mut connections =
            self.shared.connections.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = connections.get_mut(&self.host) {
            *count -= 1;
            if *count == 0 {
                connections.remove(&self.host);
            }
        }
    }
}

/// Says why a peer was refused, without letting it fill the log.
#[derive(Default)]
struct Refusals(Mutex<(Option<Instant>, u64)>);

impl Refusals {
    fn log(&self, remote: SocketAddr, reason: &str) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (last, unlogged) = &mut *state;
        if last.is_some_and(|last| last.elapsed() < REFUSAL_LOG_INTERVAL) {
            *unlogged += 1;
            return;
        }
        *last = Some(Instant::now());
        let unlogged = std::mem::take(unlogged);
        drop(state);
        warn!(%remote, unlogged, "peer refused: {reason}");
    }
}
