//! Bringing the index back after a stop of any kind.
//!
//! The newest checkpoint is loaded, then the journal's records are applied in order.
//!
//! - **The daemon ended in order, or was killed under the same boot**: everything that was written
//!   is there. A torn last record was never acknowledged and ends its segment.
//! - **The machine lost its memory** (another boot id, and no stop record at the end): records
//!   after the last commit are *pending*. Each is kept only if the pages that it points to match
//!   their checksums; otherwise the older version stands, whose pages were in quarantine. Records
//!   that cannot be read end the journal. The loss count is raised, because what is missing cannot
//!   be known, and the outcome is checkpointed at once, so that it is never decided a second time.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use millrace_types::{ClusterId, TargetId};

use super::{
    index::Index,
    journal::{SECTOR, checkpoint_path, numbered_files},
    page_checksum::{PAGE, of_pages},
    sessions::AppliedWrites,
};
use crate::{
    disk::Directory,
    format::{
        FormatError,
        checkpoint::{CHECKPOINT_HEADER_LEN, CheckpointHeader, Entry, take_entry},
        record::Record,
        segment::{BootId, SEGMENT_HEADER_LEN, SegmentHeader},
    },
};

/// Why a target cannot be opened. Nothing on its disk has been changed.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The system refuses.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file or directory.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file holds other bytes than the format says.
    #[error("{}: {source}", path.display())]
    Format {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        source: FormatError,
    },
    /// The disk belongs to another cluster.
    #[error(
        "{}: this target belongs to cluster {found}, not to {expected}; if that is meant, empty \
         the directory first", path.display()
    )]
    OtherCluster {
        /// The target's directory.
        path: PathBuf,
        /// The cluster in the superblock.
        found: ClusterId,
        /// The cluster of this daemon.
        expected: ClusterId,
    },
    /// A file belongs to another target.
    #[error("{}: the file belongs to another target; restore the right one", path.display())]
    OtherTarget {
        /// The file.
        path: PathBuf,
    },
    /// The directory holds data but does not say whose.
    #[error(
        "{}: there is data but no superblock; restore the superblock, or empty the directory to \
         begin with a blank target", path.display()
    )]
    NoSuperblock {
        /// The target's directory.
        path: PathBuf,
    },
    /// The directory is empty although the settings name the target that it must hold.
    #[error(
        "{}: the directory is empty, but a certain target is expected; mount its disk, or remove \
         the id from the settings to begin with a blank target", path.display()
    )]
    Blank {
        /// The target's directory.
        path: PathBuf,
    },
    /// Another process serves the target.
    #[error("{}: another process is using this target", path.display())]
    InUse {
        /// The target's directory.
        path: PathBuf,
    },
    /// Records are missing in the middle.
    #[error(
        "{}: the journal is damaged at record {sequence}, although later records exist; the target \
         is left as it is for a person to look at", path.display()
    )]
    JournalGap {
        /// The segment.
        path: PathBuf,
        /// The first record that is missing.
        sequence: u64,
    },
    /// Two chunks claim the same place, or one lies outside the data file.
    #[error("{}: page {page} is claimed twice or lies outside the data file", path.display())]
    Overlap {
        /// The target's directory.
        path: PathBuf,
        /// The page.
        page: u64,
    },
}

impl OpenError {
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> Self + '_ {
        |source| Self::Io { path: path.to_owned(), source }
    }

    fn format(path: &Path) -> impl FnOnce(FormatError) -> Self + '_ {
        |source| Self::Format { path: path.to_owned(), source }
    }
}

/// What was found.
#[derive(Debug)]
pub(super) struct Recovered {
    pub(super) index: Index,
    /// The newest record that was read.
    pub(super) sequence: u64,
    pub(super) loss_count: u64,
    /// Whether unsynced writes may be gone; the outcome must then be checkpointed.
    pub(super) lossy: bool,
    /// Pending records that were dropped because their data is not there.
    pub(super) dropped: usize,
    /// Bytes of journal beyond the checkpoint.
    pub(super) replay_bytes: u64,
}

/// Whose journal is expected.
#[derive(Clone, Copy, Debug)]
pub(super) struct Expected {
    pub(super) cluster: ClusterId,
    pub(super) target: TargetId,
    pub(super) boot: BootId,
}

