//! An inode: everything that is known of a file, directory or symbolic link but its data.

use millrace_protocol::{
    capability::{Content, Origin},
    metadata::{Attributes, FileKind},
};
use millrace_types::{
    ChangeCount, ChunkSize, ContentGeneration, ErrorKind, FileName, InodeId, Layout, LinkId,
    PoolId, Timestamp, WriteEpoch,
};
use rkyv::{Archive, Deserialize, Serialize};

use crate::store::records::record;

/// A file, directory, symbolic link or special node.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct Inode {
    /// Never used twice.
    pub id: InodeId,
    /// What it is; agrees with [`Self::body`].
    pub kind: FileKind,
    /// Permission bits with setuid, setgid and sticky.
    pub mode: u16,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of a device node.
    pub device: u32,
    /// Names of a file; for a directory 2 plus its subdirectories; 0 without a name.
    pub links: u32,
    /// Bytes of a file or of a symbolic link's target; entries of a directory.
    pub size: u64,
    /// Last read, kept lazily.
    pub accessed: Timestamp,
    /// Last change of the content.
    pub modified: Timestamp,
    /// Last change of the inode.
    pub changed: Timestamp,
    /// When it was made.
    pub born: Timestamp,
    /// Raised by each write open, commit and setattr.
    pub change_count: ChangeCount,
    /// The first name; further ones are in a table. `None` for the root and without a name.
    pub parent: Option<ParentLink>,
    /// Whom its use is counted for; inherited from the directory. Rename and link stay within one.
    pub accounting: u32,
    /// Bytes of the names and values of its extended attributes.
    pub xattr_bytes: u32,
    /// What only its kind has.
    pub body: Body,
}
record!(Inode, 1, "inode");

/// One name of an inode.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct ParentLink {
    /// The directory.
    pub directory: InodeId,
    /// The name in it.
    pub name: FileName,
}

/// What only one kind of inode has.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub enum Body {
    /// A regular file.
    File(Box<FileBody>),
    /// A directory.
    Directory(Box<DirectoryBody>),
    /// A symbolic link with its target.
    Symlink(Vec<u8>),
    /// A pipe, socket or device.
    Special,
}

/// A regular file's content as the metadata server knows it.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct FileBody {
    /// Names the content; raised when it is replaced as a whole.
    pub generation: ContentGeneration,
    /// Raised by each shrink and each export.
    pub write_epoch: WriteEpoch,
    /// Where its chunks are.
    pub layout: Layout,
    /// The object that backs it.
    pub origin: Option<Origin>,
    /// How many bytes from the start the object backs.
    pub origin_length: u64,
    /// Whether absent bytes may be holes.
    pub sparse: bool,
    /// There where a small file lives in its inode: its bytes; or none, where they have a record of
    /// their own ([`tree::inline`](super::tree::inline)).
    pub inline: Option<Vec<u8>>,
    /// How it stands against the bucket.
    pub state: ObjectState,
}

/// How a file's content stands against its object.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum ObjectState {
    /// No object is known: made here and not exported.
    Local = 0,
    /// As imported: never opened for writing.
    Clean = 1,
    /// Opened for writing since it agreed with the object.
    Dirty = 2,
    /// Exported, and not opened for writing since.
    Exported = 3,
    /// Changed here and in the bucket.
    Conflict = 4,
    /// Bytes that no bucket has lay on a target that was given up: what is absent is lost, and the
    /// object, if there is one, stands in for none of it.
    Lost = 5,
}

/// What only a directory has.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct DirectoryBody {
    /// The cookie that the next entry gets; the first is 1.
    pub next_cookie: u64,
    /// What new files below it get.
    pub defaults: LayoutDefaults,
    /// The bucket prefix that it shows.
    pub linked: Option<LinkedDirectory>,
}

/// What new files in a directory get; inherited by new directories.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Debug)]
pub struct LayoutDefaults {
    /// Bytes of a chunk.
    pub chunk_size: ChunkSize,
    /// How many groups; `None` means all that the pool has.
    pub width: Option<u32>,
    /// The pool.
    pub pool: PoolId,
    /// Files up to this many bytes live in their inode; 0 keeps every file on the targets.
    pub inline_bytes_max: u32,
}

