//! Reads the tree: inodes, entries and paths, from a store or from a store with changes on top.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Bound,
};

use millrace_protocol::admin::PathBytes;
use millrace_types::{ErrorKind, FileName, InodeId};

use super::{Body, Inode, ParentLink};
use crate::{
    apply::ApplyError,
    store::{
        StoreError, View, borrow, keys, prefix_end,
        records::{self, Entry, Record},
    },
};

/// The inode, if it exists.
///
/// # Errors
/// When the store is broken.
pub fn find(view: &(impl View + ?Sized), inode: InodeId) -> Result<Option<Inode>, StoreError> {
    records::read(view, &keys::inode(inode))
}

/// The inode.
///
/// # Errors
/// [`ErrorKind::Stale`] when there is none.
pub fn inode(view: &(impl View + ?Sized), inode: InodeId) -> Result<Inode, ApplyError> {
    Ok(find(view, inode)?.ok_or(ErrorKind::Stale)?)
}

/// The bytes of a small file that lives in its inode.
///
/// # Errors
/// When the store is broken; [`ErrorKind::Lost`] where it lacks them, which concerns nothing else.
pub fn inline(view: &(impl View + ?Sized), inode: &Inode) -> Result<Option<Vec<u8>>, ApplyError> {
    let Body::File(file) = &inode.body else { return Ok(None) };
    match &file.inline {
        None => Ok(None),
        Some(bytes) if bytes.is_empty() => {
            Ok(Some(view.get(&keys::contents(inode.id))?.ok_or(ErrorKind::Lost)?))
        }
        Some(bytes) => Ok(Some(bytes.clone())),
    }
}

/// The entry of a name, if there is one.
///
/// # Errors
/// When the store is broken.
pub fn entry(
    view: &(impl View + ?Sized),
    directory: InodeId,
    name: &FileName,
) -> Result<Option<Entry>, StoreError> {
    records::read(view, &keys::entry(directory, name.as_bytes()))
}

/// Those records of some names of a directory that exist, by name. Names that lie close together,
/// as those of one page of a listing do, cost one scan; others a read each besides.
///
/// # Errors
/// When the store is broken.
pub fn of_names<'n, R: Record>(
    view: &(impl View + ?Sized),
    key: impl Fn(&FileName) -> Vec<u8>,
    names: impl ExactSizeIterator<Item = &'n FileName> + Clone,
) -> Result<BTreeMap<FileName, R>, StoreError> {
    let (Some(first), Some(last)) = (names.clone().min(), names.clone().max()) else {
        return Ok(BTreeMap::new());
    };
    let (from, to) = (key(first), key(last));
    let name_at = from.len() - first.as_bytes().len();
    let limit = names.len() + CLOSE_TOGETHER;
    let pairs = view.scan(Bound::Included(&from), Bound::Included(&to), limit)?;
    let mut found = BTreeMap::new();
    if pairs.len() < limit {
        for (key, bytes) in pairs {
            let Ok(name) = FileName::parse(key.get(name_at..).unwrap_or_default()) else {
                return Err(StoreError::Damaged { what: "name", key });
            };
            found.insert(name, records::decode(&key, &bytes)?);
        }
        return Ok(found);
    }
    for name in names {
        if let Some(record) = records::read(view, &key(name))? {
            found.insert(name.clone(), record);
        }
    }
    Ok(found)
}

/// The inode that a name must have, since its entry exists.
///
/// # Errors
/// [`StoreError::Inconsistent`] when the entry names nothing.
pub fn named(view: &(impl View + ?Sized), entry: &Entry) -> Result<Inode, StoreError> {
    find(view, entry.inode)?
        .ok_or_else(|| StoreError::Inconsistent(format!("a name leads to missing {}", entry.inode)))
}

/// Up to `limit` names of a directory behind the position `cookie`, in the order of positions.
///
/// # Errors
/// When the store is broken.
pub fn list(
    view: &(impl View + ?Sized),
    directory: InodeId,
    cookie: u64,
    limit: usize,
) -> Result<Vec<(FileName, Entry)>, StoreError> {
    let prefix = keys::cookies(directory);
    let pairs = view.scan(
        Bound::Excluded(&keys::cookie(directory, cookie)),
        borrow(&prefix_end(&prefix)),
        limit,
    )?;
    let mut listed = Vec::with_capacity(pairs.len());
    for (key, bytes) in pairs {
        let Ok(name) = FileName::parse(&bytes) else {
            return Err(StoreError::Damaged { what: "name", key });
        };
        let Some(entry) = entry(view, directory, &name)? else {
            let text = format!("{directory} lists {name:?} without an entry");
            return Err(StoreError::Inconsistent(text));
        };
        listed.push((name, entry));
    }
    Ok(listed)
}

/// The pairs of a table whose keys begin with `prefix`, at most `limit`.
///
/// # Errors
/// When the store is broken.
pub fn scan<R: Record>(
    view: &(impl View + ?Sized),
    prefix: &[u8],
    limit: usize,
) -> Result<Vec<(Vec<u8>, R)>, StoreError> {
    let pairs = view.scan(Bound::Included(prefix), borrow(&prefix_end(prefix)), limit)?;
    pairs
        .into_iter()
        .map(|(key, bytes)| Ok((key.clone(), records::decode(&key, &bytes)?)))
        .collect()
}

