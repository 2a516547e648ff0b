//! Requests of the namespace: clients to the metadata server.
//!
//! Every request names its [`Caller`]; every mutation its [`Operation`]. The server maps the caller
//! by the certificate's root squash and refuses inodes outside the certificate's subtree.

use millrace_types::{ChangeCount, ErrorKind, FileName, InodeId, LogIndex, Timestamp, WriteEpoch};
use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    capability::{Content, Signed},
    session::{Caller, Operation},
};

/// What an inode is.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub enum FileKind {
    /// A regular file.
    Regular = 1,
    /// A directory.
    Directory = 2,
    /// A symbolic link.
    Symlink = 3,
    /// A named pipe.
    Fifo = 4,
    /// A socket.
    Socket = 5,
    /// A character device.
    CharDevice = 6,
    /// A block device.
    BlockDevice = 7,
}

/// What `stat` shows.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Attributes {
    /// The inode.
    pub inode: InodeId,
    /// Its kind.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky: `0o7777` at most.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Names of a file; for a directory 2 plus its subdirectories.
    pub links: u32,
    /// Device number of a device node, as `makedev` packs it.
    pub device: u32,
    /// Bytes; for a directory the number of its entries.
    pub size: u64,
    /// Last read, kept lazily.
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of the inode.
    pub changed: Timestamp,
    /// When it was made.
    pub born: Timestamp,
    /// Raised by each write open, commit and setattr: equal means that cached pages still count.
    pub change_count: ChangeCount,
}

/// What a reply covers with a lease: see [`crate::lease`]. Other replies cover nothing.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug, Default)]
#[repr(u8)]
pub enum Coverage {
    /// Nothing may be kept: ask again at the next use.
    #[default]
    None = 0,
    /// The names seen may be kept.
    Names = 1,
    /// The whole directory may be kept, with what it does not contain.
    Directory = 2,
}

/// An inode as a client sees it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct InodeReply {
    /// What `stat` shows.
    pub attributes: Attributes,
    /// For regular files: what the targets hold.
    pub content: Option<Content>,
    /// A signed [`Capability`](crate::capability::Capability) for it, where the caller may use one.
    pub capability: Option<Signed>,
    /// The target of a symbolic link.
    pub symlink: Option<Vec<u8>>,
    /// The bytes of a small file that lives in its inode.
    pub inline: Option<Vec<u8>>,
    /// What may be cached.
    pub coverage: Coverage,
    /// The log index that the reply shows at least.
    pub index: LogIndex,
}

/// The most bytes that live in an inode: every change of it, such as of a time, writes them again.
pub const INLINE_BYTES_MAX: u32 = 16 * 1024;

/// Finds `name` in `parent`.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Lookup {
    /// For whom.
    pub caller: Caller,
    /// The directory.
    pub parent: InodeId,
    /// The name.
    pub name: FileName,
}

/// Fetches an inode afresh.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct GetInode {
    /// For whom.
    pub caller: Caller,
    /// The session that a capability shall be made for.
    pub session: Option<millrace_types::SessionId>,
    /// The inode.
    pub inode: InodeId,
}

/// Asks for one page of a directory.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ReadDirectory {
    /// For whom.
    pub caller: Caller,
    /// The directory.
    pub inode: InodeId,
    /// The cookie of the last entry already seen; 0 begins. `.` and `..` are not sent.
    pub cookie: u64,
    /// Entries wanted at most, 1 to [`DIRECTORY_PAGE_MAX`].
    pub entries_max: u32,
}

/// The most entries of one page: 1,024 of up to 255 + 200 bytes fit half a message.
pub const DIRECTORY_PAGE_MAX: u32 = 1024;

/// One page of a directory.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DirectoryPage {
    /// Entries in the order of their cookies.
    pub entries: Vec<DirectoryEntry>,
    /// Whether the directory has no entry after these.
    pub last: bool,
    /// The parent of the directory, for `..`.
    pub parent: InodeId,
}

/// One entry of a directory.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DirectoryEntry {
    /// The name.
    pub name: FileName,
    /// Stable position: stays the same while others are added and removed. Never 0.
    pub cookie: u64,
    /// What `stat` shows.
    pub attributes: Attributes,
}

/// Makes an inode and its name.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Create {
    /// For whom.
    pub caller: Caller,
    /// Executed exactly once.
    pub operation: Operation,
    /// The directory.
    pub parent: InodeId,
    /// The new name.
    pub name: FileName,
    /// What to make.
    pub node: NewNode,
    /// Permission bits, already masked by the caller's umask.
    pub mode: u16,
    /// For regular files: open the new file for writing in the same step.
    pub open: bool,
    /// For regular files: fail if the name exists (`O_EXCL`); otherwise an existing file is opened.
    pub exclusive: bool,
}

