//! What a job waits for: buckets at which nobody answers.

use millrace_types::{Failure, JobId};
use rkyv::{Archive, Deserialize, Serialize};

/// Asks what a job waits for.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowJobWaits {
    /// The job.
    pub id: JobId,
}

/// What a job waits for at this moment.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobWaitsReply {
    /// By the names of buckets; empty for a job that waits for none.
    pub waits: Vec<JobWait>,
}

/// A bucket that a job waits for.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobWait {
    /// Its URL, without a prefix.
    pub bucket: String,
    /// For how long nobody has answered, in seconds.
    pub seconds: u64,
    /// In how many seconds the job asks again; 0 when it is about to, or does.
    pub next_seconds: u64,
    /// In how many seconds it gives up.
    pub seconds_left: u64,
    /// Why it waits.
    pub failure: Failure,
}
