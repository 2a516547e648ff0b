//! The right to make files in a directory without asking for each: clients to the metadata server.
//!
//! A client that makes one file after the other in a directory which nobody else uses is given a
//! *delegation* of it: contents that are not used yet, each with the id of an inode that nobody
//! has and the capability to write it. With that it answers a program's `open` by itself, sends the
//! bytes to the targets, and *publishes* the file when it is closed: name, attributes and size in
//! one message, several files together where several are closed.
//!
//! ```text
//!   A: Delegate ─────▶ ids, capabilities   (nobody else has a lease on the directory)
//!   A: open, write, close
//!        └─ Write ───▶ targets
//!        └─ PublishFiles ─▶ the name is there, with its size: close returns
//!   B: FindName ─────▶ answered, covered by nothing; A hears that the lease of the directory ends
//!   A: publishes what it has made and not published, acknowledges
//! ```
//!
//! A delegation is part of the lease on its directory and ends with it. While it stands no other
//! session is granted a lease there, and every change of another session in that directory waits
//! for its end. So what its holder publishes waits for nobody, and no two hosts make one name.

use millrace_types::{FileName, InodeId, SessionId, Timestamp};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    capability::Signed,
    lease::MadeName,
    metadata::Attributes,
    session::{Caller, Operation},
};

/// Asks for a delegation of a directory, or for more contents under the one that is held.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Delegate {
    /// Who asks.
    pub session: SessionId,
    /// The directory.
    pub directory: InodeId,
    /// Contents wanted, 1 to [`CONTENTS_MAX`].
    pub contents_max: u32,
}

/// What came of it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Delegated {
    /// `None` where others use the directory or have used it a moment ago, where each file may need
    /// more than this to be made (a linked directory, one with a default access control list), and
    /// for a client whose certificate restricts it.
    pub delegation: Option<Delegation>,
}

/// The right to make files in a directory.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Delegation {
    /// The directory. Its owner, group and mode stay so while the delegation stands, unless its
    /// holder changes them.
    pub directory: Attributes,
    /// The first contents of files that do not exist yet: capabilities for reading and writing.
    pub contents: Vec<Signed>,
    /// A file of at most so many bytes may be published with them instead of storing them at the
    /// targets; 0 where none may, and [`INLINE_BYTES_MAX`](crate::metadata::INLINE_BYTES_MAX) at
    /// most.
    pub inline_bytes_max: u32,
}

/// Tells a server that was restarted which delegations the session still has files under that it
/// has not published. Sent before the session listens again; refused afterwards.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DeclareDelegations {
    /// Whose.
    pub session: SessionId,
    /// The life of the server to which this is said.
    pub incarnation: u64,
    /// The directories.
    pub directories: Vec<InodeId>,
}

/// Makes files that were opened under delegations.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PublishFiles {
    /// The session, whose operations those of the files are.
    pub session: SessionId,
    /// At most [`PUBLISHED_MAX`].
    pub files: Vec<NewFile>,
}

/// A file that exists so far for its maker alone.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct NewFile {
    /// Executed exactly once.
    pub operation: Operation,
    /// For whom.
    pub caller: Caller,
    /// The directory.
    pub parent: InodeId,
    /// Its name there. One that exists is refused.
    pub name: FileName,
    /// Permission bits, already masked by the caller's umask.
    pub mode: u16,
    /// When it was made, in the server's time. Counts for ten minutes back.
    pub made_at: Timestamp,
    /// The capability that the delegation gave for it.
    pub content: Signed,
    /// One past the last byte that the targets have acknowledged, or that is in `inline`.
    pub end: u64,
    /// When the last of them was written, if any was, in the server's time.
    pub written_at: Option<Timestamp>,
    /// All of its bytes, of which none is at a target; at most
    /// [`INLINE_BYTES_MAX`](crate::metadata::INLINE_BYTES_MAX). They live in the inode then.
    pub inline: Option<Vec<u8>>,
}

/// What became of some files, in their order.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct PublishedFiles {
    /// One for each.
    pub files: Vec<PublishedFile>,
}

/// What became of a file.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum PublishedFile {
    /// It is there, and open for writing in the session.
    Made(Box<MadeName>),
    /// The same, with the bytes that were sent in its inode; they are not repeated.
    MadeInline(Box<MadeName>),
    /// It was refused.
    Refused(millrace_types::Failure),
}

/// The most contents that one answer gives.
pub const CONTENTS_MAX: u32 = 256;

/// The most files that are published together: with names of 255 bytes and 40 groups each they fit
/// a tenth of a message.
pub const PUBLISHED_MAX: usize = 64;

/// The most bytes that such files have in their inodes, all together, beside one file of any size:
/// half of a message.
pub const PUBLISHED_BYTES_MAX: usize = 512 * 1024;
