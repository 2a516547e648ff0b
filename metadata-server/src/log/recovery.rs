//! What a start finds in the log: a torn tail is cut, damage in the middle is refused in words.
//!
//! Only the last segment is checked as a whole at every start; the ones before it were synced
//! before it was made, and are checked when they are replayed. A bad record in the last segment is
//! a torn tail, unless the log is known to have been synced past it: by a later good record that
//! says so, or by the caller (`synced_at_least`, from a clean shutdown).
//!
//! The bytes behind a bad record hold what users chose, also where they look like records. So one
//! counts only with the segment's secret, outside the body of a record whose header is undamaged,
//! and where the writer can have put it.

use std::{
    io,
    path::{Path, PathBuf},
};

use millrace_types::{ClusterId, LogIndex};

use super::{
    LogError, record,
    segment::{self, Tail},
};
use crate::files::{self, Access, Files, OpenFile};

/// The log as a start finds it, with any torn tail cut off.
#[derive(Debug)]
pub struct Recovered {
    /// The last good record; 0 in an empty log.
    pub last: LogIndex,
    /// The segment to go on with.
    pub(super) tail: Option<Tail>,
    /// Bytes of all segments.
    pub bytes: u64,
    /// Bytes that were cut off as a torn tail.
    pub torn_bytes: u64,
}

/// Opens the log in `dir`, which is made if missing. The next sync of the segment to go on with has
/// to bring to stable storage whatever was found.
///
/// # Errors
/// [`LogError::Damaged`] when synced records are damaged; nothing is changed then.
pub fn recover(
    files: &dyn Files,
    dir: &Path,
    cluster: ClusterId,
    synced_at_least: LogIndex,
) -> Result<Recovered, LogError> {
    files.make_dir(dir).map_err(|error| LogError::disk(dir, error))?;
    let mut segments = segment::list(files, dir)?;
    drop_headless_tail(files, dir, &mut segments, cluster, synced_at_least)?;
    let mut bytes = 0;
    for (_, path) in &segments {
        bytes += segment::len(files, path)?;
    }
    let Some((first, path)) = segments.pop() else {
        let nothing = Recovered { last: LogIndex(0), tail: None, bytes: 0, torn_bytes: 0 };
        return missing(dir, LogIndex(0), synced_at_least).map(|()| nothing);
    };
    let scan = Scan::run(files, &path, first, cluster, |_, _| Ok(()))?;
    scan.check_is_torn_tail(synced_at_least)?;
    missing(&path, scan.last, synced_at_least)?;
    let torn_bytes = scan.bytes.len() as u64 - scan.good_len;
    let file = files.open(&path, Access::Write).map_err(|error| LogError::disk(&path, error))?;
    if torn_bytes > 0 {
        tracing::warn!(path = %path.display(), torn_bytes, last = %scan.last,
            "cut a torn tail off the command log");
        file.set_len(scan.good_len)
            .and_then(|()| file.sync_data())
            .map_err(|error| LogError::disk(&path, error))?;
    }
    scan.write_unsynced(&*file, synced_at_least).map_err(|error| LogError::disk(&path, error))?;
    let (last, len, head) = (scan.last, scan.good_len, scan.head);
    Ok(Recovered {
        last,
        tail: Some(Tail { path, file, len, head }),
        bytes: bytes - torn_bytes,
        torn_bytes,
    })
}

/// Calls `visit` with every record from index `from` on, in order.
///
/// # Errors
/// [`LogError::Damaged`] at the first bad or missing record; whatever `visit` returns.
pub fn replay<E: From<LogError>>(
    files: &dyn Files,
    dir: &Path,
    cluster: ClusterId,
    from: LogIndex,
    mut visit: impl FnMut(LogIndex, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    let segments = segment::list(files, dir)?;
    let skip = segments.iter().rposition(|(first, _)| *first <= from).unwrap_or(0);
    let mut next = from;
    for (first, path) in &segments[skip..] {
        if *first > next {
            return Err(LogError::Damaged {
                path: path.clone(),
                offset: 0,
                what: format!("the records from {next} on are missing before it"),
                last_good: LogIndex(next.0.saturating_sub(1)),
            }
            .into());
        }
        let scan = Scan::run(files, path, *first, cluster, |index, body| {
            if index >= next {
                visit(index, body)?;
                next = index.next();
            }
            Ok::<(), E>(())
        })?;
        scan.check_is_whole()?;
    }
    Ok(())
}

/// Refuses a log that ends before what is known to have been synced.
fn missing(path: &Path, last: LogIndex, synced_at_least: LogIndex) -> Result<(), LogError> {
    if last >= synced_at_least {
        return Ok(());
    }
    Err(LogError::Damaged {
        path: path.to_owned(),
        offset: 0,
        what: format!("the records up to {synced_at_least} were synced and are missing"),
        last_good: last,
    })
}

/// A crash while a segment was being made leaves one without a whole head and without records.
fn drop_headless_tail(
    files: &dyn Files,
    dir: &Path,
    segments: &mut Vec<(LogIndex, PathBuf)>,
    cluster: ClusterId,
    synced_at_least: LogIndex,
) -> Result<(), LogError> {
    let Some((first, path)) = segments.last() else {
        return Ok(());
    };
    let disk = |error| LogError::disk(path, error);
    let len = segment::len(files, path)?;
    if len > segment::HEAD_LEN as u64 || *first <= synced_at_least {
        return Ok(());
    }
    let file = files.open(path, Access::Read).map_err(disk)?;
    let bytes = files::read_all(&*file).map_err(disk)?;
    if segment::Head::read(&bytes, *first, cluster).is_err_and(segment::Flaw::is_torn) {
        files.remove(path).map_err(disk)?;
        files.sync_dir(dir).map_err(disk)?;
        segments.pop();
    }
    Ok(())
}

/// One pass over a segment.
struct Scan<'a> {
    path: &'a Path,
    first: LogIndex,
    bytes: Vec<u8>,
    head: segment::Head,
    /// Bytes of the head and of the good records.
    good_len: u64,
    last: LogIndex,
    /// The last that a good record says was synced.
    synced: LogIndex,
    flaw: Option<String>,
}

