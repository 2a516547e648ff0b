//! Appending to the journal: segments of fixed size, given their space before they are used.
//!
//! A record that [`Journal::append`] returned from is in the kernel: it survives a kill of the
//! process. [`Journal::unsynced`] gives what a barrier must sync to make it survive a loss of
//! power.
//!
//! The last part of each segment is kept for records that free space, so that a full file system
//! can always be emptied.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_types::{ClusterId, TargetId};

use super::error::EngineError;
use crate::{
    disk::{Directory, directory::PlainFile},
    format::{
        record::Record,
        segment::{BootId, SEGMENT_HEADER_LEN, SegmentHeader},
    },
};

/// Records that are appended after a sync begin in a sector of their own: the one that is being
/// written when the power goes may be lost with everything in it.
pub(super) const SECTOR: usize = 512;
const _: () = assert!(SEGMENT_HEADER_LEN <= SECTOR);

/// How large the journal's parts are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct JournalSizes {
    /// Bytes of a segment.
    pub segment_bytes: u64,
    /// The part of a segment for records that free space.
    pub reserve_bytes: u64,
    /// Journal beyond the checkpoint at most.
    pub checkpoint_bytes: u64,
}

impl Default for JournalSizes {
    /// A record of a 1 MiB write has 1.2 KiB, so one segment stands for 13 GiB. A start reads
    /// about twice the bytes of a checkpoint in 0.2 s.
    fn default() -> Self {
        const MIB: u64 = 1024 * 1024;
        Self { segment_bytes: 16 * MIB, reserve_bytes: MIB, checkpoint_bytes: 32 * MIB }
    }
}

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
    directory: Arc<dyn Directory>,
    dir: PathBuf,
    identity: Identity,
    sizes: JournalSizes,
    segment: Arc<dyn PlainFile>,
    segment_path: PathBuf,
    /// Where the next record goes.
    offset: u64,
    sequence: u64,
    /// Bytes of records in all segments that no checkpoint covers.
    replay_bytes: u64,
    /// Full segments that no barrier has synced.
    unsynced: Vec<Arc<dyn PlainFile>>,
    directory_changed: bool,
    scratch: Vec<u8>,
}

