//! Going through a whole tree: at each start through its inner nodes, to learn which pages are in
//! use; and through all of it, to check it.

use std::sync::Arc;

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

/// A node that is to be read, and the keys that may be below it.
#[derive(Clone, Debug)]
struct Due {
    reference: Reference,
    /// Nothing below may be lower.
    low: Vec<u8>,
    /// Everything below must be lower; `None` on the right edge.
    high: Option<Vec<u8>>,
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
        let mut due: Vec<Due> = tree
            .root
            .iter()
            .map(|&reference| Due { reference, low: Vec::new(), high: None })
            .collect();
        for level in (0..tree.height).rev() {
            let mut below = Vec::new();
            for window in due.chunks(READS) {
                let loads = window.iter().map(|due| self.store.load(due.reference, level));
                for (due, node) in window.iter().zip(join_all(loads).await) {
                    match node {
                        Ok(node) => checked.visit(due, &node, &mut below),
                        Err(damage @ IndexError::Damaged { .. }) => checked.damages.push(damage),
                        Err(error) => return Err(error),
                    }
                }
            }
            due = below;
        }
        let whole = checked.damages.is_empty();
        if whole && (checked.nodes, checked.entries) != (tree.nodes, tree.entries) {
            let page = self.first_root_page + RootRecord::slot(tree.generation);
            checked.damages.push(impossible(page, "count of nodes or entries"));
        }
        Ok(checked)
    }
}

impl Checked {
    fn visit(&mut self, due: &Due, node: &Node, below: &mut Vec<Due>) {
        self.nodes += 1;
        let (first, last) = (node.key(0), node.key(node.count() - 1));
        if first < &due.low[..] || due.high.as_ref().is_some_and(|high| last >= &high[..]) {
            self.damages.push(impossible(due.reference.page, "key that belongs to another node"));
            return;
        }
        if node.level() > 0 {
            below.extend((0..node.count()).map(|at| Due {
                reference: node.child(at),
                // The first child also has what is lower than its own key.
                low: if at == 0 { due.low.clone() } else { node.key(at).to_vec() },
                high: match at + 1 < node.count() {
                    true => Some(node.key(at + 1).to_vec()),
                    false => due.high.clone(),
                },
            }));
            return;
        }
        self.entries += node.count() as u64;
        self.room_bytes += ROOM as u64;
        let used = |at| room_of(node.key(at).len(), node.value(at).len()) as u64;
        self.used_bytes += (0..node.count()).map(used).sum::<u64>();
    }
}

fn impossible(page: u64, field: &'static str) -> IndexError {
    IndexError::Damaged { page, source: FormatError::Impossible { what: WHAT, field } }
}
