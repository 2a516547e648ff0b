//! Jobs beside each other, over some files of a tree, only counted, and once more.

use std::{pin::pin, sync::atomic::Ordering, time::Duration};

use millrace_protocol::{
    admin::{CancelJob, Job, JobKind, JobState, StartJob},
    cluster::LinkMode,
    job_options::{JobOptions, StartWithOptions},
    selection::{RetryJob, Selection, StartSelected},
    session::Caller,
    unused::StartUnused,
};
use millrace_types::{ErrorKind, JobId};

use super::server::{Fault, ROOT, World};

fn start(kind: JobKind, path: &str) -> StartJob {
    StartJob { caller: ROOT, kind, path: path.as_bytes().to_vec() }
}

fn including(pattern: &str) -> Selection {
    Selection { include: vec![pattern.to_owned()], ..Selection::default() }
}

impl World {
    async fn selected(&self, kind: JobKind, selection: Selection, dry_run: bool) -> Job {
        let request = StartSelected { start: start(kind, "/data"), selection, dry_run };
        let id = self.hydration.start_selected(b"", &request).await.unwrap().id;
        self.run_until(|job| job.id == id && job.state.is_final()).await
    }

    async fn state_of(&self, id: JobId) -> JobState {
        self.hydration.show_job(id).await.unwrap().state
    }

    /// Runs an import to its end, beside a disk that has no room for a state of it until that was
    /// refused so often. The bucket is asked nothing between the first and the last refusal.
    async fn import_beside_full_disk(&self, state: JobState, refusals: usize) -> Job {
        let id = self.hydration.start_job(b"", &start(JobKind::Import, "/data")).await.unwrap().id;
        let troubles = &self.server.troubles;
        troubles.unrecorded.lock().unwrap().push(state);
        let mut ended = pin!(self.hydration.job_ends().notified());
        ended.as_mut().enable();
        let refused = async {
            troubles.refused.notified().await;
            let asked = self.bucket.counters().requests_total();
            for _ in 1..refusals {
                troubles.refused.notified().await;
            }
            assert_eq!(self.bucket.counters().requests_total(), asked);
            troubles.unrecorded.lock().unwrap().clear();
            ended.await;
        };
        self.run_beside(refused).await;
        self.hydration.show_job(id).await.unwrap()
    }
}

#[tokio::test]
async fn a_job_whose_targets_are_silent_holds_up_no_other_but_those_that_need_its_turn() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("there", b"12345");
    world.write("/data/new", b"new").await;
    world.server.silent.store(true, Ordering::Relaxed);
    let begin =
        async |kind| world.hydration.start_job(b"", &start(kind, "/data")).await.unwrap().id;
    let hydrate = begin(JobKind::Hydrate).await;
    let (first, second) = (begin(JobKind::Export).await, begin(JobKind::Export).await);
    let release = begin(JobKind::Release).await;
    let imported = world.job(JobKind::Import, "/data").await;
    assert_eq!(imported.state, JobState::Succeeded);
    for (id, state) in [(hydrate, JobState::Running), (first, JobState::Running)] {
        assert_eq!(world.state_of(id).await, state);
    }
    for waiting in [second, release] {
        assert_eq!(world.state_of(waiting).await, JobState::Queued, "an export is under way");
    }

    // As after a restart: all of them are done again.
    world.server.silent.store(false, Ordering::Relaxed);
    let last = world.run_until(|job| job.id == second && job.state.is_final()).await;
    assert_eq!(last.state, JobState::Succeeded, "{:?}", last.failures);
    assert_eq!(world.state_of(first).await, JobState::Succeeded);
    world.run_until(|job| job.id == hydrate && job.state == JobState::Succeeded).await;
}

#[tokio::test]
async fn who_waits_for_jobs_hears_of_each_end() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("there", b"12345");
    world.server.silent.store(true, Ordering::Relaxed);
    let begin = async |kind| world.hydration.start_job(b"", &start(kind, "/data")).await.unwrap();
    let hydrate = begin(JobKind::Hydrate).await.id;
    for ends_by_itself in [true, false] {
        let id = if ends_by_itself { begin(JobKind::Import).await.id } else { hydrate };
        let mut told = pin!(world.hydration.job_ends().notified());
        told.as_mut().enable();
        if !ends_by_itself {
            world.hydration.cancel_job(&CancelJob { caller: ROOT, id }).await.unwrap();
        }
        world.run_beside(told).await;
        assert!(world.state_of(id).await.is_final(), "only then is anybody told");
    }
}

