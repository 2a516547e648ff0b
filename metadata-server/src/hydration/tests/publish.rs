//! Directories that are published: a manifest stands for all of it, or there is none.

use std::fs;

use millrace_protocol::{
    admin::{Job, JobKind, JobState, StartJob},
    cluster::LinkMode,
    job_options::{JobOptions, StartWithOptions},
    metadata::NewNode,
    selection::{RetryJob, Selection},
};
use millrace_types::{ErrorKind, Failure, FileName, JobId};
use serde_json::Value;

use super::server::{Fault, ROOT, World};
use crate::{
    command::{self, Command},
    hydration::Environment as _,
};

const MANIFEST: &str = "step/.millrace-manifest.json";

async fn start(world: &World, path: &str) -> Result<JobId, Failure> {
    let start = StartJob { caller: ROOT, kind: JobKind::Export, path: path.as_bytes().to_vec() };
    let options = JobOptions { atomic: true, ..JobOptions::default() };
    let request =
        StartWithOptions { start, selection: Selection::default(), dry_run: false, options };
    world.hydration.start_with_options(b"", &request).await.map(|job| job.id)
}

async fn publish(world: &World) -> Job {
    let id = start(world, "/data/step").await.unwrap();
    world.run_until(|job| job.id == id && job.state.is_final()).await
}

fn manifest(world: &World) -> Option<Value> {
    let text = fs::read(world.object(MANIFEST)).ok()?;
    Some(serde_json::from_slice(&text).unwrap())
}

#[tokio::test]
async fn a_manifest_names_every_object_of_a_directory_in_its_version() {
    let world = World::new(LinkMode::ImportExport).await;
    // One file is only in the bucket, in a directory that nobody has listed.
    world.put("step/shards/0", b"from before");
    world.make_directory("/data/step/optim").await;
    world.write("/data/step/model.pt", b"model").await;
    world.write("/data/step/optim/state.pt", b"state").await;
    let job = publish(&world).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    let told = manifest(&world).unwrap();
    assert_eq!(
        (&told["format"], &told["prefix"], &told["bytes"]),
        (&1.into(), &"step/".into(), &21.into(),)
    );
    let mut paths = Vec::new();
    for file in told["files"].as_array().unwrap() {
        let path = file["path"].as_str().unwrap();
        let head = world.bucket.head(&format!("step/{path}")).await.unwrap();
        assert_eq!(file["tag"], head.version.tag.as_str(), "{path}");
        assert_eq!(file["size"], head.version.size, "{path}");
        paths.push(path);
    }
    paths.sort_unstable();
    assert_eq!(paths, ["model.pt", "optim/state.pt", "shards/0"]);
    // It is a file like others, and no part of the next one.
    let sent = world.bucket.counters().bytes_sent();
    world.job(JobKind::Import, "/data/step").await;
    assert!(world.find("/data/step/.millrace-manifest.json").await.is_ok());
    assert_eq!(publish(&world).await.state, JobState::Succeeded);
    assert_eq!(manifest(&world).unwrap()["files"], told["files"]);
    let size = fs::metadata(world.object(MANIFEST)).unwrap().len();
    assert_eq!(world.bucket.counters().bytes_sent() - sent, size, "nothing else was sent again");
    // Also where the file is an older one than the object.
    let job = publish(&world).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(manifest(&world).unwrap()["files"], told["files"]);
}

#[tokio::test]
async fn where_a_file_cannot_be_exported_there_is_no_manifest_and_a_retry_makes_it() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/step").await;
    let open = world.write("/data/step/model.pt", b"model").await;
    world.write("/data/step/other.pt", b"other").await;
    world.server.open_write(open).await;
    let job = publish(&world).await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 1), "{:?}", job.failures);
    assert!(manifest(&world).is_none() && world.object("step/other.pt").exists());
    world.server.commit(open, 5).await;
    let retry = RetryJob { caller: ROOT, id: job.id };
    let again = world.hydration.retry_job(&retry).await.unwrap().id;
    let job = world.run_until(|job| job.id == again && job.state.is_final()).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(manifest(&world).unwrap()["files"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn what_changes_behind_its_export_leaves_the_manifest_of_before() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/step").await;
    let first = world.write("/data/step/a", b"first").await;
    assert_eq!(publish(&world).await.state, JobState::Succeeded);
    let before = manifest(&world).unwrap();
    // While another file is sent, the first one is written to: it was passed over already.
    world.write("/data/step/b", b"second").await;
    world.server.faults.lock().unwrap().push_back(Fault::Write(first));
    let job = publish(&world).await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 1));
    let failure = &job.failures[0].failure;
    assert!(
        failure.kind == ErrorKind::InUse && failure.message.contains("/data/step/a"),
        "{failure}"
    );
    assert_eq!(manifest(&world).unwrap(), before);
}

