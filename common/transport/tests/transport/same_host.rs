//! Requests past the network: between a client and a server that share a kernel.

use std::{
    fs,
    io::{Read as _, Write as _},
    os::{
        linux::net::SocketAddrExt as _,
        unix::net::{SocketAddr as UnixAddr, UnixStream},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_protocol::{
    Request, RequestKind,
    cluster::FetchMap,
    codec,
    frame::{HEADER_LEN, Header, Shape},
    same_host::{FindSocket, FoundSocket},
    session::{OpenSession, Role},
    version::ProtocolVersion,
};
use millrace_transport::{CallOptions, Peer, TransportSettings};
use millrace_types::{ErrorKind, HostId, MapEpoch};

use crate::{
    raw::RawClient,
    world::{
        PATIENCE, World, both_ways, bundle, echo, endless, endpoints, hello, over_quic, patient,
        presence, renewal, soon, world, world_with,
    },
};

/// A client of QUIC alone that knows where the local socket is.
struct Found {
    quic: quinn::Connection,
    socket: FoundSocket,
    _client: RawClient,
}

/// What a server answers about its local socket.
async fn asked(world: &World) -> (Header, Vec<u8>, (quinn::Connection, RawClient)) {
    let client = RawClient::with_certificate(&bundle(Role::Client, HostId([5; 16])));
    let quic = client.connect(world.server.local_addr()).await.unwrap();
    let (mut send, mut receive) = quic.open_bi().await.unwrap();
    send.write_all(&frame(&FindSocket {}, &[])).await.unwrap();
    send.finish().unwrap();
    let mut answer = receive.read_to_end(4096).await.unwrap();
    let header = Header::decode(answer.first_chunk().unwrap()).unwrap();
    (header, answer.split_off(HEADER_LEN), (quic, client))
}

async fn found(world: &World) -> Found {
    let (header, message, (quic, client)) = asked(world).await;
    assert!(matches!(header.shape, Shape::Reply), "{:?}", header.shape);
    Found { quic, socket: codec::decode(&message).unwrap(), _client: client }
}

impl Found {
    /// A stream that begins with the right ticket, and that the server has taken.
    fn stream(&self) -> UnixStream {
        let mut stream = self.stream_with(&self.socket.ticket);
        greeted(&mut stream);
        stream
    }

    fn stream_with(&self, ticket: &[u8]) -> UnixStream {
        let address = UnixAddr::from_abstract_name(&self.socket.name).unwrap();
        let mut stream = UnixStream::connect_addr(&address).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.write_all(ticket).unwrap();
        stream
    }

    /// How many streams the server has taken: its socket, and what was accepted there.
    fn open(&self) -> usize {
        let name = format!("@{}", String::from_utf8(self.socket.name.clone()).unwrap());
        let sockets = fs::read_to_string("/proc/net/unix").unwrap();
        sockets.lines().filter(|line| line.ends_with(&name)).count() - 1
    }
}

fn frame<R: Request>(request: &R, body: &[u8]) -> Vec<u8> {
    let message = codec::encode(request);
    let shape = Shape::Request { kind: R::KIND, deadline_ms: 60_000 };
    let header = Header::new(ProtocolVersion::NEWEST, shape, 1, &message, body.len()).unwrap();
    [&header.encode()[..], &message[..], body].concat()
}

/// Waits until the server has taken the stream.
fn greeted(stream: &mut UnixStream) {
    let mut greeting = [0; 1];
    stream.read_exact(&mut greeting).unwrap();
    assert_eq!(&greeting, b"M");
}

/// Header, message and body of the next answer.
fn answer(stream: &mut UnixStream) -> (Header, Vec<u8>) {
    let mut header = [0; HEADER_LEN];
    stream.read_exact(&mut header).unwrap();
    let header = Header::decode(&header).unwrap();
    let mut rest = vec![0; (header.message_len + header.body_len) as usize];
    stream.read_exact(&mut rest).unwrap();
    (header, rest.split_off(header.message_len as usize))
}

/// Asserts that the server has hung up.
fn ended(stream: &mut UnixStream) {
    let mut rest = Vec::new();
    match stream.read_to_end(&mut rest) {
        Ok(_) => assert!(rest.is_empty(), "{} bytes more", rest.len()),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
    }
}

#[tokio::test]
async fn both_ends_of_a_host_use_it_and_keep_its_streams() {
    let world = world();
    let found = found(&world).await;
    assert_eq!(found.open(), 0);
    let peer = world.peer();
    for index in 0..8 {
        peer.call(&hello(index), soon()).await.unwrap();
    }
    assert_eq!(found.open(), 1, "one for requests one after the other");
    let request = OpenSession { nonce: 1, host_name: "host".to_owned() };
    let failure = peer.call(&request, soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Internal);
    peer.call(&hello(9), soon()).await.unwrap();
    assert_eq!(found.open(), 1, "a failure is an answer");
    let failure = peer.call(&renewal(), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::NotSupported);
    peer.call(&hello(9), soon()).await.unwrap();
    let calls = (0..20).map(|_| {
        let peer = peer.clone();
        async move { peer.call(&hello(1), soon()).await.map(drop) }
    });
    for outcome in futures::future::join_all(calls).await {
        outcome.unwrap();
    }
    assert!((1..=20).contains(&found.open()), "{}", found.open());
    drop(peer);
    let begun = Instant::now();
    while found.open() > 0 {
        assert!(begun.elapsed() < PATIENCE, "they end with the connection");
        tokio::task::yield_now().await;
    }
    world.finish().await;
}

#[tokio::test]
async fn an_end_that_does_not_want_it_sends_over_quic() {
    let without = over_quic();
    let server_without = world_with(without.clone());
    let (header, _, _) = asked(&server_without).await;
    let Shape::Failure { kind } = header.shape else { panic!("{:?}", header.shape) };
    assert_eq!(kind, ErrorKind::NotSupported);
    server_without.peer().call(&hello(1), soon()).await.unwrap();
    server_without.finish().await;

    let world = world();
    let found = found(&world).await;
    let identity = crate::world::identity(Role::Client, HostId([1; 16]));
    let shutdown = millrace_runtime::Shutdown::new();
    let client = millrace_transport::ClientEndpoints::start(identity, without, &shutdown).unwrap();
    Peer::new(&client, world.target()).call(&hello(1), soon()).await.unwrap();
    assert_eq!(found.open(), 0);
    world.finish().await;
}

#[tokio::test]
async fn requests_beyond_the_streams_go_over_quic() {
    let few = TransportSettings { same_host_streams: 2, ..patient() };
    let world = world_with(few);
    let found = found(&world).await;
    assert_eq!(found.socket.streams_max, 2);
    let peer = world.peer();
    let waiting: Vec<_> = (0..5)
        .map(|_| {
            let peer = peer.clone();
            tokio::spawn(async move { peer.call(&endless(), soon()).await })
        })
        .collect();
    for _ in &waiting {
        world.seen.waiting.next().await;
    }
    peer.call(&hello(1), soon()).await.unwrap();
    assert_eq!(found.open(), 2);
    for request in waiting {
        request.abort();
        world.seen.cancelled.next().await;
    }
    // Streams that were taken back make room for others.
    peer.call(&hello(1), soon()).await.unwrap();
    echo(&peer, Bytes::from(vec![7; 300_000])).await.unwrap();
}

// On two threads: one sends the end of the connection while the other is blocked on its effect.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_server_hangs_up_on_who_shows_no_ticket_of_a_connection() {
    let world = world();
    let found = found(&world).await;
    let mut wrong = found.socket.ticket;
    wrong[31] ^= 1;
    ended(&mut found.stream_with(&wrong));
    let mut right = found.stream();
    right.write_all(&frame(&hello(3), &[])).unwrap();
    assert!(matches!(answer(&mut right).0.shape, Shape::Reply));
    found.quic.close(0_u32.into(), b"");
    ended(&mut right);
    ended(&mut found.stream_with(&found.socket.ticket));
    world.finish().await;
}

#[tokio::test]
async fn no_more_streams_are_served_than_were_promised() {
    let world = world_with(TransportSettings { same_host_streams: 2, ..patient() });
    let found = found(&world).await;
    let mut streams = [found.stream(), found.stream()];
    for stream in &mut streams {
        stream.write_all(&frame(&hello(3), &[])).unwrap();
        answer(stream);
    }
    ended(&mut found.stream_with(&found.socket.ticket));
    let [first, mut second] = streams;
    drop(first);
    // Its place is waited for until the server has noticed.
    let mut third = found.stream();
    third.write_all(&frame(&hello(4), &[])).unwrap();
    answer(&mut third);
    second.write_all(&frame(&hello(5), &[])).unwrap();
    answer(&mut second);
}

#[tokio::test]
async fn a_body_that_nobody_wants_is_skipped_and_the_stream_goes_on() {
    let world = world();
    let found = found(&world).await;
    let mut stream = found.stream();
    for round in 0..4_u8 {
        let body = vec![round; 1024 * 1024];
        stream.write_all(&frame(&renewal(), &body)).unwrap();
        let (header, _) = answer(&mut stream);
        let Shape::Failure { kind } = header.shape else { panic!("{:?}", header.shape) };
        assert_eq!(kind, ErrorKind::NotSupported);
        let body = vec![round; 100_000];
        stream.write_all(&frame(&presence(), &body)).unwrap();
        let (header, back) = answer(&mut stream);
        assert!(matches!(header.shape, Shape::Reply));
        assert_eq!(back, body);
    }
    assert_eq!(found.open(), 1);
}

#[tokio::test]
async fn hanging_up_cancels_the_servers_work_with_and_without_a_body() {
    let world = world();
    let found = found(&world).await;
    for body in [0, 3, 100_000] {
        let mut stream = found.stream();
        // The service reads none of it.
        stream.write_all(&frame(&endless(), &vec![0; body])).unwrap();
        world.seen.waiting.next().await;
        drop(stream);
        world.seen.cancelled.next().await;
    }
    let mut stream = found.stream();
    stream.write_all(&frame(&endless(), &[])).unwrap();
    world.seen.waiting.next().await;
    found.quic.close(0_u32.into(), b"");
    world.seen.cancelled.next().await;
    ended(&mut stream);
}

#[tokio::test]
async fn what_is_no_frame_is_answered_once_and_the_stream_ends() {
    let world = world();
    let found = found(&world).await;
    let mut stream = found.stream();
    stream.write_all(&[0xa5; 4096]).unwrap();
    let (header, _) = answer(&mut stream);
    let Shape::Failure { kind } = header.shape else { panic!("{:?}", header.shape) };
    assert_eq!(kind, ErrorKind::Protocol);
    ended(&mut stream);
    // Half a frame, and then nothing.
    let mut stream = found.stream();
    stream.write_all(&frame(&hello(1), &[])[..40]).unwrap();
    drop(stream);
    let mut stream = found.stream();
    stream.write_all(&frame(&hello(1), &[])).unwrap();
    answer(&mut stream);
    assert!(found.quic.close_reason().is_none(), "the connection is as good as before");
}

#[tokio::test]
async fn a_connection_that_the_service_ends_takes_its_requests_with_it() {
    let world = world();
    let peer = world.peer();
    let options = CallOptions::control(PATIENCE);
    let waiting = tokio::spawn({
        let peer = peer.clone();
        async move { peer.call(&endless(), options).await }
    });
    world.seen.waiting.next().await;
    for connection in world.seen.connected.lock().unwrap().drain(..) {
        connection.close("for a newer one");
    }
    world.seen.cancelled.next().await;
    let begun = Instant::now();
    let failure = waiting.await.unwrap().unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Unavailable);
    assert!(failure.message.contains("for a newer one"), "{failure}");
    assert!(begun.elapsed() < Duration::from_secs(20));
    // The next request finds a new connection, which is of another number.
    peer.call_until(&hello(1), soon()).await.unwrap();
    assert_eq!(peer.connection_number(), 2);
}

