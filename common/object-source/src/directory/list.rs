//! Listing a directory in pages, sorted by name.

use std::{collections::BinaryHeap, os::fd::OwnedFd};

use millrace_types::{FileName, Timestamp};
use rustix::fs::{AtFlags, Dir, FileType, statat};

use super::{read, tree::Tree};
use crate::{
    Continuation, Entry, EntryKind, Error, LEFT_OUT_MAX, LeftOut, LeftOutReason, ObjectVersion,
    Page, Tag,
    object::{Place, reason_against},
    temporary::is_temporary,
};

/// Entries of one page. Each page reads the whole directory and keeps the lowest names past the
/// place, so that memory is bounded however large the directory is.
const PAGE_ENTRIES_MAX: usize = 10_000;

/// Entries that are looked at in search of an object.
const LOOKS_MAX: u32 = 1000;

pub(super) fn page(tree: &Tree, prefix: &str, after: Option<Continuation>) -> Result<Page, Error> {
    let Some(directory) = tree.open_directory(prefix)? else {
        return Ok(Page::default());
    };
    let first_page = after.is_none();
    let (names, skipped) = names(tree, &directory, prefix, after.as_ref())?;
    if prefix.is_empty() && !names.is_empty() {
        tree.know(&directory);
    }
    let mut page = Page::default();
    if first_page {
        // Counted once, not on every page.
        (page.skipped, page.left_out) = skipped;
    }
    let full = names.len() >= PAGE_ENTRIES_MAX;
    page.next =
        names.last().filter(|_| full).cloned().map(|name| Continuation(Place::Behind(name)));
    for name in names {
        if let Some(kind) = kind_of(&directory, &name) {
            let name = FileName::parse(name.as_bytes()).expect("names were checked");
            page.entries.push(Entry { name, kind });
        }
    }
    Ok(page)
}

pub(super) fn has_below(tree: &Tree, prefix: &str) -> Result<bool, Error> {
    let exists = tree.open_directory(prefix)?.is_some();
    Ok(exists)
}

/// How many names are none here, and the first of them.
type Skipped = (u64, Vec<LeftOut>);

/// What a listing shows of one object.
pub(super) fn object(tree: &Tree, key: &str) -> Result<Option<ObjectVersion>, Error> {
    let (prefix, name) = key.split_at(key.rfind('/').map_or(0, |at| at + 1));
    let Some(directory) = tree.open_directory(prefix)? else { return Ok(None) };
    match kind_of(&directory, name).filter(|_| !is_temporary(name)) {
        Some(EntryKind::Object(version)) => Ok(Some(version)),
        Some(EntryKind::Directory) | None => Ok(None),
    }
}

/// The key of some object, if the first entries that are come upon have one. Nobody may be allowed
/// to open some of the directories, such as `lost+found`.
pub(super) fn some_object(tree: &Tree) -> Result<Option<String>, Error> {
    let mut looks = 0;
    let mut prefixes = vec![String::new()];
    while let Some(prefix) = prefixes.pop() {
        let directory = match tree.open_directory(&prefix) {
            Ok(Some(directory)) => directory,
            Ok(None) | Err(Error::Denied { .. }) => continue,
            Err(error) => return Err(error),
        };
        let failed = |error: rustix::io::Errno| tree.io_error(&error.into(), &prefix);
        for entry in Dir::read_from(&directory).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            let Ok(name) = entry.file_name().to_str() else { continue };
            if reason_against(name).is_some() || is_temporary(name) {
                continue;
            }
            if looks == LOOKS_MAX {
                return Ok(None);
            }
            looks += 1;
            match kind_of(&directory, name) {
                Some(EntryKind::Object(_)) => return Ok(Some(format!("{prefix}{name}"))),
                Some(EntryKind::Directory) => prefixes.push(format!("{prefix}{name}/")),
                None => {}
            }
        }
    }
    Ok(None)
}

fn names(
    tree: &Tree,
    directory: &OwnedFd,
    prefix: &str,
    after: Option<&Continuation>,
) -> Result<(Vec<String>, Skipped), Error> {
    let failed = |error: rustix::io::Errno| tree.io_error(&error.into(), prefix);
    let mut lowest = BinaryHeap::new();
    let mut skipped: Skipped = (0, Vec::new());
    let after = after.map(|Continuation(Place::Cursor(name) | Place::Behind(name))| name.as_str());
    for entry in Dir::read_from(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let bytes = entry.file_name().to_bytes();
        if bytes == b"." || bytes == b".." {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => type_of(directory, bytes),
            other => usable(other),
        };
        let name = match std::str::from_utf8(bytes) {
            Err(_) => Err(LeftOutReason::NotUtf8),
            Ok(_) if kind.is_none() => Err(LeftOutReason::SpecialFile),
            Ok(name) => reason_against(name).map_or(Ok(name), Err),
        };
        let name = match name {
            Ok(name) => name,
            Err(reason) => {
                skipped.0 += 1;
                if skipped.1.len() < LEFT_OUT_MAX {
                    let key = format!("{prefix}{}", String::from_utf8_lossy(bytes));
                    skipped.1.push(LeftOut { key, reason });
                }
                continue;
            }
        };
        // An upload is a file: a directory of such a name is somebody's.
        let is_upload = is_temporary(name) && kind != Some(FileType::Directory);
        if is_upload || after.is_some_and(|after| name <= after) {
            continue;
        }
        lowest.push(name.to_owned());
        if lowest.len() > PAGE_ENTRIES_MAX {
            lowest.pop();
        }
    }
    Ok((lowest.into_sorted_vec(), skipped))
}

fn type_of(directory: &OwnedFd, name: &[u8]) -> Option<FileType> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    usable(FileType::from_raw_mode(stat.st_mode))
}

fn usable(kind: FileType) -> Option<FileType> {
    matches!(kind, FileType::RegularFile | FileType::Directory).then_some(kind)
}

/// What a name is now; `None` when it went away since the directory was read.
fn kind_of(directory: &OwnedFd, name: &str) -> Option<EntryKind> {
    let stat = statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Some(EntryKind::Directory),
        FileType::RegularFile => {
            let modified = Timestamp::from_parts(
                stat.st_mtime,
                u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
            );
            let size = u64::try_from(stat.st_size).unwrap_or(0);
            let tag: Tag = read::tag(stat.st_ino, modified, size);
            Some(EntryKind::Object(ObjectVersion { tag, size, modified }))
        }
        _ => None,
    }
}
