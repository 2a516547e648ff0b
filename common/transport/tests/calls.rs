//! Calls between a real client and a real server over loopback.

use std::{
    net::{Ipv4Addr, SocketAddr, UdpSocket},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bytes::Bytes;
use millrace_protocol::{
    RequestKind,
    cluster::{FetchKeys, FetchMap},
    session::{Hello, HelloReply},
    storage::{Sync, SyncReply},
};
use millrace_transport::{
    Authority, CallOptions, Endpoint, Identity, IncomingCall, Peer, PeerOptions, Reactor, Role,
    Server, ServerSettings, Service, TransportSettings,
};
use millrace_types::{
    ClusterId, ErrorKind, Failure, HostId, LogIndex, MapEpoch, TargetId, Timestamp,
};
use tokio::sync::Notify;

/// Answers Hello, sends a Sync's body back, and keeps FetchMap waiting until it is dropped.
#[derive(Default)]
struct Echo {
    dropped: Notify,
    served: AtomicUsize,
}

#[async_trait::async_trait]
impl Service for Echo {
    fn admits(&self, kind: RequestKind, role: Role) -> bool {
        kind != RequestKind::FetchKeys || role == Role::Target
    }

    async fn handle(&self, mut call: IncomingCall) {
        self.served.fetch_add(1, Ordering::Relaxed);
        match call.kind() {
            RequestKind::Hello => {
                let reply = hello_reply();
                call.reply::<Hello>(&reply).await;
            }
            RequestKind::Sync => match call.read_body().await {
                Ok(body) => call.reply_with::<Sync>(&SyncReply { loss_count: 5 }, &body).await,
                Err(failure) => call.fail(failure).await,
            },
            RequestKind::FetchMap => {
                let _told = Told(&self.dropped);
                std::future::pending::<()>().await;
            }
            _ => call.fail(Failure::new(ErrorKind::NotSupported, "not here")).await,
        }
    }
}

struct Told<'a>(&'a Notify);

impl Drop for Told<'_> {
    fn drop(&mut self) {
        self.0.notify_one();
    }
}

fn hello_reply() -> HelloReply {
    HelloReply {
        incarnation: 1,
        last_index: LogIndex(2),
        server_time: Timestamp(3),
        map_epoch: MapEpoch(4),
    }
}

struct World {
    authority: Authority,
    server_identity: Identity,
    echo: Arc<Echo>,
    reactor: Reactor,
}

const PATIENCE: Duration = Duration::from_secs(20);

impl World {
    fn new() -> Self {
        let authority = Authority::create(ClusterId([1; 16])).unwrap();
        let server_identity = identity(&authority, Role::Target, 9);
        let reactor = Reactor::start("client").unwrap();
        Self { authority, server_identity, echo: Arc::default(), reactor }
    }

    fn serve(&self, address: SocketAddr) -> Server {
        let reactor = Reactor::start("server").unwrap();
        let service: Arc<dyn Service> = Arc::clone(&self.echo) as _;
        let settings = ServerSettings::default();
        Server::start(&self.server_identity, address, settings, service, &reactor).unwrap()
    }

    fn peer(&self, identity: &Identity, address: SocketAddr) -> Peer {
        let endpoint =
            Endpoint::client(identity, TransportSettings::default(), &self.reactor).unwrap();
        let host = Some(HostId([9; 16]));
        Peer::new(endpoint, PeerOptions::new(Role::Target, host, vec![address]))
    }
}

fn identity(authority: &Authority, role: Role, host: u8) -> Identity {
    Identity::from_pem(&authority.issue(role, HostId([host; 16]), None, false).unwrap()).unwrap()
}

fn any_port() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

fn hello() -> Hello {
    Hello { seen_index: LogIndex(0) }
}

async fn try_hello(peer: &Peer) -> Result<HelloReply, Failure> {
    peer.call(&hello(), CallOptions::control(PATIENCE)).await
}

#[tokio::test]
async fn a_call_is_answered_and_a_megabyte_comes_back_as_it_went() {
    let world = World::new();
    let server = world.serve(any_port());
    let client = identity(&world.authority, Role::Client, 2);
    let peer = world.peer(&client, server.local_address());
    assert_eq!(try_hello(&peer).await, Ok(hello_reply()));

    let body: Vec<u8> = (0..1 << 20).map(|at: u32| at.to_le_bytes()[at as usize % 3]).collect();
    let body = Bytes::from(body);
    for _ in 0..64 {
        let request = Sync { target: TargetId([0; 8]) };
        let (reply, back) = peer
            .exchange(&request, std::slice::from_ref(&body), CallOptions::bulk(PATIENCE))
            .await
            .unwrap();
        assert_eq!(reply.loss_count, 5);
        assert_eq!(back.concat(), body);
    }
    assert!(server.drain(PATIENCE).await);
}

#[tokio::test]
async fn only_the_right_certificates_get_in() {
    let world = World::new();
    let server = world.serve(any_port());
    let address = server.local_address();

    let stranger = Authority::create(ClusterId([1; 16])).unwrap();
    let forged = identity(&stranger, Role::Client, 2);
    let refused = try_hello(&world.peer(&forged, address)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);

    let other = Authority::create(ClusterId([2; 16])).unwrap();
    let foreign = identity(&other, Role::Client, 2);
    let refused = try_hello(&world.peer(&foreign, address)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Unavailable);

    // A known peer may still not send what its role may not.
    let client = identity(&world.authority, Role::Client, 2);
    let peer = world.peer(&client, address);
    let refused = peer.call(&FetchKeys {}, CallOptions::control(PATIENCE)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::Forbidden);
    assert!(refused.message.contains("client"), "{refused}");

    // A server with another role is not the one that was asked for.
    let endpoint = Endpoint::client(&client, TransportSettings::default(), &world.reactor).unwrap();
    let wrong = Peer::new(endpoint, PeerOptions::new(Role::Metadata, None, vec![address]));
    assert_eq!(try_hello(&wrong).await.unwrap_err().kind, ErrorKind::Unavailable);
    assert_eq!(world.echo.served.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn garbage_on_the_port_harms_nothing() {
    let world = World::new();
    let server = world.serve(any_port());
    let socket = UdpSocket::bind(any_port()).unwrap();
    for seed in 0_u32..2000 {
        let len = 1 + (seed as usize * 7919) % 1400;
        let garbage: Vec<u8> =
            (0..len).map(|at| (seed.wrapping_mul(31) ^ at as u32).to_le_bytes()[0]).collect();
        socket.send_to(&garbage, server.local_address()).unwrap();
    }
    let client = identity(&world.authority, Role::Client, 2);
    assert!(try_hello(&world.peer(&client, server.local_address())).await.is_ok());
}

#[tokio::test]
async fn a_request_that_is_taken_back_is_dropped_at_the_server() {
    let world = World::new();
    let server = world.serve(any_port());
    let client = identity(&world.authority, Role::Client, 2);
    let peer = world.peer(&client, server.local_address());
    let request = FetchMap { held: MapEpoch(0) };
    let late = peer.call(&request, CallOptions::control(Duration::from_millis(300))).await;
    assert_eq!(late.unwrap_err().kind, ErrorKind::DeadlineExceeded);
    world.echo.dropped.notified().await;
}
