//! Jobs over what nobody has used for a while.

use millrace_types::JobId;
use rkyv::{Archive, Deserialize, Serialize};

use crate::job_options::StartWithOptions;

/// Starts a job over those files that nobody has read or changed for so long, as far as mounts have
/// told: see [`ACCESS_STEP_SECONDS`].
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StartUnused {
    /// The job, and which files otherwise; any but an import.
    pub job: StartWithOptions,
    /// The least seconds from the last use of a file to the job's start.
    pub seconds: u64,
}

/// Asks for how long nobody has used what a job works on.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowUnused {
    /// The job.
    pub id: JobId,
}

/// For how long nobody has used what a job works on.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UnusedReply {
    /// In seconds; none for a job that does not look at that.
    pub seconds: Option<u64>,
}

/// A time of access may be so many seconds older than the last read: like Linux's `relatime`,
/// mounts move it once a day.
pub const ACCESS_STEP_SECONDS: u64 = 24 * 60 * 60;
