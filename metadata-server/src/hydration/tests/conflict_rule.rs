//! Rows of the table in docs/hydration.md, "The conflict rule": what a file is, and what became of
//! its object.

use std::fs;

use millrace_protocol::{
    admin::{Job, JobKind, JobState},
    cluster::LinkMode,
};
use millrace_types::{ErrorKind, InodeId, MIB};

use super::{
    moved::{list, names, refresh_all, remove, rename},
    server::{Fault, World},
};
use crate::namespace::ObjectState;

const FILE: &str = "/data/file";

/// What somebody else put there.
const THEIRS: &[u8] = b"somebody else's";

/// What happened to an object that was seen before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Changed,
    Deleted,
    /// Deleted and made anew, and nobody here looked in between.
    Recreated,
}

const FATES: [Fate; 3] = [Fate::Changed, Fate::Deleted, Fate::Recreated];

fn meet(world: &World, key: &str, fate: Fate) {
    if fate != Fate::Changed {
        fs::remove_file(world.object(key)).unwrap();
    }
    if fate != Fate::Deleted {
        world.put(key, THEIRS);
    }
}

/// The object as it is now; `None` when there is none.
fn object(world: &World, key: &str) -> Option<Vec<u8>> {
    fs::read(world.object(key)).ok()
}

/// It is gone for a moment, and the same version is there again.
fn take_away_and_bring_back(world: &World, key: &str, while_gone: impl FnOnce()) {
    let elsewhere = tempfile::tempdir_in(world.bucket_dir.path().parent().unwrap()).unwrap();
    let kept = elsewhere.path().join("kept");
    fs::rename(world.object(key), &kept).unwrap();
    while_gone();
    fs::rename(kept, world.object(key)).unwrap();
}

/// Somebody looks at the object of a file; what that says is of no interest.
async fn look(world: &World, inode: InodeId) {
    drop(world.hydration.importer.object(inode).await);
}

async fn export(world: &World, path: &str) -> Job {
    world.job(JobKind::Export, path).await
}

async fn imported(world: &World) -> InodeId {
    world.put("file", b"imported");
    // To its end, so that what is put later is not found by that listing.
    list(world, "/data").await;
    world.find(FILE).await.unwrap().id
}

async fn exported(world: &World) -> InodeId {
    list(world, "/data").await;
    let inode = world.write(FILE, b"exported").await;
    world.export(FILE).await;
    inode
}

/// Is as the object is now, or gone with it.
async fn follows(world: &World, inode: InodeId, fate: Fate) {
    match fate {
        Fate::Deleted => {
            assert_eq!(world.find(FILE).await.unwrap_err().kind, ErrorKind::NotFound);
        }
        Fate::Changed | Fate::Recreated => {
            let now = world.find(FILE).await.unwrap();
            assert_eq!((now.id, now.size), (inode, THEIRS.len() as u64), "{fate:?}");
            assert_eq!(world.state(FILE).await, ObjectState::Clean, "{fate:?}");
        }
    }
}

/// Is a conflict, and the bucket as it was left.
async fn conflicts(world: &World, fate: Fate) {
    assert_eq!(world.state(FILE).await, ObjectState::Conflict, "{fate:?}");
    let there = (fate != Fate::Deleted).then(|| THEIRS.to_vec());
    assert_eq!(object(world, "file"), there, "{fate:?}");
}

#[tokio::test]
async fn what_is_clean_or_exported_follows_its_object() {
    for fate in FATES {
        for mine in [false, true] {
            let world = World::new(LinkMode::ImportExport).await;
            let inode = if mine { exported(&world).await } else { imported(&world).await };
            meet(&world, "file", fate);
            look(&world, inode).await;
            follows(&world, inode, fate).await;
        }
    }
}

#[tokio::test]
async fn what_is_clean_or_exported_follows_when_its_directory_is_listed() {
    for fate in FATES {
        for mine in [false, true] {
            let world = World::new(LinkMode::ImportExport).await;
            let inode = if mine { exported(&world).await } else { imported(&world).await };
            meet(&world, "file", fate);
            refresh_all(&world).await;
            follows(&world, inode, fate).await;
        }
    }
}

#[tokio::test]
async fn what_is_dirty_is_a_conflict_whoever_finds_it_first() {
    for fate in FATES {
        for by_export in [false, true] {
            let world = World::new(LinkMode::ImportExport).await;
            imported(&world).await;
            let inode = world.write(FILE, b"changed").await;
            meet(&world, "file", fate);
            if by_export {
                let job = export(&world, FILE).await;
                assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict, "{fate:?}");
            } else {
                look(&world, inode).await;
            }
            conflicts(&world, fate).await;
        }
    }
}

#[tokio::test]
async fn what_is_open_for_writing_is_a_conflict_and_writing_goes_on() {
    for fate in FATES {
        let world = World::new(LinkMode::ImportExport).await;
        let inode = imported(&world).await;
        world.server.open_write(inode).await;
        meet(&world, "file", fate);
        look(&world, inode).await;
        conflicts(&world, fate).await;
        world.server.commit(inode, 3).await;
        conflicts(&world, fate).await;
        assert_eq!(world.find(FILE).await.unwrap().size, 3);
    }
}

