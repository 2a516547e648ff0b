//! Which placement group holds which chunk of a file: arithmetic on a small fixed record.
//!
//! A file is cut into chunks of one size. Chunk `i` belongs to placement group
//! [`Layout::group`]`(i)`. The function needs nothing but the layout itself, never a cluster map,
//! so that every part computes the same answer for as long as the file lives, however much the pool
//! grows.
//!
//! The `width` groups of a file are `seed, seed + step, seed + 2 * step, ...` modulo the number of
//! groups that the pool had when the file was made. `step` is the number coprime to that count that
//! lies nearest to its golden section: consecutive chunks therefore fall on groups that are far
//! apart in the array, which lie on different targets both when the array interleaves targets and
//! when each target's groups stand in one run (`docs/decisions/0002-group-stride.md`).

use rkyv::{Archive, Deserialize, Serialize};

use crate::{
    ErrorKind,
    ids::{ChunkIndex, GroupId, PoolId},
    units::{KIB, MIB},
};

/// How the chunks of a file are spread. Fixed when the file is made; 16 bytes of information.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Layout {
    chunk_size: ChunkSize,
    width: u32,
    pool: PoolId,
    pool_groups: u32,
    seed: u32,
    redundancy: Redundancy,
}

/// How a chunk is protected within its placement group.
#[derive(Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
#[repr(u8)]
pub enum Redundancy {
    /// One copy on one target.
    #[default]
    None = 0,
}

impl Layout {
    /// Lays a new file out over `width` of the `pool_groups` groups that `pool` has now, starting
    /// at a place drawn from `seed`. A width above the number of groups means all of them.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when the pool has no group or the width is zero.
    pub fn new(
        chunk_size: ChunkSize,
        width: u32,
        pool: PoolId,
        pool_groups: u32,
        seed: u32,
    ) -> Result<Self, ErrorKind> {
        if pool_groups == 0 || width == 0 {
            return Err(ErrorKind::InvalidArgument);
        }
        let redundancy = Redundancy::None;
        Ok(Self { chunk_size, width: width.min(pool_groups), pool, pool_groups, seed, redundancy })
    }

    /// Checks a layout that came from a peer or a disk.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when no [`Self::new`] can have made it.
    pub fn checked(self) -> Result<Self, ErrorKind> {
        let sound = self.pool_groups > 0
            && (1..=self.pool_groups).contains(&self.width)
            && ChunkSize::new(self.chunk_size.bytes()).is_ok();
        if sound { Ok(self) } else { Err(ErrorKind::InvalidArgument) }
    }

    /// The group that holds chunk `index`.
    #[must_use]
    pub fn group(&self, index: ChunkIndex) -> GroupId {
        let groups = u64::from(self.pool_groups);
        let slot = u64::from(index.0 % self.width);
        let place = (u64::from(self.seed) + slot * u64::from(stride(self.pool_groups))) % groups;
        GroupId(u32::try_from(place).expect("a place is below a 32-bit group count"))
    }

    /// The different groups that the file uses, in the order of its first chunks.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + use<> {
        let layout = *self;
        (0..layout.width).map(move |slot| layout.group(ChunkIndex(slot)))
    }

    /// Bytes of each chunk but the last.
    #[must_use]
    pub fn chunk_size(&self) -> ChunkSize {
        self.chunk_size
    }

    /// Over how many groups the chunks go round.
    #[must_use]
    pub fn width(&self) -> u32 {
        self.width
    }

    /// The pool whose groups are used.
    #[must_use]
    pub fn pool(&self) -> PoolId {
        self.pool
    }

    /// Cuts a byte range into its pieces, one per chunk, in order.
    pub fn pieces(&self, offset: u64, len: u64) -> impl Iterator<Item = Piece> + use<> {
        let size = self.chunk_size.bytes();
        let end = offset.saturating_add(len);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let index = ChunkIndex(u32::try_from(at / size).ok()?);
            let offset_in_chunk = at % size;
            let len = (size - offset_in_chunk).min(end - at);
            let piece = Piece { index, offset_in_chunk, len, offset_in_file: at };
            at += len;
            Some(piece)
        })
    }
}

/// The part of a byte range that lies in one chunk.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Piece {
    /// The chunk.
    pub index: ChunkIndex,
    /// First byte, counted from the start of the chunk.
    pub offset_in_chunk: u64,
    /// Bytes; at least 1, and never past the chunk's end.
    pub len: u64,
    /// First byte, counted from the start of the file.
    pub offset_in_file: u64,
}

/// Bytes of a chunk: a power of two from 64 KiB to 64 MiB.
#[derive(
    Archive, Serialize, Deserialize, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug,
)]
pub struct ChunkSize(u8);

