//! Commands of jobs and exports.

use millrace_protocol::{
    admin::{FileState, Job, JobFailure, JobState},
    capability::Origin,
    cluster::Bucket,
    job_detail::JobDetail,
    job_options::JobOptions,
    selection::Selection,
    session::Caller,
};
use millrace_types::{ChangeCount, ContentGeneration, InodeId, JobId, LinkId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

/// Takes a job into the queue.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AddJob {
    /// The job; its id is given by apply, and when it was asked for, unless it goes on with an
    /// earlier one: then it has the time of that one.
    pub job: Job,
    /// Who asked for it.
    pub caller: Caller,
    /// The top of its tree.
    pub root: InodeId,
}

impl AddJob {
    /// Whether the job goes on with an earlier one.
    pub(crate) fn goes_on(&self) -> bool {
        self.job.started != Timestamp(0)
    }
}

/// Takes a job over a part of its tree into the queue.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AddSelectedJob {
    /// The job.
    pub add: AddJob,
    /// Which files.
    pub selection: Selection,
    /// Whether nothing is done.
    pub dry_run: bool,
}

/// Takes a job that is done in some way of its own into the queue.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AddJobWithOptions {
    /// The job, and which files.
    pub selected: AddSelectedJob,
    /// How.
    pub options: JobOptions,
}

/// Takes a job over what nobody has used for a while into the queue.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AddUnusedJob {
    /// The job, which files otherwise, and how.
    pub job: AddJobWithOptions,
    /// The least seconds from the last use of a file to the job's start.
    pub seconds: u64,
}

/// Takes a job over the files in some states into the queue.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AddJobByState {
    /// The job, which files otherwise, and how.
    pub job: AddJobWithOptions,
    /// The least seconds from the last use of a file to the job's start, if it looks at that.
    pub unused: Option<u64>,
    /// The states.
    pub states: Vec<FileState>,
}

/// What a job asked buckets, and how far it is in each directory; replaces what was recorded.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct NoteJobDetail {
    /// The job.
    pub id: JobId,
    /// Counts are absolute, so that a repeated one changes nothing.
    pub detail: JobDetail,
}

/// How far a job is. Counts are absolute, so that a repeated one changes nothing.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UpdateJob {
    /// The job.
    pub id: JobId,
    /// Where it stands now; `None` leaves it (also when it ended meanwhile).
    pub state: Option<JobState>,
    /// Files done, files found, bytes done, bytes found, files failed.
    pub counts: JobCounts,
    /// The first failures; replaces what was kept.
    pub failures: Vec<JobFailure>,
}

/// Counts of a job.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct JobCounts {
    /// Files done.
    pub files_done: u64,
    /// Files found so far.
    pub files_total: u64,
    /// Bytes done.
    pub bytes_done: u64,
    /// Bytes found so far.
    pub bytes_total: u64,
    /// Files that failed.
    pub errors: u64,
}

impl JobCounts {
    /// Those of a job as people see it.
    pub(crate) fn of(job: &Job) -> Self {
        Self {
            files_done: job.files_done,
            files_total: job.files_total,
            bytes_done: job.bytes_done,
            bytes_total: job.bytes_total,
            errors: job.errors,
        }
    }
}

/// Freezes a file for its upload. Refused while somebody has it open for writing.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct BeginExport {
    /// The file.
    pub inode: InodeId,
    /// For this job.
    pub job: JobId,
    /// The export's own id.
    pub export: u128,
    /// To this link.
    pub link: LinkId,
    /// The object's whole key.
    pub key: String,
    /// The tag that the key has, if it has one.
    pub replaces: Option<String>,
    /// Bytes of each part.
    pub part_size: u64,
}

/// The object stands in the bucket: the file becomes exported if it has not changed meanwhile.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CompleteExport {
    /// The file.
    pub inode: InodeId,
    /// The export.
    pub export: u128,
    /// The object's new version.
    pub origin: Origin,
}

/// An upload by parts to a bucket that no link leads to: before it is begun, and again when the
/// bucket has named it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RecordCopy {
    /// For this job.
    pub job: JobId,
    /// The file.
    pub inode: InodeId,
    /// The bucket.
    pub bucket: Bucket,
    /// The object's whole key.
    pub key: String,
    /// The content that is sent.
    pub generation: ContentGeneration,
    /// What the inode shows.
    pub change_count: ChangeCount,
    /// Bytes.
    pub size: u64,
    /// Bytes of each part but the last.
    pub part_size: u64,
    /// The upload, once it has a name.
    pub upload_id: Option<String>,
}
