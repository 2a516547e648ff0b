//! Jobs: import, hydrate, release and export of a file or tree, some at a time.
//!
//! A job is a record in the store, moved on by commands; what it does is idempotent, so that after
//! a crash it is simply run again. The state machine is in [`JobState`]; this module runs it,
//! counts, and passes cancellation on. Work is done by the targets.
//!
//! Jobs run beside each other, so that a tree that takes a day to fetch holds up no checkpoint. Of
//! exports and releases there is one at a time: what an export finds begun was left by one that is
//! over, and what a release is about to drop no export may put another object in the place of. What
//! links export by themselves (`auto_export`) takes its turn between them.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{StreamExt as _, stream::FuturesUnordered};
use millrace_protocol::{
    admin::{CancelJob, Job, JobKind, JobState, PathBytes, StartJob},
    selection::{RetryJob, Selection, SelectionReply, StartPublication, StartSelected},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, JobId, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::{
    alone::Alone, auto_export::AutoExporter, filter::Filter, marks::Unmarked, progress::Progress,
};
use super::{
    environment::Environment,
    import::{Importer, broken},
    walk::{Viewpoint, check, inode, path_of, resolve},
};
use crate::{
    command::{AddJob, AddSelectedJob, Command, Outcome, UpdateJob},
    namespace::{
        Inode,
        permission::{self, Access},
        tree,
    },
    store::{
        View, keys,
        records::{self, JobRecord, SelectionRecord},
    },
};

mod alone;
mod auto_export;
mod directory_export;
mod dispatch;
mod export;
mod file_export;
mod filter;
mod list;
mod marks;
mod progress;
mod publish;
mod settle;
mod transfer;
mod upload;

/// Runs jobs. One per server.
#[derive(Debug)]
pub struct Jobs<E> {
    environment: Arc<E>,
    importer: Arc<Importer<E>>,
    pub(super) auto_export: AutoExporter<E>,
    waiting: Notify,
    alone: Alone,
    unmarked: Arc<Unmarked>,
    running: Mutex<HashMap<JobId, Running>>,
}

/// A job at work.
#[derive(Debug)]
struct Running {
    kind: JobKind,
    stop: CancellationToken,
}

/// A job is at work as long as this is there.
struct Begun<'a, E: Environment> {
    jobs: &'a Jobs<E>,
    id: JobId,
    stop: CancellationToken,
}

/// Jobs at work at the same time, besides an export or release: each has its own bounds on requests
/// to targets.
const OTHERS_MAX: usize = 3;

/// How often a running job's counts become a command.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// After a failure of the server itself (shutting down, overloaded) the queue is looked at again.
const PAUSE: Duration = Duration::from_secs(1);

/// What a job works with.
struct Context<'a, E> {
    environment: &'a Arc<E>,
    importer: &'a Arc<Importer<E>>,
    unmarked: &'a Unmarked,
    job: &'a JobRecord,
    filter: &'a Filter,
    /// Nothing is done: what would be is counted as found.
    dry_run: bool,
    progress: &'a Progress,
}

impl<E: Environment> Jobs<E> {
    /// No job runs before [`Self::run`].
    pub fn new(environment: Arc<E>, importer: Arc<Importer<E>>) -> Self {
        let unmarked = Arc::new(Unmarked::default());
        let (its_environment, its_importer) = (Arc::clone(&environment), Arc::clone(&importer));
        Self {
            auto_export: AutoExporter::new(its_environment, its_importer, Arc::clone(&unmarked)),
            unmarked,
            environment,
            importer,
            waiting: Notify::new(),
            alone: Alone::default(),
            running: Mutex::default(),
        }
    }

    /// Takes a job into the queue. The request's path begins at `top`.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] or [`ErrorKind::NotPermitted`] when the caller may not; a
    /// path that leads nowhere; [`ErrorKind::Busy`] when the queue is full.
    pub async fn start(&self, top: &[u8], request: &StartJob) -> Result<Job, Failure> {
        let add = self.prepare(top, request).await?;
        self.add(Command::AddJob(add)).await
    }

