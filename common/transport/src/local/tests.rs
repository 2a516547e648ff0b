//! A daemon and its callers on one machine.

use std::{
    os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    path::PathBuf,
    sync::Arc,
};

use async_trait::async_trait;
use millrace_protocol::{
    RequestKind,
    control::{DescribeMount, MountDescription},
    session::Hello,
};
use millrace_runtime::Shutdown;
use millrace_types::LogIndex;
use tokio::io::AsyncWriteExt as _;

use super::{server::Limits, *};

struct Mount;

#[async_trait]
impl LocalService for Mount {
    async fn handle(&self, call: LocalCall) {
        match call.kind() {
            RequestKind::DescribeMount => {
                let caller = call.caller();
                call.reply::<DescribeMount>(&MountDescription {
                    cluster: format!("for uid {}", caller.uid),
                    subtree: b"/".to_vec(),
                    mountpoint: b"/mnt".to_vec(),
                    read_only: false,
                    process: u32::try_from(caller.pid.unwrap()).unwrap(),
                    version: "0".to_owned(),
                });
            }
            RequestKind::Hello => drop(call),
            _ => call.fail(ErrorKind::NotSupported),
        }
    }
}

struct World {
    _directory: tempfile::TempDir,
    path: PathBuf,
    shutdown: Shutdown,
}

/// Says more than the kernel keeps for a caller that does not listen.
struct Talker;

#[async_trait]
impl LocalService for Talker {
    async fn handle(&self, call: LocalCall) {
        call.reply::<DescribeMount>(&MountDescription {
            cluster: "c".repeat(1 << 19),
            subtree: Vec::new(),
            mountpoint: Vec::new(),
            read_only: false,
            process: 0,
            version: String::new(),
        });
    }
}

fn world() -> World {
    world_within(Limits::default())
}

fn world_within(limits: Limits) -> World {
    world_of(Arc::new(Mount), limits)
}

fn world_of(service: Arc<dyn LocalService>, limits: Limits) -> World {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("control");
    let shutdown = Shutdown::new();
    LocalServer::start_with(&path, service, &shutdown, limits).unwrap();
    World { _directory: directory, path, shutdown }
}

const PATIENCE: Duration = Duration::from_secs(30);

#[tokio::test]
async fn the_daemon_learns_who_calls() {
    let world = world();
    let client = LocalClient::connect(&world.path).await.unwrap();
    assert_eq!(client.owner(), std::fs::metadata(&world.path).unwrap().uid());
    for _ in 0..2 {
        let reply = client.call(&DescribeMount {}, PATIENCE).await.unwrap();
        assert_eq!(reply.process, std::process::id());
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(reply.cluster, format!("for uid {uid}"));
    }
}

#[tokio::test]
async fn a_dropped_call_is_an_internal_failure_and_the_connection_goes_on() {
    let world = world();
    let client = LocalClient::connect(&world.path).await.unwrap();
    let hello = Hello { seen_index: LogIndex(0) };
    let failure = client.call(&hello, PATIENCE).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Internal);
    assert!(client.call(&DescribeMount {}, PATIENCE).await.is_ok());
}

#[tokio::test]
async fn garbage_is_answered_and_harms_nobody_else() {
    let world = world();
    let mut stream = UnixStream::connect(&world.path).await.unwrap();
    stream.write_all(&[0x55; 64]).await.unwrap();
    let (header, _) = read_frame(&mut stream).await.unwrap().unwrap();
    let kind = ErrorKind::Protocol;
    assert_eq!(header.shape, Shape::Failure { kind });
    assert!(read_frame(&mut stream).await.unwrap().is_none());
    let client = LocalClient::connect(&world.path).await.unwrap();
    assert!(client.call(&DescribeMount {}, PATIENCE).await.is_ok());
}

