//! What `pin` and `unpin` print.

use millrace_protocol::release::PinReply;
use serde::Serialize;

use crate::output::path_text;

/// What became of one path.
#[derive(Serialize, Debug)]
pub(crate) struct PinReport {
    pub(crate) path: String,
    /// Whether it is pinned now, by itself.
    pub(crate) pinned: bool,
    /// Whether that is new.
    pub(crate) changed: bool,
    /// Directories above that are pinned.
    pub(crate) above: Vec<String>,
}

/// Something that is pinned.
#[derive(Serialize, Debug)]
pub(crate) struct PinnedReport {
    /// `null` for a file that has lost its last name and is open still.
    pub(crate) path: Option<String>,
    pub(crate) inode: u64,
}

impl PinReport {
    /// The path that was named as `path` is `pinned` now.
    pub(crate) fn new(path: String, pinned: bool, reply: &PinReply) -> Self {
        let above = reply.above.iter().map(|above| path_text(above)).collect();
        Self { path, pinned, changed: reply.changed, above }
    }
}