impl Journal {
    /// Begins a segment after `sequence`, the newest record so far. `replay_bytes` is what the
    /// older segments hold beyond the newest checkpoint.
    pub(super) fn begin(
        directory: &Arc<dyn Directory>,
        dir: &Path,
        identity: Identity,
        sizes: JournalSizes,
        sequence: u64,
        replay_bytes: u64,
    ) -> io::Result<Self> {
        // What a killed process has appended may still be in memory only: nobody else syncs it, and
        // the next commit promises it.
        for (_, path) in numbered_files(&**directory, dir, "log")? {
            directory.open(&path)?.sync()?;
        }
        let (segment, segment_path) =
            obtain_segment(&**directory, dir, identity, sizes, sequence + 1, None)?;
        // The header tells the next start under which boot this run was, so it must be there.
        segment.sync()?;
        directory.sync_names(dir)?;
        Ok(Self {
            directory: Arc::clone(directory),
            dir: dir.to_owned(),
            identity,
            sizes,
            segment,
            segment_path,
            offset: SECTOR as u64,
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
            Purpose::Store => self.sizes.segment_bytes - self.sizes.reserve_bytes,
            Purpose::Free => self.sizes.segment_bytes,
        };
        if self.offset + len > self.sizes.segment_bytes - self.sizes.reserve_bytes
            && let Err(error) = self.rotate()
        {
            let fits = self.offset + len <= limit;
            if !fits {
                return Err(EngineError::journal(error));
            }
        }
        // A failed write leaves bytes that the next one overwrites: nothing ever points past them.
        self.segment.write_at(self.offset, &self.scratch).map_err(EngineError::journal)?;
        self.offset += len;
        self.replay_bytes += len;
        self.sequence += records.len() as u64;
        Ok(self.sequence)
    }

    /// Ends the sector, because what is in it is about to be synced.
    pub(super) fn end_sector(&mut self) {
        let end = self.offset.next_multiple_of(SECTOR as u64);
        self.replay_bytes += end - self.offset;
        self.offset = end;
    }

    /// Ends the segment and begins another.
    pub(super) fn rotate(&mut self) -> io::Result<()> {
        if self.offset == SECTOR as u64 {
            return Ok(());
        }
        let present = Some(self.segment_path.as_path());
        let next = self.sequence + 1;
        let (segment, path) =
            obtain_segment(&*self.directory, &self.dir, self.identity, self.sizes, next, present)?;
        let full = std::mem::replace(&mut self.segment, segment);
        self.segment_path = path;
        self.offset = SECTOR as u64;
        self.unsynced.push(full);
        self.directory_changed = true;
        Ok(())
    }

    /// What must be synced to make every record so far durable. If a sync fails, hand it to
    /// [`Self::still_unsynced`].
    pub(super) fn unsynced(&mut self) -> Unsynced {
        let mut files = std::mem::take(&mut self.unsynced);
        files.push(Arc::clone(&self.segment));
        let changed = std::mem::take(&mut self.directory_changed);
        let names = changed.then(|| (Arc::clone(&self.directory), self.dir.clone()));
        Unsynced { files, names }
    }

    /// Takes back what could not be synced.
    pub(super) fn still_unsynced(&mut self, unsynced: Unsynced) {
        self.directory_changed |= unsynced.names.is_some();
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
    files: Vec<Arc<dyn PlainFile>>,
    names: Option<(Arc<dyn Directory>, PathBuf)>,
}

impl Unsynced {
    pub(super) fn sync(&self) -> io::Result<()> {
        self.files.iter().try_for_each(|file| file.sync())?;
        self.names.as_ref().map_or(Ok(()), |(directory, path)| directory.sync_names(path))
    }
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
pub(super) fn numbered_files(
    directory: &dyn Directory,
    dir: &Path,
    extension: &str,
) -> io::Result<Vec<(u64, PathBuf)>> {
    let mut files = Vec::new();
    for path in directory.list(dir)? {
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
    directory: &dyn Directory,
    dir: &Path,
    identity: Identity,
    sizes: JournalSizes,
    first_sequence: u64,
    in_use: Option<&Path>,
) -> io::Result<(Arc<dyn PlainFile>, PathBuf)> {
    let full = |error: &io::Error| error.kind() == io::ErrorKind::StorageFull;
    let (segment, reserve) = (sizes.segment_bytes, sizes.reserve_bytes);
    let mut outcome = create_segment(directory, dir, identity, first_sequence, segment);
    for len in [segment, segment / 4, reserve, reserve / 16] {
        match &outcome {
            Err(error) if full(error) => {}
            _ => break,
        }
        trim_segments(directory, dir, in_use)?;
        outcome = create_segment(directory, dir, identity, first_sequence, len);
        if outcome.is_ok() {
            tracing::warn!(dir = %dir.display(), len, "the disk is full; a short journal segment");
        }
    }
    outcome
}

/// Gives back the space behind the end of each segment but the one in use.
fn trim_segments(directory: &dyn Directory, dir: &Path, in_use: Option<&Path>) -> io::Result<()> {
    let old = |(_, path): &(u64, PathBuf)| Some(path.as_path()) != in_use;
    for (_, path) in numbered_files(directory, dir, "log")?.into_iter().filter(old) {
        directory.open(&path)?.give_back_room()?;
    }
    Ok(())
}

fn create_segment(
    directory: &dyn Directory,
    dir: &Path,
    identity: Identity,
    first_sequence: u64,
    len: u64,
) -> io::Result<(Arc<dyn PlainFile>, PathBuf)> {
    let path = segment_path(dir, first_sequence);
    // A segment of this name can only be one that a stop left without a record.
    let file = directory.create(&path)?;
    let header = SegmentHeader {
        cluster: identity.cluster,
        target: identity.target,
        first_sequence,
        boot: identity.boot,
    };
    let written = file.allocate(len).and_then(|()| file.write_at(0, &header.encode()));
    if let Err(error) = written {
        // Half a segment would look like damage at the next start.
        drop(directory.remove(&path));
        return Err(error);
    }
    Ok((file, path))
}
