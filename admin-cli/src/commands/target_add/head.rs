//! The id of a target, in the head of its space.
//!
//! The daemon's crate has the whole format; a program that names a target needs no more of it than
//! what stands at the same place in each version (docs/disk-format.md).

use std::{fs::File, os::unix::fs::FileExt as _, path::Path};

use millrace_types::{Crc32c, TargetId};

/// Bytes of a copy of the superblock.
const LEN: usize = 4096;

/// Where the two copies begin, of which one is whole at every moment.
const COPIES: [u64; 2] = [0, 32 * 4096];

const MAGIC: &[u8; 8] = b"MRTARGET";

/// The id in the file of a target's space; none where that cannot be read.
pub(super) fn target_in(store: &Path) -> Option<TargetId> {
    let file = File::open(store).ok()?;
    COPIES.iter().find_map(|&copy| {
        let mut bytes = [0; LEN];
        file.read_exact_at(&mut bytes, copy).ok()?;
        target_of(&bytes)
    })
}

fn target_of(bytes: &[u8; LEN]) -> Option<TargetId> {
    let is_whole =
        bytes.starts_with(MAGIC) && bytes[8..12] == Crc32c::of(&bytes[12..]).0.to_le_bytes();
    let id = bytes[32..40].try_into().ok()?;
    is_whole.then_some(TargetId(id))
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// A copy of a superblock, as far as it is looked at here.
    pub(in super::super) fn head(target: TargetId) -> Vec<u8> {
        let mut bytes = vec![0; LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[32..40].copy_from_slice(&target.0);
        let checksum = Crc32c::of(&bytes[12..]).0.to_le_bytes();
        bytes[8..12].copy_from_slice(&checksum);
        bytes
    }

    #[test]
    fn the_id_is_read_from_either_copy_that_is_whole() {
        let directory = tempfile::tempdir().unwrap();
        let store = directory.path().join("store");
        assert_eq!(target_in(&store), None);
        std::fs::write(&store, "").unwrap();
        assert_eq!(target_in(&store), None);
        let target = TargetId([7; 8]);
        std::fs::write(&store, head(target)).unwrap();
        assert_eq!(target_in(&store), Some(target));
        let mut torn = head(TargetId([8; 8]));
        torn[100] ^= 1;
        torn.resize(32 * LEN, 0);
        std::fs::write(&store, &torn).unwrap();
        assert_eq!(target_in(&store), None);
        std::fs::write(&store, [torn, head(target)].concat()).unwrap();
        assert_eq!(target_in(&store), Some(target));
    }
}
