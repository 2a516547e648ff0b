//! Exports to another place: a copy that changes nothing here, made once, and over nobody's object.

use std::{fs, net::TcpListener, path::PathBuf, sync::atomic::Ordering};

use millrace_object_source::{ANONYMOUS, PosixAttributes};
use millrace_protocol::{
    admin::{CancelJob, Job, JobKind, JobState, StartJob},
    cluster::{self, LinkMode},
    job_options::{Destination, FetchReport, JobOptions, StartWithOptions},
    metadata::RenameMode,
    selection::{RetryJob, Selection},
};
use millrace_types::{
    ChangeCount, ContentGeneration, ErrorKind, Failure, FileName, InodeId, JobId, MIB,
};
use serde_json::Value;

use super::server::{Fault, ROOT, World, bucket_of};
use crate::{
    command::{self, Command},
    hydration::Environment,
    namespace::ObjectState,
    store::{keys, records::CopyRecord},
};

/// Another bucket than the link's.
struct Other {
    directory: tempfile::TempDir,
}

impl Other {
    fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    fn object(&self, key: &str) -> PathBuf {
        self.directory.path().join(key)
    }

    fn options(&self) -> JobOptions {
        let bucket = bucket_of(self.directory.path());
        let destination = Some(Destination { bucket, overwrite: false });
        JobOptions { destination, ..JobOptions::default() }
    }

    fn overwriting(&self) -> JobOptions {
        let bucket = bucket_of(self.directory.path());
        let destination = Some(Destination { bucket, overwrite: true });
        JobOptions { destination, ..JobOptions::default() }
    }
}

fn large() -> Vec<u8> {
    let len = usize::try_from(20 * MIB).unwrap() + 5;
    (0..=250_u8).cycle().take(len).collect()
}

impl World {
    async fn start_copy(&self, path: &str, options: JobOptions) -> Result<JobId, Failure> {
        let path = path.as_bytes().to_vec();
        let start = StartJob { caller: ROOT, kind: JobKind::Export, path };
        let selection = Selection::default();
        let request = StartWithOptions { start, selection, dry_run: false, options };
        self.hydration.start_with_options(b"", &request).await.map(|job| job.id)
    }

    async fn copy(&self, path: &str, options: JobOptions) -> Job {
        let id = self.start_copy(path, options).await.unwrap();
        self.run_until(|job| job.id == id && job.state.is_final()).await
    }

    async fn rename(&self, from: &[u8], to: &[u8]) {
        let parent = self.find("/plain").await.unwrap().id;
        let rename = command::Rename {
            caller: ROOT,
            source_parent: parent,
            source_name: FileName::parse(from).unwrap(),
            target_parent: parent,
            target_name: FileName::parse(to).unwrap(),
            mode: RenameMode::Replace,
            readers: Vec::new(),
        };
        self.server.execute(Command::Rename(rename), false).await.unwrap();
    }

    async fn copies_under_way(&self) -> Vec<CopyRecord> {
        let query = self.server.read(|view| {
            Ok(crate::namespace::tree::scan::<CopyRecord>(view, &keys::copies(), 100).unwrap())
        });
        query.await.unwrap().into_iter().map(|(_, record)| record).collect()
    }

    /// Records uploads of a job that nobody remembers.
    async fn leave_uploads(&self, bucket: &cluster::Bucket) {
        for at in 0..3 {
            let left = command::RecordCopy {
                job: JobId(99),
                inode: InodeId(100 + at),
                bucket: bucket.clone(),
                key: format!("left-{at}"),
                generation: ContentGeneration(1),
                change_count: ChangeCount(1),
                size: MIB,
                part_size: MIB,
                upload_id: None,
            };
            self.server.execute(Command::RecordCopy(Box::new(left)), true).await.unwrap();
        }
    }
}

