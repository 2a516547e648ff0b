//! Pieces of one file in order, found by the bytes that they are on and by whose they are not.
//!
//! Very many pieces may lie in a file, and most questions are whether somebody else has one on some
//! bytes. A map by the first byte would have to go through all that begins before these, and
//! through the asker's own. So the pieces lie in blocks, and a tree over the blocks knows how far
//! the pieces reach, of whomever they are: a question goes through those blocks alone in which it
//! finds something.

use std::iter;

use millrace_types::{LockKind, LockRange};

use super::{
    piece::{Owner, Piece},
    steps,
};

/// Items of a block at most: they are gone through one by one, and moved where one is put between.
const BLOCK_MAX: usize = 128;

/// A piece, and whose it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Item {
    pub(super) piece: Piece,
    pub(super) owner: Owner,
    /// Tells apart what is the same otherwise.
    pub(super) number: u64,
}

/// The pieces.
#[derive(Debug, Default)]
pub(super) struct Intervals {
    blocks: Vec<Block>,
    /// How far the blocks under each node reach. The root is at 1, the two under a node at twice
    /// its number and behind that, and the blocks themselves would come next. None for a single
    /// block.
    reaches: Vec<Reach>,
}

#[derive(Debug)]
struct Block {
    /// In order; there is one at least.
    items: Vec<Item>,
    reach: Reach,
}

/// The last byte that a piece reaches, and whose that one is; and the last one that one of somebody
/// else reaches.
#[derive(Clone, Copy, Debug, Default)]
struct Reach([Option<(u64, Owner)>; 2]);

impl Intervals {
    /// Adds pieces, each of them once.
    pub(super) fn insert(&mut self, items: impl IntoIterator<Item = Item>) {
        let before = self.blocks.len();
        for item in items {
            let at = self.insert_one(item);
            if self.blocks.len() == before {
                self.measure_above(at);
            }
        }
        if self.blocks.len() != before {
            self.measure();
        }
    }

    /// Takes pieces out, if they are there.
    pub(super) fn remove(&mut self, items: impl IntoIterator<Item = Item>) {
        let before = self.blocks.len();
        for item in items {
            let at = self.remove_one(item);
            if self.blocks.len() == before {
                self.measure_above(at);
            }
        }
        if self.blocks.len() != before {
            self.measure();
        }
    }

