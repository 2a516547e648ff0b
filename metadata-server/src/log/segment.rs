//! One file of the log: a head, then records back to back.
//!
//! | offset | bytes | field         | meaning                                          |
//! |-------:|------:|---------------|--------------------------------------------------|
//! |      0 |     4 | magic         | `MRLS`                                           |
//! |      4 |     4 | head checksum | crc32c of bytes 8..40                            |
//! |      8 |     8 | first index   | index of the first record; also in the file name |
//! |     16 |    16 | cluster id    | a file of another cluster is refused             |
//! |     32 |     2 | version       | 1                                                |
//! |     34 |     6 | zero          | reserved                                         |
//!
//! A new segment begins with its head synced and its name durable, before any record goes into it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_types::{ClusterId, Crc32c, LogIndex};

use super::LogError;
use crate::files::{Access, Files, OpenFile};

/// Bytes in front of the first record.
pub const HEAD_LEN: usize = 40;

const MAGIC: [u8; 4] = *b"MRLS";
const VERSION: u16 = 1;

/// A segment's file name: the first index in 20 digits, so that names sort as indexes do.
#[must_use]
pub fn path(dir: &Path, first: LogIndex) -> PathBuf {
    dir.join(format!("{:020}.log", first.0))
}

/// The segments in `dir`, in order.
///
/// # Errors
/// When the directory cannot be read.
pub fn list(files: &dyn Files, dir: &Path) -> Result<Vec<(LogIndex, PathBuf)>, LogError> {
    let names = files.list(dir).map_err(|error| LogError::disk(dir, error))?;
    let digits = names.iter().filter_map(|name| Some((name, name.strip_suffix(".log")?)));
    let mut found: Vec<_> = digits
        .filter_map(|(name, digits)| Some((LogIndex(digits.parse().ok()?), dir.join(name))))
        .collect();
    found.sort();
    Ok(found)
}

/// Bytes of a segment.
///
/// # Errors
/// When the disk fails.
pub fn len(files: &dyn Files, path: &Path) -> Result<u64, LogError> {
    let size = files.open(path, Access::Read).and_then(|file| file.size());
    size.map_err(|error| LogError::disk(path, error))
}

/// Makes the segment that begins with `first`, durably.
///
/// # Errors
/// [`LogError::NoSpace`] leaves nothing behind that a later attempt stumbles over.
pub fn create(
    files: &dyn Files,
    dir: &Path,
    first: LogIndex,
    cluster: ClusterId,
) -> Result<(PathBuf, Arc<dyn OpenFile>), LogError> {
    let path = path(dir, first);
    let disk = |error| LogError::disk(&path, error);
    let file = files.open(&path, Access::Create).map_err(disk)?;
    file.write_all_at(&head(first, cluster), 0).map_err(disk)?;
    file.sync_data().map_err(disk)?;
    files.sync_dir(dir).map_err(disk)?;
    Ok((path, file))
}

/// Checks the head of a segment.
///
/// # Errors
/// In words, when it is no head for this segment of this cluster.
pub fn check_head(bytes: &[u8], first: LogIndex, cluster: ClusterId) -> Result<(), String> {
    let Some(found) = bytes.get(..HEAD_LEN) else {
        return Err("the segment's head is cut short".to_owned());
    };
    let expected = head(first, cluster);
    if found == expected {
        return Ok(());
    }
    let sound = found[..4] == MAGIC && found[4..8] == Crc32c::of(&found[8..]).0.to_le_bytes();
    Err(if !sound {
        "the segment's head does not match its checksum".to_owned()
    } else if found[16..32] != expected[16..32] {
        "the segment belongs to another cluster".to_owned()
    } else if found[32..34] != expected[32..34] {
        "the segment has a format version that this program does not know".to_owned()
    } else {
        "the segment has been renamed".to_owned()
    })
}

fn head(first: LogIndex, cluster: ClusterId) -> [u8; HEAD_LEN] {
    let mut bytes = [0; HEAD_LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&first.0.to_le_bytes());
    bytes[16..32].copy_from_slice(&cluster.0);
    bytes[32..34].copy_from_slice(&VERSION.to_le_bytes());
    let checksum = Crc32c::of(&bytes[8..]);
    bytes[4..8].copy_from_slice(&checksum.0.to_le_bytes());
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_head_says_what_is_wrong_with_it() {
        let (first, cluster) = (LogIndex(3), ClusterId([5; 16]));
        let good = head(first, cluster);
        assert_eq!(check_head(&good, first, cluster), Ok(()));
        let other = check_head(&good, first, ClusterId([6; 16])).unwrap_err();
        assert!(other.contains("another cluster"), "{other}");
        let renamed = check_head(&good, LogIndex(4), cluster).unwrap_err();
        assert!(renamed.contains("renamed"), "{renamed}");
        assert!(check_head(&good[..39], first, cluster).is_err());
    }
}
