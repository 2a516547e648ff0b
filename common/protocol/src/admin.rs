//! Requests of operators and of people at a mount: the admin CLI to the metadata server, or to a
//! mount's daemon, which sends them on for its user.

use millrace_types::{
    ByteLen, ChunkIndex, ChunkSize, Failure, GroupId, HostId, InodeId, JobId, LinkId, LogIndex,
    MapEpoch, TargetId, Timestamp,
};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    cluster::{Bucket, LinkMode},
    session::Caller,
};

/// A path from the file system's root: components separated by `/`, at most 4,095 bytes.
///
/// Symbolic links in it are never followed. The empty path and `/` are the root.
pub type PathBytes = Vec<u8>;

/// Asks for the state of the whole.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ClusterStatus {}

/// State of the whole.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ClusterStatusReply {
    /// The worst that holds of any part.
    pub health: Health,
    /// What is wrong, one sentence each; empty when healthy.
    pub problems: Vec<String>,
    /// The cluster's id in hexadecimal.
    pub cluster: String,
    /// The server's version (`0.1.0`).
    pub version: String,
    /// When this server process started.
    pub started: Timestamp,
    /// The server's clock.
    pub server_time: Timestamp,
    /// The last applied and the last synced index of the command log.
    pub log: LogStatus,
    /// The present cluster map.
    pub map_epoch: MapEpoch,
    /// Inodes in use.
    pub inodes: u64,
    /// Sessions that are alive.
    pub sessions: Vec<SessionStatus>,
    /// Every target ever registered.
    pub targets: Vec<TargetStatus>,
    /// The links.
    pub links: Vec<LinkStatus>,
    /// Jobs that have not ended, and the last few that have.
    pub jobs: Vec<Job>,
    /// Contents that wait to be freed, summed over the targets.
    pub reclaim_entries: u64,
}

/// How well something is.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
#[repr(u8)]
pub enum Health {
    /// Everything works.
    Healthy = 0,
    /// Something is missing or failing; the rest works.
    Degraded = 1,
}

/// Where the command log stands.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogStatus {
    /// Last index applied to the store.
    pub applied: LogIndex,
    /// Last index on stable storage.
    pub synced: LogIndex,
    /// Bytes of the log on disk.
    pub size: ByteLen,
}

/// One client session.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SessionStatus {
    /// The session.
    pub session: millrace_types::SessionId,
    /// The node.
    pub host: HostId,
    /// Its name.
    pub host_name: String,
    /// Until when it is alive unless renewed.
    pub expires: Timestamp,
    /// Files open for writing.
    pub write_opens: u32,
}

/// One target.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TargetStatus {
    /// The target.
    pub id: TargetId,
    /// The daemon that serves it.
    pub host: HostId,
    /// That daemon's name.
    pub host_name: String,
    /// That daemon's addresses.
    pub addresses: Vec<String>,
    /// Whether it answers.
    pub state: TargetState,
    /// Bytes that it can hold.
    pub capacity: ByteLen,
    /// Bytes that it holds.
    pub used: ByteLen,
    /// Placement groups that it serves.
    pub groups: u32,
    /// Blocks whose checksum failed.
    pub bad_blocks: u64,
    /// The last heartbeat.
    pub heard: Timestamp,
}

/// Whether a target answers.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum TargetState {
    /// Known, but not heard of since the server's start.
    Joining = 0,
    /// Heartbeats arrive.
    Online = 1,
    /// A few heartbeats are missing.
    Suspect = 2,
    /// Silent for longer than a lease.
    Offline = 3,
}

/// Asks where a file's bytes are, or what a directory gives new files.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowLayout {
    /// For whom: needs read permission.
    pub caller: Caller,
    /// Of what.
    pub path: PathBytes,
}

/// Sets what new files below a directory get. `None` leaves a value as it is.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetLayout {
    /// For whom: the owner or root.
    pub caller: Caller,
    /// The directory.
    pub path: PathBytes,
    /// Bytes of a chunk.
    pub chunk_size: Option<ChunkSize>,
    /// How many groups; -1 means all of the pool.
    pub stripe_count: Option<i32>,
    /// The pool, by name.
    pub pool: Option<String>,
    /// Files up to so many bytes may live in their inode, 0 for none.
    pub inline_bytes_max: Option<u32>,
}

/// A layout.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LayoutReply {
    /// The inode.
    pub inode: InodeId,
    /// Whether it is a directory, whose defaults are shown.
    pub directory: bool,
    /// Bytes of a chunk.
    pub chunk_size: ChunkSize,
    /// How many groups; -1 means all of the pool.
    pub stripe_count: i32,
    /// The pool's name.
    pub pool: String,
    /// The file's size.
    pub size: u64,
    /// Of a directory: new files up to so many bytes may live in their inode; 0 for none. Of a
    /// file: how many do.
    pub inline_bytes: u32,
    /// A file's chunks, at most the first [`LAYOUT_CHUNKS_MAX`].
    pub chunks: Vec<ChunkPlace>,
    /// Whether there are more chunks than shown.
    pub truncated: bool,
}

