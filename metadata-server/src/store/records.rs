//! The values of the metadata store: one version byte, then an rkyv record, decoded with checks.
//!
//! A record's shape never changes under its version: a new shape has the next number. The store is
//! derived, so that one whose file system record has another version is made anew from the log.
//! Types that the wire shares (attributes, buckets, origins) are frozen by the wire's own golden
//! bytes.

use millrace_protocol::{
    admin::{AttributeSource, FileState, Job},
    ahead::FetchPolicy,
    cluster::{Bucket, LinkMode},
    job_detail::JobDetail,
    job_options::JobOptions,
    left_out::LeftOutKey,
    metadata::FileKind,
    selection::Selection,
    session::Caller,
};
use millrace_types::{
    ByteLen, ChangeCount, ContentGeneration, GroupEpoch, GroupId, HostId, InodeId, JobId, KeyId,
    Layout, LinkId, LogIndex, MapEpoch, PoolId, SessionId, TargetId, Timestamp, WriteEpoch,
};
use rkyv::{Archive, Deserialize, Serialize};

use super::{StoreError, View};
use crate::namespace::FileBody;

/// A value of the store.
pub trait Record: Sized {
    /// What it is, for the report of damage.
    const WHAT: &'static str;

    /// The bytes to store.
    fn encode(&self) -> Vec<u8>;

    /// Reads stored bytes; `None` when they are damaged or of a later version.
    fn decode(bytes: &[u8]) -> Option<Self>;
}

/// Most records fit into so many bytes: growing on the way costs more than what is left over.
pub(crate) const ROOM: usize = 256;

/// Implements [`Record`] for an rkyv type under a version number.
macro_rules! record {
    ($type:ty, $version:literal, $what:literal) => {
        impl $crate::store::records::Record for $type {
            const WHAT: &'static str = $what;

            fn encode(&self) -> Vec<u8> {
                let mut bytes = Vec::with_capacity($crate::store::records::ROOM);
                bytes.push($version);
                bytes = rkyv::api::high::to_bytes_in::<_, rkyv::rancor::Error>(self, bytes)
                    .expect("a record always encodes into memory");
                bytes
            }

            fn decode(bytes: &[u8]) -> Option<Self> {
                let (version, body) = bytes.split_first()?;
                if *version != $version {
                    return None;
                }
                rkyv::from_bytes::<Self, rkyv::rancor::Error>(body).ok()
            }
        }
    };
}
pub(crate) use record;

/// Reads the record at `key`.
///
/// # Errors
/// When the engine fails or the record does not decode.
pub fn read<R: Record>(view: &(impl View + ?Sized), key: &[u8]) -> Result<Option<R>, StoreError> {
    let Some(bytes) = view.get(key)? else {
        return Ok(None);
    };
    decode(key, &bytes).map(Some)
}

/// Decodes a value that was read from `key`.
///
/// # Errors
/// [`StoreError::Damaged`] when it does not decode.
pub fn decode<R: Record>(key: &[u8], bytes: &[u8]) -> Result<R, StoreError> {
    R::decode(bytes).ok_or_else(|| StoreError::Damaged { what: R::WHAT, key: key.to_owned() })
}

/// What the store shows.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Applied {
    /// The last applied record of the log.
    pub index: LogIndex,
    /// The time that it carried; later commands carry no earlier one.
    pub time: Timestamp,
}
record!(Applied, 1, "applied index");

/// Counts and reserved ids.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FileSystem {
    /// Which behaviour of apply is in force.
    pub feature_level: u32,
    /// Inodes in use, also those without a name.
    pub inodes: u64,
    /// Inode ids below this one have been given out, or may have been.
    pub inode_limit: InodeId,
    /// The next session.
    pub next_session: SessionId,
    /// The next link.
    pub next_link: LinkId,
    /// The next job.
    pub next_job: JobId,
    /// The next signing key.
    pub next_key: KeyId,
    /// Version of the cluster map.
    pub map_epoch: MapEpoch,
    /// Raised by each change of the links.
    pub links_version: u64,
    /// Entries in the reclaim queues of all targets.
    pub reclaim_entries: u64,
}
record!(FileSystem, 2, "file system record");

/// A name in a directory.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct Entry {
    /// What it names.
    pub inode: InodeId,
    /// The kind of that inode.
    pub kind: FileKind,
    /// Position in listings; never 0, and never given to another name of the directory. A name that
    /// another inode takes keeps it.
    pub cookie: u64,
}
record!(Entry, 1, "directory entry");

/// An imported name that was removed or moved away: import skips a key whose tag it matches.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Whiteout {
    /// Tag of the object whose name it was; empty for a directory.
    pub tag: String,
}
record!(Whiteout, 1, "whiteout");

/// A client's session.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SessionRecord {
    /// The node that opened it.
    pub host: HostId,
    /// Its name, for people.
    pub host_name: String,
    /// The number that the client drew: the same request again gives the same session.
    pub nonce: u64,
    /// When it was opened.
    pub opened: Timestamp,
    /// Outcomes of lower sequence numbers are forgotten.
    pub lowest_pending: u64,
}
record!(SessionRecord, 1, "session");