#[tokio::test(start_paused = true)]
async fn a_job_whose_end_cannot_be_recorded_is_not_done_again() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("there", b"12345");
    let job = world.import_beside_full_disk(JobState::Succeeded, 4).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    let mut expected = vec![JobState::Succeeded; 6];
    expected[0] = JobState::Running;
    assert_eq!(*world.server.troubles.job_states.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_job_begins_when_it_is_recorded_that_it_has() {
    let world = World::new(LinkMode::ReadOnly).await;
    world.put("there", b"12345");
    let job = world.import_beside_full_disk(JobState::Running, 4).await;
    assert_eq!(job.state, JobState::Succeeded, "{:?}", job.failures);
    let mut expected = vec![JobState::Running; 6];
    expected[5] = JobState::Succeeded;
    assert_eq!(*world.server.troubles.job_states.lock().unwrap(), expected);
}

#[tokio::test(start_paused = true)]
async fn a_job_of_which_nothing_can_be_recorded_makes_way_when_it_is_cancelled() {
    let world = World::new(LinkMode::ImportExport).await;
    let release = start(JobKind::Release, "/data");
    let first = world.hydration.start_job(b"", &release).await.unwrap().id;
    let second = world.hydration.start_job(b"", &release).await.unwrap().id;
    let troubles = &world.server.troubles;
    troubles.unrecorded.lock().unwrap().push(JobState::Running);
    let cancelled = async {
        troubles.refused.notified().await;
        let cancel = CancelJob { caller: ROOT, id: first };
        world.hydration.cancel_job(&cancel).await.unwrap();
        troubles.unrecorded.lock().unwrap().clear();
        world.hydration.job_ends().notified().await;
    };
    world.run_beside(cancelled).await;
    assert_eq!(world.state_of(first).await, JobState::Cancelled);
    assert_eq!(world.state_of(second).await, JobState::Succeeded);
}

#[tokio::test]
async fn a_job_works_on_the_files_that_are_selected_and_a_dry_run_on_none() {
    let world = World::new(LinkMode::ImportExport).await;
    for name in ["a.jpg", "sub/b.jpg", "sub/c.png", "d.txt"] {
        world.put(name, b"12345");
    }
    let counted = world.selected(JobKind::Hydrate, including("*.jpg"), true).await;
    assert_eq!((counted.state, counted.files_done), (JobState::Succeeded, 0));
    assert_eq!((counted.files_total, counted.bytes_total), (2, 10));
    assert!(world.server.items_of("hydrate").is_empty(), "nothing is fetched");
    let done = world.selected(JobKind::Hydrate, including("sub/*"), false).await;
    assert_eq!((done.files_done, done.bytes_done), (2, 10));
    assert_eq!(world.server.items_of("hydrate").len(), 2);
    let large = Selection { size_min: Some(6), ..Selection::default() };
    let none = world.selected(JobKind::Release, large, false).await;
    assert_eq!((none.state, none.files_total), (JobState::Succeeded, 0));
    assert!(world.server.items_of("release").is_empty());

    for name in ["x.pt", "y.tmp"] {
        world.write(&format!("/data/{name}"), b"new").await;
    }
    let but_tmp = Selection { exclude: vec!["*.tmp".to_owned()], ..Selection::default() };
    let counted = world.selected(JobKind::Export, but_tmp.clone(), true).await;
    assert_eq!((counted.files_total, counted.bytes_total, counted.files_done), (1, 3, 0));
    assert!(!world.object("x.pt").exists());
    let done = world.selected(JobKind::Export, but_tmp, false).await;
    assert_eq!(done.state, JobState::Succeeded, "{:?}", done.failures);
    assert!(world.object("x.pt").exists() && !world.object("y.tmp").exists());
}

#[tokio::test]
async fn a_job_passes_over_what_was_used_also_when_it_is_started_once_more() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/new", b"new").await;
    let with_options = |kind| StartWithOptions {
        start: start(kind, "/data"),
        selection: Selection::default(),
        dry_run: true,
        options: JobOptions::default(),
    };
    let unused = |kind, seconds| StartUnused { job: with_options(kind), seconds };
    let refused = world.hydration.start_unused(b"", &unused(JobKind::Import, 1)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::InvalidArgument);
    let begun = world.hydration.start_unused(b"", &unused(JobKind::Export, 60)).await.unwrap();
    let is_over = |id| move |job: &Job| job.id == id && job.state.is_final();
    let done = world.run_until(is_over(begun.id)).await;
    assert_eq!((done.state, done.files_total), (JobState::Succeeded, 0), "it was just written");
    let retry = RetryJob { caller: ROOT, id: begun.id };
    let again = world.hydration.retry_job(&retry).await.unwrap().id;
    assert_eq!(world.run_until(is_over(again)).await.files_total, 0);
    for id in [begun.id, again] {
        assert_eq!(world.hydration.show_unused(id).await.unwrap().seconds, Some(60));
    }
    let all = world.hydration.start_with_options(b"", &with_options(JobKind::Export)).await;
    let all = all.unwrap().id;
    assert_eq!(world.run_until(is_over(all)).await.files_total, 1);
    assert_eq!(world.hydration.show_unused(all).await.unwrap().seconds, None);
}

