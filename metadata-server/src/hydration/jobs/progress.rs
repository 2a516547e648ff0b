//! What a job counts while it works.

use std::sync::{Mutex, MutexGuard, PoisonError};

use millrace_protocol::{
    admin::{JOB_FAILURES_MAX, Job, JobFailure, JobState, PathBytes},
    job_detail::DirectoryProgress,
};
use millrace_types::{Failure, FileName, InodeId, JobId};

use super::directories::Directories;
use crate::command::{JobCounts, UpdateJob};

/// Counts, and the first failures. Shared by everything that works for the job.
#[derive(Debug, Default)]
pub(super) struct Progress {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    counts: JobCounts,
    failures: Vec<JobFailure>,
    directories: Directories,
    changed: bool,
}

impl Progress {
    /// The counts that a record holds.
    pub(super) fn of(job: &Job) -> Self {
        let counts = JobCounts::of(job);
        let failures = job.failures.clone();
        Self { state: Mutex::new(State { counts, failures, ..State::default() }) }
    }

    /// A file or directory below `branch` comes: what is told of it from now on counts there, too.
    pub(super) fn enter(&self, inode: InodeId, branch: Option<&FileName>) {
        self.lock().directories.enter(inode, branch);
    }

    /// Nothing is done with what came.
    pub(super) fn leave(&self, inode: InodeId) {
        self.lock().directories.leave(inode);
    }

    /// A file to work on was found, with so many bytes. One that was found before has them now.
    pub(super) fn found(&self, inode: InodeId, bytes: u64) {
        let mut state = self.lock();
        let before = state.directories.found(inode, bytes);
        let counts = &mut state.counts;
        counts.files_total += u64::from(before.is_none());
        let others = counts.bytes_total.saturating_sub(before.unwrap_or(0));
        counts.bytes_total = others.saturating_add(bytes);
    }

    /// So many names below `branch` were listed, which is all that was to be done with them.
    pub(super) fn listed(&self, branch: Option<&FileName>, names: u64, bytes: u64) {
        let mut state = self.lock();
        state.directories.listed(branch, names, bytes);
        let counts = &mut state.counts;
        counts.files_total += names;
        counts.files_done += names;
        counts.bytes_total = counts.bytes_total.saturating_add(bytes);
        counts.bytes_done = counts.bytes_done.saturating_add(bytes);
    }

    /// Some bytes of a found file are done.
    pub(super) fn moved(&self, inode: InodeId, bytes: u64) {
        let mut state = self.lock();
        state.directories.moved(inode, bytes);
        state.counts.bytes_done = state.counts.bytes_done.saturating_add(bytes);
    }

    /// Bytes that were counted must be moved again.
    pub(super) fn unmoved(&self, inode: InodeId, bytes: u64) {
        let mut state = self.lock();
        state.directories.unmoved(inode, bytes);
        state.counts.bytes_done = state.counts.bytes_done.saturating_sub(bytes);
    }

    /// So many bytes of a found file stay as they are after all.
    pub(super) fn kept(&self, inode: InodeId, bytes: u64) {
        let mut state = self.lock();
        state.directories.kept(inode, bytes);
        state.counts.bytes_total = state.counts.bytes_total.saturating_sub(bytes);
    }

    /// A file that was found with so many bytes has others by now.
    pub(super) fn resized(&self, inode: InodeId, before: u64, now: u64) {
        let mut state = self.lock();
        state.directories.resized(inode, now);
        let others = state.counts.bytes_total.saturating_sub(before);
        state.counts.bytes_total = others.saturating_add(now);
    }

    /// A found file is done.
    pub(super) fn done(&self, inode: InodeId) {
        let mut state = self.lock();
        state.directories.done(inode);
        state.counts.files_done += 1;
    }

    /// What came is not there any more: it is done if it was found, and otherwise as if it had not
    /// come.
    pub(super) fn gone(&self, inode: InodeId) {
        let mut state = self.lock();
        if state.directories.is_found(inode) {
            state.directories.done(inode);
            state.counts.files_done += 1;
        } else {
            state.directories.leave(inode);
        }
    }

    /// Something that is no file here was found, and perhaps done.
    pub(super) fn apart(&self, is_done: bool) {
        let mut state = self.lock();
        state.counts.files_total += 1;
        state.counts.files_done += u64::from(is_done);
    }

    /// A name that counts as done since its directory was listed, of which `branch` counted it,
    /// was that of a directory which cannot be listed itself.
    pub(super) fn unlisted(&self, branch: Option<&FileName>) {
        let mut state = self.lock();
        state.directories.unlisted(branch);
        let counts = &mut state.counts;
        counts.files_total = counts.files_total.saturating_sub(1);
        counts.files_done = counts.files_done.saturating_sub(1);
    }

    /// The job could not do something that is none of its files; it counts as one more.
    pub(super) fn failed_besides(&self, path: PathBytes, failure: Failure) {
        self.apart(false);
        self.failed(path, failure);
    }

    /// What was counted as found could not be done.
    pub(super) fn failed(&self, path: PathBytes, failure: Failure) {
        let mut state = self.lock();
        state.counts.errors += 1;
        if state.failures.len() < JOB_FAILURES_MAX {
            let mut path = path;
            path.truncate(FAILURE_PATH_LEN_MAX);
            state.failures.push(JobFailure { path, failure });
        }
    }