/// The most chunks that one reply lists: 128 GiB of a file with default chunks.
pub const LAYOUT_CHUNKS_MAX: usize = 16 * 1024;

/// Where one chunk is.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ChunkPlace {
    /// The chunk.
    pub index: ChunkIndex,
    /// Its group.
    pub group: GroupId,
    /// The group's targets.
    pub targets: Vec<TargetId>,
}

/// Binds a directory, made if missing, to a bucket and prefix.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AddLink {
    /// The directory.
    pub path: PathBytes,
    /// The bucket.
    pub bucket: Bucket,
    /// What may be changed, and whether it goes back.
    pub mode: LinkMode,
}

/// A link.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinkReply {
    /// The link.
    pub link: LinkStatus,
}

/// A link as an operator sees it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinkStatus {
    /// The link.
    pub id: LinkId,
    /// The directory's path.
    pub path: PathBytes,
    /// The bucket.
    pub bucket: Bucket,
    /// What may be changed, and whether it goes back.
    pub mode: LinkMode,
}

/// Asks for the links.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListLinks {}

/// The links.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinksReply {
    /// In the order in which they were made.
    pub links: Vec<LinkStatus>,
}

/// Unbinds a directory and removes the imported names below it. The bucket is not touched.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RemoveLink {
    /// The directory.
    pub path: PathBytes,
    /// Also when files were changed and not exported: their changes are lost.
    pub discard: bool,
}

/// Asks which links are being removed.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListRemovals {}

/// The links whose removal has begun and not ended.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RemovalsReply {
    /// Ascending by link.
    pub links: Vec<Removal>,
}

/// A link that is being removed.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Removal {
    /// The link.
    pub link: LinkId,
    /// Whether what its bucket does not have is given up.
    pub discard: bool,
}

/// What a job does.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum JobKind {
    /// Lists a linked tree without waiting for somebody to look.
    Import = 1,
    /// Fetches what is absent.
    Hydrate = 2,
    /// Drops what the bucket has too.
    Release = 3,
    /// Writes what was changed back to the bucket.
    Export = 4,
}

/// Starts a job over a file or tree.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StartJob {
    /// For whom: read permission for import and hydrate; the owner or root for the others.
    pub caller: Caller,
    /// What to do.
    pub kind: JobKind,
    /// To what.
    pub path: PathBytes,
}

/// A job.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobReply {
    /// The job.
    pub job: Job,
}

/// A job and how far it is. Durable in the command log.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Job {
    /// The job.
    pub id: JobId,
    /// What it does.
    pub kind: JobKind,
    /// To what.
    pub path: PathBytes,
    /// Where it stands.
    pub state: JobState,
    /// Files done.
    pub files_done: u64,
    /// Files found so far; grows while the tree is walked.
    pub files_total: u64,
    /// Bytes done.
    pub bytes_done: u64,
    /// Bytes found so far.
    pub bytes_total: u64,
    /// Files that failed.
    pub errors: u64,
    /// The first failures: path and why; at most [`JOB_FAILURES_MAX`].
    pub failures: Vec<JobFailure>,
    /// When it was asked for; of an import that goes on with one that did not succeed, when that
    /// one was.
    pub started: Timestamp,
    /// When it ended.
    pub ended: Option<Timestamp>,
}

/// The most failures that a job keeps in words; all are counted.
pub const JOB_FAILURES_MAX: usize = 32;

/// Why a job could not do one file.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobFailure {
    /// The file.
    pub path: PathBytes,
    /// Why.
    pub failure: Failure,
}

/// Where a job stands.
///
/// ```text
///   Queued ──▶ Running ──▶ Succeeded
///     │          ├───────▶ Failed      (some files failed: see errors)
///     └──────────┴───────▶ Cancelled
/// ```
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum JobState {
    /// Waits for the one before it.
    Queued = 1,
    /// Works.
    Running = 2,
    /// Did everything.
    Succeeded = 3,
    /// Ended with failures.
    Failed = 4,
    /// Was asked to stop.
    Cancelled = 5,
}

impl JobState {
    /// Whether nothing more will happen.
    #[must_use]
    pub fn is_final(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed | Self::Cancelled)
    }
}

/// Asks for the jobs.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListJobs {}

/// Jobs, newest first; at most the last 256.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobsReply {
    /// The jobs.
    pub jobs: Vec<Job>,
}

/// Asks for one job.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowJob {
    /// The job.
    pub id: JobId,
}

/// Asks for one job when it has ended, or as it is when `patience_ms` are over; answered earlier by
/// a server that ends. Servers from before this answer [`ErrorKind::NotSupported`], and so does a
/// mount while somebody else waits through it.
///
/// [`ErrorKind::NotSupported`]: millrace_types::ErrorKind::NotSupported
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AwaitJob {
    /// The job.
    pub id: JobId,
    /// How long at most, in milliseconds; more than [`AWAIT_JOB_MAX_MS`] is that.
    pub patience_ms: u32,
}

