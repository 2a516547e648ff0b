//! An operator's questions about buckets: who reaches them, and what changed on both sides.

use millrace_types::{ByteLen, Failure, InodeId, LinkId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    admin::{FileState, JobFailure, PathBytes},
    cluster::{Bucket, LinkMode},
    session::Caller,
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

/// Asks how one file stands against its bucket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowFile {
    /// For whom: needs read permission.
    pub caller: Caller,
    /// The file.
    pub inode: InodeId,
    /// Whether its targets are asked what they hold. Without it `state` is as if they held all, and
    /// `hydrated` is the size.
    pub counted: bool,
}

/// How one file stands against its bucket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FileReply {
    /// Its state.
    pub state: FileState,
    /// Its size.
    pub size: ByteLen,
    /// Bytes of it that are here.
    pub hydrated: ByteLen,
    /// The object behind it, as a URL, and its tag.
    pub origin: Option<(String, String)>,
}

/// Sets whether files below a link go to its bucket by themselves.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetAutoExport {
    /// The link's directory, from the root. The link must export.
    pub path: PathBytes,
    /// Seconds that a file must not have been written, renamed or open for writing:
    /// [`QUIET_SECONDS_MAX`] at most. `None`: files go by jobs only.
    pub quiet_seconds: Option<u32>,
}

/// The longest quiet time: a day.
pub const QUIET_SECONDS_MAX: u32 = 86_400;

/// Asks which links export by themselves.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListAutoExports {}

/// The links that export by themselves; of [`SetAutoExport`], only that link, if it does.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AutoExportsReply {
    /// Ascending by link.
    pub links: Vec<AutoExport>,
}

/// How one link exports by itself. All but the first two is since the metadata server began to run.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AutoExport {
    /// The link.
    pub link: LinkId,
    /// Seconds that a file must have been left alone.
    pub quiet_seconds: u32,
    /// Files that are to be looked at, soon or when a failure is tried again.
    pub waiting: u64,
    /// Files that were sent.
    pub files: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Files that cannot be sent now. One that only a change or a person can help is not tried
    /// again before it changes.
    pub failing: u64,
    /// The first of these.
    pub failures: Vec<JobFailure>,
}

/// The most failures that [`AutoExport`] names.
pub const AUTO_EXPORT_FAILURES_MAX: usize = 8;

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
