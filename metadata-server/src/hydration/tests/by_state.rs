//! Jobs over the files in some states, judged when the job comes to them.

use std::{collections::BTreeSet, fs};

use millrace_protocol::{
    admin::{CancelJob, FileState, Job, JobKind, JobState, StartJob},
    by_state::StartByState,
    cluster::LinkMode,
    job_options::{JobOptions, StartWithOptions},
    selection::{RetryJob, Selection},
};
use millrace_types::{ErrorKind, Failure, InodeId, JobId};

use super::server::{ROOT, World};

/// A job over all of the link.
fn request(kind: JobKind, states: &[FileState], dry_run: bool) -> StartByState {
    let start = StartJob { caller: ROOT, kind, path: b"/data".to_vec() };
    let (selection, options) = (Selection::default(), JobOptions::default());
    let job = StartWithOptions { start, selection, dry_run, options };
    StartByState { job, unused: None, states: states.to_vec() }
}

impl World {
    async fn begin_by_state(&self, request: &StartByState) -> Result<JobId, Failure> {
        Ok(self.hydration.start_by_state(b"", request).await?.id)
    }

    async fn ended(&self, id: JobId) -> Job {
        self.run_until(|job| job.id == id && job.state.is_final()).await
    }

    async fn in_states(&self, kind: JobKind, states: &[FileState]) -> Job {
        let id = self.begin_by_state(&request(kind, states, false)).await.unwrap();
        self.ended(id).await
    }

    /// Has targets hold so much of a file.
    pub(super) async fn hold(&self, path: &str, bytes: u64) -> InodeId {
        let id = self.find(path).await.unwrap().id;
        self.server.present.lock().unwrap().insert(id, bytes);
        id
    }

    fn hydrates(&self) -> Vec<InodeId> {
        self.server.items_of("hydrate").iter().map(|item| item.content.inode).collect()
    }
}

/// One file that is here, one of which some is, and one that is not.
async fn world() -> World {
    let world = World::new(LinkMode::ImportExport).await;
    for name in ["whole", "part", "sub/away"] {
        world.put(name, b"12345");
    }
    world.hold("/data/whole", 5).await;
    world.hold("/data/part", 3).await;
    world
}

#[tokio::test]
async fn a_job_works_on_the_files_in_the_states_that_it_names() {
    let world = world().await;
    let away = world.find("/data/sub/away").await.unwrap().id;
    let both = [FileState::Released, FileState::Partial];
    let counted = world.begin_by_state(&request(JobKind::Hydrate, &both, true)).await.unwrap();
    let counted = world.ended(counted).await;
    assert_eq!(
        (counted.state, counted.files_total, counted.files_done),
        (JobState::Succeeded, 2, 0)
    );
    assert!(world.hydrates().is_empty(), "nothing is fetched");
    let done = world.in_states(JobKind::Hydrate, &[FileState::Released]).await;
    assert_eq!((done.files_done, done.bytes_done), (1, 5), "{:?}", done.failures);
    assert_eq!(world.hydrates(), [away]);

    world.write("/data/part", b"newer").await;
    let new = world.hold("/data/part", 5).await;
    let stored = |world: &World| fs::read(world.object("part")).unwrap();
    let none = world.in_states(JobKind::Export, &[FileState::Conflict]).await;
    assert_eq!((none.state, none.files_total), (JobState::Succeeded, 0));
    assert_eq!(stored(&world), b"12345");
    let done = world.in_states(JobKind::Export, &[FileState::Dirty]).await;
    assert_eq!((done.files_total, done.bytes_done), (1, 5), "{:?}", done.failures);
    assert_eq!(stored(&world), b"newer");
    let again = world.in_states(JobKind::Export, &[FileState::Dirty]).await;
    assert_eq!(again.files_total, 0, "it is exported");
    let released = world.in_states(JobKind::Release, &[FileState::Exported]).await;
    assert_eq!((released.state, released.files_done), (JobState::Succeeded, 1));
    let whole = world.find("/data/whole").await.unwrap().id;
    world.in_states(JobKind::Release, &[FileState::Hydrated]).await;
    let dropped: Vec<_> =
        world.server.items_of("release").iter().map(|item| item.content.inode).collect();
    assert_eq!(dropped, [new, whole]);
}

#[tokio::test]
async fn other_conditions_and_lists_apply_as_well() {
    let world = world().await;
    let part = world.find("/data/part").await.unwrap().id;
    let mut all = request(JobKind::Hydrate, &FileState::ALL, true);
    let id = world.begin_by_state(&all).await.unwrap();
    assert_eq!(world.ended(id).await.files_total, 3);
    all.job.selection.exclude = vec!["sub/*".to_owned()];
    let id = world.begin_by_state(&all).await.unwrap();
    assert_eq!(world.ended(id).await.files_total, 2);
    let mut listed = request(JobKind::Hydrate, &[FileState::Partial], false);
    listed.job.options.files = Some(world.list_of(&["part", "whole", "missing"]).await);
    let id = world.begin_by_state(&listed).await.unwrap();
    let job = world.ended(id).await;
    assert_eq!((job.state, job.files_done, job.errors), (JobState::Failed, 1, 1));
    assert_eq!(world.hydrates(), [part]);
}