/// Reads checkpoint and journal in `dir`. `read_pages` reads pages of the data file.
pub(super) fn recover(
    directory: &dyn Directory,
    dir: &Path,
    expected: Expected,
    applied: &AppliedWrites,
    mut read_pages: impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> Result<Recovered, OpenError> {
    let (mut index, checkpoint, mut loss_count) = load_checkpoint(directory, dir, expected)?;
    let journal = read_journal(directory, dir, expected, checkpoint)?;
    let lossy = journal.boot.is_some_and(|boot| boot != expected.boot) && !journal.stopped;
    if let Some(gap) = &journal.gap
        && (!lossy || gap.commit_follows)
    {
        return Err(OpenError::JournalGap { path: gap.path.clone(), sequence: gap.sequence });
    }
    let committed = journal
        .records
        .iter()
        .filter_map(|(record, _)| match record {
            Record::Commit(through) => Some(*through),
            _ => None,
        })
        .next_back()
        .unwrap_or(checkpoint);
    let mut dropped = 0;
    let mut dropped_of = BTreeSet::new();
    let mut sequence = checkpoint;
    for (record, number) in &journal.records {
        sequence = *number;
        if let Record::Loss(count) = record {
            loss_count = *count;
        }
        if let Record::Blocks(change) = record {
            if lossy && *number > committed && !is_intact(record, &mut read_pages) {
                dropped += 1;
                dropped_of.insert(change.key.inode);
                continue;
            }
            if change.session.0 != 0 {
                applied.remember(change.session, change.number, change.version);
            }
        }
        // A mark says that a trim is done, which it is not without its last block. Nobody was told,
        // and whoever asked asks again.
        if let Record::Mark(mark) = record
            && *number > committed
            && dropped_of.contains(&mark.inode)
        {
            continue;
        }
        index.apply(record, *number);
    }
    let replay_bytes = journal.bytes;
    Ok(Recovered { index, sequence, loss_count, lossy, dropped, replay_bytes })
}

/// Whether the pages that a pending record points to hold what it says.
fn is_intact(
    record: &Record,
    read_pages: &mut impl FnMut(u64, &mut [u8]) -> io::Result<()>,
) -> bool {
    let Record::Blocks(change) = record else { return true };
    change.runs.iter().filter(|run| run.pages() > 0).all(|run| {
        // A megabyte at a time bounds the memory.
        let mut first = run.first_page;
        run.checksums.chunks(256).all(|checksums| {
            let mut bytes = vec![0; checksums.len() * PAGE];
            let read = read_pages(first, &mut bytes);
            first += checksums.len() as u64;
            read.is_ok() && of_pages(&bytes) == checksums
        })
    })
}

fn load_checkpoint(
    directory: &dyn Directory,
    dir: &Path,
    expected: Expected,
) -> Result<(Index, u64, u64), OpenError> {
    let mut index = Index::default();
    let found = numbered_files(directory, dir, "checkpoint").map_err(OpenError::io(dir))?;
    let Some((number, path)) = found.into_iter().next_back() else { return Ok((index, 0, 0)) };
    debug_assert_eq!(path, checkpoint_path(dir, number));
    let bytes = directory.read(&path).map_err(OpenError::io(&path))?;
    let header = CheckpointHeader::decode(&bytes).map_err(OpenError::format(&path))?;
    if header.cluster != expected.cluster || header.target != expected.target {
        return Err(OpenError::OtherTarget { path });
    }
    let mut rest = &bytes[CHECKPOINT_HEADER_LEN..];
    let mut entries = 0;
    loop {
        let (entry, len) = take_entry(rest).map_err(OpenError::format(&path))?;
        rest = &rest[len..];
        match entry {
            Entry::Chunk(record) => index.restore(record),
            Entry::Mark(mark) => index.apply_mark(mark),
            Entry::End(count) if count == entries => break,
            Entry::End(_) => {
                let source = FormatError::Impossible { what: "a checkpoint", field: "entry count" };
                return Err(OpenError::Format { path, source });
            }
        }
        entries += 1;
    }
    Ok((index, header.sequence, header.loss_count))
}

/// The records beyond a checkpoint.
#[derive(Debug, Default)]
struct FoundJournal {
    records: Vec<(Record, u64)>,
    /// The boot under which the last segment was begun.
    boot: Option<BootId>,
    /// Whether the last record says that the daemon ended in order.
    stopped: bool,
    gap: Option<Gap>,
    bytes: u64,
}

#[derive(Debug)]
struct Gap {
    path: PathBuf,
    sequence: u64,
    /// A commit after the gap proves that the missing record had been durable.
    commit_follows: bool,
}

fn read_journal(
    directory: &dyn Directory,
    dir: &Path,
    expected: Expected,
    checkpoint: u64,
) -> Result<FoundJournal, OpenError> {
    let mut found = FoundJournal::default();
    let mut next = None;
    let segments = numbered_files(directory, dir, "log").map_err(OpenError::io(dir))?;
    let last = segments.len().wrapping_sub(1);
    for (at, (first, path)) in segments.into_iter().enumerate() {
        let bytes = directory.read(&path).map_err(OpenError::io(&path))?;
        let header = match SegmentHeader::decode(&bytes) {
            Ok(header) => header,
            // A segment whose header never reached the disk holds nothing either.
            Err(FormatError::Truncated(_) | FormatError::Magic(_)) if at == last => continue,
            Err(source) => return Err(OpenError::Format { path, source }),
        };
        if header.cluster != expected.cluster || header.target != expected.target {
            return Err(OpenError::OtherTarget { path });
        }
        found.boot = Some(header.boot);
        // A stop record counts only while no later run has begun: each run syncs its first header.
        found.stopped = false;
        let due = *next.get_or_insert_with(|| first.min(checkpoint + 1));
        if first != due && found.gap.is_none() {
            let gap = Gap { path: path.clone(), sequence: due, commit_follows: false };
            found.gap = Some(gap);
        }
        next = Some(read_segment(&bytes, first, checkpoint, &mut found));
    }
    Ok(found)
}

/// Reads the records of one segment; returns the sequence that must follow.
fn read_segment(bytes: &[u8], first: u64, checkpoint: u64, found: &mut FoundJournal) -> u64 {
    let mut next = first;
    let mut at = SEGMENT_HEADER_LEN;
    loop {
        // A record follows the one before it, or begins the next sector. Another sequence means
        // bytes of an earlier use of the same blocks: the journal ends before them.
        let places = [at, at.next_multiple_of(SECTOR)];
        let found_at = places.into_iter().find_map(|place| {
            let decoded = Record::decode(bytes.get(place..)?).ok()?;
            (decoded.1 == next).then_some((place, decoded))
        });
        let Some((place, (record, sequence, len))) = found_at else { break };
        at = place + len;
        next += 1;
        if let Some(gap) = &mut found.gap {
            gap.commit_follows |= matches!(record, Record::Commit(_));
            continue;
        }
        found.stopped = record == Record::Stop;
        if sequence > checkpoint {
            found.bytes += len as u64;
            found.records.push((record, sequence));
        }
    }
    next
}
