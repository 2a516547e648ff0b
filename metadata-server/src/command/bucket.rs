//! Commands about what a bucket said when it was asked again, and what follows from that.

use millrace_protocol::{
    admin::{AttributeSource, Keep},
    ahead::FetchPolicy,
    capability::Origin,
    left_out::LeftOutKey,
    session::Caller,
};
use millrace_types::{FileName, InodeId, LinkId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

/// What the bucket said of one file's object. A clean file follows it, a changed one becomes a
/// conflict.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ObserveObject {
    /// The file.
    pub inode: InodeId,
    /// The tag that the file recorded when the bucket was asked: with another one by now, the
    /// answer is about a version that nobody stands against any more.
    pub known: Option<String>,
    /// The object; `None` when there is none.
    pub found: Option<FoundObject>,
}

/// An object as HEAD told it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FoundObject {
    /// Its version.
    pub origin: Origin,
    /// Last change of content.
    pub modified: Timestamp,
}

/// Sets whether files below a link go to its bucket by themselves.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetAutoExport {
    /// The link.
    pub link: LinkId,
    /// Seconds that a file must have been left alone; `None`: they do not.
    pub quiet_seconds: Option<u32>,
}

/// Sets what is fetched behind reads below a link.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetFetchPolicy {
    /// The link.
    pub link: LinkId,
    /// From now on.
    pub policy: FetchPolicy,
}

/// Sets whether removals below a link reach its bucket.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetDeletePropagation {
    /// The link.
    pub link: LinkId,
    /// From now on.
    pub on: bool,
}

/// Removes imported names. Directories must be empty of other names by then.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ForgetEntries {
    /// The link that is being removed.
    pub link: LinkId,
    /// The directory.
    pub directory: InodeId,
    /// The names, at most [`BATCH_MAX`](super::BATCH_MAX); names that are gone are passed over.
    pub names: Vec<FileName>,
}

/// An object that was to be deleted is gone, or stays.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ForgetDeletion {
    /// The link.
    pub link: LinkId,
    /// The whole key.
    pub key: String,
    /// The version that was queued,
    pub tag: String,
    /// and when.
    pub queued: Timestamp,
}

/// Sets how often a link is listed again by itself.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetRefreshInterval {
    /// The link.
    pub link: LinkId,
    /// Seconds from round to round; `None`: it is not.
    pub every_seconds: Option<u32>,
}

/// Records what the last listing of a directory left out.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct NoteLeftOut {
    /// The linked directory.
    pub directory: InodeId,
    /// How many keys; 0: nothing is left out any more.
    pub keys: u64,
    /// The first of them, at most
    /// [`LEFT_OUT_KEYS_MAX`](millrace_protocol::left_out::LEFT_OUT_KEYS_MAX).
    pub first: Vec<LeftOutKey>,
}

/// What an observation led to.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum Observation {
    /// Nothing: the file knew it already, or stands against another version by now.
    Known = 0,
    /// The file shows the object's new content.
    Followed = 1,
    /// The file was changed here too: nothing was overwritten.
    Conflict = 2,
    /// The object is gone, and the file's names with it.
    Removed = 3,
    /// A conflict is decided for what was written here.
    Kept = 4,
}

/// Decides which version of a file in conflict stays.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ResolveConflict {
    /// For whom: the owner or root.
    pub caller: Caller,
    /// The file.
    pub inode: InodeId,
    /// Which version.
    pub keep: Keep,
    /// The object as it is now; `None` when there is none.
    pub found: Option<FoundObject>,
}

/// Sets how a link follows its bucket; `None` leaves a value as it is.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct SetLinkOptions {
    /// The link.
    pub link: LinkId,
    /// Seconds after which a listing is old; 0: never.
    pub refresh_seconds: Option<u32>,
    /// Which objects are asked for their attributes.
    pub attributes: Option<AttributeSource>,
}

/// Removes an imported directory of which the bucket has nothing left, unless something is in it or
/// was changed in it here.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DropDirectory {
    /// The linked directory that holds it.
    pub parent: InodeId,
    /// Its name.
    pub name: FileName,
    /// Itself: another directory of that name stays.
    pub inode: InodeId,
}
