//! An operator's questions about buckets: who reaches them, and what changed on both sides.

use millrace_types::{ByteLen, Failure, InodeId, LinkId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    admin::{FileState, JobFailure, PathBytes},
    cluster::{Bucket, LinkMode},
    session::Caller,
    target::Tried,
};

/// Has every host that needs the bucket of a link try it now. Answered as [`TryLink`] is, but for
/// what could not be tried.
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
    /// What was tried: see [`TryLinkReply::mode`].
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

/// Has every host that needs the bucket of a link try it now, reads included, and tells what could
/// not be tried. It stands for [`CheckLink`].
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TryLink {
    /// The link's directory, from the root.
    pub path: PathBytes,
}

/// How each host fared.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TryLinkReply {
    /// The bucket.
    pub bucket: Bucket,
    /// What was tried: listing, reading, and for [`LinkMode::ImportExport`] also beginning an
    /// upload. Where removals below the link reach the bucket the metadata server, which alone
    /// deletes, tried that, too.
    pub mode: LinkMode,
    /// The metadata server, then the target daemons by name.
    pub hosts: Vec<HostTrial>,
}

/// How one host fared.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct HostTrial {
    /// The host, for people.
    pub host: String,
    /// How long it took, in milliseconds.
    pub took_ms: u32,
    /// What could not be tried; or why it cannot use the bucket, in a sentence.
    pub result: Result<Tried, Failure>,
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

/// Sets whether the objects of what is removed below a link are deleted, and those of files that
/// went to other keys.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetDeletePropagation {
    /// The link's directory, from the root. The link must export.
    pub path: PathBytes,
    /// From now on. What waits when it ends stays in the bucket.
    pub on: bool,
}

/// Asks for which links removals reach the bucket.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListDeletePropagation {}

/// The links whose removals reach the bucket; of [`SetDeletePropagation`], only that link, if it is
/// one.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DeletePropagationReply {
    /// Ascending by link.
    pub links: Vec<DeletePropagation>,
}

/// How removals of one link reach its bucket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DeletePropagation {
    /// The link.
    pub link: LinkId,
    /// Objects and marks of directories that are to go.
    pub waiting: u64,
    /// What was deleted since the metadata server began to run.
    pub deleted: u64,
    /// Of those that wait, how many could not be deleted when that was tried.
    pub failing: u64,
    /// The first of these; the path is the object's key.
    pub failures: Vec<JobFailure>,
}

/// The most failures that [`DeletePropagation`] names.
pub const DELETION_FAILURES_MAX: usize = 8;

/// Asks for the uploads by parts that were begun below a link's prefix, by whomever, and not ended.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListUploads {
    /// The link's directory, from the root.
    pub path: PathBytes,
    /// Gives up those that were begun so many seconds ago, by the bucket's clock, or more, and that
    /// no export of this cluster is using.
    pub abort_older_than_seconds: Option<u64>,
}

/// Uploads that were begun and not ended.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UploadsReply {
    /// The first of them; at most [`UPLOADS_MAX`].
    pub uploads: Vec<UnfinishedUpload>,
    /// How many there are.
    pub total: u64,
    /// How many of them were given up.
    pub aborted: u64,
}

/// The most uploads that [`UploadsReply`] names: their keys fit into a message.
pub const UPLOADS_MAX: usize = 256;

/// An upload that was begun and not ended.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UnfinishedUpload {
    /// The whole key.
    pub key: String,
    /// Its name at the bucket.
    pub upload_id: String,
    /// When it was begun, by the bucket's clock; the end of time where that does not tell.
    pub begun: Timestamp,
    /// Whether an export of this cluster is using it.
    pub is_used: bool,
    /// Whether it was given up now.
    pub aborted: bool,
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
