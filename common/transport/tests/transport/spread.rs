//! Over how many connections a peer is asked for bulk.

use std::time::{Duration, Instant};

use millrace_protocol::session::Role;
use millrace_runtime::Shutdown;
use millrace_transport::{
    CallOptions, ClientEndpoints, Connected, Peer, Server, TransportSettings, server::ServerError,
};
use millrace_types::HostId;
use tokio::task::JoinHandle;

use crate::world::{
    PATIENCE, SERVER, World, echo, endless, hello, identity, service, soon, world, world_with,
};

fn peer_of(world: &World, linger_ms: u32) -> Peer {
    let settings = TransportSettings { bulk_sockets: 3, linger_ms, ..TransportSettings::default() };
    let identity = identity(Role::Client, HostId([7; 16]));
    let endpoints = ClientEndpoints::start(identity, settings, &Shutdown::new()).unwrap();
    // As a mount shows its ticket.
    let greet =
        |connected: Connected| async move { connected.call(&hello(1), soon()).await.map(drop) };
    Peer::with_hook(&endpoints, world.target(), greet)
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

/// Holds requests until the server has so many connections; they are busy, each, by then.
async fn spread(world: &World, peer: &Peer, connections: usize) -> Vec<JoinHandle<()>> {
    let mut held = Vec::new();
    while world.server.connection_count() < connections {
        held.push(hold(world, peer).await);
        assert!(held.len() < 1000, "{} connections", world.server.connection_count());
    }
    held
}

async fn eventually(what: &str, holds: impl Fn() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

fn small() -> bytes::Bytes {
    vec![7; 64 * 1024].into()
}

#[tokio::test]
async fn a_peer_that_is_asked_for_much_is_asked_over_more_connections() {
    let world = world();
    let peer = peer_of(&world, LINGER);
    for _ in 0..8 {
        echo(&peer, small()).await.unwrap();
    }
    let mut held = Vec::new();
    for _ in 0..4 {
        held.push(hold(&world, &peer).await);
    }
    assert_eq!(world.server.connection_count(), 1, "four at a time need no second");
    held.extend(spread(&world, &peer, 3).await);
    for _ in 0..64 {
        held.push(hold(&world, &peer).await);
    }
    assert_eq!(world.server.connection_count(), 3, "it has no more sockets");
    held.iter().for_each(JoinHandle::abort);
    assert_eq!(peer.connection_number(), 1, "none was lost");
}

#[tokio::test]
async fn a_burst_makes_one_more_connection_and_waits_for_none() {
    let world = world();
    let peer = peer_of(&world, LINGER);
    echo(&peer, small()).await.unwrap();
    let asking = || async { echo(&peer, small()).await };
    let burst: Vec<_> = (0..12).map(|_| asking()).collect();
    for outcome in futures::future::join_all(burst).await {
        outcome.unwrap();
    }
    assert!(world.seen.connected.lock().unwrap().len() <= 2);
}

#[tokio::test]
async fn connections_that_were_not_used_any_more_are_made_again() {
    let world = world();
    let peer = peer_of(&world, 0);
    for _ in 0..2 {
        let held = spread(&world, &peer, 3).await;
        held.iter().for_each(JoinHandle::abort);
        eventually("they are closed", || world.server.connection_count() == 0).await;
    }
    assert_eq!(peer.connection_number(), 1, "none was lost");
}

#[tokio::test]
async fn a_server_that_lets_no_more_connections_in_is_asked_over_those_that_stand() {
    let settings =
        TransportSettings { connections_per_host_max: 1, ..TransportSettings::default() };
    let world = world_with(settings);
    let peer = peer_of(&world, LINGER);
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(hold(&world, &peer).await);
        echo(&peer, small()).await.unwrap();
        assert_eq!(world.server.connection_count(), 1);
    }
    assert_eq!(peer.connection_number(), 1, "none was lost");
    held.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn once_a_connection_was_lost_no_other_of_its_number_takes_a_request() {
    let world = world();
    let peer = peer_of(&world, LINGER);
    let held = spread(&world, &peer, 2).await;
    let first = world.seen.connected.lock().unwrap()[0].clone();
    first.close("lost");
    eventually("the loss is noticed, without a request", || peer.connection_number() == 2).await;
    echo(&peer, small()).await.unwrap();
    assert_eq!(world.seen.connected.lock().unwrap().len(), 3, "over a new one");
    assert_eq!(peer.connection_number(), 2, "one loss is one");
    held.iter().for_each(JoinHandle::abort);
}

#[tokio::test]
async fn sockets_that_share_a_port_share_it_with_no_other_server() {
    let settings = TransportSettings { server_sockets: 3, ..TransportSettings::default() };
    let world = world_with(settings.clone());
    let (identity, bind) = (identity(Role::Target, SERVER), world.server.local_addr());
    let second = Server::start(&identity, bind, settings, service(), &world.shutdown);
    assert!(matches!(second, Err(ServerError::Bind { .. })));
    world.finish().await;
}
