//! What a job asked buckets, and how far and how fast each directory is, as printed.

use std::{collections::HashMap, time::Duration};

use millrace_protocol::{
    admin::JobKind,
    job_detail::{DirectoryProgress, JobDetail},
    requests::RequestCounts,
};
use millrace_types::ByteLen;
use serde::Serialize;

use super::pace::{Counts, PaceReport};
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
    /// How fast the job is there: where it was looked at twice, and did something in between.
    #[serde(flatten)]
    pub(crate) pace: Option<PaceReport>,
}

/// The directories of a job.
#[derive(Serialize, PartialEq, Eq, Debug)]
pub(crate) struct DirectoriesReport {
    pub(crate) directories: Vec<DirectoryReport>,
    /// Further ones, together; null where there are none.
    pub(crate) other_directories: Option<DirectoryReport>,
}

/// An earlier look at the directories of a job.
#[derive(Debug)]
pub(crate) struct EarlierLook {
    pub(crate) detail: JobDetail,
    /// How long before this one.
    pub(crate) elapsed: Duration,
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

impl DirectoryReport {
    fn new(progress: &DirectoryProgress, pace: Option<PaceReport>) -> Self {
        Self {
            name: name_text(&progress.name),
            files_done: progress.files_done,
            files_total: progress.files_total,
            bytes_done: progress.bytes_done,
            bytes_total: progress.bytes_total,
            errors: progress.errors,
            pace,
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
    /// The directories of a job of this kind by name, with how fast it is in each if there was an
    /// earlier look. What that did not show yet had not been begun.
    pub(crate) fn of(kind: JobKind, detail: &JobDetail, earlier: Option<&EarlierLook>) -> Self {
        let before = earlier.into_iter().flat_map(|earlier| &earlier.detail.directories);
        let before: HashMap<&[u8], &DirectoryProgress> =
            before.map(|row| (&row.name[..], row)).collect();
        let report = |row: &DirectoryProgress, before: Option<&DirectoryProgress>| {
            let before = before.map(Counts::from).unwrap_or_default();
            let pace = earlier.and_then(|EarlierLook { elapsed, .. }| {
                PaceReport::between(kind, before, Counts::from(row), *elapsed)
            });
            DirectoryReport::new(row, pace)
        };
        let directories = detail.directories.iter();
        let mut directories: Vec<_> =
            directories.map(|row| report(row, before.get(&row.name[..]).copied())).collect();
        directories.sort_by(|one, other| one.name.cmp(&other.name));
        let others = (detail.others != DirectoryProgress::default()).then_some(&detail.others);
        let before = earlier.map(|earlier| &earlier.detail.others);
        Self { directories, other_directories: others.map(|row| report(row, before)) }
    }

    /// A table; with the rate and the time left where they are known of any.
    pub(crate) fn words(&self, kind: JobKind) -> String {
        let mut header = vec!["DIRECTORY", "FILES", "BYTES", "DONE", "ERRORS"];
        let mut all = self.directories.iter().chain(&self.other_directories);
        let is_paced = all.any(|row| row.pace.is_some());
        if is_paced {
            header.extend(["RATE", "LEFT"]);
        }
        let mut rows = table(&header);
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
            let mut cells = vec![
                name.to_owned(),
                format!("{} of {}", row.files_done, counted(row.files_total, "file")),
                format!("{} of {}", ByteLen(row.bytes_done), ByteLen(row.bytes_total)),
                format!("{percent} %"),
                row.errors.to_string(),
            ];
            if is_paced {
                let rate = row.pace.map(|pace| pace.rate_words(kind));
                let left = row.pace.and_then(PaceReport::left_words);
                cells.extend([rate, left].map(|cell| cell.unwrap_or_else(|| "-".to_owned())));
            }
            rows.add_row(cells);
        }
        render(&rows)
    }
}

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
        let report = DirectoriesReport::of(JobKind::Hydrate, &detail, None);
        let text = report.words(JobKind::Hydrate);
        let lines: Vec<_> = text.lines().collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[1].starts_with(". ") && lines[1].contains("10 of 10 files"), "{text}");
        assert!(lines[1].contains("100 %") && lines[2].contains("49 %"), "{text}");
        assert!(lines[3].starts_with("(others)") && lines[3].contains("50 %"), "{text}");
        let alone = JobDetail { others: DirectoryProgress::default(), ..detail };
        let report = DirectoriesReport::of(JobKind::Hydrate, &alone, None);
        assert_eq!(report.other_directories, None);
    }

    #[test]
    fn how_fast_a_job_is_in_each_directory_is_told_from_two_looks() {
        let directories = vec![row("still", 3, 40), row("val", 2, 40)];
        let earlier = JobDetail { directories, others: row("", 4, 0), ..JobDetail::default() };
        let earlier = EarlierLook { detail: earlier, elapsed: Duration::from_secs(2) };
        let val = DirectoryProgress { bytes_done: 30, ..row("val", 6, 40) };
        // One that the first look did not show, and one that is as it was.
        let directories = vec![val, row("new", 8, 0), row("still", 3, 40)];
        let detail = JobDetail { directories, others: row("", 8, 0), ..JobDetail::default() };
        let report = DirectoriesReport::of(JobKind::Hydrate, &detail, Some(&earlier));
        let text = report.words(JobKind::Hydrate);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines[0].ends_with("LEFT"), "{text}");
        assert!(lines[1].contains("4 files a second") && lines[1].contains("0 seconds"), "{text}");
        assert!(lines[2].starts_with("still") && lines[2].ends_with('-'), "{text}");
        assert!(lines[3].contains("5 B and 2 files a second"), "{text}");
        assert!(lines[3].starts_with("val") && lines[3].ends_with("2 seconds"), "{text}");
        assert!(lines[4].contains("2 files a second"), "{text}");
        let text = DirectoriesReport::of(JobKind::Import, &detail, Some(&earlier));
        let text = text.words(JobKind::Import);
        assert!(text.contains("2 names a second") && !text.contains("seconds"), "{text}");
    }
}
