//! What a target tells of itself, and how an operator has its disk checked: the requests of the
//! admin CLI to the metadata server, and those that this one sends on to the target's daemon.

use millrace_types::{ByteLen, ChunkKey, Failure, InodeId, TargetId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use crate::admin::{PathBytes, TargetStatus};

/// The most findings of one reply: some 30 KiB.
pub const FINDINGS_PER_REPLY_MAX: u32 = 256;

/// The most targets of one list.
pub const TARGETS_PER_REPLY_MAX: usize = 64;

/// The most names of files of one reply.
pub const FILES_PER_REPLY_MAX: usize = 64;

/// Asks a daemon for everything about one of its targets. Sent by the metadata server.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DescribeTarget {
    /// The target.
    pub target: TargetId,
    /// Findings are listed after this one.
    pub after: Option<FindingPlace>,
    /// How many findings are wanted; at most [`FINDINGS_PER_REPLY_MAX`] are sent.
    pub findings_max: u32,
}

/// Everything about a target.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TargetDetail {
    /// The disk engine: `io_uring` or `blocking`.
    pub disk: String,
    /// What its bytes are used for.
    pub space: SpaceUse,
    /// How often unsynced writes may have been lost.
    pub loss_count: u64,
    /// Whether it was made at the daemon's start.
    pub blank: bool,
    /// Whether its journal has failed: it can be read and not changed until the daemon starts
    /// again.
    pub failed: bool,
    /// Checksums that were wrong since the daemon's start.
    pub checksum_failures: u64,
    /// The index.
    pub index: IndexUse,
    /// Bytes of the journal's ring.
    pub journal_capacity: ByteLen,
    /// Of these, bytes that the next start would read.
    pub journal_used: ByteLen,
    /// The scrub.
    pub scrub: ScrubReport,
    /// Findings, all in all.
    pub findings_total: u64,
    /// Some of them, in the order of their places.
    pub findings: Vec<FindingReport>,
}

/// What a target's bytes are used for; together they are the capacity.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct SpaceUse {
    /// All of them.
    pub capacity: ByteLen,
    /// Superblocks, roots and journal.
    pub fixed: ByteLen,
    /// Not taken from the file system below yet.
    pub ungrown: ByteLen,
    /// Free.
    pub free: ByteLen,
    /// Promised to or held by changes under way.
    pub reserved: ByteLen,
    /// Given up, and not to be used again yet.
    pub quarantined: ByteLen,
    /// The index.
    pub index: ByteLen,
    /// Bytes that a bucket has too.
    pub clean: ByteLen,
    /// Bytes that somebody wrote and no bucket has.
    pub written: ByteLen,
    /// Of the free ones, those that serve only what frees space.
    pub kept_back: ByteLen,
}

/// A target's index.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexUse {
    /// Entries in the tree.
    pub entries: u64,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Levels of the tree.
    pub height: u8,
    /// Memory of cached nodes.
    pub cache: ByteLen,
    /// Memory of the changes that no checkpoint has.
    pub delta: ByteLen,
    /// Nodes read from the disk since the daemon's start.
    pub node_reads: u64,
}

/// Names a block that was found bad.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct FindingPlace {
    /// The chunk.
    pub chunk: ChunkKey,
    /// The block in the chunk.
    pub block: u16,
}

/// A block that was found bad.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct FindingReport {
    /// Where; of a node of the index the first that belongs into it.
    pub place: FindingPlace,
    /// What is wrong.
    pub fault: Fault,
    /// The 4 KiB page of the disk.
    pub page: u64,
    /// Since when it is known.
    pub since: Timestamp,
}

/// What is wrong with a block.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Fault {
    /// Its bytes are not those that were written.
    Checksum = 1,
    /// The disk cannot read it.
    Unreadable = 2,
    /// It is a node of the index: whatever is recorded in it cannot be read.
    Index = 3,
}

