//! The index as the offline tools read it: single keys, and all of it in the order of its keys.

use std::{fmt, io};

use bytes::Bytes;
use millrace_types::TargetId;

use super::{PAGE, PageSource, in_parallel};
use crate::{
    format::{
        FormatError,
        node::{Node, Reference},
        root::RootRecord,
    },
    index::{Due, Walk},
};

/// Nodes read at once.
const WINDOW: usize = 64;

/// The tree that a root record names.
#[derive(Clone, Copy)]
pub struct Tree<'a> {
    /// Where it lies.
    pub source: &'a dyn PageSource,
    /// Whose it is.
    pub target: TargetId,
    /// Its top.
    pub root: &'a RootRecord,
}

/// A leaf, or another node, that cannot be read.
#[derive(Debug)]
pub struct Damaged {
    /// Where it should be, and what should be in it.
    pub due: Due,
    /// What is wrong with it.
    pub reason: Reason,
}

/// Why a node cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Reason {
    /// Its bytes are others.
    #[error(transparent)]
    Format(#[from] FormatError),
    /// The disk does not give them.
    #[error("the disk cannot read it: {0}")]
    Disk(#[from] io::Error),
}

/// A leaf that is sound and in its place.
#[derive(Debug)]
pub struct Leaf {
    /// Its page.
    pub page: u64,
    /// Its entries.
    pub node: Node,
}

impl fmt::Debug for Tree<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tree").field("target", &self.target).field("root", &self.root).finish()
    }
}

impl Tree<'_> {
    /// The value of a key.
    ///
    /// # Errors
    /// [`Damaged`], when a node on the way to it is.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, Damaged> {
        let Some(mut reference) = self.root.root else { return Ok(None) };
        for level in (0..self.root.height).rev() {
            let due = Due {
                reference,
                level,
                low: Vec::new(),
                high: None,
                generation: self.root.generation,
            };
            let node = match self.node(reference, level) {
                Ok(node) => node,
                Err(reason) => return Err(Damaged { due, reason }),
            };
            if level == 0 {
                return Ok(node.find(key).ok().map(|at| node.value(at)));
            }
            reference = node.child(node.route(key));
        }
        Ok(None)
    }

    /// Goes through all nodes in the order of their keys, and hands each leaf to `visit`, or what
    /// is damaged, which is gone round. Returns how many nodes and entries were found.
    pub fn walk(&self, mut visit: impl FnMut(Result<Leaf, Damaged>)) -> (u64, u64) {
        let mut walk = Walk::new(self.root);
        loop {
            let window = walk.window(WINDOW);
            if window.is_empty() {
                return walk.counts();
            }
            let nodes = in_parallel(&window, |due| self.node(due.reference, due.level));
            for (due, node) in window.into_iter().zip(nodes) {
                let visited = node.and_then(|node| {
                    walk.visit(&due, &node)?;
                    Ok(node)
                });
                match visited {
                    Ok(node) if node.level() > 0 => {}
                    Ok(node) => visit(Ok(Leaf { page: due.reference.page, node })),
                    Err(reason) => visit(Err(Damaged { due, reason })),
                }
            }
        }
    }

    fn node(&self, reference: Reference, level: u8) -> Result<Node, Reason> {
        let mut bytes = vec![0; PAGE];
        self.source.read(reference.page, &mut bytes)?;
        Ok(Node::decode(bytes.into(), self.target, reference, level)?)
    }
}
