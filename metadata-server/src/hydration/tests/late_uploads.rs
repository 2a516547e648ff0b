//! Uploads that arrive after the server has given them up.

use std::{fs, sync::atomic::Ordering};

use millrace_object_source::{Condition, EXPORT_ID_KEY, Metadata};
use millrace_protocol::{
    admin::{AttributeSource, JobKind, JobState, SetLinkOptions, StartJob},
    cluster::LinkMode,
};
use millrace_types::{ErrorKind, InodeId};

use super::{
    moved::remove,
    server::{Fault, ROOT, World},
};
use crate::{
    command::Command,
    hydration::Environment,
    namespace::ObjectState,
    store::{
        keys,
        records::{self, Export},
    },
};

async fn export_of(world: &World, inode: InodeId) -> Option<Export> {
    let query =
        world.server.read(move |view| Ok(records::read(view, &keys::export(inode)).unwrap()));
    query.await.unwrap()
}

/// A file whose export has begun and is under the hands of a target that says nothing.
async fn begun(world: &mut World) -> (InodeId, Export) {
    let inode = world.write("/data/file", b"first").await;
    world.server.silent.store(true, Ordering::Relaxed);
    let start = StartJob { caller: ROOT, kind: JobKind::Export, path: b"/data".to_vec() };
    let job = world.hydration.start_job(b"", &start).await.unwrap().id;
    let begun = world.run_beside(async {
        loop {
            if let Some(export) = export_of(world, inode).await {
                return export;
            }
            tokio::task::yield_now().await;
        }
    });
    let begun = begun.await;
    let cancel = millrace_protocol::admin::CancelJob { caller: ROOT, id: job };
    world.hydration.cancel_job(&cancel).await.unwrap();
    (inode, begun)
}

/// Stores the object of an export, as its upload would.
async fn arrives(world: &World, export: &Export) {
    arrives_as(world, export, b"first").await;
}

async fn arrives_as(world: &World, export: &Export, bytes: &[u8]) {
    let id = [(EXPORT_ID_KEY.to_owned(), format!("{:032x}", export.id))];
    let (metadata, body) = (Metadata::new(id).unwrap(), vec![bytes.to_vec().into()]);
    world.bucket.put_small("file", body, &metadata, &Condition::Absent).await.unwrap();
}

/// A link with a file whose upload is under the hands of a target when the server ends; after the
/// restart it is given up, and then it arrives.
async fn late(world: &mut World) -> InodeId {
    let (inode, begun) = begun(world).await;
    world.restart();
    is_settled(world, inode).await;
    world.server.silent.store(false, Ordering::Relaxed);
    arrives(world, &begun).await;
    inode
}

async fn is_settled(world: &mut World, inode: InodeId) {
    world
        .run_beside(async {
            while export_of(world, inode).await.is_some() {
                tokio::task::yield_now().await;
            }
        })
        .await;
}

#[tokio::test]
async fn what_a_published_object_was_made_of_is_deleted_after_a_kill_in_between() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let (inode, begun) = begun(&mut world).await;
    let upload = world.bucket.create_upload("file", &Metadata::default()).await.unwrap();
    let upload_id = upload.as_str().to_owned();
    let record = Command::RecordUpload { inode, export: begun.id, upload_id };
    world.server.execute(record, true).await.unwrap();
    arrives(&world, &begun).await;
    world.restart();
    is_settled(&mut world, inode).await;
    assert_eq!(world.state("/data/file").await, ObjectState::Exported);
    assert!(world.bucket.list_uploads("file").await.unwrap().is_empty());
}

