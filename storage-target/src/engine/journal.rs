//! Appending to the journal: segments of fixed size, given their space before they are used.
//!
//! A record that [`Journal::append`] returned from is in the kernel: it survives a kill of the
//! process. [`Journal::unsynced`] gives what a barrier must sync to make it survive a loss of
//! power.
//!
//! The last part of each segment is kept for records that free space, so that a full file system
//! can always be emptied.

use std::{
    fs::{self, File, OpenOptions},
    io,
    os::unix::fs::{FileExt, OpenOptionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_types::{ClusterId, TargetId};
use rustix::fs::FallocateFlags;

use super::error::EngineError;
use crate::format::{
    record::Record,
    segment::{BootId, SEGMENT_HEADER_LEN, SegmentHeader},
};

/// Bytes of a segment. A record of a 1 MiB write has 1.2 KiB, so one segment stands for 13 GiB.
const SEGMENT_LEN: u64 = 16 * 1024 * 1024;

/// The part of a segment for records that free space.
const RESERVE_LEN: u64 = 1024 * 1024;

/// Whose journal it is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Identity {
    pub(super) cluster: ClusterId,
    pub(super) target: TargetId,
    pub(super) boot: BootId,
}

/// Whether a record frees space, and may therefore use the reserve.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    Store,
    Free,
}

/// The journal's writing end.
#[derive(Debug)]
pub(super) struct Journal {
    dir: PathBuf,
    identity: Identity,
    segment: Arc<File>,
    segment_path: PathBuf,
    /// Where the next record goes.
    offset: u64,
    sequence: u64,
    /// Bytes of records in all segments that no checkpoint covers.
    replay_bytes: u64,
    /// Full segments that no barrier has synced.
    unsynced: Vec<Arc<File>>,
    directory_changed: bool,
    scratch: Vec<u8>,
}

impl Journal {
    /// Begins a segment after `sequence`, the newest record so far. `replay_bytes` is what the
    /// older segments hold beyond the newest checkpoint.
    pub(super) fn begin(
        dir: &Path,
        identity: Identity,
        sequence: u64,
        replay_bytes: u64,
    ) -> io::Result<Self> {
        let (segment, segment_path) = obtain_segment(dir, identity, sequence + 1, None)?;
        // The header tells the next start under which boot this run was, so it must be there.
        segment.sync_all()?;
        sync_directory(dir)?;
        Ok(Self {
            dir: dir.to_owned(),
            identity,
            segment,
            segment_path,
            offset: SEGMENT_HEADER_LEN as u64,
            sequence,
            replay_bytes,
            unsynced: Vec::new(),
            directory_changed: false,
            scratch: Vec::new(),
        })
    }

    /// The newest record's sequence.
    pub(super) fn sequence(&self) -> u64 {
        self.sequence
    }

    /// Bytes that a restart would have to read beyond the newest checkpoint.
    pub(super) fn replay_bytes(&self) -> u64 {
        self.replay_bytes
    }

    /// Appends records, all or none of them; returns the sequence of the last.
    pub(super) fn append(
        &mut self,
        records: &[Record],
        purpose: Purpose,
    ) -> Result<u64, EngineError> {
        self.scratch.clear();
        for (sequence, record) in (self.sequence + 1..).zip(records) {
            record.encode(sequence, &mut self.scratch);
        }
        let len = self.scratch.len() as u64;
        let limit = match purpose {
            Purpose::Store => SEGMENT_LEN - RESERVE_LEN,
            Purpose::Free => SEGMENT_LEN,
        };
        if self.offset + len > SEGMENT_LEN - RESERVE_LEN
            && let Err(error) = self.rotate()
        {
            let fits = self.offset + len <= limit;
            if !fits {
                return Err(EngineError::journal(error));
            }
        }
        // A failed write leaves bytes that the next one overwrites: nothing ever points past them.
        self.segment.write_all_at(&self.scratch, self.offset).map_err(EngineError::journal)?;
        self.offset += len;
        self.replay_bytes += len;
        self.sequence += records.len() as u64;
        Ok(self.sequence)
    }

