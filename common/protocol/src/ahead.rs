//! Fetching before anybody asks: what readers had to wait for, and what follows from it.
//!
//! A target that fetches for a reader tells so with [`ReportMisses`]. The metadata server knows
//! what lies beside that, and by the link's [`FetchPolicy`] has targets fetch more with
//! [`FetchAhead`]. All of it is a matter of speed: it may be lost, repeated or refused.

use millrace_types::{ChunkIndex, LinkId, TargetId};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    admin::PathBytes,
    target::{ContentName, Item},
};

/// Tells of reads that had to wait for a bucket. A server that does not know the request refuses
/// it, and nothing is fetched ahead.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ReportMisses {
    /// At most [`MISSES_MAX`].
    pub misses: Vec<Miss>,
}

/// The most misses of one report: bounds the message.
pub const MISSES_MAX: usize = 1024;

/// A chunk of which a reader had to wait for bytes.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Miss {
    /// The file and its content.
    pub content: ContentName,
    /// The chunk.
    pub chunk: ChunkIndex,
}

/// Fetches what is absent and backed by the bucket, as [`Hydrate`](crate::target::Hydrate) does,
/// but behind what readers wait for, and only while the target has room: an item is answered
/// [`NoSpace`](millrace_types::ErrorKind::NoSpace) as soon as its bytes could push out others.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FetchAhead {
    /// The target.
    pub target: TargetId,
    /// What to fetch; at most [`ITEMS_MAX`](crate::target::ITEMS_MAX).
    pub items: Vec<Item>,
}

/// What is fetched behind a read that had to wait for the bucket. What a read asks for itself, and
/// the run-ahead of sequential streams, is the same with all of them.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FetchPolicy {
    /// Nothing.
    Asked = 1,
    /// The rest of the chunk.
    Chunk = 2,
    /// The rest of the file.
    File = 3,
    /// Other small files of the same directory, the more the more of them were waited for.
    Ahead = 4,
}

/// Sets what is fetched behind reads below a link.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetFetchPolicy {
    /// The link's directory, from the root.
    pub path: PathBytes,
    /// From now on.
    pub policy: FetchPolicy,
}

/// Asks what is fetched behind reads.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct ListFetchPolicies {}

/// Of all links; of [`SetFetchPolicy`], of that one.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FetchPoliciesReply {
    /// Ascending by link.
    pub links: Vec<LinkFetches>,
}

/// What one link fetches behind reads, and what that was since the metadata server began to run.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LinkFetches {
    /// The link.
    pub link: LinkId,
    /// Its policy.
    pub policy: FetchPolicy,
    /// Files, or parts of large ones, that were fetched before anybody asked for them.
    pub files: u64,
    /// Bytes of that.
    pub bytes: u64,
}