impl ChunkSize {
    /// 8 MiB: a chunk is then one part of a multipart upload (S3's parts are 5 MiB at least).
    pub const DEFAULT: Self = Self(23);
    /// The smallest: one block.
    pub const MIN: Self = Self(16);
    /// The largest.
    pub const MAX: Self = Self(26);

    /// Takes a size in bytes.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] when it is no power of two from 64 KiB to 64 MiB.
    pub fn new(bytes: u64) -> Result<Self, ErrorKind> {
        if !bytes.is_power_of_two() || !(64 * KIB..=64 * MIB).contains(&bytes) {
            return Err(ErrorKind::InvalidArgument);
        }
        Ok(Self(u8::try_from(bytes.trailing_zeros()).expect("at most 63")))
    }

    /// The size in bytes.
    #[must_use]
    pub fn bytes(self) -> u64 {
        // An archived record from a peer may hold any byte; `Layout::checked` refuses it later.
        1_u64.checked_shl(u32::from(self.0)).unwrap_or(0)
    }
}

/// The step between the groups of consecutive chunks: coprime to `groups`, near its golden section.
fn stride(groups: u32) -> u32 {
    // 0.618 of the count; the section that spreads any number of consecutive points most evenly.
    let golden = u32::try_from(u64::from(groups) * 618 / 1000).expect("below groups").max(1);
    (golden..groups).chain(1..golden).find(|&step| coprime(step, groups)).unwrap_or(1)
}

fn coprime(mut a: u32, mut b: u32) -> bool {
    while b != 0 {
        (a, b) = (b, a % b);
    }
    a == 1
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn layout(width: u32, pool_groups: u32, seed: u32) -> Layout {
        Layout::new(ChunkSize::DEFAULT, width, PoolId(0), pool_groups, seed).unwrap()
    }

    proptest! {
        #[test]
        fn the_groups_of_a_file_are_as_many_as_its_width(
            width in 1_u32..300, groups in 1_u32..300, seed: u32
        ) {
            let layout = layout(width, groups, seed);
            let used: BTreeSet<_> = layout.groups().collect();
            prop_assert_eq!(used.len(), width.min(groups) as usize);
            prop_assert!(used.iter().all(|group| group.0 < groups));
        }

        #[test]
        fn pieces_cover_the_range_once_and_in_order(
            offset in 0_u64..1 << 40, len in 0_u64..1 << 30
        ) {
            let layout = layout(4, 64, 1);
            let mut at = offset;
            for piece in layout.pieces(offset, len) {
                prop_assert_eq!(piece.offset_in_file, at);
                let start = u64::from(piece.index.0) * layout.chunk_size().bytes();
                prop_assert_eq!(start + piece.offset_in_chunk, at);
                prop_assert!(piece.len > 0);
                prop_assert!(piece.offset_in_chunk + piece.len <= layout.chunk_size().bytes());
                at += piece.len;
            }
            prop_assert_eq!(at, offset + len);
        }
    }

    #[test]
    fn neighbouring_chunks_lie_on_different_targets_however_the_array_is_ordered() {
        for targets in 2..=9_u32 {
            let groups = 64 * targets;
            let layout = layout(u32::MAX, groups, 7);
            let interleaved = |index: u32| layout.group(ChunkIndex(index)).0 % targets;
            let in_runs = |index: u32| layout.group(ChunkIndex(index)).0 / 64;
            for index in 0..groups - 1 {
                assert_ne!(interleaved(index), interleaved(index + 1), "{targets} targets");
            }
            let same = (0..groups - 1).filter(|&i| in_runs(i) == in_runs(i + 1)).count();
            assert!(same * 4 <= groups as usize, "{targets} targets in runs: {same} of {groups}");
        }
    }

    #[test]
    fn chunk_sizes_are_powers_of_two_within_bounds() {
        assert_eq!(ChunkSize::new(8 * MIB), Ok(ChunkSize::DEFAULT));
        assert_eq!(ChunkSize::MIN.bytes(), 64 * KIB);
        assert_eq!(ChunkSize::MAX.bytes(), 64 * MIB);
        for bytes in [0, 1, 32 * KIB, 100_000, 3 * MIB, 128 * MIB] {
            assert_eq!(ChunkSize::new(bytes), Err(ErrorKind::InvalidArgument), "{bytes}");
        }
    }

    #[test]
    fn the_placement_function_never_changes() {
        // Golden values: a file made by an older program must find its chunks.
        let groups = |layout: Layout| layout.groups().map(|group| group.0).collect::<Vec<_>>();
        assert_eq!(groups(layout(6, 64, 5)), [5, 44, 19, 58, 33, 8]);
        assert_eq!(groups(layout(4, 128, 1000)), [104, 55, 6, 85]);
    }
}