impl Default for LayoutDefaults {
    /// Over all groups with chunks of 8 MiB: a small file lies on one target, and a file grows over
    /// more groups as it grows, so that nobody must tune striping.
    fn default() -> Self {
        Self { chunk_size: ChunkSize::DEFAULT, width: None, pool: PoolId(0), inline_bytes_max: 0 }
    }
}

/// The part of a bucket that a directory shows.
#[derive(Archive, Serialize, Deserialize, Clone, PartialEq, Eq, Debug)]
pub struct LinkedDirectory {
    /// The link.
    pub link: LinkId,
    /// The whole prefix within the bucket: empty, or ending in `/`.
    pub prefix: String,
    /// When it was last listed to its end; `None` before the first time, and
    /// [`Self::NEVER_AGAIN`] where the bucket's names are not wanted.
    pub listed: Option<Timestamp>,
}

impl LinkedDirectory {
    /// What the bucket has below the prefix was removed or moved here, before this directory was
    /// made: listing it would bring that back.
    pub const NEVER_AGAIN: Timestamp = Timestamp(i64::MAX);
}

impl Inode {
    /// What `stat` shows.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        Attributes {
            inode: self.id,
            kind: self.kind,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            links: self.links,
            device: self.device,
            size: self.size,
            accessed: self.accessed,
            modified: self.modified,
            changed: self.changed,
            born: self.born,
            change_count: self.change_count,
        }
    }

    /// What a target must know of a regular file's content.
    #[must_use]
    pub fn content(&self) -> Option<Content> {
        let Body::File(file) = &self.body else {
            return None;
        };
        Some(Content {
            inode: self.id,
            generation: file.generation,
            write_epoch: file.write_epoch,
            layout: file.layout,
            origin: file.origin.clone(),
            origin_length: file.origin_length,
            sparse: file.sparse,
        })
    }

    /// Whether it is nothing but the object that has this name in a linked directory: imported, and
    /// neither changed nor exported nor given another name since.
    #[must_use]
    pub fn is_object_of(&self, directory: &LinkedDirectory, name: &FileName) -> bool {
        let Body::File(file) = &self.body else { return false };
        let Some(origin) = &file.origin else { return false };
        let below = origin.key.strip_prefix(&directory.prefix);
        file.state == ObjectState::Clean
            && self.links == 1
            && origin.link == directory.link
            && below.is_some_and(|below| below.as_bytes() == name.as_bytes())
    }

    /// Whether nobody has changed a directory here since it was imported. It has the time 0 then,
    /// or that of its mark, which is before its import; a change of its owner, mode or times alone
    /// counts where it has the latter.
    #[must_use]
    pub fn is_as_imported(&self) -> bool {
        let is_marked = self.modified < self.born && self.changed == self.born;
        self.modified == Timestamp(0) || is_marked
    }

    /// Whether it is a directory.
    #[must_use]
    pub fn is_directory(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// The body of a regular file.
    ///
    /// # Errors
    /// [`ErrorKind::IsDirectory`] for a directory, [`ErrorKind::InvalidArgument`] for other kinds.
    pub fn file(&self) -> Result<&FileBody, ErrorKind> {
        match &self.body {
            Body::File(file) => Ok(file),
            other => Err(no_file(other)),
        }
    }

    /// As [`Self::file`], to change it.
    ///
    /// # Errors
    /// As [`Self::file`].
    pub fn file_mut(&mut self) -> Result<&mut FileBody, ErrorKind> {
        match &mut self.body {
            Body::File(file) => Ok(file),
            other => Err(no_file(other)),
        }
    }

    /// The body of a directory.
    ///
    /// # Errors
    /// [`ErrorKind::NotDirectory`] for other kinds.
    pub fn directory(&self) -> Result<&DirectoryBody, ErrorKind> {
        match &self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(ErrorKind::NotDirectory),
        }
    }

    /// As [`Self::directory`], to change it.
    ///
    /// # Errors
    /// As [`Self::directory`].
    pub fn directory_mut(&mut self) -> Result<&mut DirectoryBody, ErrorKind> {
        match &mut self.body {
            Body::Directory(directory) => Ok(directory),
            _ => Err(ErrorKind::NotDirectory),
        }
    }
}

fn no_file(body: &Body) -> ErrorKind {
    match body {
        Body::Directory(_) => ErrorKind::IsDirectory,
        _ => ErrorKind::InvalidArgument,
    }
}