#[tokio::test]
async fn a_file_is_judged_when_the_job_comes_to_it_also_after_a_restart_and_once_more() {
    let mut world = world().await;
    let states = [FileState::Released, FileState::Partial];
    let id = world.begin_by_state(&request(JobKind::Hydrate, &states, false)).await.unwrap();
    // Before it has begun.
    let part = world.hold("/data/part", 5).await;
    world.restart();
    assert_eq!(world.hydration.show_states(id).await.unwrap().states, states);
    let job = world.ended(id).await;
    assert_eq!((job.state, job.files_total), (JobState::Succeeded, 1), "{:?}", job.failures);
    assert!(!world.hydrates().contains(&part));

    world.hold("/data/sub/away", 5).await;
    world.hold("/data/part", 1).await;
    let retried = world.hydration.retry_job(&RetryJob { caller: ROOT, id }).await.unwrap().id;
    assert_eq!(world.hydration.show_states(retried).await.unwrap().states, states);
    assert_eq!(world.ended(retried).await.files_total, 1);
    assert_eq!(world.hydrates().last(), Some(&part));
    let plain = world.job(JobKind::Import, "/data").await.id;
    assert!(world.hydration.show_states(plain).await.unwrap().states.is_empty());

    let id = world.begin_by_state(&request(JobKind::Hydrate, &states, false)).await.unwrap();
    world.hydration.cancel_job(&CancelJob { caller: ROOT, id }).await.unwrap();
    assert_eq!(world.ended(id).await.state, JobState::Cancelled);
}

#[tokio::test]
async fn a_file_that_cannot_be_judged_has_failed_and_others_go_on() {
    let world = world().await;
    world.write("/data/new", b"new").await;
    *world.server.troubles.unknown.lock().unwrap() = Some(ErrorKind::Internal);
    let job = world.in_states(JobKind::Hydrate, &[FileState::Released]).await;
    assert_eq!((job.state, job.errors, job.files_done), (JobState::Failed, 3, 0));
    let told = job.failures[0].failure.to_string();
    assert!(told.contains("does not say what it holds"), "{told}");
    // Of what was changed here no target is asked.
    let dirty = world.in_states(JobKind::Export, &[FileState::Dirty]).await;
    assert_eq!((dirty.state, dirty.files_done), (JobState::Succeeded, 1), "{:?}", dirty.failures);
}

#[tokio::test]
async fn a_target_that_does_not_answer_is_not_waited_for_with_each_file() {
    let world = World::new(LinkMode::ImportExport).await;
    for number in 0..6 {
        // In a directory of its own each is judged by itself.
        world.put(&format!("{number}/file"), b"12345");
    }
    *world.server.troubles.unknown.lock().unwrap() = Some(ErrorKind::Internal);
    let job = world.in_states(JobKind::Hydrate, &[FileState::Released]).await;
    assert_eq!((job.state, job.errors), (JobState::Failed, 6));
    let asked = world.server.troubles.asked.lock().unwrap();
    let once: BTreeSet<_> = asked.iter().collect();
    assert_eq!(once.len(), asked.len(), "there are two targets: {asked:?}");
}

#[tokio::test]
async fn files_go_on_while_a_target_is_waited_for_to_judge_others() {
    let world = World::new(LinkMode::ImportExport).await;
    world.put("sub/away", b"12345");
    world.hold("/data/sub/away", 0).await;
    world.write("/data/new", b"new").await;
    let unknown = &world.server.troubles.unknown;
    *unknown.lock().unwrap() = Some(ErrorKind::Unavailable);
    let states = [FileState::Dirty, FileState::Released];
    let id = world.begin_by_state(&request(JobKind::Export, &states, false)).await.unwrap();
    let ended = world.run_until(|job| {
        if world.object("new").exists() {
            *unknown.lock().unwrap() = None;
        }
        job.id == id && job.state.is_final()
    });
    let job = ended.await;
    assert_eq!((job.state, job.errors), (JobState::Succeeded, 0), "{:?}", job.failures);
    assert!(!world.server.troubles.asked.lock().unwrap().is_empty());
}

#[tokio::test]
async fn what_can_have_no_states_is_refused() {
    let world = world().await;
    let import = request(JobKind::Import, &[FileState::Dirty], false);
    let mut atomic = request(JobKind::Export, &[FileState::Dirty], false);
    atomic.job.options.atomic = true;
    for refused in [import, atomic, request(JobKind::Export, &[], false)] {
        let refused = world.begin_by_state(&refused).await.unwrap_err();
        assert_eq!(refused.kind, ErrorKind::InvalidArgument, "{refused}");
    }
    assert!(world.hydration.list_jobs().await.unwrap().is_empty());
}
