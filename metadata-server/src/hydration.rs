//! The control side of hydration: links, lazy import, jobs, exports, and the state of files.
//!
//! Owns what is asked of buckets and targets, and when. It holds nothing that must last: links,
//! imported names, jobs and exports under way are records that commands change, so that everything
//! here can be dropped at any moment and goes on after a restart. File data never passes through
//! it, except of files that live in their inodes; the targets move the rest.
//!
//! Invariants: an export is recorded before the first byte of it moves; an object is made only
//! under the condition that was recorded; what became of an unclear answer is settled by asking,
//! never by guess; every wait has a limit, and every set of things under way a bound.
//!
//! Modules, in reading order: [`environment`] (what it needs of the server), [`import`], [`walk`],
//! [`links`], `trials`, `removal`, `sweep`, [`parts`], [`spread`], `holdings`, [`state`],
//! [`report`], [`requests`], `left_out`, `changed`, `refresher`, `ahead`, `conflicts`,
//! `destination`, `own`, `exporting`, [`jobs`].

use std::sync::Arc;

use millrace_object_source::Buckets;
use millrace_protocol::{
    admin::{
        AddLink, CancelJob, Job, LinkOptions, LinkStatus, Removal, RemoveLink, ResolveConflict,
        ResolveReply, SetLinkOptions, ShowState, StartJob, StateReply,
    },
    ahead::{LinkFetches, Miss, SetFetchPolicy},
    bucket::{
        AutoExport, DeletePropagation, FileReply, ListUploads, SetAutoExport, SetDeletePropagation,
        ShowFile, TryLink, TryLinkReply, UploadsReply,
    },
    by_state::{StartByState, StatesReply},
    file_list::{AppendFiles, FilesReply},
    job_detail::JobDetailReply,
    job_options::{
        FetchReport, JobOptionsReply, PutReport, PutReportReply, ReportPage, StartWithOptions,
    },
    job_waits::JobWaitsReply,
    known_state::{KnownStateReply, ShowKnownState},
    left_out::{LeftOutReply, ShowLeftOut},
    refresh::{RefreshInterval, SetRefreshInterval},
    requests::RequestsReply,
    selection::{RetryJob, SelectionReply, StartSelected},
    target::ContentName,
    unused::{StartUnused, UnusedReply},
};
use millrace_service::metrics::Metrics;
use millrace_types::{ErrorKind, Failure, FileName, InodeId, JobId};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

mod ahead;
mod changed;
mod conflicts;
pub(crate) mod destination;
pub mod environment;
mod exporting;
mod holdings;
pub mod import;
pub mod jobs;
mod left_out;
pub mod links;
pub mod metrics;
mod own;
pub mod parts;
mod refresher;
mod removal;
pub mod report;
pub mod requests;
pub mod spread;
pub mod state;
mod sweep;
#[cfg(test)]
mod tests;
mod trials;
pub mod uploads;
pub mod walk;

use ahead::Ahead;
use changed::Changed;
pub use environment::Environment;
use import::Importer;
pub use import::Listing;
use jobs::Jobs;
use refresher::Refresher;
use removal::Remover;

/// Everything that the server asks of hydration. Cheap to clone.
#[derive(Debug)]
pub struct Hydration<E> {
    environment: Arc<E>,
    buckets: Arc<Buckets>,
    importer: Arc<Importer<E>>,
    jobs: Arc<Jobs<E>>,
    changed: Arc<Changed<E>>,
    ahead: Arc<Ahead<E>>,
    refresher: Arc<Refresher<E>>,
    remover: Arc<Remover<E>>,
}

impl<E> Clone for Hydration<E> {
    fn clone(&self) -> Self {
        Self {
            environment: Arc::clone(&self.environment),
            buckets: Arc::clone(&self.buckets),
            importer: Arc::clone(&self.importer),
            jobs: Arc::clone(&self.jobs),
            changed: Arc::clone(&self.changed),
            ahead: Arc::clone(&self.ahead),
            refresher: Arc::clone(&self.refresher),
            remover: Arc::clone(&self.remover),
        }
    }
}

