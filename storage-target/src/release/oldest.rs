//! Which chunks go first: of all that are shown, the ones used longest ago that are enough.

use std::collections::BinaryHeap;

use millrace_protocol::target::ContentName;
use millrace_types::{ByteLen, ChunkKey};

use super::recency::Used;

/// Collects candidates. Pure.
#[derive(Debug)]
pub(super) struct Oldest {
    wanted: u64,
    bytes: u64,
    /// The youngest on top.
    heap: BinaryHeap<Candidate>,
    /// Whether nothing was left out.
    has_all: bool,
}

/// A chunk that may go. Ordered by when it was used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(super) struct Candidate {
    /// When it was used last, as it was found.
    pub(super) used: Used,
    /// Which.
    pub(super) chunk: ChunkKey,
    /// Clean bytes of it.
    pub(super) bytes: ByteLen,
}

impl Candidate {
    /// Who decides knows it as a part of this.
    pub(super) fn content(&self) -> ContentName {
        ContentName { inode: self.chunk.inode, generation: self.chunk.generation }
    }
}

/// Candidates kept at most: 12 MB. More goes in a second look.
const CANDIDATES_MAX: usize = 262_144;

impl Oldest {
    /// Collects what makes `wanted` bytes together.
    pub(super) fn new(wanted: ByteLen) -> Self {
        Self { wanted: wanted.0, bytes: 0, heap: BinaryHeap::new(), has_all: true }
    }

    /// Looks at one more.
    pub(super) fn push(&mut self, candidate: Candidate) {
        self.bytes += candidate.bytes.0;
        self.heap.push(candidate);
        while let Some(youngest) = self.heap.peek() {
            let enough = self.bytes - youngest.bytes.0 >= self.wanted;
            if !enough && self.heap.len() <= CANDIDATES_MAX {
                return;
            }
            self.bytes -= youngest.bytes.0;
            self.heap.pop();
            self.has_all = false;
        }
    }

    /// Whether it has all that it was shown.
    pub(super) fn has_all(&self) -> bool {
        self.has_all
    }

    /// The oldest first.
    pub(super) fn into_sorted(self) -> Vec<Candidate> {
        self.heap.into_sorted_vec()
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use millrace_types::{ChunkIndex, ContentGeneration, CopyIndex, InodeId};

    use super::*;
    use crate::release::recency::Recency;

    fn candidates(ages: &[u64]) -> Vec<Candidate> {
        let began = Instant::now();
        let recency = Recency::new(began);
        let numbered = ages.iter().enumerate();
        let made = numbered.map(|(number, &age)| {
            let chunk = ChunkKey {
                inode: InodeId(number as u64),
                generation: ContentGeneration(1),
                index: ChunkIndex(0),
                copy: CopyIndex(0),
            };
            recency.note(chunk, began + Duration::from_secs(age));
            Candidate { used: recency.of(chunk), chunk, bytes: ByteLen(100) }
        });
        made.collect()
    }

    fn chosen(ages: &[u64], wanted: u64) -> Vec<u64> {
        let mut oldest = Oldest::new(ByteLen(wanted));
        candidates(ages).into_iter().for_each(|candidate| oldest.push(candidate));
        let sorted = oldest.into_sorted();
        let age = |candidate: Candidate| ages[usize::try_from(candidate.chunk.inode.0).unwrap()];
        sorted.into_iter().map(age).collect()
    }

    #[test]
    fn the_oldest_that_are_enough_go_and_no_more() {
        let ages = [5, 1, 9, 3, 7, 2, 8];
        assert_eq!(chosen(&ages, 0), Vec::<u64>::new());
        assert_eq!(chosen(&ages, 1), [1]);
        assert_eq!(chosen(&ages, 100), [1]);
        assert_eq!(chosen(&ages, 101), [1, 2]);
        assert_eq!(chosen(&ages, 350), [1, 2, 3, 5]);
        assert_eq!(chosen(&ages, 10_000), [1, 2, 3, 5, 7, 8, 9], "all there is");
    }

    #[test]
    fn it_knows_whether_it_has_all() {
        let has_all = |wanted| {
            let mut oldest = Oldest::new(ByteLen(wanted));
            candidates(&[5, 1, 9]).into_iter().for_each(|candidate| oldest.push(candidate));
            oldest.has_all()
        };
        assert!(Oldest::new(ByteLen(1)).has_all(), "of nothing");
        assert!(!has_all(1) && !has_all(200));
        assert!(has_all(201) && has_all(300));
    }
}
