//! Compares the namespace with itself, and what targets hold with what the namespace expects: frees
//! what no file has any more, and reports what files lack. Operators know it as `millrace fsck`.
//!
//! Chunks are freed by the reclaim queues, which are part of every command that ends a content.
//! What is left to find here came about otherwise: a late write of a client that was cut off, a
//! mark that a target no longer had, a log that lost its end in a power cut.
//!
//! # Why it cannot free what a file has
//! A content is freed as (inode, generation), by a command that puts it into the reclaim queue of
//! a target. **The command itself looks whether a file has the content**, in the one thread that
//! changes the namespace: between its look and its entry there is nothing. What it finds dead stays
//! dead, because ids are never given out twice and generations only rise, both also over a loss of
//! power ([`engine::ids`](crate::engine::ids), [`engine::names`](crate::engine::names)). So the two
//! passes do not make it safe; they find what the command is asked about. What may happen beside:
//!
//! - *A file is made and written.* The inode is in the namespace before the first capability for
//!   it is signed, so before its first chunk. An id from the limit of ids on may still be given
//!   out: the command passes it over, and the check all from its own start on.
//! - *A client has written a file that it has not published* (`leases::delegations`). Its id was
//!   given to it and is not given back: the check passes over all from the lowest such one on, and
//!   over everything while there may be some from before a restart, which nobody knows.
//! - *A file is open and has no name.* It is in the namespace until the last close.
//! - *A chunk is fetched from a bucket.* It carries the generation of a capability: the present
//!   one, which is never named, or an older one, whose bytes are no file's.
//! - *An import replaces the object; a file is emptied; a conflict is resolved.* The command that
//!   does that raises the generation. What still arrives for the old one is an orphan from then on.
//! - *The entry is worked off late, twice, or after the target was restarted.* It names what was
//!   dead when it was made; generations up to that one go, never a newer.
//! - *A target is restarted or registers again, maybe with another copy of its disk.* What it lists
//!   is names, judged as all others. Until it has shown again what it saw of the log, nothing is
//!   queued for it ([`Core::forget_compared`](crate::engine::Core::forget_compared)).
//! - *The server is killed.* What a check knows is in memory; the next one begins anew. What was
//!   queued by then was right, and is in the synced log.
//! - *The store fails.* Then nothing can be read from it, and the check ends as failed.
//!
//! What is left is that **the namespace itself is the wrong one**: the log lost its end, or was put
//! back from an older copy. Its orphans would be files. Three things raise a doubt, a command that
//! outlives restarts, and with a doubt the command frees nothing until an operator trusts the
//! namespace (`engine::core::trust`, `apply::trust`):
//! - A target saw a point of the log that this log does not have. Targets are told every 10 s.
//! - A target holds an id beyond all that this log has reserved; told when it registers.
//! - An orphan has an id that was reserved before a start of the server, and that no inode had at
//!   that start: ids of a lost end of the log are of this kind, also when no target has seen it.
//!   (Ids of files that were removed just before a start are too: then the doubt is in vain.)
//!
//! And the store was made anew from the log: after a loss of power it is, and the log may be short.
//!
//! Last, the **brake** (`free`): what goes wrong in a way that nobody has thought of makes many
//! orphans. Where they are more of a target than rare events leave behind, nothing of it is freed
//! until an operator has looked and says so.
//!
//! # What it costs
//! What it knows is in memory: at most 32,768 suspicions of each kind, and of each target one page.
//! A restart in the middle forgets it.
//!
//! Modules: `itself` (the namespace alone, before the rest), `compare` (pure), `listing` (a
//! target's contents), `namespace` (the server's side), `check` (the first pass), `suspects`,
//! `confirm` (the second pass), `free` (the brake and the queue), `tally`, `standing` (what is
//! known of what a check did not look at), `pace`, `metrics`.

