//! Reading a version of a file, piece by piece.

use std::{
    fs::File,
    ops::Range,
    os::unix::fs::{FileExt, MetadataExt},
};

use bytes::{Bytes, BytesMut};
use futures::{StreamExt, stream, stream::BoxStream};
use millrace_types::{MIB, Timestamp};
use rustix::fs::{fgetxattr, flistxattr};

use super::{list, tree::Tree};
use crate::{Error, Head, Metadata, ObjectVersion, Tag};

/// What the names of extended attributes start with that hold user metadata.
pub(super) const XATTR_PREFIX: &str = "user.millrace.";

/// One piece: large enough to be worth a thread change.
const PIECE_LEN: u64 = MIB;

/// The longest list of attribute names that is read (Linux's own limit).
const XATTR_LIST_LEN_MAX: usize = 64 * 1024;

/// Metadata are 2 KiB in all; a longer value is none of ours.
const XATTR_VALUE_LEN_MAX: usize = 2048;

pub(super) fn head(tree: &Tree, key: &str) -> Result<Head, Error> {
    let file = tree.open_object(key)?;
    let version = version(&file).map_err(|error| tree.io_error(&error, key))?;
    Ok(Head { version, metadata: metadata(&file) })
}

/// Whether nothing is at a key, or at a prefix if it ends in `/`.
///
/// # Errors
/// It is not known to be the bucket's directory in which nothing is.
pub(super) fn lacks(tree: &Tree, key: &str) -> Result<bool, Error> {
    let root = tree.open_known_root()?;
    if key.ends_with('/') {
        return Ok(tree.directory_in(&root, key)?.is_none());
    }
    match tree.object_in(&root, key) {
        Ok(_) => Ok(false),
        Err(Error::NotFound { .. }) => Ok(true),
        Err(error) => Err(error),
    }
}

/// Reads a byte of some object; false where none was found.
pub(super) fn something(tree: &Tree) -> Result<bool, Error> {
    let Some(key) = list::some_object(tree)? else { return Ok(false) };
    let read = tree.open_object(&key).and_then(|file| {
        let read = file.read_at(&mut [0], 0);
        read.map_err(|error| tree.io_error(&error, &key))
    });
    match read {
        Ok(_) => Ok(true),
        // It has gone since.
        Err(Error::NotFound { .. }) => Ok(false),
        Err(Error::Denied { message }) => Err(Error::Denied {
            message: format!("this daemon may not read: {message}: let its user read the files"),
        }),
        Err(error) => Err(error),
    }
}

/// User metadata of the directory of a prefix.
pub(super) fn directory(tree: &Tree, prefix: &str) -> Result<Metadata, Error> {
    let missing = || Error::NotFound { key: prefix.to_owned() };
    let directory = tree.open_directory(prefix)?.ok_or_else(missing)?;
    Ok(metadata(&File::from(directory)))
}

/// The version that an open file is.
pub(super) fn version(file: &File) -> std::io::Result<ObjectVersion> {
    let metadata = file.metadata()?;
    let modified =
        Timestamp::from_parts(metadata.mtime(), u32::try_from(metadata.mtime_nsec()).unwrap_or(0));
    let tag = tag(metadata.ino(), modified, metadata.len());
    Ok(ObjectVersion { tag, size: metadata.len(), modified })
}

/// The version's name: a replaced file has another inode, a changed one another time or size.
pub(super) fn tag(inode: u64, modified: Timestamp, size: u64) -> Tag {
    let text = format!("\"{inode:x}-{:x}-{size:x}\"", modified.0);
    Tag::new(text).expect("hexadecimal digits can be sent")
}

/// The user metadata of a file; none where the file system has no extended attributes.
fn metadata(file: &File) -> Metadata {
    let mut names = vec![0; XATTR_LIST_LEN_MAX];
    let Ok(len) = flistxattr(file, &mut names[..]) else {
        return Metadata::default();
    };
    let own = names[..len]
        .split(|&byte| byte == 0)
        .filter_map(|name| std::str::from_utf8(name).ok())
        .filter_map(|name| Some((name, name.strip_prefix(XATTR_PREFIX)?)));
    let pairs = own.filter_map(|(name, key)| {
        let mut value = vec![0; XATTR_VALUE_LEN_MAX];
        let len = fgetxattr(file, name, &mut value[..]).ok()?;
        value.truncate(len);
        Some((key.to_owned(), String::from_utf8(value).ok()?))
    });
    Metadata::received(pairs)
}

/// A range of one version on its way.
#[derive(Debug)]
pub(super) struct Reader {
    file: File,
    key: String,
    tag: Tag,
    at: u64,
    end: u64,
}

impl Reader {
    pub(super) fn open(tree: &Tree, key: &str, range: Range<u64>, tag: Tag) -> Result<Self, Error> {
        let file = match tree.open_object(key) {
            // Somebody knows a version of it: it has to be gone from where that was.
            Err(error @ Error::NotFound { .. }) => {
                return Err(tree.open_known_root().err().unwrap_or(error));
            }
            opened => opened?,
        };
        let reader = Self { file, key: key.to_owned(), tag, at: range.start, end: range.end };
        let size = reader.check()?;
        if range.end > size {
            return Err(Error::Changed { key: key.to_owned() });
        }
        Ok(reader)
    }

    /// Refuses once the file is not the version any more. Looked at after each read, before its
    /// bytes are handed out: whoever changed them first changed the time.
    fn check(&self) -> Result<u64, Error> {
        let version = version(&self.file)
            .map_err(|error| Error::unavailable(format!("{}: {error}", self.key)))?;
        if version.tag == self.tag {
            Ok(version.size)
        } else {
            Err(Error::Changed { key: self.key.clone() })
        }
    }

    fn next_piece(&mut self) -> Option<Result<Bytes, Error>> {
        if self.at >= self.end {
            return None;
        }
        let len = (self.end - self.at).min(PIECE_LEN);
        let mut piece = BytesMut::zeroed(usize::try_from(len).expect("a piece is 1 MiB at most"));
        let read = self.file.read_exact_at(&mut piece, self.at);
        self.at += len;
        if let Err(error) = read {
            self.at = self.end;
            return Some(Err(match self.check() {
                Err(changed) => changed,
                Ok(_) => Error::unavailable(format!("{}: {error}", self.key)),
            }));
        }
        Some(self.check().map(|_| piece.freeze()))
    }

    pub(super) fn into_stream(self) -> BoxStream<'static, Result<Bytes, Error>> {
        stream::unfold(self, |mut reader| async {
            let read = tokio::task::spawn_blocking(move || {
                let piece = reader.next_piece();
                (piece, reader)
            });
            let (piece, reader) = read.await.ok()?;
            Some((piece?, reader))
        })
        .boxed()
    }
}
