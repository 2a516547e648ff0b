//! Imports that are started once more: what was listed costs nothing.

use std::{sync::Arc, time::Duration};

use millrace_object_source::RequestClass;
use millrace_protocol::{
    admin::{CancelJob, Job, JobKind, JobState, StartJob},
    cluster::LinkMode,
    selection::RetryJob,
};
use millrace_types::JobId;
use tokio::time::timeout;

use super::server::{LIMIT, ROOT, World};

impl World {
    fn lists(&self) -> u64 {
        self.bucket.counters().requests(RequestClass::List)
    }

    /// Starts a job once more, and runs it to its end; how often the bucket listed for that.
    async fn retried(&self, id: JobId) -> (Job, u64) {
        let before = self.lists();
        let again = self.hydration.retry_job(&RetryJob { caller: ROOT, id }).await.unwrap().id;
        let job = self.run_until(|job| job.id == again && job.state.is_final()).await;
        (job, self.lists() - before)
    }
}

#[tokio::test]
async fn a_retried_import_lists_what_failed_and_what_was_not_reached() {
    let mut world = World::new(LinkMode::ReadOnly).await;
    for (key, content) in [("a/x", "12345"), ("a/y", "1"), ("b/deep/q", "1"), ("b/z", "22")] {
        world.put(key, content.as_bytes());
    }
    let unlistable = Some(world.find("/data/b").await.unwrap().id);
    *world.server.troubles.unlistable.lock().unwrap() = unlistable;
    let first = world.job(JobKind::Import, "/data").await;
    assert_eq!((first.state, first.errors), (JobState::Failed, 1), "{:?}", first.failures);
    assert_eq!((first.files_done, first.files_total), (4, 5), "b is not done");

    // What comes meanwhile is for the next import.
    world.put("a/new", b"new");
    let mut last = first.id;
    for _ in 0..2 {
        world.server.pass(Duration::from_hours(24));
        world.restart();
        let (job, lists) = world.retried(last).await;
        assert_eq!((job.state, lists), (JobState::Failed, 1), "of b: {:?}", job.failures);
        assert_eq!(job.failures[0].path, b"/data/b");
        assert_eq!(job.started, first.started, "it goes on with the first");
        last = job.id;
    }
    *world.server.troubles.unlistable.lock().unwrap() = None;
    let (job, lists) = world.retried(last).await;
    assert_eq!((job.state, lists), (JobState::Succeeded, 2), "of b and b/deep");
    // The directory itself, what it has, and what these have.
    assert_eq!((job.files_done, job.bytes_done), (8, 9));
    assert!(world.find("/data/a/new").await.is_err());

    // Nothing is left to go on with: this one looks at the bucket anew.
    let (again, lists) = world.retried(job.id).await;
    assert!(again.started > job.ended.unwrap() && lists >= 4, "{lists}: {again:?}");
    assert_eq!((again.state, again.files_done), (JobState::Succeeded, 9));
    world.find("/data/a/new").await.unwrap();
}

#[tokio::test]
async fn what_a_cancelled_import_was_listing_counts_for_its_retry() {
    let world = World::new(LinkMode::ReadOnly).await;
    for at in 0..2_500 {
        world.put(&format!("{at:04}"), b"x");
    }
    let data = world.find("/data").await.unwrap().id;
    let start = StartJob { caller: ROOT, kind: JobKind::Import, path: b"/data".to_vec() };
    let id = world.hydration.start_job(b"", &start).await.unwrap().id;
    let before = world.lists();
    let (importer, troubles) = (Arc::clone(&world.hydration.importer), &world.server.troubles);
    troubles.pressed.send_replace(true);
    let listing = tokio::spawn(async move { importer.whole(data).await });
    timeout(LIMIT, troubles.held_up.notified()).await.expect("it is in its middle");
    world.hydration.cancel_job(&CancelJob { caller: ROOT, id }).await.unwrap();
    let again = world.hydration.retry_job(&RetryJob { caller: ROOT, id }).await.unwrap().id;
    troubles.pressed.send_replace(false);
    timeout(LIMIT, listing).await.expect("it goes on").unwrap().unwrap();
    let job = world.run_until(|job| job.id == again && job.state.is_final()).await;
    assert_eq!((job.state, job.files_done), (JobState::Succeeded, 2_501), "{:?}", job.failures);
    assert_eq!(world.lists() - before, 1);
}
