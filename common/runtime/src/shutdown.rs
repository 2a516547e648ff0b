//! The end of a daemon, in order.
//!
//! ```text
//!            begin                drained, or the limit passed
//!  Running ─────────▶ Draining ────────────────────────────────▶ Stopped
//! ```
//!
//! While draining, a daemon takes no new work and finishes what it has. When it has stopped, what
//! is left of its tasks is told to give up. A daemon that is killed instead loses nothing that it
//! has acknowledged; draining only spares its peers a retry.

use std::{future::Future, io, time::Duration};

use tokio::{signal::unix::SignalKind, task::JoinHandle};
use tokio_util::sync::CancellationToken;

use crate::Tasks;

/// Tells every part of a daemon when to drain and when to stop, and waits for their tasks.
///
/// Cheap to clone; clones share the state.
#[derive(Clone, Debug, Default)]
pub struct Shutdown {
    draining: CancellationToken,
    stopped: CancellationToken,
    tasks: Tasks,
}

/// How a daemon ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Drained {
    /// Every task ended by itself.
    Cleanly,
    /// The limit passed; these tasks were still at work.
    GaveUp(Vec<&'static str>),
}

/// How long tasks get to notice that everything has stopped.
const GIVE_UP_PAUSE: Duration = Duration::from_millis(200);

impl Shutdown {
    /// A daemon that runs.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Begins draining at SIGTERM or SIGINT. Must be called within a tokio runtime.
    ///
    /// # Errors
    /// When the operating system refuses the handlers.
    pub fn on_signals(&self) -> io::Result<()> {
        let mut terminate = tokio::signal::unix::signal(SignalKind::terminate())?;
        let mut interrupt = tokio::signal::unix::signal(SignalKind::interrupt())?;
        let shutdown = self.clone();
        drop(tokio::spawn(async move {
            let why = tokio::select! {
                _ = terminate.recv() => "SIGTERM",
                _ = interrupt.recv() => "SIGINT",
                () = shutdown.draining() => return,
            };
            shutdown.begin(why);
        }));
        Ok(())
    }

    /// Begins draining. Only the first call counts.
    pub fn begin(&self, why: &str) {
        if !self.draining.is_cancelled() {
            tracing::info!(why, "shutdown begins");
            self.draining.cancel();
        }
    }

    /// Whether new work is refused.
    #[must_use]
    pub fn is_draining(&self) -> bool {
        self.draining.is_cancelled()
    }

    /// Waits until draining begins. May be dropped at any time.
    pub async fn draining(&self) {
        self.draining.cancelled().await;
    }

    /// Whether even unfinished work is to be given up.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped.is_cancelled()
    }

    /// Waits until unfinished work is to be given up. May be dropped at any time.
    pub async fn stopped(&self) {
        self.stopped.cancelled().await;
    }

    /// The tasks that the end waits for.
    #[must_use]
    pub fn tasks(&self) -> &Tasks {
        &self.tasks
    }

    /// Starts a task that the end waits for; see [`Tasks::spawn`].
    pub fn spawn<F>(&self, name: &'static str, task: F) -> JoinHandle<F::Output>
    where
        F: Future<Output: Send + 'static> + Send + 'static,
    {
        self.tasks.spawn(name, task)
    }

    /// Drains (if that has not begun) and waits at most `limit` for the tasks, then stops.
    pub async fn finish(&self, limit: Duration) -> Drained {
        self.begin("finish");
        let in_time = tokio::time::timeout(limit, self.tasks.join()).await.is_ok();
        let left = self.tasks.running();
        self.stopped.cancel();
        if in_time {
            return Drained::Cleanly;
        }
        tracing::warn!(tasks = ?left, "shutdown gives up waiting");
        if tokio::time::timeout(GIVE_UP_PAUSE, self.tasks.join()).await.is_err() {
            tracing::debug!(tasks = ?self.tasks.running(), "tasks ignore the stop");
        }
        Drained::GaveUp(left)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_task_that_drains_ends_cleanly() {
        let shutdown = Shutdown::new();
        drop(shutdown.spawn("drains", {
            let shutdown = shutdown.clone();
            async move { shutdown.draining().await }
        }));
        assert!(!shutdown.is_draining());
        assert_eq!(shutdown.finish(Duration::from_secs(60)).await, Drained::Cleanly);
        assert!(shutdown.is_draining() && shutdown.is_stopped());
    }

    #[tokio::test(start_paused = true)]
    async fn a_task_that_does_not_drain_is_named_and_told_to_stop() {
        let shutdown = Shutdown::new();
        let stubborn = shutdown.spawn("stubborn", {
            let shutdown = shutdown.clone();
            async move { shutdown.stopped().await }
        });
        assert_eq!(
            shutdown.finish(Duration::from_secs(1)).await,
            Drained::GaveUp(vec!["stubborn"])
        );
        stubborn.await.unwrap();
    }
}
