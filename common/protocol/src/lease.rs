//! Names and attributes that a client keeps under leases: clients to the metadata server.
//!
//! A lease is on a *key*, the id of an inode. The lease on a directory covers names in it, its own
//! attributes, and the attributes of the files whose only name lies in it; an inode with several
//! names, or none, has a lease of its own. What a reply says is covered may be kept until it is
//! taken back, and as long as the session's ticket counts.
//!
//! Who wants to keep anything must listen: [`AwaitRecalls`] stays open at the server until there is
//! something to take back. A change of another session waits for the acknowledgement:
//!
//! ```text
//!   A: FindName ───────▶ covered          (the server notes: A has a lease on the directory)
//!   B: Remove ─────────▶ ┐
//!   A: AwaitRecalls ◀─── ┤ the name is taken back
//!   A: AwaitRecalls ───▶ ┤ acknowledged
//!   B:         answered ◀┘
//! ```

use millrace_types::{FileName, InodeId, SessionId};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    capability::Signed,
    metadata::{Attributes, Coverage, CreateMasked, DirectoryEntry, InodeReply, Remove},
    session::{Caller, Done},
};

/// Finds `name` in `parent`, to keep what is found.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FindName {
    /// For whom.
    pub caller: Caller,
    /// Who keeps it.
    pub session: SessionId,
    /// The directory.
    pub parent: InodeId,
    /// The name.
    pub name: FileName,
}

/// What a name leads to.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FoundName {
    /// The inode; `None` where there is no such name. Of a file whose attributes may be kept under
    /// the lease of this directory, with a capability, so that it can be opened for reading without
    /// asking.
    pub found: Option<InodeReply>,
    /// Whether the name may be kept: [`Coverage::Directory`] also that there is none.
    pub coverage: Coverage,
    /// The key of the lease under which the attributes may be kept, if they may.
    pub lease: Option<InodeId>,
}

/// Fetches an inode, to keep its attributes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowInode {
    /// For whom.
    pub caller: Caller,
    /// Who keeps them.
    pub session: SessionId,
    /// The inode.
    pub inode: InodeId,
}

/// An inode.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShownInode {
    /// As it is.
    pub reply: InodeReply,
    /// The key of the lease under which the attributes may be kept, if they may.
    pub lease: Option<InodeId>,
}

/// Asks for one page of a directory, to keep its names and their attributes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListEntries {
    /// For whom.
    pub caller: Caller,
    /// Who keeps them.
    pub session: SessionId,
    /// The directory.
    pub inode: InodeId,
    /// Where the page begins.
    pub from: ListFrom,
    /// Entries wanted at most, 1 to [`DIRECTORY_PAGE_MAX`](crate::metadata::DIRECTORY_PAGE_MAX).
    pub entries_max: u32,
}

/// Where a page of a directory begins.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum ListFrom {
    /// Behind the entry with this cookie; 0 is the beginning.
    Cookie(u64),
    /// With this name. Where there is no such name the page is empty, and not the last.
    Name(FileName),
}

/// Asks where the names of a directory end that are there by now. A listing that takes no more than
/// those ends, whatever its reader renames meanwhile.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FindEnd {
    /// For whom.
    pub caller: Caller,
    /// Who asks.
    pub session: SessionId,
    /// The directory.
    pub inode: InodeId,
}

/// Where they end.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEnd {
    /// Each has a cookie below this, and keeps it for as long as the name is there. `None` while
    /// further names of a bucket come behind them, and below the feature level from which on a name
    /// that another file takes keeps its cookie.
    pub cookie: Option<u64>,
}

/// One page of a directory.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct EntriesPage {
    /// Entries in the order of their cookies.
    pub entries: Vec<CoveredEntry>,
    /// Whether the directory has no entry after these.
    pub last: bool,
    /// The parent of the directory, for `..`.
    pub parent: InodeId,
    /// Whether the names may be kept.
    pub coverage: Coverage,
    /// The directory's own attributes, where they may be kept under its lease.
    pub directory: Option<Attributes>,
}

/// Asks for one page of a directory as [`ListEntries`] does, and which of its entries have extended
/// attributes. That is so under the same lease as what they show: whoever sets such an attribute,
/// an access control list too, changes what is shown.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListEntriesBare {
    /// What to list.
    pub list: ListEntries,
}

/// One page of a directory, with which of its entries have extended attributes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct MarkedPage {
    /// The page.
    pub page: EntriesPage,
    /// Which of its entries have any, of whatever kind, by their places in the page, in order. Most
    /// pages have none.
    pub with_xattrs: Vec<u32>,
}

/// One entry of a directory.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CoveredEntry {
    /// The entry.
    pub entry: DirectoryEntry,
    /// The key of the lease under which its attributes may be kept, if they may.
    pub lease: Option<InodeId>,
}

/// Fetches what lets the session read a file that it has looked up, and files behind it in its
/// directory, to keep that.
///
/// Whoever keeps it under a lease may open the file for reading and tell nobody. Before it
/// acknowledges that the attributes of such a file are taken back, or changes the file itself, it
/// tells the server of each of these opens, by [`Open`](crate::metadata::Open).
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShowContents {
    /// For whom.
    pub caller: Caller,
    /// Who keeps it.
    pub session: SessionId,
    /// The file.
    pub inode: InodeId,
    /// Files wanted at most, with this one; 1 to [`CONTENTS_MAX`].
    pub entries_max: u32,
}

