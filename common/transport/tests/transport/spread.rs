//! Over how many connections a peer is asked for bulk.

use millrace_protocol::session::Role;
use millrace_runtime::Shutdown;
use millrace_transport::{CallOptions, ClientEndpoints, Connected, Peer, TransportSettings};
use millrace_types::HostId;
use tokio::task::JoinHandle;

use crate::world::{PATIENCE, World, echo, endless, hello, identity, soon, world, world_with};

fn peer_of(world: &World) -> Peer {
    let settings = TransportSettings { bulk_sockets: 3, ..TransportSettings::default() };
    let identity = identity(Role::Client, HostId([7; 16]));
    let endpoints = ClientEndpoints::start(identity, settings, &Shutdown::new()).unwrap();
    // As a mount shows its ticket.
    let greet =
        |connected: Connected| async move { connected.call(&hello(1), soon()).await.map(drop) };
    Peer::with_hook(&endpoints, world.target(), greet)
}

/// Sends a request that stays out.
async fn hold(world: &World, peer: &Peer) -> JoinHandle<()> {
    let asking = peer.clone();
    let held = tokio::spawn(async move {
        drop(asking.call(&endless(), CallOptions::bulk(PATIENCE)).await);
    });
    world.seen.waiting.next().await;
    held
}

#[tokio::test]
async fn a_peer_that_is_asked_for_much_is_asked_over_more_connections() {
    let world = world();
    let peer = peer_of(&world);
    for _ in 0..8 {
        echo(&peer, vec![7; 64 * 1024].into()).await.unwrap();
    }
    assert_eq!(world.server.connection_count(), 1, "one after the other needs no second");
    let mut held = Vec::new();
    for expected in [1, 1, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3, 3, 3, 3] {
        held.push(hold(&world, &peer).await);
        assert_eq!(world.server.connection_count(), expected, "with {} requests out", held.len());
    }
    held.iter().for_each(JoinHandle::abort);
    for _ in &held {
        world.seen.cancelled.next().await;
    }
    assert_eq!(peer.connection_number(), 1, "none was lost");
}

#[tokio::test]
async fn a_server_that_lets_no_more_connections_in_is_asked_over_those_that_stand() {
    let settings =
        TransportSettings { connections_per_host_max: 1, ..TransportSettings::default() };
    let world = world_with(settings);
    let peer = peer_of(&world);
    let mut held = Vec::new();
    for _ in 0..12 {
        held.push(hold(&world, &peer).await);
        echo(&peer, vec![7; 64 * 1024].into()).await.unwrap();
        assert_eq!(world.server.connection_count(), 1);
    }
    assert_eq!(peer.connection_number(), 1, "none was lost");
    held.iter().for_each(JoinHandle::abort);
}
