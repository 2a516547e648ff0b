//! What a request and its answer can be, and how each of them ends.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use bytes::Bytes;
use millrace_protocol::{
    RequestKind,
    cluster::FetchMap,
    codec,
    frame::{Header, Shape},
    session::{OpenSession, Role},
    version::ProtocolVersion,
};
use millrace_transport::{CallOptions, Mtu, Peer, TransportSettings};
use millrace_types::{ErrorKind, Failure, HostId, LogIndex, MapEpoch};

use crate::{
    raw::RawClient,
    world::{
        PATIENCE, both_ways, bundle, close_session, echo, endless, endpoints, endpoints_by_default,
        hello, over_quic, patient, presence, renewal, soon, world, world_with,
    },
};

const MIB: usize = 1024 * 1024;

fn pattern(len: usize) -> Bytes {
    (0..len).map(|at| u8::try_from(at * 31 % 251).unwrap()).collect()
}

#[tokio::test]
async fn messages_and_bodies_of_every_size_come_back_unharmed() {
    for settings in both_ways() {
        let world = world_with(settings);
        let peer = world.peer();
        let reply = peer.call(&hello(42), soon()).await.unwrap();
        assert_eq!(reply.last_index, LogIndex(42));
        for len in [0, 1, 63, 64, 4096, 65_536, MIB - 1, MIB] {
            echo(&peer, pattern(len)).await.unwrap();
            let seen = world.seen.body.lock().unwrap().take().unwrap();
            assert_eq!(seen, pattern(len), "{len} bytes");
        }
        world.finish().await;
    }
}

#[tokio::test]
async fn an_answered_request_leaves_nothing_to_be_taken_back() {
    let world = world();
    let client = RawClient::with_certificate(&bundle(Role::Client, HostId([5; 16])));
    let connection = client.connect(world.server.local_addr()).await.unwrap();
    let message = codec::encode(&hello(42));
    let shape = Shape::Request { kind: RequestKind::Hello, deadline_ms: 10_000 };
    let header = Header::new(ProtocolVersion::NEWEST, shape, 1, &message, 0).unwrap();
    let frame = [&header.encode()[..], &message[..]].concat();
    for _ in 0..32 {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&frame).await.unwrap();
        send.finish().unwrap();
        let answer = receive.read_to_end(4096).await.unwrap();
        assert_eq!(answer[10], 2, "a reply");
    }
    // It would cost a packet for each request, and waking the peer.
    assert_eq!(connection.stats().frame_rx.stop_sending, 0);
    world.finish().await;
}

