//! Copies that targets make by themselves, each with what it reads from another one.
//!
//! What this mount has buffered of either range is stored first. Then the range is cut into
//! requests, each within one chunk of both files, and several of them are on their way at a time.
//! What is acknowledged counts as any write that was stored.

use std::{
    ops::Range,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use futures::{StreamExt as _, stream};
use millrace_protocol::storage::TRANSFER_LEN_MAX;
use millrace_types::{ErrorKind, Failure, SessionId};
use tokio_util::sync::CancellationToken;

use super::{Spot, check_wanted, unwanted};
use crate::{
    cache::write_buffer::CopyNumber,
    fs::{
        FileSystem, REFRESH_PAUSE, REFRESHES_MAX,
        file::{Access, File, are_other_versions},
        handle::FileHandle,
        write::{check_end, needs_mark},
    },
};

/// How far targets have come with a copy.
#[derive(Debug, Default)]
pub(super) struct AtTargets {
    /// Bytes from its start that they have copied.
    pub(super) copied: u64,
    /// How many they were asked for: what lies behind `copied` of these may be copied or not.
    pub(super) tried: u64,
    /// What has ended it for good. Without it, what is left may be copied in another way.
    pub(super) failure: Option<Failure>,
    /// What the target's file knows it by, if it has begun, until it is ended there; and how many
    /// losses that had before.
    pub(super) begun: Option<(CopyNumber, u64)>,
}

/// One request's worth, with offsets from the start of each file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Piece {
    from: u64,
    to: u64,
    len: u64,
}

/// A copy that has begun.
#[derive(Clone, Copy, Debug)]
struct Begun<'a> {
    source: &'a FileHandle,
    /// What it had when the copy began.
    first: &'a Access,
    target: &'a Arc<File>,
    number: CopyNumber,
    /// In which the program copies.
    session: SessionId,
    /// Nothing more is to be sent.
    is_over: &'a AtomicBool,
    /// Nobody waits for it any more: others may write to the file now.
    let_go: &'a CancellationToken,
}

/// What became of a piece.
#[derive(Debug)]
enum Outcome {
    Copied,
    /// It was not sent.
    Left,
    Failed(Failure),
}

impl Piece {
    fn source(&self) -> Range<u64> {
        self.from..self.from + self.len
    }

    fn target(&self) -> Range<u64> {
        self.to..self.to + self.len
    }
}

impl FileSystem {
    /// Has targets copy what they can.
    ///
    /// # Errors
    /// What stands in the way before anything is sent.
    pub(super) async fn copy_at_targets(
        &self,
        source: Spot<'_>,
        target: Spot<'_>,
        len: u64,
        let_go: &CancellationToken,
    ) -> Result<AtTargets, Failure> {
        self.handle_returned(source.handle);
        source.handle.check_locks()?;
        let Some(len) = self.worth_asking(source, target, len)? else {
            return Ok(AtTargets::default());
        };
        let (from, to) = (&source.handle.file, &target.handle.file);
        let options = target.handle.options;
        let target_range = target.offset..target.offset + len;
        self.store_part(from, &(source.offset..source.offset + len)).await?;
        let sizing = to.sizing.lock().await;
        // In this order: what is sent after the end of this session is sent in none.
        let session = self.writing_session();
        target.handle.check_locks()?;
        if !(options.sync || options.direct) {
            target.handle.refuse_write()?;
        }
        check_end(to, target.offset, len)?;
        self.store_part(to, &target_range).await?;
        if needs_mark(to, target.offset) {
            self.declare_sparse(to).await?;
        }
        let first = readable(source.handle)?;
        let pieces = cut(source.offset, chunk_size(from)?, &target_range, chunk_size(to)?);
        let (number, losses) = {
            let mut state = to.state();
            let ranges = pieces.iter().map(Piece::target);
            (state.begin_copy(target.offset, ranges), state.losses)
        };
        drop(sizing);
        let is_over = AtomicBool::new(false);
        let (source, first, is_over) = (source.handle, &*first, &is_over);
        let begun = Begun { source, first, target: to, number, session, is_over, let_go };
        let sent = stream::iter(pieces).map(|piece| self.copy_one(begun, piece));
        let mut outcomes: Vec<_> = sent.buffer_unordered(PIECES_AT_ONCE).collect().await;
        outcomes.sort_unstable_by_key(|(piece, _)| piece.to);
        let (copied, failure) = summed(outcomes);
        Ok(AtTargets { copied, tried: len, failure, begun: Some((number, losses)) })
    }