/// How long [`AwaitJob`] stays open at most, in milliseconds: less than clients give a request.
pub const AWAIT_JOB_MAX_MS: u32 = 2_000;

/// Asks a job to stop. What it has done stays done.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CancelJob {
    /// For whom: who started it, or root.
    pub caller: Caller,
    /// The job.
    pub id: JobId,
}

/// Asks how a file stands against its bucket, or sums over a directory.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowState {
    /// For whom: needs read permission.
    pub caller: Caller,
    /// Of what.
    pub path: PathBytes,
}

/// How a file stands against its bucket.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
#[repr(u8)]
pub enum FileState {
    /// Only the name is here.
    Released = 1,
    /// Some bytes are here.
    Partial = 2,
    /// All bytes are here and are the bucket's.
    Hydrated = 3,
    /// Differs from the bucket, or the bucket has no such object.
    Dirty = 4,
    /// Was written here and is in the bucket since.
    Exported = 5,
    /// Changed here and in the bucket.
    Conflict = 6,
    /// Part of it lay on a target that was given up, and nowhere else.
    Lost = 7,
}

impl FileState {
    /// Every state, in the order of a table.
    pub const ALL: [Self; 7] = [
        Self::Released,
        Self::Partial,
        Self::Hydrated,
        Self::Dirty,
        Self::Exported,
        Self::Conflict,
        Self::Lost,
    ];

    /// The word in JSON, tables and extended attributes.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Released => "released",
            Self::Partial => "partial",
            Self::Hydrated => "hydrated",
            Self::Dirty => "dirty",
            Self::Exported => "exported",
            Self::Conflict => "conflict",
            Self::Lost => "lost",
        }
    }
}

/// State of a file, or sums over a directory.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StateReply {
    /// Of a file; for a directory, the state that all files share, if they do.
    pub state: Option<FileState>,
    /// Whether it is a directory.
    pub directory: bool,
    /// Bytes of the file, or of all files below.
    pub size: ByteLen,
    /// Of these, bytes that are here.
    pub hydrated: ByteLen,
    /// For a directory: files and bytes in each state.
    pub sums: Vec<StateSum>,
    /// Directories below that have not been listed yet, or that the caller may not read and search:
    /// their files are not in the sums.
    pub unlisted_directories: u64,
    /// The object's URL and tag, where there is one.
    pub origin: Option<(String, String)>,
}

/// Files and bytes in one state.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct StateSum {
    /// The state.
    pub state: FileState,
    /// Files.
    pub files: u64,
    /// Their bytes.
    pub size: ByteLen,
}

/// Decides which version of a file in conflict stays. Nothing else leaves that state.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ResolveConflict {
    /// For whom: the owner or root.
    pub caller: Caller,
    /// The file.
    pub path: PathBytes,
    /// Which one.
    pub keep: Keep,
}

/// One of the two versions of a file that changed here and in the bucket.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum Keep {
    /// What was written here: the next export replaces the object, if it is still the one that was
    /// looked at now.
    Local = 1,
    /// What the bucket has: what was written here is given up. Where the object is gone, so is the
    /// file.
    Bucket = 2,
}

/// What became of the file.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ResolveReply {
    /// Whether the file is gone, as its object is.
    pub removed: bool,
    /// Bytes that it has now.
    pub size: ByteLen,
    /// URL and tag of the object that it stands against now, where there is one.
    pub origin: Option<(String, String)>,
}

/// Sets how a link follows its bucket; `None` leaves a value as it is.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetLinkOptions {
    /// The directory of the link.
    pub path: PathBytes,
    /// A directory that was listed longer ago is listed again when somebody looks; 0: only on
    /// command.
    pub refresh_seconds: Option<u32>,
    /// Which objects are asked for their attributes when they are listed.
    pub attributes: Option<AttributeSource>,
}

/// Where the attributes of listed objects come from: a listing tells no user metadata.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum AttributeSource {
    /// From the listing alone: size and time. Owner, mode and kind are the link's defaults.
    Listing = 1,
    /// One HEAD for each object and directory that is new or changed: symbolic links, owner, mode
    /// and time come back as they were exported.
    Objects = 2,
}

/// How one link follows its bucket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinkOptions {
    /// The link.
    pub id: LinkId,
    /// Seconds after which a listing is old; 0: never.
    pub refresh_seconds: u32,
    /// Which objects are asked for their attributes.
    pub attributes: AttributeSource,
}

/// Asks how the links follow their buckets.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListLinkOptions {}

/// How links follow their buckets: all of them, or the one that was set.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinkOptionsReply {
    /// In the order in which the links were made.
    pub links: Vec<LinkOptions>,
}