#[tokio::test]
async fn a_body_longer_than_a_frame_is_refused_before_it_is_sent() {
    let world = world();
    let long = vec![0; MIB + 1];
    let outcome = world.peer().exchange(&presence(), long, soon()).await;
    assert_eq!(outcome.unwrap_err().kind, ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_body_that_the_server_does_not_want_does_not_hide_its_answer() {
    for settings in both_ways() {
        let world = world_with(settings);
        let peer = world.peer();
        for _ in 0..32 {
            let body = pattern(MIB);
            let failure = peer.exchange(&renewal(), body, soon()).await.unwrap_err();
            assert_eq!(failure.kind, ErrorKind::NotSupported);
        }
    }
}

#[tokio::test]
async fn bodies_that_nobody_reads_do_not_hold_up_others() {
    for settings in both_ways() {
        let world = world_with(settings);
        let peer = world.peer();
        let options = CallOptions::bulk(PATIENCE);
        // Of 64 that a connection may have in flight, quinn gives back the places of ended ones
        // only in steps of an eighth.
        let unread: Vec<_> = (0..55)
            .map(|_| {
                let (peer, body) = (peer.clone(), pattern(MIB));
                tokio::spawn(async move { peer.exchange(&endless(), body, options).await })
            })
            .collect();
        for _ in &unread {
            world.seen.waiting.next().await;
        }
        for _ in 0..16 {
            echo(&peer, pattern(MIB)).await.unwrap();
        }
        for request in unread {
            request.abort();
        }
    }
}

#[tokio::test]
async fn a_gibibyte_moves_in_jumbo_datagrams() {
    moves_a_gibibyte(over_quic()).await;
}

#[tokio::test]
async fn a_gibibyte_moves_past_the_network() {
    moves_a_gibibyte(patient()).await;
}

#[tokio::test]
async fn bytes_move_in_ordinary_datagrams_too() {
    let settings = TransportSettings { mtu: Mtu::Bytes(1452), ..over_quic() };
    let world = world_with(settings);
    let peer = world.peer();
    for _ in 0..16 {
        echo(&peer, pattern(MIB)).await.unwrap();
    }
}

/// Half of it there, half of it back, many requests at once.
async fn moves_a_gibibyte(settings: TransportSettings) {
    let world = world_with(settings);
    let peer = world.peer();
    let body = pattern(MIB);
    let left = Arc::new(AtomicUsize::new(512));
    let workers: Vec<_> = (0..16)
        .map(|_| {
            let (peer, body, left) = (peer.clone(), body.clone(), Arc::clone(&left));
            tokio::spawn(async move {
                let claim = |left: usize| left.checked_sub(1);
                while left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, claim).is_ok() {
                    echo(&peer, body.clone()).await.unwrap();
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
async fn several_sockets_serve_one_address() {
    let settings = TransportSettings { server_sockets: 3, ..patient() };
    let world = world_with(settings);
    for _ in 0..6 {
        world.peer().call(&hello(1), soon()).await.unwrap();
    }
    world.finish().await;
}

#[tokio::test]
async fn a_deadline_ends_the_wait_and_the_work() {
    for settings in both_ways() {
        let world = world_with(settings);
        let peer = world.peer();
        peer.call(&hello(1), soon()).await.unwrap();
        let options = CallOptions::control(Duration::from_secs(2));
        let request = tokio::spawn({
            let peer = peer.clone();
            async move { peer.call(&endless(), options).await }
        });
        world.seen.waiting.next().await;
        let failure = request.await.unwrap().unwrap_err();
        assert_eq!(failure.kind, ErrorKind::DeadlineExceeded);
        assert!(failure.message.contains("SyncMetadata"), "{failure}");
        world.seen.cancelled.next().await;
    }
}

#[tokio::test]
async fn a_server_that_gives_up_before_its_caller_says_that_it_was_the_time() {
    let world = world();
    let client = RawClient::with_certificate(&bundle(Role::Client, HostId([5; 16])));
    let connection = client.connect(world.server.local_addr()).await.unwrap();
    let message = codec::encode(&FetchMap { held: MapEpoch(0) });
    let shape = Shape::Request { kind: RequestKind::FetchMap, deadline_ms: 1 };
    let header = Header::new(ProtocolVersion::NEWEST, shape, 1, &message, 0).unwrap();
    let (mut send, mut receive) = connection.open_bi().await.unwrap();
    send.write_all(&[&header.encode()[..], &message[..]].concat()).await.unwrap();
    send.finish().unwrap();
    let answer = receive.read_to_end(4096).await.unwrap();
    let kind = u16::from_le_bytes([answer[12], answer[13]]);
    assert_eq!(kind, ErrorKind::DeadlineExceeded.code());
}

#[tokio::test]
async fn dropping_a_request_cancels_the_servers_work() {
    for settings in both_ways() {
        let world = world_with(settings);
        let peer = world.peer();
        let request = tokio::spawn({
            let peer = peer.clone();
            async move { peer.call(&endless(), soon()).await }
        });
        world.seen.waiting.next().await;
        request.abort();
        world.seen.cancelled.next().await;
        // The connection is as good as before.
        peer.call(&hello(1), soon()).await.unwrap();
        assert_eq!(peer.connection_number(), 1);
    }
}

#[tokio::test]
async fn losing_the_connection_cancels_the_servers_work() {
    for settings in both_ways() {
        let world = world_with(settings);
        let peer = world.peer();
        let request = tokio::spawn({
            let peer = peer.clone();
            async move { peer.call(&endless(), soon()).await }
        });
        world.seen.waiting.next().await;
        drop(peer);
        request.abort();
        world.seen.cancelled.next().await;
    }
}

#[tokio::test]
async fn a_call_that_the_service_drops_is_an_internal_failure() {
    for settings in both_ways() {
        let world = world_with(settings);
        let request = OpenSession { nonce: 1, host_name: "host".to_owned() };
        let failure = world.peer().call(&request, soon()).await.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Internal);
    }
}

#[tokio::test]
async fn shutdown_finishes_what_is_at_work_and_refuses_the_rest() {
    for settings in both_ways() {
        let world = world_with(settings);
        let peer = world.peer();
        let at_work = tokio::spawn({
            let peer = peer.clone();
            async move { peer.call(&close_session(), soon()).await }
        });
        world.seen.waiting.next().await;
        world.shutdown.begin("test");
        let failure = peer.call(&hello(1), soon()).await.unwrap_err();
        assert_eq!(failure.kind, ErrorKind::Unavailable);
        world.seen.release.wait();
        at_work.await.unwrap().unwrap();
        world.finish().await;
    }
}

#[tokio::test]
async fn the_hook_runs_once_for_each_connection_before_any_request() {
    let world = world();
    let numbers = Arc::new(AtomicU64::new(0));
    let hook = {
        let numbers = Arc::clone(&numbers);
        move |connected: millrace_transport::Connected| {
            let numbers = Arc::clone(&numbers);
            async move {
                connected.call(&hello(7), soon()).await?;
                numbers.fetch_add(connected.number(), Ordering::SeqCst);
                Ok(())
            }
        }
    };
    let peer = Peer::with_hook(&endpoints(Role::Client), world.target(), hook);
    let calls = (0..8).map(|index| {
        let peer = peer.clone();
        async move { peer.call(&hello(index), soon()).await }
    });
    for outcome in futures::future::join_all(calls).await {
        outcome.unwrap();
    }
    assert_eq!(numbers.load(Ordering::SeqCst), 1, "once, with number 1");
    echo(&peer, pattern(10)).await.unwrap();
    assert_eq!(numbers.load(Ordering::SeqCst), 2, "once more for bulk");
}

#[tokio::test]
async fn a_failing_hook_fails_the_requests_that_wait() {
    let world = world();
    let hook = |_| async { Err(Failure::from(ErrorKind::TicketExpired)) };
    let peer = Peer::with_hook(&endpoints(Role::Client), world.target(), hook);
    let failure = peer.call(&hello(1), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::TicketExpired);
}

#[tokio::test]
async fn a_peer_that_is_not_there_is_unavailable_and_the_deadline_holds() {
    let world = world();
    // A socket that answers nothing.
    let silent = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
    let mut target = world.target();
    target.addresses = vec![silent.local_addr().unwrap()];
    let peer = Peer::new(&endpoints_by_default(Role::Client), target);
    let failure = peer.call(&hello(1), soon()).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Unavailable);
    let begun = Instant::now();
    let options = CallOptions::control(Duration::from_millis(300));
    assert!(peer.call_until(&hello(1), options).await.is_err());
    assert!(begun.elapsed() < Duration::from_secs(5));
    // It appears at another address.
    let address = world.server.local_addr();
    peer.set_addresses(vec![silent.local_addr().unwrap(), address]);
    peer.call_until(&hello(1), CallOptions::control(PATIENCE)).await.unwrap();
    assert_eq!(peer.target().addresses[0], address, "what answered comes first");
}

#[tokio::test]
async fn an_unused_connection_is_closed_in_order_and_made_again() {
    let world = world();
    let settings = TransportSettings { linger_ms: 0, ..patient() };
    let identity = crate::world::identity(Role::Client, HostId([1; 16]));
    let shutdown = millrace_runtime::Shutdown::new();
    let endpoints =
        millrace_transport::ClientEndpoints::start(identity, settings, &shutdown).unwrap();
    let peer = Peer::new(&endpoints, world.target());
    peer.call(&hello(1), soon()).await.unwrap();
    let begun = Instant::now();
    while world.server.connection_count() > 0 {
        assert!(begun.elapsed() < PATIENCE);
        tokio::task::yield_now().await;
    }
    peer.call(&hello(2), soon()).await.unwrap();
    assert_eq!(peer.connection_number(), 1, "nothing was lost");
}
