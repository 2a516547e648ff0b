//! Exports of large files that were interrupted: their uploads go on, or are given up.

use std::{fs, sync::atomic::Ordering};

use millrace_protocol::{
    admin::{CancelJob, JobKind, JobState, RemoveLink, StartJob},
    cluster::LinkMode,
    selection::RetryJob,
};
use millrace_types::{ErrorKind, InodeId, JobId, MIB};

use super::server::{Fault, ROOT, World};
use crate::{
    command::{Command, JobCounts, UpdateJob},
    hydration::Environment,
    namespace::ObjectState,
    store::{
        keys,
        records::{self, Export},
    },
};

fn large() -> Vec<u8> {
    let len = usize::try_from(20 * MIB).unwrap() + 5;
    (0..=250_u8).cycle().take(len).collect()
}

impl World {
    async fn upload_under_way(&self, inode: InodeId) -> Option<String> {
        let query =
            self.server.read(move |view| Ok(records::read(view, &keys::export(inode)).unwrap()));
        let record: Option<Export> = query.await.unwrap();
        record.and_then(|record| record.upload_id)
    }

    /// Runs until the bucket has named the upload of a file, of which targets send nothing.
    async fn interrupted(&mut self, inode: InodeId) -> (JobId, String) {
        self.server.silent.store(true, Ordering::Relaxed);
        let start = StartJob { caller: ROOT, kind: JobKind::Export, path: b"/data".to_vec() };
        let job = self.hydration.start_job(b"", &start).await.unwrap().id;
        let named = self.run_beside(async {
            loop {
                if let Some(upload) = self.upload_under_way(inode).await {
                    return upload;
                }
                tokio::task::yield_now().await;
            }
        });
        let named = named.await;
        self.restart();
        self.server.silent.store(false, Ordering::Relaxed);
        (job, named)
    }

    async fn how_ended(&self, id: JobId) -> JobState {
        let job = self.run_until(|job| job.id == id && job.state.is_final()).await;
        job.state
    }

    /// Which uploads got parts, each part once.
    fn uploads(&self) -> Vec<String> {
        self.server.uploads.lock().unwrap().clone()
    }

    fn files_in_bucket(&self) -> usize {
        fs::read_dir(self.bucket_dir.path()).unwrap().count()
    }
}

#[tokio::test]
async fn an_upload_that_a_restart_interrupts_goes_on() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/model.pt", &large()).await;
    let (job, upload) = world.interrupted(inode).await;
    assert_eq!(world.how_ended(job).await, JobState::Succeeded);
    assert!(world.uploads().iter().all(|to| *to == upload), "{:?} and {upload}", world.uploads());
    assert!(fs::read(world.object("model.pt")).unwrap() == large());
    assert_eq!(world.state("/data/model.pt").await, ObjectState::Exported);
    assert_eq!((world.files_in_bucket(), world.upload_under_way(inode).await), (1, None));
}

#[tokio::test]
async fn an_upload_of_another_version_is_given_up() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/model.pt", &large()).await;
    let (job, upload) = world.interrupted(inode).await;
    let changed: Vec<u8> = large().into_iter().rev().collect();
    world.write("/data/model.pt", &changed).await;
    assert_eq!(world.how_ended(job).await, JobState::Succeeded);
    assert!(!world.uploads().contains(&upload));
    assert!(fs::read(world.object("model.pt")).unwrap() == changed);
    assert_eq!(world.files_in_bucket(), 1, "nothing is left of the first");
}

#[tokio::test]
async fn an_upload_of_a_job_that_is_cancelled_is_given_up() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/model.pt", &large()).await;
    let (id, _) = world.interrupted(inode).await;
    world.hydration.cancel_job(&CancelJob { caller: ROOT, id }).await.unwrap();
    world.restart();
    let given_up = async {
        while world.upload_under_way(inode).await.is_some() {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(given_up).await;
    assert_eq!(world.files_in_bucket(), 0);
}

#[tokio::test]
async fn an_upload_below_a_link_that_is_removed_is_given_up() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/model.pt", &large()).await;
    let (id, _) = world.interrupted(inode).await;
    // As one of a job that failed, to which nobody has come back.
    let counts = JobCounts::default();
    let state = Some(JobState::Failed);
    let failed = UpdateJob { id, state, counts, failures: Vec::new() };
    world.server.execute(Command::UpdateJob(failed), true).await.unwrap();
    assert_eq!(world.files_in_bucket(), 1);
    let remove = RemoveLink { path: b"/data".to_vec(), discard: true };
    world.hydration.remove_link(&remove).await.unwrap();
    assert_eq!(world.files_in_bucket(), 0);
}

#[tokio::test]
async fn an_upload_whose_job_failed_stays_for_its_retry() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/model.pt", &large()).await;
    // Longer than anybody asks again for a part.
    let away = || Fault::Fail(ErrorKind::Unavailable);
    world.server.faults.lock().unwrap().extend(std::iter::repeat_with(away).take(18));
    let failed = world.job(JobKind::Export, "/data").await;
    assert_eq!(failed.failures[0].failure.kind, ErrorKind::Unavailable);
    let upload = world.upload_under_way(inode).await.expect("it stays");
    world.server.faults.lock().unwrap().clear();
    // A start gives up what nobody is to go on with.
    world.restart();
    let retry = RetryJob { caller: ROOT, id: failed.id };
    let again = world.hydration.retry_job(&retry).await.unwrap().id;
    assert_eq!(world.how_ended(again).await, JobState::Succeeded);
    assert!(world.uploads().iter().all(|to| *to == upload), "{:?} and {upload}", world.uploads());
    assert!(fs::read(world.object("model.pt")).unwrap() == large());
    assert_eq!(world.files_in_bucket(), 1);
}

#[tokio::test]
async fn an_upload_that_the_bucket_has_forgotten_begins_anew() {
    let mut world = World::new(LinkMode::ImportExport).await;
    let inode = world.write("/data/model.pt", &large()).await;
    let (job, upload) = world.interrupted(inode).await;
    let named = millrace_object_source::UploadId::new(upload.clone()).unwrap();
    world.bucket.abort_upload("model.pt", &named).await.unwrap();
    assert_eq!(world.how_ended(job).await, JobState::Succeeded);
    assert!(world.uploads().last().is_some_and(|last| *last != upload));
    assert!(fs::read(world.object("model.pt")).unwrap() == large());
    assert_eq!(world.files_in_bucket(), 1);
}

#[tokio::test]
async fn targets_that_forgot_what_they_sent_read_it_again_and_send_nothing() {
    for older in [false, true] {
        let world = World::new(LinkMode::ImportExport).await;
        world.server.troubles.are_older.store(older, Ordering::Relaxed);
        world.write("/data/model.pt", &large()).await;
        world.server.marks.lock().unwrap().push_back(ErrorKind::ObjectChanged);
        world.export("/data").await;
        assert_eq!(world.state("/data/model.pt").await, ObjectState::Exported);
        // Those that cannot tell what they read send it once more.
        assert_eq!(world.uploads().len(), if older { 6 } else { 3 });
        assert!(fs::read(world.object("model.pt")).unwrap() == large());
        assert_eq!(world.files_in_bucket(), 1);
    }
}
