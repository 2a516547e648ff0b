//! A disk that cannot read the newest snapshot.

use std::{path::Path, sync::Arc, time::Duration};

use millrace_metadata_server::{
    engine::{
        EngineSettings, StartError, StoreKind,
        snapshots::{Place, Purpose, Taking},
    },
    files::Files as _,
    log::segment,
    snapshot::kept,
};
use millrace_runtime::Random;
use millrace_types::LogIndex;
use tempfile::TempDir;

use super::{disk::Lie, names, world::World};
use crate::engine::{Server, settings};

/// Names that are made between two snapshots: they take several segments of the log.
const NAMES: usize = 40;

/// A server that was stopped, and whose newest snapshot cannot be read any more; its index, and
/// that of the other.
fn stopped(dir: &Path, world: &World, store: StoreKind) -> (Server, [LogIndex; 2]) {
    let (settings, time) = settings(&dir.join("metadata"), store);
    let settings = EngineSettings {
        segment_bytes: 1 << 10,
        sync_interval: Duration::from_secs(3600),
        files: Arc::new(world.clone()),
        ..settings
    };
    let mut server = Server::start_with(settings, time);
    let [_, older, newest] = ["a", "b", "c"].map(|round| {
        make_names(&server, round);
        snapshot(&server)
    });
    make_names(&server, "d");
    server.stop();
    assert_eq!(snapshots(&server, world), [newest, older], "two are kept");
    world.make_unreadable(&kept::path(&server.snapshot_dir(), newest));
    (server, [newest, older])
}

fn make_names(server: &Server, round: &'static str) {
    server.turn(move |core| {
        for number in 0..NAMES {
            let name = format!("{round}-{number}");
            let inode = core.new_inode_id().unwrap();
            core.execute(None, names::create(name.as_bytes(), inode)).unwrap();
        }
    });
}

fn snapshot(server: &Server) -> LogIndex {
    let place = Place::of(&server.settings);
    let mut taking = Taking::begin(server.handle(), &place, Purpose::Recovery).unwrap();
    while taking.step().unwrap() {}
    taking.keep().unwrap()
}

/// Those that there are, the newest first.
fn snapshots(server: &Server, world: &World) -> Vec<LogIndex> {
    kept::list(world, &server.snapshot_dir()).unwrap()
}

/// Nothing vouches for the store any more, nor says how long the log was.
fn forget_marker(server: &Server, world: &World) {
    world.remove(&server.settings.dir.join("marker")).unwrap();
}

#[test]
fn a_start_goes_on_with_the_snapshot_before_one_that_cannot_be_read() {
    for store in [StoreKind::Memory, StoreKind::Lsm] {
        let dir = TempDir::new().unwrap();
        let world = World::new(Random::seeded(1), Lie::Nothing);
        let (mut server, [_, older]) = stopped(dir.path(), &world, store);
        forget_marker(&server, &world);
        server.begin();
        assert_eq!(server.turn(|core| names::of_root(core).len()), 4 * NAMES);
        let left = snapshots(&server, &world);
        assert_eq!(left, [older], "{store:?}: the other one does not count any more");
    }
}

#[test]
fn a_log_that_ends_before_a_snapshot_that_cannot_be_read_is_refused() {
    let dir = TempDir::new().unwrap();
    let world = World::new(Random::seeded(2), Lie::Nothing);
    let (mut server, [newest, older]) = stopped(dir.path(), &world, StoreKind::Memory);
    forget_marker(&server, &world);
    let segments = segment::list(&world, &server.log_dir()).unwrap();
    for (_, path) in segments.iter().filter(|(first, _)| *first > older) {
        world.remove(path).unwrap();
    }
    let error = server.try_begin().unwrap_err();
    assert!(matches!(error, StartError::Log(_)), "{error}");
    let text = format!("the records up to {newest} were synced and are missing");
    assert!(error.to_string().contains(&text), "{error}");
}

#[test]
fn beside_a_snapshot_that_cannot_be_read_two_others_are_kept() {
    let dir = TempDir::new().unwrap();
    let world = World::new(Random::seeded(3), Lie::Nothing);
    let (mut server, [newest, older]) = stopped(dir.path(), &world, StoreKind::Lsm);
    server.begin();
    assert_eq!(server.turn(|core| names::of_root(core).len()), 4 * NAMES, "the store has them");
    let third = snapshot(&server);
    assert_eq!(snapshots(&server, &world), [third, newest, older]);
    let segments = segment::list(&world, &server.log_dir()).unwrap();
    assert!(segments[0].0 <= older.next(), "the log reaches back to the one before it");
    make_names(&server, "e");
    let fourth = snapshot(&server);
    assert_eq!(snapshots(&server, &world), [fourth, third]);
}
