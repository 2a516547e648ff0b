//! Going through a whole tree: at each start through its inner nodes, to learn which pages are in
//! use; and through all of it, to check it. [`Walk`] reads nothing itself, so that the offline
//! tools go the same way as the daemon.

use std::{mem, sync::Arc};

use futures::future::join_all;

use super::{Index, IndexError, nodes::NodeSpace, store::NodeStore};
use crate::format::{
    FormatError,
    node::{Node, ROOM, Reference, room_of},
    root::RootRecord,
};

/// Nodes read at once: what keeps a drive busy, and 1 MiB of buffers.
const READS: usize = 64;

const WHAT: &str = "the index";

/// A node that is to be read, and what its parent says about it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Due {
    /// Where it is, and its checksum.
    pub reference: Reference,
    /// 0 for a leaf.
    pub level: u8,
    /// Nothing in it or below it may be lower.
    pub low: Vec<u8>,
    /// Everything in it and below it must be lower; `None` on the right edge.
    pub high: Option<Vec<u8>>,
    /// No later checkpoint may have written it.
    pub generation: u64,
}

/// The way through a tree in the order of its keys. In memory are the nodes still to be read of
/// at most one window for each level, and a bit for each page of the index.
#[derive(Debug)]
pub struct Walk {
    /// Nodes to be read; the next one is the last.
    due: Vec<Due>,
    /// Those below the nodes of the present window, in order.
    below: Vec<Due>,
    space: NodeSpace,
    nodes: u64,
    entries: u64,
}

impl Walk {
    /// A walk that begins at the top.
    #[must_use]
    pub fn new(root: &RootRecord) -> Self {
        let top = root.root.map(|reference| Due {
            reference,
            level: root.height - 1,
            low: Vec::new(),
            high: None,
            generation: root.generation,
        });
        Self {
            due: top.into_iter().collect(),
            below: Vec::new(),
            space: NodeSpace::new(&root.segments),
            nodes: 0,
            entries: 0,
        }
    }

    /// The nodes to be read next, in the order of their keys, at most `limit` and all of one level;
    /// none at the end. Those that are sound are to be [`visited`](Self::visit) in this order
    /// before the next call.
    pub fn window(&mut self, limit: usize) -> Vec<Due> {
        self.due.extend(mem::take(&mut self.below).into_iter().rev());
        let level = self.due.last().map(|due| due.level);
        let same = self.due.iter().rev().take_while(|due| Some(due.level) == level);
        let count = same.take(limit).count();
        let mut window = self.due.split_off(self.due.len() - count);
        window.reverse();
        window
    }

    /// Takes a node that was read. What lies below it comes with a later window.
    ///
    /// # Errors
    /// [`FormatError`] when it is not what may be at this place of the tree, although sound in
    /// itself. What lies below it is then left out.
    pub fn visit(&mut self, due: &Due, node: &Node) -> Result<(), FormatError> {
        let impossible = |field| Err(FormatError::Impossible { what: WHAT, field });
        if !self.space.take(due.reference.page) {
            return impossible("place of a node");
        }
        self.nodes += 1;
        if node.generation() > due.generation {
            return impossible("generation: the node is newer than its parent");
        }
        let (first, last) = (node.key(0), node.key(node.count() - 1));
        if first < &due.low[..] || due.high.as_ref().is_some_and(|high| last >= &high[..]) {
            return impossible("key that belongs to another node");
        }
        if node.level() == 0 {
            self.entries += node.count() as u64;
            return Ok(());
        }
        self.below.extend((0..node.count()).map(|at| Due {
            reference: node.child(at),
            level: due.level - 1,
            // The first child also has what is lower than its own key.
            low: if at == 0 { due.low.clone() } else { node.key(at).to_vec() },
            high: match at + 1 < node.count() {
                true => Some(node.key(at + 1).to_vec()),
                false => due.high.clone(),
            },
            generation: node.generation(),
        }));
        Ok(())
    }

    /// Nodes visited so far, and entries in the leaves among them.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.nodes, self.entries)
    }
}

/// What a check of the tree found.
#[derive(Debug, Default)]
pub struct Checked {
    /// Nodes that could be read.
    pub nodes: u64,
    /// Entries in the leaves that could be read.
    pub entries: u64,
    /// Bytes that these entries take, of the room in their leaves.
    pub used_bytes: u64,
    /// Room in the leaves that could be read.
    pub room_bytes: u64,
    /// What is wrong. What lies below a damaged node was not looked at.
    pub damages: Vec<IndexError>,
}

/// Which pages the tree uses.
pub(super) async fn used_nodes(
    store: &NodeStore,
    root: &RootRecord,
) -> Result<NodeSpace, IndexError> {
    let mut space = NodeSpace::new(&root.segments);
    let mut due: Vec<Reference> = root.root.into_iter().collect();
    let mut nodes = 0;
    for level in (0..root.height).rev() {
        for reference in &due {
            if !space.take(reference.page) {
                return Err(impossible(reference.page, "place of a node"));
            }
        }
        nodes += due.len() as u64;
        if level == 0 {
            break;
        }
        let mut below = Vec::new();
        for window in due.chunks(READS) {
            let loads = window.iter().map(|&reference| store.load(reference, level));
            for node in join_all(loads).await {
                let node = node?;
                below.extend((0..node.count()).map(|at| node.child(at)));
            }
        }
        due = below;
    }
    if nodes != root.nodes {
        let page = root.root.map_or(0, |reference| reference.page);
        return Err(impossible(page, "count of nodes"));
    }
    Ok(space)
}

impl Index {
    /// Reads every node of the newest checkpoint from the disk or the cache, and checks that each
    /// is where and what its parent says, that keys lie where a lookup goes, and that the record's
    /// counts are right. Damage is reported and gone round. May be dropped at its await.
    ///
    /// # Errors
    /// [`IndexError::Disk`]. Damage is no error but a finding.
    pub async fn check(&self) -> Result<Checked, IndexError> {
        let tree = Arc::clone(&self.state().root);
        let mut checked = Checked::default();
        let mut walk = Walk::new(&tree);
        loop {
            let window = walk.window(READS);
            if window.is_empty() {
                break;
            }
            let loads = window.iter().map(|due| self.store.load(due.reference, due.level));
            for (due, node) in window.iter().zip(join_all(loads).await) {
                let node = match node {
                    Ok(node) => node,
                    Err(damage @ IndexError::Damaged { .. }) => {
                        checked.damages.push(damage);
                        continue;
                    }
                    Err(error) => return Err(error),
                };
                match walk.visit(due, &node) {
                    Ok(()) => checked.measure(&node),
                    Err(source) => {
                        let page = due.reference.page;
                        checked.damages.push(IndexError::Damaged { page, source });
                    }
                }
            }
        }
        (checked.nodes, checked.entries) = walk.counts();
        let whole = checked.damages.is_empty();
        if whole && (checked.nodes, checked.entries) != (tree.nodes, tree.entries) {
            let page = self.first_root_page + RootRecord::slot(tree.generation);
            checked.damages.push(impossible(page, "count of nodes or entries"));
        }
        Ok(checked)
    }
}

impl Checked {
    /// How full a leaf is.
    fn measure(&mut self, node: &Node) {
        if node.level() > 0 {
            return;
        }
        self.room_bytes += ROOM as u64;
        let used = |at| room_of(node.key(at).len(), node.value(at).len()) as u64;
        self.used_bytes += (0..node.count()).map(used).sum::<u64>();
    }
}

fn impossible(page: u64, field: &'static str) -> IndexError {
    IndexError::Damaged { page, source: FormatError::Impossible { what: WHAT, field } }
}