/// Who keeps an inode open.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct OpenRecord {
    /// Opens for writing.
    pub writes: u32,
    /// Whether the session had it open for reading when it lost its last name.
    pub reads: bool,
}
record!(OpenRecord, 1, "open record");

/// A target daemon.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct HostRecord {
    /// Its name, for people.
    pub name: String,
    /// Its socket addresses.
    pub addresses: Vec<String>,
}
record!(HostRecord, 1, "host");

/// A target.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TargetRecord {
    /// The daemon that serves it.
    pub host: HostId,
    /// When it joined.
    pub joined: Timestamp,
    /// What it could hold at its last registration.
    pub capacity: ByteLen,
    /// It came back without its data: chunks of inodes below this id are lost on it.
    pub lost_below: InodeId,
}
record!(TargetRecord, 1, "target");

/// What a target has shown of the log: one that shows less is an older copy of itself.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ShownRecord {
    /// Up to where it has seen this log, when that was noted last.
    pub index: LogIndex,
}
record!(ShownRecord, 1, "what a target has shown");

/// A target that was given up. Its id is never used again.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LostTarget {
    /// The daemon that served it.
    pub host: HostId,
    /// When it was given up.
    pub begun: Timestamp,
    /// The groups that it served.
    pub groups: Vec<(PoolId, GroupId)>,
    /// Inodes below this id may have had chunks on it.
    pub below: InodeId,
    /// Of these, every one up to this has been looked at.
    pub looked_at: InodeId,
    /// Files that were damaged.
    pub files: u64,
    /// When others took the groups over.
    pub ended: Option<Timestamp>,
}
record!(LostTarget, 1, "lost target");

/// An append-only array of groups.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PoolRecord {
    /// Its name.
    pub name: String,
    /// How many groups it has.
    pub groups: u32,
    /// Every target that serves one of them.
    pub targets: Vec<TargetId>,
}
record!(PoolRecord, 1, "pool");

/// A redundancy set of targets.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct GroupRecord {
    /// Raised only when the targets change.
    pub epoch: GroupEpoch,
    /// By copy index.
    pub targets: Vec<TargetId>,
}
record!(GroupRecord, 1, "placement group");

/// A key that signs capabilities and tickets.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct KeyRecord {
    /// The secret.
    pub secret: [u8; 32],
    /// When it was made.
    pub made: Timestamp,
}
record!(KeyRecord, 1, "signing key");

impl std::fmt::Debug for KeyRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "KeyRecord(secret not shown)")
    }
}

/// A binding of a directory to a bucket and prefix.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinkRecord {
    /// The directory.
    pub directory: InodeId,
    /// The bucket.
    pub bucket: Bucket,
    /// What may be changed, and whether it goes back.
    pub mode: LinkMode,
    /// The link is being removed: nothing more is imported through it.
    pub removing: bool,
    /// Seconds after which a listing is old; 0: never.
    pub refresh_seconds: u32,
    /// Which objects are asked for their attributes when they are listed.
    pub attributes: AttributeSource,
}
record!(LinkRecord, 2, "link");

/// A link that exports by itself.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct AutoExportRecord {
    /// Seconds that a file must have been left alone.
    pub quiet_seconds: u32,
}
record!(AutoExportRecord, 1, "auto-export");

/// What is fetched behind reads below a link.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct FetchRecord {
    /// The policy.
    pub policy: FetchPolicy,
}
record!(FetchRecord, 1, "fetch");

/// What the last listing of a linked directory left out.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LeftOutRecord {
    /// How many keys.
    pub keys: u64,
    /// The first of them.
    pub first: Vec<LeftOutKey>,
}
record!(LeftOutRecord, 1, "left-out keys");

/// A link that is listed again by itself.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct RefreshIntervalRecord {
    /// Seconds from round to round.
    pub every_seconds: u32,
}
record!(RefreshIntervalRecord, 1, "refresh interval");

/// A content whose chunks may go, on one target.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReclaimRecord {
    /// The file.
    pub inode: InodeId,
    /// This content and all before it.
    pub generation: ContentGeneration,
}
record!(ReclaimRecord, 1, "reclaim entry");

/// What targets must still cut: behind a shrink, or what a writer whose session ended may have
/// left.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimRecord {
    /// The content.
    pub generation: ContentGeneration,
    /// The epoch from which on it is cut.
    pub write_epoch: WriteEpoch,
    /// Where its chunks are.
    pub layout: Layout,
    /// The new size.
    pub size: u64,
}
record!(TrimRecord, 1, "pending trim");

/// A run of the server, from one start to the next.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct RunRecord {
    /// The number that it drew, and told to everybody.
    pub incarnation: u64,
    /// Ids from here on are those of no inode at its start,
    pub unnamed_from: InodeId,
    /// and were reserved before it, up to here: given out in a run before and gone, or never given
    /// out by this log. Empty after an operator has vouched for the namespace.
    pub unnamed_until: InodeId,
}
record!(RunRecord, 1, "run of the server");

