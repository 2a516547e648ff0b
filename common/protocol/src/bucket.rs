//! An operator's questions about buckets: who reaches them, and what changed on both sides.

use millrace_types::{ByteLen, Failure, InodeId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    admin::PathBytes,
    cluster::{Bucket, LinkMode},
};

/// Has every host that needs the bucket of a link try it now.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CheckLink {
    /// The link's directory, from the root.
    pub path: PathBytes,
}

/// How each host fared.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CheckLinkReply {
    /// The bucket.
    pub bucket: Bucket,
    /// What was tried: listing, and for [`LinkMode::ImportExport`] also beginning an upload.
    pub mode: LinkMode,
    /// The metadata server, then the target daemons by name.
    pub hosts: Vec<HostCheck>,
}

/// How one host fared.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct HostCheck {
    /// The host, for people.
    pub host: String,
    /// How long it took, in milliseconds.
    pub took_ms: u32,
    /// Why it cannot use the bucket, in a sentence.
    pub result: Result<(), Failure>,
}

/// The most conflicts of one page: their names fit into a message.
pub const CONFLICTS_MAX: usize = 128;

/// Asks which files changed here and in their buckets.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListConflicts {
    /// Those with higher inode numbers; `None` for the first page.
    pub after: Option<InodeId>,
}

/// Conflicts, in the order of their inodes; at most [`CONFLICTS_MAX`].
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ConflictsReply {
    /// The files.
    pub conflicts: Vec<Conflict>,
    /// Whether there are more.
    pub more: bool,
}

/// A file that changed here and in its bucket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Conflict {
    /// The file.
    pub inode: InodeId,
    /// Its path; empty while it has no name and is open still.
    pub path: PathBytes,
    /// The size of the version here.
    pub size: ByteLen,
    /// When it was written here.
    pub modified: Timestamp,
    /// The object's key within its bucket, as it was known; `None` for a file that was made here.
    pub key: Option<String>,
}
