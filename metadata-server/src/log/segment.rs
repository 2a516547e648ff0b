//! One file of the log: a head, then records back to back.
//!
//! | offset | bytes | field           | meaning                                          |
//! |-------:|------:|-----------------|--------------------------------------------------|
//! |      0 |     4 | magic           | `MRLS`                                           |
//! |      4 |     4 | head checksum   | crc32c of bytes 8..40                            |
//! |      8 |     8 | first index     | index of the first record; also in the file name |
//! |     16 |    16 | cluster id      | a file of another cluster is refused             |
//! |     32 |     2 | version         | 2; a head of version 1 ends at byte 40           |
//! |     34 |     6 | zero            | reserved                                         |
//! |     40 |     8 | secret          | what checksums of records begin with             |
//! |     48 |     4 | secret checksum | crc32c of bytes 8..48                            |
//! |     52 |     4 | zero            | reserved                                         |
//!
//! The first 40 bytes are the same in every version, so that each program can say of a later one
//! that it does not know it. A segment of version 1 has no secret, and checksums of records that
//! begin with nothing; nothing is appended to it any more.
//!
//! A new segment begins with its head synced and its name durable, before any record goes into it.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use millrace_runtime::Random;
use millrace_types::{ClusterId, Crc32c, LogIndex};

use super::{LogError, secret::Secret};
use crate::files::{Access, Files, OpenFile};

/// Bytes in front of the first record of a new segment; no head is longer.
pub const HEAD_LEN: usize = 56;

/// Bytes of a head that are the same in every version; all of it in version 1.
const COMMON_LEN: usize = 40;

const MAGIC: [u8; 4] = *b"MRLS";
const VERSION: u16 = 2;

/// What a head says of the records behind it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Head {
    /// The version of the segment's format.
    pub version: u16,
    /// Bytes in front of the first record.
    pub len: usize,
    /// What the records' checksums begin with.
    pub secret: Secret,
}

impl Head {
    /// Reads the head of the segment that begins with `first`.
    ///
    /// # Errors
    /// [`Flaw`] when `bytes` do not begin with a head for this segment of this cluster.
    pub fn read(bytes: &[u8], first: LogIndex, cluster: ClusterId) -> Result<Self, Flaw> {
        let common = bytes.get(..COMMON_LEN).ok_or(Flaw::Short)?;
        if common[..4] != MAGIC || common[4..8] != Crc32c::of(&common[8..]).0.to_le_bytes() {
            return Err(Flaw::Checksum);
        }
        if common[16..32] != cluster.0 {
            return Err(Flaw::Cluster);
        }
        let version = u16::from_le_bytes([common[32], common[33]]);
        let (len, secret) = match version {
            1 => (COMMON_LEN, Secret::NONE),
            VERSION => (HEAD_LEN, secret(bytes)?),
            _ => return Err(Flaw::Version(version)),
        };
        if common[8..16] != first.0.to_le_bytes() {
            return Err(Flaw::Renamed);
        }
        Ok(Self { version, len, secret })
    }

    /// Whether records may be appended behind it.
    #[must_use]
    pub fn is_newest(&self) -> bool {
        self.version == VERSION
    }
}

/// Why bytes are no head of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// They end too early.
    #[error("the segment's head is cut short")]
    Short,
    /// They do not match their checksum.
    #[error("the segment's head does not match its checksum")]
    Checksum,
    /// The segment is another cluster's.
    #[error("the segment belongs to another cluster")]
    Cluster,
    /// A later program wrote it.
    #[error("the segment has format version {0}, which this program does not know")]
    Version(u16),
    /// It begins with another record than its name says.
    #[error("the segment has been renamed")]
    Renamed,
}

impl Flaw {
    /// Whether the end of the program that made the segment can have left it so.
    #[must_use]
    pub fn is_torn(self) -> bool {
        matches!(self, Self::Short | Self::Checksum)
    }
}

/// A segment that is open for appending.
#[derive(Debug)]
pub struct Tail {
    pub(super) path: PathBuf,
    pub(super) file: Arc<dyn OpenFile>,
    /// Bytes of head and records.
    pub(super) len: u64,
    pub(super) head: Head,
}

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

