//! Links have turns of their own: what works below one holds up nothing below others.

use std::sync::atomic::Ordering;

use millrace_protocol::{
    admin::{AddLink, JobKind, JobState, StartJob},
    bucket::{SetAutoExport, SetDeletePropagation},
    cluster::LinkMode,
    metadata::NewNode,
};
use millrace_types::{FileName, JobId};

use super::server::{ROOT, World, bucket_of};
use crate::{
    command::{self, Command},
    hydration::Environment,
    namespace::ObjectState,
};

impl World {
    /// Links a directory to a bucket of its own.
    /// Links another bucket.
    pub(super) async fn link_another(&self, path: &str) -> tempfile::TempDir {
        let directory = tempfile::tempdir().unwrap();
        let (path, bucket) = (path.as_bytes().to_vec(), bucket_of(directory.path()));
        let add = AddLink { path, bucket, mode: LinkMode::ImportExport };
        self.hydration.add_link(&add).await.unwrap();
        directory
    }

    /// Takes a job into the queue.
    pub(super) async fn begin(&self, kind: JobKind, path: &str) -> JobId {
        let start = StartJob { caller: ROOT, kind, path: path.as_bytes().to_vec() };
        self.hydration.start_job(b"", &start).await.unwrap().id
    }

    async fn run_to_the_end(&self, id: JobId) {
        let job = self.run_until(|job| job.id == id && job.state.is_final()).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    }

    async fn states(&self, ids: &[JobId]) -> Vec<JobState> {
        let mut states = Vec::new();
        for id in ids {
            states.push(self.hydration.show_job(*id).await.unwrap().state);
        }
        states
    }
}

/// `/data` and `/other` with a bucket each; an export of `/data` has begun whose target is silent.
/// What has no bytes goes without targets.
async fn silent() -> (World, tempfile::TempDir, JobId) {
    let world = World::new(LinkMode::ImportExport).await;
    let other = world.link_another("/other").await;
    world.write("/data/new", b"new").await;
    world.write("/other/one", b"").await;
    world.server.silent.store(true, Ordering::Relaxed);
    let export = world.begin(JobKind::Export, "/data").await;
    (world, other, export)
}

#[tokio::test]
async fn an_export_holds_up_no_jobs_below_another_link() {
    let (world, other, silent) = silent().await;
    let same = world.begin(JobKind::Release, "/data").await;
    let export = world.begin(JobKind::Export, "/other").await;
    let release = world.begin(JobKind::Release, "/other").await;
    world.run_to_the_end(release).await;
    assert!(other.path().join("one").exists());
    let states = world.states(&[silent, same, export]).await;
    assert_eq!(states, [JobState::Running, JobState::Queued, JobState::Succeeded]);
}

#[tokio::test]
async fn an_export_holds_up_nothing_that_goes_by_itself_below_another_link() {
    let (world, other, silent) = silent().await;
    let (path, on) = (b"/other".to_vec(), true);
    let delete = SetDeletePropagation { path: path.clone(), on };
    world.hydration.set_delete_propagation(&delete).await.unwrap();
    let export = SetAutoExport { path, quiet_seconds: Some(0) };
    world.hydration.set_auto_export(&export).await.unwrap();
    let object = other.path().join("one");
    let work = async {
        while world.state("/other/one").await != ObjectState::Exported {
            tokio::task::yield_now().await;
        }
        assert!(object.exists());
        world.remove_name("/other/one", false).await;
        while object.exists() {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(Box::pin(work)).await;
    assert_eq!(world.states(&[silent]).await, [JobState::Running]);
}

#[tokio::test]
async fn a_job_over_several_links_waits_for_all_of_them_and_is_not_overtaken() {
    let (world, _other, silent) = silent().await;
    let all = world.begin(JobKind::Export, "/").await;
    let behind = world.begin(JobKind::Export, "/other").await;
    let import = world.begin(JobKind::Import, "/data").await;
    world.run_to_the_end(import).await;
    let states = world.states(&[silent, all, behind]).await;
    assert_eq!(states, [JobState::Running, JobState::Queued, JobState::Queued]);
    // As after a restart: all of them are done again.
    world.server.silent.store(false, Ordering::Relaxed);
    world.run_to_the_end(behind).await;
    assert_eq!(world.states(&[silent, all]).await, [JobState::Succeeded; 2]);
}

#[tokio::test]
async fn links_that_show_the_same_objects_have_one_turn() {
    let (world, _other, silent) = silent().await;
    world.link_at("/again", LinkMode::ImportExport).await.unwrap();
    let same = world.begin(JobKind::Export, "/again").await;
    let export = world.begin(JobKind::Export, "/other").await;
    world.run_to_the_end(export).await;
    assert_eq!(world.states(&[silent, same]).await, [JobState::Running, JobState::Queued]);
}

#[tokio::test]
async fn a_link_that_comes_while_a_job_works_above_it_is_left_to_the_next_one() {
    let world = World::new(LinkMode::ImportExport).await;
    // More than are under way at a time, so that the first has ended before the walk goes on.
    for number in 0..20 {
        world.write(&format!("/data/{number}"), b"some bytes").await;
    }
    let bucket = tempfile::tempdir().unwrap();
    let directory = world.make_directory("/new").await;
    let link = command::AddLink {
        directory,
        bucket: bucket_of(bucket.path()),
        prefix: String::new(),
        mode: LinkMode::ImportExport,
    };
    let create = command::Create {
        caller: ROOT,
        parent: directory,
        name: FileName::parse(b"file").unwrap(),
        node: NewNode::Regular,
        mode: 0o640,
        inode: world.server.reserve_inodes(1).await.unwrap()[0],
        seed: 7,
        open: None,
        exclusive: true,
    };
    let meanwhile = vec![Command::AddLink(link), Command::Create(create)];
    *world.server.troubles.before_named.lock().unwrap() = meanwhile;
    world.export("/").await;
    assert!(world.server.troubles.before_named.lock().unwrap().is_empty());
    assert_eq!(world.state("/new/file").await, ObjectState::Local);
    assert!(world.object("19").exists() && !bucket.path().join("file").exists());
    world.export("/").await;
    assert!(bucket.path().join("file").exists());
}