#[tokio::test]
async fn files_below_a_link_and_below_none_are_copied_and_stay_as_they_are() {
    let world = World::new(LinkMode::Import).await;
    world.put("cold/object", b"from the bucket");
    world.make_directory("/plain").await;
    world.make_directory("/plain/empty").await;
    world.write("/plain/model.pt", &large()).await;
    world.write("/plain/small", b"small").await;
    world.write("/data/changed", b"dirty").await;
    let cold = world.find("/data/cold/object").await.unwrap();
    world.server.files.lock().unwrap().insert(cold.id, b"from the bucket".to_vec());
    let other = Other::new();
    let job = world.copy("/", other.options()).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert!(fs::read(other.object("plain/model.pt")).unwrap() == large());
    assert_eq!(fs::read(other.object("plain/small")).unwrap(), b"small");
    assert_eq!(fs::read(other.object("data/changed")).unwrap(), b"dirty");
    assert_eq!(fs::read(other.object("data/cold/object")).unwrap(), b"from the bucket");
    assert!(other.object("plain/empty").is_dir());
    assert_eq!(world.state("/data/changed").await, ObjectState::Local, "not the link's bucket");
    assert_eq!(world.state("/data/cold/object").await, ObjectState::Clean);
    assert!(!world.object("changed").exists());
    // The key is the path below what is exported; of a file its name.
    let job = world.copy("/plain/small", other.options()).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(fs::read(other.object("small")).unwrap(), b"small");
    assert!(world.copies_under_way().await.is_empty());
}

#[tokio::test]
async fn what_stands_there_is_not_sent_again_and_an_older_version_is_replaced() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    world.write("/plain/model.pt", &large()).await;
    world.write("/plain/small", b"first").await;
    let other = Other::new();
    assert_eq!(world.copy("/plain", other.options()).await.state, JobState::Succeeded);
    let made = fs::metadata(other.object("model.pt")).unwrap().modified().unwrap();
    world.write("/plain/small", b"second").await;
    let job = world.copy("/plain", other.options()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 2), "{:?}", job.failures);
    assert_eq!(fs::read(other.object("small")).unwrap(), b"second");
    let now = fs::metadata(other.object("model.pt")).unwrap().modified().unwrap();
    assert_eq!(now, made, "it was not sent again");
    // A checkpoint that is written beside the last one and renamed over it is its successor.
    world.write("/plain/small.tmp", b"third").await;
    world.rename(b"small.tmp", b"small").await;
    let job = world.copy("/plain", other.options()).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(fs::read(other.object("small")).unwrap(), b"third");
}

#[tokio::test]
async fn an_object_of_somebody_else_is_replaced_only_on_request() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    world.write("/plain/model.pt", &large()).await;
    world.write("/plain/small", b"mine").await;
    world.write("/plain/other", b"mine too").await;
    let other = Other::new();
    fs::write(other.object("small"), b"theirs").unwrap();
    fs::write(other.object("model.pt"), b"theirs").unwrap();
    let job = world.copy("/plain", other.options()).await;
    assert_eq!((job.state, job.errors, job.files_done), (JobState::Failed, 2, 1));
    assert!(job.failures.iter().all(|one| one.failure.kind == ErrorKind::Exists));
    assert_eq!(fs::read(other.object("small")).unwrap(), b"theirs");
    assert_eq!(fs::read(other.object("other")).unwrap(), b"mine too");
    let job = world.copy("/plain", other.overwriting()).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert_eq!(fs::read(other.object("small")).unwrap(), b"mine");
    assert!(fs::read(other.object("model.pt")).unwrap() == large());
    let left = fs::read_dir(other.directory.path()).unwrap().count();
    assert_eq!(left, 3, "no upload stays behind");
}