#[tokio::test]
async fn bodies_of_many_requests_at_once_do_not_mix() {
    let world = world();
    let peer = world.peer();
    let workers: Vec<_> = (0..32_u8)
        .map(|worker| {
            let peer = peer.clone();
            tokio::spawn(async move {
                for round in 0..16_usize {
                    let len = (usize::from(worker) * 7919 + round * 104_729) % (1024 * 1024);
                    let byte = |at: usize| worker.wrapping_add((at % 251).to_le_bytes()[0]);
                    echo(&peer, (0..len).map(byte).collect()).await.unwrap();
                }
            })
        })
        .collect();
    for worker in workers {
        worker.await.unwrap();
    }
    world.finish().await;
}

#[tokio::test]
async fn who_shows_no_ticket_keeps_out_nobody_who_does() {
    let world = world();
    let found = found(&world).await;
    let silent: Vec<_> = (0..100).map(|_| found.stream_with(&[])).collect();
    let mut streams: Vec<_> = (0..60).map(|_| found.stream()).collect();
    for stream in &mut streams {
        stream.write_all(&frame(&hello(1), &[])).unwrap();
    }
    for stream in &mut streams {
        answer(stream);
    }
    drop(silent);
}

#[tokio::test]
async fn a_server_without_room_for_streams_is_asked_over_quic_until_it_has_some() {
    let world = world_with(TransportSettings { send_budget_bytes: 1024 * 1024, ..patient() });
    let found = found(&world).await;
    let only = found.stream();
    let peer = world.peer();
    for index in 0..4 {
        peer.call(&hello(index), soon()).await.unwrap();
        echo(&peer, Bytes::from(vec![7; 1024 * 1024])).await.unwrap();
    }
    drop(only);
    let begun = Instant::now();
    while found.open() > 0 {
        assert!(begun.elapsed() < PATIENCE, "the server notices that it has ended");
        tokio::task::yield_now().await;
    }
    while found.open() == 0 {
        assert!(begun.elapsed() < PATIENCE, "a stream is taken again");
        peer.call(&hello(9), soon()).await.unwrap();
    }
}

