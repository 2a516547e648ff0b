//! Reading nodes: from the cache, or from the disk, checked.

use std::{
    hash::{BuildHasherDefault, DefaultHasher},
    sync::atomic::{AtomicU64, Ordering},
};

use bytes::Bytes;
use millrace_types::TargetId;
use quick_cache::{OptionsBuilder, Weighter, sync::Cache};

use super::{IndexError, Options};
use crate::{
    disk::{BufferPool, DiskQueue, Piece},
    format::{
        FormatError,
        node::{NODE_LEN, Node, Reference},
        root::RootRecord,
    },
};

/// What a cached node costs beside its bytes.
const OVERHEAD_BYTES: u64 = 160;

/// The cache is cut into parts with a lock each.
const SHARDS: usize = 8;

/// The same in every process, so that a simulation can be repeated.
type HashBuilder = BuildHasherDefault<DefaultHasher>;

/// Nodes by reference: since a reference holds the checksum, an entry is never stale, even after
/// its page has been used again.
type NodeCache = Cache<Reference, Node, ByMemory, HashBuilder>;

/// Reads and keeps nodes of one index.
#[derive(Debug)]
pub(super) struct NodeStore {
    pub(super) target: TargetId,
    pub(super) disk: DiskQueue,
    pub(super) pool: BufferPool,
    cache: NodeCache,
    reads: AtomicU64,
}

#[derive(Clone, Debug)]
struct ByMemory;

impl Weighter<Reference, Node> for ByMemory {
    fn weight(&self, _: &Reference, _: &Node) -> u64 {
        NODE_LEN as u64 + OVERHEAD_BYTES
    }
}

impl NodeStore {
    pub(super) fn new(options: &Options) -> Self {
        let weight = options.cache_bytes as u64;
        let nodes = options.cache_bytes / NODE_LEN;
        let cache_options = OptionsBuilder::new()
            .estimated_items_capacity(nodes.max(SHARDS))
            .weight_capacity(weight)
            .shards(SHARDS)
            .build()
            .expect("both capacities are given");
        Self {
            target: options.target,
            disk: options.disk.clone(),
            pool: options.pool.clone(),
            cache: Cache::with_options(
                cache_options,
                ByMemory,
                HashBuilder::default(),
                quick_cache::sync::DefaultLifecycle::default(),
            ),
            reads: AtomicU64::new(0),
        }
    }

    /// The node that a reference names. Callers that ask for it at the same time share one read.
    pub(super) async fn load(&self, reference: Reference, level: u8) -> Result<Node, IndexError> {
        let node = match self.cache.get(&reference) {
            Some(node) => node,
            // Boxed, because the state of a read would make that of every request large, and most
            // of them find their nodes in the cache.
            None => {
                let read = self.read_node(reference, level);
                Box::pin(self.cache.get_or_insert_async(&reference, read)).await?
            }
        };
        if node.level() == level {
            return Ok(node);
        }
        let source = FormatError::Impossible { what: "an index node", field: "level" };
        Err(IndexError::Damaged { page: reference.page, source })
    }

    /// Reads a node from the disk, whether the cache has it or not.
    pub(super) async fn read_node(
        &self,
        reference: Reference,
        level: u8,
    ) -> Result<Node, IndexError> {
        self.reads.fetch_add(1, Ordering::Relaxed);
        let bytes = self.read(reference.page, 1).await?;
        Node::decode(bytes, self.target, reference, level)
            .map_err(|source| IndexError::Damaged { page: reference.page, source })
    }

    /// Reads pages of the disk.
    pub(super) async fn read(&self, page: u64, count: usize) -> Result<Bytes, IndexError> {
        let len = count * NODE_LEN;
        let buffer = self.pool.acquire(len).await;
        let piece = Piece { offset: page * NODE_LEN as u64, range: 0..len };
        let buffer = self.disk.read(vec![piece], buffer).await?;
        // Copied, because the pool's smallest buffer is four times a node.
        Ok(Bytes::copy_from_slice(&buffer.as_slice()[..len]))
    }

    /// The leaf in which a key is, if it is in the tree.
    pub(super) async fn leaf_of(
        &self,
        tree: &RootRecord,
        key: &[u8],
    ) -> Result<Option<Node>, IndexError> {
        let Some(mut reference) = tree.root else { return Ok(None) };
        for level in (1..tree.height).rev() {
            let node = self.load(reference, level).await?;
            reference = node.child(node.route(key));
        }
        Ok(Some(self.load(reference, 0).await?))
    }

    /// The leaf in which a key is, if it is in the tree, and the lowest key of the next leaf.
    pub(super) async fn leaf(
        &self,
        tree: &RootRecord,
        key: &[u8],
    ) -> Result<Option<(Node, Option<Vec<u8>>)>, IndexError> {
        let Some(mut reference) = tree.root else { return Ok(None) };
        let mut next = None;
        for level in (1..tree.height).rev() {
            let node = self.load(reference, level).await?;
            let at = node.route(key);
            if at + 1 < node.count() {
                next = Some(node.key(at + 1).to_vec());
            }
            reference = node.child(at);
        }
        Ok(Some((self.load(reference, 0).await?, next)))
    }

    /// A node, if the cache has it.
    pub(super) fn cached(&self, reference: Reference) -> Option<Node> {
        self.cache.get(&reference)
    }

    /// Keeps a node that has just been written.
    pub(super) fn keep(&self, reference: Reference, node: Node) {
        self.cache.insert(reference, node);
    }

    /// Drops nodes that nobody will ask for again.
    pub(super) fn forget(&self, references: &[Reference]) {
        for reference in references {
            self.cache.remove(reference);
        }
    }

    pub(super) fn cache_bytes(&self) -> u64 {
        self.cache.weight()
    }

    pub(super) fn reads(&self) -> u64 {
        self.reads.load(Ordering::Relaxed)
    }
}
