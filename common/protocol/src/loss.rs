//! Giving up a target that will not come back: an operator's requests.
//!
//! What it alone held of files that no bucket has is gone, and stays an error; what a bucket has is
//! fetched again by the targets that take its groups over.

use millrace_types::{InodeId, TargetId};
use rkyv::{Archive, Deserialize, Serialize};

use crate::admin::PathBytes;

/// The most names of files of one reply.
pub const LOST_PATHS_MAX: usize = 64;

/// Which files the loss of a target damages. For a target that is in service: which it would, and
/// of which nobody knows; for one that was given up: which are damaged and still there. Looks at
/// some thousand inodes; the caller goes on until there is no `next`.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LookLoss {
    /// The target.
    pub target: TargetId,
    /// Inodes up to this one have been looked at.
    pub after: Option<InodeId>,
}

/// Some of the files.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LossPage {
    /// Placement groups that the target serves, or served.
    pub groups: u32,
    /// Whether it was given up.
    pub given_up: bool,
    /// Inodes looked at.
    pub inodes: u64,
    /// Damaged files among them.
    pub files: u64,
    /// Their names, and behind as many as `files` says those of files that were renamed and not
    /// exported since: nobody knows whether their objects are still there. At most
    /// [`LOST_PATHS_MAX`] in all.
    pub paths: Vec<PathBytes>,
    /// Where to go on; `None` at the end.
    pub next: Option<InodeId>,
}

/// Gives a target up for good, or asks how far that is. Sent again, it only asks.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LoseTarget {
    /// The target, which has been silent for a lease at least.
    pub target: TargetId,
}

/// How far the giving up of a target is.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LossProgress {
    /// Placement groups that others take over.
    pub groups: u32,
    /// Inodes up to this one have been looked at.
    pub looked_at: InodeId,
    /// Those from this one on are younger than the loss, and not looked at.
    pub below: InodeId,
    /// Files that are damaged.
    pub files: u64,
    /// Whether other targets serve the groups.
    pub ended: bool,
}