    /// How much targets should be asked to copy, if they should.
    fn worth_asking(
        &self,
        source: Spot<'_>,
        target: Spot<'_>,
        len: u64,
    ) -> Result<Option<u64>, Failure> {
        let (from, to) = (&source.handle.file, &target.handle.file);
        // What they have may live in their inodes, or go there at a close.
        let is_in_inode = |handle: &FileHandle| {
            let is_known = handle.file.state().inline.is_some();
            is_known || self.fits_inode(handle)
        };
        if is_in_inode(source.handle) || is_in_inode(target.handle) {
            return Ok(None);
        }
        let mut state = from.state();
        // First: the end of a new version is not the end of the one that is copied here.
        source.handle.check_version(&state)?;
        let len = len.min(state.attributes.size.saturating_sub(source.offset));
        let chunk_size = state.access.as_ref().map(|access| access.content.layout.chunk_size());
        let Some(chunk_size) = chunk_size.filter(|_| len >= COPIED_LEN_MIN) else {
            return Ok(None);
        };
        let meets = || share_chunk(source.offset, target.offset, len, chunk_size.bytes());
        if from.inode == to.inode && meets() {
            return Ok(None);
        }
        if !source.handle.options.no_atime {
            self.note_read(&mut state.attributes);
        }
        Ok(Some(len))
    }

    /// Stores what is buffered of a part of a file.
    async fn store_part(&self, file: &Arc<File>, range: &Range<u64>) -> Result<(), Failure> {
        let (written, failures) = {
            let state = file.state();
            if !state.buffer.overlaps(range) {
                return Ok(());
            }
            (state.buffer.written_to(range), state.failures)
        };
        self.flush_part_telling(file, written, failures).await
    }

    /// Has a target copy one piece, unless the copy is over or nobody waits for it.
    async fn copy_one(&self, begun: Begun<'_>, piece: Piece) -> (Piece, Outcome) {
        if begun.is_over.load(Ordering::Relaxed) || begun.let_go.is_cancelled() {
            return (piece, Outcome::Left);
        }
        match self.copy_piece(begun, piece).await {
            Ok(()) => (piece, Outcome::Copied),
            Err(failure) => {
                begun.is_over.store(true, Ordering::Relaxed);
                (piece, Outcome::Failed(failure))
            }
        }
    }

    /// The same, with fresh views of both files as often as the present ones are old. Not when the
    /// program was let go: the file may have another content, in which others write.
    async fn copy_piece(&self, begun: Begun<'_>, piece: Piece) -> Result<(), Failure> {
        let mut told = false;
        for attempt in 0..REFRESHES_MAX {
            let failure = match self.copy_piece_once(begun, piece).await {
                Ok(()) => return Ok(()),
                Err(failure) => failure,
            };
            match failure.kind {
                ErrorKind::StaleContent | ErrorKind::StaleEpoch | ErrorKind::KeyRetired => {}
                ErrorKind::Forbidden => {
                    self.check_written_in(Some(begun.session))?;
                    if told {
                        return Err(failure);
                    }
                    told = true;
                    self.tell_writers(begun.target).await?;
                }
                _ => return Err(failure),
            }
            check_wanted(begun.let_go)?;
            if attempt > 0 {
                tokio::time::sleep(REFRESH_PAUSE).await;
            }
            // Which of the two it was, no answer says.
            self.refresh(begun.target).await?;
            self.refresh(&begun.source.file).await?;
        }
        Err(Failure::new(ErrorKind::Stale, "the files change faster than they can be copied"))
    }

    async fn copy_piece_once(&self, begun: Begun<'_>, piece: Piece) -> Result<(), Failure> {
        let access = self.writable(begun.target).await?;
        // That may be of the next session already.
        self.check_written_in(Some(begun.session))?;
        let source = readable(begun.source)?;
        if are_other_versions(&begun.first.content, &source.content) {
            // The handle may know of none: never mix two of them in one copy.
            return Err(ErrorKind::Stale.into());
        }
        // Those answers may have taken long.
        check_wanted(begun.let_go)?;
        let (range, source_range) = (piece.target(), piece.source());
        let copied = self.cluster.copy((&access, range.clone()), (&source, source_range));
        let written = tokio::select! {
            // What is acknowledged is recorded, whatever else has happened.
            biased;
            written = copied => written?,
            () = begun.let_go.cancelled() => return Err(unwanted()),
        };
        let stored = (written.target, written.loss_count);
        let now = self.cluster.now();
        begun.target.state().record_copied(begun.number, &range, &access, stored, now);
        Ok(())
    }
}

/// The way to the bytes of the version that the handle was opened on.
fn readable(handle: &FileHandle) -> Result<Arc<Access>, Failure> {
    let state = handle.file.state();
    handle.check_version(&state)?;
    let access = state.access.clone();
    access.ok_or_else(|| Failure::new(ErrorKind::PermissionDenied, "no right to the content"))
}

fn chunk_size(file: &File) -> Result<u64, Failure> {
    Ok(file.access()?.content.layout.chunk_size().bytes())
}

/// Whether a chunk has something of both ranges.
fn share_chunk(from: u64, to: u64, len: u64, chunk_size: u64) -> bool {
    let chunks = |start: u64| start / chunk_size..(start + len).div_ceil(chunk_size);
    let (one, other) = (chunks(from), chunks(to));
    one.start < other.end && other.start < one.end
}

