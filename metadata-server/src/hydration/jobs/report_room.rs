//! The room that the reports of jobs share, on the disk of the metadata. A full one takes no
//! changes, not even the end of the job that has filled it: no report goes that far.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, PoisonError},
};

use millrace_types::JobId;
use tokio::runtime::Handle;

/// Bytes of all reports: some fifty million lines.
pub(super) const REPORTS_BYTES_MAX: u64 = 8 * 1024 * 1024 * 1024;

/// What a report takes at once, behind a look at the disk: little enough for all jobs that run to
/// take it behind one look.
const STEP: u64 = 256 * 1024;

/// The room of all reports. One per server.
#[derive(Debug)]
pub(super) struct ReportRoom {
    directory: PathBuf,
    bytes_max: u64,
    reports: Mutex<Reports>,
}

/// Bytes of each report.
#[derive(Debug, Default)]
struct Reports {
    /// What those have taken that are being written.
    running: BTreeMap<JobId, u64>,
    /// Of jobs that have ended.
    kept: BTreeMap<JobId, u64>,
}

impl ReportRoom {
    /// Of reports in a directory, which may be missing: all together get so many bytes.
    pub(super) fn new(directory: PathBuf, bytes_max: u64) -> Self {
        Self { directory, bytes_max, reports: Mutex::default() }
    }

    /// Where a job's report is.
    pub(super) fn path_of(&self, job: JobId) -> PathBuf {
        path_of(&self.directory, job)
    }

    /// A job's report begins: makes the directory, removes the reports of jobs that nobody
    /// remembers any more, and counts the others. Blocks.
    ///
    /// # Errors
    /// When the directory cannot be made.
    pub(super) fn begin(&self, job: JobId, is_known: impl Fn(JobId) -> bool) -> io::Result<()> {
        fs::create_dir_all(&self.directory)?;
        let mut unknown = Vec::new();
        let mut reports = self.reports();
        reports.running.insert(job, 0);
        reports.kept.clear();
        for entry in fs::read_dir(&self.directory)?.flatten() {
            let Some(of) = entry.file_name().to_str().and_then(job_of) else { continue };
            if reports.running.contains_key(&of) {
                continue;
            }
            if !is_known(of) {
                unknown.push(entry.path());
            } else if let Ok(metadata) = entry.metadata() {
                reports.keep(of, metadata.len());
            }
        }
        // Nobody who wants room waits until the disk has freed them.
        drop(reports);
        for path in unknown {
            remove(&path);
        }
        Ok(())
    }

    /// Takes room for `least` bytes more of a report that is being written, or for some more than
    /// that. Where all together have no more, the oldest of those that are whole go for it; the
    /// disk keeps `keep_free`. Blocks. How many bytes it got.
    ///
    /// # Errors
    /// [`io::ErrorKind::StorageFull`].
    pub(super) fn take(&self, job: JobId, least: u64, keep_free: u64) -> io::Result<u64> {
        let wanted = least.max(STEP);
        check_disk(&self.directory, wanted, keep_free)?;
        let mut removed = Vec::new();
        let mut reports = self.reports();
        let taken = loop {
            let room = self.bytes_max.saturating_sub(reports.bytes());
            if room >= least {
                let taken = room.min(wanted);
                *reports.running.entry(job).or_default() += taken;
                break Ok(taken);
            }
            let Some((oldest, _)) = reports.kept.pop_first() else {
                let words = format!(
                    "the reports of all jobs that run would have more than {} bytes together: \
                     start jobs over smaller trees",
                    self.bytes_max
                );
                break Err(io::Error::new(io::ErrorKind::StorageFull, words));
            };
            // The name goes now: a job that a restart interrupted may be about to begin it anew.
            removed.extend(unlink(&self.path_of(oldest)));
        };
        drop(reports);
        free(removed);
        taken
    }

    /// A report is whole, with so many bytes; or it is gone, with none.
    pub(super) fn end(&self, job: JobId, bytes: u64) {
        let mut reports = self.reports();
        reports.running.remove(&job);
        reports.keep(job, bytes);
    }

    fn reports(&self) -> MutexGuard<'_, Reports> {
        self.reports.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Reports {
    /// An empty one is not worth removing for room.
    fn keep(&mut self, job: JobId, bytes: u64) {
        if bytes > 0 {
            self.kept.insert(job, bytes);
        }
    }

    fn bytes(&self) -> u64 {
        let all = self.running.values().chain(self.kept.values());
        all.fold(0, |sum, bytes| sum.saturating_add(*bytes))
    }
}

/// Whether the disk of a directory has room for so many bytes beside what it keeps. One that does
/// not say counts as one that has: the write finds out. Blocks.
///
/// # Errors
/// [`io::ErrorKind::StorageFull`].
pub(super) fn check_disk(directory: &Path, bytes: u64, keep_free: u64) -> io::Result<()> {
    let has_room = match rustix::fs::statvfs(directory) {
        Ok(disk) => disk.f_bavail.saturating_mul(disk.f_frsize) >= keep_free.saturating_add(bytes),
        Err(_) => true,
    };
    if has_room {
        return Ok(());
    }
    let words = "the disk of the metadata has too little room left: make some there";
    Err(io::Error::new(io::ErrorKind::StorageFull, words))
}

/// Where the report of a job is.
pub(super) fn path_of(directory: &Path, job: JobId) -> PathBuf {
    directory.join(format!("job-{}.jsonl", job.0))
}

fn job_of(name: &str) -> Option<JobId> {
    name.strip_prefix("job-")?.strip_suffix(".jsonl")?.parse().ok().map(JobId)
}

/// Removes a report.
pub(super) fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path)
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(path = %path.display(), %error, "a report that is not kept stays");
    }
}

