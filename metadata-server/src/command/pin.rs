//! What targets must keep.

use millrace_protocol::session::Caller;
use millrace_types::InodeId;
use rkyv::{Archive, Deserialize, Serialize};

/// Pins an inode, or ends that.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetPin {
    /// For whom.
    pub caller: Caller,
    /// A file, or a directory with everything below it.
    pub inode: InodeId,
    /// Whether it is pinned from now on.
    pub pinned: bool,
}
