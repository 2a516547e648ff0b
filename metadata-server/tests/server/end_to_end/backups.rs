//! What backups take of the server's disk, and for how long.

use std::{
    fs,
    path::Path,
    time::{Duration, Instant},
};

use millrace_protocol::{
    backup::{BACKUP_PIECE_MAX, BackupState, PrepareBackup, ReadBackup},
    session::Role,
};
use millrace_transport::{Body, CallOptions};

use super::cluster::{Cluster, Node, PATIENCE, grant};

/// Has the server make a backup, and reads all of it.
async fn fetch(operator: &Node, backup: u64) {
    let size = loop {
        let reply = operator.ask(&PrepareBackup { backup }).await.unwrap();
        match reply.state {
            BackupState::Ready => break reply.size.0,
            BackupState::Preparing => {}
            BackupState::Failed(failure) => panic!("{failure}"),
        }
    };
    let mut offset = 0;
    while offset < size {
        let read = ReadBackup { backup, offset, len: BACKUP_PIECE_MAX };
        let options = CallOptions::bulk(PATIENCE);
        let fetched = operator.peer.exchange_until(&read, Body::default(), options).await;
        offset += fetched.unwrap().1.len() as u64;
    }
}

/// Files without a name in the directory that this process has open.
fn nameless(dir: &Path) -> usize {
    let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
    let files = open.filter_map(|entry| fs::read_link(entry.path()).ok());
    let is_nameless = |file: &Path| file.to_string_lossy().ends_with("(deleted)");
    files.filter(|file| file.starts_with(dir) && is_nameless(file)).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn backups_that_were_read_are_in_nobodys_way_and_give_their_space_back() {
    let cluster = Cluster::start().await;
    let operator = cluster.node(&grant(Role::Admin, 9));
    // One more than there may be at a time, and no time passes.
    for backup in 1..=5 {
        fetch(&operator, backup).await;
    }
    let snapshots = cluster.data().join("snapshots").canonicalize().unwrap();
    cluster.time.advance(Duration::from_secs(21));
    let begun = Instant::now();
    while nameless(&snapshots) > 0 {
        assert!(begun.elapsed() < PATIENCE, "the server still has a backup");
        cluster.tick().await;
    }
    cluster.stop().await;
}