#[tokio::test]
async fn a_version_is_on_stable_storage_before_it_is_copied() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    for (name, content) in [("empty", ""), ("small", "bytes")] {
        let path = format!("/plain/{name}");
        world.write(&path, b"before").await;
        let other = Other::new();
        let id = world.start_copy(&path, other.options()).await.unwrap();
        // Nobody has synced this when the job comes to it.
        world.write(&path, content.as_bytes()).await;
        let changed = world.find(&path).await.unwrap().changed;
        assert!(*world.server.settled.lock().unwrap() < changed, "{name}");
        let job = world.run_until(|job| job.id == id && job.state.is_final()).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
        assert!(*world.server.settled.lock().unwrap() >= changed, "{name}");
        assert_eq!(fs::read(other.object(name)).unwrap(), content.as_bytes());
    }
}

#[tokio::test]
async fn somebody_elses_object_that_appears_meanwhile_stands() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    world.write("/plain/small", b"mine").await;
    let other = Other::new();
    let fault = Fault::Put(other.object("small"), b"theirs");
    world.server.faults.lock().unwrap().push_back(fault);
    let job = world.copy("/plain", other.options()).await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::Exists, "{:?}", job.failures);
    assert_eq!(fs::read(other.object("small")).unwrap(), b"theirs");
}

#[tokio::test]
async fn a_file_that_is_open_fails_and_one_that_changes_meanwhile_is_sent_as_it_is_then() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    let open = world.write("/plain/open", b"1").await;
    let large_one = world.write("/plain/model.pt", &large()).await;
    let small = world.write("/plain/small", b"small").await;
    world.server.open_write(open).await;
    let other = Other::new();
    world.server.faults.lock().unwrap().extend([Fault::Write(large_one), Fault::Write(small)]);
    let job = world.copy("/plain", other.options()).await;
    assert_eq!((job.state, job.errors, job.files_done), (JobState::Failed, 1, 2));
    assert_eq!(job.failures[0].failure.kind, ErrorKind::InUse);
    assert!(!other.object("open").exists());
    assert!(fs::read(other.object("model.pt")).unwrap() == large());
    // What stands is known as the version that is here now.
    world.server.commit(open, 1).await;
    let job = world.copy("/plain", other.options()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 3), "{:?}", job.failures);
    assert_eq!(fs::read(other.object("small")).unwrap(), b"small");
}

#[tokio::test]
async fn an_object_that_the_bucket_has_with_other_bytes_is_sent_again() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    world.write("/plain/small", b"bytes").await;
    let other = Other::new();
    world.server.faults.lock().unwrap().push_back(Fault::Damage(other.object("small")));
    let job = world.copy("/plain", other.options()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert_eq!(fs::read(other.object("small")).unwrap(), b"bytes");
}

