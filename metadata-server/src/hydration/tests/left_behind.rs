//! Files that are renamed, replaced or removed while they are on their way to their bucket: the
//! object that is made nevertheless is known, is replaced by who takes the name, and brings no name
//! back.

use std::fs;

use millrace_protocol::{
    admin::{JobKind, JobState, Keep},
    cluster::LinkMode,
};
use millrace_types::ErrorKind;

use super::{
    conflicts::{conflict, resolve},
    server::{Fault, World},
};
use crate::{command::Command, namespace::ObjectState};

impl World {
    async fn is_there(&self, path: &str) -> bool {
        match self.find(path).await {
            Ok(_) => true,
            Err(failure) => {
                assert_eq!(failure.kind, ErrorKind::NotFound);
                false
            }
        }
    }

    /// Exports everything; while the first object is made, this happens.
    async fn export_while(&self, command: Command) {
        let meanwhile = Fault::Meanwhile(Box::new(command));
        self.server.faults.lock().unwrap().push_back(meanwhile);
        self.export_all().await;
        assert!(self.server.faults.lock().unwrap().is_empty(), "it happened");
    }

    fn content(&self, key: &str) -> Option<Vec<u8>> {
        fs::read(self.object(key)).ok()
    }
}

#[tokio::test]
async fn a_checkpoint_is_renamed_over_one_that_is_being_sent_and_takes_its_place_in_the_bucket() {
    for propagates in [false, true] {
        let world = match propagates {
            true => World::propagating().await,
            false => World::new(LinkMode::ImportExport).await,
        };
        world.write("/data/model.pt", b"first").await;
        world.write("/data/model.tmp", b"second").await;
        // Which of the two is sent first is not said: only the one must not go before the rename.
        let tmp = world.find("/data/model.tmp").await.unwrap().id;
        world.server.open_write(tmp).await;
        let rename = world.renaming("/data/model.tmp", "/data/model.pt").await;
        world.export_while(rename).await;
        assert_eq!(world.content("model.pt").as_deref(), Some(&b"first"[..]));
        world.server.commit(tmp, 6).await;
        let job = world.export_all().await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
        assert_eq!(world.content("model.pt").as_deref(), Some(&b"second"[..]));
        assert_eq!(world.state("/data/model.pt").await, ObjectState::Exported);
        if propagates {
            assert_eq!((world.deletes().await.waiting, world.deletes().await.deleted), (0, 0));
        }
    }
}

#[tokio::test]
async fn a_file_that_is_removed_while_it_is_sent_does_not_come_back_and_takes_its_object_along() {
    for propagates in [false, true] {
        let world = match propagates {
            true => World::propagating().await,
            false => World::new(LinkMode::ImportExport).await,
        };
        world.write("/data/file", b"content").await;
        let remove = world.removal("/data/file", false).await;
        world.export_while(remove).await;
        world.job(JobKind::Import, "/data").await;
        assert!(!world.is_there("/data/file").await);
        world.export_all().await;
        assert_eq!(world.content("file").is_some(), !propagates);
    }
}

#[tokio::test]
async fn a_file_that_is_renamed_while_it_is_sent_is_there_once_and_so_is_its_object() {
    let world = World::propagating().await;
    world.write("/data/old", b"content").await;
    let rename = world.renaming("/data/old", "/data/new").await;
    world.export_while(rename).await;
    world.job(JobKind::Import, "/data").await;
    assert!(!world.is_there("/data/old").await && world.is_there("/data/new").await);
    let job = world.export_all().await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(world.content("new").as_deref(), Some(&b"content"[..]));
    assert_eq!(world.content("old"), None, "its object went when the new one stood");
}

#[tokio::test]
async fn the_directory_above_may_be_renamed_and_made_anew_while_a_file_is_sent() {
    let world = World::propagating().await;
    world.make_directory("/data/run").await;
    let moved = world.write("/data/run/file", b"content").await;
    world.server.present.lock().unwrap().insert(moved, 7);
    let rename = world.renaming("/data/run", "/data/done").await;
    world.export_while(rename).await;
    world.make_directory("/data/run").await;
    world.write("/data/run/file", b"another").await;
    for _ in 0..2 {
        let job = world.export_all().await;
        assert!(job.failures.iter().all(|one| one.failure.kind != ErrorKind::Conflict), "{job:?}");
    }
    assert_eq!(world.content("done/file").as_deref(), Some(&b"content"[..]));
    assert_eq!(world.content("run/file").as_deref(), Some(&b"another"[..]));
}

#[tokio::test]
async fn a_directory_that_is_made_anew_takes_over_the_objects_of_the_one_before() {
    for is_renamed in [false, true] {
        let world = World::new(LinkMode::ImportExport).await;
        world.make_directory("/data/run").await;
        let before = world.write("/data/run/file", b"content").await;
        world.server.present.lock().unwrap().insert(before, 7);
        assert_eq!(world.export_all().await.state, JobState::Succeeded);
        match is_renamed {
            true => world.move_name("/data/run", "/data/done").await,
            false => {
                world.remove_name("/data/run/file", false).await;
                world.remove_name("/data/run", true).await;
            }
        }
        world.make_directory("/data/run").await;
        world.write("/data/run/file", b"another").await;
        let job = world.export_all().await;
        assert_eq!(job.state, JobState::Succeeded, "{is_renamed} {:?}", job.failures);
        assert_eq!(world.content("run/file").as_deref(), Some(&b"another"[..]));
        assert_eq!(world.content("done/file").is_some(), is_renamed);
    }
}

#[tokio::test]
async fn an_object_that_somebody_else_made_there_is_not_taken_over() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/run").await;
    world.write("/data/run/file", b"content").await;
    world.export_all().await;
    world.move_name("/data/run", "/data/done").await;
    world.make_directory("/data/run").await;
    world.write("/data/run/file", b"another").await;
    world.put("run/file", b"somebody else's");
    let job = world.export_all().await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict);
    assert_eq!(world.content("run/file").as_deref(), Some(&b"somebody else's"[..]));
}

#[tokio::test]
async fn an_object_that_is_being_made_is_imported_when_its_export_has_ended() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("file", b"content");
    let link = world.hydration.list_links().await.unwrap()[0].id;
    let (turn, _) = world.hydration.importer.exporting.take(link, "file").await;
    world.job(JobKind::Import, "/data").await;
    assert!(!world.is_there("/data/file").await);
    drop(turn);
    world.job(JobKind::Import, "/data").await;
    assert!(world.is_there("/data/file").await);
}

#[tokio::test]
async fn a_conflict_that_was_renamed_and_stays_as_it_is_here_has_no_part_in_the_other_object() {
    let world = World::propagating().await;
    conflict(&world, "file", b"mine").await;
    world.move_name("/data/file", "/data/moved").await;
    let reply = resolve(&world, "/data/moved", Keep::Local).await.unwrap();
    assert!(!reply.removed && reply.origin.is_none());
    let job = world.export_all().await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(world.content("moved").as_deref(), Some(&b"mine"[..]));
    assert_eq!(world.content("file").as_deref(), Some(&b"somebody else's"[..]));
}
