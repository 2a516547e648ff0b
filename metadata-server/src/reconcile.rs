//! Compares what targets hold with what the namespace expects: frees what no file has any more,
//! and reports what files lack. Operators know it as `millrace fsck`.
//!
//! Chunks are freed by the reclaim queues, which are part of every command that ends a content.
//! What is left to find here came about otherwise: a late write of a client that was cut off, a
//! mark that a target no longer had, a log that lost its end in a power cut.
//!
//! # Why it cannot free what a file has
//! 1. Only ids below the high-water mark at its start are judged.
//! 2. The target's list is made first, the namespace is read after it ([`compare`]): what has no
//!    file then never has one again. Inodes that are only open are in the namespace too.
//! 3. It looks twice, longer apart than any session's ticket lives, at the same contents.
//! 4. The command that queues them looks a third time, where nothing can come between, and is
//!    refused while the namespace is not trusted (`engine::core::trust`): after a restore, and
//!    after the store was made anew.
//! 5. Freeing is the targets' ordinary way: a synced entry of the queue, done as often as needed.
//!
//! What it knows is in memory. A restart in the middle forgets it, and the next check begins anew;
//! what was queued by then was right.
//!
//! Modules: [`compare`] (pure), `listing` (a target's contents), `namespace` (the server's side),
//! `check` (the two passes), `metrics`.

use std::{
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use millrace_protocol::fsck::{FsckReport, FsckState, StartFsck};
use millrace_service::metrics::Metrics;
use millrace_types::{ErrorKind, Failure};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{engine::Handle, settings::FsckSettings};
use metrics::FsckMetrics;

mod check;
mod compare;
mod listing;
mod metrics;
mod namespace;

pub use listing::Targets;

/// The checks of a server: one at a time. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Reconciliation {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    engine: Handle,
    targets: Arc<dyn Targets>,
    settings: FsckSettings,
    metrics: FsckMetrics,
    state: Mutex<State>,
    /// A check was asked for.
    wanted: Notify,
}

#[derive(Debug, Default)]
struct State {
    report: FsckReport,
    /// Asked for and not begun.
    request: Option<StartFsck>,
    /// Ends the check that was asked for or runs.
    stop: CancellationToken,
}

impl Reconciliation {
    /// Nothing has run yet.
    #[must_use]
    pub fn new(engine: Handle, targets: Arc<dyn Targets>, settings: FsckSettings) -> Self {
        let shared = Shared {
            engine,
            targets,
            settings,
            metrics: FsckMetrics::default(),
            state: Mutex::default(),
            wanted: Notify::new(),
        };
        Self { shared: Arc::new(shared) }
    }

    /// Registers what it counts.
    pub fn register_metrics(&self, metrics: &mut Metrics) {
        self.shared.metrics.register(metrics);
    }

    /// Starts a check.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while one runs; [`ErrorKind::NotFound`] for an unknown target.
    pub async fn start(&self, request: StartFsck) -> Result<FsckReport, Failure> {
        let map = self.shared.engine.turn(|core| Ok(core.map().0)).await?;
        let is_known = |wanted| map.targets.iter().any(|target| target.id == wanted);
        if let Some(unknown) = request.targets.iter().find(|target| !is_known(**target)) {
            let text = format!("no target has the id {unknown}");
            return Err(Failure::new(ErrorKind::NotFound, text));
        }
        let report = self.shared.take(request, false)?;
        self.shared.wanted.notify_one();
        self.complete(report).await
    }

    /// The check that runs, or the last one.
    ///
    /// # Errors
    /// When the store is broken.
    pub async fn show(&self) -> Result<FsckReport, Failure> {
        let report = self.shared.state().report.clone();
        self.complete(report).await
    }

    /// Asks the check that runs to stop.
    ///
    /// # Errors
    /// As [`Self::show`].
    pub async fn cancel(&self) -> Result<FsckReport, Failure> {
        self.shared.state().stop.cancel();
        self.show().await
    }

    /// An operator trusts the namespace: the next check frees what no file has.
    ///
    /// # Errors
    /// When the log's disk is full or fails.
    pub async fn trust(&self) -> Result<FsckReport, Failure> {
        self.shared.engine.durable_turn(|core| core.trust()).await?;
        tracing::warn!("an operator trusts the namespace: orphans are freed from now on");
        self.show().await
    }

    /// Runs checks when they are asked for or due, until it is dropped.
    pub async fn run(&self) {
        let shared = &self.shared;
        let mut pause = shared.settings.first_after;
        loop {
            let due = shared.due_after(pause);
            tokio::select! {
                () = shared.wanted.notified() => {}
                () = due => {
                    let all = StartFsck { targets: Vec::new(), report_only: false };
                    // One that was asked for at the same moment goes first.
                    drop(shared.take(all, true));
                }
            }
            shared.run_one().await;
            pause = shared.settings.interval;
        }
    }

    async fn complete(&self, mut report: FsckReport) -> Result<FsckReport, Failure> {
        report.distrust = self.shared.engine.turn(|core| core.distrusted()).await?;
        Ok(report)
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a request, unless there is one already.
    fn take(&self, request: StartFsck, automatic: bool) -> Result<FsckReport, Failure> {
        let mut state = self.state();
        if state.report.state.is_running() {
            let text = "a check is running: wait for it, or end it with `millrace fsck cancel`";
            return Err(Failure::new(ErrorKind::InUse, text));
        }
        state.report = FsckReport {
            run: state.report.run + 1,
            state: FsckState::Listing,
            automatic,
            report_only: request.report_only,
            started: Some(self.engine.now()),
            ..FsckReport::default()
        };
        state.request = Some(request);
        state.stop = CancellationToken::new();
        Ok(state.report.clone())
    }

    /// Runs the check that was asked for, to whatever end.
    async fn run_one(&self) {
        let (request, stop) = {
            let mut state = self.state();
            let Some(request) = state.request.take() else { return };
            (request, state.stop.clone())
        };
        tracing::info!(?request, "the targets are checked against the namespace");
        let ended = tokio::select! {
            ended = check::run(self, &request) => ended.map(|()| FsckState::Done),
            () = stop.cancelled() => Ok(FsckState::Cancelled),
        };
        let report = {
            let mut state = self.state();
            let report = &mut state.report;
            match ended {
                Ok(state) => report.state = state,
                Err(failure) => {
                    report.state = FsckState::Failed;
                    report.failure = Some(failure);
                }
            }
            report.ended = Some(self.engine.now());
            report.clone()
        };
        tracing::info!(
            state = report.state.name(),
            files = report.files,
            chunks = report.chunks,
            orphans = report.orphans.contents,
            queued = report.queued.contents,
            missing = report.missing.contents,
            "the check of the targets has ended"
        );
        self.metrics.ended(&report);
        let problems = check::problems(&report);
        // A server that is stopping tells nobody any more.
        drop(self.engine.turn(move |core| Ok(core.note_problems(problems))).await);
    }

    /// Ends when the next check is due, and tells people when that will be.
    async fn due_after(&self, pause: Duration) {
        if self.settings.interval.is_zero() {
            self.state().report.next = None;
            return std::future::pending().await;
        }
        self.state().report.next = Some(self.engine.now().plus(pause));
        tokio::time::sleep(pause).await;
    }

    fn update(&self, change: impl FnOnce(&mut FsckReport)) {
        change(&mut self.state().report);
    }
}

#[cfg(test)]
mod tests;