#[tokio::test]
async fn an_object_that_appeared_where_a_file_was_made_is_a_conflict_by_a_listing() {
    let world = World::new(LinkMode::ImportExport).await;
    list(&world, "/data").await;
    world.write(FILE, b"mine").await;
    world.put("file", THEIRS);
    refresh_all(&world).await;
    conflicts(&world, Fate::Changed).await;
}

/// The object changes while its successor is sent: whole at once, or by parts.
#[tokio::test]
async fn an_object_that_changes_while_its_successor_is_sent_stands() {
    for fate in FATES {
        for len in [5, 20 * MIB] {
            let world = World::new(LinkMode::ImportExport).await;
            imported(&world).await;
            let bytes: Vec<u8> = (0..=250_u8).cycle().take(usize::try_from(len).unwrap()).collect();
            world.write(FILE, &bytes).await;
            let path = || world.object("file");
            let faults = match fate {
                Fate::Deleted => vec![Fault::Delete(path())],
                // A small file is one request: what happens in between is one step.
                Fate::Recreated if len > MIB => {
                    vec![Fault::Delete(path()), Fault::Put(path(), THEIRS)]
                }
                Fate::Changed | Fate::Recreated => vec![Fault::Put(path(), THEIRS)],
            };
            world.server.faults.lock().unwrap().extend(faults);
            let job = export(&world, FILE).await;
            assert_eq!(job.state, JobState::Failed, "{fate:?} {len}");
            assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict, "{fate:?} {len}");
            conflicts(&world, fate).await;
            assert!(world.bucket.list_uploads("file").await.unwrap().is_empty(), "{fate:?}");
        }
    }
}

#[tokio::test]
async fn a_renamed_file_is_read_from_its_old_object() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = imported(&world).await;
    rename(&world, FILE, "/data/moved").await;
    let job = world.job(JobKind::Hydrate, "/data/moved").await;
    assert_eq!((job.state, job.bytes_done), (JobState::Succeeded, 8));
    let items = world.server.items_of("hydrate");
    let origin = items[0].content.origin.as_ref().unwrap();
    assert_eq!((items[0].content.inode, origin.key.as_str()), (inode, "file"));
    assert_eq!(names(&world, "/data").await, ["moved"]);
}

#[tokio::test]
async fn a_renamed_file_is_not_put_over_what_somebody_made_there() {
    let world = World::new(LinkMode::ImportExport).await;
    let inode = imported(&world).await;
    world.server.files.lock().unwrap().insert(inode, b"imported".to_vec());
    rename(&world, FILE, "/data/moved").await;
    world.put("moved", THEIRS);
    let job = export(&world, "/data/moved").await;
    let failure = &job.failures[0].failure;
    assert_eq!(failure.kind, ErrorKind::Conflict);
    assert!(failure.message.contains("rename the file, or remove the object"), "{failure}");
    assert_eq!(object(&world, "moved").as_deref(), Some(THEIRS));
    assert_eq!(world.state("/data/moved").await, ObjectState::Clean);
}

#[tokio::test]
async fn what_was_deleted_here_comes_back_with_another_version_and_not_with_its_own() {
    for fate in FATES {
        let world = World::new(LinkMode::ImportExport).await;
        let inode = imported(&world).await;
        remove(&world, FILE, false).await;
        meet(&world, "file", fate);
        refresh_all(&world).await;
        let now = world.find(FILE).await;
        match fate {
            Fate::Deleted => assert_eq!(now.unwrap_err().kind, ErrorKind::NotFound),
            Fate::Changed | Fate::Recreated => {
                let now = now.unwrap();
                assert_eq!(now.size, THEIRS.len() as u64, "{fate:?}");
                assert_ne!(now.id, inode, "{fate:?}: a new file");
            }
        }
    }
    let world = World::new(LinkMode::ImportExport).await;
    imported(&world).await;
    remove(&world, FILE, false).await;
    take_away_and_bring_back(&world, "file", || {});
    refresh_all(&world).await;
    assert_eq!(world.find(FILE).await.unwrap_err().kind, ErrorKind::NotFound);
    assert_eq!(object(&world, "file").as_deref(), Some(&b"imported"[..]));
}

#[tokio::test]
async fn a_file_in_the_place_of_a_deleted_one_replaces_the_version_that_was_deleted_and_no_other() {
    for fate in [Fate::Changed, Fate::Recreated] {
        for by_export in [false, true] {
            let world = World::new(LinkMode::ImportExport).await;
            imported(&world).await;
            remove(&world, FILE, false).await;
            world.write(FILE, b"anew").await;
            meet(&world, "file", fate);
            if by_export {
                let job = export(&world, FILE).await;
                assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict, "{fate:?}");
            } else {
                refresh_all(&world).await;
            }
            conflicts(&world, fate).await;
        }
    }
    let world = World::new(LinkMode::ImportExport).await;
    imported(&world).await;
    remove(&world, FILE, false).await;
    world.write(FILE, b"anew").await;
    take_away_and_bring_back(&world, "file", || {});
    refresh_all(&world).await;
    assert_eq!(world.state(FILE).await, ObjectState::Local);
    world.export(FILE).await;
    assert_eq!(object(&world, "file").as_deref(), Some(&b"anew"[..]));
}
