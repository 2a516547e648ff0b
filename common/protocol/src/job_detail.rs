//! More of a job than its counts: what it asked buckets, and how far it is in each directory.

use millrace_types::JobId;
use rkyv::{Archive, Deserialize, Serialize};

use crate::requests::RequestCounts;

/// Asks for more of a job.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowJobDetail {
    /// The job.
    pub id: JobId,
}

/// More of a job, and of what it works with.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobDetailReply {
    /// The job.
    pub detail: JobDetail,
    /// Targets of the cluster, among which its files lie.
    pub targets: u32,
    /// What its directory shows of a bucket, or its file's object, as a URL; none outside of links.
    pub source: Option<String>,
}

/// More of a job.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct JobDetail {
    /// What its work asked buckets, from the metadata server and from targets, over restarts.
    pub requests: RequestCounts,
    /// How far it is, by the directories right below its own, in the order in which it found them:
    /// the first [`DIRECTORIES_MAX`] of them.
    pub directories: Vec<DirectoryProgress>,
    /// What lies in further directories, together.
    pub others: DirectoryProgress,
}

/// How far a job is in one directory with all below it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct DirectoryProgress {
    /// Its name in the job's directory; empty for what lies in no directory there.
    pub name: Vec<u8>,
    /// Files found.
    pub files_total: u64,
    /// Files done.
    pub files_done: u64,
    /// Bytes of the files found.
    pub bytes_total: u64,
    /// Bytes done, also of files that are not yet.
    pub bytes_done: u64,
    /// Files and directories that failed.
    pub errors: u64,
}

/// Directories of a job that are told apart.
pub const DIRECTORIES_MAX: usize = 256;
