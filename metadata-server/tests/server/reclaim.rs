//! The reclaim queue: what a target says it has freed leaves it, unless that was said of another
//! run of the server.

use millrace_metadata_server::{
    command::{Command, ReclaimOrphans, RegisterHost},
    engine::{Core, StoreKind},
    ops::{self, Client},
};
use millrace_protocol::{
    cluster::{AcknowledgeReclaim, FetchReclaim},
    session::Role,
    target::ContentName,
};
use millrace_types::{ByteLen, ContentGeneration, HostId, TargetId};

use crate::engine::Server;

const TARGET: TargetId = TargetId([3; 8]);
const HOST: HostId = HostId([4; 16]);

fn daemon() -> Client {
    Client {
        role: Role::Target,
        host: HOST,
        fingerprint: [0; 32],
        subtree: None,
        squash_root: false,
        settled: Vec::new(),
    }
}

fn register(server: &Server) {
    let register = RegisterHost {
        host: HOST,
        name: "store-1".to_owned(),
        addresses: vec!["127.0.0.1:7000".to_owned()],
        targets: vec![(TARGET, ByteLen(1 << 30))],
    };
    server.turn(|core| core.execute(None, Command::RegisterHost(register))).unwrap();
}

/// Puts one content into the queue, which no file has.
fn queue(server: &Server) {
    server.turn(|core| {
        let content =
            ContentName { inode: core.new_inode_id().unwrap(), generation: ContentGeneration(1) };
        let reclaim = ReclaimOrphans { target: TARGET, contents: vec![content] };
        core.execute(None, Command::ReclaimOrphans(reclaim)).unwrap();
        core.syncer().sync_all().unwrap();
    });
}

/// The positions that the target is told.
fn told(server: &Server, entries_max: u32) -> Vec<u64> {
    let fetch = FetchReclaim { target: TARGET, entries_max };
    let work = move |core: &mut _| ops::cluster::reclaim(core, &daemon(), &fetch);
    let (batch, _) = server.turn(work).unwrap();
    batch.entries.iter().map(|entry| entry.position).collect()
}

fn acknowledge(server: &Server, through: u64) {
    let done = AcknowledgeReclaim { target: TARGET, through };
    let work = move |core: &mut _| ops::cluster::acknowledge_reclaim(core, &daemon(), &done);
    drop(server.turn(work).unwrap());
}

#[test]
fn a_target_that_is_full_is_told_of_what_is_not_synced_yet_and_what_to_wait_for() {
    let dir = tempfile::tempdir().unwrap();
    let server = Server::start(dir.path(), StoreKind::Memory);
    register(&server);
    queue(&server);
    server.turn(|core| {
        let content =
            ContentName { inode: core.new_inode_id().unwrap(), generation: ContentGeneration(1) };
        let reclaim = ReclaimOrphans { target: TARGET, contents: vec![content] };
        core.execute(None, Command::ReclaimOrphans(reclaim)).unwrap();
    });
    assert_eq!(told(&server, 100).len(), 1, "the other may be lost with the power");
    let fetch = FetchReclaim { target: TARGET, entries_max: FetchReclaim::AT_ONCE };
    let asked = move |core: &mut Core| {
        let answer = ops::cluster::reclaim(core, &daemon(), &fetch);
        (answer, core.last_index(), core.syncer().state().synced)
    };
    let (answer, last, synced) = server.turn(asked);
    let (batch, index) = answer.unwrap();
    assert_eq!((batch.entries.len(), index), (2, last));
    assert!(synced < last, "the answer waits until it is");
}

#[test]
fn what_was_freed_for_another_run_of_the_server_is_told_once_more_and_never_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let mut server = Server::start(dir.path(), StoreKind::Memory);
    register(&server);
    queue(&server);
    queue(&server);
    // Late, of a log that went on further than this one does.
    acknowledge(&server, u64::MAX);
    let all = told(&server, 100);
    assert_eq!(all.len(), 2);
    server.restart();
    acknowledge(&server, all[1]);
    assert_eq!(told(&server, 1), all[..1], "this run has told nothing yet");
    acknowledge(&server, all[1]);
    assert_eq!(told(&server, 100), all[1..], "no more than was told");
    acknowledge(&server, all[1]);
    assert!(told(&server, 100).is_empty());
}