    /// The same of an inode, which is found by that if it was not yet.
    pub(super) fn failed_at(&self, inode: InodeId, path: PathBytes, failure: Failure) {
        if !self.lock().directories.is_found(inode) {
            self.found(inode, 0);
        }
        self.lock().directories.failed(inode);
        self.failed(path, failure);
    }

    /// The same of a path below `branch` that leads nowhere.
    pub(super) fn missed(&self, branch: Option<&FileName>, path: PathBytes, failure: Failure) {
        self.lock().directories.missed(branch);
        self.failed_besides(path, failure);
    }

    /// How far each directory is, and what is not told apart.
    pub(super) fn directories(&self) -> (Vec<DirectoryProgress>, DirectoryProgress) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).directories.told()
    }

    /// Files that failed.
    pub(super) fn errors(&self) -> u64 {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).counts.errors
    }

    /// How a job ends that has worked through everything.
    pub(super) fn end(&self) -> JobState {
        if self.errors() == 0 { JobState::Succeeded } else { JobState::Failed }
    }

    /// Whether anything was counted since the last time.
    pub(super) fn take_changed(&self) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut state.changed)
    }

    /// The command that records the counts.
    pub(super) fn update(&self, id: JobId, state: Option<JobState>) -> UpdateJob {
        let now = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        UpdateJob { id, state, counts: now.counts, failures: now.failures.clone() }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.changed = true;
        state
    }
}

/// Bytes of a failure's path that are kept: all failures of a job are in one record.
const FAILURE_PATH_LEN_MAX: usize = 4096;

#[cfg(test)]
mod tests {
    use millrace_types::ErrorKind;

    use super::*;

    #[test]
    fn what_is_gone_is_done_only_if_it_was_found() {
        let progress = Progress::default();
        for id in [InodeId(2), InodeId(3)] {
            progress.enter(id, None);
        }
        progress.found(InodeId(3), 10);
        progress.gone(InodeId(2));
        progress.gone(InodeId(3));
        let counts = progress.update(JobId(1), None).counts;
        assert_eq!((counts.files_done, counts.files_total), (1, 1));
        let (rows, _) = progress.directories();
        let told: Vec<_> = rows.iter().map(|row| (row.files_done, row.files_total)).collect();
        assert_eq!(told, [(1, 1)]);
    }

    #[test]
    fn what_is_tried_again_is_found_once() {
        let progress = Progress::default();
        progress.enter(InodeId(2), None);
        progress.found(InodeId(2), 10);
        progress.found(InodeId(2), 7);
        progress.moved(InodeId(2), 7);
        progress.done(InodeId(2));
        let counts = progress.update(JobId(1), None).counts;
        assert_eq!((counts.files_done, counts.files_total), (1, 1));
        assert_eq!((counts.bytes_done, counts.bytes_total), (7, 7));
        let (rows, _) = progress.directories();
        assert_eq!((rows[0].files_total, rows[0].bytes_total, rows[0].bytes_done), (1, 7, 7));
    }

    #[test]
    fn what_fails_is_one_of_all_and_not_done() {
        let progress = Progress::default();
        let failure = || Failure::from(ErrorKind::BucketUnavailable);
        // Of three names one is a directory that cannot be listed.
        let branch = FileName::parse(b"d").unwrap();
        progress.listed(None, 3, 10);
        progress.unlisted(None);
        progress.enter(InodeId(2), Some(&branch));
        progress.failed_at(InodeId(2), b"/d".to_vec(), failure());
        // One fails before it was found, one behind that, one is not there, and so does the job.
        for id in [InodeId(3), InodeId(4)] {
            progress.enter(id, Some(&branch));
        }
        progress.failed_at(InodeId(3), b"/d/3".to_vec(), failure());
        progress.found(InodeId(4), 7);
        progress.failed_at(InodeId(4), b"/d/4".to_vec(), failure());
        progress.missed(Some(&branch), b"/d/5".to_vec(), failure());
        progress.failed_besides(b"/".to_vec(), failure());
        let counts = progress.update(JobId(1), None).counts;
        assert_eq!((counts.files_done, counts.files_total, counts.errors), (2, 7, 5));
        let (rows, _) = progress.directories();
        let told: Vec<_> =
            rows.iter().map(|row| (row.files_done, row.files_total, row.errors)).collect();
        assert_eq!(told, [(2, 2, 0), (0, 4, 4)]);
    }

    #[test]
    fn all_failures_are_counted_and_the_first_are_kept() {
        let progress = Progress::default();
        for _ in 0..JOB_FAILURES_MAX + 5 {
            progress.found(InodeId(2), 10);
            progress.failed(b"/x".to_vec(), ErrorKind::NotFound.into());
        }
        assert_eq!(progress.end(), JobState::Failed);
        let update = progress.update(JobId(1), Some(JobState::Failed));
        assert_eq!(update.failures.len(), JOB_FAILURES_MAX);
        assert_eq!(update.counts.errors, JOB_FAILURES_MAX as u64 + 5);
        assert!(progress.take_changed());
        assert!(!progress.take_changed());
    }
}
