//! Who is not let in, and that knocking harms nobody.

use std::{
    fmt::Write as _,
    io,
    net::{SocketAddr, UdpSocket},
    sync::{Arc, Mutex, OnceLock},
    time::{Duration, Instant, SystemTime},
};

use millrace_protocol::session::Role;
use millrace_runtime::Shutdown;
use millrace_transport::{Authority, Identity, Peer, Server, TransportSettings};
use millrace_types::{ClusterId, ErrorKind, HostId};
use tracing_subscriber::fmt::MakeWriter;

use crate::{
    raw::RawClient,
    world::{
        CLUSTER, PATIENCE, SERVER, World, authority, bundle, endpoints, endpoints_of, grant, hello,
        identity, patient, presence, service, soon, target_at, world, world_with,
    },
};

/// Everything that is logged by this process.
#[derive(Clone, Default)]
struct Log(Arc<Mutex<String>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(bytes);
        self.0.lock().unwrap().write_str(&text).unwrap();
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl MakeWriter<'_> for Log {
    type Writer = Self;

    fn make_writer(&self) -> Self {
        self.clone()
    }
}

fn log() -> &'static Log {
    static LOG: OnceLock<Log> = OnceLock::new();
    LOG.get_or_init(|| {
        let log = Log::default();
        tracing_subscriber::fmt()
            .with_max_level(tracing::Level::WARN)
            .with_ansi(false)
            .with_writer(log.clone())
            .init();
        log
    })
}

/// Waits for a WARN line that has all of `words`.
async fn logged(words: &[&str]) {
    let begun = Instant::now();
    loop {
        let text = log().0.lock().unwrap().clone();
        let has = |line: &str| words.iter().all(|word| line.contains(word));
        if text.lines().any(|line| line.contains("WARN") && has(line)) {
            return;
        }
        assert!(begun.elapsed() < PATIENCE, "no line with {words:?} in:\n{text}");
        tokio::task::yield_now().await;
    }
}

async fn still_serves(world: &World) {
    world.peer().call(&hello(9), soon()).await.unwrap();
}

#[tokio::test]
async fn a_peer_without_a_certificate_is_refused_with_a_log_line() {
    log();
    let world = world();
    let client = RawClient::without_certificate();
    let connection = client.connect(world.server.local_addr()).await.unwrap();
    // TLS 1.3: the client learns of it with the first thing that it reads.
    connection.closed().await;
    let remote = client.local_addr().port().to_string();
    logged(&["peer refused", "shows no certificate", &remote]).await;
    still_serves(&world).await;
}

/// A node certificate of theirs that trusts our authority.
fn with_our_authority(theirs: &str) -> String {
    let begin = "-----BEGIN CERTIFICATE-----";
    let ours = bundle(Role::Client, HostId([3; 16]));
    theirs[..theirs.rfind(begin).unwrap()].to_owned() + &ours[ours.rfind(begin).unwrap()..]
}

#[tokio::test]
async fn a_peer_of_another_cluster_is_refused_on_both_sides() {
    log();
    let world = world();
    // One authority has the same cluster id but another key, the other has another id.
    for cluster in [CLUSTER, ClusterId([9; 16])] {
        let theirs = Authority::create(cluster).unwrap();
        let theirs = theirs.issue(&grant(Role::Client, HostId([3; 16]))).unwrap();
        let mixed = with_our_authority(&theirs);
        let client = RawClient::with_certificate(&mixed);
        let connection = client.connect(world.server.local_addr()).await.unwrap();
        connection.closed().await;
        let remote = client.local_addr().port().to_string();
        logged(&["peer refused", "certificate is of another cluster", &remote]).await;
        if cluster == CLUSTER {
            let endpoints = endpoints_of(Identity::from_pem(&mixed).unwrap());
            let peer = Peer::new(&endpoints, world.target());
            let failure = peer.call(&hello(1), soon()).await.unwrap_err();
            assert_eq!(failure.kind, ErrorKind::Forbidden, "{failure}");
        }
    }

    // A client of another cluster does not accept the server.
    let other = Authority::create(ClusterId([9; 16])).unwrap();
    let other = other.issue(&grant(Role::Client, HostId([3; 16]))).unwrap();
    let endpoints = endpoints_of(Identity::from_pem(&other).unwrap());
    let peer = Peer::new(&endpoints, world.target());
    let failure = peer.call(&hello(1), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Forbidden, "{failure}");
    still_serves(&world).await;
}

/// A node's identity from a host whose clock is years wrong: its time is over, or not yet come.
fn outside_of_their_time(role: Role, host: HostId) -> [Identity; 2] {
    let (now, year) = (SystemTime::now(), Duration::from_secs(366 * 24 * 60 * 60));
    [now - 11 * year, now + year].map(|made| {
        let bundle = authority().issue_at(&grant(role, host), made).unwrap();
        Identity::from_pem(&bundle).unwrap()
    })
}

#[tokio::test]
async fn a_certificate_outside_of_its_time_is_one_to_wait_for_on_both_sides() {
    log();
    let world = world();
    for identity in outside_of_their_time(Role::Client, HostId([7; 16])) {
        let endpoints = endpoints_of(identity);
        let peer = Peer::new(&endpoints, world.target());
        let failure = peer.call(&hello(1), soon()).await.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Unavailable, "{failure}");
        assert!(failure.message.contains("do the hosts' clocks agree?"), "{failure}");
    }
    still_serves(&world).await;

    let client = endpoints(Role::Client);
    for identity in outside_of_their_time(Role::Target, SERVER) {
        let (bind, shutdown) = (SocketAddr::from(([127, 0, 0, 1], 0)), Shutdown::new());
        let server = Server::start(&identity, bind, patient(), service(), &shutdown).unwrap();
        let peer = Peer::new(&client, target_at(server.local_addr()));
        let failure = peer.call(&hello(1), soon()).await.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Unavailable, "{failure}");
        assert!(failure.message.contains("the peer's certificate is refused"), "{failure}");
    }
}