    /// Takes a job over a part of a tree into the queue.
    ///
    /// # Errors
    /// As [`Self::start`]; [`ErrorKind::InvalidArgument`] for a selection that makes no sense, and
    /// for an import, which knows no files before it has listed them.
    pub async fn start_selected(
        &self,
        top: &[u8],
        request: &StartSelected,
    ) -> Result<Job, Failure> {
        if request.start.kind == JobKind::Import {
            let words = "an import lists whole directories: it takes no selection";
            return Err(Failure::new(ErrorKind::InvalidArgument, words));
        }
        Filter::compile(&request.selection, Timestamp(0))?;
        let add = self.prepare(top, &request.start).await?;
        let (selection, dry_run) = (request.selection.clone(), request.dry_run);
        let command = AddSelectedJob { add, selection, dry_run };
        self.add(Command::AddSelectedJob(Box::new(command))).await
    }

    /// Takes an export of a directory into the queue that ends with a manifest.
    ///
    /// # Errors
    /// As [`Self::start`]; [`ErrorKind::InvalidArgument`] for another kind of job, and below no
    /// link; [`ErrorKind::NotDirectory`].
    pub async fn start_publication(
        &self,
        top: &[u8],
        request: &StartPublication,
    ) -> Result<Job, Failure> {
        if request.start.kind != JobKind::Export {
            return Err(ErrorKind::InvalidArgument.into());
        }
        let add = self.prepare(top, &request.start).await?;
        publish::check(&*self.environment, add.root).await?;
        self.add(Command::AddPublication(add)).await
    }

    /// Takes a job that has ended into the queue once more, as a new one.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`]; [`ErrorKind::NotPermitted`] for anybody but its owner and root;
    /// [`ErrorKind::Busy`] while it has not ended.
    pub async fn retry(&self, request: &RetryJob) -> Result<Job, Failure> {
        let JobRecord { job, caller, root } = self.record(request.id).await?;
        check_owner(&request.caller, &caller)?;
        if !job.state.is_final() {
            let words = format!("job {} has not ended", request.id.0);
            return Err(Failure::new(ErrorKind::Busy, words));
        }
        let SelectionRecord { selection, dry_run } = self.selection_record(request.id).await?;
        // What was allowed then need not be now.
        let top = inode(&*self.environment, root).await?;
        self.check_caller(job.kind, &caller, &top).await?;
        let path = path_of(&*self.environment, &top).await;
        let add = AddJob { job: fresh(job.kind, path), caller, root };
        if publish::is_wanted(&*self.environment, request.id).await? {
            return self.add(Command::AddPublication(add)).await;
        }
        self.add(match selection.is_everything() && !dry_run {
            true => Command::AddJob(add),
            false => Command::AddSelectedJob(Box::new(AddSelectedJob { add, selection, dry_run })),
        })
        .await
    }