#[tokio::test]
async fn what_makes_no_selection_is_refused_before_there_is_a_job() {
    let world = World::new(LinkMode::ImportExport).await;
    let refused = async |kind, selection| {
        let request = StartSelected { start: start(kind, "/data"), selection, dry_run: false };
        world.hydration.start_selected(b"", &request).await.unwrap_err()
    };
    let error = refused(JobKind::Hydrate, including("a[")).await;
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    assert!(error.message.contains("a["), "{error}");
    let error = refused(JobKind::Import, including("*")).await;
    assert_eq!(error.kind, ErrorKind::InvalidArgument);
    assert!(world.hydration.list_jobs().await.unwrap().is_empty());
}

#[tokio::test]
async fn a_job_that_has_ended_is_started_once_more_with_what_it_was_told() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("a.jpg", b"12345");
    world.put("b.txt", b"12345");
    let first = world.selected(JobKind::Hydrate, including("*.jpg"), false).await;
    let retry = |caller, id| RetryJob { caller, id };
    let again = world.hydration.retry_job(&retry(ROOT, first.id)).await.unwrap();
    assert_eq!((again.state, again.path.as_slice()), (JobState::Queued, &b"/data"[..]));
    let busy = world.hydration.retry_job(&retry(ROOT, again.id)).await.unwrap_err();
    assert_eq!(busy.kind, ErrorKind::Busy, "it has not ended");
    let done = world.run_until(|job| job.id == again.id && job.state.is_final()).await;
    assert_eq!((done.files_total, done.kind), (1, JobKind::Hydrate));
    let shown = world.hydration.show_selection(again.id).await.unwrap();
    assert_eq!(shown.selection, including("*.jpg"));

    let stranger = Caller { uid: 77, gid: 77, groups: Vec::new() };
    let refused = world.hydration.retry_job(&retry(stranger, first.id)).await.unwrap_err();
    assert_eq!(refused.kind, ErrorKind::NotPermitted);
    let missing = world.hydration.retry_job(&retry(ROOT, JobId(99))).await.unwrap_err();
    assert_eq!(missing.kind, ErrorKind::NotFound);
}

#[tokio::test]
async fn ages_of_a_job_that_is_started_once_more_count_from_its_first_start() {
    let world = World::new(LinkMode::ImportExport).await;
    world.write("/data/new", b"new").await;
    world.server.faults.lock().unwrap().push_back(Fault::Fail(ErrorKind::Lost));
    let selection = Selection { age_max: Some(60), ..Selection::default() };
    let failed = world.selected(JobKind::Export, selection, false).await;
    assert_eq!((failed.state, failed.errors), (JobState::Failed, 1));
    world.server.pass(Duration::from_secs(3600));
    let retry = RetryJob { caller: ROOT, id: failed.id };
    let again = world.hydration.retry_job(&retry).await.unwrap().id;
    let job = world.run_until(|job| job.id == again && job.state.is_final()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert!(world.object("new").exists());
}
