//! Jobs whose bucket is away for a while: they wait, tell that, and fail nothing for it.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::atomic::Ordering,
    time::Duration,
};

use millrace_object_source::RequestClass;
use millrace_protocol::{
    admin::{CancelJob, Job, JobKind, JobState, StartJob},
    cluster::LinkMode,
    job_options::{Destination, JobOptions, StartWithOptions},
    job_waits::JobWait,
    selection::Selection,
};
use millrace_types::{ErrorKind, JobId};
use tempfile::TempDir;
use tokio::time::Instant;

use super::{
    moved::list,
    server::{Fault, ROOT, World, bucket_of},
};
use crate::namespace::ObjectState;

impl World {
    /// Moves the bucket's directory away, as a file system looks that is not mounted.
    pub(super) fn unmount(&self) -> PathBuf {
        let aside = self.bucket_dir.path().with_extension("away");
        fs::rename(self.bucket_dir.path(), &aside).unwrap();
        aside
    }

    pub(super) fn mount_again(&self, aside: &Path) {
        fs::rename(aside, self.bucket_dir.path()).unwrap();
    }

    /// Waits until a job waits for a bucket.
    pub(super) async fn waiting(&self, id: JobId) -> JobWait {
        loop {
            if let Some(wait) = self.hydration.show_job_waits(id).waits.pop() {
                return wait;
            }
            let job = self.hydration.show_job(id).await.unwrap();
            assert!(!job.state.is_final(), "it did not wait: {job:?}");
            tokio::task::yield_now().await;
        }
    }

    /// Waits for the end of a job.
    pub(super) async fn finished(&self, id: JobId) -> Job {
        loop {
            let job = self.hydration.show_job(id).await.unwrap();
            if job.state.is_final() {
                return job;
            }
            tokio::task::yield_now().await;
        }
    }

    /// Begins an export to another place.
    async fn begin_copy(&self, path: &str, to: &Path) -> JobId {
        let destination = Some(Destination { bucket: bucket_of(to), overwrite: false });
        let path = path.as_bytes().to_vec();
        let request = StartWithOptions {
            start: StartJob { caller: ROOT, kind: JobKind::Export, path },
            selection: Selection::default(),
            dry_run: false,
            options: JobOptions { destination, ..JobOptions::default() },
        };
        self.hydration.start_with_options(b"", &request).await.unwrap().id
    }

    /// How a job over `/data` ends whose bucket stays away.
    async fn given_up(&self, kind: JobKind) -> Job {
        let (id, hours) = (self.begin(kind, "/data").await, Duration::from_secs(3 * 3_600));
        self.run_for(hours, self.hydration.job_ends().notified()).await;
        let job = self.hydration.show_job(id).await.unwrap();
        assert_eq!(job.state, JobState::Failed);
        job
    }

    /// A job that finds the bucket away, and how it ends when that is back.
    async fn over(&self, id: JobId) -> Job {
        let aside = self.unmount();
        let job = self.run_beside(async {
            let wait = self.waiting(id).await;
            let name = format!("file://{}/", self.bucket_dir.path().display());
            assert_eq!((wait.bucket, wait.failure.kind), (name, ErrorKind::BucketUnavailable));
            assert!(wait.seconds_left > 3_000 && wait.seconds < 600, "{}", wait.seconds_left);
            let running = self.hydration.show_job(id).await.unwrap();
            assert_eq!((running.state, running.errors), (JobState::Running, 0));
            self.mount_again(&aside);
            self.finished(id).await
        });
        let job = job.await;
        assert_eq!((job.state, job.errors), (JobState::Succeeded, 0), "{:?}", job.failures);
        assert!(self.hydration.show_job_waits(id).waits.is_empty());
        job
    }
}

#[tokio::test]
async fn an_export_waits_for_its_bucket_and_fails_no_file() {
    let world = World::new(LinkMode::ImportExport).await;
    for number in 0..40 {
        world.write(&format!("/data/{number}"), b"some bytes").await;
    }
    let id = world.begin(JobKind::Export, "/data").await;
    let job = world.over(id).await;
    assert_eq!((job.files_done, job.files_total), (40, 40));
    assert_eq!((job.bytes_done, job.bytes_total), (400, 400), "each is counted once");
    assert_eq!(world.state("/data/39").await, ObjectState::Exported);
    assert_eq!(fs::read(world.object("7")).unwrap(), b"some bytes");
}

#[tokio::test]
async fn an_export_to_another_place_waits_for_that() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.make_directory("/run").await;
    world.write("/run/file", b"some bytes").await;
    let id = world.begin_copy("/run", world.bucket_dir.path()).await;
    let job = world.over(id).await;
    assert_eq!((job.files_done, job.bytes_done), (1, 10));
    assert_eq!(fs::read(world.object("file")).unwrap(), b"some bytes");
}