#[tokio::test]
async fn nothing_is_answered_over_a_stream_whose_connection_has_ended() {
    let world = world();
    let found = found(&world).await;
    let mut stream = found.stream();
    // The service waits for the rest of the body.
    let whole = frame(&presence(), &[7; 100]);
    stream.write_all(&whole[..whole.len() - 1]).unwrap();
    let mut other = found.stream();
    other.write_all(&frame(&hello(1), &[])).unwrap();
    answer(&mut other);
    for connection in world.seen.connected.lock().unwrap().drain(..) {
        connection.close("for a newer one");
    }
    ended(&mut stream);
    ended(&mut other);
}

#[tokio::test]
async fn a_connection_has_one_ticket_however_often_it_asks() {
    let world = world();
    let first = found(&world).await;
    let (mut send, mut receive) = first.quic.open_bi().await.unwrap();
    send.write_all(&frame(&FindSocket {}, &[])).await.unwrap();
    send.finish().unwrap();
    let again = receive.read_to_end(4096).await.unwrap();
    let again: FoundSocket = codec::decode(&again[HEADER_LEN..]).unwrap();
    assert!(again == first.socket);
    let other = found(&world).await;
    assert!(other.socket.ticket != first.socket.ticket, "each has its own");
    assert_eq!(other.socket.name, first.socket.name);
}

