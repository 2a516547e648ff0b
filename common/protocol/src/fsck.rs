//! Requests about the check that compares what targets hold with what the namespace expects:
//! operators to the metadata server, and the list by which a target says what it holds.
//!
//! What the check does, and when it frees something, is in `docs/operations.md`.

use millrace_types::{
    ByteLen, ChunkIndex, ContentGeneration, Failure, InodeId, TargetId, Timestamp,
};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{admin::PathBytes, target::ContentName};

mod namespace;

pub use namespace::{
    FlawCount, FlawFinding, FlawKind, NamespaceReply, NamespaceReport, NamespaceState,
    ShowNamespace, StartRepair,
};

/// Asks a target daemon what lies on one of its targets, a page at a time.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListContents {
    /// The target.
    pub target: TargetId,
    /// Where the page begins.
    pub from: ContentPosition,
    /// Chunks wanted, 1 to [`LISTED_CHUNKS_MAX`]; the target may send fewer although there are
    /// more.
    pub chunks_max: u32,
}

/// The most chunks of one page: bounds the message, and the work behind one answer.
pub const LISTED_CHUNKS_MAX: u32 = 16_384;

/// A place in the list of a target's chunks, which is ordered by inode, generation and index.
#[derive(
    Archive,
    Serialize,
    Deserialize,
    Clone,
    Copy,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Debug,
    Default,
)]
pub struct ContentPosition {
    /// The file.
    pub inode: InodeId,
    /// Which of its contents.
    pub generation: ContentGeneration,
    /// Which chunk of that content.
    pub chunk: ChunkIndex,
}

impl ContentPosition {
    /// The beginning of what there may be of an inode.
    #[must_use]
    pub fn of_inode(inode: InodeId) -> Self {
        Self { inode, ..Self::default() }
    }

    /// The place behind this one; `None` behind the last that there can be.
    #[must_use]
    pub fn next(self) -> Option<Self> {
        let Self { inode, generation, chunk } = self;
        if let Some(next) = chunk.0.checked_add(1) {
            return Some(Self { inode, generation, chunk: ChunkIndex(next) });
        }
        if let Some(next) = generation.0.checked_add(1) {
            let generation = ContentGeneration(next);
            return Some(Self { inode, generation, chunk: ChunkIndex(0) });
        }
        inode.0.checked_add(1).map(|next| Self::of_inode(InodeId(next)))
    }
}

/// A part of what lies on a target, as it was at one moment.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct ContentsPage {
    /// In the order of inode and generation, each once. A content may go on in the next page.
    pub contents: Vec<ListedContent>,
    /// Where the next page begins; `None` when there is nothing more.
    pub next: Option<ContentPosition>,
}

/// The chunks of one content on a target.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListedContent {
    /// Which content.
    pub content: ContentName,
    /// Its chunks that are there, ascending; at least one.
    pub chunks: Vec<ChunkIndex>,
}

/// Starts a check. One runs at a time.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StartFsck {
    /// Which targets to look at; none means all.
    pub targets: Vec<TargetId>,
    /// Whether orphans are only reported, never freed.
    pub report_only: bool,
    /// Whether orphans are freed also when they are more of a target than a check frees unasked.
    pub free_many: bool,
}

/// Asks for the check that runs, or the last one.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowFsck {}

/// Ends the check that runs; what it has queued for freeing stays queued.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CancelFsck {}

/// An operator has seen why the namespace is not trusted, and says that it is the right one:
/// from now on what it does not name may be freed.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TrustNamespace {}

/// The check that runs, or the last one.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FsckReply {
    /// What it found so far.
    pub report: FsckReport,
}

/// How far a check is and what it found. Kept in memory only.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct FsckReport {
    /// Which check since the server's start; 0: none yet.
    pub run: u64,
    /// Where it stands.
    pub state: FsckState,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// Whether nobody asked for it: its time had come.
    pub automatic: bool,
    /// Whether orphans are only reported because somebody asked for that.
    pub report_only: bool,
    /// Why orphans are only reported whatever was asked for, until somebody trusts the namespace.
    pub distrust: Option<Distrust>,
    /// When it began.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// When the next begins by itself.
    pub next: Option<Timestamp>,
    /// How far the first pass is: inodes below this one have been compared.
    pub position: InodeId,
    /// Only inodes below this one are looked at.
    pub high_water: InodeId,
    /// Files compared.
    pub files: u64,
    /// Chunks compared.
    pub chunks: u64,
    /// Each target that is or was to be looked at.
    pub targets: Vec<FsckTarget>,
    /// What no file has any more, seen in both passes.
    pub orphans: FsckCount,
    /// Of these, what was queued for freeing.
    pub queued: FsckCount,
    /// What files lack, seen in both passes; bytes are those of the whole chunks.
    pub missing: FsckCount,
    /// Chunks on a target where their file's layout does not put them.
    pub misplaced: FsckCount,
    /// Contents newer than the namespace's: it has lost something.
    pub newer: FsckCount,
    /// The first findings of each kind, at most [`FSCK_FINDINGS_MAX`]; all are counted.
    pub findings: Vec<FsckFinding>,
    /// Whether there was more than one check follows up: the next one finds the rest.
    pub truncated: bool,
}

