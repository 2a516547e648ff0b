//! Commands about what the namespace is worth, and targets: runs of the server, doubt, what targets
//! have shown of the log, and orphans on them.

use millrace_protocol::target::ContentName;
use millrace_types::{LogIndex, TargetId};
use rkyv::{Archive, Deserialize, Serialize};

/// Puts contents that no file has into a target's reclaim queue. Those that a file does have by
/// then are passed over; all are refused while the namespace is not trusted.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ReclaimOrphans {
    /// The target that holds them.
    pub target: TargetId,
    /// Each content and all before it of its inode; at most [`BATCH_MAX`](super::BATCH_MAX).
    pub contents: Vec<ContentName>,
}

/// Remembers what a target has shown of the log: one that shows less is an older copy of itself.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoteShown {
    /// The target.
    pub target: TargetId,
    /// Up to where it has seen this log. Not always more than before: an operator may take an older
    /// copy as it is.
    pub index: LogIndex,
}
