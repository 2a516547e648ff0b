//! A file system whose first target has not registered yet, and one whose targets are away.

use std::time::Duration;

use millrace_metadata_server::{engine::StoreKind, ops};
use millrace_protocol::{
    cluster::Heartbeat,
    delegation::Delegate,
    metadata::{CreateUnnamed, FileSystemUse, NewNode},
    session::Caller,
};
use millrace_types::{ErrorKind, GIB, InodeId};

use crate::{
    engine::Server,
    hosts::{Host, register_targets, run, target_report, targets_daemon},
};

#[test]
fn before_the_first_target_a_file_is_refused_at_once_as_on_a_full_disk() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), StoreKind::Memory);
    let mut host = Host::open(&server, 1);
    let make = |host: &mut Host, text: &str, node| host.make(&server, InodeId::ROOT, text, node);
    for _ in 0..2 {
        let refused = make(&mut host, "file", NewNode::Regular).unwrap_err();
        assert_eq!(refused, ErrorKind::NoSpace);
        assert!(!refused.is_transient(), "no client waits for it");
    }
    let request = host.create(InodeId::ROOT, "file", NewNode::Regular);
    let failure = run(&server, &host.client, request, ops::create::create).unwrap_err();
    assert!(failure.message.contains("no storage target"), "{failure}");
    assert_eq!(unnamed(&server, &mut host), Err(ErrorKind::NoSpace));
    // What needs no target can be made, and nobody is told to make files by itself.
    make(&mut host, "directory", NewNode::Directory).unwrap();
    make(&mut host, "link", NewNode::Symlink(b"file".to_vec())).unwrap();
    let directory = InodeId::ROOT;
    let request = Delegate { session: host.session, directory, contents_max: 1 };
    let given = run(&server, &host.client, request, ops::delegation::delegate).unwrap();
    assert_eq!(given.delegation, None);
    // Other refusals come first.
    assert_eq!(make(&mut host, "link", NewNode::Regular).unwrap_err(), ErrorKind::Exists);

    register_targets(&server);
    make(&mut host, "file", NewNode::Regular).unwrap();
    assert_eq!(unnamed(&server, &mut host), Ok(()));
}

#[test]
fn files_can_be_made_while_all_targets_are_away() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), StoreKind::Memory);
    register_targets(&server);
    // Nobody has been heard of for some leases; the host comes after that.
    server.pass(Duration::from_secs(120));
    let mut host = Host::open(&server, 1);
    host.make(&server, InodeId::ROOT, "file", NewNode::Regular).unwrap();
}

#[test]
fn room_is_told_when_the_targets_have_said_it_and_none_is_free_where_one_stays_away() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), StoreKind::Memory);
    register_targets(&server);
    let room = |server: &Server| {
        let host = Host::open(server, 1);
        let request = FileSystemUse { inode: InodeId::ROOT };
        let told = run(server, &host.client, request, ops::statfs::read);
        told.map(|told| (told.capacity_bytes, told.used_bytes)).map_err(|failure| failure.kind)
    };
    assert_eq!(room(&server), Ok((2 * GIB, 0)));
    server.restart();
    assert_eq!(room(&server), Err(ErrorKind::Busy), "nobody has told it anything yet");
    let first = Heartbeat { targets: vec![target_report(1)], hydrated_bytes: 0 };
    run(&server, &targets_daemon(), first, ops::cluster::heartbeat).unwrap();
    assert_eq!(room(&server), Err(ErrorKind::Busy), "the other may be about to");
    server.pass(Duration::from_secs(4));
    assert_eq!(room(&server), Ok((2 * GIB, GIB)), "what is away has nothing free");
}

fn unnamed(server: &Server, host: &mut Host) -> Result<(), ErrorKind> {
    let request = CreateUnnamed {
        caller: Caller::ROOT,
        operation: host.operation(),
        directory: InodeId::ROOT,
        mode: 0o600,
        umask: 0,
        nameable: true,
    };
    host.run(server, request, ops::create::create_unnamed).map(drop)
}
