//! Connections to the target daemons, for the requests by which they are put to work.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use millrace_protocol::{Request, cluster::Map, session::Role};
use millrace_transport::{CallOptions, ClientEndpoints, Peer, PeerTarget};
use millrace_types::{ErrorKind, Failure, HostId};

use crate::engine::Handle;

/// One peer a daemon, made at its first request. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Peers {
    engine: Handle,
    endpoints: ClientEndpoints,
    known: Arc<Mutex<HashMap<HostId, Peer>>>,
}

impl Peers {
    /// No peer is known yet.
    #[must_use]
    pub fn new(engine: Handle, endpoints: ClientEndpoints) -> Self {
        Self { engine, endpoints, known: Arc::default() }
    }

    /// The cluster map; everything in it is synced.
    ///
    /// # Errors
    /// When the engine has stopped or the log's disk failed.
    pub async fn map(&self) -> Result<Arc<Map>, Failure> {
        let (map, index) = self.engine.turn(|core| Ok(core.map())).await?;
        self.engine.synced(index).await?;
        Ok(map)
    }

    /// Asks a daemon; transient failures are tried again until the timeout.
    ///
    /// # Errors
    /// The daemon's own; [`ErrorKind::NotFound`] for one that never registered.
    pub async fn ask<R: Request + Sync>(
        &self,
        host: HostId,
        request: &R,
        timeout: Duration,
    ) -> Result<R::Reply, Failure> {
        let peer = self.peer(host).await?;
        peer.call_until(request, CallOptions::control(timeout)).await
    }

    async fn peer(&self, host: HostId) -> Result<Peer, Failure> {
        let map = self.map().await?;
        let unknown =
            || Failure::new(ErrorKind::NotFound, format!("no target daemon has the id {host}"));
        let known = map.hosts.iter().find(|known| known.id == host).ok_or_else(unknown)?;
        let addresses: Vec<SocketAddr> =
            known.addresses.iter().filter_map(|address| address.parse().ok()).collect();
        let mut peers = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let peer = peers.entry(host).or_insert_with(|| {
            let target =
                PeerTarget { role: Role::Target, host: Some(host), addresses: addresses.clone() };
            Peer::new(&self.endpoints, target)
        });
        peer.set_addresses(addresses);
        Ok(peer.clone())
    }
}