#[tokio::test]
async fn an_import_waits_and_lists_everything() {
    let world = World::new(LinkMode::ReadOnly).await;
    for number in 0..20 {
        world.put(&format!("{number}/file"), b"12345");
    }
    let id = world.begin(JobKind::Import, "/data").await;
    let job = world.over(id).await;
    assert_eq!((job.files_done, job.bytes_done), (41, 100), "the top, directories and files");
    assert_eq!(world.find("/data/19/file").await.unwrap().size, 5);
}

#[tokio::test]
async fn a_hydrate_waits_with_directories_that_nobody_has_listed() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("sub/file", b"12345");
    let id = world.begin(JobKind::Hydrate, "/data").await;
    let job = world.over(id).await;
    assert_eq!((job.files_done, job.bytes_done), (1, 5));
}

#[tokio::test]
async fn what_targets_could_not_fetch_is_fetched_once_the_bucket_answers() {
    let world = World::new(LinkMode::ReadOnly).await;
    for name in ["one", "two"] {
        world.put(name, b"12345");
    }
    let known = world.job(JobKind::Import, "/data").await;
    assert_eq!(known.state, JobState::Succeeded);
    let one = world.find("/data/one").await.unwrap().id;
    let away = ErrorKind::BucketUnavailable;
    world.server.changed.lock().unwrap().insert(one, away);
    let id = world.begin(JobKind::Hydrate, "/data").await;
    let job = world.over(id).await;
    assert_eq!((job.files_done, job.bytes_done), (2, 10));
    let asked = world.server.items.lock().unwrap();
    let asked = asked.iter().filter(|(_, item)| item.content.inode == one);
    assert_eq!(asked.count(), 2, "once more, and the other one once");
}

#[tokio::test]
async fn what_fails_while_its_bucket_answers_is_tried_once_more_and_is_a_failure_then() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/file", b"content").await;
    let refusals = |count| (0..count).map(|_| Fault::Fail(ErrorKind::BucketUnavailable));
    world.server.faults.lock().unwrap().extend(refusals(1));
    world.export("/data").await;
    world.write("/data/file", b"changed").await;
    world.server.faults.lock().unwrap().extend(refusals(2));
    let job = world.job(JobKind::Export, "/data").await;
    assert_eq!((job.state, job.errors, job.files_total), (JobState::Failed, 1, 1));
    assert_eq!(job.failures[0].failure.kind, ErrorKind::BucketUnavailable);
    assert!(world.server.faults.lock().unwrap().is_empty());
}

#[tokio::test]
async fn a_job_that_waits_can_be_cancelled() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"12345");
    let id = world.begin(JobKind::Import, "/data").await;
    let aside = world.unmount();
    let cancelled = async {
        world.waiting(id).await;
        world.hydration.cancel_job(&CancelJob { caller: ROOT, id }).await.unwrap();
        while !world.hydration.show_job_waits(id).waits.is_empty() {
            tokio::task::yield_now().await;
        }
    };
    world.run_beside(cancelled).await;
    world.mount_again(&aside);
    let job = world.hydration.show_job(id).await.unwrap();
    assert_eq!((job.state, job.errors), (JobState::Cancelled, 0));
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_stays_away_is_given_up_and_what_needs_it_fails_without_a_try() {
    let world = World::new(LinkMode::ImportExport).await;
    for number in 0..40 {
        world.write(&format!("/data/{number}"), b"some bytes").await;
    }
    world.put("clean/file", b"12345");
    world.job(JobKind::Import, "/data").await;
    let aside = world.unmount();
    let (begun, put) = (Instant::now(), RequestClass::Put);
    let before = world.bucket.counters().requests(put);
    let job = world.given_up(JobKind::Export).await;
    assert_eq!(
        (job.errors, job.files_total, job.files_done),
        (40, 41, 1),
        "the clean one needs none"
    );
    assert!(job.failures[31].failure.message.contains("not for 60 minutes"), "{:?}", job.failures);
    let waited = begun.elapsed().as_secs();
    assert!((3_600..3_900).contains(&waited), "{waited} s");
    let tried = world.bucket.counters().requests(put) - before;
    // How many of the sixteen begin before the first has failed depends on threads.
    assert!((1..=16).contains(&tried), "{tried}: those that were under way when it went away");
    world.mount_again(&aside);
    world.export("/data").await;
}