#[tokio::test]
async fn a_role_that_is_not_served_is_refused_with_a_log_line() {
    log();
    let world = world();
    let peer = Peer::new(&endpoints(Role::Admin), world.target());
    let failure = peer.call(&hello(1), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Forbidden, "{failure}");
    assert!(failure.message.contains("role admin"), "{failure}");
    logged(&["peer refused", "role admin are not served here"]).await;
}

#[tokio::test]
async fn a_request_that_the_role_may_not_send_is_refused_with_a_log_line() {
    log();
    let world = world();
    let peer = Peer::new(&endpoints(Role::Metadata), world.target());
    peer.call(&hello(1), soon()).await.unwrap();
    let failure = peer.call(&presence(), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Forbidden, "{failure}");
    logged(&["role metadata may not send Presence"]).await;
    peer.call(&hello(1), soon()).await.unwrap();
}

#[tokio::test]
async fn a_server_of_another_role_or_host_is_not_talked_to() {
    let world = world();
    let mut target = world.target();
    target.role = Role::Metadata;
    let peer = Peer::new(&endpoints(Role::Client), target);
    let failure = peer.call(&hello(1), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Forbidden, "{failure}");
    let mut target = world.target();
    target.host = Some(HostId([0xee; 16]));
    let peer = Peer::new(&endpoints(Role::Client), target);
    let failure = peer.call(&hello(1), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Unavailable, "{failure}");
}

#[tokio::test]
async fn garbage_datagrams_harm_nothing() {
    let world = world();
    let peer = world.peer();
    peer.call(&hello(1), soon()).await.unwrap();
    let socket = UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut state = 1_u32;
    for len in 0..1400_u32 {
        let garbage: Vec<u8> = (0..len)
            .map(|_| {
                state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                state.to_be_bytes()[0]
            })
            .collect();
        socket.send_to(&garbage, world.server.local_addr()).unwrap();
    }
    peer.call(&hello(2), soon()).await.unwrap();
    assert_eq!(peer.connection_number(), 1);
    still_serves(&world).await;
}

#[tokio::test]
async fn a_garbage_frame_is_answered_and_its_connection_goes_on() {
    log();
    let world = world();
    let client = RawClient::with_certificate(&bundle(Role::Client, HostId([5; 16])));
    let connection = client.connect(world.server.local_addr()).await.unwrap();
    for garbage in [&[0x55; 64][..], &[0x4d; 10], b"MRF1", b""] {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(garbage).await.unwrap();
        send.finish().unwrap();
        let answer = receive.read_to_end(4096).await.unwrap();
        assert_eq!(answer[10], 3, "a failure");
        let kind = u16::from_le_bytes([answer[12], answer[13]]);
        assert_eq!(kind, ErrorKind::Protocol.code());
    }
    logged(&["peer refused", "malformed frame", "magic"]).await;
    assert!(connection.close_reason().is_none());
    still_serves(&world).await;
}

#[tokio::test]
async fn a_message_that_never_ends_is_given_up() {
    log();
    let world = world_with(TransportSettings { message_timeout_ms: 200, ..patient() });
    let client = RawClient::with_certificate(&bundle(Role::Client, HostId([6; 16])));
    let connection = client.connect(world.server.local_addr()).await.unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(&[1; 10]).await.unwrap();
    let answer = receive.read_to_end(4096).await.unwrap();
    let kind = u16::from_le_bytes([answer[12], answer[13]]);
    assert_eq!(kind, ErrorKind::DeadlineExceeded.code());
    logged(&["message of a request takes too long"]).await;
}

#[tokio::test]
async fn connections_are_limited_for_each_host_and_in_all() {
    log();
    let world = world_with(TransportSettings {
        connections_per_host_max: 1,
        connections_max: 2,
        ..patient()
    });
    let peer_of = |host: u8| {
        let endpoints = endpoints_of(identity(Role::Client, HostId([host; 16])));
        Peer::new(&endpoints, world.target())
    };
    let (one, again, two, three) = (peer_of(1), peer_of(1), peer_of(2), peer_of(3));
    one.call(&hello(1), soon()).await.unwrap();
    let failure = again.call(&hello(1), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Busy, "{failure}");
    two.call(&hello(1), soon()).await.unwrap();
    let failure = three.call(&hello(1), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Busy, "{failure}");
    logged(&["the host has as many connections as it may"]).await;
    logged(&["the server has as many connections as it may"]).await;
    // A place that becomes free is given away.
    drop(one);
    three.call_until(&hello(1), soon()).await.unwrap();
}

#[tokio::test]
async fn clients_take_every_place_but_those_of_servers() {
    log();
    let world = world_with(TransportSettings { connections_max: 8, ..patient() });
    let mount = endpoints(Role::Client);
    let mounts: Vec<_> = (0..8).map(|_| Peer::new(&mount, world.target())).collect();
    for peer in &mounts[..7] {
        peer.call(&hello(1), soon()).await.unwrap();
    }
    let failure = mounts[7].call(&hello(1), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Busy, "{failure}");
    logged(&["the server has as many connections of clients as it may"]).await;
    let server = Peer::new(&endpoints(Role::Metadata), world.target());
    server.call(&hello(1), soon()).await.unwrap();
    assert_eq!(world.server.connection_count(), 8);
}
