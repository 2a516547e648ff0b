//! Jobs: import, hydrate, release and export of a file or tree, some at a time.
//!
//! A job is a record in the store, moved on by commands; what it does is idempotent, so that after
//! a crash it is simply run again. The state machine is in [`JobState`]; this module runs it,
//! counts, and passes cancellation on. Work is done by the targets.
//!
//! Jobs run beside each other, so that a tree that takes a day to fetch holds up no checkpoint. Of
//! exports and releases there is one at a time for each link: what an export finds begun was left
//! by one that is over, and what a release is about to drop no export may put another object in the
//! place of. What links export by themselves (`auto_export`), and what is deleted (`deleter`),
//! takes its turn between them (`Alone`).

use std::{
    collections::{HashMap, HashSet},
    convert::Infallible,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures::{FutureExt as _, StreamExt as _, stream::FuturesUnordered};
use millrace_protocol::{
    admin::{CancelJob, Job, JobKind, JobState},
    file_list::FileListId,
    job_options::{FetchReport, ReportPage},
    session::Caller,
};
use millrace_types::{ErrorKind, Failure, JobId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

use self::{
    alone::{Alone, Claim, Turn},
    auto_export::AutoExporter,
    context::Context,
    copy::Elsewhere,
    deleter::Deleter,
    detail::Work,
    filter::Filter,
    marks::Unmarked,
    next::Next,
    outcomes::Outcomes,
    pace::Pace,
    progress::Progress,
    report_room::{REPORTS_BYTES_MAX, ReportRoom},
};
use super::{
    environment::Environment,
    import::{Importer, broken},
};
use crate::{
    command::Command,
    namespace::{permission, tree},
    store::{
        View, keys,
        records::{self, JobRecord, SelectionRecord},
    },
};

mod alone;
mod auto_export;
mod begun;
mod closes;
mod context;
mod copy;
mod deleter;
mod detail;
mod directories;
mod directory_export;
mod dispatch;
mod export;
mod fetch;
mod file_export;
mod files;
mod filter;
mod judge;
mod list;
mod marks;
mod needed;
mod next;
mod outcomes;
mod pace;
mod patience;
mod progress;
mod publish;
mod reach;
mod recording;
mod release;
mod report_room;
mod report_to;
mod settle;
mod slices;
mod sources;
mod start;
mod symlink_export;
mod transfer;
mod upload;

pub(super) use self::settle::end_uploads;

/// Runs jobs. One per server.
#[derive(Debug)]
pub struct Jobs<E> {
    environment: Arc<E>,
    importer: Arc<Importer<E>>,
    pub(super) auto_export: AutoExporter<E>,
    pub(super) deleter: Deleter<E>,
    waiting: Notify,
    /// Told whenever one has ended, as the log has it.
    ends: Notify,
    /// Told whenever one has ended that may have left uploads at another place.
    copies_left: Notify,
    alone: Alone,
    unmarked: Arc<Unmarked>,
    reports: Arc<ReportRoom>,
    running: Mutex<HashMap<JobId, Running>>,
}

/// A job at work.
#[derive(Debug)]
struct Running {
    /// The links of which no other may be at work.
    claim: Option<Arc<Claim>>,
    /// Whether it waits for their turn.
    waits: bool,
    stop: CancellationToken,
    work: Arc<Work>,
}

/// What a job is to do, and how.
struct How {
    filter: Filter,
    files: Option<FileListId>,
    dry_run: bool,
    is_atomic: bool,
    outcomes: Option<Outcomes>,
    pace: Option<Pace>,
    elsewhere: Option<Elsewhere>,
    turn: Option<Arc<Claim>>,
}

/// A job is at work as long as this is there.
struct Begun<'a, E: Environment> {
    jobs: &'a Jobs<E>,
    id: JobId,
    stop: CancellationToken,
    work: Arc<Work>,
}

/// How often lists of files are looked for that no job names.
const PRUNE_INTERVAL: Duration = Duration::from_secs(600);

/// After a failure of the server itself (shutting down, overloaded) the queue is looked at again.
const PAUSE: Duration = Duration::from_secs(1);

impl<E: Environment> Jobs<E> {
    /// No job runs before [`Self::run`].
    pub fn new(environment: Arc<E>, importer: Arc<Importer<E>>) -> Self {
        let unmarked = Arc::new(Unmarked::default());
        let reports = ReportRoom::new(environment.reports().to_owned(), REPORTS_BYTES_MAX);
        let (its_environment, its_importer) = (Arc::clone(&environment), Arc::clone(&importer));
        Self {
            deleter: Deleter::new(Arc::clone(&environment), Arc::clone(&importer)),
            auto_export: AutoExporter::new(its_environment, its_importer, Arc::clone(&unmarked)),
            unmarked,
            reports: Arc::new(reports),
            environment,
            importer,
            waiting: Notify::new(),
            ends: Notify::new(),
            copies_left: Notify::new(),
            alone: Alone::default(),
            running: Mutex::default(),
        }
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

    /// Wakes whoever waits for it whenever a job has ended.
    pub(super) fn ends(&self) -> &Notify {
        &self.ends
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
        self.ends.notify_waiters();
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
            while let Err(failure) = self.settle(None).await {
                tracing::warn!(%failure, "exports of an earlier run cannot be settled yet");
                tokio::time::sleep(PAUSE).await;
            }
            tokio::join!(
                self.work_off(),
                self.settle_copies_for_ever(),
                self.auto_export.run(&self.alone),
                self.deleter.run(&self.alone),
                self.unmarked.ask_again(&self.environment),
                self.prune_for_ever(),
            );
        };
        tokio::select! {
            () = stop.cancelled() => {}
            () = work => {}
        }
    }

    async fn settle(&self, turn: Option<&Claim>) -> Result<(), Failure> {
        settle::all(&self.environment, &self.importer, &self.unmarked, turn).await
    }

    /// Gives up what exports to other places left that are over. What cannot be now is when the
    /// next one ends. Beside the jobs: a place that is away holds up none of them.
    async fn settle_copies_for_ever(&self) {
        loop {
            // One that was cancelled may still be at it.
            let is_running = |id: JobId| self.running().contains_key(&id);
            let settled = copy::uploads::settle(&self.environment, &self.importer, is_running);
            if let Err(failure) = Box::pin(settled).await {
                tracing::warn!(%failure, "uploads to other places cannot be settled now");
            }
            self.copies_left.notified().await;
        }
    }

    /// Runs the jobs of the queue for as long as it is polled.
    async fn work_off(&self) {
        let mut jobs = FuturesUnordered::new();
        loop {
            let again = match self.next().await {
                Ok(Some(Next { record, claim })) => {
                    let begun = self.begin(record.job.id, claim.clone());
                    jobs.push(self.run_one(record, claim, begun));
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

    /// The job is at work until what this returns is dropped.
    fn begin(&self, id: JobId, claim: Option<Arc<Claim>>) -> Begun<'_, E> {
        let stop = CancellationToken::new();
        let work = Arc::new(Work::default());
        let running = Running { claim, waits: false, stop: stop.clone(), work: Arc::clone(&work) };
        self.running().insert(id, running);
        Begun { jobs: self, id, stop, work }
    }

    async fn run_one(&self, record: JobRecord, claim: Option<Arc<Claim>>, begun: Begun<'_, E>) {
        let id = record.job.id;
        let Work { progress, tally, .. } = &*begun.work;
        let _turn = match claim.clone() {
            Some(claim) => tokio::select! {
                // It is recorded as cancelled, and has begun nothing that is to be settled.
                () = begun.stop.cancelled() => return,
                turn = self.take_turn(id, claim) => Some(turn),
            },
            None => None,
        };
        self.resume_detail(id, &begun.work).await;
        // Of what is not known to have begun the end would be refused.
        if !self.record_state(&begun, JobState::Running).await {
            return;
        }
        tracing::info!(job = id.0, kind = ?record.job.kind, "job begins");
        let end = match self.how(&record, claim.clone()).await {
            Ok(how) => {
                let end = tokio::select! {
                    () = begun.stop.cancelled() => JobState::Cancelled,
                    end = tally.clone().scope(self.work(&record, &how, &begun.work)) => end,
                    () = self.report_for_ever(&begun.work, id) => JobState::Failed,
                    never = tally.clone().scope(self.look_for_ever(&begun.work)) => match never {},
                };
                // Never dropped in its middle: a deletion that is on its way must not be overtaken
                // by what has the turn next.
                let end = match end {
                    JobState::Cancelled => end,
                    _ => tally.clone().scope(self.delete(&record, &how, &begun)).await,
                };
                self.finish(&record, how, progress, end).await
            }
            Err(failure) => {
                progress.failed_besides(record.job.path.clone(), failure);
                JobState::Failed
            }
        };
        self.record_detail(id, &begun.work, true).await;
        self.record_state(&begun, end).await;
        self.ends.notify_waiters();
        // What was under way when it was stopped is given up, or turns out to stand.
        if end == JobState::Cancelled
            && record.job.kind == JobKind::Export
            && claim.is_some()
            && let Err(failure) = self.settle(claim.as_deref()).await
        {
            tracing::warn!(%failure, "exports of a cancelled job cannot be settled yet");
        }
        tracing::info!(job = id.0, ?end, errors = progress.errors(), "job ends");
        drop(begun);
        if record.job.kind == JobKind::Export && claim.is_none() {
            self.copies_left.notify_one();
        }
    }

    /// Waits for the turn of a job. While it does, others may begin.
    async fn take_turn(&self, id: JobId, claim: Arc<Claim>) -> Turn<'_> {
        let mut turn = pin!(self.alone.take(claim));
        if let Some(turn) = turn.as_mut().now_or_never() {
            return turn;
        }
        self.set_waits(id, true);
        self.waiting.notify_one();
        let turn = turn.await;
        self.set_waits(id, false);
        turn
    }

    fn set_waits(&self, id: JobId, waits: bool) {
        if let Some(running) = self.running().get_mut(&id) {
            running.waits = waits;
        }
    }

    /// What a job is to do, and how: with the turn of some links, or none.
    async fn how(&self, record: &JobRecord, turn: Option<Arc<Claim>>) -> Result<How, Failure> {
        let id = record.job.id;
        let SelectionRecord { selection, dry_run } = self.selection_record(id).await?;
        let options = self.options(id).await?;
        let filter = Filter::compile(&selection, record.job.started)?;
        let filter = filter.with_unused(self.unused(id).await?);
        let filter = filter.with_states(self.states(id).await?);
        let outcomes = match options.report {
            true => Some(self.begin_report(id).await?),
            false => None,
        };
        let pace = options.bytes_per_second.map(Pace::new);
        let (files, is_atomic) = (options.files, options.atomic);
        let elsewhere = match options.destination {
            Some(destination) => {
                let (environment, importer) = (&*self.environment, &*self.importer);
                Some(Elsewhere::open(environment, importer, destination, is_atomic).await?)
            }
            None => None,
        };
        Ok(How { filter, files, dry_run, is_atomic, outcomes, pace, elsewhere, turn })
    }

    async fn begin_report(&self, id: JobId) -> Result<Outcomes, Failure> {
        let known: HashSet<_> = self.list().await?.iter().map(|job| job.id).collect();
        let (room, keep_free) = (Arc::clone(&self.reports), self.environment.reports_keep_free());
        blocking(move || Outcomes::begin(room, id, keep_free, |job| known.contains(&job))).await
    }

    /// How a job ends whose report is kept: only with a whole one it has succeeded.
    async fn finish(
        &self,
        record: &JobRecord,
        how: How,
        progress: &Progress,
        end: JobState,
    ) -> JobState {
        let Some(outcomes) = how.outcomes else { return end };
        match blocking(move || outcomes.finish()).await {
            Ok(()) => end,
            Err(failure) => {
                progress.failed_besides(record.job.path.clone(), failure);
                if end == JobState::Succeeded { JobState::Failed } else { end }
            }
        }
    }

    /// A part of the report of a job that has ended.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`] for no such job, and for one whose report was not asked for when it
    /// began; [`ErrorKind::NotPermitted`] for anybody but its owner and root; [`ErrorKind::Busy`]
    /// while it works; [`ErrorKind::Internal`] when the report cannot be read.
    pub async fn outcomes(&self, request: &FetchReport) -> Result<ReportPage, Failure> {
        let FetchReport { caller, id, offset } = request;
        let (id, offset) = (*id, *offset);
        let record = self.record(id).await?;
        check_owner(caller, &record.caller)?;
        if !self.options(id).await?.report {
            let words = format!("job {} was started without --report", id.0);
            return Err(Failure::new(ErrorKind::NotFound, words));
        }
        let state = record.job.state;
        // One that was cancelled may still be at it; of others the report is whole before they end.
        let is_busy = state == JobState::Cancelled && self.running().contains_key(&id);
        if !state.is_final() || is_busy {
            let words = format!("job {} has not ended", id.0);
            return Err(Failure::new(ErrorKind::Busy, words));
        }
        let directory = self.environment.reports().to_owned();
        blocking(move || outcomes::page(&directory, id, offset)).await
    }

    async fn work(&self, record: &JobRecord, how: &How, work: &Work) -> JobState {
        // It may have been cancelled before there was anything to stop.
        if self.record(record.job.id).await.is_ok_and(|now| now.job.state.is_final()) {
            return JobState::Cancelled;
        }
        let context = self.context(record, how, work);
        match record.job.kind {
            JobKind::Import => list::run(&context).await,
            JobKind::Hydrate | JobKind::Release => transfer::run(&context).await,
            JobKind::Export => {
                export::run(&context).await;
                if how.is_atomic {
                    publish::run(&context).await;
                }
            }
        }
        work.progress.end()
    }

    /// Looks at the buckets that a job has found away.
    async fn look_for_ever(&self, work: &Work) -> Infallible {
        let random = || self.environment.random();
        work.patience.look_for_ever(|pause| patience::shortened(pause, random())).await
    }

    /// At the end of an export of a whole tree: what was removed there is deleted in the bucket,
    /// where the link says so. Stops between two objects when the job is cancelled. How the job
    /// ends.
    async fn delete(&self, record: &JobRecord, how: &How, begun: &Begun<'_, E>) -> JobState {
        let progress = &begun.work.progress;
        // What an older manifest names goes only when there is a newer one.
        let is_over = !how.is_atomic || progress.errors() == 0;
        let is_whole = how.filter.is_everything() && how.files.is_none() && !how.dry_run;
        let exports = record.job.kind == JobKind::Export && how.elsewhere.is_none();
        if exports && is_over && is_whole {
            let context = self.context(record, how, &begun.work);
            tokio::select! {
                () = self.deleter.finish(&context, &begun.stop) => {}
                () = self.report_for_ever(&begun.work, begun.id) => {}
                // Counted with the whole deletion.
                never = self.look_for_ever(&begun.work) => match never {},
            }
        }
        match begun.stop.is_cancelled() {
            true => JobState::Cancelled,
            false => progress.end(),
        }
    }

    fn context<'a>(
        &'a self,
        record: &'a JobRecord,
        how: &'a How,
        work: &'a Work,
    ) -> Context<'a, E> {
        Context {
            environment: &self.environment,
            importer: &self.importer,
            unmarked: &self.unmarked,
            job: record,
            filter: &how.filter,
            files: how.files,
            dry_run: how.dry_run,
            is_atomic: how.is_atomic,
            progress: &work.progress,
            outcomes: how.outcomes.as_ref(),
            pace: how.pace.as_ref(),
            elsewhere: how.elsewhere.as_ref(),
            turn: how.turn.as_deref(),
            patience: Some(&work.patience),
        }
    }

    async fn record(&self, id: JobId) -> Result<JobRecord, Failure> {
        let query = self.environment.read(move |view| {
            let record: Option<JobRecord> = records::read(view, &keys::job(id)).map_err(broken)?;
            record.ok_or_else(|| Failure::new(ErrorKind::NotFound, format!("no job {}", id.0)))
        });
        query.await
    }
}

impl<E: Environment> Drop for Begun<'_, E> {
    fn drop(&mut self) {
        self.jobs.running().remove(&self.id);
    }
}

/// Who started a job, and root, may end it and start it again.
fn check_owner(caller: &Caller, owner: &Caller) -> Result<(), Failure> {
    match permission::is_root(caller) || caller.uid == owner.uid {
        true => Ok(()),
        false => Err(ErrorKind::NotPermitted.into()),
    }
}

/// Runs what waits for a disk where it holds up nothing else.
async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
) -> Result<T, Failure> {
    let done = tokio::task::spawn_blocking(work).await;
    done.unwrap_or_else(|_| Err(ErrorKind::Unavailable.into()))
}

/// The jobs as a view shows them, newest first.
///
/// # Errors
/// When the store is broken.
pub fn jobs(view: &dyn View) -> Result<Vec<Job>, Failure> {
    let known = tree::scan::<JobRecord>(view, &keys::jobs(), usize::MAX).map_err(broken)?;
    Ok(known.into_iter().rev().map(|(_, record)| record.job).collect())
}
