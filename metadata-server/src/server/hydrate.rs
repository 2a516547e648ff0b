//! Requests about links and jobs: checked, then handed to hydration.
//!
//! A client's paths begin at the directory that its certificate is restricted to; root is squashed,
//! and users may search directories, as in every other request.

use futures::future::BoxFuture;
use millrace_protocol::{
    Request,
    admin::{
        AddLink, CancelJob, JobReply, LinkOptionsReply, LinkReply, ListLinkOptions, ListRemovals,
        PathBytes, RemovalsReply, RemoveLink, ResolveConflict, ResolveReply, SetLinkOptions,
        StartJob,
    },
    ahead::{FetchPoliciesReply, ListFetchPolicies, MISSES_MAX, ReportMisses, SetFetchPolicy},
    bucket::{
        AutoExportsReply, DeletePropagationReply, ListAutoExports, ListDeletePropagation,
        ListUploads, SetAutoExport, SetDeletePropagation, UploadsReply,
    },
    by_state::{ShowStates, StartByState, StatesReply},
    cluster::{CHANGED_CONTENTS_MAX, ReportChanged},
    file_list::{AppendFiles, FilesReply},
    job_detail::{JobDetailReply, ShowJobDetail},
    job_options::{
        FetchReport, JobOptionsReply, PutReport, PutReportReply, ReportPage, ShowJobOptions,
        StartWithOptions,
    },
    left_out::{LeftOutReply, ShowLeftOut},
    refresh::{ListRefreshIntervals, RefreshIntervalsReply, SetRefreshInterval},
    requests::{ListRequests, RequestsReply},
    selection::{RetryJob, SelectionReply, ShowSelection, StartSelected},
    session::Done,
    unused::{ShowUnused, StartUnused, UnusedReply},
};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure};

use super::{
    MetadataService, ServerEnvironment,
    answer::{Answer, Work, answer},
    client,
};
use crate::{hydration::Hydration, ops::Client};

/// A request that hydration answers.
pub(super) trait Hydrated: Request {
    /// Applies what the certificate of the caller says.
    fn restrict(&mut self, client: &Client);

    /// Answers it; paths begin at `top`.
    fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> impl Future<Output = Result<Self::Reply, Failure>> + Send + 'static;
}

impl MetadataService {
    /// Has hydration answer. It works in the background: what has begun goes on when the caller
    /// gives up.
    pub(super) fn hydrate<R: Hydrated>(&self, call: &IncomingCall) -> Result<Work<'_>, Failure> {
        let answered = answered::<R>(self.hydrated(restricted::<R>(call)?, call));
        Ok(Work::Other(Box::pin(self.in_background(answered))))
    }

    /// What hydration replies. Nothing is done of it before it is polled, so that more may be
    /// checked, and it ends with whoever polls it: see [`Self::in_background`].
    pub(super) fn hydrated<R: Hydrated>(
        &self,
        request: R,
        call: &IncomingCall,
    ) -> impl Future<Output = Result<R::Reply, Failure>> + Send + 'static + use<R> {
        let (hydration, top) = (self.hydration.clone(), client(call).subtree.unwrap_or_default());
        async move { request.answer(hydration, top).await }
    }
}

/// The request, as the certificate of its caller allows it.
pub(super) fn restricted<R: Hydrated>(call: &IncomingCall) -> Result<R, Failure> {
    let mut request = call.decode::<R>()?;
    request.restrict(&client(call));
    Ok(request)
}

/// The answer of a reply that is yet to come.
pub(super) fn answered<R: Request>(
    reply: impl Future<Output = Result<R::Reply, Failure>> + Send + 'static,
) -> BoxFuture<'static, Result<Answer, Failure>> {
    Box::pin(async move { Ok(answer::<R>(reply.await?)) })
}

impl Hydrated for AddLink {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<LinkReply, Failure> {
        let link = hydration.add_link(&self).await?;
        Ok(LinkReply { link })
    }
}

impl Hydrated for RemoveLink {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<Done, Failure> {
        hydration.remove_link(&self).await?;
        Ok(Done::default())
    }
}

impl Hydrated for ListRemovals {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<RemovalsReply, Failure> {
        let links = hydration.list_removals().await?;
        Ok(RemovalsReply { links })
    }
}

impl Hydrated for StartJob {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<JobReply, Failure> {
        let job = hydration.start_job(&top, &self).await?;
        Ok(JobReply { job })
    }
}