impl<'a> Scan<'a> {
    fn run<E: From<LogError>>(
        files: &dyn Files,
        path: &'a Path,
        first: LogIndex,
        cluster: ClusterId,
        mut visit: impl FnMut(LogIndex, &[u8]) -> Result<(), E>,
    ) -> Result<Self, E> {
        let bytes = files.open(path, Access::Read).and_then(|file| files::read_all(&*file));
        let bytes = bytes.map_err(|error| LogError::disk(path, error))?;
        let mut last = LogIndex(first.0 - 1);
        let head = segment::Head::read(&bytes, first, cluster);
        let head = head.map_err(|flaw| LogError::Damaged {
            path: path.to_owned(),
            offset: 0,
            what: flaw.to_string(),
            last_good: last,
        })?;
        // Of the segments before, all is.
        let mut synced = last;
        let mut at = head.len;
        let mut flaw = None;
        while at < bytes.len() {
            match record::decode(&bytes[at..], head.secret) {
                Ok((header, body)) if header.index == last.next() => {
                    visit(header.index, body)?;
                    last = header.index;
                    synced = synced.max(header.synced);
                    at += record::HEADER_LEN + body.len();
                }
                Ok((header, _)) => {
                    flaw = Some(format!(
                        "record {} stands where {} should",
                        header.index,
                        last.next()
                    ));
                    break;
                }
                Err(error) => {
                    flaw = Some(error.to_string());
                    break;
                }
            }
        }
        Ok(Self { path, first, bytes, head, good_len: at as u64, last, synced, flaw })
    }

    /// Writes the records once more of which nothing says that they were synced. A sync that failed
    /// leaves them in the kernel's memory as if they were on the disk: they can be read, and no
    /// later sync would write them.
    fn write_unsynced(&self, file: &dyn OpenFile, synced_at_least: LogIndex) -> io::Result<()> {
        let mut at = self.head.len;
        let mut unsynced = self.first;
        while unsynced <= self.synced.max(synced_at_least) && at < self.good_offset() {
            let Some(len) = record::len(&self.bytes[at..], self.head.secret) else { break };
            at += len;
            unsynced = unsynced.next();
        }
        match self.bytes.get(at..self.good_offset()) {
            Some(bytes) if !bytes.is_empty() => file.write_all_at(bytes, at as u64),
            _ => Ok(()),
        }
    }

    /// The last segment may end in records that were never synced.
    fn check_is_torn_tail(&self, synced_at_least: LogIndex) -> Result<(), LogError> {
        let was_synced = synced_at_least > self.last || self.was_synced_later();
        if self.flaw.is_some() && was_synced {
            return Err(self.damaged());
        }
        Ok(())
    }

    /// Whether a record behind the first bad one says that this one had been synced.
    fn was_synced_later(&self) -> bool {
        let rest = &self.bytes[self.good_offset()..];
        let secret = self.head.secret;
        let mut at = record::len(rest, secret).unwrap_or(0);
        while let Some(bytes) = rest.get(at..) {
            let is_possible =
                |skipped: usize, header: &record::Header| self.is_possible(at + skipped, header);
            let Some((skipped, header)) = record::find(bytes, secret, is_possible) else {
                return false;
            };
            if header.synced > self.last {
                return true;
            }
            at += skipped + record::HEADER_LEN + header.body_len;
        }
        false
    }

    /// Whether the writer can have put such a record so many bytes behind the last good one:
    /// indexes are dense, each record has at least its header, and what is synced was written.
    fn is_possible(&self, distance: usize, header: &record::Header) -> bool {
        let between = (distance / record::HEADER_LEN) as u64;
        let most = self.last.next().0.saturating_add(between);
        header.index > self.last && header.index.0 <= most && header.synced < header.index
    }

    /// Any other segment was synced as a whole.
    fn check_is_whole(&self) -> Result<(), LogError> {
        match self.flaw {
            None => Ok(()),
            Some(_) => Err(self.damaged()),
        }
    }

    fn good_offset(&self) -> usize {
        usize::try_from(self.good_len).expect("a segment fits in memory")
    }

    fn damaged(&self) -> LogError {
        LogError::Damaged {
            path: self.path.to_owned(),
            offset: self.good_len,
            what: self.flaw.clone().unwrap_or_default(),
            last_good: self.last,
        }
    }
}

#[cfg(test)]
mod tests;
