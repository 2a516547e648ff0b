//! Files that are renamed, replaced or removed while they are on their way to their bucket: the
//! object that is made nevertheless is known, is replaced by who takes the name, and brings no name
//! back.

use std::fs;

use millrace_protocol::{
    admin::{Job, JobKind, JobState, Keep, StartJob},
    cluster::LinkMode,
};
use millrace_types::{ErrorKind, JobId, LinkId, MIB};

use super::{
    conflicts::{conflict, resolve},
    server::{Fault, ROOT, World},
};
use crate::{
    command::{self, Command},
    hydration::Environment,
    namespace::ObjectState,
};

impl World {
    async fn that(propagates: bool) -> Self {
        match propagates {
            true => Self::propagating().await,
            false => Self::new(LinkMode::ImportExport).await,
        }
    }

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
        let world = World::that(propagates).await;
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
        let world = World::that(propagates).await;
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
        let world = World::propagating().await;
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
async fn a_renamed_file_that_stands_against_the_object_says_that_it_may_be_replaced() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/run").await;
    let before = world.write("/data/run/file", b"content").await;
    world.export_all().await;
    world.move_name("/data/run", "/data/done").await;
    world.make_directory("/data/run").await;
    world.write("/data/run/file", b"another").await;
    // Not while bytes of it are nowhere else.
    let job = world.job(JobKind::Export, "/data/run").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict);
    assert!(job.failures[0].failure.message.contains("/data/done/file"), "{:?}", job.failures);
    assert_eq!(world.content("run/file").as_deref(), Some(&b"content"[..]));
    world.server.present.lock().unwrap().insert(before, 7);
    let job = world.job(JobKind::Export, "/data/run").await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(world.content("run/file").as_deref(), Some(&b"another"[..]));
}

#[tokio::test]
async fn checkpoints_replace_each_other_in_a_directory_that_was_renamed() {
    for propagates in [false, true] {
        let world = World::that(propagates).await;
        world.make_directory("/data/step.tmp").await;
        world.move_name("/data/step.tmp", "/data/step").await;
        world.write("/data/step/model.pt", b"0").await;
        for version in [b"1", b"2", b"3", b"4"] {
            world.write("/data/step/model.tmp", version).await;
            let tmp = world.find("/data/step/model.tmp").await.unwrap().id;
            let rename = world.renaming("/data/step/model.tmp", "/data/step/model.pt").await;
            match version {
                // The first comes in the middle of an upload.
                b"1" => {
                    world.server.open_write(tmp).await;
                    world.export_while(rename).await;
                    world.server.commit(tmp, 1).await;
                }
                _ => drop(world.server.execute(rename, false).await.unwrap()),
            }
            let job = world.export_all().await;
            assert_eq!(job.state, JobState::Succeeded, "{version:?} {:?}", job.failures);
            assert_eq!(world.content("step/model.pt").as_deref(), Some(&version[..]));
        }
    }
}

#[tokio::test]
async fn without_propagation_nobody_says_that_the_objects_of_a_removed_directory_are_free() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/run").await;
    world.write("/data/run/file", b"content").await;
    world.export_all().await;
    world.remove_name("/data/run/file", false).await;
    world.remove_name("/data/run", true).await;
    world.make_directory("/data/run").await;
    world.write("/data/run/file", b"another").await;
    let job = world.export_all().await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict);
    assert_eq!(world.content("run/file").as_deref(), Some(&b"content"[..]));
}

#[tokio::test]
async fn what_somebody_wrote_into_the_object_of_a_removed_file_is_not_overwritten() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/file", b"content").await;
    world.export_all().await;
    // In place: what its metadata say stays as it was.
    fs::write(world.object("file"), b"somebody else's").unwrap();
    world.write("/data/new", b"another").await;
    world.move_name("/data/new", "/data/file").await;
    let job = world.export_all().await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict);
    assert_eq!(world.content("file").as_deref(), Some(&b"somebody else's"[..]));
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
async fn an_object_that_may_be_a_renamed_files_is_imported_when_its_export_has_ended() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("dir/file", b"somebody else's");
    let inode = world.write("/data/file", b"content").await;
    let data = world.find("/data").await.unwrap().id;
    let refresh = async || world.hydration.importer.refresh(data, |_| ()).await.unwrap();
    let begin = |key: &str| {
        Command::BeginExport(command::BeginExport {
            inode,
            job: JobId(1),
            export: 7,
            link: LinkId(1),
            key: key.to_owned(),
            replaces: None,
            part_size: 8 * MIB,
        })
    };
    let abort = || Command::AbortExport { inode, export: 7 };
    // Of a directory that was listed before, the next listing tells.
    world.server.execute(begin("file"), true).await.unwrap();
    world.move_name("/data/file", "/data/moved").await;
    world.put("file", b"somebody else's");
    refresh().await;
    assert!(!world.is_there("/data/file").await, "nobody knows yet whose it is");
    world.server.execute(abort(), true).await.unwrap();
    refresh().await;
    assert!(world.is_there("/data/file").await);
    // One that never was is not listed to its end before.
    world.server.execute(begin("dir/file"), true).await.unwrap();
    let directory = world.find("/data/dir").await.unwrap().id;
    world.hydration.importer.whole(directory).await.unwrap();
    assert!(!world.is_there("/data/dir/file").await);
    world.server.execute(abort(), true).await.unwrap();
    world.hydration.importer.whole(directory).await.unwrap();
    assert!(world.is_there("/data/dir/file").await);
}

#[tokio::test]
async fn an_export_of_a_removed_file_is_settled_by_the_next_one() {
    let world = World::propagating().await;
    world.write("/data/file", b"content").await;
    let remove = world.removal("/data/file", false).await;
    // The object stands, and the bucket is away before anybody hears of it.
    let bucket = world.bucket_dir.path().to_owned();
    let away = Fault::Away(bucket.clone(), Box::new(remove));
    world.server.faults.lock().unwrap().push_back(away);
    let export = async || {
        let path = b"/data".to_vec();
        let start = StartJob { caller: ROOT, kind: JobKind::Export, path };
        let id = world.hydration.start_job(b"", &start).await.unwrap().id;
        let is_final = |job: &Job| job.id == id && job.state.is_final();
        while !world.hydration.list_jobs().await.unwrap().iter().any(is_final) {
            tokio::task::yield_now().await;
        }
    };
    // In one run: what a start of the server settles is another matter.
    let both = async {
        export().await;
        fs::rename(bucket.with_extension("away"), &bucket).unwrap();
        assert!(world.content("file").is_some());
        export().await;
    };
    world.run_beside(Box::pin(both)).await;
    assert!(!world.is_there("/data/file").await && world.content("file").is_none());
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
