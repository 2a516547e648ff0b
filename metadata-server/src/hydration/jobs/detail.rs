//! More of a job than its counts: what it asked buckets, and how far it is in each directory. From
//! memory while it works; recorded every few seconds, and as it ends.

use std::sync::{Arc, OnceLock};

use millrace_object_source::Tally;
use millrace_protocol::{job_detail::JobDetail, job_waits::JobWait, requests::RequestCounts};
use millrace_types::{Failure, JobId};

use super::{Environment, Jobs, patience::Patience, progress::Progress};
use crate::{
    command::{Command, NoteJobDetail},
    hydration::{
        destination::prefix_of,
        import::{broken, linked_anywhere, spec_of},
        report::origin_of,
    },
    namespace::tree,
    store::{
        keys,
        records::{self, JobDetailRecord},
    },
};

/// What is counted of a job at work.
#[derive(Debug, Default)]
pub(super) struct Work {
    pub(super) progress: Progress,
    pub(super) tally: Tally,
    /// What it knows of buckets that may be away.
    pub(super) patience: Patience,
    /// What it asked before the server was restarted.
    before: OnceLock<RequestCounts>,
}

impl Work {
    fn requests(&self) -> RequestCounts {
        let counters = self.tally.counters();
        let (received, sent) = (counters.bytes_received(), counters.bytes_sent());
        let mut requests =
            RequestCounts::new(counters.by_class(), counters.failures(), received, sent);
        requests.add(&self.before.get().copied().unwrap_or_default());
        requests
    }

    fn detail(&self) -> JobDetail {
        let (directories, others) = self.progress.directories();
        JobDetail { requests: self.requests(), directories, others }
    }
}

impl<E: Environment> Jobs<E> {
    /// What a job asked buckets, and how far it is in each directory: of one that waits, as it was
    /// when the server was restarted.
    ///
    /// # Errors
    /// That the server is busy or shutting down.
    pub async fn detail(&self, id: JobId) -> Result<JobDetail, Failure> {
        let work = self.running().get(&id).map(|running| Arc::clone(&running.work));
        match work {
            Some(work) if work.before.get().is_some() => Ok(work.detail()),
            _ => self.recorded(id).await,
        }
    }

    /// The buckets that a job waits for, because nobody answers there.
    pub fn waits(&self, id: JobId) -> Vec<JobWait> {
        let work = self.running().get(&id).map(|running| Arc::clone(&running.work));
        work.map(|work| work.patience.waits()).unwrap_or_default()
    }

    /// The URL of what a job's directory shows of a bucket, or of its file's object.
    ///
    /// # Errors
    /// [`ErrorKind::NotFound`](millrace_types::ErrorKind::NotFound).
    pub async fn source(&self, id: JobId) -> Result<Option<String>, Failure> {
        let root = self.record(id).await?.root;
        let query = self.environment.read(move |view| tree::find(view, root).map_err(broken));
        let Some(inode) = query.await? else { return Ok(None) };
        if let Some((url, _)) = origin_of(&*self.environment, &inode).await? {
            return Ok(Some(url));
        }
        let query = self.environment.read(move |view| {
            let (linked, prefix) = (linked_anywhere(view, root)?, prefix_of(view, root)?);
            let Some((linked, prefix)) = linked.zip(prefix) else { return Ok(None) };
            Ok(Some(spec_of(&linked.bucket)?.url_of(&prefix)))
        });
        query.await
    }

    /// Goes on with what was counted before.
    pub(super) async fn resume_detail(&self, id: JobId, work: &Work) {
        // Of a server that is shutting down nothing is recorded any more either.
        let before = self.recorded(id).await.unwrap_or_default();
        work.before.get_or_init(|| before.requests);
    }

    /// Records the requests so far, and how far each directory is once the job `has_ended`.
    pub(super) async fn record_detail(&self, id: JobId, work: &Work, has_ended: bool) {
        let detail = match has_ended {
            true => work.detail(),
            false => JobDetail { requests: work.requests(), ..JobDetail::default() },
        };
        let command = Command::NoteJobDetail(Box::new(NoteJobDetail { id, detail }));
        if let Err(failure) = self.environment.execute(command, false).await {
            tracing::debug!(job = id.0, %failure, "what a job asked is not recorded");
        }
    }

    async fn recorded(&self, id: JobId) -> Result<JobDetail, Failure> {
        let query = self.environment.read(move |view| {
            let record: Option<JobDetailRecord> =
                records::read(view, &keys::job_detail(id)).map_err(broken)?;
            Ok(record.map(|record| record.detail).unwrap_or_default())
        });
        query.await
    }
}
