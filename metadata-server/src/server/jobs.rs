//! Starting and cancelling jobs: what a client may do with them, and how it sees them.

use std::{pin::pin, time::Duration};

use millrace_protocol::{
    admin::{AWAIT_JOB_MAX_MS, AwaitJob, CancelJob, JobReply, StartJob},
    job_detail::ShowJobDetail,
    job_options::{FetchReport, JobOptions, PutReport, ShowJobOptions, StartWithOptions},
    selection::{RetryJob, ShowSelection, StartSelected},
    session::Role,
    unused::{ShowUnused, StartUnused},
};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure, JobId};
use tokio::time::Instant;

use super::{MetadataService, client, respond};
use crate::ops::job;

impl MetadataService {
    pub(super) async fn start_job(&self, call: IncomingCall) {
        let result = match self.hydrated::<StartJob>(&call).await {
            Ok(reply) => self.seen(&call, reply.job.id).await,
            Err(failure) => Err(failure),
        };
        respond::<StartJob>(call, result).await;
    }

    pub(super) async fn start_selected(&self, call: IncomingCall) {
        let result = match self.hydrated::<StartSelected>(&call).await {
            Ok(reply) => self.seen(&call, reply.job.id).await,
            Err(failure) => Err(failure),
        };
        respond::<StartSelected>(call, result).await;
    }

    pub(super) async fn start_with_options(&self, call: IncomingCall) {
        let result = async {
            let options = call.decode::<StartWithOptions>()?.options;
            check_destination(&call, &options)?;
            let reply = self.hydrated::<StartWithOptions>(&call).await?;
            self.seen(&call, reply.job.id).await
        };
        let result = result.await;
        respond::<StartWithOptions>(call, result).await;
    }

    pub(super) async fn start_unused(&self, call: IncomingCall) {
        let result = async {
            let options = call.decode::<StartUnused>()?.job.options;
            check_destination(&call, &options)?;
            let reply = self.hydrated::<StartUnused>(&call).await?;
            self.seen(&call, reply.job.id).await
        };
        let result = result.await;
        respond::<StartUnused>(call, result).await;
    }

    pub(super) async fn show_unused(&self, call: IncomingCall) {
        let result = async {
            let id = call.decode::<ShowUnused>()?.id;
            self.seen(&call, id).await?;
            self.hydrated::<ShowUnused>(&call).await
        };
        let result = result.await;
        respond::<ShowUnused>(call, result).await;
    }

    pub(super) async fn show_job_options(&self, call: IncomingCall) {
        let result = async {
            let id = call.decode::<ShowJobOptions>()?.id;
            self.seen(&call, id).await?;
            self.hydrated::<ShowJobOptions>(&call).await
        };
        let result = result.await;
        respond::<ShowJobOptions>(call, result).await;
    }

    pub(super) async fn show_job_detail(&self, call: IncomingCall) {
        let result = async {
            let id = call.decode::<ShowJobDetail>()?.id;
            self.seen(&call, id).await?;
            self.hydrated::<ShowJobDetail>(&call).await
        };
        let result = result.await;
        respond::<ShowJobDetail>(call, result).await;
    }

    pub(super) async fn put_report(&self, call: IncomingCall) {
        let result = async {
            let id = call.decode::<PutReport>()?.id;
            self.seen(&call, id).await?;
            self.hydrated::<PutReport>(&call).await
        };
        let result = result.await;
        respond::<PutReport>(call, result).await;
    }

    pub(super) async fn fetch_report(&self, call: IncomingCall) {
        let result = async {
            let id = call.decode::<FetchReport>()?.id;
            self.seen(&call, id).await?;
            self.hydrated::<FetchReport>(&call).await
        };
        let result = result.await;
        respond::<FetchReport>(call, result).await;
    }

    pub(super) async fn retry_job(&self, call: IncomingCall) {
        let result = async {
            let id = call.decode::<RetryJob>()?.id;
            self.seen(&call, id).await?;
            check_destination(&call, &self.hydration.show_job_options(id).await?.options)?;
            let reply = self.hydrated::<RetryJob>(&call).await?;
            self.seen(&call, reply.job.id).await
        };
        let result = result.await;
        respond::<RetryJob>(call, result).await;
    }

    pub(super) async fn show_selection(&self, call: IncomingCall) {
        let result = async {
            let id = call.decode::<ShowSelection>()?.id;
            self.seen(&call, id).await?;
            self.hydrated::<ShowSelection>(&call).await
        };
        let result = result.await;
        respond::<ShowSelection>(call, result).await;
    }

    pub(super) async fn cancel_job(&self, call: IncomingCall) {
        let result = async {
            let id = call.decode::<CancelJob>()?.id;
            // One that the client may not see is not there for it.
            self.seen(&call, id).await?;
            self.hydrated::<CancelJob>(&call).await?;
            self.seen(&call, id).await
        };
        let result = result.await;
        respond::<CancelJob>(call, result).await;
    }

    /// Answers when a job has ended, or when it has been long enough.
    pub(super) async fn await_job(&self, call: IncomingCall) {
        let result = match call.decode::<AwaitJob>() {
            Ok(request) => self.ended(&call, &request).await,
            Err(failure) => Err(failure),
        };
        respond::<AwaitJob>(call, result).await;
    }

    async fn ended(&self, call: &IncomingCall, request: &AwaitJob) -> Result<JobReply, Failure> {
        let patience = request.patience_ms.min(AWAIT_JOB_MAX_MS);
        let limit = Instant::now() + Duration::from_millis(patience.into());
        loop {
            // From before it is looked at: an end in between is not missed.
            let mut ends = pin!(self.hydration.job_ends().notified());
            ends.as_mut().enable();
            let reply = self.seen(call, request.id).await?;
            if reply.job.state.is_final() || Instant::now() >= limit {
                return Ok(reply);
            }
            tokio::select! {
                () = ends => {}
                () = tokio::time::sleep_until(limit) => {}
                () = self.shutdown.draining() => return Ok(reply),
            }
        }
    }

    async fn seen(&self, call: &IncomingCall, id: JobId) -> Result<JobReply, Failure> {
        let client = client(call);
        let job = self.engine.turn(move |core| job::find(core, &client, id)).await?;
        Ok(JobReply { job })
    }
}

/// The servers' credentials would write wherever a user of a mount likes.
fn check_destination(call: &IncomingCall, options: &JobOptions) -> Result<(), Failure> {
    if options.destination.is_none() || client(call).role == Role::Admin {
        return Ok(());
    }
    let words = "only an operator exports to another place than the link's";
    Err(Failure::new(ErrorKind::NotPermitted, words))
}