#[tokio::test]
async fn a_socket_in_use_is_refused_and_a_dead_one_replaced() {
    let world = world();
    let again = LocalServer::start(&world.path, Arc::new(Mount), &world.shutdown);
    assert_eq!(again.unwrap_err().kind(), std::io::ErrorKind::AddrInUse);
    let dead = world.path.with_file_name("dead");
    drop(std::os::unix::net::UnixListener::bind(&dead).unwrap());
    LocalServer::start(&dead, Arc::new(Mount), &world.shutdown).unwrap();
    let mode = std::fs::metadata(&dead).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o666);
    assert!(LocalClient::connect(&dead).await.is_ok());
}

#[tokio::test]
async fn the_file_goes_with_the_daemon() {
    let world = world();
    let client = LocalClient::connect(&world.path).await.unwrap();
    let drained = world.shutdown.finish(PATIENCE).await;
    assert_eq!(drained, millrace_runtime::Drained::Cleanly);
    assert!(!world.path.exists());
    let failure = client.call(&DescribeMount {}, PATIENCE).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Unavailable);
    let failure = LocalClient::connect(&world.path).await.unwrap_err();
    assert_eq!(failure.kind, ErrorKind::Unavailable);
}

#[tokio::test]
async fn a_name_that_another_daemon_has_taken_stays_when_the_first_ends() {
    let world = world();
    std::fs::remove_file(&world.path).unwrap();
    let second = Shutdown::new();
    LocalServer::start(&world.path, Arc::new(Mount), &second).unwrap();
    world.shutdown.finish(PATIENCE).await;
    let client = LocalClient::connect(&world.path).await.unwrap();
    client.call(&DescribeMount {}, PATIENCE).await.unwrap();
    second.finish(PATIENCE).await;
    assert!(!world.path.exists());
}

/// Returns when the daemon has hung up.
async fn is_ended(stream: &mut UnixStream) {
    let read = tokio::time::timeout(PATIENCE, read_frame(stream)).await;
    assert!(read.expect("it ends in time").unwrap().is_none());
}

#[tokio::test]
async fn who_connects_and_asks_nothing_is_hung_up_on_and_others_are_served() {
    let limits =
        Limits { idle: Duration::from_millis(200), connections: 2, connections_of_user: 2 };
    let world = world_within(limits);
    let mut silent = Vec::new();
    for _ in 0..2 {
        silent.push(UnixStream::connect(&world.path).await.unwrap());
    }
    for stream in &mut silent {
        is_ended(stream).await;
    }
    let client = LocalClient::connect(&world.path).await.unwrap();
    client.call(&DescribeMount {}, PATIENCE).await.unwrap();
}

#[tokio::test]
async fn past_the_places_of_a_user_its_connections_are_refused_until_one_is_free() {
    let limits = Limits { connections: 2, connections_of_user: 2, ..Limits::default() };
    let world = world_within(limits);
    let mut held = Vec::new();
    for _ in 0..2 {
        let client = LocalClient::connect(&world.path).await.unwrap();
        client.call(&DescribeMount {}, PATIENCE).await.unwrap();
        held.push(client);
    }
    let mut refused = UnixStream::connect(&world.path).await.unwrap();
    is_ended(&mut refused).await;
    held.pop();
    place_is_free(&world).await;
}

/// Returns when there is a place again.
async fn place_is_free(world: &World) {
    let served = async {
        loop {
            let client = LocalClient::connect(&world.path).await.unwrap();
            if client.call(&DescribeMount {}, PATIENCE).await.is_ok() {
                return;
            }
        }
    };
    tokio::time::timeout(PATIENCE, served).await.expect("the place is free soon");
}

#[tokio::test]
async fn who_does_not_take_its_answer_is_hung_up_on() {
    let limits =
        Limits { idle: Duration::from_millis(200), connections: 1, connections_of_user: 1 };
    let world = world_of(Arc::new(Talker), limits);
    let mut deaf = UnixStream::connect(&world.path).await.unwrap();
    let asked = Shape::Request { kind: RequestKind::DescribeMount, deadline_ms: 0 };
    let message = millrace_protocol::codec::encode(&DescribeMount {});
    write_frame(&mut deaf, asked, 1, &message).await.unwrap();
    deaf.readable().await.unwrap();
    place_is_free(&world).await;
}