impl<E: Environment> Hydration<E> {
    /// Hydration over this server; no job runs before [`Self::run`].
    #[must_use]
    pub fn new(environment: Arc<E>, buckets: Arc<Buckets>) -> Self {
        let importer = Arc::new(Importer::new(Arc::clone(&environment), Arc::clone(&buckets)));
        let jobs = Arc::new(Jobs::new(Arc::clone(&environment), Arc::clone(&importer)));
        let changed = Arc::new(Changed::new(Arc::clone(&environment), Arc::clone(&importer)));
        let ahead = Arc::new(Ahead::new(Arc::clone(&environment), importer.counts.clone()));
        let (its_environment, its_importer) = (Arc::clone(&environment), Arc::clone(&importer));
        let refresher = Arc::new(Refresher::new(its_environment, its_importer));
        let (its_environment, its_importer) = (Arc::clone(&environment), Arc::clone(&importer));
        let remover = Arc::new(Remover::new(its_environment, its_importer));
        Self { environment, buckets, importer, jobs, changed, ahead, refresher, remover }
    }

    /// Settles exports that were interrupted, then runs jobs, follows reported changes, lists links
    /// again that say so, goes on with removals of links, takes away what hides nothing any more
    /// and fetches ahead of readers until `stop`.
    pub async fn run(&self, stop: CancellationToken) {
        tokio::join!(
            self.jobs.run(stop.clone()),
            self.changed.run(stop.clone()),
            self.refresher.run(stop.clone()),
            self.remover.run(stop.clone()),
            sweep::run(&*self.environment, stop.clone()),
            self.ahead.run(stop)
        );
    }

    /// Takes a target's report of reads that had to wait. Returns at once.
    pub fn note_misses(&self, misses: &[Miss]) {
        self.ahead.note(misses);
    }

    /// Sets what is fetched behind reads below a link: see [`links::set_fetch_policy`].
    ///
    /// # Errors
    /// When the directory is not the top of a link.
    pub async fn set_fetch_policy(
        &self,
        request: &SetFetchPolicy,
    ) -> Result<Vec<LinkFetches>, Failure> {
        let link = links::set_fetch_policy(&*self.environment, &self.importer, request).await?;
        let all = self.ahead.status().await?;
        Ok(all.into_iter().filter(|one| one.link == link).collect())
    }

