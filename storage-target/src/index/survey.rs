//! Reading the tree for a check of the disk: a leaf at a time, from the disk and not from the
//! cache, and going round what cannot be read.

use bytes::Bytes;

use super::{
    Index, IndexError, Key,
    merge::{Entry, entries_of},
    scan::take_below,
    store::NodeStore,
};
use crate::{
    disk::DiskError,
    format::{
        node::{Node, Reference},
        root::RootRecord,
    },
};

/// What a leaf holds, with the changes over it, and whether the disk still has it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Survey {
    /// Keys and values, keys ascending. Of a node that can be read neither from the disk nor from
    /// the cache only what has changed since the newest checkpoint.
    pub entries: Vec<(Key, Bytes)>,
    /// The key to go on with; `None` at the end.
    pub next: Option<Key>,
    /// Nodes read from the disk.
    pub nodes: u64,
    /// The node that the disk does not have any more.
    pub damage: Option<NodeDamage>,
}

/// A node that is not what its parent says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeDamage {
    /// Where it should be, and its checksum.
    pub reference: Reference,
    /// 0 for a leaf; whatever lies below a node that is none is lost with it.
    pub level: u8,
    /// The lowest key that belongs to it; none for the first of the tree.
    pub low: Option<Key>,
    /// What is wrong with it.
    pub reason: String,
}

/// Where a key belongs.
struct Place {
    reference: Reference,
    level: u8,
    low: Option<Vec<u8>>,
    next: Option<Vec<u8>>,
}

impl Place {
    fn damage(&self, error: &IndexError) -> NodeDamage {
        let low = self.low.as_deref().and_then(Key::new);
        let (reference, level) = (self.reference, self.level);
        NodeDamage { reference, level, low, reason: error.to_string() }
    }
}

impl Index {
    /// The leaf to which `from` belongs, read from the disk, and its entries from `from` on: at
    /// most about `limit`. The cache is not changed. May be dropped at its await.
    ///
    /// # Errors
    /// [`IndexError::Disk`] when the disk has ended. Damage, and pages that the disk cannot read,
    /// are no errors but findings.
    ///
    /// # Panics
    /// When `limit` is 0.
    pub async fn survey(&self, from: Key, limit: usize) -> Result<Survey, IndexError> {
        assert!(limit > 0, "a leaf has entries");
        let (tree, mut overlay, known_until) = self.state().overlay(from, None, limit);
        let mut survey = Survey::default();
        let (leaf, next_leaf) = match self.store.place(&tree, from.as_slice()).await? {
            Found::Nothing => (None, None),
            Found::Broken(damage, next) => {
                survey.damage = Some(damage);
                (None, next)
            }
            Found::Leaf(place) => {
                survey.nodes = 1;
                let leaf = match self.store.read_node(place.reference, 0).await {
                    Ok(leaf) => Some(leaf),
                    Err(error) => {
                        survey.damage = Some(place.damage(&damage(error)?));
                        self.store.cached(place.reference)
                    }
                };
                (leaf, place.next)
            }
        };
        let next_leaf = next_leaf.as_deref().and_then(Key::new);
        survey.next = [next_leaf, known_until].into_iter().flatten().min();
        let is_here = |key: &Key| *key >= from && survey.next.is_none_or(|next| *key < next);
        for Entry { key, value } in leaf.iter().flat_map(entries_of) {
            if is_here(&key) {
                take_below(&mut overlay, Some(key), &mut survey.entries);
                match overlay.remove(&key) {
                    Some(change) => survey.entries.extend(change.map(|value| (key, value))),
                    None => survey.entries.push((key, value)),
                }
            }
        }
        take_below(&mut overlay, survey.next, &mut survey.entries);
        Ok(survey)
    }
}

enum Found {
    /// The tree is empty.
    Nothing,
    /// A node on the way cannot be read; what comes after it.
    Broken(NodeDamage, Option<Vec<u8>>),
    Leaf(Place),
}

impl NodeStore {
    /// The way to the leaf of a key.
    async fn place(&self, tree: &RootRecord, key: &[u8]) -> Result<Found, IndexError> {
        let Some(reference) = tree.root else { return Ok(Found::Nothing) };
        let level = tree.height - 1;
        let mut place = Place { reference, level, low: None, next: None };
        while place.level > 0 {
            let node: Node = match self.load(place.reference, place.level).await {
                Ok(node) => node,
                Err(error) => {
                    return Ok(Found::Broken(place.damage(&damage(error)?), place.next));
                }
            };
            let at = node.route(key);
            if at > 0 {
                place.low = Some(node.key(at).to_vec());
            }
            if at + 1 < node.count() {
                place.next = Some(node.key(at + 1).to_vec());
            }
            place.reference = node.child(at);
            place.level -= 1;
        }
        Ok(Found::Leaf(place))
    }
}

/// Tells damage from a disk that has ended.
fn damage(error: IndexError) -> Result<IndexError, IndexError> {
    match error {
        IndexError::Damaged { .. } | IndexError::Disk(DiskError::Io { .. }) => Ok(error),
        other => Err(other),
    }
}