#[tokio::test]
async fn what_is_given_up_because_the_connection_has_ended_is_no_answer() {
    for settings in both_ways() {
        let world = world_with(settings);
        let peer = world.peer();
        // The service drops it when it is cancelled.
        let waiting = tokio::spawn({
            let peer = peer.clone();
            async move { peer.call(&FetchMap { held: MapEpoch(0) }, soon()).await }
        });
        world.seen.waiting.next().await;
        for connection in world.seen.connected.lock().unwrap().drain(..) {
            connection.close("for a newer one");
        }
        let failure = waiting.await.unwrap().unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Unavailable, "{failure}");
        assert!(failure.message.contains("for a newer one"), "{failure}");
    }
}

#[test]
fn a_ticket_is_in_no_log() {
    let found =
        FoundSocket { name: b"millrace/1".to_vec(), owner: 0, ticket: [0x77; 32], streams_max: 1 };
    let shown = format!("{found:?}");
    assert!(shown.contains("millrace/1") && !shown.contains("119"), "{shown}");
    assert_eq!(RequestKind::FindSocket.name(), "FindSocket");
}

#[tokio::test]
async fn every_role_may_ask_where_the_socket_is() {
    let world = world();
    let peer = Peer::new(&endpoints(Role::Metadata), world.target());
    let found = found(&world).await;
    peer.call(&hello(1), soon()).await.unwrap();
    assert_eq!(found.open(), 1);
}