/// As [`Create`], with the umask apart: where the directory has a default access control list, that
/// stands in its place.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CreateMasked {
    /// What to make; its mode is as the program asked for it.
    pub create: Create,
    /// The permission bits that the caller's umask takes away: `0o777` at most.
    pub umask: u16,
}

/// Makes a regular file without a name and opens it for writing (`O_TMPFILE`). It goes with its
/// last close, unless [`MakeLink`] gives it a name before.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CreateUnnamed {
    /// For whom.
    pub caller: Caller,
    /// Executed exactly once.
    pub operation: Operation,
    /// The directory that it would be in.
    pub directory: InodeId,
    /// Permission bits.
    pub mode: u16,
    /// As of [`CreateMasked`].
    pub umask: u16,
    /// Whether it may get a name (without `O_EXCL`).
    pub nameable: bool,
}

/// What a [`Create`] makes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum NewNode {
    /// A regular file.
    Regular,
    /// A directory.
    Directory,
    /// A symbolic link with its target, 1 to 4,095 bytes.
    Symlink(Vec<u8>),
    /// A named pipe.
    Fifo,
    /// A socket.
    Socket,
    /// A character device with its number.
    CharDevice(u32),
    /// A block device with its number.
    BlockDevice(u32),
}

/// Gives `inode` the further name `name` in `parent`, or the first one that a file of
/// [`CreateUnnamed`] gets.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct MakeLink {
    /// For whom.
    pub caller: Caller,
    /// Executed exactly once.
    pub operation: Operation,
    /// The file; not a directory.
    pub inode: InodeId,
    /// The directory of the new name.
    pub parent: InodeId,
    /// The new name.
    pub name: FileName,
}

/// Removes a name.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Remove {
    /// For whom.
    pub caller: Caller,
    /// Executed exactly once.
    pub operation: Operation,
    /// The directory.
    pub parent: InodeId,
    /// The name.
    pub name: FileName,
    /// True for rmdir, false for unlink.
    pub directory: bool,
}

/// Moves a name.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Rename {
    /// For whom.
    pub caller: Caller,
    /// Executed exactly once.
    pub operation: Operation,
    /// The old directory.
    pub source_parent: InodeId,
    /// The old name.
    pub source_name: FileName,
    /// The new directory.
    pub target_parent: InodeId,
    /// The new name.
    pub target_name: FileName,
    /// What happens to an existing target.
    pub mode: RenameMode,
}

/// What happens to an existing target of a rename.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum RenameMode {
    /// It is replaced.
    Replace = 0,
    /// The rename fails.
    NoReplace = 1,
    /// The two change places.
    Exchange = 2,
}

/// Changes attributes; `None` leaves one as it is.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetAttributes {
    /// For whom.
    pub caller: Caller,
    /// Executed exactly once.
    pub operation: Operation,
    /// The inode.
    pub inode: InodeId,
    /// Permission bits.
    pub mode: Option<u16>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// New size. Zero names a new content; a smaller one is trimmed at the targets first; a larger
    /// one makes the content sparse.
    pub size: Option<u64>,
    /// Last read.
    pub accessed: Option<SetTime>,
    /// Last change of content.
    pub modified: Option<SetTime>,
    /// Only declare that the content may have holes: sent before a write past the end. With a size
    /// the file grows to that, and is never cut.
    pub make_sparse: bool,
    /// Whether the file is open for writing here (then a size needs no write permission now).
    pub open: bool,
}

/// A time to set.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub enum SetTime {
    /// The server's present time.
    Now,
    /// This time.
    At(Timestamp),
}

/// How a file is opened.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum OpenMode {
    /// For reading.
    Read = 1,
    /// For writing, or both; logged, and a file with an origin becomes dirty before it is answered.
    Write = 2,
}

/// Opens a file. One [`Close`] of the same mode ends one open.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Open {
    /// For whom.
    pub caller: Caller,
    /// Executed exactly once.
    pub operation: Operation,
    /// The file.
    pub inode: InodeId,
    /// For what.
    pub mode: OpenMode,
    /// `O_TRUNC`: the content is replaced by an empty one in the same step.
    pub truncate: bool,
    /// The host's kernel checked the permissions already when the file was created or opened
    /// (re-open after the loss of a session).
    pub reopen: bool,
}

/// Ends one open. The last one of an inode without names lets its chunks be reclaimed.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Close {
    /// Executed exactly once.
    pub operation: Operation,
    /// The file.
    pub inode: InodeId,
    /// As it was opened.
    pub mode: OpenMode,
}

/// The most opens that one [`CloseFiles`] ends.
pub const CLOSES_MAX: usize = 256;

