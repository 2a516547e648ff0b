//! Writing objects: into a temporary file beside the destination, then by rename.
//!
//! The temporary file is `.NAME.millrace-ID` in the destination's directory, so that the rename
//! stays within one file system, and any process that has the directory can go on with the upload.
//! Order: bytes and metadata, fsync of the file (of each part where it is written), check of the
//! condition, rename, fsync of the directory. A crash leaves a temporary file behind, never half an
//! object; listings pass over it.

use std::{
    fs::File,
    os::{
        fd::{AsFd, OwnedFd},
        unix::fs::FileExt,
    },
    sync::{Mutex, PoisonError},
};

use bytes::Bytes;
use millrace_types::{Crc32c, name::NAME_LEN_MAX};
use rustix::{
    fs::{
        AtFlags, Dir, FileType, RenameFlags, XattrFlags, fsetxattr, fsync, renameat, renameat_with,
        unlinkat,
    },
    io::Errno,
};

use super::{
    read::{self, XATTR_PREFIX},
    tree::{Tree, create_file, open_file},
};
use crate::{
    BegunUpload, Condition, Error, Metadata, Tag, UploadId,
    temporary::{self, MARK, is_temporary},
};

/// Only one condition at a time is checked and acted on in this process.
static PUBLISHING: Mutex<()> = Mutex::new(());

pub(super) fn put(
    tree: &Tree,
    key: &str,
    body: &[Bytes],
    metadata: &Metadata,
    condition: &Condition,
) -> Result<Tag, Error> {
    let upload = create(tree, key, metadata)?;
    let written = Part::begin(tree, key, &upload, 0).and_then(|mut part| {
        body.iter().try_for_each(|bytes| part.write(tree, bytes))?;
        Ok(part.len())
    });
    let stored = written.and_then(|size| complete(tree, key, &upload, size, condition));
    if stored.is_err()
        && let Err(error) = abort(tree, key, &upload)
    {
        tracing::warn!(key, %error, "a temporary file of a failed upload stays behind");
    }
    stored
}

pub(super) fn create(tree: &Tree, key: &str, metadata: &Metadata) -> Result<UploadId, Error> {
    let (directory, name) = tree.open_parent(key)?;
    let id = temporary::new_id();
    let temporary = temporary_name(name, &id);
    let file =
        create_file(&directory, &temporary).map_err(|error| tree.io_error(&error.into(), key))?;
    set_metadata(&file, metadata).map_err(|error| tree.io_error(&error.into(), key))?;
    UploadId::new(id)
}

