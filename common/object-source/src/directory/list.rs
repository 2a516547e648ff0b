//! Listing a directory in pages, sorted by name.

use std::{collections::BinaryHeap, os::fd::OwnedFd};

use millrace_types::{FileName, Timestamp};
use rustix::fs::{AtFlags, Dir, FileType, statat};

use super::{read, tree::Tree};
use crate::{
    Continuation, Entry, EntryKind, Error, ObjectVersion, Page, Tag, object::check_key,
    temporary::is_temporary,
};

/// Entries of one page. Each page reads the whole directory and keeps the lowest names past the
/// place, so that memory is bounded however large the directory is.
const PAGE_ENTRIES_MAX: usize = 10_000;

pub(super) fn page(tree: &Tree, prefix: &str, after: Option<Continuation>) -> Result<Page, Error> {
    let Some(directory) = tree.open_directory(prefix)? else {
        return Ok(Page::default());
    };
    let first_page = after.is_none();
    let (names, skipped) = names(tree, &directory, prefix, after.as_ref())?;
    let mut page = Page::default();
    if first_page {
        // Counted once, not on every page.
        page.skipped = skipped.0;
        page.skipped_example = skipped.1;
    }
    let full = names.len() >= PAGE_ENTRIES_MAX;
    page.next = names.last().filter(|_| full).cloned().map(Continuation);
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
type Skipped = (u64, Option<String>);

fn names(
    tree: &Tree,
    directory: &OwnedFd,
    prefix: &str,
    after: Option<&Continuation>,
) -> Result<(Vec<String>, Skipped), Error> {
    let failed = |error: rustix::io::Errno| tree.io_error(&error.into(), prefix);
    let mut lowest = BinaryHeap::new();
    let mut skipped: Skipped = (0, None);
    for entry in Dir::read_from(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let bytes = entry.file_name().to_bytes();
        if bytes == b"." || bytes == b".." {
            continue;
        }
        let usable_type = match entry.file_type() {
            FileType::Unknown => type_of(directory, bytes).is_some(),
            other => matches!(other, FileType::RegularFile | FileType::Directory),
        };
        let name = std::str::from_utf8(bytes).ok().filter(|name| check_key(name).is_ok());
        let Some(name) = name.filter(|_| usable_type) else {
            skipped.0 += 1;
            skipped.1.get_or_insert_with(|| String::from_utf8_lossy(bytes).into_owned());
            continue;
        };
        if is_temporary(name) || after.is_some_and(|Continuation(at)| name <= at.as_str()) {
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
    let kind = FileType::from_raw_mode(stat.st_mode);
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
