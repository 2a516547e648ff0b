//! Snapshots as the engine's thread sees them: when one is due, what it is given of the store in
//! each turn, and what of the log is not needed behind it. The files are written by
//! [`snapshots`](crate::engine::snapshots).

use std::{sync::mpsc::SyncSender, time::Duration};

use millrace_types::{ErrorKind, Failure, LogIndex, Timestamp};

use super::{Core, StartError, log_failure};
use crate::{
    engine::{
        pressure::{Patience, Pressure},
        snapshots::{Purpose, Task},
        startup::EngineSettings,
    },
    log::Writer,
    snapshot::{
        kept,
        run::{Run, RunError},
    },
    store::{Batch, Pair, keys},
};

/// What is known of snapshots in this run of the server.
#[derive(Debug)]
pub(super) struct Snapshots {
    run: Option<Run>,
    /// Tells those who have time when the run is short of memory.
    pressure: Pressure,
    /// Why the last run was ended before its end.
    ended: Option<String>,
    /// Whether that was because more changed than is kept for it.
    was_overrun: bool,
    /// Bytes that the log had behind the newest snapshot
    behind: u64,
    /// when [`Writer::appended`] was this.
    appended_at: u64,
    /// Bytes of the newest snapshot.
    newest_len: u64,
    /// Asked for, and not ended.
    asked: bool,
    not_before: Timestamp,
    pause: Duration,
    /// Attempts in a row that came to nothing, and when the first of them did.
    failures: u32,
    failing_since: Timestamp,
    tasks: Option<SyncSender<Task>>,
}

impl Snapshots {
    /// Looks at what there is.
    pub(super) fn new(settings: &EngineSettings, log: &Writer) -> Result<Self, StartError> {
        let (files, dir) = (&*settings.files, settings.snapshot_dir());
        let disk = |source| StartError::Disk { path: dir.clone(), source };
        let found = kept::list(files, &dir).map_err(disk)?;
        let newest = found.first().copied();
        // Where the disk cannot read one, which the start has told, the one before it is not much
        // smaller.
        let newest_len = found.iter().find_map(|index| kept::size(files, &dir, *index).ok());
        Ok(Self {
            run: None,
            pressure: Pressure::new(settings.clock.now()),
            ended: None,
            was_overrun: false,
            behind: log.bytes_behind(newest.unwrap_or(LogIndex(0)))?,
            appended_at: 0,
            newest_len: newest_len.unwrap_or_default(),
            asked: false,
            not_before: Timestamp(i64::MIN),
            pause: PAUSE_MIN,
            failures: 0,
            failing_since: Timestamp::default(),
            tasks: None,
        })
    }

    /// Bytes that all metadata takes at most: of the newest snapshot, and of the log behind it.
    pub(super) fn metadata_len(&self, log: &Writer) -> u64 {
        self.newest_len + self.log_behind(log)
    }

    /// A sentence about attempts that came to nothing, when there were several in a row.
    pub(super) fn problem(&self, now: Timestamp) -> Option<String> {
        let minutes = now.since(self.failing_since).as_secs() / 60;
        (self.failures >= FAILURES_TOLD).then(|| {
            format!(
                "no snapshot of the metadata could be taken for {minutes} minutes, and the command \
                 log grows: the log of the metadata server says why"
            )
        })
    }

    fn log_behind(&self, log: &Writer) -> u64 {
        self.behind + (log.appended() - self.appended_at)
    }

    /// Whether the log has grown enough behind the newest snapshot.
    fn is_due(&self, settings: &EngineSettings, log: &Writer) -> bool {
        self.log_behind(log) >= settings.snapshot_bytes.max(self.newest_len / 4)
    }
}

impl Core {
    /// Whom to ask for snapshots.
    pub(in crate::engine) fn set_snapshot_tasks(&mut self, tasks: SyncSender<Task>) {
        self.snapshots.tasks = Some(tasks);
    }

    /// For those who wait where a snapshot runs short of memory.
    pub(in crate::engine) fn patience(&self) -> Patience {
        self.snapshots.pressure.patience()
    }

    /// Asks for a snapshot, if one is due.
    pub(super) fn poll_snapshot(&mut self) {
        // It may have come to a stop.
        self.tell_pressure();
        let due = self.snapshots.is_due(&self.settings, &self.log);
        let waits = self.snapshots.asked || self.now() < self.snapshots.not_before;
        if due && !waits {
            // A full queue is no harm: the next look asks again.
            self.snapshots.asked = self.ask_for(Task::Snapshot).is_ok();
        }
    }

    /// Hands a task to the thread that writes snapshots.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when it has many.
    pub fn ask_for(&mut self, task: Task) -> Result<(), Failure> {
        let busy = || Failure::new(ErrorKind::Busy, "too many backups are under way");
        let tasks = self.snapshots.tasks.as_ref().ok_or_else(busy)?;
        tasks.try_send(task).map_err(|_| busy())
    }