    /// What the links fetch behind reads.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list_fetch_policies(&self) -> Result<Vec<LinkFetches>, Failure> {
        self.ahead.status().await
    }

    /// Takes a target's report of objects that changed. Returns at once; files follow behind.
    pub fn note_changed(&self, contents: &[ContentName]) {
        self.changed.note(contents);
    }

    /// Decides which version of a file in conflict stays: see [`ResolveConflict`]. The path begins
    /// at `top`.
    ///
    /// # Errors
    /// When the caller may not, the file is not in conflict or open for writing, or bytes of the
    /// version to keep exist nowhere.
    pub async fn resolve_conflict(
        &self,
        top: &[u8],
        request: &ResolveConflict,
    ) -> Result<ResolveReply, Failure> {
        conflicts::resolve(&*self.environment, &self.importer, top, request).await
    }

    /// Registers what is counted here.
    pub fn register_metrics(&self, metrics: &mut Metrics) {
        self.importer.counts.register(metrics);
    }

    /// Call before a name is answered as missing and before one is made: see [`Importer::name`].
    ///
    /// # Errors
    /// Those of the bucket: the name may exist.
    pub async fn before_lookup(&self, directory: InodeId, name: &FileName) -> Result<(), Failure> {
        self.importer.name(directory, name).await
    }

    /// Call before entries behind `cookie` are read, and before a directory is removed: see
    /// [`Importer::entries`]. Unless the listing is complete, the page is not the last.
    ///
    /// # Errors
    /// Those of the bucket.
    pub async fn before_list(&self, directory: InodeId, cookie: u64) -> Result<Listing, Failure> {
        self.importer.entries(directory, cookie).await
    }

    /// Call before a lookup or listing is answered from a listing that is older than the link
    /// allows: see [`Importer::fresh`].
    pub async fn refresh(&self, directory: InodeId, name: Option<&FileName>) {
        self.importer.fresh(directory, name).await;
    }

    /// Binds a directory to a bucket that every host reaches: see [`links::add`].
    ///
    /// # Errors
    /// A sentence that names the hosts that cannot reach the bucket; what apply refuses.
    pub async fn add_link(&self, request: &AddLink) -> Result<LinkStatus, Failure> {
        links::add(&*self.environment, &self.importer, request).await
    }

    /// The links.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list_links(&self) -> Result<Vec<LinkStatus>, Failure> {
        links::list(&*self.environment).await
    }

    /// Sets how a link follows its bucket: see [`links::set_options`].
    ///
    /// # Errors
    /// When the directory is not the top of a link.
    pub async fn set_link_options(&self, request: &SetLinkOptions) -> Result<LinkOptions, Failure> {
        links::set_options(&*self.environment, &self.importer, request).await
    }

    /// Sets whether files below a link go to its bucket by themselves: see
    /// [`links::set_auto_export`].
    ///
    /// # Errors
    /// When the directory is not the top of a link, or the link does not export.
    pub async fn set_auto_export(
        &self,
        request: &SetAutoExport,
    ) -> Result<Vec<AutoExport>, Failure> {
        let link = links::set_auto_export(&*self.environment, &self.importer, request).await?;
        self.jobs.auto_export.reload().await?;
        let all = self.jobs.auto_export.status().await?;
        Ok(all.into_iter().filter(|one| one.link == link).collect())
    }

    /// The links that export by themselves.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list_auto_exports(&self) -> Result<Vec<AutoExport>, Failure> {
        self.jobs.auto_export.status().await
    }

    /// Sets whether removals below a link reach its bucket: see
    /// [`links::set_delete_propagation`].
    ///
    /// # Errors
    /// When the directory is not the top of a link, or the link does not export.
    pub async fn set_delete_propagation(
        &self,
        request: &SetDeletePropagation,
    ) -> Result<Vec<DeletePropagation>, Failure> {
        let environment = &*self.environment;
        let link = links::set_delete_propagation(environment, &self.importer, request).await?;
        let all = self.jobs.deleter.status().await?;
        Ok(all.into_iter().filter(|one| one.link == link).collect())
    }

    /// The links whose removals reach the bucket.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list_delete_propagation(&self) -> Result<Vec<DeletePropagation>, Failure> {
        self.jobs.deleter.status().await
    }

    /// Sets how often a link is listed again by itself.
    ///
    /// # Errors
    /// When the directory is not the top of a link, or the interval is beyond its limits.
    pub async fn set_refresh_interval(
        &self,
        request: &SetRefreshInterval,
    ) -> Result<Vec<RefreshInterval>, Failure> {
        let link = self.refresher.set(request).await?;
        let all = self.refresher.status().await?;
        Ok(all.into_iter().filter(|one| one.link == link).collect())
    }

    /// The links that are listed again by themselves.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list_refresh_intervals(&self) -> Result<Vec<RefreshInterval>, Failure> {
        self.refresher.status().await
    }

    /// Keys of buckets that are left out at and below a path, which begins at `top`.
    ///
    /// # Errors
    /// For anybody but the owner of what is at the path and root; those of the path.
    pub async fn show_left_out(
        &self,
        top: &[u8],
        request: &ShowLeftOut,
    ) -> Result<LeftOutReply, Failure> {
        left_out::show(&*self.environment, &self.importer, top, request).await
    }

    /// Has every host that needs the bucket of a link try it.
    ///
    /// # Errors
    /// When the directory is not the top of a link.
    pub async fn try_link(&self, request: &TryLink) -> Result<TryLinkReply, Failure> {
        trials::try_link(&*self.environment, &self.importer, request).await
    }

    /// Uploads that were begun below a link and not ended: see [`uploads::list`].
    ///
    /// # Errors
    /// When the directory is not the top of a link; those of the bucket.
    pub async fn list_uploads(&self, request: &ListUploads) -> Result<UploadsReply, Failure> {
        uploads::list(&*self.environment, &self.importer, request).await
    }

    /// How all links follow their buckets.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list_link_options(&self) -> Result<Vec<LinkOptions>, Failure> {
        self.environment.read(links::options).await
    }

    /// Unbinds a directory: its names go, the bucket stays as it is. What has begun goes on by
    /// itself, also after a failure; who asks again waits for it.
    ///
    /// # Errors
    /// While files are dirty or a job works there; [`ErrorKind::DeadlineExceeded`] while one that
    /// is under way takes long.
    pub async fn remove_link(&self, request: &RemoveLink) -> Result<(), Failure> {
        let removed = self.remover.remove(request).await;
        // Also where it failed: the removal may have begun.
        if let Err(failure) = self.jobs.auto_export.reload().await {
            tracing::warn!(%failure, "what a removed link exports by itself cannot be read again");
        }
        removed
    }

    /// Links whose removal has begun and not ended.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list_removals(&self) -> Result<Vec<Removal>, Failure> {
        self.remover.list().await
    }

    /// The state of a file or tree, whose path begins at `top`: see [`report::show`].
    ///
    /// # Errors
    /// When the caller may not read it, or a target does not answer.
    pub async fn show_state(&self, top: &[u8], request: &ShowState) -> Result<StateReply, Failure> {
        report::show(&*self.environment, &self.importer, top, request).await
    }

    /// The same as far as the targets that answer know it: see [`report::show_known`].
    ///
    /// # Errors
    /// When the caller may not read it; of a single file, also that a target does not answer.
    pub async fn show_known_state(
        &self,
        top: &[u8],
        request: &ShowKnownState,
    ) -> Result<KnownStateReply, Failure> {
        report::show_known(&*self.environment, &self.importer, top, &request.of).await
    }

    /// How one file stands, for a client whose paths begin at `top`: see [`report::show_file`].
    ///
    /// # Errors
    /// When the caller may not read it, or a target does not answer.
    pub async fn show_file(&self, top: &[u8], request: &ShowFile) -> Result<FileReply, Failure> {
        report::show_file(&*self.environment, &self.importer, top, request).await
    }

    /// Takes a job; its path begins at `top`: see [`Jobs::start`].
    ///
    /// # Errors
    /// When the caller may not, the path leads nowhere, or the queue is full.
    pub async fn start_job(&self, top: &[u8], request: &StartJob) -> Result<Job, Failure> {
        self.jobs.start(top, request).await
    }

    /// Starts a job over a part of a tree; the request's path begins at `top`.
    ///
    /// # Errors
    /// As [`Jobs::start_selected`].
    pub async fn start_selected(
        &self,
        top: &[u8],
        request: &StartSelected,
    ) -> Result<Job, Failure> {
        self.jobs.start_selected(top, request).await
    }

    /// Starts a job that is done in some way of its own; the request's path begins at `top`.
    ///
    /// # Errors
    /// As [`Jobs::start_with_options`].
    pub async fn start_with_options(
        &self,
        top: &[u8],
        request: &StartWithOptions,
    ) -> Result<Job, Failure> {
        self.jobs.start_with_options(top, request).await
    }

    /// Starts a job over what nobody has used for a while; the request's path begins at `top`.
    ///
    /// # Errors
    /// As [`Jobs::start_unused`].
    pub async fn start_unused(&self, top: &[u8], request: &StartUnused) -> Result<Job, Failure> {
        self.jobs.start_unused(top, request).await
    }

    /// For how long nobody has used what a job works on.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn show_unused(&self, id: JobId) -> Result<UnusedReply, Failure> {
        Ok(UnusedReply { seconds: self.jobs.unused(id).await? })
    }

    /// Starts a job over the files in some states; the request's path begins at `top`.
    ///
    /// # Errors
    /// As [`Jobs::start_by_state`].
    pub async fn start_by_state(&self, top: &[u8], request: &StartByState) -> Result<Job, Failure> {
        self.jobs.start_by_state(top, request).await
    }

    /// In which states files must be that a job works on.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn show_states(&self, id: JobId) -> Result<StatesReply, Failure> {
        Ok(StatesReply { states: self.jobs.states(id).await? })
    }

    /// How a job is done.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn show_job_options(&self, id: JobId) -> Result<JobOptionsReply, Failure> {
        Ok(JobOptionsReply { options: self.jobs.options(id).await? })
    }

    /// Puts a job's report into a bucket, also when the caller goes away meanwhile.
    ///
    /// # Errors
    /// As [`Jobs::put_report`].
    pub async fn put_report(&self, request: PutReport) -> Result<PutReportReply, Failure> {
        let jobs = Arc::clone(&self.jobs);
        let put = tokio::spawn(async move { jobs.put_report(&request).await });
        put.await.unwrap_or_else(|_| Err(ErrorKind::Unavailable.into()))
    }

    /// Adds a page to a list of files for a job: see [`Jobs::append_files`].
    ///
    /// # Errors
    /// When it is no page, or cannot be kept.
    pub async fn append_files(&self, request: AppendFiles) -> Result<FilesReply, Failure> {
        self.jobs.append_files(request).await
    }

    /// What a job asked buckets, and how far it is in each directory.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn show_job_detail(&self, id: JobId) -> Result<JobDetailReply, Failure> {
        let targets = self.environment.map().await?.targets.len();
        let detail = self.jobs.detail(id).await?;
        let source = self.jobs.source(id).await?;
        let targets = u32::try_from(targets).unwrap_or(u32::MAX);
        Ok(JobDetailReply { detail, targets, source })
    }

    /// The buckets that a job waits for.
    #[must_use]
    pub fn show_job_waits(&self, id: JobId) -> JobWaitsReply {
        JobWaitsReply { waits: self.jobs.waits(id) }
    }

    /// A part of a job's report.
    ///
    /// # Errors
    /// As [`Jobs::outcomes`].
    pub async fn fetch_report(&self, request: &FetchReport) -> Result<ReportPage, Failure> {
        self.jobs.outcomes(request).await
    }

    /// What the buckets of all links were asked: see [`requests::count`].
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list_requests(&self) -> Result<RequestsReply, Failure> {
        requests::count(&*self.environment, &self.importer).await
    }

    /// Starts a job once more.
    ///
    /// # Errors
    /// As [`Jobs::retry`].
    pub async fn retry_job(&self, request: &RetryJob) -> Result<Job, Failure> {
        self.jobs.retry(request).await
    }

    /// What a job works on.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn show_selection(&self, id: JobId) -> Result<SelectionReply, Failure> {
        self.jobs.selection(id).await
    }

    /// Jobs, newest first.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn list_jobs(&self) -> Result<Vec<Job>, Failure> {
        self.jobs.list().await
    }

    /// One job.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`].
    pub async fn show_job(&self, id: JobId) -> Result<Job, Failure> {
        self.jobs.show(id).await
    }

    /// Wakes whoever waits for it whenever a job has ended.
    #[must_use]
    pub fn job_ends(&self) -> &Notify {
        self.jobs.ends()
    }

    /// Asks a job to stop: see [`Jobs::cancel`].
    ///
    /// # Errors
    /// For anybody but who started it and root.
    pub async fn cancel_job(&self, request: &CancelJob) -> Result<Job, Failure> {
        self.jobs.cancel(request).await
    }

    /// The buckets, for metrics.
    #[must_use]
    pub fn buckets(&self) -> &Buckets {
        &self.buckets
    }
}
