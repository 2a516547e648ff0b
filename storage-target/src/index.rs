//! The index on disk: an ordered map from short keys to short values, in a copy-on-write B+tree of
//! 4 KiB nodes with a bounded cache.
//!
//! # What it guarantees
//! - **A checkpoint is whole or absent.** After a loss of power at any moment the index is that of
//!   the newest checkpoint that returned, or of the one that was being written. Which one it is,
//!   [`Statistics::through`] says: the journal is replayed from there.
//! - **Nothing wrong is ever returned.** Every node carries its place and a checksum, and its
//!   parent holds that checksum too; what does not match is an error, never an absent key.
//! - **Memory is bounded** by the cache's budget and the changes since the last checkpoint, however
//!   many entries there are.
//!
//! # How it works
//! Changes go to the *delta*, in memory; a lookup asks there first. The owner sets them aside
//! ([`Index::freeze`]) at a moment of its own journal and has them written
//! ([`Index::checkpoint`]): the tree is merged with them into nodes on free pages, everything is
//! synced, the root record is written twice and synced. Nodes that the new tree does not use are
//! free again when no reader of an older one is left. Nothing says which pages are free: opening
//! reads the inner nodes, which name every page in use, and which belong into the cache anyway.
//!
//! # What it never does
//! It gives no durability between checkpoints, which is the journal's part; it knows neither chunks
//! nor space beyond the segments that it was given.
//!
//! Modules in reading order: `delta`, `nodes` (free pages), `store` (reading and caching),
//! `merge` (pure), `checkpoint`, `obstacles` (what is in its way), `scan`, `survey` (for the
//! scrub), `walk` (opening and checking), `error`.

use std::{
    collections::VecDeque,
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use bytes::Bytes;
use millrace_types::TargetId;

use crate::{
    disk::{BufferPool, DiskQueue},
    format::{
        node::{Reference, VALUE_LEN_MAX},
        root::{RootRecord, SEGMENTS_MAX, Segment},
    },
};

mod checkpoint;
mod delta;
mod error;
mod merge;
mod nodes;
mod obstacles;
mod scan;
mod store;
mod survey;
#[cfg(test)]
mod tests;
mod walk;

pub use crate::format::key::Key;
pub use checkpoint::LostLeaf;
pub use error::IndexError;
pub use obstacles::Obstacle;
pub use scan::Scan;
pub use survey::{NodeDamage, Survey};
pub use walk::{Checked, Due, Walk};

use delta::{Change, Delta};
use nodes::NodeSpace;
use obstacles::Unread;
use store::NodeStore;

/// Where an index lies, and what it may use.
#[derive(Clone, Debug)]
pub struct Options {
    /// Whose index it is.
    pub target: TargetId,
    /// The disk.
    pub disk: DiskQueue,
    /// Memory for transfers: 16 KiB for each node being read, 256 KiB for a checkpoint.
    pub pool: BufferPool,
    /// The first of the four pages of the root records.
    pub first_root_page: u64,
    /// Bytes of nodes kept in memory; 1 MiB for each 100,000 small entries holds the inner nodes.
    pub cache_bytes: usize,
}

/// The index of a target.
pub struct Index {
    store: NodeStore,
    first_root_page: u64,
    state: Mutex<State>,
    unread: Mutex<Unread>,
    /// One checkpoint at a time.
    turn: tokio::sync::Mutex<()>,
}

#[derive(Debug)]
struct State {
    /// Changes that no checkpoint has.
    delta: Delta,
    /// Changes that the next checkpoint, or the one under way, will have.
    frozen: Option<Frozen>,
    root: Arc<RootRecord>,
    space: NodeSpace,
    /// Nodes that newer trees do not use, oldest first, each with the last tree that does.
    retired: VecDeque<Retired>,
    /// A root record may or may not be on the disk: only opening again can tell.
    uncertain: bool,
}

#[derive(Clone, Debug)]
struct Frozen {
    delta: Arc<Delta>,
    through: u64,
}

#[derive(Debug)]
struct Retired {
    tree: Weak<RootRecord>,
    nodes: Vec<Reference>,
}

/// An index's figures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Statistics {
    /// The newest checkpoint.
    pub generation: u64,
    /// The newest journal record that it contains.
    pub through: u64,
    /// Entries in the tree; the delta is not counted.
    pub entries: u64,
    /// Levels of the tree.
    pub height: u8,
    /// Nodes of the tree.
    pub nodes: u64,
    /// Pages that nodes can be written to now.
    pub free_nodes: u64,
    /// Memory of the changes that no checkpoint has.
    pub delta_bytes: usize,
    /// Memory of the nodes in the cache.
    pub cache_bytes: u64,
    /// Nodes read from the disk since the start.
    pub node_reads: u64,
}

impl Index {
    /// Makes an empty index. Durable on return.
    ///
    /// # Errors
    /// [`IndexError::Disk`].
    ///
    /// # Panics
    /// When the segments overlap or are too many.
    pub async fn create(options: Options, segments: &[Segment]) -> Result<Self, IndexError> {
        let space = NodeSpace::new(segments);
        let root = RootRecord {
            target: options.target,
            generation: 1,
            through: 0,
            root: None,
            height: 0,
            entries: 0,
            nodes: 0,
            segments: space.segments(),
        };
        let store = NodeStore::new(&options);
        checkpoint::write_first_root(&store, options.first_root_page, &root).await?;
        Ok(Self::new(store, options.first_root_page, root, space))
    }