#[tokio::test]
async fn what_changed_in_the_bucket_behind_its_file_is_in_no_manifest() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/data/step").await;
    for name in ["a", "b", "c"] {
        world.write(&format!("/data/step/{name}"), name.as_bytes()).await;
    }
    assert_eq!(publish(&world).await.state, JobState::Succeeded);
    let before = manifest(&world).unwrap();
    world.put("step/b", b"by somebody else");
    fs::remove_file(world.object("step/c")).unwrap();
    world.write("/data/step/d", b"new").await;
    let job = publish(&world).await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 2), "{:?}", job.failures);
    assert_eq!((job.files_done, job.files_total), (2, 4));
    for (path, words) in [("/data/step/b", "was replaced"), ("/data/step/c", "is gone")] {
        let failed = job.failures.iter().find(|failed| failed.path == path.as_bytes()).unwrap();
        let failure = &failed.failure;
        assert_eq!(failure.kind, ErrorKind::ObjectChanged, "{failure}");
        assert!(failure.message.contains(words), "{failure}");
        assert!(world.find(path).await.is_ok(), "an export takes nothing away");
    }
    assert_eq!(manifest(&world).unwrap(), before);

    // An import has the files follow: then they are as the bucket has them.
    world.job(JobKind::Import, "/data/step").await;
    let job = publish(&world).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    let told = manifest(&world).unwrap();
    let mut paths = Vec::new();
    for file in told["files"].as_array().unwrap() {
        let path = file["path"].as_str().unwrap();
        let head = world.bucket.head(&format!("step/{path}")).await.unwrap();
        assert_eq!(file["tag"], head.version.tag.as_str(), "{path}");
        paths.push(path);
    }
    paths.sort_unstable();
    assert_eq!(paths, ["a", "b", "d"]);
}

#[tokio::test]
async fn a_symbolic_link_that_is_made_behind_the_export_is_sent_before_it_is_named() {
    let world = World::new(LinkMode::ImportExport).await;
    let step = world.make_directory("/data/step").await;
    world.write("/data/step/model.pt", b"model").await;
    let create = command::Create {
        caller: ROOT,
        parent: step,
        name: FileName::parse(b"latest").unwrap(),
        node: NewNode::Symlink(b"model.pt".to_vec()),
        mode: 0o777,
        inode: world.server.reserve_inodes(1).await.unwrap()[0],
        seed: 0,
        open: None,
        exclusive: true,
    };
    let fault = Fault::Meanwhile(Box::new(Command::Create(create)));
    world.server.faults.lock().unwrap().push_back(fault);
    let job = publish(&world).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(fs::read(world.object("step/latest")).unwrap(), b"model.pt");
    let told = manifest(&world).unwrap();
    let links: Vec<_> =
        told["files"].as_array().unwrap().iter().filter_map(|file| file.get("symlink")).collect();
    assert_eq!(links, ["model.pt"]);
}

#[tokio::test]
async fn only_directories_below_a_link_that_exports_are_published() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/file", b"file").await;
    assert_eq!(start(&world, "/data/file").await.unwrap_err().kind, ErrorKind::NotDirectory);
    assert_eq!(start(&world, "/").await.unwrap_err().kind, ErrorKind::InvalidArgument);
    assert!(start(&world, "/data").await.is_ok());
    let other = World::new(LinkMode::ReadOnly).await;
    assert_eq!(start(&other, "/data").await.unwrap_err().kind, ErrorKind::ReadOnly);
}
