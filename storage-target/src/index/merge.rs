//! Putting changes into a node's entries, and cutting entries into nodes. No I/O.

use std::ops::Range;

use bytes::Bytes;

use super::{Key, delta::Change};
use crate::format::node::{Node, ROOM, room_of};

/// A node with less in it is joined with a neighbour when it is written.
pub(super) const ROOM_USED_MIN: usize = ROOM * 2 / 5;

/// A change in a sorted list of them.
pub(super) type Changed<'a> = (&'a Key, &'a Change);

/// An entry on its way into a new node.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Entry {
    pub(super) key: Key,
    pub(super) value: Bytes,
}

impl Entry {
    fn room(&self) -> usize {
        room_of(self.key.as_slice().len(), self.value.len())
    }
}

/// The entries of a node.
pub(super) fn entries_of(node: &Node) -> impl Iterator<Item = Entry> + '_ {
    (0..node.count()).map(|at| {
        let key = Key::new(node.key(at)).expect("a checked node has keys within the bounds");
        Entry { key, value: node.value(at) }
    })
}

/// The entries of a leaf, or of none, after changes in the order of their keys.
pub(super) fn merge(leaf: Option<&Node>, changes: &[Changed<'_>]) -> Vec<Entry> {
    let mut merged = Vec::with_capacity(leaf.map_or(0, Node::count) + changes.len());
    let mut changes = changes.iter().copied().peekable();
    let put = |merged: &mut Vec<Entry>, (key, change): Changed<'_>| {
        if let Some(value) = change {
            merged.push(Entry { key: *key, value: value.clone() });
        }
    };
    for entry in leaf.into_iter().flat_map(entries_of) {
        while let Some(before) = changes.next_if(|(key, _)| **key < entry.key) {
            put(&mut merged, before);
        }
        match changes.next_if(|(key, _)| **key == entry.key) {
            Some(instead) => put(&mut merged, instead),
            None => merged.push(entry),
        }
    }
    changes.for_each(|change| put(&mut merged, change));
    merged
}

/// What entries take of nodes.
pub(super) fn room(entries: &[Entry]) -> usize {
    entries.iter().map(Entry::room).sum()
}

/// Cuts entries into as few nodes as possible, filled evenly: what is cut in two has room in both
/// halves, and what arrives in order in large batches fills its nodes.
pub(super) fn cut(entries: &[Entry]) -> Vec<Range<usize>> {
    let total = room(entries);
    let share = total.div_ceil(total.div_ceil(ROOM).max(1));
    let mut nodes = Vec::new();
    let (mut start, mut used) = (0, 0);
    for (at, entry) in entries.iter().enumerate() {
        if used > 0 && (used >= share || used + entry.room() > ROOM) {
            nodes.push(start..at);
            (start, used) = (at, 0);
        }
        used += entry.room();
    }
    if start < entries.len() {
        nodes.push(start..entries.len());
    }
    nodes
}

/// The part of `changes` that belongs below each child of an inner node, with the child's place.
pub(super) fn divide<'c, 'a>(
    node: &Node,
    mut changes: &'c [Changed<'a>],
) -> Vec<(usize, &'c [Changed<'a>])> {
    let mut parts = Vec::new();
    while let Some((key, _)) = changes.first() {
        let at = node.route(key.as_slice());
        let end = match at + 1 < node.count() {
            true => changes.partition_point(|(key, _)| key.as_slice() < node.key(at + 1)),
            false => changes.len(),
        };
        let (part, rest) = changes.split_at(end);
        parts.push((at, part));
        changes = rest;
    }
    parts
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use millrace_types::TargetId;
    use proptest::prelude::*;

    use super::*;
    use crate::format::node::{NODE_LEN, NodeHeader, Reference, VALUE_LEN_MAX, encode_node};

    fn key(number: u32) -> Key {
        Key::new(&number.to_be_bytes()).unwrap()
    }

    fn entry(number: u32, len: usize) -> Entry {
        Entry { key: key(number), value: Bytes::from(vec![7; len]) }
    }

    fn node(level: u8, entries: &[Entry]) -> Node {
        let target = TargetId([1; 8]);
        let mut page = vec![0; NODE_LEN];
        let header = NodeHeader { target, page: 1, generation: 1, level };
        let pairs = entries.iter().map(|entry| (entry.key.as_slice(), &entry.value[..]));
        let checksum = encode_node(header, pairs, &mut page);
        Node::decode(Bytes::from(page), target, Reference { page: 1, checksum }, level).unwrap()
    }

    #[test]
    fn entries_that_come_in_order_fill_their_nodes() {
        let entries: Vec<_> = (0..10_000).map(|number| entry(number, 60)).collect();
        let nodes = cut(&entries);
        let fill = room(&entries) as f64 / (nodes.len() * ROOM) as f64;
        assert!(fill > 0.97, "{fill}");
    }

    #[test]
    fn a_node_that_overflows_is_cut_in_the_middle() {
        let entries: Vec<_> = (0..60).map(|number| entry(number, 60)).collect();
        assert_eq!(cut(&entries), [0..30, 30..60]);
        assert_eq!(cut(&entries[..1]), vec![0..1]);
        assert!(cut(&[]).is_empty());
    }

    proptest! {
        #[test]
        fn every_cut_fits_and_loses_nothing(
            lens in prop::collection::vec(0..=VALUE_LEN_MAX, 0..200)
        ) {
            let entries: Vec<_> =
                (0_u32..).zip(&lens).map(|(number, &len)| entry(number, len)).collect();
            let nodes = cut(&entries);
            let mut at = 0;
            for range in &nodes {
                prop_assert_eq!(range.start, at);
                prop_assert!(room(&entries[range.clone()]) <= ROOM && !range.is_empty());
                at = range.end;
            }
            prop_assert_eq!(at, entries.len());
        }

        #[test]
        fn merging_equals_a_map(
            old in prop::collection::btree_map(0_u32..60, 0_usize..9, 1..40),
            changes in prop::collection::btree_map(0_u32..60, prop::option::of(0_usize..9), 0..40),
        ) {
            let leaf: Vec<_> = old.iter().map(|(&number, &len)| entry(number, len)).collect();
            let list: BTreeMap<Key, Change> = changes
                .iter()
                .map(|(&number, len)| (key(number), len.map(|len| Bytes::from(vec![7; len]))))
                .collect();
            let list: Vec<_> = list.iter().collect();
            let merged = merge(Some(&node(0, &leaf)), &list);
            let mut expected = old;
            for (number, change) in changes {
                match change {
                    Some(len) => expected.insert(number, len),
                    None => expected.remove(&number),
                };
            }
            let expected: Vec<_> =
                expected.into_iter().map(|(number, len)| entry(number, len)).collect();
            prop_assert_eq!(merged, expected);
        }

        #[test]
        fn changes_go_below_the_child_that_a_lookup_would_take(
            children in prop::collection::btree_set(0_u32..100, 1..20),
            changes in prop::collection::btree_set(0_u32..100, 0..50),
        ) {
            let entries: Vec<_> = children.iter().map(|&number| entry(number, 12)).collect();
            let inner = node(1, &entries);
            let keys: Vec<Key> = changes.into_iter().map(key).collect();
            let list: Vec<Changed<'_>> = keys.iter().map(|key| (key, &None)).collect();
            let mut found = Vec::new();
            for (at, part) in divide(&inner, &list) {
                prop_assert!(!part.is_empty());
                for (key, _) in part {
                    prop_assert_eq!(inner.route(key.as_slice()), at);
                    found.push(**key);
                }
            }
            prop_assert_eq!(found, keys);
        }
    }
}