    /// Opens an index: reads the root records and every inner node. Syncs the disk: the newest root
    /// may be that of a process which was killed before its sync, and what it gave up is written
    /// over from now on. A loss of power that took such a root away would leave the one before it,
    /// over nodes that are no longer its own.
    ///
    /// # Errors
    /// [`IndexError::NoIndex`] when no root record can be read; [`IndexError::Damaged`] when an
    /// inner node cannot; [`IndexError::Disk`].
    pub async fn open(options: Options) -> Result<Self, IndexError> {
        let store = NodeStore::new(&options);
        let root = checkpoint::newest_root(&store, options.first_root_page).await?;
        let space = walk::used_nodes(&store, &root).await?;
        store.disk.sync().await?;
        Ok(Self::new(store, options.first_root_page, root, space))
    }

    fn new(store: NodeStore, first_root_page: u64, root: RootRecord, space: NodeSpace) -> Self {
        let state = State {
            delta: Delta::default(),
            frozen: None,
            root: Arc::new(root),
            space,
            retired: VecDeque::new(),
            uncertain: false,
        };
        let (unread, turn) = (Mutex::default(), tokio::sync::Mutex::new(()));
        Self { store, first_root_page, state: Mutex::new(state), unread, turn }
    }

    /// The value of a key. May be dropped at its await.
    ///
    /// # Errors
    /// [`IndexError::Damaged`], [`IndexError::Disk`].
    pub async fn get(&self, key: &Key) -> Result<Option<Bytes>, IndexError> {
        let tree = {
            let state = self.state();
            if let Some(change) = state.change(key) {
                return Ok(change.clone());
            }
            Arc::clone(&state.root)
        };
        let Some(leaf) = self.store.leaf_of(&tree, key.as_slice()).await? else { return Ok(None) };
        Ok(leaf.find(key.as_slice()).ok().map(|at| leaf.value(at)))
    }

    /// Sets the value of a key. Durable with the checkpoint that contains it.
    ///
    /// # Panics
    /// When the value is longer than [`VALUE_LEN_MAX`].
    pub fn put(&self, key: Key, value: Bytes) {
        assert!(value.len() <= VALUE_LEN_MAX, "a value fits half a node");
        self.state().delta.insert(key, Some(value));
    }

    /// Removes a key, whether it is there or not. Durable likewise.
    pub fn remove(&self, key: Key) {
        self.state().delta.insert(key, None);
    }

    /// Sets the changes so far aside for the next checkpoint, as everything up to the owner's
    /// journal record `through`, which must be durable by then. Changes made later belong to the
    /// checkpoint after it. Returns false and does nothing when earlier ones are still waiting.
    ///
    /// # Panics
    /// When `through` is below that of an earlier checkpoint.
    pub fn freeze(&self, through: u64) -> bool {
        let mut state = self.state();
        assert!(through >= state.root.through, "the journal goes forward");
        if state.frozen.is_some() {
            return false;
        }
        let delta = Arc::new(std::mem::take(&mut state.delta));
        state.frozen = Some(Frozen { delta, through });
        true
    }

    /// How many segments more the root record can name. One that adjoins another is part of that.
    #[must_use]
    pub fn segments_left(&self) -> usize {
        SEGMENTS_MAX - self.state().space.segments().len()
    }

    /// Gives the index more room for nodes. Recorded by the next checkpoint.
    ///
    /// # Errors
    /// Gives the segment back when [`Self::segments_left`] is 0.
    ///
    /// # Panics
    /// When it overlaps another segment.
    pub fn extend(&self, segment: Segment) -> Result<(), Segment> {
        let mut state = self.state();
        if state.space.segments().len() == SEGMENTS_MAX {
            return Err(segment);
        }
        state.space.add(segment);
        Ok(())
    }

    /// Where nodes lie, with what was added since the last checkpoint.
    #[must_use]
    pub fn segments(&self) -> Vec<Segment> {
        self.state().space.segments()
    }

    /// Whether a root record may or may not be on the disk: there is no further checkpoint before
    /// the index has been opened again. Reading goes on.
    #[must_use]
    pub fn is_uncertain(&self) -> bool {
        self.state().uncertain
    }

    /// Memory of the changes that no checkpoint has.
    #[must_use]
    pub fn delta_bytes(&self) -> usize {
        self.state().delta_bytes()
    }

    /// The index's figures now.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        let state = self.state();
        Statistics {
            generation: state.root.generation,
            through: state.root.through,
            entries: state.root.entries,
            height: state.root.height,
            nodes: state.root.nodes,
            free_nodes: state.space.free(),
            delta_bytes: state.delta_bytes(),
            cache_bytes: self.store.cache_bytes(),
            node_reads: self.store.reads(),
        }
    }

    /// A panic elsewhere leaves the state whole: every change of it is one step.
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Likewise.
    fn unread(&self) -> MutexGuard<'_, Unread> {
        self.unread.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Index {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Index").field("statistics", &self.statistics()).finish()
    }
}

impl State {
    /// What the deltas say about a key.
    fn change(&self, key: &Key) -> Option<&Change> {
        let frozen = || self.frozen.as_ref().and_then(|frozen| frozen.delta.get(key));
        self.delta.get(key).or_else(frozen)
    }

    fn delta_bytes(&self) -> usize {
        self.delta.bytes() + self.frozen.as_ref().map_or(0, |frozen| frozen.delta.bytes())
    }

    /// Frees nodes that neither the tree nor a reader of an older one uses; returns them.
    fn release_retired(&mut self) -> Vec<Reference> {
        let mut released = Vec::new();
        while self.retired.front().is_some_and(|retired| retired.tree.strong_count() == 0) {
            let retired = self.retired.pop_front().expect("found a moment ago");
            for node in &retired.nodes {
                self.space.release(node.page);
            }
            released.extend(retired.nodes);
        }
        released
    }
}