/// Cuts a copy to `to` into requests. They end where transfers end in the file that is written, so
/// that its blocks are written whole.
fn cut(from: u64, source_chunk: u64, to: &Range<u64>, target_chunk: u64) -> Vec<Piece> {
    let slot = target_chunk.min(u64::from(TRANSFER_LEN_MAX));
    let mut pieces = Vec::new();
    let mut done = 0;
    while to.start + done < to.end {
        let (from, at) = (from + done, to.start + done);
        let room = (source_chunk - from % source_chunk).min(slot - at % slot);
        let len = room.min(to.end - at);
        pieces.push(Piece { from, to: at, len });
        done += len;
    }
    pieces
}

/// How much is copied from the start on, and what keeps the rest from being copied, by the outcomes
/// in order.
fn summed(outcomes: Vec<(Piece, Outcome)>) -> (u64, Option<Failure>) {
    let is_copied = |(_, outcome): &&(Piece, Outcome)| matches!(outcome, Outcome::Copied);
    let copied = outcomes.iter().take_while(is_copied).map(|(piece, _)| piece.len).sum();
    let mut failures = outcomes.into_iter().filter_map(|(_, outcome)| match outcome {
        Outcome::Failed(failure) => Some(failure),
        Outcome::Copied | Outcome::Left => None,
    });
    (copied, failures.find(|failure| !may_go_otherwise(failure.kind)))
}

/// Whether this mount may still read and write what targets have not copied: they cannot, or do not
/// know how to, or reading has its own ways with the failure.
fn may_go_otherwise(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotSupported
            | ErrorKind::Forbidden
            | ErrorKind::Lost
            | ErrorKind::Corrupt
            | ErrorKind::ObjectChanged
    )
}

/// Less is copied as fast by reading and writing, which asks for nothing else to be stored first.
const COPIED_LEN_MIN: u64 = 64 * 1024;

/// Pieces of one copy that are on their way at the same time: as much as a target keeps in memory
/// for one session.
const PIECES_AT_ONCE: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;

    const KIB: u64 = 1024;
    const MIB: u64 = 1024 * KIB;

    #[test]
    fn pieces_cover_the_range_in_order_and_stay_within_chunks_and_transfers() {
        for (from, source_chunk, to, target_chunk) in [
            (0, 8 * MIB, 0, 8 * MIB),
            (12_345, 8 * MIB, 777_777, 8 * MIB),
            (5 * MIB + 1, 64 * KIB, 3, 64 * MIB),
            (9 * MIB, 64 * MIB, 64 * KIB - 1, 64 * KIB),
        ] {
            let range = to..to + 20 * MIB + 17;
            let pieces = cut(from, source_chunk, &range, target_chunk);
            let mut done = 0;
            for piece in &pieces {
                assert_eq!((piece.from, piece.to), (from + done, to + done));
                assert!((1..=MIB).contains(&piece.len));
                for (range, size) in
                    [(piece.source(), source_chunk), (piece.target(), target_chunk.min(MIB))]
                {
                    assert_eq!(range.start / size, (range.end - 1) / size, "{piece:?}");
                }
                done += piece.len;
            }
            assert_eq!(done, 20 * MIB + 17);
        }
        let aligned = cut(0, 8 * MIB, &(MIB..17 * MIB), 8 * MIB);
        assert_eq!(aligned.len(), 16, "no more of them than it needs");
    }

    #[test]
    fn ranges_of_one_file_share_a_chunk_or_not() {
        assert!(share_chunk(0, 7 * MIB, MIB, 8 * MIB));
        assert!(share_chunk(7 * MIB, 8 * MIB, MIB + 1, 8 * MIB));
        assert!(!share_chunk(7 * MIB, 8 * MIB, MIB, 8 * MIB));
        assert!(!share_chunk(24 * MIB, 0, 9 * MIB, 8 * MIB));
        assert!(share_chunk(8 * MIB, 0, 9 * MIB, 8 * MIB));
    }

    #[test]
    fn a_copy_counts_up_to_what_is_missing_and_ends_with_what_nothing_else_helps_against() {
        let at = |nth: u64| Piece { from: nth, to: nth, len: 1 };
        let failed = |kind: ErrorKind| Outcome::Failed(kind.into());
        let kind = |(copied, failure): (u64, Option<Failure>)| {
            (copied, failure.map(|failure| failure.kind))
        };
        let all = vec![(at(0), Outcome::Copied), (at(1), Outcome::Copied)];
        assert_eq!(kind(summed(all)), (2, None));
        // From before there were copies.
        let old = vec![
            (at(0), Outcome::Copied),
            (at(1), failed(ErrorKind::NotSupported)),
            (at(2), Outcome::Copied),
            (at(3), Outcome::Left),
        ];
        assert_eq!(kind(summed(old)), (1, None));
        let full = vec![
            (at(0), Outcome::Left),
            (at(1), failed(ErrorKind::NotSupported)),
            (at(2), failed(ErrorKind::NoSpace)),
        ];
        assert_eq!(kind(summed(full)), (0, Some(ErrorKind::NoSpace)));
        // Nothing else is tried for a program that was let go.
        let killed = vec![
            (at(0), Outcome::Copied),
            (at(1), failed(ErrorKind::Cancelled)),
            (at(2), Outcome::Left),
        ];
        assert_eq!(kind(summed(killed)), (1, Some(ErrorKind::Cancelled)));
    }
}