use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::{
    admin::PathBytes,
    fsck::{FsckReport, FsckState, NamespaceReport, NamespaceState, StartFsck},
};
use millrace_service::metrics::Metrics;
use millrace_types::{ErrorKind, Failure, TargetId, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use crate::{engine::Handle, settings::FsckSettings};
use compare::Suspect;
use metrics::FsckMetrics;
use standing::{Found, Standing};

mod check;
mod compare;
mod confirm;
mod free;
mod itself;
mod listing;
mod metrics;
mod namespace;
mod pace;
mod standing;
mod suspects;
mod tally;

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
    namespace: NamespaceReport,
    /// What the check that runs has found so far, by target.
    found: BTreeMap<TargetId, Found>,
    standing: Standing,
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
        let report = self.shared.take(request, false, false)?;
        self.shared.wanted.notify_one();
        self.complete(report).await
    }

    /// Starts a check of everything that repairs the namespace where that is safe.
    ///
    /// # Errors
    /// [`ErrorKind::InUse`] while one runs; [`ErrorKind::InvalidArgument`] for some targets alone.
    pub async fn start_repair(&self, request: StartFsck) -> Result<FsckReport, Failure> {
        if !request.targets.is_empty() {
            let text = "a check of some targets does not look at the namespace";
            return Err(Failure::new(ErrorKind::InvalidArgument, text));
        }
        let report = self.shared.take(request, false, true)?;
        self.shared.wanted.notify_one();
        self.complete(report).await
    }

    /// What the check that runs, or the last one that looked at it, found of the namespace itself.
    #[must_use]
    pub fn show_namespace(&self) -> NamespaceReport {
        self.shared.state().namespace.clone()
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

    /// An operator trusts the namespace: the next check frees what no file has. Targets that are
    /// older copies of themselves are served as they are.
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
        let mut due = shared.engine.now().plus(shared.settings.first_after);
        loop {
            tokio::select! {
                () = shared.wanted.notified() => {}
                () = shared.due_at(due) => {
                    let all =
                        StartFsck { targets: Vec::new(), report_only: false, free_many: false };
                    // One that was asked for at the same moment goes first.
                    drop(shared.take(all, true, false));
                }
            }
            if shared.run_one().await {
                due = shared.engine.now().plus(shared.settings.interval);
            }
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
    fn take(
        &self,
        request: StartFsck,
        automatic: bool,
        repair: bool,
    ) -> Result<FsckReport, Failure> {
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
        if request.targets.is_empty() {
            state.namespace = NamespaceReport {
                run: state.report.run,
                state: NamespaceState::Names,
                repair,
                started: state.report.started,
                ..NamespaceReport::default()
            };
        }
        state.found = BTreeMap::new();
        state.request = Some(request);
        state.stop = CancellationToken::new();
        Ok(state.report.clone())
    }

    /// Runs the check that was asked for, to whatever end; tells whether the next one by itself is
    /// a whole interval away from here. One of some targets, or one that somebody cancelled, puts
    /// nothing off.
    async fn run_one(&self) -> bool {
        let (request, stop) = {
            let mut state = self.state();
            let Some(request) = state.request.take() else { return false };
            (request, state.stop.clone())
        };
        tracing::info!(?request, "the targets are checked against the namespace");
        let ended = tokio::select! {
            ended = check::run(self, &request) => ended.map(|()| FsckState::Done),
            () = stop.cancelled() => Ok(FsckState::Cancelled),
        };
        let (report, namespace) = self.ended(ended);
        tracing::info!(
            state = report.state.name(),
            files = report.files,
            chunks = report.chunks,
            orphans = report.orphans.contents,
            queued = report.queued.contents,
            missing = report.missing.contents,
            flaws = itself::flaws_left(&namespace),
            "the check of the targets has ended"
        );
        self.conclude(&report, &namespace).await;
        let of_everything = request.targets.is_empty() && report.state == FsckState::Done;
        let puts_off = of_everything || report.automatic;
        // Who sees that it has ended sees what it came to, too.
        let mut state = self.state();
        (state.report, state.namespace) = (report, namespace);
        puts_off
    }

    /// What is shown of a check that has ended so.
    fn ended(&self, ended: Result<FsckState, Failure>) -> (FsckReport, NamespaceReport) {
        let now = self.engine.now();
        let state = self.state();
        let (mut report, mut namespace) = (state.report.clone(), state.namespace.clone());
        drop(state);
        if namespace.state.is_running() {
            namespace.state = NamespaceState::Cancelled;
            namespace.ended = Some(now);
        }
        match ended {
            Ok(state) => report.state = state,
            Err(failure) => {
                report.state = FsckState::Failed;
                report.failure = Some(failure);
            }
        }
        report.ended = Some(now);
        (report, namespace)
    }

    /// Keeps what a check found that came to its end.
    async fn conclude(&self, report: &FsckReport, namespace: &NamespaceReport) {
        let members = self.engine.turn(|core| {
            core.end_census();
            let members = core.registry.members();
            Ok(members.map(|(target, _)| target).collect::<BTreeSet<_>>())
        });
        // A server that is stopping counts nothing any more, and tells nobody.
        let Ok(members) = members.await else { return };
        if report.state != FsckState::Done {
            // What those before have found wrong is still so.
            return;
        }
        let problems = {
            let mut state = self.state();
            let found = mem::take(&mut state.found);
            state.standing.handle_end(report, namespace, found, &members);
            self.metrics.ended(report, namespace, &state.standing);
            state.standing.problems(report.run)
        };
        let noted = self.engine.turn(move |core| {
            core.note_problems(problems);
            Ok(())
        });
        drop(noted.await);
    }

    /// Ends when the next check is due, and tells people when that will be.
    async fn due_at(&self, due: Timestamp) {
        if self.settings.interval.is_zero() {
            self.state().report.next = None;
            return std::future::pending().await;
        }
        self.state().report.next = Some(due);
        tokio::time::sleep(due.since(self.engine.now())).await;
    }

    /// Counts and tells what both passes agree on.
    fn found(&self, confirmed: &[(Suspect, Option<PathBytes>)]) {
        let mut state = self.state();
        for (suspect, path) in confirmed {
            tally::found(&mut state.report, suspect, path.clone());
            state.found.entry(suspect.target).or_default().add(suspect, path.as_deref());
        }
    }

    fn update(&self, change: impl FnOnce(&mut FsckReport)) {
        self.change(change);
    }

    fn change_namespace(&self, change: impl FnOnce(&mut NamespaceReport)) {
        change(&mut self.state().namespace);
    }

    fn change<T>(&self, change: impl FnOnce(&mut FsckReport) -> T) -> T {
        change(&mut self.state().report)
    }
}

#[cfg(test)]
mod tests;
