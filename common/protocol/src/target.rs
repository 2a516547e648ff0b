//! Requests by which the metadata server has targets work: trimming, hydration, release, export.
//!
//! Only a peer with the metadata role may send them, so contents travel unsigned. Every one may be
//! sent again without harm.

use millrace_types::{
    ByteLen, ChunkIndex, ContentGeneration, Crc32c, Failure, GroupEpoch, InodeId, Layout, LinkId,
    TargetId, WriteEpoch,
};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    capability::{Content, Signed},
    cluster::Bucket,
};

/// The most items of one request: bounds the message and the work behind one answer.
pub const ITEMS_MAX: usize = 256;

/// Drops what lies past a new, smaller size, durably, and refuses older write epochs from then on.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Trim {
    /// The targets of this daemon that may hold chunks of the file.
    pub targets: Vec<TargetId>,
    /// The file.
    pub inode: InodeId,
    /// Its content.
    pub generation: ContentGeneration,
    /// Where its chunks are.
    pub layout: Layout,
    /// The epoch after the shrink.
    pub write_epoch: WriteEpoch,
    /// The new size in bytes.
    pub size: u64,
}

/// The bytes past the new size are gone.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct TrimReply {
    /// Bytes that became free.
    pub freed: ByteLen,
}

/// Stores bytes that live in an inode so far, durably, as the first ones of their file, and refuses
/// the content's write epoch from then on: that of whoever writes next is one more. Sent again it
/// changes nothing, also when somebody has written since.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StoreInline {
    /// The target, which serves the first chunk's group.
    pub target: TargetId,
    /// The group's epoch.
    pub group_epoch: GroupEpoch,
    /// The content that the bytes are of.
    pub content: Content,
    /// At least one, and [`INLINE_BYTES_MAX`](crate::metadata::INLINE_BYTES_MAX) at most.
    pub bytes: Vec<u8>,
}

/// The bytes are on stable storage.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct StoreInlineReply {
    /// How many.
    pub stored: ByteLen,
}

/// A run of one file's chunks. A target works on those of its own and passes over the others.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Item {
    /// The content.
    pub content: Content,
    /// First chunk.
    pub first: ChunkIndex,
    /// How many chunks, from `first` on.
    pub count: u32,
}

/// Fetches what is absent and backed by the bucket. Returns when it is stored.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Hydrate {
    /// The target.
    pub target: TargetId,
    /// What to fetch; at most [`ITEMS_MAX`].
    pub items: Vec<Item>,
}

/// Drops clean blocks; written and zero ones stay.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Release {
    /// The target.
    pub target: TargetId,
    /// What to drop; at most [`ITEMS_MAX`].
    pub items: Vec<Item>,
}

/// After an export: blocks that are still the exported version become clean, the rest stay written.
/// An item of which some do so within its content's origin length is answered with
/// [`ErrorKind::ObjectChanged`](millrace_types::ErrorKind::ObjectChanged), or with
/// [`ErrorKind::FileTooLarge`](millrace_types::ErrorKind::FileTooLarge) where another export would
/// come to the same; what could be marked is.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct MarkExported {
    /// The target.
    pub target: TargetId,
    /// What was exported, with the new origin; at most [`ITEMS_MAX`].
    pub items: Vec<Item>,
}

/// The same after an export that raised the write epoch: of a content of which the target has
/// something, older epochs are refused from then on. A request of its own, so that a target that
/// would not keep the epoch says so.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct MarkExportedAt {
    /// The target.
    pub target: TargetId,
    /// What was exported, with the new origin and write epoch; at most [`ITEMS_MAX`].
    pub items: Vec<Item>,
}

/// One result per item, in the order of the request.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ItemResults {
    /// Bytes fetched, freed or marked; or why not.
    pub results: Vec<Result<ByteLen, Failure>>,
}

/// Asks how much is present.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Presence {
    /// The target.
    pub target: TargetId,
    /// Files and contents; at most 4,096.
    pub contents: Vec<ContentName>,
}

/// Names one content.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct ContentName {
    /// The file.
    pub inode: InodeId,
    /// Which of its contents.
    pub generation: ContentGeneration,
}

/// One answer per content, in the order of the request.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PresenceReply {
    /// What the target holds of each.
    pub present: Vec<Present>,
}

/// Bytes of one content on one target, by block state. A last block counts its valid bytes.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Present {
    /// The bucket's bytes.
    pub clean: ByteLen,
    /// Bytes that somebody wrote.
    pub written: ByteLen,
    /// Zeros that somebody asked for.
    pub zero: ByteLen,
    /// One past the last present byte, counted from the file's start; 0 when nothing is.
    pub end: u64,
}

