//! Another engine for the store: a start makes it anew, whichever was there before, and nothing
//! that the one before has left is ever taken for what it was.

use std::fs;

use millrace_metadata_server::engine::StoreKind;
use millrace_types::LogIndex;
use tempfile::TempDir;

use crate::{
    chance::{for_each_seed, pick},
    commands::Commands,
    engine::{ENGINES, ON_DISK, Server, copy, rebuilt},
    replay::leave_marker,
    snapshots::tick_and_wait,
    trust::doubt,
};

/// Executes so many random commands.
fn go_on(server: &Server, commands: Commands, count: u64) -> Commands {
    let mut commands = commands;
    let time = server.time.clone();
    server.turn(move |core| {
        for _ in 0..count {
            let next = commands.next(core.view());
            time.advance(next.pause);
            drop(core.execute(next.operation, next.command));
        }
        commands
    })
}

/// The folders of engines that are there.
fn folders(server: &Server) -> Vec<&'static str> {
    let all = ENGINES.into_iter().filter_map(StoreKind::folder);
    all.filter(|folder| server.settings.dir.join(folder).exists()).collect()
}

#[test]
fn a_start_with_another_engine_shows_the_same_and_goes_on_and_back_again() {
    for_each_seed(1, |random| {
        let dir = TempDir::new().unwrap();
        let mut server = Server::start(&dir.path().join("metadata"), StoreKind::Sled);
        let mut commands = Commands::new(random.clone());
        for round in 0..8 {
            commands = go_on(&server, commands, 200);
            let last = server.turn(|core| core.last_index());
            let present = server.settings.store;
            let others: Vec<_> = ENGINES.into_iter().filter(|store| *store != present).collect();
            let next = *pick(&random, &others).unwrap();
            server.stop();
            server.settings.store = next;
            server.begin();
            let what = format!("round {round}, on {}", next.name());
            assert!(server.turn(|core| core.last_index()) > last, "{what}");
            server.contents().assert_equal(&rebuilt(&server.log_dir()), &what);
            // The random commands doubt by themselves now and then.
            let reason = doubt(&server).unwrap_or_default();
            assert!(!reason.contains("made anew"), "{what}: nothing is wrong with the log");
            let own: Vec<_> = next.folder().into_iter().collect();
            assert_eq!(folders(&server), own, "{what}: what is not used is gone");
        }
    });
}

/// The other's folder is there again, as after a loss of power that undid its removal, or put there
/// by somebody: it shows an index that the log has, and is not this run's store all the same.
#[test]
fn a_folder_that_another_run_has_left_is_not_believed() {
    for [one, other] in [ON_DISK, [ON_DISK[1], ON_DISK[0]]] {
        let dir = TempDir::new().unwrap();
        let mut server = Server::start(&dir.path().join("metadata"), one);
        crate::trust::go_on(&server, 5);
        server.stop();
        // Something that no log says.
        let mut store = server.open_store();
        let mut batch = millrace_metadata_server::store::Batch::default();
        batch.put(b"z".to_vec(), b"left by nobody".to_vec());
        store.commit(&batch).unwrap();
        store.checkpoint().unwrap();
        drop(store);
        let left = dir.path().join("left");
        copy(&server.store_dir(), &left);

        server.settings.store = other;
        server.begin();
        server.stop();
        server.settings.store = one;
        copy(&left, &server.store_dir());
        server.begin();
        server.contents().assert_equal(&rebuilt(&server.log_dir()), one.name());
    }
}

/// With the marker of a run of the other engine that lost its power: then the log is doubted too.
#[test]
fn another_engine_does_not_hide_that_the_machine_went_down() {
    let dir = TempDir::new().unwrap();
    let mut server = Server::start(&dir.path().join("metadata"), StoreKind::Sled);
    server.stop();
    leave_marker(&server.settings, "another boot");
    server.settings.store = StoreKind::Lsm;
    server.begin();
    assert!(doubt(&server).unwrap().contains("the machine went down"));
}

/// Snapshots belong to no engine: the other one begins with the newest.
#[test]
fn another_engine_begins_with_the_snapshot_when_the_head_of_the_log_is_gone() {
    for [one, other] in [ON_DISK, [ON_DISK[1], ON_DISK[0]]] {
        let dir = TempDir::new().unwrap();
        let mut server = Server::start(&dir.path().join("metadata"), one);
        server.settings.snapshot_bytes = 1;
        server.settings.segment_bytes = 1 << 10;
        server.restart();
        for _ in 0..3 {
            crate::trust::go_on(&server, 100);
            tick_and_wait(&server);
        }
        let log = millrace_metadata_server::log::segment::list(
            &millrace_metadata_server::files::MachineFiles,
            &server.log_dir(),
        );
        assert!(log.unwrap()[0].0 > LogIndex(1), "the head of the log is gone");
        let before = server.contents();
        server.stop();
        fs::remove_dir_all(server.store_dir()).unwrap();
        server.settings.store = other;
        server.begin();
        let shown = server.contents();
        let inodes = |pairs: &[(Vec<u8>, Vec<u8>)]| -> Vec<_> {
            pairs.iter().filter(|(key, _)| b"IDCQ".contains(&key[0])).cloned().collect()
        };
        assert!(inodes(&before.0) == inodes(&shown.0), "{}", other.name());
        assert_eq!(doubt(&server), None);
    }
}
