//! Jobs that are done in some way of their own: reported, held to a rate, or before others.

use std::{
    fs,
    sync::atomic::Ordering,
    time::{Duration, Instant},
};

use millrace_protocol::{
    admin::{Job, JobKind, JobState, StartJob},
    cluster::LinkMode,
    job_options::{Destination, FetchReport, JobOptions, StartWithOptions},
    metadata::NewNode,
    selection::{RetryJob, Selection},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, FileName, JobId, Timestamp};
use serde_json::Value;

use super::server::{ROOT, World, bucket_of};
use crate::{
    command::{self, Command},
    hydration::Environment,
};

const REPORTED: JobOptions = JobOptions {
    atomic: false,
    priority: 0,
    bytes_per_second: None,
    report: true,
    files: None,
    destination: None,
};

fn request(kind: JobKind, options: JobOptions) -> StartWithOptions {
    let start = StartJob { caller: ROOT, kind, path: b"/data".to_vec() };
    StartWithOptions { start, selection: Selection::default(), dry_run: false, options }
}

impl World {
    async fn start_with(&self, request: &StartWithOptions) -> Result<JobId, Failure> {
        self.hydration.start_with_options(b"", request).await.map(|job| job.id)
    }

    /// Makes a file that lives in its inode.
    async fn write_inline(&self, path: &str, bytes: &[u8]) {
        self.write("/like", b"").await;
        let layout = self.find("/like").await.unwrap().content().unwrap().layout;
        let (directory, name) = path.rsplit_once('/').unwrap();
        let create = command::Create {
            caller: ROOT,
            parent: self.find(directory).await.unwrap().id,
            name: FileName::parse(name.as_bytes()).unwrap(),
            node: NewNode::Regular,
            mode: 0o640,
            inode: self.server.reserve_inodes(1).await.unwrap()[0],
            seed: 7,
            open: None,
            exclusive: true,
        };
        let end = bytes.len() as u64;
        let publish =
            command::Publish { create, layout, made_at: Timestamp(0), end, written_at: None };
        let publish = command::PublishInline { publish, bytes: bytes.to_vec() };
        self.server.execute(Command::PublishInline(Box::new(publish)), false).await.unwrap();
    }

    async fn end_of(&self, id: JobId) -> Job {
        self.run_until(|job| job.id == id && job.state.is_final()).await
    }

    async fn report_of(&self, id: JobId) -> Result<Vec<Value>, Failure> {
        let fetch = FetchReport { caller: ROOT, id, offset: 0 };
        let page = self.hydration.fetch_report(&fetch).await?;
        assert_eq!(page.next, None, "a short one");
        let text = String::from_utf8(page.lines).unwrap();
        let mut lines: Vec<Value> =
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
        lines.sort_by_key(|line| line["path"].to_string());
        Ok(lines)
    }
}

/// `path outcome bytes` of each line.
fn told(lines: &[Value]) -> Vec<String> {
    let one = |line: &Value| {
        let (path, outcome) = (line["path"].as_str().unwrap(), line["outcome"].as_str().unwrap());
        format!("{path} {outcome} {}", line["bytes"])
    };
    lines.iter().map(one).collect()
}

#[tokio::test]
async fn a_report_names_each_file_with_what_became_of_it() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("cold", b"12345");
    let hydrate = world.start_with(&request(JobKind::Hydrate, REPORTED)).await.unwrap();
    assert_eq!(world.end_of(hydrate).await.state, JobState::Succeeded);
    assert_eq!(told(&world.report_of(hydrate).await.unwrap()), ["/data/cold done 5"]);

    world.write("/data/new", b"new").await;
    let busy = world.write("/data/open", b"busy").await;
    world.server.open_write(busy).await;
    let export = world.start_with(&request(JobKind::Export, REPORTED)).await.unwrap();
    assert_eq!(world.end_of(export).await.state, JobState::Failed);
    let lines = world.report_of(export).await.unwrap();
    let expected = ["/data/cold done 0", "/data/new done 3", "/data/open failed 0"];
    assert_eq!(told(&lines), expected);
    assert!(lines[2]["error"].as_str().unwrap().contains("open for writing"), "{lines:?}");
    assert_eq!(lines[1].get("error"), None);

    // What would be done; and what was not asked for.
    let dry = StartWithOptions { dry_run: true, ..request(JobKind::Hydrate, REPORTED) };
    let dry = world.start_with(&dry).await.unwrap();
    world.end_of(dry).await;
    let lines = told(&world.report_of(dry).await.unwrap());
    assert!(lines.contains(&"/data/cold would be done 5".to_owned()), "{lines:?}");
    let plain = world.job(JobKind::Import, "/data").await.id;
    let failure = world.report_of(plain).await.unwrap_err();
    assert!(failure.kind == ErrorKind::NotFound && failure.message.contains("--report"));
}