/// Uploads one part of a multipart upload from the chunks of a frozen file.
///
/// The daemon that holds the part's first chunk does it; bytes of other targets it reads from their
/// daemons with `capability`.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UploadPart {
    /// What is uploaded.
    pub source: UploadSource,
    /// The upload's id as the bucket gave it (for `file://`, the temporary name).
    pub upload_id: String,
    /// 1 to 10,000.
    pub part_number: u16,
}

/// The part is stored in the bucket.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UploadPartReply {
    /// What completion must name.
    pub etag: String,
    /// Of the part's bytes, from verified page checksums.
    pub checksum: Crc32c,
}

/// Reads what a part would send, as [`UploadPart`] does, and sends nothing: for a part that the
/// bucket of the source's link has already. Like an upload it notes which blocks were read, so that
/// they become clean when the object stands. A target from before it answers
/// [`ErrorKind::NotSupported`]: the part is sent again.
///
/// [`ErrorKind::NotSupported`]: millrace_types::ErrorKind::NotSupported
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DigestPart {
    /// What would be sent.
    pub source: UploadSource,
    /// Whether the MD5 is wanted, which costs a pass over the bytes.
    pub with_md5: bool,
}

/// What the bytes of a part are.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct DigestPartReply {
    /// From verified page checksums.
    pub checksum: Crc32c,
    /// If it was wanted.
    pub md5: Option<[u8; 16]>,
}

/// A byte range of a file on its way to an object.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UploadSource {
    /// The file's content.
    pub content: Content,
    /// For reading from other targets: given to the system session.
    pub capability: Signed,
    /// First byte of the range in the file.
    pub offset: u64,
    /// Bytes; 0 only for an empty object.
    pub len: u64,
    /// Which link's bucket (and credentials) the object goes to.
    pub link: LinkId,
    /// The object's whole key within the bucket.
    pub key: String,
}

/// Uploads a whole file as one object, without multipart.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UploadObject {
    /// What is uploaded: the whole file.
    pub source: UploadSource,
    /// User metadata of the object: POSIX attributes and the export's unique id.
    pub metadata: Vec<(String, String)>,
    /// What the bucket must hold at the key now.
    pub condition: UploadCondition,
}

/// What must hold at a key for an upload to replace it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum UploadCondition {
    /// Nothing may exist there.
    Absent,
    /// The version with this tag.
    Tag(String),
}

/// The object is stored.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UploadObjectReply {
    /// Its entity tag.
    pub etag: String,
    /// Of its bytes, from verified page checksums.
    pub checksum: Crc32c,
}

/// Uploads one part to a bucket that no link leads to.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UploadPartTo {
    /// The bucket.
    pub bucket: Bucket,
    /// The part; the link of its source says nothing.
    pub part: UploadPart,
}

/// Uploads a whole file as one object to a bucket that no link leads to.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct UploadObjectTo {
    /// The bucket.
    pub bucket: Bucket,
    /// The object; the link of its source says nothing.
    pub object: UploadObject,
}

/// Uploads a whole file as one object, and tells what the bucket says of it. A request of its own,
/// so that a target that would not tell says so: [`ErrorKind::NotSupported`] says that, and never
/// what the bucket does not support, which is [`ErrorKind::InvalidArgument`].
///
/// [`ErrorKind::NotSupported`]: millrace_types::ErrorKind::NotSupported
/// [`ErrorKind::InvalidArgument`]: millrace_types::ErrorKind::InvalidArgument
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StoreObject {
    /// A bucket that no link leads to; `None` for that of the source's link.
    pub bucket: Option<Bucket>,
    /// The object.
    pub object: UploadObject,
}

/// The object is stored.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct StoreObjectReply {
    /// Its entity tag.
    pub etag: String,
    /// Whether the bucket has told the checksum of its bytes, and it was theirs: then it has all of
    /// them, and need not be asked how many it has.
    pub is_checked: bool,
}

/// Asks whether this host reaches a bucket with its own credentials and network.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CheckBucket {
    /// The bucket.
    pub bucket: Bucket,
    /// Whether writing is needed too.
    pub write: bool,
}

/// Asks whether this host can use a bucket with its own credentials and network, and what could not
/// be tried. It stands for [`CheckBucket`], which reads nothing.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct TryBucket {
    /// The bucket.
    pub bucket: Bucket,
    /// Whether what is there has to be readable.
    pub read: bool,
    /// Whether writing is needed too.
    pub write: bool,
}

/// A bucket can be used, as far as that could be tried.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Tried {
    /// Whether deleting was tried, and is allowed.
    pub deletes: bool,
    /// What could not be tried, and why: a sentence for each.
    pub untried: Vec<String>,
}
