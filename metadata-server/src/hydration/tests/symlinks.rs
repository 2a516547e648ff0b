//! Symbolic links and the objects that hold their targets.

use std::fs;

use millrace_object_source::{EXPORT_ID_KEY, PosixAttributes};
use millrace_protocol::{
    admin::{AttributeSource, JobKind, JobState, SetLinkOptions},
    cluster::LinkMode,
    metadata::{FileKind, RenameMode},
};
use millrace_types::{ErrorKind, FileName};

use super::{
    refresh::symlink,
    server::{ROOT, World},
};
use crate::{
    command::{self, Command},
    hydration::Environment,
};

async fn rename(world: &World, from: &str, to: &str) {
    let data = world.find("/data").await.unwrap().id;
    let rename = command::Rename {
        caller: ROOT,
        source_parent: data,
        source_name: FileName::parse(from.as_bytes()).unwrap(),
        target_parent: data,
        target_name: FileName::parse(to.as_bytes()).unwrap(),
        mode: RenameMode::Replace,
        readers: Vec::new(),
    };
    world.server.execute(Command::Rename(rename), false).await.unwrap();
}

async fn remove(world: &World, name: &str) {
    let remove = command::Remove {
        caller: ROOT,
        parent: world.find("/data").await.unwrap().id,
        name: FileName::parse(name.as_bytes()).unwrap(),
        directory: false,
        readers: Vec::new(),
    };
    world.server.execute(Command::Remove(remove), false).await.unwrap();
}

#[tokio::test]
async fn a_link_that_leads_elsewhere_by_now_takes_the_place_of_its_object() {
    let world = World::new(LinkMode::ImportExport).await;
    symlink(&world, "/data/latest", "step-100").await;
    world.export("/data").await;
    world.export("/data").await;
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"step-100");
    for (target, is_renamed) in [("step-200", true), ("step-3000", false)] {
        match is_renamed {
            true => {
                symlink(&world, "/data/latest.tmp", target).await;
                rename(&world, "latest.tmp", "latest").await;
            }
            false => {
                remove(&world, "latest").await;
                symlink(&world, "/data/latest", target).await;
            }
        }
        world.export("/data").await;
        assert_eq!(fs::read(world.object("latest")).unwrap(), target.as_bytes());
        let head = world.bucket.head("latest").await.unwrap();
        assert_eq!(PosixAttributes::from_metadata(&head.metadata).mode, Some(0o120_777));
        assert!(head.metadata.value(EXPORT_ID_KEY).is_some());
    }
}

#[tokio::test]
async fn the_object_of_a_link_stays_while_a_file_that_was_moved_away_still_needs_it() {
    let world = World::new(LinkMode::ImportExport).await;
    symlink(&world, "/data/latest", "step-100").await;
    world.export("/data").await;
    remove(&world, "latest").await;
    // A listing that does not ask for each object takes it for a file.
    let path = b"/data".to_vec();
    let attributes = Some(AttributeSource::Listing);
    let options = SetLinkOptions { path, refresh_seconds: None, attributes };
    world.hydration.set_link_options(&options).await.unwrap();
    world.job(JobKind::Import, "/data").await;
    rename(&world, "latest", "note").await;
    let note = world.find("/data/note").await.unwrap();
    assert_eq!((note.kind, note.size), (FileKind::Regular, 8));
    symlink(&world, "/data/latest", "step-200").await;
    let job = world.job(JobKind::Export, "/data/latest").await;
    let failure = &job.failures[0].failure;
    assert_eq!(failure.kind, ErrorKind::Conflict);
    assert!(failure.message.contains("/data/note"), "{failure}");
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"step-100");
    world.server.present.lock().unwrap().insert(note.id, 8);
    world.export("/data/latest").await;
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"step-200");
}

#[tokio::test]
async fn a_link_is_put_over_nothing_but_an_own_link() {
    let world = World::new(LinkMode::ImportExport).await;
    // Of a file that has another name by now, and may need it.
    world.write("/data/model", b"weights").await;
    world.export("/data").await;
    rename(&world, "model", "old").await;
    symlink(&world, "/data/model", "old").await;
    symlink(&world, "/data/theirs", "elsewhere").await;
    world.put("theirs", b"of somebody else");
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 2), "{:?}", job.failures);
    assert!(job.failures.iter().all(|one| one.failure.kind == ErrorKind::Conflict));
    assert_eq!(fs::read(world.object("model")).unwrap(), b"weights");
    assert_eq!(fs::read(world.object("theirs")).unwrap(), b"of somebody else");
    // What was exported before a backup was put back may be newer than what is here.
    symlink(&world, "/data/latest", "step-100").await;
    world.export("/data/latest").await;
    let restored = Command::Restored("a backup of yesterday".to_owned());
    world.server.execute(restored, true).await.unwrap();
    remove(&world, "latest").await;
    symlink(&world, "/data/latest", "step-200").await;
    let job = world.job(JobKind::Export, "/data/latest").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict, "{:?}", job.failures);
    assert_eq!(fs::read(world.object("latest")).unwrap(), b"step-100");
}
