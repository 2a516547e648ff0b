//! Starting and cancelling jobs: what a client may do with them, and how it sees them.

use std::{pin::pin, time::Duration};

use futures::future::BoxFuture;
use millrace_protocol::{
    Request,
    admin::{AWAIT_JOB_MAX_MS, AwaitJob, CancelJob, JobReply, StartJob},
    by_state::{ShowStates, StartByState},
    job_detail::ShowJobDetail,
    job_options::{FetchReport, JobOptions, PutReport, ShowJobOptions, StartWithOptions},
    job_waits::ShowJobWaits,
    selection::{RetryJob, ShowSelection, StartSelected},
    session::Role,
    unused::{ShowUnused, StartUnused},
};
use millrace_transport::IncomingCall;
use millrace_types::{ErrorKind, Failure, JobId};
use tokio::time::Instant;

use super::{
    MetadataService,
    answer::{Work, other},
    client,
    hydrate::{Hydrated, answered, restricted},
};
use crate::ops::job;

/// A request that starts a job.
pub(super) trait Starts: Hydrated + Request<Reply = JobReply> {
    /// How it is to be done, if that is said.
    fn options(&self) -> Option<&JobOptions>;
}

impl Starts for StartJob {
    fn options(&self) -> Option<&JobOptions> {
        None
    }
}

impl Starts for StartSelected {
    fn options(&self) -> Option<&JobOptions> {
        None
    }
}

impl Starts for StartWithOptions {
    fn options(&self) -> Option<&JobOptions> {
        Some(&self.options)
    }
}

impl Starts for StartUnused {
    fn options(&self) -> Option<&JobOptions> {
        Some(&self.job.options)
    }
}

impl Starts for StartByState {
    fn options(&self) -> Option<&JobOptions> {
        Some(&self.job.options)
    }
}

/// A request about one job. One that the client may not see is not there for it.
pub(super) trait AboutJob: Hydrated {
    /// Which.
    fn id(&self) -> JobId;
}

macro_rules! about_job {
    ($($request:ty),*) => {
        $(impl AboutJob for $request {
            fn id(&self) -> JobId {
                self.id
            }
        })*
    };
}

about_job!(
    FetchReport,
    PutReport,
    ShowJobDetail,
    ShowJobOptions,
    ShowJobWaits,
    ShowSelection,
    ShowStates,
    ShowUnused
);

impl MetadataService {
    pub(super) fn start<'a, R: Starts>(
        &'a self,
        call: &'a IncomingCall,
    ) -> Result<Work<'a>, Failure> {
        let request = restricted::<R>(call)?;
        if let Some(options) = request.options() {
            check_destination(call, options)?;
        }
        let started = Box::pin(self.hydrated(request, call));
        Ok(other::<R>(self.started(call, started)))
    }

    async fn started(
        &self,
        call: &IncomingCall,
        started: BoxFuture<'static, Result<JobReply, Failure>>,
    ) -> Result<JobReply, Failure> {
        let reply = self.in_background(started).await?;
        self.seen(call, reply.job.id).await
    }

    pub(super) fn about_job<'a, R: AboutJob>(
        &'a self,
        call: &'a IncomingCall,
    ) -> Result<Work<'a>, Failure> {
        let request = restricted::<R>(call)?;
        let (id, about) = (request.id(), answered::<R>(self.hydrated(request, call)));
        Ok(Work::Other(Box::pin(self.if_seen(call, id, about))))
    }

    async fn if_seen<T: Send + 'static>(
        &self,
        call: &IncomingCall,
        id: JobId,
        work: BoxFuture<'static, Result<T, Failure>>,
    ) -> Result<T, Failure> {
        self.seen(call, id).await?;
        self.in_background(work).await
    }

    pub(super) fn retry_job<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        let request = restricted::<RetryJob>(call)?;
        let id = request.id;
        let retried = Box::pin(self.hydrated(request, call));
        Ok(other::<RetryJob>(async move {
            self.seen(call, id).await?;
            check_destination(call, &self.hydration.show_job_options(id).await?.options)?;
            self.started(call, retried).await
        }))
    }

    pub(super) fn cancel_job<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        let request = restricted::<CancelJob>(call)?;
        let id = request.id;
        let cancelled = Box::pin(self.hydrated(request, call));
        Ok(other::<CancelJob>(async move {
            self.if_seen(call, id, cancelled).await?;
            self.seen(call, id).await
        }))
    }

    /// Answers when a job has ended, or when it has been long enough.
    pub(super) fn await_job<'a>(&'a self, call: &'a IncomingCall) -> Result<Work<'a>, Failure> {
        let request = call.decode::<AwaitJob>()?;
        Ok(other::<AwaitJob>(self.ended(call, request)))
    }

    async fn ended(&self, call: &IncomingCall, request: AwaitJob) -> Result<JobReply, Failure> {
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
