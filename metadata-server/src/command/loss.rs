//! Steps of giving a target up that will not come back.

use millrace_types::{InodeId, TargetId};
use rkyv::{Archive, Deserialize, Serialize};

/// One step. Each may be repeated; one that was taken before changes nothing.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Loss {
    /// The target is none any more; nobody serves its groups until the end.
    Begin {
        /// The target.
        target: TargetId,
        /// Inodes from this one on are made later, and can have nothing on it.
        below: InodeId,
    },
    /// Some files are damaged.
    Mark {
        /// The target.
        target: TargetId,
        /// The files, at most [`BATCH_MAX`](super::BATCH_MAX); what is not damaged is passed over.
        inodes: Vec<InodeId>,
        /// Every inode up to this one has been looked at.
        through: InodeId,
    },
    /// Every inode has been looked at: others take the groups over.
    End(TargetId),
}
