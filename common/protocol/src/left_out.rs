//! Keys of buckets that can be no names here, and which they are.

use millrace_types::InodeId;
use rkyv::{Archive, Deserialize, Serialize};

use crate::{admin::PathBytes, session::Caller};

/// Asks which keys are left out in linked directories at and below a path.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowLeftOut {
    /// For whom: the owner of what is at the path, or root.
    pub caller: Caller,
    /// Where, from the root.
    pub path: PathBytes,
    /// Goes on behind this directory; `None` for the first page.
    pub after: Option<InodeId>,
}

/// Directories in which the last listing left keys out, in the order of their inodes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LeftOutReply {
    /// At most [`LEFT_OUT_DIRECTORIES_MAX`].
    pub directories: Vec<LeftOutDirectory>,
    /// Where the next page begins, if there may be more.
    pub next: Option<InodeId>,
}

/// The most directories of one page: with [`LEFT_OUT_KEYS_MAX`] keys each they fit into a message.
pub const LEFT_OUT_DIRECTORIES_MAX: usize = 16;

/// The most keys of one directory that are named.
pub const LEFT_OUT_KEYS_MAX: usize = 16;

/// The most bytes of a key that are told; what is longer ends in `...`.
pub const LEFT_OUT_KEY_LEN_MAX: usize = 1024;

/// What one listing left out.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LeftOutDirectory {
    /// The directory.
    pub inode: InodeId,
    /// Its path.
    pub path: PathBytes,
    /// How many keys; one that stands for all that begin with it counts once.
    pub keys: u64,
    /// The first of them.
    pub first: Vec<LeftOutKey>,
}

/// A key that is left out, or the beginning of keys.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LeftOutKey {
    /// The whole key within the bucket, at most [`LEFT_OUT_KEY_LEN_MAX`] bytes of it.
    pub key: String,
    /// Why.
    pub reason: LeftOutReason,
}

/// Why a key is left out.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum LeftOutReason {
    /// A part between two slashes is empty.
    EmptyPart = 0,
    /// A part is `.` or `..`.
    DotPart = 1,
    /// A part has an ASCII control character.
    ControlCharacter = 2,
    /// A part has more than 255 bytes, or the key more than 1,024.
    TooLong = 3,
    /// It is no UTF-8 (`file://`).
    NotUtf8 = 4,
    /// It is neither a regular file nor a directory (`file://`).
    SpecialFile = 5,
    /// Other keys begin with it and a slash, or it ends in one: the directory has its name.
    Directory = 6,
    /// All keys that begin with it: a file has the directory's name that was changed here.
    File = 7,
}

impl LeftOutReason {
    /// In words, for people.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::EmptyPart => "a part of it is empty",
            Self::DotPart => "a part of it is . or ..",
            Self::ControlCharacter => "it has a control character",
            Self::TooLong => "a part of it has more than 255 bytes, or all of it more than 1,024",
            Self::NotUtf8 => "it is no UTF-8",
            Self::SpecialFile => "it is neither a file nor a directory",
            Self::Directory => "a directory has its name",
            Self::File => "a file that was changed here has its name",
        }
    }
}