/// What lets a session read some files of a directory, in the order of their cookies. Files that no
/// lease covers, or that the session has no right to, are left out, the one that was asked for
/// too; there may be fewer than were wanted.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShownContents {
    /// The directory, which is the key of the lease that covers all of it.
    pub directory: InodeId,
    /// The files.
    pub contents: Vec<ShownContent>,
}

/// What lets a session read a file.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ShownContent {
    /// What `stat` shows of the file, of the same moment.
    pub attributes: Attributes,
    /// A signed [`Capability`](crate::capability::Capability), which names the content.
    pub capability: Signed,
    /// The bytes of a small file that lives in its inode.
    pub inline: Option<Vec<u8>>,
}

/// Makes an inode and its name, to keep what that changes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct MakeName {
    /// What to make.
    pub make: CreateMasked,
}

/// What was made. A repeated request is answered with what is there by then.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct MadeName {
    /// The inode: the new one, or the one that the name had.
    pub reply: InodeReply,
    /// The key of the lease under which its attributes may be kept, if they may.
    pub lease: Option<InodeId>,
    /// Whether the name may be kept.
    pub coverage: Coverage,
    /// Whether it may be kept that the new directory has no names.
    pub empty: bool,
    /// The attributes of the parent after this, where they may be kept under its lease.
    pub directory: Option<Attributes>,
}

/// Removes a name, to keep what that changes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RemoveName {
    /// What to remove.
    pub remove: Remove,
}

/// What a removal changed.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RemovedName {
    /// It is done.
    pub done: Done,
    /// The attributes of the parent after this, where they may be kept under its lease.
    pub directory: Option<Attributes>,
}

/// Listens for what is taken back from the session, and acknowledges what was. Answered when there
/// is something, and empty after [`AWAIT_RECALLS_MAX_MS`]. A session that does not listen is
/// granted nothing; the requests of one session follow each other.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AwaitRecalls {
    /// The session.
    pub session: SessionId,
    /// The life of the server, as its hello names it, since which the client has kept nothing from
    /// earlier ones: neither here nor in its kernel. Another than the present one is answered
    /// [`ErrorKind::Stale`](millrace_types::ErrorKind::Stale).
    pub incarnation: u64,
    /// [`Recalls::through`] of the last answer that was dealt with; 0 at first. What it named is
    /// not kept any more, and no answer to a request from before will be kept.
    pub acknowledged: u64,
}

/// What is taken back. What is not acknowledged comes again.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Recalls {
    /// To be acknowledged; grows.
    pub through: u64,
    /// At most [`RECALLS_MAX`].
    pub recalls: Vec<Recall>,
}

/// Listens as [`AwaitRecalls`] does, for more: where another session has made a name in a directory
/// that this one keeps something of, the answer says what the directory shows now, and that goes on
/// to be kept. A session that listens so, and is the only other one with a lease there, is told of
/// the name while it is made; who makes it is answered when that is acknowledged.
///
/// ```text
///   A: AwaitNews ──────▶
///   B: MakeName ───────▶ ┐ made
///   A: AwaitNews ◀────── ┤ the name is taken back, the directory shown
///   A: AwaitNews ──────▶ ┤ acknowledged
///   B:         answered ◀┘
/// ```
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct AwaitNews {
    /// The session.
    pub session: SessionId,
    /// As in [`AwaitRecalls::incarnation`].
    pub incarnation: u64,
    /// [`News::through`] of the last answer that was dealt with; 0 at first.
    pub acknowledged: u64,
}

/// What is taken back, and what is shown in place of that. What is not acknowledged comes again.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct News {
    /// To be acknowledged; grows.
    pub through: u64,
    /// At most [`RECALLS_MAX`].
    pub recalls: Vec<Recall>,
    /// Directories as they are now, under the leases that the session has of them: what it knew of
    /// their attributes does not count any more. At most [`RECALLS_MAX`].
    pub shown: Vec<Attributes>,
}

/// Something that must not be kept any more.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Recall {
    /// What this name of this directory leads to, or that it leads to nothing.
    Name(InodeId, FileName),
    /// The attributes of this inode. A session that has it open for writing hears so too that its
    /// content was cut or replaced, also where it was granted nothing: it fetches the inode again
    /// before it writes on. Who has cut it is answered when all writers have acknowledged.
    Attributes(InodeId),
    /// Everything under the lease with this key, which ends.
    Lease(InodeId),
    /// Everything: every lease of the session ends.
    Everything,
}

/// How long [`AwaitRecalls`] stays open, in milliseconds: a few times for each lease.
pub const AWAIT_RECALLS_MAX_MS: u64 = 10_000;

/// The most entries of one answer: 1,024 names of 255 bytes fit a third of a message.
pub const RECALLS_MAX: usize = 1024;

/// The most files of one answer to [`ShowContents`]; one that would take more than half of a
/// message has fewer.
pub const CONTENTS_MAX: u32 = 1024;