#[tokio::test]
async fn a_file_that_changed_before_its_answer_was_lost_is_sent_again() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    let file = world.write("/plain/small", b"bytes").await;
    let other = Other::new();
    world.server.faults.lock().unwrap().push_back(Fault::WriteUnheard(file));
    let job = world.copy("/plain", other.options()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    // What stands is known as the version that is here now: nothing is sent that could fail.
    world.server.faults.lock().unwrap().push_back(Fault::Fail(ErrorKind::Lost));
    let job = world.copy("/plain", other.options()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert_eq!(world.server.faults.lock().unwrap().len(), 1);
}

#[tokio::test]
async fn a_file_that_is_exported_to_its_own_object_meanwhile_is_read_anew_some_times() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    world.write("/plain/small", b"content").await;
    let other = Other::new();
    let stale = || Fault::Fail(ErrorKind::StaleEpoch);
    world.server.faults.lock().unwrap().extend([stale(), stale(), stale()]);
    let job = world.copy("/plain", other.options()).await;
    assert_eq!(job.failures[0].failure.kind, ErrorKind::InUse, "{:?}", job.failures);
    assert!(!other.object("small").exists());
    world.server.faults.lock().unwrap().extend([stale(), stale()]);
    let job = world.copy("/plain", other.options()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert_eq!(fs::read(other.object("small")).unwrap(), b"content");
}

#[tokio::test]
async fn a_lost_answer_is_settled_by_looking_at_the_other_place() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    world.write("/plain/small", b"content").await;
    let other = Other::new();
    world.server.faults.lock().unwrap().push_back(Fault::LoseAnswer);
    let job = world.copy("/plain", other.options()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
}

#[tokio::test]
async fn a_job_that_a_restart_interrupts_does_no_file_twice_and_goes_on_with_its_upload() {
    let mut world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    world.write("/plain/a", b"first").await;
    world.write("/plain/model.pt", &large()).await;
    let other = Other::new();
    let id = world.start_copy("/plain", other.options()).await.unwrap();
    world.server.silent.store(true, Ordering::Relaxed);
    let begun = async {
        loop {
            let known = world.copies_under_way().await;
            if known.iter().any(|record| record.upload_id.is_some()) && other.object("a").exists() {
                return;
            }
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(begun).await;
    let upload = world.copies_under_way().await.remove(0).upload_id.unwrap();
    world.restart();
    world.server.silent.store(false, Ordering::Relaxed);
    let job = world.run_until(|job| job.id == id && job.state.is_final()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 2), "{:?}", job.failures);
    assert!(fs::read(other.object("model.pt")).unwrap() == large());
    let recorded = world.server.copied_uploads.lock().unwrap().clone();
    assert_eq!(recorded.iter().filter(|known| **known == upload).count(), recorded.len());
    assert!(world.copies_under_way().await.is_empty());
}

#[tokio::test]
async fn a_cancelled_job_leaves_no_upload_behind() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    world.write("/plain/model.pt", &large()).await;
    let other = Other::new();
    let id = world.start_copy("/plain", other.options()).await.unwrap();
    world.server.silent.store(true, Ordering::Relaxed);
    let cancelled = async {
        while !world.copies_under_way().await.iter().any(|one| one.upload_id.is_some()) {
            tokio::task::yield_now().await;
        }
        let cancel = CancelJob { caller: ROOT, id };
        world.hydration.cancel_job(&cancel).await.unwrap();
        while !world.copies_under_way().await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(cancelled).await;
    assert_eq!(fs::read_dir(other.directory.path()).unwrap().count(), 0);
}

#[tokio::test]
async fn uploads_left_at_a_place_that_never_answers_hold_up_no_job() {
    let mut world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"content");
    // Connections are made, and that is all.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let bucket = cluster::Bucket {
        url: "s3://silent".to_owned(),
        endpoint: Some(format!("http://{}", silent.local_addr().unwrap())),
        region: Some("us-east-1".to_owned()),
        credentials: Some(ANONYMOUS.to_owned()),
    };
    world.leave_uploads(&bucket).await;
    world.restart();
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert_eq!(world.copies_under_way().await.len(), 3, "nobody knows what became of them");
}

#[tokio::test]
async fn a_place_that_is_away_is_asked_once_for_all_uploads_left_there() {
    let mut world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"content");
    let other = Other::new();
    let bucket = bucket_of(other.directory.path());
    world.leave_uploads(&bucket).await;
    let open = world.hydration.importer.bucket(&bucket).unwrap();
    fs::remove_dir(other.directory.path()).unwrap();
    let job = world.job(JobKind::Hydrate, "/data").await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    assert!(open.counters().requests_total() <= 1);
    assert_eq!(world.copies_under_way().await.len(), 3);
    fs::create_dir(other.directory.path()).unwrap();
    world.restart();
    let settled = async {
        while !world.copies_under_way().await.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(settled).await;
}