/// Removes the name of a report. Its bytes go with the file: see [`free`].
fn unlink(path: &Path) -> Option<File> {
    let file = File::open(path).ok();
    remove(path);
    file
}

/// Closes files whose names are removed. To free many GiB takes a disk a while, in which it must
/// hold up no worker of the runtime, nor who waits for a lock.
pub(super) fn free(files: Vec<File>) {
    match Handle::try_current() {
        Ok(runtime) if !files.is_empty() => drop(runtime.spawn_blocking(move || drop(files))),
        _ => drop(files),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use tokio::runtime;

    use super::*;

    fn names(directory: &Path) -> Vec<String> {
        let entries = fs::read_dir(directory).unwrap().flatten();
        let mut names: Vec<_> =
            entries.map(|entry| entry.file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    /// Whether this process has a removed file open: then its disk has the bytes.
    fn has_bytes(removed: &Path) -> bool {
        let removed = PathBuf::from(format!("{} (deleted)", removed.display()));
        let open = fs::read_dir("/proc/self/fd").unwrap().flatten();
        open.filter_map(|entry| fs::read_link(entry.path()).ok()).any(|path| path == removed)
    }

    #[test]
    fn only_reports_of_forgotten_jobs_are_removed_when_one_begins() {
        let directory = tempfile::tempdir().unwrap();
        let room = ReportRoom::new(directory.path().join("reports"), u64::MAX);
        let running = JobId(4);
        room.begin(running, |_| false).unwrap();
        for name in ["job-1.jsonl", "job-2.jsonl", "job-4.jsonl", "job-x.jsonl", "notes"] {
            fs::write(directory.path().join("reports").join(name), b"").unwrap();
        }
        room.begin(JobId(5), |job| job == JobId(2)).unwrap();
        let left = ["job-2.jsonl", "job-4.jsonl", "job-x.jsonl", "notes"];
        assert_eq!(names(&directory.path().join("reports")), left);
    }

    #[test]
    fn the_oldest_whole_reports_go_for_room_and_those_that_are_written_stay() {
        let directory = tempfile::tempdir().unwrap();
        for job in [2, 3, 10] {
            fs::write(path_of(directory.path(), JobId(job)), [0; 100]).unwrap();
        }
        let room = ReportRoom::new(directory.path().to_owned(), 350);
        let (first, second) = (JobId(1), JobId(11));
        for job in [first, second] {
            fs::write(room.path_of(job), b"").unwrap();
            room.begin(job, |_| true).unwrap();
        }
        assert_eq!(room.take(first, 50, 0).unwrap(), 50, "what is there");
        assert_eq!(names(directory.path()).len(), 5);
        assert_eq!(room.take(second, 80, 0).unwrap(), 100, "of the oldest");
        assert!(!room.path_of(JobId(2)).exists() && room.path_of(JobId(3)).exists());
        assert_eq!(room.take(second, 150, 0).unwrap(), 200);
        assert_eq!(names(directory.path()), ["job-1.jsonl", "job-11.jsonl"]);
        assert_eq!(room.take(first, 1, 0).unwrap_err().kind(), io::ErrorKind::StorageFull);
        // What one has not used is there for others.
        room.end(second, 120);
        assert_eq!(room.take(first, 1, 0).unwrap(), 180);
    }

    #[test]
    fn who_takes_room_does_not_wait_until_the_disk_has_freed_an_old_report() {
        let directory = tempfile::tempdir().unwrap();
        let directory = directory.path().canonicalize().unwrap();
        let old = path_of(&directory, JobId(1));
        fs::write(&old, [0; 100]).unwrap();
        let room = ReportRoom::new(directory, 100);
        room.begin(JobId(2), |_| true).unwrap();
        let runtime =
            runtime::Builder::new_current_thread().max_blocking_threads(1).build().unwrap();
        // The one thread for what blocks is held up.
        let (let_on, held_up) = mpsc::channel::<()>();
        drop(runtime.spawn_blocking(move || held_up.recv()));
        let entered = runtime.enter();
        assert_eq!(room.take(JobId(2), 50, 0).unwrap(), 100);
        drop(entered);
        assert!(!old.exists() && has_bytes(&old));
        drop(let_on);
        runtime.block_on(runtime.spawn_blocking(|| ())).unwrap();
        assert!(!has_bytes(&old));
    }

    #[test]
    fn a_disk_that_is_short_gives_none() {
        let directory = tempfile::tempdir().unwrap();
        let room = ReportRoom::new(directory.path().to_owned(), u64::MAX);
        room.begin(JobId(1), |_| true).unwrap();
        assert_eq!(room.take(JobId(1), 10, 0).unwrap(), STEP);
        let short = room.take(JobId(1), 10, u64::MAX).unwrap_err();
        assert_eq!(short.kind(), io::ErrorKind::StorageFull);
    }
}
