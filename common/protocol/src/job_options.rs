//! How jobs are done: which first, how fast, and what is kept of them.

use millrace_types::{ErrorKind, Failure, JobId};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    admin::{JobKind, StartJob},
    cluster::Bucket,
    file_list::FileListId,
    selection::Selection,
    session::Caller,
};

/// How a job is done, whatever it works on.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct JobOptions {
    /// An export of a directory below one link ends with a manifest of all that it put there, in
    /// the bucket; or, when a file could not be exported, without one.
    pub atomic: bool,
    /// Of the jobs that wait, those with the highest begin first, and the oldest of these. What is
    /// under way goes on. From -[`PRIORITY_MAX`] to [`PRIORITY_MAX`].
    pub priority: i8,
    /// The most bytes a second that are moved between bucket and targets for it, on average from
    /// its start on; at least [`BYTES_PER_SECOND_MIN`]. Only of what moves bytes.
    pub bytes_per_second: Option<u64>,
    /// Whether what becomes of each file is written down, for [`FetchReport`].
    pub report: bool,
    /// The files that it works on, with all below the directories among them, instead of the whole
    /// tree.
    pub files: Option<FileListId>,
    /// An export goes to another place than its link's, and changes nothing here. For operators
    /// alone, since the servers' credentials write there.
    pub destination: Option<Destination>,
}

/// Where the files of an export are put instead of their link's bucket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Destination {
    /// The bucket, and what every key begins with; the path below the top of the job follows.
    pub bucket: Bucket,
    /// Whether objects that no such export made are replaced too.
    pub overwrite: bool,
}

/// The highest priority; its negative is the lowest.
pub const PRIORITY_MAX: i8 = 10;

/// The least bytes a second that a job can be held to: below it, a part of an object would take
/// longer than a bucket waits.
pub const BYTES_PER_SECOND_MIN: u64 = 64 * 1024;

/// Starts a job that is done in some way of its own.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StartWithOptions {
    /// The job.
    pub start: StartJob,
    /// Which files; of an import, all.
    pub selection: Selection,
    /// Nothing is done: what would be is counted as found, and nothing as done.
    pub dry_run: bool,
    /// How.
    pub options: JobOptions,
}

/// Asks how a job is done.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowJobOptions {
    /// The job.
    pub id: JobId,
}

/// How a job is done.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobOptionsReply {
    /// Its options.
    pub options: JobOptions,
}

/// Asks for a part of a job's report.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FetchReport {
    /// For whom: who started the job, or root.
    pub caller: Caller,
    /// A job that has ended.
    pub id: JobId,
    /// Where to go on, in bytes: 0, then [`ReportPage::next`].
    pub offset: u64,
}

/// The most bytes of one page of a report.
pub const REPORT_PAGE_MAX: usize = 256 * 1024;

/// Whole lines of a job's report.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ReportPage {
    /// JSON objects, each on a line of its own.
    pub lines: Vec<u8>,
    /// Where the next page begins; `None` behind the last.
    pub next: Option<u64>,
}

/// Has the server put a job's report into a bucket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PutReport {
    /// For whom: who started the job, or root.
    pub caller: Caller,
    /// A job that has ended.
    pub id: JobId,
    /// Where: a key, below the prefix of the link in which the job's directory lies; or the URL of
    /// an object in the bucket of any link.
    pub to: String,
    /// As a table (CSV) instead of JSON lines.
    pub table: bool,
}

/// Where a report is now.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PutReportReply {
    /// The object.
    pub url: String,
    /// Its bytes.
    pub size: u64,
}

impl JobOptions {
    /// Checks them against what the job is.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`], which says what is wrong.
    pub fn check(&self, kind: JobKind, is_whole: bool) -> Result<(), Failure> {
        let wrong = |words: String| Err(Failure::new(ErrorKind::InvalidArgument, words));
        if kind == JobKind::Import && self.files.is_some() {
            return wrong(
                "an import lists whole directories: it takes no list of files".to_owned(),
            );
        }
        let is_whole = is_whole && self.files.is_none();
        if self.atomic && (kind != JobKind::Export || !is_whole) {
            return wrong("only an export of a whole directory ends with a manifest".to_owned());
        }
        if self.destination.is_some() && kind != JobKind::Export {
            return wrong("only an export has a destination".to_owned());
        }
        if !(-PRIORITY_MAX..=PRIORITY_MAX).contains(&self.priority) {
            return wrong(format!("a priority is from -{PRIORITY_MAX} to {PRIORITY_MAX}"));
        }
        let Some(rate) = self.bytes_per_second else { return Ok(()) };
        if !matches!(kind, JobKind::Hydrate | JobKind::Export) {
            return wrong("only hydrate and export move bytes that a rate could bound".to_owned());
        }
        if rate < BYTES_PER_SECOND_MIN {
            return wrong(format!("a rate is at least {BYTES_PER_SECOND_MIN} bytes a second"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_that_a_job_cannot_keep_are_refused() {
        let check = |options: JobOptions, kind| options.check(kind, true).is_ok();
        let atomic = JobOptions { atomic: true, ..JobOptions::default() };
        assert!(check(atomic.clone(), JobKind::Export) && !check(atomic.clone(), JobKind::Hydrate));
        assert!(atomic.check(JobKind::Export, false).is_err(), "of a part of a tree");
        let files = JobOptions { files: Some(FileListId(1)), ..JobOptions::default() };
        assert!(check(files.clone(), JobKind::Release) && !check(files.clone(), JobKind::Import));
        assert!(!check(JobOptions { atomic: true, ..files }, JobKind::Export));
        let bucket =
            Bucket { url: "s3://b/p".to_owned(), endpoint: None, region: None, credentials: None };
        let destination = Some(Destination { bucket, overwrite: false });
        let elsewhere = JobOptions { destination, ..JobOptions::default() };
        assert!(elsewhere.check(JobKind::Export, false).is_ok());
        assert!(elsewhere.check(JobKind::Hydrate, true).is_err());
        let priority = |priority| JobOptions { priority, ..JobOptions::default() };
        assert!(check(priority(-10), JobKind::Import) && check(priority(10), JobKind::Import));
        assert!(!check(priority(-11), JobKind::Import) && !check(priority(11), JobKind::Import));
        let rate = |rate| JobOptions { bytes_per_second: Some(rate), ..JobOptions::default() };
        assert!(check(rate(BYTES_PER_SECOND_MIN), JobKind::Hydrate));
        assert!(check(rate(u64::MAX), JobKind::Export));
        assert!(!check(rate(BYTES_PER_SECOND_MIN - 1), JobKind::Hydrate));
        assert!(!check(rate(1 << 30), JobKind::Release) && !check(rate(1 << 30), JobKind::Import));
    }
}
