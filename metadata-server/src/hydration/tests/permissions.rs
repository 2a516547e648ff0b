//! Users may ask about paths, and start jobs on them, as far as they may look there.

use millrace_protocol::{
    admin::{FileState, JobKind, JobState, Keep, ResolveConflict, ShowState, StartJob, StateReply},
    bucket::ShowFile,
    cluster::LinkMode,
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, FileName, InodeId};

use super::server::{ROOT, World};
use crate::{
    command::{Command, SetAttributes},
    hydration::{Environment as _, walk::child},
};

const PRIVATE: &str = "/data/private";

fn user() -> Caller {
    Caller { uid: 1000, gid: 1000, groups: Vec::new() }
}

/// A bucket with `open/file` and `private/below/file`; `private` is root's alone.
async fn unlisted() -> (World, InodeId) {
    let world = World::new(LinkMode::ImportExport).await;
    for key in ["open/file", "private/below/file"] {
        world.put(key, b"12345");
    }
    let private = world.find(PRIVATE).await.unwrap().id;
    let close = SetAttributes {
        caller: Some(ROOT),
        inode: private,
        mode: Some(0o700),
        ..SetAttributes::default()
    };
    world.server.execute(Command::SetAttributes(close), false).await.unwrap();
    (world, private)
}

/// The same, all of it imported.
async fn world() -> World {
    let (world, _) = unlisted().await;
    let job = world.job(JobKind::Import, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Succeeded, 0));
    world
}

async fn state(
    world: &World,
    top: &str,
    caller: Caller,
    path: &str,
) -> Result<StateReply, Failure> {
    let request = ShowState { caller, path: path.as_bytes().to_vec() };
    world.hydration.show_state(top.as_bytes(), &request).await
}

#[tokio::test]
async fn nothing_is_told_of_what_lies_in_a_directory_that_the_user_may_not_search() {
    let world = world().await;
    // There, not there, and behind what is no directory: all the same.
    for name in ["below", "below/file", "none", "none/file", "below/file/none"] {
        let path = format!("{PRIVATE}/{name}");
        let told = state(&world, "", user(), &path).await.map(drop);
        let job =
            StartJob { caller: user(), kind: JobKind::Hydrate, path: path.as_bytes().to_vec() };
        let started = world.hydration.start_job(b"", &job).await.map(drop);
        let path = path.as_bytes().to_vec();
        let resolve = ResolveConflict { caller: user(), path, keep: Keep::Bucket };
        let resolved = world.hydration.resolve_conflict(b"", &resolve).await.map(drop);
        for refused in [told, started, resolved] {
            assert_eq!(refused.unwrap_err().kind, ErrorKind::PermissionDenied, "{name}");
        }
    }
    assert!(state(&world, "", user(), "/data/open/file").await.is_ok());
    assert!(state(&world, "", ROOT, "/data/private/below/file").await.is_ok());
}

#[tokio::test]
async fn the_bucket_is_not_asked_for_names_behind_a_closed_door() {
    let (world, private) = unlisted().await;
    assert!(state(&world, "", user(), &format!("{PRIVATE}/below/file")).await.is_err());
    let name = FileName::parse(b"below").unwrap();
    let known = child(&*world.server, private, name.clone()).await.unwrap();
    assert_eq!(known, None, "nobody who may has looked");
    assert!(state(&world, "", ROOT, &format!("{PRIVATE}/below/file")).await.is_ok());
    assert!(child(&*world.server, private, name).await.unwrap().is_some());
}

#[tokio::test]
async fn a_tree_is_counted_and_fetched_as_far_as_the_user_may_look() {
    let world = world().await;
    let all = state(&world, "", ROOT, "/data").await.unwrap();
    assert_eq!((all.size.0, all.unlisted_directories), (10, 0));
    let seen = state(&world, "", user(), "/data").await.unwrap();
    assert_eq!((seen.size.0, seen.unlisted_directories), (5, 1));
    for kind in [JobKind::Hydrate, JobKind::Import] {
        let request = StartJob { caller: user(), kind, path: b"/data".to_vec() };
        let id = world.hydration.start_job(b"", &request).await.unwrap().id;
        let job = world.run_until(|job| job.id == id && job.state.is_final()).await;
        let failed: Vec<_> =
            job.failures.iter().map(|failed| (&failed.path[..], failed.failure.kind)).collect();
        let expected = [(PRIVATE.as_bytes(), ErrorKind::PermissionDenied)];
        assert_eq!(failed, expected, "{kind:?}");
    }
}

#[tokio::test]
async fn what_lies_above_the_top_of_a_restricted_client_does_not_concern_its_users() {
    let world = world().await;
    let told = state(&world, "/data/private/below", user(), "/file").await.unwrap();
    assert_eq!(told.size.0, 5);
    let request = StartJob { caller: user(), kind: JobKind::Hydrate, path: b"/".to_vec() };
    let top = b"/data/private/below";
    let job = world.hydration.start_job(top, &request).await.unwrap();
    assert_eq!(job.path, top);
    let out = state(&world, "/data/private/below", user(), "/../x").await.unwrap_err();
    assert_eq!(out.kind, ErrorKind::InvalidArgument);
}

#[tokio::test]
async fn a_file_is_told_of_by_its_number_to_who_may_read_it_and_is_let_in() {
    let world = world().await;
    let open = world.find("/data/open/file").await.unwrap().id;
    let ask = async |top: &str, caller, inode| {
        let request = ShowFile { caller, inode, counted: true };
        world.hydration.show_file(top.as_bytes(), &request).await.map_err(|failure| failure.kind)
    };
    let told = ask("", user(), open).await.unwrap();
    assert_eq!((told.state, told.size.0, told.hydrated.0), (FileState::Released, 5, 0));
    let (url, tag) = told.origin.unwrap();
    assert!(url.ends_with("/open/file") && !tag.is_empty(), "{url} {tag}");
    assert!(ask("/data/open", user(), open).await.is_ok());
    assert_eq!(ask("/data/private", user(), open).await, Err(ErrorKind::Forbidden));
    let directory = world.find("/data/open").await.unwrap().id;
    assert_eq!(ask("", user(), directory).await, Err(ErrorKind::InvalidArgument));
    assert_eq!(ask("", user(), InodeId(99_999)).await, Err(ErrorKind::Stale));
    let close = SetAttributes {
        caller: Some(ROOT),
        inode: open,
        mode: Some(0o600),
        ..SetAttributes::default()
    };
    world.server.execute(Command::SetAttributes(close), false).await.unwrap();
    assert_eq!(ask("", user(), open).await, Err(ErrorKind::PermissionDenied));
}
