//! Over how many connections a peer is asked for bulk.

use std::{
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_protocol::session::Role;
use millrace_runtime::Shutdown;
use millrace_transport::{
    CallOptions, ClientEndpoints, Connected, Peer, Server, TransportSettings, server::ServerError,
};
use millrace_types::HostId;
use tokio::task::JoinHandle;

use crate::world::{
    PATIENCE, SERVER, World, echo, endless, hello, identity, patient, service, soon, world,
    world_with,
};

/// A client, and how many of its connections have been introduced.
fn peer_of(world: &World, linger_ms: u32) -> (Peer, Arc<AtomicUsize>) {
    let settings = TransportSettings { bulk_sockets: 3, linger_ms, ..patient() };
    let identity = identity(Role::Client, HostId([7; 16]));
    let endpoints = ClientEndpoints::start(identity, settings, &Shutdown::new()).unwrap();
    let introduced = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&introduced);
    // As a mount shows its ticket.
    let greet = move |connected: Connected| {
        let counted = Arc::clone(&counted);
        async move {
            connected.call(&hello(1), soon()).await?;
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(())
        }
    };
    (Peer::with_hook(&endpoints, world.target(), greet), introduced)
}

const LINGER: u32 = 60_000;

/// Sends a request that stays out.
async fn hold(world: &World, peer: &Peer) -> JoinHandle<()> {
    let asking = peer.clone();
    let held = tokio::spawn(async move {
        drop(asking.call(&endless(), CallOptions::bulk(PATIENCE)).await);
    });
    world.seen.waiting.next().await;
    held
}

/// Holds requests until so many more connections than before are introduced.
async fn spread(
    world: &World,
    (peer, introduced): &(Peer, Arc<AtomicUsize>),
    connections: usize,
) -> Vec<JoinHandle<()>> {
    let before = introduced.load(Ordering::SeqCst);
    let mut held = Vec::new();
    for count in 1..=connections {
        let is_there = || introduced.load(Ordering::SeqCst) >= before + count;
        while !is_there() {
            held.push(hold(world, peer).await);
            // A connection carries 64.
            assert!(held.len() < 60, "{count} connections");
            // Four on each that stands, and one more: now another is being made.
            if held.len() > 4 * (count - 1) {
                within(Duration::from_millis(500), is_there).await;
            }
        }
    }
    held
}

async fn within(limit: Duration, holds: impl Fn() -> bool) -> bool {
    let began = Instant::now();
    while !holds() && began.elapsed() < limit {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    holds()
}

fn small() -> bytes::Bytes {
    vec![7; 64 * 1024].into()
}

#[tokio::test]
async fn a_peer_that_is_asked_for_much_is_asked_over_more_connections() {
    let world = world();
    let client = peer_of(&world, LINGER);
    for _ in 0..8 {
        echo(&client.0, small()).await.unwrap();
    }
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(hold(&world, &client.0).await);
    }
    assert_eq!(world.server.connection_count(), 1, "four at a time need no second");
    held.extend(spread(&world, &client, 2).await);
    for _ in 0..64 {
        held.push(hold(&world, &client.0).await);
    }
    assert_eq!(world.server.connection_count(), 3, "it has no more sockets");
    held.iter().for_each(JoinHandle::abort);
    assert_eq!(client.0.connection_number(), 1, "none was lost");
}

#[tokio::test]
async fn a_burst_makes_one_more_connection_at_most() {
    let world = world();
    let (peer, _) = peer_of(&world, LINGER);
    echo(&peer, small()).await.unwrap();
    let burst: Vec<_> = (0..9).map(|_| echo(&peer, small())).collect();
    for outcome in futures::future::join_all(burst).await {
        outcome.unwrap();
    }
    assert!(world.seen.connected.lock().unwrap().len() <= 2);
}

#[tokio::test]
async fn connections_that_were_not_used_any_more_are_made_again() {
    let world = world();
    let client = peer_of(&world, 0);
    for _ in 0..2 {
        let held = spread(&world, &client, 3).await;
        held.iter().for_each(JoinHandle::abort);
        assert!(within(PATIENCE, || world.server.connection_count() == 0).await);
    }
    assert_eq!(client.0.connection_number(), 1, "none was lost");
}

#[tokio::test]
async fn a_server_that_lets_no_more_connections_in_is_asked_over_those_that_stand() {
    let settings = TransportSettings { connections_per_host_max: 1, ..patient() };
    let world = world_with(settings);
    let (peer, introduced) = peer_of(&world, LINGER);
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(hold(&world, &peer).await);
        echo(&peer, small()).await.unwrap();
    }
    assert_eq!(introduced.load(Ordering::SeqCst), 1);
    assert_eq!(peer.connection_number(), 1, "none was lost");
    held.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn once_a_connection_was_lost_no_other_of_its_number_takes_a_request() {
    let world = world();
    let client = peer_of(&world, LINGER);
    let held = spread(&world, &client, 2).await;
    let first = world.seen.connected.lock().unwrap()[0].clone();
    first.close("lost");
    let peer = &client.0;
    assert!(within(PATIENCE, || peer.connection_number() == 2).await, "noticed unasked");
    echo(peer, small()).await.unwrap();
    assert_eq!(world.seen.connected.lock().unwrap().len(), 3, "over a new one");
    assert_eq!(peer.connection_number(), 2, "one loss is one");
    held.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn who_shows_something_new_shows_it_on_every_connection() {
    let world = world();
    let client = peer_of(&world, LINGER);
    let held = spread(&world, &client, 3).await;
    let (peer, introduced) = &client;
    let shown = || introduced.load(Ordering::SeqCst);
    peer.introduce_again(false, PATIENCE).await.unwrap();
    assert_eq!(shown(), 4, "one is enough");
    peer.introduce_again(true, PATIENCE).await.unwrap();
    assert_eq!(shown(), 7);
    held.iter().for_each(JoinHandle::abort);
    let (alone, introduced) = peer_of(&world, LINGER);
    for every in [false, true] {
        alone.introduce_again(every, PATIENCE).await.unwrap();
    }
    assert_eq!(introduced.load(Ordering::SeqCst), 0, "a new one is introduced when it comes");
}

#[tokio::test]
async fn a_ticket_that_is_shown_again_and_again_keeps_no_connection_and_makes_none() {
    let world = world();
    let (peer, introduced) = peer_of(&world, 2_000);
    echo(&peer, small()).await.unwrap();
    let ended = async {
        while world.server.connection_count() > 0 {
            // It may end in this very moment.
            drop(peer.introduce_again(false, PATIENCE).await);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(PATIENCE, ended).await.expect("it ends for want of use");
    let shown = introduced.load(Ordering::SeqCst);
    assert!(shown > 1, "it was shown meanwhile");
    for every in [false, true] {
        peer.introduce_again(every, PATIENCE).await.unwrap();
    }
    assert_eq!(world.server.connection_count(), 0);
    // Who comes back shows what counts then.
    echo(&peer, small()).await.unwrap();
    assert_eq!(introduced.load(Ordering::SeqCst), shown + 1);
    assert_eq!(peer.connection_number(), 1, "none was lost");
}

#[tokio::test]
async fn sockets_that_share_a_port_share_it_with_no_other_server() {
    let settings = TransportSettings { server_sockets: 3, ..patient() };
    let world = world_with(settings.clone());
    let (identity, bind) = (identity(Role::Target, SERVER), world.server.local_addr());
    let second = Server::start(&identity, bind, settings, service(), &world.shutdown);
    assert!(matches!(second, Err(ServerError::Bind { .. })));
    world.finish().await;
}