fn set_metadata(file: impl AsFd, metadata: &Metadata) -> Result<(), Errno> {
    for (key, value) in metadata.iter() {
        let attribute = format!("{XATTR_PREFIX}{key}");
        match fsetxattr(&file, &attribute, value.as_bytes(), XattrFlags::empty()) {
            Ok(()) => {}
            // Without extended attributes the content is still worth having.
            Err(Errno::OPNOTSUPP | Errno::NOSPC | Errno::PERM) => break,
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Makes a directory with its parents; one that carries metadata already stays as it is.
pub(super) fn directory(tree: &Tree, prefix: &str, metadata: &Metadata) -> Result<(), Error> {
    let known = match read::directory(tree, prefix) {
        Ok(known) => known,
        Err(Error::NotFound { .. }) => Metadata::default(),
        Err(error) => return Err(error),
    };
    if known != Metadata::default() {
        return Ok(());
    }
    // Of a key below it the directory is the parent.
    let below = format!("{prefix}x");
    let (directory, _) = tree.open_parent(&below)?;
    set_metadata(&directory, metadata).map_err(|error| tree.io_error(&error.into(), prefix))
}

/// A part on its way into an upload.
pub(super) struct Part {
    file: File,
    key: String,
    offset: u64,
    len: u64,
    checksum: Crc32c,
}

impl Part {
    pub(super) fn begin(
        tree: &Tree,
        key: &str,
        upload: &UploadId,
        offset: u64,
    ) -> Result<Self, Error> {
        let (file, ..) = open_upload(tree, key, upload)?;
        Ok(Self { file, key: key.to_owned(), offset, len: 0, checksum: Crc32c::EMPTY })
    }

    /// The next of its bytes.
    pub(super) fn write(&mut self, tree: &Tree, bytes: &[u8]) -> Result<(), Error> {
        let Self { file, key, offset, len, checksum } = self;
        file.write_all_at(bytes, *offset + *len).map_err(|error| tree.io_error(&error, key))?;
        *len += bytes.len() as u64;
        *checksum = checksum.append(bytes);
        Ok(())
    }

    /// How many bytes it has.
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Ends it, once its bytes are stored. Who completes the upload may be on another host, which
    /// hears nothing of what this one could not write, and sees zeros there.
    pub(super) fn end(self, tree: &Tree) -> Result<Tag, Error> {
        let Self { file, key, len, checksum, .. } = self;
        file.sync_data().map_err(|error| tree.io_error(&error, &key))?;
        Tag::new(format!("\"{:08x}-{len:x}\"", checksum.0))
    }
}

pub(super) fn complete(
    tree: &Tree,
    key: &str,
    upload: &UploadId,
    size: u64,
    condition: &Condition,
) -> Result<Tag, Error> {
    let (file, directory, temporary) = open_upload(tree, key, upload)?;
    let failed = |error: std::io::Error| tree.io_error(&error, key);
    let version = read::version(&file).map_err(failed)?;
    if version.size != size {
        return Err(Error::invalid(format!(
            "the parts of {key:?} are {size} bytes together, but {} have arrived",
            version.size
        )));
    }
    file.sync_all().map_err(failed)?;
    publish(tree, &directory, &temporary, key, condition)?;
    fsync(&directory).map_err(|error| failed(error.into()))?;
    Ok(version.tag)
}

pub(super) fn abort(tree: &Tree, key: &str, upload: &UploadId) -> Result<(), Error> {
    let (_, directory, temporary) = open_upload(tree, key, upload)?;
    match unlinkat(&directory, &temporary, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(tree.io_error(&error.into(), key)),
    }
}

/// Uploads of a key that are not over. Of a name so long that its temporary one is cut none is
/// told: it may be another's.
pub(super) fn uploads(tree: &Tree, key: &str) -> Result<Vec<UploadId>, Error> {
    let (path, name) = key.rsplit_once('/').unwrap_or(("", key));
    let Some(directory) = tree.open_directory(path)? else { return Ok(Vec::new()) };
    let failed = |error: Errno| tree.io_error(&error.into(), key);
    let mut uploads = Vec::new();
    for entry in Dir::read_from(&directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let Ok(found) = entry.file_name().to_str() else { continue };
        let rest = found.strip_prefix('.').and_then(|rest| rest.strip_prefix(name));
        if let Some(id) = rest.and_then(|rest| rest.strip_prefix(MARK))
            && is_temporary(found)
        {
            uploads.push(UploadId::new(id)?);
        }
    }
    Ok(uploads)
}

/// Uploads below a prefix that are not over, with their keys. Of names so long that the temporary
/// ones are cut none is told.
pub(super) fn uploads_below(tree: &Tree, prefix: &str) -> Result<Vec<BegunUpload>, Error> {
    let mut found = Vec::new();
    let mut open = vec![prefix.trim_end_matches('/').to_owned()];
    while let Some(path) = open.pop() {
        let Some(directory) = tree.open_directory(&path)? else { continue };
        let failed = |error: Errno| tree.io_error(&error.into(), &path);
        for entry in Dir::read_from(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if matches!(name, "." | "..") {
                continue;
            }
            let key_of = |name: &str| match path.is_empty() {
                true => name.to_owned(),
                false => format!("{path}/{name}"),
            };
            if entry.file_type() == FileType::Directory {
                open.push(key_of(name));
                continue;
            }
            let parts = name.strip_prefix('.').and_then(|rest| rest.rsplit_once(MARK));
            let Some((object, id)) = parts.filter(|_| is_temporary(name)) else { continue };
            let Ok(file) = open_file(&directory, name) else { continue };
            if name.len() < NAME_LEN_MAX - 3
                && let Ok(version) = read::version(&file)
            {
                let (key, upload) = (key_of(object), UploadId::new(id)?);
                found.push(BegunUpload { key, upload, begun: version.modified });
            }
        }
    }
    found.sort_by(|a, b| a.key.cmp(&b.key));
    Ok(found)
}

/// Deletes an object, if it is this version.
pub(super) fn delete(tree: &Tree, key: &str, tag: &Tag) -> Result<(), Error> {
    let _one = PUBLISHING.lock().unwrap_or_else(PoisonError::into_inner);
    let there = tree.open_object(key)?;
    let version = read::version(&there).map_err(|error| tree.io_error(&error, key))?;
    if version.tag != *tag {
        return Err(Error::Changed { key: key.to_owned() });
    }
    let (path, name) = key.rsplit_once('/').unwrap_or(("", key));
    let missing = || Error::NotFound { key: key.to_owned() };
    let directory = tree.open_directory(path)?.ok_or_else(missing)?;
    let failed = |error: Errno| match error {
        Errno::NOENT => missing(),
        error => tree.io_error(&error.into(), key),
    };
    unlinkat(&directory, name, AtFlags::empty()).map_err(failed)?;
    fsync(&directory).map_err(failed)
}

/// Removes the directory of a prefix, if nothing is in it; tells whether it is gone.
///
/// # Errors
/// [`Error::NotFound`] when there was none.
pub(super) fn remove_directory(tree: &Tree, prefix: &str) -> Result<bool, Error> {
    let path = prefix.trim_end_matches('/');
    let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
    let missing = || Error::NotFound { key: prefix.to_owned() };
    let directory = tree.open_directory(above)?.ok_or_else(missing)?;
    match unlinkat(&directory, name, AtFlags::REMOVEDIR) {
        Ok(()) => Ok(true),
        Err(Errno::NOENT) => Err(missing()),
        Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR) => Ok(false),
        Err(error) => Err(tree.io_error(&error.into(), prefix)),
    }
}

fn publish(
    tree: &Tree,
    directory: &OwnedFd,
    temporary: &str,
    key: &str,
    condition: &Condition,
) -> Result<(), Error> {
    let name = key.rsplit('/').next().unwrap_or(key);
    let changed = || Error::Changed { key: key.to_owned() };
    let _one = PUBLISHING.lock().unwrap_or_else(PoisonError::into_inner);
    let renamed = match condition {
        Condition::Absent => {
            match renameat_with(directory, temporary, directory, name, RenameFlags::NOREPLACE) {
                Err(Errno::EXIST) => return Err(changed()),
                other => other,
            }
        }
        Condition::Matches(expected) => {
            let there = tree.open_object(key).map_err(|error| match error {
                Error::NotFound { .. } => changed(),
                other => other,
            })?;
            let version = read::version(&there).map_err(|error| tree.io_error(&error, key))?;
            if version.tag != *expected {
                return Err(changed());
            }
            renameat(directory, temporary, directory, name)
        }
        Condition::None => renameat(directory, temporary, directory, name),
    };
    renamed.map_err(|error| tree.io_error(&error.into(), key))
}

/// The temporary file of an upload, its directory and its name.
fn open_upload(
    tree: &Tree,
    key: &str,
    upload: &UploadId,
) -> Result<(File, OwnedFd, String), Error> {
    let (directory, name) = tree.open_parent(key)?;
    let temporary = temporary_name(name, upload.as_str());
    if !is_temporary(&temporary) {
        return Err(Error::NoUpload { key: key.to_owned() });
    }
    match open_file(&directory, &temporary) {
        Ok(file) => Ok((file, directory, temporary)),
        Err(Errno::NOENT) => Err(Error::NoUpload { key: key.to_owned() }),
        Err(error) => Err(tree.io_error(&error.into(), key)),
    }
}

/// Cuts a long name, so that the temporary one is not too long; the random id keeps them apart.
fn temporary_name(name: &str, id: &str) -> String {
    let room = NAME_LEN_MAX - 1 - MARK.len() - id.len().min(64);
    let cut = (0..=room.min(name.len())).rev().find(|&at| name.is_char_boundary(at)).unwrap_or(0);
    format!(".{}{MARK}{id}", &name[..cut])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn temporary_names_are_recognised_and_fit() {
        let id = "0123456789abcdef";
        for name in ["a", &"x".repeat(255), &"\u{fc}".repeat(127)] {
            let temporary = temporary_name(name, id);
            assert!(temporary.len() <= NAME_LEN_MAX && is_temporary(&temporary), "{temporary}");
        }
        for other in ["a", ".a", ".a.millrace-", ".a.millrace-xyz", "a.millrace-0123456789abcdef"] {
            assert!(!is_temporary(other), "{other}");
        }
    }
}