/// Why the namespace may have lost files whose chunks targets still hold.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DistrustRecord {
    /// Since when.
    pub since: Timestamp,
    /// One sentence.
    pub reason: String,
}
record!(DistrustRecord, 1, "distrust");

/// That backups were put back.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct RestoreRecord {
    /// How often: generations and write epochs go on from a multiple of it.
    pub restores: u32,
}
record!(RestoreRecord, 1, "count of restores");

/// A job with what its continuation needs.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobRecord {
    /// As people see it.
    pub job: Job,
    /// Who asked for it.
    pub caller: Caller,
    /// The top of the tree that it works on.
    pub root: InodeId,
}
record!(JobRecord, 1, "job");

/// What a job works on, if that is not all of its tree, or is only counted.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SelectionRecord {
    /// Which files.
    pub selection: Selection,
    /// Whether nothing is done.
    pub dry_run: bool,
}
record!(SelectionRecord, 1, "selection of a job");

/// How a job is done, if that is in some way of its own.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobOptionsRecord {
    /// As it was asked for.
    pub options: JobOptions,
}
record!(JobOptionsRecord, 1, "options of a job");

/// Of a job over what nobody has used for a while.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UnusedRecord {
    /// The least seconds from the last use of a file to the job's start.
    pub seconds: u64,
}
record!(UnusedRecord, 1, "last use of a job's files");

/// Of a job over the files in some states.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StatesRecord {
    /// The states; of what is in none of them nothing is done.
    pub states: Vec<FileState>,
}
record!(StatesRecord, 1, "states of a job's files");

/// Of a file that is open for writing, and was like its object before: nobody has written it yet.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PristineRecord {
    /// Its bytes.
    pub size: u64,
    /// Its content, and how it stood against the object.
    pub file: FileBody,
}
record!(PristineRecord, 1, "unwritten file");

/// More of a job than its counts.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct JobDetailRecord {
    /// As it was told last.
    pub detail: JobDetail,
}
record!(JobDetailRecord, 1, "detail of a job");

/// The export of one file, from before its upload began until the inode shows its outcome and the
/// targets know which of their blocks the object has.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// For this job.
    pub job: JobId,
    /// Travels in the object's metadata and settles unclear answers.
    pub id: u128,
    /// What the inode showed when the file was frozen.
    pub change_count: ChangeCount,
    /// The content.
    pub generation: ContentGeneration,
    /// Bytes.
    pub size: u64,
    /// To this link's bucket.
    pub link: LinkId,
    /// The whole key of the object.
    pub key: String,
    /// The tag that the key had, if it had one: the condition of the upload.
    pub replaces: Option<String>,
    /// Bytes of each part but the last; fixed before the first upload.
    pub part_size: u64,
    /// The multipart upload, once the bucket has named it; `None` also for a single put.
    pub upload_id: Option<String>,
}
record!(Export, 1, "export");

impl Export {
    /// Whether an object is at the place that this is to.
    pub fn is_of(&self, origin: &millrace_protocol::capability::Origin) -> bool {
        origin.link == self.link && origin.key == self.key
    }
}

/// An upload by parts to a bucket that no link leads to, from before it was begun until the object
/// stands or it was given up.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CopyRecord {
    /// The bucket.
    pub bucket: Bucket,
    /// The whole key of the object.
    pub key: String,
    /// The content that is sent.
    pub generation: ContentGeneration,
    /// What the inode showed when it was begun.
    pub change_count: ChangeCount,
    /// Bytes.
    pub size: u64,
    /// Bytes of each part but the last; fixed before the first one.
    pub part_size: u64,
    /// The upload, once the bucket has named it.
    pub upload_id: Option<String>,
}
record!(CopyRecord, 1, "copy");

/// Removals below a link reach its bucket.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct DeletePropagationRecord {
    /// Since when; what was removed before stays there.
    pub since: Timestamp,
}
record!(DeletePropagationRecord, 1, "propagation of deletions");

/// An object that is to be deleted.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DeletionRecord {
    /// The version; of the mark of a directory, which has none, empty.
    pub tag: String,
    /// Files that had it and lost their names: who has one open may read it still.
    pub inodes: Vec<InodeId>,
    /// When it was removed.
    pub queued: Timestamp,
}
record!(DeletionRecord, 1, "deletion");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_and_refuses_damage() {
        let entry = Entry { inode: InodeId(5), kind: FileKind::Regular, cookie: 9 };
        let bytes = entry.encode();
        assert_eq!(bytes[0], 1);
        assert_eq!(Entry::decode(&bytes), Some(entry));
        assert_eq!(Entry::decode(&bytes[..bytes.len() - 1]), None);
        let mut later = bytes;
        later[0] = 2;
        assert_eq!(Entry::decode(&later), None);
        assert_eq!(Entry::decode(&[]), None);
    }
}