/// The most findings of each kind that are told one by one: those of one kind hide no other.
pub const FSCK_FINDINGS_MAX: usize = 25;

/// Where a check stands.
///
/// ```text
///   Never ──▶ Listing ──▶ Waiting ──▶ Confirming ──▶ Done
///                └───────────┴────────────┴────▶ Cancelled, Failed
/// ```
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum FsckState {
    /// None has run since the server's start.
    #[default]
    Never = 0,
    /// The first pass: everything is compared.
    Listing = 1,
    /// What was found is left alone for a lease.
    Waiting = 2,
    /// The second pass: what was found is looked at again.
    Confirming = 3,
    /// It has ended.
    Done = 4,
    /// It was asked to stop.
    Cancelled = 5,
    /// It could not go on.
    Failed = 6,
}

impl FsckState {
    /// Whether something still happens.
    #[must_use]
    pub fn is_running(self) -> bool {
        matches!(self, Self::Listing | Self::Waiting | Self::Confirming)
    }

    /// The word in JSON and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Listing => "listing",
            Self::Waiting => "waiting",
            Self::Confirming => "confirming",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// Why the namespace may have lost files whose chunks are on targets.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Distrust {
    /// Since when.
    pub since: Timestamp,
    /// One sentence.
    pub reason: String,
}

/// What a check did with one target.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FsckTarget {
    /// The target.
    pub target: TargetId,
    /// The name of its host.
    pub host_name: String,
    /// Chunks that it listed.
    pub chunks: u64,
    /// Why it was not looked at, or not to the end: nothing is said about what it lacks.
    pub not_checked: Option<String>,
    /// What no file has any more, seen in both passes.
    pub orphans: FsckCount,
    /// Why none of that is freed although it was asked for: it is too much of the target.
    pub held_back: Option<String>,
}

/// A number of contents with their chunks and bytes.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct FsckCount {
    /// Contents, each counted once for each target.
    pub contents: u64,
    /// Chunks.
    pub chunks: u64,
    /// Bytes.
    pub bytes: ByteLen,
}

/// What is wrong with one content on one target.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FsckFinding {
    /// What.
    pub kind: FsckKind,
    /// Where.
    pub target: TargetId,
    /// Of what.
    pub content: ContentName,
    /// The file's path, where it has one.
    pub path: Option<PathBytes>,
    /// How many chunks.
    pub chunks: u64,
    /// The first of them.
    pub first: ChunkIndex,
    /// Their bytes, as far as they are known.
    pub bytes: ByteLen,
}

/// What can be wrong.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
#[repr(u8)]
pub enum FsckKind {
    /// No file has this content any more.
    Orphan = 1,
    /// The file needs chunks that the target does not have.
    Missing = 2,
    /// The file's layout does not put these chunks on this target.
    Misplaced = 3,
    /// The content is newer than the namespace's.
    Newer = 4,
}

impl FsckKind {
    /// The word in JSON and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Orphan => "orphan",
            Self::Missing => "missing",
            Self::Misplaced => "misplaced",
            Self::Newer => "newer",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_each_other_in_their_order() {
        let place = |inode, generation, chunk| ContentPosition {
            inode: InodeId(inode),
            generation: ContentGeneration(generation),
            chunk: ChunkIndex(chunk),
        };
        let last = u32::MAX;
        assert_eq!(place(1, 2, 3).next(), Some(place(1, 2, 4)));
        assert_eq!(place(1, 2, last).next(), Some(place(1, 3, 0)));
        assert_eq!(place(1, last, last).next(), Some(place(2, 0, 0)));
        assert_eq!(place(u64::MAX, last, last).next(), None);
        assert!(place(1, 9, 9) < place(2, 0, 0));
    }
}