    /// What nobody but its owner may have beside the piece, other than what `except` has.
    pub(super) fn excluding(
        &self,
        piece: Piece,
        except: Option<Owner>,
    ) -> impl Iterator<Item = &Item> + '_ {
        let kinds = [LockKind::Write, LockKind::Read].into_iter();
        let kinds = kinds.filter(move |kind| kind.excludes(piece.kind));
        kinds.flat_map(move |kind| self.overlapping(Piece { kind, ..piece }, except))
    }

    /// What is of the same kind as the piece and has some of its bytes, other than what `except`
    /// has.
    pub(super) fn overlapping(
        &self,
        piece: Piece,
        except: Option<Owner>,
    ) -> impl Iterator<Item = &Item> + '_ {
        let LockRange { start, last } = piece.range;
        let class = move |piece: &Piece| (piece.space, piece.kind);
        let is_before = |block: &Block| {
            block.items.last().is_some_and(|item| class(&item.piece) < class(&piece))
        };
        let first = self.next_reaching(self.blocks.partition_point(is_before), start, except);
        let blocks = iter::successors(first, move |at| self.next_reaching(at + 1, start, except));
        let blocks = blocks.map(|at| &self.blocks[at].items).take_while(move |items| {
            let begins = items[0].piece;
            (class(&begins), begins.range.start) <= (class(&piece), last)
        });
        let items = blocks.flatten().inspect(|_| steps::look());
        items.filter(move |item| {
            class(&item.piece) == class(&piece)
                && item.piece.range.overlaps(piece.range)
                && Some(item.owner) != except
        })
    }

    /// The first block from there on of which a piece of somebody other than `except` reaches the
    /// byte.
    fn next_reaching(&self, from: usize, byte: u64, except: Option<Owner>) -> Option<usize> {
        if from >= self.blocks.len() {
            return None;
        }
        let leaves = self.leaves();
        let is_under = |node: usize| {
            steps::look();
            let block = || self.blocks.get(node - leaves).map(|block| &block.reach);
            let reach = if node < leaves { self.reaches.get(node) } else { block() };
            reach.is_some_and(|reach| reach.is_past(byte, except))
        };
        let mut node = leaves + from;
        while !is_under(node) {
            // On from the next one that is the left of its two.
            node >>= node.trailing_ones();
            if node == 0 {
                return None;
            }
            node += 1;
        }
        while node < leaves {
            node = if is_under(2 * node) { 2 * node } else { 2 * node + 1 };
        }
        Some(node - leaves)
    }

    /// The block in which the item is, if it is in one.
    fn at(&self, item: &Item) -> usize {
        self.blocks.partition_point(|block| block.items.last() < Some(item))
    }

    /// Returns the block that has it now.
    fn insert_one(&mut self, item: Item) -> usize {
        let at = self.at(&item).min(self.blocks.len().saturating_sub(1));
        let Some(Block { items, reach }) = self.blocks.get_mut(at) else {
            self.blocks = vec![Block::new(vec![item])];
            return at;
        };
        let Err(place) = items.binary_search(&item) else { return at };
        if items.len() < BLOCK_MAX {
            items.insert(place, item);
            *reach = reach.and(Reach::over(&[item]));
            return at;
        }
        // What comes in order fills one block after the other.
        let half = if place == BLOCK_MAX { BLOCK_MAX } else { BLOCK_MAX / 2 };
        let mut behind = items.split_off(half);
        match place.checked_sub(half) {
            Some(place) => behind.insert(place, item),
            None => items.insert(place, item),
        }
        *reach = Reach::over(items);
        self.blocks.insert(at + 1, Block::new(behind));
        at
    }

    /// Returns the block that had it.
    fn remove_one(&mut self, item: Item) -> usize {
        let at = self.at(&item);
        let Some(Block { items, reach }) = self.blocks.get_mut(at) else { return at };
        let Ok(place) = items.binary_search(&item) else { return at };
        items.remove(place);
        if reach.0.contains(&Some((item.piece.range.last, item.owner))) {
            *reach = Reach::over(items);
        }
        if items.is_empty() {
            self.blocks.remove(at);
        } else {
            self.join(at);
            self.join(at.saturating_sub(1));
        }
        at
    }

    /// Makes one block of two that have become small.
    fn join(&mut self, at: usize) {
        let Some([one, other]) = self.blocks.get_mut(at..at + 2) else { return };
        if one.items.len() + other.items.len() <= BLOCK_MAX / 2 {
            one.items.append(&mut other.items);
            one.reach = one.reach.and(other.reach);
            self.blocks.remove(at + 1);
        }
    }

    /// So many nodes have blocks under them, of which the first is not used: as many as there could
    /// be blocks.
    fn leaves(&self) -> usize {
        self.reaches.len().max(1)
    }

    /// There are other blocks.
    fn measure(&mut self) {
        let leaves = self.blocks.len().next_power_of_two();
        self.reaches = if leaves == 1 { Vec::new() } else { vec![Reach::default(); leaves] };
        for node in (1..self.reaches.len()).rev() {
            self.measure_node(node);
        }
    }

    /// A block has other items.
    fn measure_above(&mut self, at: usize) {
        let mut node = if at < self.blocks.len() { self.leaves() + at } else { 0 };
        while node > 1 {
            node /= 2;
            self.measure_node(node);
        }
    }

    fn measure_node(&mut self, node: usize) {
        let leaves = self.leaves();
        let reach = |node: usize| match node.checked_sub(leaves) {
            None => self.reaches[node],
            Some(at) => self.blocks.get(at).map(|block| block.reach).unwrap_or_default(),
        };
        let both = reach(2 * node).and(reach(2 * node + 1));
        self.reaches[node] = both;
    }
}

impl Block {
    fn new(items: Vec<Item>) -> Self {
        let reach = Reach::over(&items);
        Self { items, reach }
    }
}