/// Makes the segment that begins with `first`, durably. One without records that is there already
/// is made anew.
///
/// # Errors
/// [`LogError::NoSpace`] leaves nothing behind that a later attempt stumbles over.
pub fn create(
    files: &dyn Files,
    dir: &Path,
    first: LogIndex,
    cluster: ClusterId,
    random: &Random,
) -> Result<Tail, LogError> {
    let path = path(dir, first);
    let disk = |error| LogError::disk(&path, error);
    let secret = Secret::draw(random);
    let file = files.open(&path, Access::Create).map_err(disk)?;
    file.write_all_at(&head(first, cluster, secret), 0).map_err(disk)?;
    file.sync_data().map_err(disk)?;
    files.sync_dir(dir).map_err(disk)?;
    let head = Head { version: VERSION, len: HEAD_LEN, secret };
    Ok(Tail { path, file, len: HEAD_LEN as u64, head })
}

/// The head of a new segment.
pub(super) fn head(first: LogIndex, cluster: ClusterId, secret: Secret) -> [u8; HEAD_LEN] {
    let mut bytes = [0; HEAD_LEN];
    bytes[..COMMON_LEN].copy_from_slice(&common(first, cluster, VERSION));
    bytes[40..48].copy_from_slice(&secret.to_bytes());
    let checksum = Crc32c::of(&bytes[8..48]);
    bytes[48..52].copy_from_slice(&checksum.0.to_le_bytes());
    bytes
}

/// What every version begins with.
pub(super) fn common(first: LogIndex, cluster: ClusterId, version: u16) -> [u8; COMMON_LEN] {
    let mut bytes = [0; COMMON_LEN];
    bytes[..4].copy_from_slice(&MAGIC);
    bytes[8..16].copy_from_slice(&first.0.to_le_bytes());
    bytes[16..32].copy_from_slice(&cluster.0);
    bytes[32..34].copy_from_slice(&version.to_le_bytes());
    let checksum = Crc32c::of(&bytes[8..]);
    bytes[4..8].copy_from_slice(&checksum.0.to_le_bytes());
    bytes
}

/// The secret in a head of version 2.
fn secret(bytes: &[u8]) -> Result<Secret, Flaw> {
    let head = bytes.get(..HEAD_LEN).ok_or(Flaw::Short)?;
    if head[48..52] != Crc32c::of(&head[8..48]).0.to_le_bytes() {
        return Err(Flaw::Checksum);
    }
    Ok(Secret::from_bytes(head[40..48].try_into().expect("eight bytes")))
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: LogIndex = LogIndex(3);
    const CLUSTER: ClusterId = ClusterId([5; 16]);

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn a_head_reads_back_and_has_these_bytes_for_ever() {
        let secret = Secret::from_bytes([1, 2, 3, 4, 5, 6, 7, 8]);
        let bytes = head(FIRST, CLUSTER, secret);
        assert_eq!(hex(&bytes), GOLDEN);
        let expected = Head { version: VERSION, len: HEAD_LEN, secret };
        assert_eq!(Head::read(&bytes, FIRST, CLUSTER), Ok(expected));
        let bytes = common(FIRST, CLUSTER, 1);
        assert_eq!(hex(&bytes), GOLDEN_OF_VERSION_1);
        let expected = Head { version: 1, len: COMMON_LEN, secret: Secret::NONE };
        assert_eq!(Head::read(&bytes, FIRST, CLUSTER), Ok(expected));
    }

    #[test]
    fn a_head_says_what_is_wrong_with_it() {
        let good = head(FIRST, CLUSTER, Secret::draw(&Random::seeded(1)));
        assert_eq!(Head::read(&good, FIRST, ClusterId([6; 16])), Err(Flaw::Cluster));
        assert_eq!(Head::read(&good, LogIndex(4), CLUSTER), Err(Flaw::Renamed));
        let later = common(FIRST, CLUSTER, 3);
        assert_eq!(Head::read(&later, FIRST, CLUSTER), Err(Flaw::Version(3)));
        for cut in 0..HEAD_LEN {
            assert_eq!(Head::read(&good[..cut], FIRST, CLUSTER), Err(Flaw::Short), "cut at {cut}");
        }
        for at in 0..52 {
            let mut bad = good;
            bad[at] ^= 1;
            assert_eq!(Head::read(&bad, FIRST, CLUSTER), Err(Flaw::Checksum), "byte {at}");
        }
    }

    const GOLDEN: &str = concat!(
        "4d524c53bc366cd7030000000000000005050505050505050505050505050505020000000000000001020304",
        "050607084e349a6b00000000",
    );
    const GOLDEN_OF_VERSION_1: &str =
        "4d524c53d5b1280c0300000000000000050505050505050505050505050505050100000000000000";
}
