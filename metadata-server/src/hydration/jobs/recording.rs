//! Records how far a job is while it works, and how it stands.

use std::time::Duration;

use millrace_protocol::admin::JobState;
use millrace_types::{ErrorKind, JobId};
use tokio::time::Instant;

use super::{Begun, Environment, Jobs, PAUSE, detail::Work, progress::Progress};
use crate::command::{Command, UpdateJob};

/// How often a running job's counts become a command.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// How often what it asked buckets does.
const DETAIL_INTERVAL: Duration = Duration::from_secs(5);

/// The longest pause before it is tried again to record where a job stands.
const RECORD_PAUSE_MAX: Duration = Duration::from_secs(30);

impl<E: Environment> Jobs<E> {
    /// Records how far a job is, for as long as it is polled.
    pub(super) async fn report_for_ever(&self, work: &Work, id: JobId) {
        let mut told = Instant::now();
        let mut waits = false;
        loop {
            tokio::time::sleep(REPORT_INTERVAL).await;
            // One that waits for a bucket leaves its place to others.
            if waits != work.patience.is_waiting() {
                waits = !waits;
                self.waiting.notify_one();
            }
            if work.progress.take_changed() {
                self.report(&work.progress, id).await;
            }
            if told.elapsed() >= DETAIL_INTERVAL {
                self.record_detail(id, work, false).await;
                told = Instant::now();
            }
        }
    }

    /// Records the counts so far. They can wait for the next time.
    async fn report(&self, progress: &Progress, id: JobId) {
        let update = Command::UpdateJob(progress.update(id, None));
        if let Err(failure) = self.environment.execute(update, false).await {
            tracing::warn!(job = id.0, %failure, "a job's progress is not recorded");
        }
    }

    /// Records where a job stands, however long that takes: one whose end is not recorded would
    /// begin anew. Gives up when the job is gone or cancelled, which was recorded before. Whether
    /// it is recorded.
    pub(super) async fn record_state(&self, begun: &Begun<'_, E>, state: JobState) -> bool {
        let update: UpdateJob = begun.work.progress.update(begun.id, Some(state));
        let mut pause = PAUSE;
        loop {
            let command = Command::UpdateJob(update.clone());
            let Err(failure) = self.environment.execute(command, false).await else { return true };
            tracing::warn!(job = begun.id.0, ?state, %failure, "a job's state is not recorded");
            let is_final = matches!(failure.kind, ErrorKind::NotFound | ErrorKind::InvalidArgument);
            if is_final {
                return false;
            }
            tokio::select! {
                () = begun.stop.cancelled() => return false,
                () = tokio::time::sleep(pause) => {}
            }
            pause = (pause * 2).min(RECORD_PAUSE_MAX);
        }
    }
}
