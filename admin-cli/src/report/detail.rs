//! What a job asked buckets, how far each directory is and how fast the job, as printed.

use std::time::Duration;

use indicatif::HumanDuration;
use millrace_protocol::{
    admin::{Job, JobKind},
    job_detail::{DirectoryProgress, JobDetail},
    requests::RequestCounts,
};
use millrace_types::ByteLen;
use serde::Serialize;

use crate::output::{counted, render, table};

/// What a bucket was asked, by kind.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct CountsReport {
    pub(crate) list: u64,
    pub(crate) head: u64,
    pub(crate) get: u64,
    pub(crate) put: u64,
    pub(crate) part: u64,
    pub(crate) upload: u64,
    pub(crate) other: u64,
    pub(crate) failed: u64,
    pub(crate) received_bytes: u64,
    pub(crate) sent_bytes: u64,
}

/// How far a job is in one directory with all below it.
#[derive(Serialize, Clone, PartialEq, Eq, Debug)]
pub(crate) struct DirectoryReport {
    /// In the job's directory; empty for what lies in none there.
    pub(crate) name: String,
    pub(crate) files_done: u64,
    pub(crate) files_total: u64,
    pub(crate) bytes_done: u64,
    pub(crate) bytes_total: u64,
    pub(crate) errors: u64,
}

/// The directories of a job.
#[derive(Serialize, PartialEq, Eq, Debug)]
pub(crate) struct DirectoriesReport {
    pub(crate) directories: Vec<DirectoryReport>,
    /// Further ones, together; null where there are none.
    pub(crate) other_directories: Option<DirectoryReport>,
}

/// How fast a job is, and how long what it has found takes at that.
#[derive(Serialize, Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct PaceReport {
    pub(crate) bytes_per_second: u64,
    pub(crate) seconds_left: u64,
}

impl CountsReport {
    /// In words: what there is none of is left out.
    pub(crate) fn words(&self) -> String {
        let kinds = [
            (self.list, "LIST"),
            (self.head, "HEAD"),
            (self.get, "GET"),
            (self.put, "PUT"),
            (self.part, "part"),
            (self.upload, "upload"),
            (self.other, "other"),
        ];
        let told = kinds.iter().filter(|(count, _)| *count > 0);
        let told: Vec<_> = told.map(|(count, kind)| format!("{count} {kind}")).collect();
        match (told.is_empty(), self.failed) {
            (true, _) => "nothing".to_owned(),
            (false, 0) => told.join(", "),
            (false, failed) => format!("{} ({failed} failed)", told.join(", ")),
        }
    }
}

impl From<RequestCounts> for CountsReport {
    fn from(counts: RequestCounts) -> Self {
        let RequestCounts { list, head, get, put, part, upload, other, failed, .. } = counts;
        let RequestCounts { received_bytes, sent_bytes, .. } = counts;
        Self { list, head, get, put, part, upload, other, failed, received_bytes, sent_bytes }
    }
}

impl From<&DirectoryProgress> for DirectoryReport {
    fn from(progress: &DirectoryProgress) -> Self {
        Self {
            name: name_text(&progress.name),
            files_done: progress.files_done,
            files_total: progress.files_total,
            bytes_done: progress.bytes_done,
            bytes_total: progress.bytes_total,
            errors: progress.errors,
        }
    }
}

/// A name for people: what is no UTF-8 is escaped.
fn name_text(name: &[u8]) -> String {
    match std::str::from_utf8(name) {
        Ok(text) => text.to_owned(),
        Err(_) => name.escape_ascii().to_string(),
    }
}

impl DirectoriesReport {
    /// The directories by name.
    pub(crate) fn of(detail: &JobDetail) -> Self {
        let mut directories: Vec<_> =
            detail.directories.iter().map(DirectoryReport::from).collect();
        directories.sort_by(|one, other| one.name.cmp(&other.name));
        let others = (detail.others != DirectoryProgress::default()).then_some(&detail.others);
        Self { directories, other_directories: others.map(DirectoryReport::from) }
    }

    /// A table.
    pub(crate) fn words(&self) -> String {
        let mut rows = table(&["DIRECTORY", "FILES", "BYTES", "DONE", "ERRORS"]);
        let own = self.directories.iter().map(|row| match row.name.as_str() {
            "" => (".", row),
            name => (name, row),
        });
        let others = self.other_directories.iter().map(|row| ("(others)", row));
        for (name, row) in own.chain(others) {
            let percent = match (row.bytes_total, row.files_total) {
                (0, 0) => 100,
                (0, files) => u128::from(row.files_done) * 100 / u128::from(files),
                (bytes, _) => u128::from(row.bytes_done) * 100 / u128::from(bytes),
            };
            rows.add_row([
                name.to_owned(),
                format!("{} of {}", row.files_done, counted(row.files_total, "file")),
                format!("{} of {}", ByteLen(row.bytes_done), ByteLen(row.bytes_total)),
                format!("{percent} %"),
                row.errors.to_string(),
            ]);
        }
        render(&rows)
    }
}

impl PaceReport {
    /// Of a job that did so many bytes in some time; nothing before that tells anything, and
    /// nothing of an import, which has done whatever it has found.
    pub(crate) fn of(job: &Job, done: u64, elapsed: Duration) -> Option<Self> {
        if elapsed < PACE_TIME_MIN || matches!(job.kind, JobKind::Import) {
            return None;
        }
        let rate = (u128::from(done) * 1000).checked_div(elapsed.as_millis())?;
        let bytes_per_second = u64::try_from(rate).ok().filter(|rate| *rate > 0)?;
        let left = job.bytes_total.saturating_sub(job.bytes_done);
        Some(Self { bytes_per_second, seconds_left: left / bytes_per_second })
    }

    /// In words.
    pub(crate) fn words(self) -> String {
        let left = HumanDuration(Duration::from_secs(self.seconds_left));
        format!("{} a second, {left} left", ByteLen(self.bytes_per_second))
    }
}

/// Servers record what a job has done twice a second: less says little.
const PACE_TIME_MIN: Duration = Duration::from_secs(1);

#[cfg(test)]
mod tests {
    use super::*;

    fn row(name: &str, files_done: u64, bytes_total: u64) -> DirectoryProgress {
        DirectoryProgress {
            name: name.as_bytes().to_vec(),
            files_total: 10,
            files_done,
            bytes_total,
            bytes_done: bytes_total / 2,
            errors: 1,
        }
    }

    #[test]
    fn requests_are_told_by_kind_and_nothing_is_nothing() {
        let counts = RequestCounts::new([2, 0, 40, 0, 0, 1, 0], 3, 7, 0);
        assert_eq!(CountsReport::from(counts).words(), "2 LIST, 40 GET, 1 upload (3 failed)");
        assert_eq!(CountsReport::from(RequestCounts::default()).words(), "nothing");
    }

    #[test]
    fn directories_are_a_table_by_name_with_the_others_at_its_end() {
        let directories = vec![row("val", 3, u64::MAX), row("", 10, 0)];
        let detail = JobDetail { directories, others: row("", 0, 4), ..JobDetail::default() };
        let report = DirectoriesReport::of(&detail);
        let text = report.words();
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with(". ") && lines[1].contains("10 of 10 files"), "{text}");
        assert!(lines[1].contains("100 %") && lines[2].contains("49 %"), "{text}");
        assert!(lines[3].starts_with("(others)") && lines[3].contains("50 %"), "{text}");
        let alone = JobDetail { others: DirectoryProgress::default(), ..detail };
        assert_eq!(DirectoriesReport::of(&alone).other_directories, None);
    }
}