impl Hydrated for StartSelected {
    fn restrict(&mut self, client: &Client) {
        self.start.caller = client.caller(&self.start.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<JobReply, Failure> {
        let job = hydration.start_selected(&top, &self).await?;
        Ok(JobReply { job })
    }
}

impl Hydrated for StartWithOptions {
    fn restrict(&mut self, client: &Client) {
        self.start.caller = client.caller(&self.start.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<JobReply, Failure> {
        let job = hydration.start_with_options(&top, &self).await?;
        Ok(JobReply { job })
    }
}

impl Hydrated for StartUnused {
    fn restrict(&mut self, client: &Client) {
        self.job.start.caller = client.caller(&self.job.start.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<JobReply, Failure> {
        let job = hydration.start_unused(&top, &self).await?;
        Ok(JobReply { job })
    }
}

impl Hydrated for ShowUnused {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<UnusedReply, Failure> {
        hydration.show_unused(self.id).await
    }
}

impl Hydrated for StartByState {
    fn restrict(&mut self, client: &Client) {
        self.job.start.caller = client.caller(&self.job.start.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<JobReply, Failure> {
        let job = hydration.start_by_state(&top, &self).await?;
        Ok(JobReply { job })
    }
}

impl Hydrated for ShowStates {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<StatesReply, Failure> {
        hydration.show_states(self.id).await
    }
}

impl Hydrated for ShowJobOptions {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<JobOptionsReply, Failure> {
        hydration.show_job_options(self.id).await
    }
}

impl Hydrated for FetchReport {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<ReportPage, Failure> {
        hydration.fetch_report(&self).await
    }
}

impl Hydrated for PutReport {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<PutReportReply, Failure> {
        hydration.put_report(self).await
    }
}

impl Hydrated for AppendFiles {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<FilesReply, Failure> {
        hydration.append_files(self).await
    }
}

impl Hydrated for ShowJobDetail {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<JobDetailReply, Failure> {
        hydration.show_job_detail(self.id).await
    }
}

impl Hydrated for ListRequests {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<RequestsReply, Failure> {
        hydration.list_requests().await
    }
}

impl Hydrated for RetryJob {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<JobReply, Failure> {
        let job = hydration.retry_job(&self).await?;
        Ok(JobReply { job })
    }
}

impl Hydrated for ShowSelection {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<SelectionReply, Failure> {
        hydration.show_selection(self.id).await
    }
}

impl Hydrated for CancelJob {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<JobReply, Failure> {
        let job = hydration.cancel_job(&self).await?;
        Ok(JobReply { job })
    }
}

impl Hydrated for SetLinkOptions {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<LinkOptionsReply, Failure> {
        let links = vec![hydration.set_link_options(&self).await?];
        Ok(LinkOptionsReply { links })
    }
}

impl Hydrated for SetAutoExport {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<AutoExportsReply, Failure> {
        let links = hydration.set_auto_export(&self).await?;
        Ok(AutoExportsReply { links })
    }
}

impl Hydrated for ListAutoExports {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<AutoExportsReply, Failure> {
        let links = hydration.list_auto_exports().await?;
        Ok(AutoExportsReply { links })
    }
}

impl Hydrated for ShowLeftOut {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<LeftOutReply, Failure> {
        hydration.show_left_out(&top, &self).await
    }
}

impl Hydrated for SetRefreshInterval {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<RefreshIntervalsReply, Failure> {
        let links = hydration.set_refresh_interval(&self).await?;
        Ok(RefreshIntervalsReply { links })
    }
}

impl Hydrated for ListRefreshIntervals {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<RefreshIntervalsReply, Failure> {
        let links = hydration.list_refresh_intervals().await?;
        Ok(RefreshIntervalsReply { links })
    }
}

impl Hydrated for SetDeletePropagation {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<DeletePropagationReply, Failure> {
        let links = hydration.set_delete_propagation(&self).await?;
        Ok(DeletePropagationReply { links })
    }
}

impl Hydrated for ListDeletePropagation {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<DeletePropagationReply, Failure> {
        let links = hydration.list_delete_propagation().await?;
        Ok(DeletePropagationReply { links })
    }
}

impl Hydrated for ListUploads {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<UploadsReply, Failure> {
        hydration.list_uploads(&self).await
    }
}

impl Hydrated for ListLinkOptions {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<LinkOptionsReply, Failure> {
        let links = hydration.list_link_options().await?;
        Ok(LinkOptionsReply { links })
    }
}

impl Hydrated for ResolveConflict {
    fn restrict(&mut self, client: &Client) {
        self.caller = client.caller(&self.caller);
    }

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        top: PathBytes,
    ) -> Result<ResolveReply, Failure> {
        hydration.resolve_conflict(&top, &self).await
    }
}

impl Hydrated for ReportChanged {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<Done, Failure> {
        if self.contents.len() > CHANGED_CONTENTS_MAX {
            let text = format!("a report names at most {CHANGED_CONTENTS_MAX} contents");
            return Err(Failure::new(ErrorKind::InvalidArgument, text));
        }
        hydration.note_changed(&self.contents);
        Ok(Done::default())
    }
}

impl Hydrated for ReportMisses {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<Done, Failure> {
        if self.misses.len() > MISSES_MAX {
            let text = format!("a report names at most {MISSES_MAX} misses");
            return Err(Failure::new(ErrorKind::InvalidArgument, text));
        }
        hydration.note_misses(&self.misses);
        Ok(Done::default())
    }
}

impl Hydrated for SetFetchPolicy {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<FetchPoliciesReply, Failure> {
        let links = hydration.set_fetch_policy(&self).await?;
        Ok(FetchPoliciesReply { links })
    }
}

impl Hydrated for ListFetchPolicies {
    fn restrict(&mut self, _: &Client) {}

    async fn answer(
        self,
        hydration: Hydration<ServerEnvironment>,
        _: PathBytes,
    ) -> Result<FetchPoliciesReply, Failure> {
        let links = hydration.list_fetch_policies().await?;
        Ok(FetchPoliciesReply { links })
    }
}
