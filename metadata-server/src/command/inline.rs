//! Commands about bytes that live in an inode.

use millrace_types::{ContentGeneration, InodeId, WriteEpoch};
use rkyv::{Archive, Deserialize, Serialize};

use super::Publish;

/// As [`Publish`], of a file whose bytes live in its inode.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PublishInline {
    /// What to make.
    pub publish: Publish,
    /// All of its bytes: 1 to [`INLINE_BYTES_MAX`](millrace_protocol::metadata::INLINE_BYTES_MAX).
    pub bytes: Vec<u8>,
}

/// The targets have the bytes that lived in an inode.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Spilled {
    /// The file.
    pub inode: InodeId,
    /// The content whose bytes they are.
    pub generation: ContentGeneration,
    /// Under which they were stored: whoever writes from now on does so under a later one.
    pub write_epoch: WriteEpoch,
}