#[tokio::test]
async fn a_copied_directory_is_published_with_the_versions_at_the_other_place() {
    let world = World::new(LinkMode::ImportExport).await;
    world.make_directory("/plain").await;
    let model = world.write("/plain/model.pt", &large()).await;
    world.write("/plain/small", b"small").await;
    let other = Other::new();
    let atomic = || JobOptions { atomic: true, ..other.options() };
    // What is written while others are sent belongs to no manifest.
    world.server.open_write(model).await;
    let job = world.copy("/plain", atomic()).await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 1));
    assert!(!other.object(".millrace-manifest.json").exists());
    world.server.commit(model, large().len() as u64).await;
    let retry = RetryJob { caller: ROOT, id: job.id };
    let again = world.hydration.retry_job(&retry).await.unwrap().id;
    let job = world.run_until(|job| job.id == again && job.state.is_final()).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    let told = fs::read(other.object(".millrace-manifest.json")).unwrap();
    let told: Value = serde_json::from_slice(&told).unwrap();
    let buckets = millrace_object_source::Buckets::new(Default::default());
    let spec = crate::hydration::import::spec_of(&bucket_of(other.directory.path())).unwrap();
    let bucket = buckets.bucket(&spec).unwrap();
    let files = told["files"].as_array().unwrap();
    assert_eq!(files.len(), 2);
    for file in files {
        let head = bucket.head(file["path"].as_str().unwrap()).await.unwrap();
        assert_eq!(file["tag"], head.version.tag.as_str());
        assert_eq!(PosixAttributes::from_metadata(&head.metadata).mode, Some(0o100_640));
    }
    assert_eq!(world.copy("/plain", atomic()).await.state, JobState::Succeeded, "and once more");
}

#[tokio::test]
async fn a_manifest_of_one_place_takes_no_other_place() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("step/model.pt", b"model");
    world.put("step/.millrace-manifest.json", b"of the link");
    world.put("step/optim/.millrace-manifest.json", b"of the link, too");
    let model = world.find("/data/step/model.pt").await.unwrap();
    world.server.files.lock().unwrap().insert(model.id, b"model".to_vec());
    let other = Other::new();
    let atomic = JobOptions { atomic: true, ..other.options() };
    let job = world.copy("/data/step", atomic).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    let manifest = fs::read(other.object(".millrace-manifest.json")).unwrap();
    let told: Value = serde_json::from_slice(&manifest).unwrap();
    assert_eq!(told["files"].as_array().unwrap().len(), 1);

    let report = || JobOptions { report: true, ..other.overwriting() };
    let job = world.copy("/data/step", report()).await;
    assert_eq!((job.state, job.files_total), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert_eq!(fs::read(other.object(".millrace-manifest.json")).unwrap(), manifest);
    assert!(!other.object("optim/.millrace-manifest.json").exists());
    let fetch = FetchReport { caller: ROOT, id: job.id, offset: 0 };
    let lines = world.hydration.fetch_report(&fetch).await.unwrap().lines;
    let left_out = String::from_utf8(lines).unwrap().matches(r#""left out""#).count();
    assert_eq!(left_out, 2);

    let job = world.copy("/data/step/.millrace-manifest.json", report()).await;
    let failure = &job.failures[0].failure;
    assert_eq!((job.state, failure.kind), (JobState::Failed, ErrorKind::InvalidArgument));
    assert!(failure.message.contains("--atomic"), "{failure}");
}

#[tokio::test]
async fn the_links_own_place_and_one_that_nobody_reaches_are_refused() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/file", b"1").await;
    let own = Destination { bucket: bucket_of(world.bucket_dir.path()), overwrite: false };
    let options = JobOptions { destination: Some(own.clone()), ..JobOptions::default() };
    let refused = world.start_copy("/data/file", options.clone()).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{refused}");
    let mut below = own.clone();
    below.bucket.url.push_str("/sub");
    let options = JobOptions { destination: Some(below), ..JobOptions::default() };
    let refused = world.start_copy("/data", options).await.unwrap_err();
    assert!(refused.message.contains("/sub has keys in common with file:///"), "{refused}");
    let mut nowhere = own;
    nowhere.bucket.url = "file:///nonexistent/place".to_owned();
    let options = JobOptions { destination: Some(nowhere), ..JobOptions::default() };
    let refused = world.start_copy("/data", options).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::BucketUnavailable, "{refused}");
}