#[tokio::test]
async fn a_report_is_for_the_owner_of_a_job_that_has_ended() {
    let mut world = World::new(LinkMode::ImportExport).await;
    world.put("cold", b"12345");
    let id = world.start_with(&request(JobKind::Import, REPORTED)).await.unwrap();
    assert_eq!(world.report_of(id).await.unwrap_err().kind, ErrorKind::Busy);
    world.end_of(id).await;
    let stranger = Caller { uid: 1000, ..ROOT };
    let fetch = FetchReport { caller: stranger, id, offset: 0 };
    let refused = world.hydration.fetch_report(&fetch).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotPermitted);
    let unknown = FetchReport { caller: ROOT, id: JobId(99), offset: 0 };
    assert_eq!(world.hydration.fetch_report(&unknown).await.unwrap_err().kind, ErrorKind::NotFound);
    // It outlives the server; and a job that is started once more has its own.
    world.restart();
    assert_eq!(told(&world.report_of(id).await.unwrap()), ["/data done 0", "/data/cold done 5"]);
    let again = world.hydration.retry_job(&RetryJob { caller: ROOT, id }).await.unwrap().id;
    world.end_of(again).await;
    assert_eq!(told(&world.report_of(again).await.unwrap()), ["/data done 0", "/data/cold done 5"]);
    assert_eq!(world.hydration.show_job_options(again).await.unwrap().options, REPORTED);
}

#[tokio::test]
async fn of_jobs_that_wait_the_highest_priority_begins_first_and_then_the_oldest() {
    let world = World::new(LinkMode::ImportExport).await;
    let mut ids = Vec::new();
    for priority in [0, -3, 5, 0, 5] {
        let options = JobOptions { priority, ..JobOptions::default() };
        ids.push(world.start_with(&request(JobKind::Export, options)).await.unwrap());
    }
    world.end_of(ids[1]).await;
    let mut ended = Vec::new();
    for (at, id) in ids.iter().enumerate() {
        ended.push((world.hydration.show_job(*id).await.unwrap().ended, at));
    }
    ended.sort();
    let order: Vec<_> = ended.iter().map(|(_, at)| *at).collect();
    assert_eq!(order, [2, 4, 0, 3, 1]);
}

#[tokio::test]
async fn a_rate_holds_what_moves_and_not_what_is_here() {
    const LEN: u64 = 64 * 1024;
    let world = World::new(LinkMode::ImportExport).await;
    let content = vec![7; 64 * 1024];
    for name in 0..40 {
        world.put(&format!("{name}"), &content);
    }
    world.job(JobKind::Import, "/data").await;
    let held = async |kind, path: &str, rate| {
        let options = JobOptions { bytes_per_second: Some(rate), ..JobOptions::default() };
        let start = StartJob { caller: ROOT, kind, path: path.as_bytes().to_vec() };
        let request = StartWithOptions { start, ..request(kind, options) };
        let id = world.start_with(&request).await.unwrap();
        let begun = Instant::now();
        let job = world.end_of(id).await;
        assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
        begun.elapsed()
    };
    // The last portion moves as soon as those before it are paid for.
    let moved = held(JobKind::Hydrate, "/data", 20 * LEN).await;
    assert!(moved >= Duration::from_millis(950), "{moved:?}");
    for name in 40..400 {
        world.put(&format!("{name}"), &content);
    }
    world.job(JobKind::Import, "/data").await;
    for name in 0..400 {
        let id = world.find(&format!("/data/{name}")).await.unwrap().id;
        world.server.present.lock().unwrap().insert(id, LEN);
    }
    // What is here already would take 399 s otherwise: longer than any job is waited for here.
    held(JobKind::Hydrate, "/data", LEN).await;
    world.make_directory("/data/out").await;
    for name in ["a", "b", "c"] {
        world.write(&format!("/data/out/{name}"), &content).await;
    }
    let sent = held(JobKind::Export, "/data/out", 2 * LEN).await;
    assert!(sent >= Duration::from_millis(950), "{sent:?}");
}

