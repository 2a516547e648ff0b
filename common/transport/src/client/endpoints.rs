//! The sockets from which a node dials, shared by all its peers.

use std::{
    fmt, io,
    net::{Ipv6Addr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use futures::future::join_all;
use millrace_protocol::session::Role;
use millrace_runtime::{Random, Shutdown};
use quinn::{ClientConfig, EndpointConfig, crypto::rustls::QuicClientConfig};
use tokio_util::sync::CancellationToken;

use super::{Lane, spread::CONNECTIONS_MAX};
use crate::{
    Identity, TransportSettings,
    endpoint::{CLOSE_PAUSE, Endpoint, EndpointParts, transport_config},
    failure::CloseCode,
    identity::server_name,
    settings::SettingsError,
    socket::Sharing,
    tls::{self, TlsError},
    windows::WindowShares,
};

/// One socket for control and one or more for bulk, each with its thread. Cheap to clone.
#[derive(Clone)]
pub struct ClientEndpoints(Arc<Shared>);

struct Shared {
    identity: Identity,
    tls: Arc<QuicClientConfig>,
    settings: TransportSettings,
    control: Endpoint,
    bulk: Vec<Endpoint>,
    /// Peers so far.
    peers: AtomicUsize,
    windows: WindowShares,
    random: Random,
}

impl ClientEndpoints {
    /// Opens the sockets and starts their threads, which end when the last clone is dropped or
    /// `shutdown` has stopped.
    ///
    /// # Errors
    /// [`ClientError`] when a setting is out of range, the identity is unusable, or the operating
    /// system refuses a socket or thread.
    pub fn start(
        identity: Identity,
        settings: TransportSettings,
        shutdown: &Shutdown,
    ) -> Result<Self, ClientError> {
        settings.check()?;
        let tls = Arc::new(tls::client(&identity)?);
        let stopped = CancellationToken::new();
        let open = |name| {
            let parts = |bind: SocketAddr| EndpointParts {
                bind,
                sharing: Sharing::Alone,
                config: EndpointConfig::default(),
                server: None,
                stopped: stopped.clone(),
            };
            // A socket of both families where there is IPv6, else one of IPv4.
            Endpoint::start(name, parts((Ipv6Addr::UNSPECIFIED, 0).into()), &settings)
                .or_else(|_| Endpoint::start(name, parts(([0, 0, 0, 0], 0).into()), &settings))
        };
        let control = open("quic-control")?;
        let bulk = (0..settings.bulk_sockets)
            .map(|_| open("quic-bulk"))
            .collect::<io::Result<Vec<_>>>()?;
        let shutdown = shutdown.clone();
        drop(control.runtime().spawn(async move {
            shutdown.stopped().await;
            stopped.cancel();
        }));
        Ok(Self(Arc::new(Shared {
            identity,
            tls,
            windows: WindowShares::of_client(&settings),
            settings,
            control,
            bulk,
            peers: AtomicUsize::new(0),
            random: Random::system(),
        })))
    }

    /// Who this node is.
    #[must_use]
    pub fn identity(&self) -> &Identity {
        &self.0.identity
    }

    /// The runtime that drives control connections. Work that runs there and asks over
    /// [`Lane::Control`] saves a change of threads for each request.
    #[must_use]
    pub fn control_runtime(&self) -> &tokio::runtime::Handle {
        self.0.control.runtime()
    }

    /// The same for the first socket of [`Lane::Bulk`].
    #[must_use]
    pub fn bulk_runtime(&self) -> &tokio::runtime::Handle {
        self.0.bulk.first().unwrap_or(&self.0.control).runtime()
    }

    /// Closes every connection and waits until the peers have been told, at most 200 ms. For
    /// programs that end: otherwise servers keep the connections until their idle timeout.
    pub async fn close(&self) {
        let endpoints = || self.0.bulk.iter().chain([&self.0.control]);
        endpoints().for_each(|endpoint| endpoint.quic().close(CloseCode::Done.code(), b""));
        let told = endpoints().map(|endpoint| endpoint.quic().wait_idle());
        drop(tokio::time::timeout(CLOSE_PAUSE, join_all(told)).await);
    }

    pub(super) fn settings(&self) -> &TransportSettings {
        &self.0.settings
    }

    pub(super) fn windows(&self) -> &WindowShares {
        &self.0.windows
    }

    pub(super) fn random(&self) -> &Random {
        &self.0.random
    }

    /// The sockets in the order in which a new peer takes them: each begins with another one, so
    /// that a connection to each of many peers keeps all threads at work.
    pub(super) fn bulk_order(&self) -> impl Iterator<Item = usize> + use<> {
        let count = self.0.bulk.len();
        let first = self.0.peers.fetch_add(1, Ordering::Relaxed);
        (0..count.min(CONNECTIONS_MAX)).map(move |nth| (first + nth) % count)
    }

    pub(super) fn endpoint(&self, lane: Lane, index: usize) -> &Endpoint {
        match lane {
            Lane::Control => &self.0.control,
            Lane::Bulk => &self.0.bulk[index],
        }
    }

    /// How to dial a peer at `address`.
    pub(super) fn config(&self, address: SocketAddr) -> ClientConfig {
        let mut config = ClientConfig::new(self.0.tls.clone());
        let transport = transport_config(&self.0.settings, address, &self.0.windows.least());
        config.transport_config(Arc::new(transport));
        config
    }

    /// The name that a server of our cluster must prove.
    pub(super) fn server_name(&self, role: Role) -> String {
        server_name(self.0.identity.peer().cluster, role)
    }
}

impl fmt::Debug for ClientEndpoints {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ClientEndpoints").field(&self.0.identity).finish()
    }
}

/// A node cannot dial.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// A setting is out of its range.
    #[error(transparent)]
    Settings(#[from] SettingsError),
    /// The identity is unusable.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// No socket or thread.
    #[error("cannot open a socket: {0}")]
    Socket(#[from] io::Error),
}
