//! What targets may drop by themselves, and what they keep: pins.

use millrace_types::InodeId;
use rkyv::{Archive, Deserialize, Serialize};

use crate::{admin::PathBytes, session::Caller, target::ContentName};

/// A target that needs room, or whose bytes are damaged, asks what it may drop of those that a
/// bucket has too.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AskRelease {
    /// Contents of which it has clean bytes; at most [`ASK_RELEASE_MAX`], also several times the
    /// same.
    pub contents: Vec<ContentName>,
}

/// The most contents of one question: a few milliseconds of the server's time.
pub const ASK_RELEASE_MAX: usize = 256;

/// One answer per content, in the order of the question.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AskReleaseReply {
    /// What may go.
    pub answers: Vec<ReleaseAnswer>,
}

/// Whether the clean bytes of a content may go.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum ReleaseAnswer {
    /// They may: its file is saved in the bucket, and nobody writes to it.
    MayGo = 1,
    /// The file differs from its object, or is in conflict: it needs what it was made from.
    Unsaved = 2,
    /// Somebody has it open for writing, or it is being exported.
    InUse = 3,
    /// It is pinned, or lies below a directory that is.
    Pinned = 4,
    /// No file has this content; the queue of what to free will say so.
    Unknown = 5,
}

/// Pins a file, or everything below a directory, or ends that. Nothing of it is dropped to make
/// room, nor by jobs. Doing it again changes nothing.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetPin {
    /// For whom: the owner or root.
    pub caller: Caller,
    /// What.
    pub path: PathBytes,
    /// Whether it is pinned from now on.
    pub pinned: bool,
}

/// Whether something is pinned now.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PinReply {
    /// The path was pinned, or its pin ended, by this; it was so already otherwise.
    pub changed: bool,
    /// Directories above it that are pinned too: without their pin it may be dropped.
    pub above: Vec<PathBytes>,
}

/// Asks what is pinned.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListPins {
    /// Those with higher numbers; `None` for the first page.
    pub after: Option<InodeId>,
}

/// Pins, in the order of their inodes; at most [`PINS_MAX`].
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PinsReply {
    /// What is pinned. The path is empty for a file that has lost its last name and is open still.
    pub pins: Vec<(InodeId, PathBytes)>,
    /// Whether there are more.
    pub more: bool,
}

/// The most pins of one page.
pub const PINS_MAX: usize = 1024;