    /// Begins to see the store as it is now, for [`Self::snapshot_piece`]; one that was under way
    /// ends.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] while the store is broken.
    pub fn begin_snapshot(&mut self, purpose: Purpose) -> Result<LogIndex, Failure> {
        if let Some(broken) = self.broken() {
            return Err(Failure::new(ErrorKind::Unavailable, broken));
        }
        self.end_snapshot("another one has begun");
        self.snapshots.was_overrun = false;
        let index = self.log.last();
        let without = match purpose {
            Purpose::Recovery => {
                self.snapshots.behind = 0;
                self.snapshots.appended_at = self.log.appended();
                None
            }
            // Who may make a backup need not be able to sign for the server.
            Purpose::Backup => Some(keys::signing_keys()),
        };
        self.snapshots.run = Some(Run::new(index, without));
        self.snapshots.pressure.handle_fetch(self.clock.instant());
        Ok(index)
    }

    /// The next pairs of what was seen of `index`, in blocks; none at its end.
    ///
    /// # Errors
    /// [`ErrorKind::Cancelled`] when it was given up, with the reason; when the store fails, or
    /// holds what a snapshot cannot.
    pub fn snapshot_piece(&mut self, index: LogIndex) -> Result<Vec<Vec<Pair>>, Failure> {
        let blocks = self.next_blocks(index);
        self.snapshots.pressure.handle_fetch(self.clock.instant());
        self.tell_pressure();
        blocks
    }

    fn next_blocks(&mut self, index: LogIndex) -> Result<Vec<Vec<Pair>>, Failure> {
        let run = self.snapshots.run.take().filter(|run| run.index() == index);
        let Some(mut run) = run else {
            let why = self.snapshots.ended.clone().unwrap_or_default();
            return Err(Failure::new(ErrorKind::Cancelled, why));
        };
        let blocks = run.fetch_blocks(&*self.store.0);
        let blocks = blocks.map_err(|error| match error {
            RunError::Store(error) => self.failure(error.into()),
            RunError::Overrun | RunError::TooLong { .. } => {
                Failure::new(ErrorKind::Internal, error.to_string())
            }
        })?;
        if !blocks.is_empty() {
            self.snapshots.run = Some(run);
        }
        Ok(blocks)
    }

    /// Sees nothing any more of what was under way.
    pub fn end_snapshot(&mut self, why: &str) {
        if self.snapshots.run.take().is_some() {
            self.snapshots.ended = Some(why.to_owned());
            self.tell_pressure();
        }
    }

    /// Whether a snapshot was asked for that has not ended.
    #[must_use]
    pub fn is_snapshot_under_way(&self) -> bool {
        self.snapshots.asked
    }

    /// The snapshot has its name, and the log is short again.
    pub fn note_snapshot(&mut self, len: u64) {
        self.snapshots.newest_len = len;
        self.snapshots.asked = false;
        self.snapshots.pause = PAUSE_MIN;
        self.snapshots.failures = 0;
    }

    /// The snapshot came to nothing: the next attempt waits, each time longer, unless this one was
    /// overrun by changes: the log grows by them as well, and they may end soon.
    pub fn note_snapshot_failure(&mut self) {
        let was_overrun = self.snapshots.was_overrun;
        // Only what is behind the one before counts, and that is unknown: all of the log does.
        self.snapshots.behind = self.log.bytes();
        self.snapshots.asked = false;
        if self.snapshots.failures == 0 {
            self.snapshots.failing_since = self.now();
        }
        self.snapshots.failures = self.snapshots.failures.saturating_add(1);
        if was_overrun {
            self.snapshots.pause = PAUSE_MIN;
        }
        self.snapshots.not_before = self.now().plus(self.snapshots.pause);
        if !was_overrun {
            self.snapshots.pause = (self.snapshots.pause * 2).min(PAUSE_MAX);
        }
    }

    /// Removes one segment of the log of which every record is at most `through`, and tells whether
    /// there was one. Whoever calls has two snapshots, the older of this index.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn shorten_log(&mut self, through: LogIndex) -> Result<bool, Failure> {
        self.log.remove_first(through).map_err(log_failure)
    }

    /// Keeps what `batch` is about to change for the run that is under way.
    pub(super) fn set_aside(&mut self, batch: &Batch) {
        self.follow_census(batch);
        let Some(run) = &mut self.snapshots.run else { return };
        if let Err(error) = run.before_commit(&*self.store.0, batch) {
            self.snapshots.was_overrun = matches!(error, RunError::Overrun);
            // If it is the store that failed, the commit finds out.
            self.end_snapshot(&error.to_string());
        }
        self.tell_pressure();
    }

    /// Has those who have time wait while the run is short of memory. A backup is overrun as a
    /// snapshot to recover from is.
    fn tell_pressure(&self) {
        let is_short = self.snapshots.run.as_ref().is_some_and(Run::is_short);
        self.snapshots.pressure.tell(is_short, self.clock.instant());
    }
}

/// Between a failed snapshot and the next attempt.
const PAUSE_MIN: Duration = Duration::from_secs(60);

/// So many failures in a row are worth a word to an operator: they do not end by themselves.
const FAILURES_TOLD: u32 = 3;

/// A disk that stays full is looked at once an hour.
const PAUSE_MAX: Duration = Duration::from_secs(3600);

#[cfg(test)]
mod tests;