impl Reach {
    fn over(items: &[Item]) -> Self {
        Self::farthest(items.iter().map(|item| (item.piece.range.last, item.owner)))
    }

    /// Of what is in one or the other.
    fn and(self, other: Self) -> Self {
        Self::farthest(self.0.into_iter().chain(other.0).flatten())
    }

    fn farthest(ends: impl Iterator<Item = (u64, Owner)> + Clone) -> Self {
        let first = ends.clone().max();
        let of_others = ends.filter(|(_, owner)| first.is_some_and(|(_, of)| *owner != of));
        Self([first, of_others.max()])
    }

    /// Whether the piece of somebody other than `except` reaches the byte.
    fn is_past(&self, byte: u64, except: Option<Owner>) -> bool {
        let mut farthest = self.0.iter().flatten();
        farthest.any(|(last, owner)| *last >= byte && Some(*owner) != except)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use millrace_protocol::lock::LockSpace;
    use millrace_types::SessionId;
    use proptest::prelude::*;

    use super::*;

    fn owner(number: u64) -> Owner {
        Owner { session: SessionId(1), number }
    }

    fn read(owner_number: u64, start: u64, last: u64) -> Item {
        let (space, kind) = (LockSpace::Range, LockKind::Read);
        let piece = Piece { space, kind, range: LockRange { start, last } };
        Item { piece, owner: owner(owner_number), number: 0 }
    }

    fn items(bytes: u64) -> impl Strategy<Value = Item> {
        let kinds = prop_oneof![Just(LockKind::Read), Just(LockKind::Write)];
        let spaces = prop_oneof![3 => Just(LockSpace::Range), 1 => Just(LockSpace::Flock)];
        let items = (spaces, kinds, 0..bytes, 0..bytes / 8, 0_u64..3, 0_u64..3);
        items.prop_map(|(space, kind, start, more, of, number)| {
            let range = LockRange { start, last: start + more };
            Item { piece: Piece { space, kind, range }, owner: owner(of), number }
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn what_is_found_is_what_meets(
            new in prop::collection::vec(items(400), 0..1500),
            removed in prop::collection::vec(any::<prop::sample::Index>(), 0..1500),
            asked in prop::collection::vec(items(400), 1..20),
        ) {
            let (mut intervals, mut plain) = (Intervals::default(), BTreeSet::new());
            for item in new {
                intervals.insert([item]);
                plain.insert(item);
            }
            let all: Vec<_> = plain.iter().copied().collect();
            for index in removed.iter().filter(|_| !all.is_empty()) {
                let item = *index.get(&all);
                intervals.remove([item]);
                plain.remove(&item);
            }
            let room = 2 * intervals.blocks.len().saturating_sub(1) * BLOCK_MAX / 8;
            prop_assert!(room <= plain.len(), "small blocks are joined");
            for asked in asked {
                for except in [None, Some(asked.owner)] {
                    let found: Vec<_> = intervals.excluding(asked.piece, except).collect();
                    let meets = |item: &&Item| {
                        item.piece.excludes(asked.piece) && Some(item.owner) != except
                    };
                    let expected: Vec<_> = plain.iter().filter(meets).collect();
                    prop_assert_eq!(found.len(), expected.len(), "each once");
                    prop_assert!(expected.iter().all(|item| found.contains(item)));
                }
            }
        }
    }

    #[test]
    fn neither_what_lies_elsewhere_nor_what_is_ones_own_is_gone_through() {
        let mut intervals = Intervals::default();
        let count = 50_000;
        for number in 0..count {
            intervals.insert([read(number, 2 * number, 2 * count - 1)]);
            intervals.insert([read(0, 2 * count + 2 * number, 2 * count + 2 * number)]);
        }
        intervals.insert([read(7, 3 * count, 5 * count)]);
        let asked = Piece { kind: LockKind::Write, ..read(0, 2 * count, 6 * count).piece };
        let found = || intervals.excluding(asked, Some(owner(0))).next().map(|item| item.owner);
        let (found, looks) = steps::of(found);
        assert_eq!(found, Some(owner(7)));
        assert!(looks < 100 + BLOCK_MAX, "looked at {looks}");
    }
}
