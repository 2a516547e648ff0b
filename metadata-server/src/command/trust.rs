//! Commands about what the namespace is worth: runs of the server, doubt, and orphans on targets.

use millrace_protocol::target::ContentName;
use millrace_types::TargetId;
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
