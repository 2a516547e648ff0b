//! A cluster's authority, a server whose service does what a request's numbers say, and peers of
//! it.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Barrier, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use async_trait::async_trait;
use bytes::Bytes;
use millrace_protocol::{
    RequestKind,
    metadata::SyncMetadata,
    session::{CloseSession, Done, Hello, HelloReply, RenewTicket, Role},
    target::{Presence, PresenceReply},
};
use millrace_runtime::Shutdown;
use millrace_transport::{
    Authority, Body, CallOptions, ClientEndpoints, Connection, Grant, Identity, IncomingCall, Peer,
    PeerTarget, Server, Service, TransportSettings,
};
use millrace_types::{
    ClusterId, ErrorKind, Failure, HostId, LogIndex, MapEpoch, SessionId, TargetId, Timestamp,
};
use tokio::sync::Semaphore;

pub(crate) const CLUSTER: ClusterId = ClusterId([0xc1; 16]);
pub(crate) const SERVER: HostId = HostId([0x5e; 16]);
/// Longer than anything that is not to fail takes, a close frame that gets lost included.
pub(crate) const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn authority() -> &'static Authority {
    static AUTHORITY: OnceLock<Authority> = OnceLock::new();
    AUTHORITY.get_or_init(|| Authority::create(CLUSTER).unwrap())
}

pub(crate) fn bundle(role: Role, host: HostId) -> String {
    authority().issue(&grant(role, host)).unwrap()
}

pub(crate) fn grant(role: Role, host: HostId) -> Grant {
    Grant { role, host, subtree: None, squash_root: false }
}

pub(crate) fn identity(role: Role, host: HostId) -> Identity {
    Identity::from_pem(&bundle(role, host)).unwrap()
}

/// What the service has seen.
#[derive(Default)]
pub(crate) struct Seen {
    pub(crate) cancelled: Events,
    pub(crate) waiting: Events,
    pub(crate) connected: Mutex<Vec<Arc<Connection>>>,
    pub(crate) disconnected: AtomicUsize,
    pub(crate) release: Meeting,
    pub(crate) body: Mutex<Option<Bytes>>,
}

/// Where two threads wait for each other.
pub(crate) struct Meeting(Barrier);

impl Default for Meeting {
    fn default() -> Self {
        Self(Barrier::new(2))
    }
}

impl Meeting {
    pub(crate) fn wait(&self) {
        self.0.wait();
    }
}

/// Counts events that a test waits for one by one.
pub(crate) struct Events(Semaphore);

impl Default for Events {
    fn default() -> Self {
        Self(Semaphore::new(0))
    }
}

impl Events {
    pub(crate) fn happened(&self) {
        self.0.add_permits(1);
    }

    pub(crate) async fn next(&self) {
        let permit = tokio::time::timeout(PATIENCE, self.0.acquire()).await;
        permit.expect("it happens in time").unwrap().forget();
    }
}

/// `Hello` greets, `Presence` echoes the body, `SyncMetadata` is never answered, `CloseSession`
/// waits until it is released, `OpenSession` drops the call, `FetchMap` when it is cancelled.
pub(crate) struct Echo {
    pub(crate) seen: Arc<Seen>,
}

#[async_trait]
impl Service for Echo {
    fn allowed_roles(&self) -> &[Role] {
        &[Role::Client, Role::Metadata]
    }

    fn admits(&self, role: Role, kind: RequestKind) -> bool {
        role == Role::Client || kind == RequestKind::Hello
    }

    async fn handle(&self, mut call: IncomingCall) {
        match call.kind() {
            RequestKind::Hello => match call.decode::<Hello>() {
                Ok(hello) => call.reply::<Hello>(&greeting(hello.seen_index)).await,
                Err(failure) => call.fail(failure).await,
            },
            RequestKind::Presence => match call.read_body().await {
                Ok(body) => {
                    *self.seen.body.lock().unwrap() = Some(body.clone().into_contiguous());
                    let reply = PresenceReply { present: vec![] };
                    call.reply_with_body::<Presence>(&reply, body).await;
                }
                Err(failure) => call.fail(failure).await,
            },
            RequestKind::SyncMetadata => {
                self.seen.waiting.happened();
                call.cancelled().cancelled().await;
                self.seen.cancelled.happened();
                std::future::pending::<()>().await;
            }
            RequestKind::CloseSession => {
                self.seen.waiting.happened();
                let seen = Arc::clone(&self.seen);
                drop(std::thread::spawn(move || {
                    seen.release.wait();
                    call.reply_detached::<CloseSession>(&Done::default());
                }));
            }
            RequestKind::OpenSession => drop(call),
            RequestKind::FetchMap => {
                self.seen.waiting.happened();
                call.cancelled().clone().cancelled().await;
            }
            _ => call.fail(ErrorKind::NotSupported).await,
        }
    }

