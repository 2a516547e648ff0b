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
//! the job's end is recorded, and goes with the job's record. One that finds no room is given up:
//! nobody gets half of it.

use std::{
    fs::File,
    io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write as _},
    mem,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_protocol::job_options::{REPORT_PAGE_MAX, ReportPage};
use millrace_types::{ErrorKind, Failure, JobId};
use serde::Serialize;

use super::report_room::{ReportRoom, free, path_of, remove};

/// Lines on their way to a file.
#[derive(Debug)]
pub(super) struct Outcomes {
    job: JobId,
    room: Arc<ReportRoom>,
    /// Bytes that its disk keeps.
    keep_free: u64,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    /// Or why there is none any more: the first failure to write.
    file: Result<BufWriter<File>, io::Error>,
    bytes: u64,
    /// Of the room that it took, what is not used yet.
    left: u64,
}

/// How a file ended.
#[derive(Debug)]
pub(super) enum Outcome<'a> {
    Done,
    /// Of a dry run: something would be done.
    Would,
    Failed(&'a Failure),
    /// Keys of a bucket have no place in this directory: which, and why; or why a file is not
    /// copied.
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
    /// Begins a job's report, whose disk keeps `keep_free` bytes. Those of jobs that are not known
    /// any more go. Blocks.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] or [`ErrorKind::Internal`], with a sentence.
    pub(super) fn begin(
        room: Arc<ReportRoom>,
        job: JobId,
        keep_free: u64,
        is_known: impl Fn(JobId) -> bool,
    ) -> Result<Self, Failure> {
        let path = room.path_of(job);
        match room.begin(job, is_known).and_then(|()| File::create(&path)) {
            Ok(file) => {
                let state = State { file: Ok(BufWriter::new(file)), bytes: 0, left: 0 };
                Ok(Self { job, room, keep_free, state: Mutex::new(state) })
            }
            Err(error) => {
                room.end(job, 0);
                Err(unwritten(&path, &error))
            }
        }
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
        let line = Line { path, outcome, bytes, error };
        if let Err(error) = self.append(&mut state, &line) {
            self.give_up(&mut state, error);
        }
    }

    fn append(&self, state: &mut State, line: &Line<'_>) -> io::Result<()> {
        let State { file: Ok(file), bytes, left } = state else { return Ok(()) };
        let mut line = serde_json::to_vec(line)?;
        line.push(b'\n');
        let len = line.len() as u64;
        if *left < len {
            *left += self.room.take(self.job, len, self.keep_free)?;
        }
        *left -= len;
        *bytes += len;
        file.write_all(&line)
    }

    /// Nobody gets half a report, and others can use its room.
    fn give_up(&self, state: &mut State, error: io::Error) {
        let given_up = State { file: Err(error), bytes: 0, left: 0 };
        let State { file, .. } = mem::replace(state, given_up);
        remove(&self.room.path_of(self.job));
        self.room.end(self.job, 0);
        let file = file.map(|file| file.into_parts().0);
        free(file.into_iter().collect());
    }

    /// Makes everything durable.
    ///
    /// # Errors
    /// [`ErrorKind::NoSpace`] or [`ErrorKind::Internal`]: there is no report.
    pub(super) fn finish(&self) -> Result<(), Failure> {
        let mut state = self.state();
        if let Ok(file) = &mut state.file
            && let Err(error) = file.flush().and_then(|()| file.get_ref().sync_all())
        {
            self.give_up(&mut state, error);
        }
        match &state.file {
            Ok(_) => Ok(()),
            Err(error) => Err(unwritten(&self.room.path_of(self.job), error)),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Outcomes {
    fn drop(&mut self) {
        let bytes = self.state().bytes;
        self.room.end(self.job, bytes);
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

fn unwritten(path: &Path, error: &io::Error) -> Failure {
    let kind = match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ErrorKind::NoSpace,
        _ => ErrorKind::Internal,
    };
    Failure::new(kind, format!("the job's report cannot be written to {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn begin(directory: &Path, job: JobId, bytes_max: u64) -> Result<Outcomes, Failure> {
        let room = Arc::new(ReportRoom::new(directory.to_owned(), bytes_max));
        Outcomes::begin(room, job, 0, |_| true)
    }

    #[test]
    fn pages_are_whole_lines_and_join_to_everything() {
        let directory = tempfile::tempdir().unwrap();
        let (reports, job) = (directory.path().join("reports"), JobId(7));
        assert_eq!(page(&reports, job, 0).unwrap_err().kind, ErrorKind::NotFound);
        let outcomes = begin(&reports, job, u64::MAX).unwrap();
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
        begin(directory.path(), JobId(1), u64::MAX).unwrap().finish().unwrap();
        let page = page(directory.path(), JobId(1), 0).unwrap();
        assert_eq!((page.lines, page.next), (Vec::new(), None));
    }

    #[test]
    fn what_cannot_be_written_is_told_at_the_end() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/dev/full", directory.path().join("job-1.jsonl")).unwrap();
        let outcomes = begin(directory.path(), JobId(1), u64::MAX).unwrap();
        for _ in 0..1000 {
            outcomes.note(b"/set/name", 1, &Outcome::Would);
        }
        assert_eq!(outcomes.finish().unwrap_err().kind, ErrorKind::NoSpace);
    }

    #[test]
    fn a_report_without_room_is_given_up_at_once_and_others_can_use_that() {
        let directory = tempfile::tempdir().unwrap();
        let room = Arc::new(ReportRoom::new(directory.path().to_owned(), 1000));
        let job = |job| Outcomes::begin(Arc::clone(&room), JobId(job), 0, |_| true).unwrap();
        let large = job(1);
        for _ in 0..100 {
            large.note(b"/set/name", 1, &Outcome::Done);
        }
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0, "not half of it");
        let small = job(2);
        small.note(b"/set/name", 1, &Outcome::Done);
        small.finish().unwrap();
        let failure = large.finish().unwrap_err();
        assert_eq!(failure.kind, ErrorKind::NoSpace);
        assert!(failure.message.contains("more than 1000 bytes"), "{failure}");
        let page = |job| page(directory.path(), JobId(job), 0);
        assert_eq!(page(1).unwrap_err().kind, ErrorKind::NotFound);
        assert_eq!(page(2).unwrap().lines.iter().filter(|byte| **byte == b'\n').count(), 1);
    }

    #[test]
    fn a_report_takes_no_more_room_than_it_has_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let room = Arc::new(ReportRoom::new(directory.path().to_owned(), 1000));
        for job in 1..=5 {
            let outcomes = Outcomes::begin(Arc::clone(&room), JobId(job), 0, |_| true).unwrap();
            outcomes.note(b"/set/name", 1, &Outcome::Done);
            outcomes.finish().unwrap();
        }
        let kept = fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(kept, 5, "none went for another");
    }
}