#[tokio::test]
async fn files_that_live_in_their_inodes_wait_for_their_turn_too() {
    const LEN: u64 = 16 * 1024;
    let world = World::new(LinkMode::ImportExport).await;
    let content = vec![7; 16 * 1024];
    world.make_directory("/data/out").await;
    for name in ["a", "b", "c", "d", "e"] {
        world.write_inline(&format!("/data/out/{name}"), &content).await;
    }
    let other = tempfile::tempdir().unwrap();
    let destination = Destination { bucket: bucket_of(other.path()), overwrite: false };
    for destination in [Some(destination), None] {
        let rate = Some(4 * LEN);
        let options = JobOptions { bytes_per_second: rate, destination, ..JobOptions::default() };
        let start = StartJob { caller: ROOT, kind: JobKind::Export, path: b"/data/out".to_vec() };
        let request = StartWithOptions { start, ..request(JobKind::Export, options) };
        let id = world.start_with(&request).await.unwrap();
        let begun = Instant::now();
        let job = world.end_of(id).await;
        assert_eq!((job.state, job.bytes_done), (JobState::Succeeded, 5 * LEN), "{job:?}");
        // The last one goes as soon as the four before it are paid for.
        assert!(begun.elapsed() >= Duration::from_millis(950), "{:?}", begun.elapsed());
    }
    assert_eq!(fs::read(other.path().join("e")).unwrap(), content);
    assert_eq!(fs::read(world.object("out/e")).unwrap(), content);
}

#[tokio::test]
async fn of_a_large_object_no_more_than_a_portion_of_the_rate_is_asked_for_at_once() {
    const MIB: u64 = 1 << 20;
    let world = World::new(LinkMode::ImportExport).await;
    world.put("large", &vec![7; 5 << 19]);
    let options = JobOptions { bytes_per_second: Some(MIB), ..JobOptions::default() };
    let begun = Instant::now();
    let id = world.start_with(&request(JobKind::Hydrate, options)).await.unwrap();
    let job = world.end_of(id).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1));
    assert_eq!((job.bytes_done, job.bytes_total), (5 * MIB / 2, 5 * MIB / 2));
    let items = world.server.items_of("hydrate");
    let ends: Vec<u64> = items.iter().map(|item| item.content.origin_length).collect();
    assert_eq!(ends, [MIB, 2 * MIB, 5 * MIB / 2], "one after the other, of the same chunk");
    // The last moves as soon as the two before it are paid for.
    assert!(begun.elapsed() >= Duration::from_millis(1950), "{:?}", begun.elapsed());
}

#[tokio::test]
async fn what_no_job_can_keep_is_refused_before_it_is_taken() {
    let world = World::new(LinkMode::ImportExport).await;
    let rate = |rate| JobOptions { bytes_per_second: Some(rate), ..JobOptions::default() };
    let selected = Selection { include: vec!["*".to_owned()], ..Selection::default() };
    for wrong in [
        request(JobKind::Release, rate(1 << 20)),
        request(JobKind::Hydrate, rate(1)),
        request(JobKind::Import, JobOptions { priority: 11, ..JobOptions::default() }),
        request(JobKind::Hydrate, JobOptions { atomic: true, ..JobOptions::default() }),
        StartWithOptions { selection: selected, ..request(JobKind::Import, REPORTED) },
    ] {
        let refused = world.start_with(&wrong).await.unwrap_err();
        assert!(refused.kind == ErrorKind::InvalidArgument, "{wrong:?}: {refused}");
        assert!(!refused.message.is_empty(), "{wrong:?}");
    }
    assert!(world.hydration.list_jobs().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_report_that_cannot_be_kept_fails_its_job_and_not_the_work() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/new", b"new").await;
    let id = world.start_with(&request(JobKind::Export, REPORTED)).await.unwrap();
    let file = world.server.reports_dir().join(format!("job-{}.jsonl", id.0));
    std::os::unix::fs::symlink("/dev/full", file).unwrap();
    let job = world.end_of(id).await;
    assert_eq!((job.state, job.files_done), (JobState::Failed, 1));
    assert!(job.failures[0].failure.message.contains("report"), "{:?}", job.failures);
    assert!(world.object("new").exists());
}

#[tokio::test]
async fn a_report_for_which_the_disk_has_no_room_is_removed_and_its_job_ends() {
    let world = World::new(LinkMode::ImportExport).await;
    for at in 0..9 {
        world.put(&format!("{at}"), b"12345");
    }
    world.server.troubles.reports_keep_free.store(u64::MAX, Ordering::Relaxed);
    let id = world.start_with(&request(JobKind::Hydrate, REPORTED)).await.unwrap();
    let job = world.end_of(id).await;
    assert_eq!((job.state, job.files_done, job.errors), (JobState::Failed, 9, 1));
    assert!(job.failures[0].failure.message.contains("report"), "{:?}", job.failures);
    assert_eq!(fs::read_dir(world.server.reports_dir()).unwrap().count(), 0);
    assert_eq!(world.report_of(id).await.unwrap_err().kind, ErrorKind::NotFound);
    // The next one has room again.
    world.server.troubles.reports_keep_free.store(0, Ordering::Relaxed);
    let id = world.start_with(&request(JobKind::Hydrate, REPORTED)).await.unwrap();
    assert_eq!(world.end_of(id).await.state, JobState::Succeeded);
    assert_eq!(world.report_of(id).await.unwrap().len(), 9);
}