    fn connected(&self, connection: &Arc<Connection>) {
        self.seen.connected.lock().unwrap().push(Arc::clone(connection));
    }

    fn disconnected(&self, _connection: &Arc<Connection>) {
        self.seen.disconnected.fetch_add(1, Ordering::SeqCst);
    }
}

pub(crate) fn greeting(last_index: LogIndex) -> HelloReply {
    HelloReply {
        incarnation: u64::from(std::process::id()),
        last_index,
        server_time: Timestamp(0),
        map_epoch: MapEpoch(1),
    }
}

pub(crate) fn hello(index: u64) -> Hello {
    Hello { seen_index: LogIndex(index) }
}

pub(crate) fn presence() -> Presence {
    Presence { target: TargetId([1; 8]), contents: vec![] }
}

pub(crate) fn close_session() -> CloseSession {
    CloseSession { session: SessionId(1) }
}

pub(crate) struct World {
    pub(crate) server: Server,
    pub(crate) seen: Arc<Seen>,
    pub(crate) shutdown: Shutdown,
}

pub(crate) fn world() -> World {
    world_with(patient())
}

/// For a busy machine, on which a handshake may take seconds.
pub(crate) fn patient() -> TransportSettings {
    TransportSettings {
        connect_timeout_ms: 20_000,
        handshake_timeout_ms: 20_000,
        idle_timeout_ms: 30_000,
        ..TransportSettings::default()
    }
}

/// For tests of QUIC itself.
pub(crate) fn over_quic() -> TransportSettings {
    TransportSettings { same_host_streams: 0, ..patient() }
}

/// Over the network, and past it.
pub(crate) fn both_ways() -> [TransportSettings; 2] {
    [over_quic(), patient()]
}

pub(crate) fn service() -> Arc<Echo> {
    Arc::new(Echo { seen: Arc::default() })
}

pub(crate) fn world_with(settings: TransportSettings) -> World {
    let (service, shutdown) = (service(), Shutdown::new());
    let seen = Arc::clone(&service.seen);
    let identity = identity(Role::Target, SERVER);
    let bind = SocketAddr::from(([127, 0, 0, 1], 0));
    let server = Server::start(&identity, bind, settings, service, &shutdown).unwrap();
    World { server, seen, shutdown }
}

impl World {
    pub(crate) fn target(&self) -> PeerTarget {
        target_at(self.server.local_addr())
    }

    /// A client of its own host.
    pub(crate) fn peer(&self) -> Peer {
        Peer::new(&endpoints(Role::Client), self.target())
    }

    pub(crate) async fn finish(self) {
        let drained = self.shutdown.finish(PATIENCE).await;
        assert_eq!(drained, millrace_runtime::Drained::Cleanly);
    }
}

pub(crate) fn target_at(address: SocketAddr) -> PeerTarget {
    PeerTarget { role: Role::Target, host: Some(SERVER), addresses: vec![address] }
}

pub(crate) fn endpoints(role: Role) -> ClientEndpoints {
    endpoints_of(identity(role, HostId([0xcc; 16])))
}

pub(crate) fn endpoints_of(identity: Identity) -> ClientEndpoints {
    ClientEndpoints::start(identity, patient(), &Shutdown::new()).unwrap()
}

/// For tests of what a client does in the time that it has by default.
pub(crate) fn endpoints_by_default(role: Role) -> ClientEndpoints {
    endpoints_with(role, TransportSettings::default())
}

pub(crate) fn endpoints_with(role: Role, settings: TransportSettings) -> ClientEndpoints {
    let identity = identity(role, HostId([0xcc; 16]));
    ClientEndpoints::start(identity, settings, &Shutdown::new()).unwrap()
}

pub(crate) fn soon() -> CallOptions {
    CallOptions::control(PATIENCE)
}

/// Sends a `Presence` with a body and checks what comes back.
pub(crate) async fn echo(peer: &Peer, body: Bytes) -> Result<(), Failure> {
    let options = CallOptions::bulk(PATIENCE);
    let (_, back) = peer.exchange(&presence(), body.clone(), options).await?;
    assert_eq!(back.checksum(), Body::from(body).checksum());
    Ok(())
}

/// A request that is never answered.
pub(crate) fn endless() -> SyncMetadata {
    SyncMetadata { index: LogIndex(0) }
}

/// A request that the service does not know.
pub(crate) fn renewal() -> RenewTicket {
    RenewTicket { session: SessionId(1) }
}
