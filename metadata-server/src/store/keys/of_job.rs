//! Keys of what is recorded of a job besides the job.

use millrace_types::JobId;

/// What a job works on, if that is not all of its tree.
#[must_use]
pub fn selection(job: JobId) -> Vec<u8> {
    of_job(b'd', job)
}

/// An export that ends with a manifest, from before jobs had options.
#[must_use]
pub fn publication(job: JobId) -> Vec<u8> {
    of_job(b'i', job)
}

/// How a job is done, if that is in some way of its own.
#[must_use]
pub fn job_options(job: JobId) -> Vec<u8> {
    of_job(b'j', job)
}

/// For how long nobody has used what a job works on, if it looks at that.
#[must_use]
pub fn unused(job: JobId) -> Vec<u8> {
    of_job(b'q', job)
}

/// In which states files must be that a job works on, if it looks at that.
#[must_use]
pub fn states(job: JobId) -> Vec<u8> {
    of_job(b's', job)
}

/// What a job asked buckets, and how far it is in each directory.
#[must_use]
pub fn job_detail(job: JobId) -> Vec<u8> {
    of_job(b'o', job)
}

fn of_job(table: u8, job: JobId) -> Vec<u8> {
    [&[table][..], &job.0.to_be_bytes()].concat()
}
