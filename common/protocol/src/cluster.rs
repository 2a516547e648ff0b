//! Requests that keep the cluster together: target daemons (and, for the map, clients) to the
//! metadata server.

use millrace_types::{
    ByteLen, ContentGeneration, GroupEpoch, GroupId, HostId, InodeId, KeyId, LinkId, LogIndex,
    MapEpoch, PoolId, TargetId, Timestamp,
};
use rkyv::{Archive, Deserialize, Serialize};

use crate::target::ContentName;

/// A target daemon announces itself after each start. The same request again changes nothing.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RegisterHost {
    /// Socket addresses (`ip:port`) on which clients reach this daemon; 1 to 8.
    pub addresses: Vec<String>,
    /// The host's name, for people; at most 255 bytes.
    pub host_name: String,
    /// The targets that it serves, at most [`TARGETS_PER_HOST_MAX`].
    pub targets: Vec<TargetReport>,
}

/// The most targets of one daemon: more disks than any one host has.
pub const TARGETS_PER_HOST_MAX: usize = 64;

/// State of one target as its daemon sees it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TargetReport {
    /// The target.
    pub id: TargetId,
    /// Bytes that it can hold.
    pub capacity: ByteLen,
    /// Bytes that it holds, with what is reserved.
    pub used: ByteLen,
    /// The highest inode id of any chunk on it; the server never gives out one below.
    pub inode_max: InodeId,
    /// Changes when unsynced writes may be gone.
    pub loss_count: u64,
    /// Blocks whose checksum failed and that nobody has mended.
    pub bad_blocks: u64,
    /// Whether it came up with an empty disk although it had been in service.
    pub blank: bool,
}

/// What a daemon needs to begin.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RegisterHostReply {
    /// As in every heartbeat.
    pub news: HeartbeatReply,
}

/// Sent every second. A daemon that gets no answer for one lease refuses writes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// The targets that it serves.
    pub targets: Vec<TargetReport>,
    /// Completed fetches from buckets since the daemon's start, for the operator's view.
    pub hydrated_bytes: u64,
}

/// What a daemon learns with each heartbeat.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct HeartbeatReply {
    /// The metadata server's clock, in which tickets are reckoned.
    pub server_time: Timestamp,
    /// Length of a lease in milliseconds.
    pub lease_ms: u32,
    /// Another value means that the server was restarted.
    pub incarnation: u64,
    /// The present cluster map; fetch it when it is newer than the one held.
    pub map_epoch: MapEpoch,
    /// The newest key; fetch the keys when it is not among those held.
    pub newest_key: KeyId,
    /// Raised by each change of the links; fetch them when it is newer.
    pub links_version: u64,
    /// Whether the reclaim queue holds something for one of the daemon's targets.
    pub reclaim_waiting: bool,
}

/// Asks for the cluster map.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FetchMap {
    /// The map that the caller holds; 0 for none.
    pub held: MapEpoch,
}

/// Who serves which group, and where. Health is not part of it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Map {
    /// Version of the whole.
    pub epoch: MapEpoch,
    /// The daemons.
    pub hosts: Vec<Host>,
    /// The targets.
    pub targets: Vec<Target>,
    /// The pools; each an append-only array of groups.
    pub pools: Vec<Pool>,
}

/// A target daemon.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// The id in its certificate.
    pub id: HostId,
    /// Its name, for people.
    pub name: String,
    /// Socket addresses (`ip:port`).
    pub addresses: Vec<String>,
}

/// A target and the daemon that serves it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Target {
    /// The target.
    pub id: TargetId,
    /// The daemon that serves it now.
    pub host: HostId,
}

/// An append-only array of placement groups.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Pool {
    /// The pool.
    pub id: PoolId,
    /// Its name in `--pool`.
    pub name: String,
    /// Group `n` of the pool stands at index `n`.
    pub groups: Vec<Group>,
}

/// A redundancy set of targets: one today.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Group {
    /// Raised only when the targets change.
    pub epoch: GroupEpoch,
    /// The targets, by copy index.
    pub targets: Vec<TargetId>,
}

impl Map {
    /// The group `group` of `pool`, if the map is new enough to know it.
    #[must_use]
    pub fn group(&self, pool: PoolId, group: GroupId) -> Option<&Group> {
        let pool = self.pools.iter().find(|candidate| candidate.id == pool)?;
        pool.groups.get(usize::try_from(group.0).ok()?)
    }

