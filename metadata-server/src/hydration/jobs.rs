//! Jobs: import, hydrate, release and export of a file or tree, one after another.
//!
//! A job is a record in the store, moved on by commands; what it does is idempotent, so that after
//! a crash it is simply run again. The state machine is in [`JobState`]; this module runs it,
//! counts, and passes cancellation on. Work is done by the targets.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use millrace_protocol::admin::{CancelJob, Job, JobKind, JobState, StartJob};
use millrace_types::{ErrorKind, Failure, JobId, Timestamp};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::progress::Progress;
use super::{
    environment::Environment,
    import::{Importer, broken},
    walk::{Viewpoint, check, path_of, resolve},
};
use crate::{
    command::{AddJob, Command, Outcome, UpdateJob},
    namespace::{
        Inode,
        permission::{self, Access},
        tree,
    },
    store::{
        View, keys,
        records::{self, JobRecord},
    },
};

mod directory_export;
mod dispatch;
mod export;
mod file_export;
mod list;
mod progress;
mod settle;
mod transfer;
mod upload;

/// Runs jobs. One per server.
#[derive(Debug)]
pub struct Jobs<E> {
    environment: Arc<E>,
    importer: Arc<Importer<E>>,
    waiting: Notify,
    running: Mutex<HashMap<JobId, CancellationToken>>,
}

/// How often a running job's counts become a command.
const REPORT_INTERVAL: Duration = Duration::from_millis(500);

/// After a failure of the server itself (shutting down, overloaded) the queue is looked at again.
const PAUSE: Duration = Duration::from_secs(1);

/// What a job works with.
struct Context<'a, E> {
    environment: &'a Arc<E>,
    importer: &'a Arc<Importer<E>>,
    job: &'a JobRecord,
    progress: &'a Progress,
}

impl<E: Environment> Jobs<E> {
    /// No job runs before [`Self::run`].
    pub fn new(environment: Arc<E>, importer: Arc<Importer<E>>) -> Self {
        Self { environment, importer, waiting: Notify::new(), running: Mutex::default() }
    }

    /// Takes a job into the queue. The request's path begins at `top`.
    ///
    /// # Errors
    /// [`ErrorKind::PermissionDenied`] or [`ErrorKind::NotPermitted`] when the caller may not; a
    /// path that leads nowhere; [`ErrorKind::Busy`] when the queue is full.
    pub async fn start(&self, top: &[u8], request: &StartJob) -> Result<Job, Failure> {
        let from = Viewpoint { top, caller: &request.caller };
        let top = resolve(&*self.environment, &self.importer, from, &request.path).await?;
        self.check_caller(request, &top).await?;
        let job = Job {
            id: JobId(0),
            kind: request.kind,
            path: path_of(&*self.environment, &top).await,
            state: JobState::Queued,
            files_done: 0,
            files_total: 0,
            bytes_done: 0,
            bytes_total: 0,
            errors: 0,
            failures: Vec::new(),
            started: Timestamp(0),
            ended: None,
        };
        let add = AddJob { job, caller: request.caller.clone(), root: top.id };
        let outcome = self.environment.execute(Command::AddJob(add), true).await?;
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
        let allowed =
            permission::is_root(&request.caller) || request.caller.uid == record.caller.uid;
        if !allowed {
            return Err(ErrorKind::NotPermitted.into());
        }
        // An ended job stays as it ended; a running one is told to stop, and its last counts stay.
        let progress = Progress::of(&record.job);
        let update = progress.update(request.id, Some(JobState::Cancelled));
        self.environment.execute(Command::UpdateJob(update), true).await?;
        self.stop(request.id);
        self.show(request.id).await
    }

    /// Tells a running job to stop.
    fn stop(&self, id: JobId) {
        let running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(token) = running.get(&id) {
            token.cancel();
        }
    }

    /// Runs jobs until `stop`. A job that is stopped so goes on with the next start of the server.
    pub async fn run(&self, stop: CancellationToken) {
        let work = async {
            while let Err(failure) = settle::all(&self.environment, &self.importer).await {
                tracing::warn!(%failure, "exports of an earlier run cannot be settled yet");
                tokio::time::sleep(PAUSE).await;
            }
            loop {
                match self.next().await {
                    Ok(Some(record)) => self.run_one(record).await,
                    Ok(None) => self.waiting.notified().await,
                    Err(failure) => {
                        tracing::warn!(%failure, "the queue of jobs cannot be read");
                        tokio::time::sleep(PAUSE).await;
                    }
                }
            }
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    /// The oldest job that has not ended.
    async fn next(&self) -> Result<Option<JobRecord>, Failure> {
        let query = self.environment.read(|view| {
            let known = tree::scan::<JobRecord>(view, &keys::jobs(), usize::MAX);
            let mut open = known.map_err(broken)?.into_iter().map(|(_, record)| record);
            Ok(open.find(|record| !record.job.state.is_final()))
        });
        query.await
    }

    async fn run_one(&self, record: JobRecord) {
        let id = record.job.id;
        let token = CancellationToken::new();
        let registered = |token| {
            let mut running = self.running.lock().unwrap_or_else(PoisonError::into_inner);
            match token {
                Some(token) => running.insert(id, token),
                None => running.remove(&id),
            };
        };
        registered(Some(token.clone()));
        let progress = Progress::default();
        self.report(&progress, id, Some(JobState::Running)).await;
        tracing::info!(job = id.0, kind = ?record.job.kind, "job begins");
        let context = Context {
            environment: &self.environment,
            importer: &self.importer,
            job: &record,
            progress: &progress,
        };
        let work = async {
            match record.job.kind {
                JobKind::Import => list::run(&context).await,
                JobKind::Hydrate | JobKind::Release => transfer::run(&context).await,
                JobKind::Export => export::run(&context).await,
            }
        };
        let end = tokio::select! {
            () = token.cancelled() => JobState::Cancelled,
            () = work => progress.end(),
            () = self.report_for_ever(&progress, id) => JobState::Failed,
        };
        self.report(&progress, id, Some(end)).await;
        registered(None);
        // What was under way when it was stopped is given up, or turns out to stand.
        if end == JobState::Cancelled
            && let Err(failure) = settle::all(&self.environment, &self.importer).await
        {
            tracing::warn!(%failure, "exports of a cancelled job cannot be settled yet");
        }
        tracing::info!(job = id.0, ?end, errors = progress.errors(), "job ends");
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
    async fn check_caller(&self, request: &StartJob, top: &Inode) -> Result<(), Failure> {
        match request.kind {
            JobKind::Import | JobKind::Hydrate => {
                check(&*self.environment, &request.caller, top, Access::Read).await?;
            }
            JobKind::Release | JobKind::Export => {
                if !permission::is_root(&request.caller) && request.caller.uid != top.uid {
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

/// The jobs as a view shows them, newest first.
///
/// # Errors
/// When the store is broken.
pub fn jobs(view: &dyn View) -> Result<Vec<Job>, Failure> {
    let known = tree::scan::<JobRecord>(view, &keys::jobs(), usize::MAX).map_err(broken)?;
    Ok(known.into_iter().rev().map(|(_, record)| record.job).collect())
}
