//! Into which parts a file is cut for its upload: pure arithmetic, fixed before the first byte
//! moves.
//!
//! A part is a whole number of chunks, so that it lies on as few targets as it can, and at least
//! 8 MiB, so that every part is beyond S3's smallest (5 MiB). There are at most 10,000 parts, so
//! that files beyond 78 GiB get larger ones, up to 576 MiB for S3's largest object of 5 TiB. The
//! target of a part's first chunk puts it together; beyond 64 MiB it sends it while it reads it.

use millrace_types::{ChunkIndex, ChunkSize, GIB, MIB};

/// The smallest part that is made, in bytes. S3 demands 5 MiB of all but the last; 8 MiB is one
/// chunk of the default size.
const PART_SIZE_MIN: u64 = 8 * MIB;

/// S3's limit.
const PARTS_MAX: u64 = 10_000;

/// S3's limit.
const PART_SIZE_MAX: u64 = 5 * GIB;

/// S3's limit of an object.
const OBJECT_SIZE_MAX: u64 = 5 * 1024 * GIB;

/// How a file of one size is cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PartPlan {
    size: u64,
    part_size: u64,
    chunk_size: u64,
}

/// One part of the plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Part {
    /// 1 to 10,000.
    pub number: u16,
    /// First byte in the file.
    pub offset: u64,
    /// Bytes; 0 only for the one part of an empty file.
    pub len: u64,
    /// The chunk that its first byte lies in.
    pub first_chunk: ChunkIndex,
}

impl PartPlan {
    /// Plans a file; `None` when it is larger than 5 TiB.
    #[must_use]
    pub fn new(size: u64, chunk_size: ChunkSize) -> Option<Self> {
        let chunk_size = chunk_size.bytes();
        let least = PART_SIZE_MIN.max(size.div_ceil(PARTS_MAX));
        let part_size = least.div_ceil(chunk_size).checked_mul(chunk_size)?;
        Self::fixed(size, part_size, chunk_size)
    }

    /// The plan that was fixed before, from its record; `None` when no plan can have been so.
    #[must_use]
    pub fn recorded(size: u64, part_size: u64, chunk_size: ChunkSize) -> Option<Self> {
        Self::fixed(size, part_size, chunk_size.bytes())
    }

    fn fixed(size: u64, part_size: u64, chunk_size: u64) -> Option<Self> {
        let sound = (PART_SIZE_MIN..=PART_SIZE_MAX).contains(&part_size)
            && part_size.is_multiple_of(chunk_size)
            && size <= OBJECT_SIZE_MAX
            && size.div_ceil(part_size) <= PARTS_MAX;
        sound.then_some(Self { size, part_size, chunk_size })
    }

    /// Bytes of each part but the last.
    #[must_use]
    pub fn part_size(&self) -> u64 {
        self.part_size
    }

    /// Whether one put does it.
    #[must_use]
    pub fn is_single(&self) -> bool {
        self.size <= self.part_size
    }

    /// The parts, in order; one, of no bytes, for an empty file.
    pub fn parts(&self) -> impl Iterator<Item = Part> + use<> {
        let plan = *self;
        let count = u16::try_from(plan.size.div_ceil(plan.part_size).max(1))
            .expect("a plan has at most 10,000 parts");
        (1..=count).map(move |number| {
            let offset = u64::from(number - 1) * plan.part_size;
            let chunk = u32::try_from(offset / plan.chunk_size).expect("a file has 2^32 chunks");
            Part {
                number,
                offset,
                len: plan.part_size.min(plan.size - offset),
                first_chunk: ChunkIndex(chunk),
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{GIB, KIB};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn parts_cover_the_file_once_within_the_limits_of_s3(
            size in prop_oneof![0..=100 * GIB, 0..=OBJECT_SIZE_MAX], chunk_power in 16_u32..=26
        ) {
            let chunk_size = ChunkSize::new(1 << chunk_power).unwrap();
            let plan = PartPlan::new(size, chunk_size).unwrap();
            let parts: Vec<_> = plan.parts().collect();
            prop_assert!(parts.len() <= 10_000);
            let mut at = 0;
            for (index, part) in parts.iter().enumerate() {
                prop_assert_eq!(usize::from(part.number), index + 1);
                prop_assert_eq!(part.offset, at);
                prop_assert_eq!(u64::from(part.first_chunk.0) * chunk_size.bytes(), at);
                let last = index + 1 == parts.len();
                prop_assert!(last || part.len >= 5 * MIB);
                prop_assert!(part.len <= 576 * MIB);
                at += part.len;
            }
            prop_assert_eq!(at, size);
            let again = PartPlan::recorded(size, plan.part_size(), chunk_size);
            prop_assert_eq!(again, Some(plan));
        }
    }

    #[test]
    fn a_part_is_one_chunk_where_it_can_be() {
        let sizes = |size, chunk: u64| {
            PartPlan::new(size, ChunkSize::new(chunk).unwrap()).unwrap().part_size()
        };
        assert_eq!(sizes(GIB, 8 * MIB), 8 * MIB);
        assert_eq!(sizes(GIB, 64 * MIB), 64 * MIB);
        assert_eq!(sizes(GIB, 64 * KIB), 8 * MIB);
        assert_eq!(sizes(100 * GIB, 8 * MIB), 16 * MIB);
    }

    #[test]
    fn an_empty_file_is_one_part_of_nothing() {
        let plan = PartPlan::new(0, ChunkSize::DEFAULT).unwrap();
        assert!(plan.is_single());
        assert_eq!(plan.parts().map(|part| part.len).collect::<Vec<_>>(), [0]);
    }

    #[test]
    fn a_recorded_plan_that_cannot_be_is_refused() {
        for (size, part_size) in [(GIB, 0), (GIB, MIB), (GIB, 9 * MIB), (100 * GIB, 8 * MIB)] {
            assert_eq!(PartPlan::recorded(size, part_size, ChunkSize::DEFAULT), None);
        }
        let largest = PartPlan::new(OBJECT_SIZE_MAX, ChunkSize::DEFAULT).unwrap();
        assert_eq!(largest.part_size(), 528 * MIB);
        assert_eq!(PartPlan::new(OBJECT_SIZE_MAX + 1, ChunkSize::DEFAULT), None);
        assert_eq!(PartPlan::new(u64::MAX, ChunkSize::MAX), None);
    }
}