/// Ends opens for writing, as many [`Close`]s of that mode do.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CloseFiles {
    /// Executed exactly once.
    pub operation: Operation,
    /// The file of each open, at most [`CLOSES_MAX`].
    pub inodes: Vec<InodeId>,
}

/// Ends opens for writing through which nothing was written, nor sent to be: what they open is as
/// it was. A file that was like its object before is so again, unless somebody else has written it,
/// or still may.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct CloseUnwritten {
    /// Executed exactly once.
    pub operation: Operation,
    /// The file of each open, at most [`CLOSES_MAX`].
    pub inodes: Vec<InodeId>,
}

/// A writer's proposal. Of concurrent ones the larger size stands; one from an older write epoch
/// changes nothing and is answered with the present inode.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Commit {
    /// Executed exactly once.
    pub operation: Operation,
    /// The file.
    pub inode: InodeId,
    /// The content that was written.
    pub generation: millrace_types::ContentGeneration,
    /// The epoch under which it was written.
    pub write_epoch: WriteEpoch,
    /// One past the largest byte that the targets have acknowledged.
    pub end: u64,
    /// When the last write took place, in server time; `None` when nothing was written since the
    /// last commit (then the modification time stays).
    pub written_at: Option<Timestamp>,
    /// Whether the answer waits for the log's sync (fsync).
    pub durable: bool,
}

/// Waits until every command that was acknowledged before is on stable storage.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SyncMetadata {
    /// At least up to this index.
    pub index: LogIndex,
}

/// Reads one extended attribute.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct GetXattr {
    /// For whom.
    pub caller: Caller,
    /// The inode.
    pub inode: InodeId,
    /// The whole name with its namespace, 1 to 255 bytes.
    pub name: Vec<u8>,
}

/// The value of an extended attribute.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct XattrReply {
    /// The value, at most 64 KiB.
    pub value: Vec<u8>,
}

/// Lists extended attributes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ListXattrs {
    /// For whom.
    pub caller: Caller,
    /// The inode.
    pub inode: InodeId,
}

/// Names of extended attributes.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct XattrNames {
    /// Whole names.
    pub names: Vec<Vec<u8>>,
}

/// Sets an extended attribute.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct SetXattr {
    /// For whom.
    pub caller: Caller,
    /// Executed exactly once.
    pub operation: Operation,
    /// The inode.
    pub inode: InodeId,
    /// The whole name.
    pub name: Vec<u8>,
    /// The value, at most 64 KiB.
    pub value: Vec<u8>,
    /// Whether it must or must not exist.
    pub mode: XattrMode,
}

/// Whether an extended attribute must exist before it is set.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum XattrMode {
    /// Either way.
    Any = 0,
    /// It must not exist (`XATTR_CREATE`).
    Create = 1,
    /// It must exist (`XATTR_REPLACE`).
    Replace = 2,
}

/// Removes an extended attribute.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct RemoveXattr {
    /// For whom.
    pub caller: Caller,
    /// Executed exactly once.
    pub operation: Operation,
    /// The inode.
    pub inode: InodeId,
    /// The whole name.
    pub name: Vec<u8>,
}

/// Asks for capacity and use.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FileSystemUse {
    /// Any inode of the mount.
    pub inode: InodeId,
}

/// What `statfs` shows.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FileSystemUseReply {
    /// Bytes that all targets can hold.
    pub capacity_bytes: u64,
    /// Bytes that they hold, by their last reports.
    pub used_bytes: u64,
    /// Inodes in use.
    pub inodes: u64,
}

/// The longest name of an extended attribute, in bytes (Linux's `XATTR_NAME_MAX`).
pub const XATTR_NAME_LEN_MAX: usize = 255;

/// The longest value of an extended attribute, in bytes (Linux's `XATTR_SIZE_MAX`).
pub const XATTR_VALUE_LEN_MAX: usize = 64 * 1024;

impl FileKind {
    /// The format bits of `st_mode`.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Fifo => 0o010_000,
            Self::CharDevice => 0o020_000,
            Self::Directory => 0o040_000,
            Self::BlockDevice => 0o060_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::Socket => 0o140_000,
        }
    }
}

impl InodeReply {
    /// The content of a regular file.
    ///
    /// # Errors
    /// [`ErrorKind::IsDirectory`] for a directory, [`ErrorKind::InvalidArgument`] for other kinds.
    pub fn regular_content(&self) -> Result<&Content, ErrorKind> {
        match (&self.content, self.attributes.kind) {
            (Some(content), _) => Ok(content),
            (None, FileKind::Directory) => Err(ErrorKind::IsDirectory),
            (None, _) => Err(ErrorKind::InvalidArgument),
        }
    }
}
