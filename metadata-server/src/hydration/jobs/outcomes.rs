//! What became of each file of a job, if somebody wants to know: a line for each, in a file of the
//! job's own beside the log.
//!
//! ```text
//! {"path":"/set/a.bin","outcome":"done","bytes":4096}
//! {"path":"/set/b.bin","outcome":"failed","bytes":0,"error":"the file is open for writing"}
//! {"path":"/set","outcome":"left out","bytes":0,"error":"set//c.bin: a part of it is empty"}
//! ```
//!
//! It is for people: nothing here is read again by the server. A job that goes on after a restart
//! begins it anew, and says of what was done before that it is done. It is on stable storage when
//! the job's end is recorded, and goes with the job's record.

use std::{
    fs::{self, File},
    io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::job_options::{REPORT_PAGE_MAX, ReportPage};
use millrace_types::{ErrorKind, Failure, JobId};
use serde::Serialize;

/// Lines on their way to a file.
#[derive(Debug)]
pub(super) struct Outcomes {
    path: PathBuf,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    file: BufWriter<File>,
    /// The first failure to write: nothing is written after it.
    failure: Option<io::Error>,
}

/// How a file ended.
#[derive(Debug)]
pub(super) enum Outcome<'a> {
    Done,
    /// Of a dry run: something would be done.
    Would,
    Failed(&'a Failure),
    /// Keys of a bucket have no place in this directory: which, and why.
    LeftOut(String),
}

#[derive(Serialize)]
struct Line<'a> {
    /// From the file system's root. What is no UTF-8 is escaped.
    path: &'a str,
    outcome: &'static str,
    /// Moved or dropped.
    bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

impl Outcomes {
    /// Begins a job's report in a directory, which is made if it is missing.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] or [`ErrorKind::Internal`], with a sentence.
    pub(super) fn begin(directory: &Path, job: JobId) -> Result<Self, Failure> {
        let path = path_of(directory, job);
        let begun = fs::create_dir_all(directory).and_then(|()| File::create(&path));
        let file = BufWriter::new(begun.map_err(|error| unwritten(&path, &error))?);
        Ok(Self { path, state: Mutex::new(State { file, failure: None }) })
    }

    /// Adds a line. A failure is told at the end.
    pub(super) fn note(&self, path: &[u8], bytes: u64, outcome: &Outcome<'_>) {
        let escaped;
        let path = match std::str::from_utf8(path) {
            Ok(path) => path,
            Err(_) => {
                escaped = path.escape_ascii().to_string();
                &escaped
            }
        };
        let (outcome, error) = match outcome {
            Outcome::Done => ("done", None),
            Outcome::Would => ("would be done", None),
            Outcome::Failed(failure) => ("failed", Some(failure.to_string())),
            Outcome::LeftOut(why) => ("left out", Some(why.clone())),
        };
        let mut state = self.state();
        let State { file, failure } = &mut *state;
        if failure.is_none() {
            let line = Line { path, outcome, bytes, error };
            let written = serde_json::to_writer(&mut *file, &line).map_err(io::Error::from);
            *failure = written.and_then(|()| file.write_all(b"\n")).err();
        }
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] or [`ErrorKind::Internal`]: the report is not whole.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        let mut state = self.state();
        let State { file, failure } = &mut *state;
        let kept = match failure.take() {
            Some(error) => Err(error),
            None => file.flush().and_then(|()| file.get_ref().sync_all()),
        };
        kept.map_err(|error| unwritten(&self.path, &error))
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A part of a report that is finished: whole lines from `offset` on. Blocks.
///
/// # Errors
/// [`ErrorKind::NotFound`] when there is none; [`ErrorKind::InvalidArgument`] for an offset that no
/// page named; [`ErrorKind::Internal`] when it cannot be read.
pub(super) fn page(directory: &Path, job: JobId, offset: u64) -> Result<ReportPage, Failure> {
    let path = path_of(directory, job);
    let unread = |error: io::Error| match error.kind() {
        io::ErrorKind::NotFound => {
            let words = format!("the server has no report of job {}", job.0);
            Failure::new(ErrorKind::NotFound, words)
        }
        _ => Failure::new(ErrorKind::Internal, format!("cannot read {}: {error}", path.display())),
    };
    let mut file = File::open(&path).map_err(unread)?;
    let len = file.metadata().map_err(unread)?.len();
    // From the end of the line before on, which shows that one begins here.
    let before = u64::from(offset > 0);
    file.seek(SeekFrom::Start(offset - before)).map_err(unread)?;
    let mut lines = Vec::new();
    file.take(before + REPORT_PAGE_MAX as u64).read_to_end(&mut lines).map_err(unread)?;
    let begins = before == 0 || lines.first() == Some(&b'\n');
    lines.drain(..lines.len().min(usize::from(before > 0)));
    let whole = lines.iter().rposition(|&byte| byte == b'\n').map_or(0, |at| at + 1);
    if !begins || (whole == 0 && offset != len) {
        let words = format!("no line of the report begins at byte {offset}");
        return Err(Failure::new(ErrorKind::InvalidArgument, words));
    }
    lines.truncate(whole);
    let next = offset + whole as u64;
    Ok(ReportPage { lines, next: (next < len).then_some(next) })
}

/// Removes the reports of jobs that nobody remembers any more, and the oldest of the others while
/// all together have more than `bytes_max`. Blocks.
pub(super) fn prune(directory: &Path, bytes_max: u64, is_known: impl Fn(JobId) -> bool) {
    let Ok(entries) = fs::read_dir(directory) else { return };
    let report = |entry: fs::DirEntry| {
        let job = job_of(entry.file_name().to_str()?)?;
        Some((job, entry.path(), entry.metadata().ok()?.len()))
    };
    let mut reports: Vec<_> = entries.flatten().filter_map(report).collect();
    reports.sort_by_key(|(job, ..)| std::cmp::Reverse(job.0));
    let mut kept = 0_u64;
    for (job, path, bytes) in reports {
        kept = kept.saturating_add(bytes);
        if (!is_known(job) || kept > bytes_max)
            && let Err(error) = fs::remove_file(&path)
        {
            tracing::warn!(path = %path.display(), %error, "an old report stays");
        }
    }
}

fn path_of(directory: &Path, job: JobId) -> PathBuf {
    directory.join(format!("job-{}.jsonl", job.0))
}

fn job_of(name: &str) -> Option<JobId> {
    name.strip_prefix("job-")?.strip_suffix(".jsonl")?.parse().ok().map(JobId)
}

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Internal,
    };
    Failure::new(kind, format!("the job's report cannot be written to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_are_whole_lines_and_join_to_everything() {
        let directory = tempfile::tempdir().unwrap();
        let (reports, job) = (directory.path().join("reports"), JobId(7));
        assert_eq!(page(&reports, job, 0).unwrap_err().kind, ErrorKind::NotFound);
        let outcomes = Outcomes::begin(&reports, job).unwrap();
        let failure = Failure::new(ErrorKind::InUse, "open \"for\" writing\n");
        for number in 0..10_000_u64 {
            let path = format!("/set/{number:0100}");
            outcomes.note(path.as_bytes(), number, &Outcome::Done);
        }
        outcomes.note(b"/set/\xff,\"", 0, &Outcome::Failed(&failure));
        outcomes.finish().unwrap();

        let (mut all, mut next, mut pages) = (Vec::new(), Some(0), 0);
        while let Some(offset) = next {
            let page = page(&reports, job, offset).unwrap();
            assert!(page.lines.ends_with(b"\n") && page.lines.len() <= REPORT_PAGE_MAX);
            all.extend(page.lines);
            (next, pages) = (page.next, pages + 1);
        }
        assert!(pages > 3, "{pages}");
        let lines: Vec<serde_json::Value> = String::from_utf8(all)
            .unwrap()
            .lines()
            .map(|line| serde_json::from_str(line).unwrap())
            .collect();
        assert_eq!(lines.len(), 10_001);
        assert_eq!(lines[3]["bytes"], 3);
        assert_eq!(lines[3]["outcome"], "done");
        assert_eq!(lines[10_000]["path"], "/set/\\xff,\\\"");
        assert!(lines[10_000]["error"].as_str().unwrap().contains("open \"for\" writing"));
        assert_eq!(page(&reports, job, 5).unwrap_err().kind, ErrorKind::InvalidArgument);
    }

    #[test]
    fn an_empty_report_is_a_page_without_lines() {
        let directory = tempfile::tempdir().unwrap();
        Outcomes::begin(directory.path(), JobId(1)).unwrap().finish().unwrap();
        let page = page(directory.path(), JobId(1), 0).unwrap();
        assert_eq!((page.lines, page.next), (Vec::new(), None));
    }

    #[test]
    fn what_cannot_be_written_is_told_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", directory.path().join("job-1.jsonl")).unwrap();
        let outcomes = Outcomes::begin(directory.path(), JobId(1)).unwrap();
        for _ in 0..1000 {
            outcomes.note(b"/set/name", 1, &Outcome::Would);
        }
        assert_eq!(outcomes.finish().unwrap_err().kind, ErrorKind::NoSpace);
    }

    #[test]
    fn only_reports_of_forgotten_jobs_are_removed() {
        let directory = tempfile::tempdir().unwrap();
        for name in ["job-1.jsonl", "job-2.jsonl", "job-x.jsonl", "notes"] {
            fs::write(directory.path().join(name), b"").unwrap();
        }
        prune(directory.path(), u64::MAX, |job| job == JobId(2));
        let left = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 3);
        assert!(!directory.path().join("job-1.jsonl").exists());
        prune(&directory.path().join("missing"), 0, |_| false);
        fs::write(directory.path().join("job-2.jsonl"), b"12345").unwrap();
        fs::write(directory.path().join("job-10.jsonl"), b"12345").unwrap();
        prune(directory.path(), 9, |_| true);
        assert!(!directory.path().join("job-2.jsonl").exists(), "the oldest goes for room");
        assert!(directory.path().join("job-10.jsonl").exists());
    }
}
