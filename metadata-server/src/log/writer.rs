//! Appends records: one write(2) each, to segments of bounded size.
//!
//! Owns the position in the last segment. A failed write is taken back by cutting the file to where
//! it was, so that a full disk leaves nothing half-written and the log works again once there is
//! room.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use millrace_runtime::Random;
use millrace_types::{ClusterId, LogIndex};

use super::{
    LogError, SyncState, Syncer, record,
    recovery::{Recovered, recover},
    segment::{self, Tail},
};
use crate::files::Files;

/// How the log is written.
#[derive(Debug, Clone)]
pub struct LogSettings {
    /// Below what the segments lie.
    pub files: Arc<dyn Files>,
    /// Where the segments are.
    pub dir: PathBuf,
    /// Whose log it is.
    pub cluster: ClusterId,
    /// A segment is ended once it has grown past this many bytes.
    pub segment_bytes: u64,
    /// Nothing stays unsynced for longer.
    pub sync_interval: Duration,
    /// Where the secrets of segments come from.
    pub random: Random,
}

/// The end of the log. One owner appends; the syncer works beside it.
#[derive(Debug)]
pub struct Writer {
    settings: LogSettings,
    /// The present segment.
    tail: Tail,
    /// Bytes of all segments.
    total: u64,
    /// Bytes that went into records since it was opened.
    appended: u64,
    last: LogIndex,
    stopped: bool,
    syncer: Arc<Syncer>,
}

impl Writer {
    /// Recovers the log and goes on behind its last good record. Everything found is synced
    /// first, also what a sync that failed before has dropped.
    ///
    /// # Errors
    /// As [`recover`]; also when a new log cannot be made.
    pub fn open(
        settings: LogSettings,
        synced_at_least: LogIndex,
    ) -> Result<(Self, Recovered), LogError> {
        let (files, dir) = (&*settings.files, &settings.dir);
        let mut found = recover(files, dir, settings.cluster, synced_at_least)?;
        let tail = match found.tail.take() {
            Some(tail) => tail,
            None => new_segment(&settings, found.last.next())?,
        };
        let disk = |error| LogError::disk(&tail.path, error);
        tail.file.sync_data().map_err(disk)?;
        // A kill may have come between the making of the last segment and the sync of its name.
        settings.files.sync_dir(&settings.dir).map_err(disk)?;
        let syncer = Syncer::start(Arc::clone(&tail.file), found.last, settings.sync_interval)
            .map_err(|error| LogError::disk(&settings.dir, error))?;
        let writer = Self {
            total: found.bytes.max(tail.len),
            tail,
            appended: 0,
            last: found.last,
            stopped: false,
            syncer: Arc::new(syncer),
            settings,
        };
        Ok((writer, found))
    }

    /// Appends one record and returns its index. When this returns, the record survives a kill.
    ///
    /// # Errors
    /// [`LogError::NoSpace`]: nothing was appended, try again later. After [`LogError::Disk`] the
    /// log takes no more.
    pub fn append(&mut self, body: &[u8]) -> Result<LogIndex, LogError> {
        if body.len() > record::BODY_LEN_MAX {
            return Err(LogError::TooLarge(body.len()));
        }
        if self.is_stopped() {
            return Err(LogError::Stopped);
        }
        let is_full = self.tail.len >= self.settings.segment_bytes;
        if is_full || !self.tail.head.is_newest() {
            self.rotate()?;
        }
        let (index, synced) = (self.last.next(), self.syncer.state().synced);
        let tail = &mut self.tail;
        let bytes = record::encode(index, synced, body, tail.head.secret);
        if let Err(error) = tail.file.write_all_at(&bytes, tail.len) {
            if tail.file.set_len(tail.len).is_err() {
                self.stopped = true;
            }
            let error = LogError::disk(&tail.path, error);
            self.stopped |= !matches!(error, LogError::NoSpace);
            return Err(error);
        }
        tail.len += bytes.len() as u64;
        self.total += bytes.len() as u64;
        self.appended += bytes.len() as u64;
        self.last = index;
        self.syncer.wrote(index);
        Ok(index)
    }

    /// Whether a write or a sync has failed for good: it takes nothing any more.
    #[must_use]
    pub fn is_stopped(&self) -> bool {
        self.stopped || self.syncer.has_failed()
    }

    /// The last record.
    #[must_use]
    pub fn last(&self) -> LogIndex {
        self.last
    }

    /// Bytes of the log on disk.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.total
    }

    /// Bytes that went into records since it was opened.
    #[must_use]
    pub fn appended(&self) -> u64 {
        self.appended
    }

    /// Bytes of the segments that hold records behind `index`.
    ///
    /// # Errors
    /// When the disk fails.
    pub fn bytes_behind(&self, index: LogIndex) -> Result<u64, LogError> {
        let files = &*self.settings.files;
        let segments = segment::list(files, &self.settings.dir)?;
        let skip = segments.iter().rposition(|(first, _)| *first <= index.next()).unwrap_or(0);
        segments[skip..].iter().map(|(_, path)| segment::len(files, path)).sum()
    }

    /// Removes the first segment if all its records are at most `through`, and tells whether it
    /// did. The last segment always stays.
    ///
    /// # Errors
    /// When the disk fails; the log goes on.
    pub fn remove_first(&mut self, through: LogIndex) -> Result<bool, LogError> {
        let files = &*self.settings.files;
        let segments = segment::list(files, &self.settings.dir)?;
        let [(_, path), (next, _), ..] = segments.as_slice() else { return Ok(false) };
        if *next > through.next() {
            return Ok(false);
        }
        let len = segment::len(files, path)?;
        files.remove(path).map_err(|error| LogError::disk(path, error))?;
        self.total = self.total.saturating_sub(len);
        Ok(true)
    }

    /// Where the segments are.
    #[must_use]
    pub fn dir(&self) -> &Path {
        &self.settings.dir
    }

    /// What is written and synced.
    #[must_use]
    pub fn state(&self) -> SyncState {
        self.syncer.state()
    }

    /// For waiting until an index is synced, from any thread.
    #[must_use]
    pub fn syncer(&self) -> &Arc<Syncer> {
        &self.syncer
    }

    /// Ends the present segment and begins the next.
    fn rotate(&mut self) -> Result<(), LogError> {
        // By the thread that syncs: of two syncs at a time only one would be told of a failure.
        self.syncer.sync_all().inspect_err(|_| self.stopped = true)?;
        let next = new_segment(&self.settings, self.last.next())?;
        // One of an older version that had no records was made anew under its name.
        if next.path == self.tail.path {
            self.total -= self.tail.len;
        }
        self.total += next.len;
        self.syncer.rotate(Arc::clone(&next.file))?;
        self.tail = next;
        Ok(())
    }
}

fn new_segment(settings: &LogSettings, first: LogIndex) -> Result<Tail, LogError> {
    let LogSettings { files, dir, cluster, random, .. } = settings;
    segment::create(&**files, dir, first, *cluster, random)
}

#[cfg(test)]
mod tests;