    /// The daemon that serves `target`.
    #[must_use]
    pub fn host_of(&self, target: TargetId) -> Option<&Host> {
        let host = self.targets.iter().find(|candidate| candidate.id == target)?.host;
        self.hosts.iter().find(|candidate| candidate.id == host)
    }
}

/// Asks for the signing keys. Answered to targets alone.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FetchKeys {}

/// The signing keys: the newest and the one before it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct Keys {
    /// Newest last; 1 or 2.
    pub keys: Vec<SigningKey>,
}

/// One HMAC-SHA-256 key.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq)]
pub struct SigningKey {
    /// Its id.
    pub id: KeyId,
    /// The secret.
    pub secret: [u8; 32],
}

impl std::fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "SigningKey({}, secret not shown)", self.id)
    }
}

impl std::fmt::Debug for Keys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(&self.keys).finish()
    }
}

/// Asks for the links. Answered to targets and admins.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FetchLinks {}

/// All links.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Links {
    /// Raised by each change.
    pub version: u64,
    /// Each link with what a host needs to reach its bucket.
    pub links: Vec<Link>,
}

/// A link between a directory and a bucket prefix.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Link {
    /// The link.
    pub id: LinkId,
    /// The bucket.
    pub bucket: Bucket,
    /// What may be changed, and whether it goes back.
    pub mode: LinkMode,
}

/// How a host reaches a bucket. Secrets are never part of it: `credentials` names a section of a
/// file on each host.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Hash, Debug)]
pub struct Bucket {
    /// `s3://bucket/prefix` or `file:///directory`.
    pub url: String,
    /// Another endpoint than the cloud's own (`http://127.0.0.1:8333`).
    pub endpoint: Option<String>,
    /// The region, where the endpoint needs one.
    pub region: Option<String>,
    /// The section of the credentials file; `None` uses the host's environment.
    pub credentials: Option<String>,
}

/// What a link lets people do.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum LinkMode {
    /// Everything below the directory can only be read.
    ReadOnly = 1,
    /// Files can be changed; nothing goes back to the bucket.
    Import = 2,
    /// Files can be changed and exported.
    ImportExport = 3,
}

/// Asks what to free.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FetchReclaim {
    /// For this target.
    pub target: TargetId,
    /// Entries wanted at most; the server sends at most 4,096. [`Self::AT_ONCE`]: as many, and the
    /// newest as well.
    pub entries_max: u32,
}

impl FetchReclaim {
    /// Of a target that is full: what is not synced yet, which others are sent a second later at
    /// most, is synced for this answer. (A server that does not know it sends what is synced.)
    pub const AT_ONCE: u32 = u32::MAX;
}

/// Part of the reclaim queue of one target. Every entry is synced in the command log.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ReclaimBatch {
    /// Oldest first.
    pub entries: Vec<ReclaimEntry>,
}

/// One content whose chunks may go. Freeing it twice is harmless.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReclaimEntry {
    /// Position in the target's queue.
    pub position: u64,
    /// The file.
    pub inode: InodeId,
    /// This content and all before it.
    pub generation: ContentGeneration,
}

/// Tells of contents whose object is not the recorded version any more. Carries no evidence: the
/// server looks at each object itself. Sending it twice is harmless, and it may be lost: the next
/// fetch finds the same.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ReportChanged {
    /// Files with the content that was fetched for; at most [`CHANGED_CONTENTS_MAX`].
    pub contents: Vec<ContentName>,
}

/// The most contents of one report: bounds the message; what is left follows in the next.
pub const CHANGED_CONTENTS_MAX: usize = 1024;

/// Tells that the chunks are freed, durably.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AcknowledgeReclaim {
    /// The target.
    pub target: TargetId,
    /// Entries up to and with this position.
    pub through: u64,
}

/// Shows what a daemon's targets have seen of the command log, after each registration and now and
/// then. A log that was put back from an older copy, or lost its end, does not know what they saw.
/// `Stale` says that a target shows less than it did: it was put back from an older copy itself,
/// and must serve nobody.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CompareLog {
    /// One for each target of the daemon.
    pub targets: Vec<LogWitness>,
}

/// What one target has seen of the command log.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogWitness {
    /// The target.
    pub target: TargetId,
    /// The newest point that it was told, once that survives a loss of power; `None` before the
    /// first.
    pub seen: Option<LogPoint>,
}

/// A point of the command log that is on stable storage.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LogPoint {
    /// The run of the metadata server that told it.
    pub incarnation: u64,
    /// The newest synced record at that time.
    pub index: LogIndex,
}
