//! The check of the namespace against itself, which every check of all targets begins with: what it
//! found, and how it is asked to repair that.

use millrace_types::{Failure, InodeId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use super::StartFsck;
use crate::admin::PathBytes;

/// As [`StartFsck`] for all targets, and repairs what of the namespace can be repaired safely.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StartRepair {
    /// The rest of it; it names no target.
    pub start: StartFsck,
}

/// Asks what the check that runs, or the last one, found of the namespace itself.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowNamespace {}

/// What was found.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct NamespaceReply {
    /// What it found so far.
    pub report: NamespaceReport,
}

/// How far the namespace was looked at and what is wrong with it. Kept in memory only.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug, Default)]
pub struct NamespaceReport {
    /// The check that it belongs to, as [`FsckReport`](super::FsckReport) counts them; 0: none yet.
    /// A check of some targets alone does not look at the namespace.
    pub run: u64,
    /// Where it stands.
    pub state: NamespaceState,
    /// Why it failed.
    pub failure: Option<Failure>,
    /// Whether what can be repaired safely is repaired.
    pub repair: bool,
    /// When it began.
    pub started: Option<Timestamp>,
    /// When it ended.
    pub ended: Option<Timestamp>,
    /// Records looked at.
    pub records: u64,
    /// Inodes among them.
    pub inodes: u64,
    /// How many there were of each kind; kinds of which there were none are left out.
    pub flaws: Vec<FlawCount>,
    /// The first of each kind, at most [`FSCK_FINDINGS_MAX`](super::FSCK_FINDINGS_MAX).
    pub findings: Vec<FlawFinding>,
}

/// Where the check of the namespace stands.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum NamespaceState {
    /// None has run since the server's start.
    #[default]
    Never = 0,
    /// It looks at names, and at what belongs to inodes.
    Names = 1,
    /// It looks at inodes and directories.
    Inodes = 2,
    /// It counts.
    Counts = 3,
    /// It has ended.
    Done = 4,
    /// It was asked to stop.
    Cancelled = 5,
    /// It could not go on.
    Failed = 6,
}

impl NamespaceState {
    /// Whether something still happens.
    #[must_use]
    pub fn is_running(self) -> bool {
        matches!(self, Self::Names | Self::Inodes | Self::Counts)
    }

    /// The word in JSON and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Never => "never",
            Self::Names => "names",
            Self::Inodes => "inodes",
            Self::Counts => "counts",
            Self::Done => "done",
            Self::Cancelled => "cancelled",
            Self::Failed => "failed",
        }
    }
}

/// How many flaws of one kind there were.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct FlawCount {
    /// The kind.
    pub kind: FlawKind,
    /// So many were found,
    pub found: u64,
    /// and so many of them are repaired.
    pub repaired: u64,
}

/// One flaw of the namespace.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FlawFinding {
    /// The kind.
    pub kind: FlawKind,
    /// The inode that is concerned; 0 where it is none.
    pub inode: InodeId,
    /// The path, where there is one.
    pub path: Option<PathBytes>,
    /// What is wrong, in a sentence.
    pub text: String,
    /// Whether it is repaired.
    pub repaired: bool,
}

/// What can be wrong with the namespace.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
#[repr(u8)]
pub enum FlawKind {
    /// A name leads to an inode that does not exist.
    DeadName = 1,
    /// A name is in a directory that does not exist.
    LostDirectory = 2,
    /// A name says another kind than its inode.
    WrongKind = 3,
    /// An inode does not know one of its names, or knows one that it does not have.
    WrongParent = 4,
    /// A directory has a second name.
    SecondPlace = 5,
    /// A name's position in listings is not its own.
    WrongPosition = 6,
    /// An inode counts other names than it has.
    WrongLinks = 7,
    /// Nothing leads to an inode, and nobody has it open.
    Nameless = 8,
    /// A directory lies below itself, so that nothing leads there from the root.
    Cycle = 9,
    /// A directory counts other names than are in it.
    WrongEntries = 10,
    /// An inode counts other bytes of extended attributes than it has.
    WrongAttributes = 11,
    /// An inode is counted for another account than its directory.
    WrongAccount = 12,
    /// A size does not agree with what lies in the inode.
    WrongSize = 13,
    /// Whether a file is in conflict is said in two ways.
    WrongConflict = 14,
    /// Something that belongs to an inode, name or session that does not exist.
    Leftover = 15,
    /// A target is told to free a content that a file has.
    LiveReclaim = 16,
    /// A count of the whole file system is wrong.
    WrongCount = 17,
    /// A record contradicts itself.
    Unsound = 18,
}

impl FlawKind {
    /// The word in JSON and tables.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::DeadName => "dead-name",
            Self::LostDirectory => "lost-directory",
            Self::WrongKind => "wrong-kind",
            Self::WrongParent => "wrong-parent",
            Self::SecondPlace => "second-place",
            Self::WrongPosition => "wrong-position",
            Self::WrongLinks => "wrong-links",
            Self::Nameless => "nameless",
            Self::Cycle => "cycle",
            Self::WrongEntries => "wrong-entries",
            Self::WrongAttributes => "wrong-attributes",
            Self::WrongAccount => "wrong-account",
            Self::WrongSize => "wrong-size",
            Self::WrongConflict => "wrong-conflict",
            Self::Leftover => "leftover",
            Self::LiveReclaim => "live-reclaim",
            Self::WrongCount => "wrong-count",
            Self::Unsound => "unsound",
        }
    }
}