/// Up to `limit` records of the table that begins with `prefix`, behind `after` (the prefix itself
/// for the first).
///
/// # Errors
/// When the store is broken.
pub fn scan_after<R: Record>(
    view: &(impl View + ?Sized),
    prefix: &[u8],
    after: &[u8],
    limit: usize,
) -> Result<Vec<(Vec<u8>, R)>, StoreError> {
    let pairs = view.scan(Bound::Excluded(after), borrow(&prefix_end(prefix)), limit)?;
    pairs
        .into_iter()
        .map(|(key, bytes)| Ok((key.clone(), records::decode(&key, &bytes)?)))
        .collect()
}

/// Whether `inode` is `top` or lies below it, by any of its names.
///
/// # Errors
/// When the store is broken.
pub fn is_below(
    view: &(impl View + ?Sized),
    inode: &Inode,
    top: InodeId,
) -> Result<bool, StoreError> {
    if inode.id == top || top == InodeId::ROOT {
        return Ok(true);
    }
    // Of a file with many names most lead the same way.
    let mut seen = BTreeSet::new();
    for parent in parents(view, inode)? {
        let mut directory = parent.directory;
        for _ in 0..DEPTH_MAX {
            if directory == top {
                return Ok(true);
            }
            if !seen.insert(directory) {
                break;
            }
            match find(view, directory)?.and_then(|inode| inode.parent) {
                Some(parent) => directory = parent.directory,
                None => break,
            }
        }
    }
    Ok(false)
}

/// Whether a directory lies so deep that [`is_below`] may not find what lies above it.
///
/// # Errors
/// When the store is broken.
pub fn is_deep(view: &(impl View + ?Sized), directory: &Inode) -> Result<bool, StoreError> {
    let mut above = directory.parent.clone();
    for _ in 0..DEPTH_MAX {
        let Some(parent) = above else { return Ok(false) };
        above = find(view, parent.directory)?.and_then(|inode| inode.parent);
    }
    Ok(true)
}

/// Every name of an inode.
///
/// # Errors
/// When the store is broken.
pub fn parents(view: &(impl View + ?Sized), inode: &Inode) -> Result<Vec<ParentLink>, StoreError> {
    let mut parents: Vec<_> = inode.parent.clone().into_iter().collect();
    if inode.is_directory() || inode.links < 2 {
        return Ok(parents);
    }
    let prefix = keys::names(inode.id);
    let end = prefix_end(&prefix);
    for (key, _) in view.scan(Bound::Included(&prefix), borrow(&end), NAMES_MAX)? {
        parents.push(parent_of_key(&key)?);
    }
    Ok(parents)
}

/// Reads the directory and name out of a key of the table of further names.
///
/// # Errors
/// [`StoreError::Damaged`] when it is no such key.
pub fn parent_of_key(key: &[u8]) -> Result<ParentLink, StoreError> {
    let name = key.get(17..).and_then(|name| FileName::parse(name).ok());
    match (keys::number_at(key, 9), name) {
        (Some(directory), Some(name)) => Ok(ParentLink { directory: InodeId(directory), name }),
        _ => Err(StoreError::Damaged { what: "name of an inode", key: key.to_owned() }),
    }
}

/// The path of an inode from the root, by its first name; `None` without a name.
///
/// # Errors
/// When the store is broken.
pub fn path(view: &(impl View + ?Sized), inode: &Inode) -> Result<Option<PathBytes>, StoreError> {
    let mut names = Vec::new();
    let mut at = inode.clone();
    while at.id != InodeId::ROOT {
        let Some(parent) = at.parent else {
            return Ok(None);
        };
        names.push(parent.name);
        if names.len() > DEPTH_MAX {
            return Ok(None);
        }
        match find(view, parent.directory)? {
            Some(directory) => at = directory,
            None => return Ok(None),
        }
    }
    let mut path = Vec::new();
    for name in names.iter().rev() {
        path.push(b'/');
        path.extend_from_slice(name.as_bytes());
    }
    if path.is_empty() {
        path.push(b'/');
    }
    Ok(Some(path))
}

/// Splits a path into its names. Empty components and `.` are passed over.
///
/// # Errors
/// [`ErrorKind::NameTooLong`] past 4,095 bytes; [`ErrorKind::InvalidArgument`] for `..` or a zero
/// byte.
pub fn components(path: &[u8]) -> Result<Vec<FileName>, ErrorKind> {
    if path.len() > PATH_LEN_MAX {
        return Err(ErrorKind::NameTooLong);
    }
    path.split(|&byte| byte == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .map(FileName::parse)
        .collect()
}

/// Walks `path` down from `top`, never following symbolic links.
///
/// # Errors
/// [`ErrorKind::NotFound`], [`ErrorKind::NotDirectory`], or as [`components`].
pub fn resolve(
    view: &(impl View + ?Sized),
    top: InodeId,
    path: &[u8],
) -> Result<Inode, ApplyError> {
    let mut at = inode(view, top)?;
    for name in components(path)? {
        at.directory()?;
        let entry = entry(view, at.id, &name)?.ok_or(ErrorKind::NotFound)?;
        at = named(view, &entry)?;
    }
    Ok(at)
}

/// How many other names may lie among some for one scan to be worth it.
const CLOSE_TOGETHER: usize = 256;

/// The deepest tree that is walked upwards: a path of 4,095 bytes has at most 2,048 components;
/// renames can make deeper ones, of which nobody can name the bottom by one path.
const DEPTH_MAX: usize = 16 * 1024;

/// The most names of one inode that are looked at: the largest link count.
const NAMES_MAX: usize = LINKS_MAX as usize;

/// The most names of one file (ext4 has 65,000).
pub const LINKS_MAX: u32 = 65_000;

/// The longest path (Linux's `PATH_MAX` less the final zero).
const PATH_LEN_MAX: usize = 4095;