#[tokio::test(start_paused = true)]
async fn what_is_here_already_is_hydrated_although_its_bucket_is_given_up() {
    let world = World::new(LinkMode::ReadOnly).await;
    for name in ["one", "two"] {
        world.put(name, b"12345");
    }
    world.put("sub/file", b"12345");
    list(&world, "/data").await;
    // What lies below was never listed: so the job learns that the bucket is away.
    let aside = world.unmount();
    let job = world.given_up(JobKind::Hydrate).await;
    assert_eq!((job.errors, job.files_total, job.files_done), (1, 3, 2), "{:?}", job.failures);
    world.mount_again(&aside);
}

#[tokio::test(start_paused = true)]
async fn of_an_import_that_cannot_list_its_top_nothing_is_done() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"12345");
    let aside = world.unmount();
    let job = world.given_up(JobKind::Import).await;
    assert_eq!((job.files_done, job.files_total, job.errors), (0, 1, 1), "{:?}", job.failures);
    world.mount_again(&aside);
}

#[tokio::test]
async fn jobs_that_wait_for_a_bucket_hold_up_none_of_others() {
    let world = World::new(LinkMode::ReadOnly).await;
    let other = world.link_another("/other").await;
    fs::write(other.path().join("file"), b"1").unwrap();
    let aside = world.unmount();
    let mut waiting = Vec::new();
    for _ in 0..4 {
        waiting.push(world.begin(JobKind::Import, "/data").await);
    }
    let import = world.begin(JobKind::Import, "/other").await;
    let job = world.run_beside(world.finished(import)).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 2));
    for id in waiting {
        let job = world.hydration.show_job(id).await.unwrap();
        assert_eq!((job.state, job.errors), (JobState::Running, 0));
    }
    world.mount_again(&aside);
}

/// How long a request to a target takes whose bucket says nothing.
const SILENCE: Duration = Duration::from_secs(240);

impl World {
    /// How a job ends of which a target keeps a request for so long. `each` is called every second
    /// meanwhile with what it waits for.
    async fn slowly(&self, id: JobId, mut each: impl FnMut(Vec<JobWait>)) -> Job {
        let (begun, hour) = (Instant::now(), Duration::from_secs(3_600));
        let ended = self.run_for(hour, async {
            loop {
                let job = self.hydration.show_job(id).await.unwrap();
                if job.state.is_final() {
                    return job;
                }
                each(self.hydration.show_job_waits(id).waits);
                self.server.silent.store(begun.elapsed() < SILENCE, Ordering::Relaxed);
                tokio::time::sleep(Duration::from_secs(1)).await;
            }
        });
        let job = ended.await;
        assert!(begun.elapsed() >= SILENCE, "{:?}", begun.elapsed());
        assert_eq!((job.state, job.files_done, job.errors), (JobState::Succeeded, 1, 0));
        job
    }

    /// The same of a hydrate of the one file that there is.
    async fn hydrate_slowly(&self, each: impl FnMut(Vec<JobWait>)) {
        self.server.silent.store(true, Ordering::Relaxed);
        let id = self.begin(JobKind::Hydrate, "/data").await;
        self.slowly(id, each).await;
    }
}

#[tokio::test(start_paused = true)]
async fn a_bucket_that_says_nothing_is_noticed_while_requests_are_under_way() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"12345");
    world.job(JobKind::Import, "/data").await;
    let (begun, aside) = (Instant::now(), world.unmount());
    let (mut noticed, mut was_back) = (None, false);
    let ended = world.hydrate_slowly(|waits| {
        if let (None, false) = (noticed, waits.is_empty()) {
            noticed = Some(begun.elapsed());
            world.mount_again(&aside);
        }
        was_back |= noticed.is_some() && waits.is_empty();
    });
    ended.await;
    assert!(noticed.is_some_and(|after| after < Duration::from_secs(60)), "{noticed:?}");
    assert!(was_back, "and that it answers again");
}

#[tokio::test(start_paused = true)]
async fn no_job_waits_for_a_bucket_that_is_only_slow() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("file", b"12345");
    world.job(JobKind::Import, "/data").await;
    world.hydrate_slowly(|waits| assert!(waits.is_empty(), "it answers")).await;
}

#[tokio::test(start_paused = true)]
async fn an_export_elsewhere_does_not_wait_for_the_bucket_of_its_link() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/file", b"some bytes").await;
    world.job(JobKind::Import, "/data").await;
    let elsewhere = TempDir::new().unwrap();
    let id = world.begin_copy("/data", elsewhere.path()).await;
    world.server.faults.lock().unwrap().push_back(Fault::Stall(SILENCE));
    let aside = world.unmount();
    world.slowly(id, |waits| assert!(waits.is_empty(), "{waits:?}")).await;
    assert_eq!(fs::read(elsewhere.path().join("file")).unwrap(), b"some bytes");
    world.mount_again(&aside);
}