#[tokio::test]
async fn an_object_that_was_cut_is_never_the_file_and_the_next_export_replaces_it() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let (inode, begun) = begun(&mut world).await;
    arrives_as(&world, &begun, b"fir").await;
    world.restart();
    // A listing makes no conflict of it, even if it does not ask for each object.
    let (path, attributes) = (b"/data".to_vec(), Some(AttributeSource::Listing));
    let options = SetLinkOptions { path, refresh_seconds: None, attributes };
    world.hydration.set_link_options(&options).await.unwrap();
    let listed = world.job(JobKind::Import, "/data").await;
    assert_eq!(listed.state, JobState::Succeeded, "{:?}", listed.failures);
    assert_eq!(world.state("/data/file").await, ObjectState::Local);
    assert!(export_of(&world, inode).await.is_some());
    world.server.silent.store(false, Ordering::Relaxed);
    world.export("/data").await;
    assert_eq!(fs::read(world.object("file")).unwrap(), b"first");
    assert_eq!(world.state("/data/file").await, ObjectState::Exported);
    let origin = world.find("/data/file").await.unwrap().content().unwrap().origin.unwrap();
    assert_eq!(origin.size, 5);
}

#[tokio::test]
async fn an_object_that_is_cut_is_replaced_by_the_same_export() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/file", b"first").await;
    world.server.faults.lock().unwrap().push_back(Fault::Cut(world.object("file")));
    world.export("/data").await;
    assert!(world.server.faults.lock().unwrap().is_empty());
    assert_eq!(fs::read(world.object("file")).unwrap(), b"first");
    assert_eq!(world.state("/data/file").await, ObjectState::Exported);
}

#[tokio::test]
async fn an_object_that_the_bucket_has_with_other_bytes_is_replaced_by_the_same_export() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/file", b"first").await;
    world.server.faults.lock().unwrap().push_back(Fault::Damage(world.object("file")));
    world.export("/data").await;
    assert!(world.server.faults.lock().unwrap().is_empty());
    assert_eq!(fs::read(world.object("file")).unwrap(), b"first");
    assert_eq!(world.state("/data/file").await, ObjectState::Exported);
}

#[tokio::test]
async fn an_object_that_was_cut_of_a_file_that_is_gone_is_not_shown() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let (inode, begun) = begun(&mut world).await;
    arrives_as(&world, &begun, b"fir").await;
    remove(&world, "/data/file", false).await;
    world.restart();
    is_settled(&mut world, inode).await;
    let listed = world.job(JobKind::Import, "/data").await;
    assert_eq!(listed.state, JobState::Succeeded, "{:?}", listed.failures);
    assert_eq!(world.find("/data/file").await.unwrap_err().kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn the_next_export_goes_on_from_it() {
    for changed in [false, true] {
        let mut world = World::new(LinkMode::ImportExport).await;
        late(&mut world).await;
        let expected: &[u8] = if changed { b"second" } else { b"first" };
        world.write("/data/file", expected).await;
        world.export("/data").await;
        assert_eq!(world.state("/data/file").await, ObjectState::Exported);
        assert_eq!(fs::read(world.object("file")).unwrap(), expected);
    }
}

#[tokio::test]
async fn looking_at_the_bucket_makes_no_conflict_of_it() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = late(&mut world).await;
    world.hydration.importer.object(inode).await.unwrap();
    assert_eq!(world.state("/data/file").await, ObjectState::Local);
    let listed = world.job(JobKind::Import, "/data").await;
    assert_eq!(listed.state, JobState::Succeeded);
    assert_eq!(world.state("/data/file").await, ObjectState::Local);
    // Somebody else's is one.
    world.put("file", b"theirs");
    world.hydration.importer.object(inode).await.unwrap();
    assert_eq!(world.state("/data/file").await, ObjectState::Conflict);
}

#[tokio::test]
async fn what_was_exported_before_a_backup_was_put_back_is_not_overwritten() {
    let mut world = World::new(LinkMode::ImportExport).await;
    late(&mut world).await;
    let restored = Command::Restored("a backup of yesterday".to_owned());
    world.server.execute(restored, true).await.unwrap();
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Conflict, "{:?}", job.failures);
    assert_eq!(fs::read(world.object("file")).unwrap(), b"first");
}
