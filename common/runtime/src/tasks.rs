//! Background tasks that are known by name and waited for.

use std::{future::Future, time::Duration};

use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;
use tracing::Instrument;

/// Spawns tasks and waits for their end. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Tasks {
    tracker: TaskTracker,
    handle: Handle,
}

impl Tasks {
    /// Tasks that run on `handle`.
    #[must_use]
    pub fn on(handle: Handle) -> Self {
        Self { tracker: TaskTracker::new(), handle }
    }

    /// Runs `future` in the background; what it logs carries `name`.
    pub fn spawn(&self, name: &'static str, future: impl Future<Output = ()> + Send + 'static) {
        let span = tracing::debug_span!("task", name);
        drop(self.tracker.spawn_on(future.instrument(span), &self.handle));
    }

    /// Waits until every task has ended, at most for `deadline`; tells whether all have.
    pub async fn join(&self, deadline: Duration) -> bool {
        self.tracker.close();
        tokio::time::timeout(deadline, self.tracker.wait()).await.is_ok()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn joining_waits_for_tasks_and_gives_up_at_the_deadline() {
        let tasks = Tasks::on(Handle::current());
        tasks.spawn("ends", async {});
        assert!(tasks.join(Duration::from_secs(10)).await);
        tasks.spawn("never ends", std::future::pending());
        assert!(!tasks.join(Duration::from_millis(1)).await);
    }
}