/// Where the scrub of a target stands.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ScrubReport {
    /// What it is doing.
    pub state: ScrubState,
    /// Which pass, from 1; 0 when there has been none.
    pub pass: u64,
    /// When the pass began.
    pub begun: Timestamp,
    /// When the newest pass that is done ended; `None` when none is.
    pub ended: Option<Timestamp>,
    /// Whether a pass has begun and not ended.
    pub under_way: bool,
    /// When the next pass begins, unless one is under way.
    pub due: Timestamp,
    /// Bytes checked in the pass.
    pub checked: ByteLen,
    /// Bytes that a pass has to check, as of now.
    pub total: ByteLen,
    /// Bad blocks met in the pass.
    pub findings: u64,
    /// Bytes read a second at most; 0: off.
    pub bytes_per_second: u64,
    /// Damaged blocks that a bucket has too, and that were dropped since the daemon's start.
    pub dropped_blocks: u64,
    /// Bytes written anew since then to bring scattered sections together.
    pub gathered: ByteLen,
    /// Bytes read since then.
    pub read: ByteLen,
}

/// What a scrub is doing.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ScrubState {
    /// Nothing: its rate is 0.
    Off = 1,
    /// Nothing: an operator has paused it.
    Paused = 2,
    /// Reading.
    Running = 3,
    /// The next pass is not due yet.
    Waiting = 4,
}

/// Has a daemon do something about the scrub of one of its targets. Sent by the metadata server.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ControlScrub {
    /// The target.
    pub target: TargetId,
    /// What.
    pub action: ScrubAction,
}

/// What an operator wants of a scrub. None of it outlives the daemon: the settings do.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum ScrubAction {
    /// Nothing: only to be told where it stands.
    Show,
    /// Begin a pass now, or go on with the one that is under way.
    Start,
    /// Stop reading where it is.
    Pause,
    /// Go on.
    Resume,
    /// Read that many bytes a second at most; 0: off.
    SetRate(u64),
}

/// Asks for the targets.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListTargets {
    /// Those after this one.
    pub after: Option<TargetId>,
}

/// Targets.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TargetsReply {
    /// In the order of their ids, at most [`TARGETS_PER_REPLY_MAX`].
    pub targets: Vec<DescribedTarget>,
    /// Whether there are more.
    pub more: bool,
}

/// A target, as the metadata server knows it and as its daemon tells.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DescribedTarget {
    /// What the metadata server knows.
    pub status: TargetStatus,
    /// What its daemon tells, or why it does not.
    pub detail: Result<TargetDetail, Failure>,
}

/// Asks for everything about a target.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowTarget {
    /// The target.
    pub target: TargetId,
    /// Findings are listed after this one.
    pub after: Option<FindingPlace>,
    /// How many findings are wanted; at most [`FINDINGS_PER_REPLY_MAX`] are sent.
    pub findings_max: u32,
}

/// Everything about a target.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TargetReply {
    /// The target.
    pub target: DescribedTarget,
    /// The file of each finding, in the same order; `None` where there is none any more.
    pub paths: Vec<Option<PathBytes>>,
}

/// Has the scrubs of targets do something.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ScrubTargets {
    /// Which; none: all.
    pub targets: Vec<TargetId>,
    /// What.
    pub action: ScrubAction,
}

/// Where scrubs stand.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ScrubsReply {
    /// Of each target.
    pub scrubs: Vec<TargetScrub>,
}

/// Where the scrub of a target stands.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TargetScrub {
    /// The target.
    pub target: TargetId,
    /// Its scrub, or why its daemon does not tell.
    pub scrub: Result<ScrubReport, Failure>,
}

/// Asks what would be lost if a target went away now: a part of the files at a time.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CheckDrain {
    /// The target.
    pub target: TargetId,
    /// Files after this one are looked at.
    pub after: Option<InodeId>,
}

/// What would be lost.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DrainReply {
    /// What its daemon tells of the whole target.
    pub detail: TargetDetail,
    /// Placement groups that have nothing but this target.
    pub groups: u32,
    /// Inodes looked at for this reply.
    pub inodes: u64,
    /// Of these, files with chunks in those groups that a bucket has as they are.
    pub backed_files: u64,
    /// Of these, files that would be lost or lose a part: those that giving the target up would
    /// mark, and those of which it holds bytes and that are damaged already, or were renamed and
    /// not exported since.
    pub lost_files: u64,
    /// What it holds of them that no bucket may have, with zeros that somebody wrote.
    pub lost: ByteLen,
    /// The first of those files, at most [`FILES_PER_REPLY_MAX`].
    pub paths: Vec<PathBytes>,
    /// Where to go on; `None` at the end.
    pub next: Option<InodeId>,
}