    /// Ends the segment and begins another.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        if self.offset == SEGMENT_HEADER_LEN as u64 {
            return Ok(());
        }
        let present = Some(self.segment_path.as_path());
        let (segment, path) = obtain_segment(&self.dir, self.identity, self.sequence + 1, present)?;
        let full = std::mem::replace(&mut self.segment, segment);
        self.segment_path = path;
        self.offset = SEGMENT_HEADER_LEN as u64;
        self.unsynced.push(full);
        self.directory_changed = true;
        Ok(())
    }

    /// What must be synced to make every record so far durable. If a sync fails, hand it to
    /// [`Self::still_unsynced`].
    pub(super) fn unsynced(&mut self) -> Unsynced {
        let mut files = std::mem::take(&mut self.unsynced);
        files.push(Arc::clone(&self.segment));
        let directory = std::mem::take(&mut self.directory_changed).then(|| self.dir.clone());
        Unsynced { files, directory }
    }

    /// Takes back what could not be synced.
    pub(super) fn still_unsynced(&mut self, unsynced: Unsynced) {
        self.directory_changed |= unsynced.directory.is_some();
        let current = &self.segment;
        let full = unsynced.files.into_iter().filter(|file| !Arc::ptr_eq(file, current));
        self.unsynced.extend(full);
    }

    /// Notes that a checkpoint covers every record before the present segment.
    pub(super) fn checkpointed(&mut self, covered_bytes: u64) {
        self.replay_bytes -= covered_bytes.min(self.replay_bytes);
    }

    /// The file of the present segment.
    pub(super) fn segment_path(&self) -> &Path {
        &self.segment_path
    }
}

/// Files to sync, and the directory if it changed.
#[derive(Debug)]
pub(super) struct Unsynced {
    files: Vec<Arc<File>>,
    directory: Option<PathBuf>,
}

impl Unsynced {
    pub(super) fn sync(&self) -> io::Result<()> {
        self.files.iter().try_for_each(|file| file.sync_data())?;
        self.directory.as_deref().map_or(Ok(()), sync_directory)
    }
}

/// Makes the names in a directory durable.
pub(super) fn sync_directory(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// The name of the segment that begins with `sequence`. Sixteen digits sort as numbers do.
pub(super) fn segment_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{sequence:016x}.log"))
}

/// The name of the checkpoint that contains everything up to `sequence`.
pub(super) fn checkpoint_path(dir: &Path, sequence: u64) -> PathBuf {
    dir.join(format!("{sequence:016x}.checkpoint"))
}

/// The files of a kind in `dir` with the number in their names, lowest first.
pub(super) fn numbered_files(dir: &Path, extension: &str) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.extension().is_none_or(|found| found != extension) {
            continue;
        }
        let stem = path.file_stem().and_then(|stem| stem.to_str()).unwrap_or_default();
        if let Ok(number) = u64::from_str_radix(stem, 16) {
            files.push((number, path));
        }
    }
    files.sort_unstable();
    Ok(files)
}

/// Creates a segment, also when the file system is full: then older segments give up the space
/// that they were given and have not used, and the new one may get less. A full target can so be
/// started, and emptied, however often it is killed. The segment in use keeps its reserve.
fn obtain_segment(
    dir: &Path,
    identity: Identity,
    first_sequence: u64,
    in_use: Option<&Path>,
) -> io::Result<(Arc<File>, PathBuf)> {
    let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
    let mut outcome = create_segment(dir, identity, first_sequence, SEGMENT_LEN);
    for len in [SEGMENT_LEN, SEGMENT_LEN / 4, RESERVE_LEN, RESERVE_LEN / 16] {
        match &outcome {
            Err(error) if full(error) => {}
            _ => break,
        }
        trim_segments(dir, in_use)?;
        outcome = create_segment(dir, identity, first_sequence, len);
        if outcome.is_ok() {
            tracing::warn!(dir = %dir.display(), len, "the disk is full; a short journal segment");
        }
    }
    outcome
}

/// Gives back the space behind the end of each segment but the one in use.
fn trim_segments(dir: &Path, in_use: Option<&Path>) -> io::Result<()> {
    let old = |(_, path): &(u64, PathBuf)| Some(path.as_path()) != in_use;
    for (_, path) in numbered_files(dir, "log")?.into_iter().filter(old) {
        let file = OpenOptions::new().write(true).open(path)?;
        file.set_len(file.metadata()?.len())?;
    }
    Ok(())
}

fn create_segment(
    dir: &Path,
    identity: Identity,
    first_sequence: u64,
    len: u64,
) -> io::Result<(Arc<File>, PathBuf)> {
    let path = segment_path(dir, first_sequence);
    // A segment of this name can only be one that a stop left without a record.
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(true).mode(0o600).open(&path)?;
    let filled = match rustix::fs::fallocate(&file, FallocateFlags::KEEP_SIZE, 0, len) {
        Err(rustix::io::Errno::OPNOTSUPP) => Ok(()),
        other => other.map_err(io::Error::from),
    };
    let header = SegmentHeader {
        cluster: identity.cluster,
        target: identity.target,
        first_sequence,
        boot: identity.boot,
    };
    let written = filled.and_then(|()| file.write_all_at(&header.encode(), 0));
    if let Err(error) = written {
        // Half a segment would look like damage at the next start.
        drop(fs::remove_file(&path));
        return Err(error);
    }
    Ok((Arc::new(file), path))
}