    /// What a job works on.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn selection(&self, id: JobId) -> Result<SelectionReply, Failure> {
        let SelectionRecord { selection, dry_run } = self.selection_record(id).await?;
        Ok(SelectionReply { selection, dry_run })
    }

    async fn selection_record(&self, id: JobId) -> Result<SelectionRecord, Failure> {
        let query = self
            .environment
            .read(move |view| records::read(view, &keys::selection(id)).map_err(broken));
        let everything = || SelectionRecord { selection: Selection::default(), dry_run: false };
        Ok(query.await?.unwrap_or_else(everything))
    }

    async fn prepare(&self, top: &[u8], request: &StartJob) -> Result<AddJob, Failure> {
        let from = Viewpoint { top, caller: &request.caller };
        let top = resolve(&*self.environment, &self.importer, from, &request.path).await?;
        self.check_caller(request.kind, &request.caller, &top).await?;
        let job = fresh(request.kind, path_of(&*self.environment, &top).await);
        Ok(AddJob { job, caller: request.caller.clone(), root: top.id })
    }

    async fn add(&self, command: Command) -> Result<Job, Failure> {
        let outcome = self.environment.execute(command, true).await?;
        let Outcome::Job(id) = outcome else { return Err(ErrorKind::Internal.into()) };
        self.waiting.notify_one();
        self.show(id).await
    }

    /// Jobs, newest first.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list(&self) -> Result<Vec<Job>, Failure> {
        self.environment.read(jobs).await
    }

    /// One job.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub async fn show(&self, id: JobId) -> Result<Job, Failure> {
        Ok(self.record(id).await?.job)
    }

    /// Asks a job to stop. What it has done stays done.
    ///
    /// # Errors
    /// [`ErrorKind::NotPermitted`] for anybody but who started it and root.
    pub async fn cancel(&self, request: &CancelJob) -> Result<Job, Failure> {
        let record = self.record(request.id).await?;
        check_owner(&request.caller, &record.caller)?;
        // An ended job stays as it ended; a running one is told to stop, and its last counts stay.
        let progress = Progress::of(&record.job);
        let update = progress.update(request.id, Some(JobState::Cancelled));
        self.environment.execute(Command::UpdateJob(update), true).await?;
        self.stop(request.id);
        self.show(request.id).await
    }

    /// Tells a running job to stop.
    fn stop(&self, id: JobId) {
        if let Some(running) = self.running().get(&id) {
            running.stop.cancel();
        }
    }

    fn running(&self) -> MutexGuard<'_, HashMap<JobId, Running>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs jobs until `stop`. A job that is stopped so goes on with the next start of the server.
    pub async fn run(&self, stop: CancellationToken) {
        let work = async {
            while let Err(failure) = self.settle().await {
                tracing::warn!(%failure, "exports of an earlier run cannot be settled yet");
                tokio::time::sleep(PAUSE).await;
            }
            tokio::join!(
                self.work_off(),
                self.auto_export.run(&self.alone),
                self.unmarked.ask_again(&self.environment),
            );
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    async fn settle(&self) -> Result<(), Failure> {
        settle::all(&self.environment, &self.importer, &self.unmarked).await
    }

    /// Runs the jobs of the queue for as long as it is polled.
    async fn work_off(&self) {
        let mut jobs = FuturesUnordered::new();
        loop {
            let again = match self.next().await {
                Ok(Some(record)) => {
                    let begun = self.begin(&record.job);
                    jobs.push(self.run_one(record, begun));
                    continue;
                }
                Ok(None) => Duration::MAX,
                Err(failure) => {
                    tracing::warn!(%failure, "the queue of jobs cannot be read");
                    PAUSE
                }
            };
            tokio::select! {
                Some(()) = jobs.next(), if !jobs.is_empty() => {}
                () = self.waiting.notified() => {}
                () = tokio::time::sleep(again) => {}
            }
        }
    }

    /// The oldest job that waits and may begin now.
    async fn next(&self) -> Result<Option<JobRecord>, Failure> {
        let (busy, alone, others): (Vec<_>, usize, usize) = {
            let running = self.running();
            let alone = running.values().filter(|one| is_alone(one.kind)).count();
            (running.keys().copied().collect(), alone, running.len() - alone)
        };
        let query = self.environment.read(move |view| {
            let known = tree::scan::<JobRecord>(view, &keys::jobs(), usize::MAX);
            let mut open = known.map_err(broken)?.into_iter().map(|(_, record)| record);
            Ok(open.find(|JobRecord { job, .. }| {
                let room = if is_alone(job.kind) { alone == 0 } else { others < OTHERS_MAX };
                room && !job.state.is_final() && !busy.contains(&job.id)
            }))
        });
        query.await
    }

    /// The job is at work until what this returns is dropped.
    fn begin(&self, job: &Job) -> Begun<'_, E> {
        let stop = CancellationToken::new();
        self.running().insert(job.id, Running { kind: job.kind, stop: stop.clone() });
        Begun { jobs: self, id: job.id, stop }
    }

    async fn run_one(&self, record: JobRecord, begun: Begun<'_, E>) {
        let id = record.job.id;
        let progress = Progress::default();
        let _turn = match is_alone(record.job.kind) {
            true => tokio::select! {
                // It is recorded as cancelled, and has begun nothing that is to be settled.
                () = begun.stop.cancelled() => return,
                turn = self.alone.take() => Some(turn),
            },
            false => None,
        };
        self.report(&progress, id, Some(JobState::Running)).await;
        tracing::info!(job = id.0, kind = ?record.job.kind, "job begins");
        let end = tokio::select! {
            () = begun.stop.cancelled() => JobState::Cancelled,
            end = self.work(&record, &progress) => end,
            () = self.report_for_ever(&progress, id) => JobState::Failed,
        };
        self.report(&progress, id, Some(end)).await;
        // What was under way when it was stopped is given up, or turns out to stand.
        if end == JobState::Cancelled
            && record.job.kind == JobKind::Export
            && let Err(failure) = self.settle().await
        {
            tracing::warn!(%failure, "exports of a cancelled job cannot be settled yet");
        }
        drop(begun);
        tracing::info!(job = id.0, ?end, errors = progress.errors(), "job ends");
    }

    async fn work(&self, record: &JobRecord, progress: &Progress) -> JobState {
        let id = record.job.id;
        // It may have been cancelled before there was anything to stop.
        if self.record(id).await.is_ok_and(|now| now.job.state.is_final()) {
            return JobState::Cancelled;
        }
        let selected = self.selection_record(id).await.and_then(|selected| {
            Ok((Filter::compile(&selected.selection, record.job.started)?, selected.dry_run))
        });
        let (filter, dry_run) = match selected {
            Ok(selected) => selected,
            Err(failure) => {
                progress.failed(record.job.path.clone(), failure);
                return JobState::Failed;
            }
        };
        let context = Context {
            environment: &self.environment,
            importer: &self.importer,
            unmarked: &self.unmarked,
            job: record,
            filter: &filter,
            dry_run,
            progress,
        };
        match record.job.kind {
            JobKind::Import => list::run(&context).await,
            JobKind::Hydrate | JobKind::Release => transfer::run(&context).await,
            JobKind::Export => {
                export::run(&context).await;
                publish::run(&context).await;
            }
        }
        progress.end()
    }

    async fn report_for_ever(&self, progress: &Progress, id: JobId) {
        loop {
            tokio::time::sleep(REPORT_INTERVAL).await;
            if progress.take_changed() {
                self.report(progress, id, None).await;
            }
        }
    }

    async fn report(&self, progress: &Progress, id: JobId, state: Option<JobState>) {
        let update: UpdateJob = progress.update(id, state);
        let mut pauses = 0;
        while let Err(failure) =
            self.environment.execute(Command::UpdateJob(update.clone()), false).await
        {
            // Counts can wait for the next time; an end must not be lost while the server lives.
            if state.is_none() || !failure.kind.is_transient() || pauses > 60 {
                tracing::warn!(job = id.0, %failure, "a job's progress is not recorded");
                return;
            }
            pauses += 1;
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn record(&self, id: JobId) -> Result<JobRecord, Failure> {
        let query = self.environment.read(move |view| {
            let record: Option<JobRecord> = records::read(view, &keys::job(id)).map_err(broken)?;
            record.ok_or_else(|| Failure::new(ErrorKind::NotFound, format!("no job {}", id.0)))
        });
        query.await
    }

    /// Reading is enough to import and hydrate; the others change what is where.
    async fn check_caller(
        &self,
        kind: JobKind,
        caller: &Caller,
        top: &Inode,
    ) -> Result<(), Failure> {
        match kind {
            JobKind::Import | JobKind::Hydrate => {
                check(&*self.environment, caller, top, Access::Read).await?;
            }
            JobKind::Release | JobKind::Export => {
                if !permission::is_root(caller) && caller.uid != top.uid {
                    return Err(Failure::new(
                        ErrorKind::NotPermitted,
                        "only the owner or root may release or export it",
                    ));
                }
            }
        }
        Ok(())
    }
}

impl<E: Environment> Drop for Begun<'_, E> {
    fn drop(&mut self) {
        self.jobs.running().remove(&self.id);
    }
}

/// Whether only one of such jobs is at work at a time.
fn is_alone(kind: JobKind) -> bool {
    matches!(kind, JobKind::Export | JobKind::Release)
}

/// A job that nobody has begun.
fn fresh(kind: JobKind, path: PathBytes) -> Job {
    Job {
        id: JobId(0),
        kind,
        path,
        state: JobState::Queued,
        files_done: 0,
        files_total: 0,
        bytes_done: 0,
        bytes_total: 0,
        errors: 0,
        failures: Vec::new(),
        started: Timestamp(0),
        ended: None,
    }
}

/// Who started a job, and root, may end it and start it again.
fn check_owner(caller: &Caller, owner: &Caller) -> Result<(), Failure> {
    match permission::is_root(caller) || caller.uid == owner.uid {
        true => Ok(()),
        false => Err(ErrorKind::NotPermitted.into()),
    }
}

/// The jobs as a view shows them, newest first.
///
/// # Errors
/// When the store is broken.
pub fn jobs(view: &dyn View) -> Result<Vec<Job>, Failure> {
    let known = tree::scan::<JobRecord>(view, &keys::jobs(), usize::MAX).map_err(broken)?;
    Ok(known.into_iter().rev().map(|(_, record)| record.job).collect())
}
