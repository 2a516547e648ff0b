//! The directory of log and store: the log holds the keys that sign capabilities.

use std::{fs, os::unix::fs::PermissionsExt as _, path::Path};

use millrace_metadata_server::engine::{StartError, StoreKind};
use tempfile::TempDir;

use crate::engine::Server;

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn a_new_state_directory_is_its_owners_alone_and_what_it_lies_in_is_not_touched() {
    let dir = TempDir::new().unwrap();
    set_mode(dir.path(), 0o755);
    let state = dir.path().join("made/for/metadata");
    let mut server = Server::start(&state, StoreKind::default());
    assert_eq!(mode(&state), 0o700);
    assert_eq!(mode(dir.path()), 0o755);
    assert_ne!(mode(state.parent().unwrap()), 0o700);
    server.stop();
}

#[test]
fn a_state_directory_that_was_open_to_others_is_closed_at_the_next_start() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("metadata");
    let mut server = Server::start(&state, StoreKind::Memory);
    server.stop();
    for open in [0o755, 0o770, 0o701] {
        set_mode(&state, open);
        server.begin();
        assert_eq!(mode(&state), 0o700, "it was {open:o}");
        server.stop();
    }
}

#[test]
fn a_second_server_is_kept_off_the_directory() {
    let dir = TempDir::new().unwrap();
    let state = dir.path().join("metadata");
    let mut first = Server::start(&state, StoreKind::Memory);
    let (settings, _) = crate::engine::settings(&state, StoreKind::Memory);
    let second = millrace_metadata_server::engine::Engine::start(settings);
    assert!(matches!(second, Err(StartError::InUse(_))), "{second:?}");
    first.stop();
}
