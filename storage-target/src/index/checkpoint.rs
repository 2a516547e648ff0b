//! Writing a new tree beside the old one, and the root records.
//!
//! The order is what the guarantee rests on:
//! 1. nodes go to pages that no tree uses which can still be read;
//! 2. a sync;
//! 3. the root record goes to both slots of its generation;
//! 4. a sync: from here on the new tree counts, and what only the old one used is retired.
//!
//! A failure before step 3 leaves everything as it was. A failure in step 3 or 4 leaves a record
//! that may or may not be on the disk: no page of either tree may be used again, so the index takes
//! no further checkpoint until it has been opened again.

use std::{collections::BTreeSet, sync::Arc};

use bytes::Bytes;
use futures::future::{BoxFuture, join_all};
use millrace_types::Crc32c;

use super::{
    Frozen, Index, IndexError, Key, Retired,
    merge::{Changed, Entry, ROOM_USED_MIN, cut, divide, entries_of, merge, room},
    store::NodeStore,
};
use crate::{
    disk::Piece,
    format::{
        FormatError,
        node::{NODE_LEN, Node, NodeHeader, Reference, encode_node},
        root::{ROOT_LEN, ROOT_SLOTS, RootRecord},
    },
};

/// Nodes written with one request: 256 KiB, which is near what a drive writes best.
const NODES_PER_WRITE: usize = 64;

impl Index {
    /// Writes what [`Self::freeze`] set aside; does nothing when there is nothing. Durable on
    /// return. Waits while another checkpoint is being written.
    ///
    /// # Cancellation
    /// Run it in a task of its own: dropped in the middle, it leaves the index taking no further
    /// checkpoint until it is opened again.
    ///
    /// # Errors
    /// After [`IndexError::Full`], [`IndexError::Damaged`] and errors of the disk before the root
    /// record, the changes are back among those that no checkpoint has, and it can be tried again.
    /// [`IndexError::Uncertain`] lasts until the index is opened again, and so does a failed sync
    /// of the disk, whoever asked for it; reading goes on.
    pub async fn checkpoint(&self) -> Result<(), IndexError> {
        self.checkpoint_round(&BTreeSet::new(), |_| false).await.map(drop)
    }

    /// As [`Self::checkpoint`], but goes round those of the leaves on these pages that cannot be
    /// read (see [`Self::obstacles`]), where all changes that belong to them are of keys that may
    /// be lost. These changes are dropped, and every key that belongs to such a leaf is
    /// [`IndexError::Damaged`] for good, also when the disk reads it again: what it holds is older
    /// than what was dropped.
    ///
    /// # Errors
    /// As [`Self::checkpoint`].
    pub async fn checkpoint_round(
        &self,
        given_up: &BTreeSet<u64>,
        may_lose: fn(&Key) -> bool,
    ) -> Result<Vec<LostLeaf>, IndexError> {
        let _turn = self.turn.lock().await;
        let (frozen, old) = {
            let mut state = self.state();
            if state.uncertain {
                return Err(IndexError::Uncertain);
            }
            let released = state.release_retired();
            self.store.forget(&released);
            let Some(frozen) = state.frozen.clone() else { return Ok(Vec::new()) };
            (frozen, Arc::clone(&state.root))
        };
        let mut attempt = Attempt::new(self, old.generation + 1, given_up, may_lose);
        match attempt.write_tree(&old, &frozen).await {
            Ok(new) => {
                // From here on a failure, or being dropped, leaves the outcome open.
                write_root(&self.store, self.first_root_page, &new).await?;
                let (retired, lost) = attempt.finish();
                self.install(new, old, retired);
                Ok(lost)
            }
            Err(error) => {
                attempt.give_up();
                Err(error)
            }
        }
    }

    fn install(&self, new: RootRecord, old: Arc<RootRecord>, retired: Vec<Reference>) {
        let mut state = self.state();
        state.root = Arc::new(new);
        state.frozen = None;
        state.retired.push_back(Retired { tree: Arc::downgrade(&old), nodes: retired });
        // The last handle, unless somebody reads the old tree.
        drop(old);
        let released = state.release_retired();
        drop(state);
        self.store.forget(&released);
    }
}

/// A leaf that could not be read, and that changes belonged to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct LostLeaf {
    /// Its page.
    pub page: u64,
    /// The lowest key of which a change was dropped.
    pub first: Key,
    /// How many changes were dropped.
    pub changes: usize,
    /// What is wrong with it.
    pub reason: String,
}

/// The checksum by which a parent names a leaf that shall not be read any more. Of all nodes ever
/// written one in 2^32 has it, and such a one would have to come back to this very page.
pub(super) const LOST_LEAF: Crc32c = Crc32c(u32::from_le_bytes(*b"lost"));

/// A tree being written. Unless it is finished or given up, its outcome is uncertain.
struct Attempt<'a> {
    index: &'a Index,
    generation: u64,
    /// Pages taken for new nodes.
    taken: Vec<u64>,
    /// Nodes of the old tree that the new one does not use.
    retired: Vec<Reference>,
    /// Entries that leaves have gained, and lost.
    gained: u64,
    lost: u64,
    /// Pages of leaves that may be gone round where they cannot be read.
    given_up: &'a BTreeSet<u64>,
    /// Keys whose changes may be dropped with such a leaf.
    may_lose: fn(&Key) -> bool,
    /// Leaves that were gone round.
    lost_leaves: Vec<LostLeaf>,
    /// Nodes encoded and not written yet.
    waiting: Vec<Reference>,
    bytes: Vec<u8>,
    over: bool,
}

/// A child of an inner node that is being written anew.
enum Child {
    Kept(Key, Reference),
    Changed(Key, Vec<Entry>),
}

impl<'a> Attempt<'a> {
    fn new(
        index: &'a Index,
        generation: u64,
        given_up: &'a BTreeSet<u64>,
        may_lose: fn(&Key) -> bool,
    ) -> Self {
        Self {
            index,
            generation,
            taken: Vec::new(),
            retired: Vec::new(),
            gained: 0,
            lost: 0,
            given_up,
            may_lose,
            lost_leaves: Vec::new(),
            waiting: Vec::new(),
            bytes: Vec::new(),
            over: false,
        }
    }

    /// Writes and syncs the nodes of the new tree; returns its record, which nothing has yet.
    async fn write_tree(
        &mut self,
        old: &RootRecord,
        frozen: &Frozen,
    ) -> Result<RootRecord, IndexError> {
        let changes: Vec<Changed<'_>> = frozen.delta.iter().collect();
        let (root, height) = self.build(old, &changes).await?;
        self.flush().await?;
        let store = &self.index.store;
        store.disk.sync().await?;
        let nodes = old.nodes + self.taken.len() as u64 - self.retired.len() as u64;
        assert_eq!(root.is_some(), nodes > 0, "an empty tree has no nodes");
        Ok(RootRecord {
            target: store.target,
            generation: self.generation,
            through: frozen.through,
            root,
            height,
            entries: old.entries + self.gained - self.lost,
            nodes,
            segments: self.index.state().space.segments(),
        })
    }

    async fn build(
        &mut self,
        old: &RootRecord,
        changes: &[Changed<'_>],
    ) -> Result<(Option<Reference>, u8), IndexError> {
        if changes.is_empty() {
            return Ok((old.root, old.height));
        }
        let (mut entries, mut level) = match old.root {
            Some(root) => {
                let node = self.index.store.load(root, old.height - 1).await?;
                self.retired.push(root);
                (self.contents(node, changes).await?, old.height - 1)
            }
            None => {
                let entries = merge(None, changes);
                self.gained += entries.len() as u64;
                (entries, 0)
            }
        };
        loop {
            if entries.is_empty() {
                return Ok((None, 0));
            }
            if level > 0 && entries.len() == 1 {
                // A node with one child is no node: the child takes its place.
                let child = Reference::decode(&entries[0].value).expect("an inner entry");
                return Ok((Some(child), level));
            }
            let nodes = self.write_nodes(level, &entries).await?;
            if let [(_, root)] = nodes[..] {
                return Ok((Some(root), level + 1));
            }
            entries = nodes.into_iter().map(|(key, child)| inner_entry(key, child)).collect();
            level += 1;
        }
    }

    /// What a node shall contain after the changes below it, whose new nodes are written. The
    /// caller has retired it.
    fn contents<'b>(
        &'b mut self,
        node: Node,
        changes: &'b [Changed<'b>],
    ) -> BoxFuture<'b, Result<Vec<Entry>, IndexError>> {
        Box::pin(async move {
            let Some(level) = node.level().checked_sub(1) else {
                let merged = merge(Some(&node), changes);
                self.gained += merged.len() as u64;
                self.lost += node.count() as u64;
                return Ok(merged);
            };
            let mut children: Vec<Child> = entries_of(&node)
                .enumerate()
                .map(|(at, entry)| Child::Kept(entry.key, node.child(at)))
                .collect();
            let parts = divide(&node, changes);
            let store = &self.index.store;
            let loads = parts.iter().map(|&(at, _)| store.load(node.child(at), level));
            let loaded = join_all(loads).await;
            for ((at, part), child) in parts.into_iter().zip(loaded) {
                let Child::Kept(key, _) = children[at] else { unreachable!("changed once") };
                let child = match child {
                    Ok(child) => child,
                    Err(error) => {
                        let lost = self.go_round(node.child(at), level, part, error)?;
                        children[at] = Child::Kept(key, lost);
                        continue;
                    }
                };
                self.retired.push(node.child(at));
                let entries = self.contents(child, part).await?;
                children[at] = Child::Changed(key, entries);
            }
            self.join_small(&mut children, level).await?;
            self.write_children(level, children).await
        })
    }

    /// Drops the changes below a node that cannot be read, if it is a leaf that was given up and
    /// they may be lost; returns how its parent names it from now on.
    fn go_round(
        &mut self,
        node: Reference,
        level: u8,
        changes: &[Changed<'_>],
        error: IndexError,
    ) -> Result<Reference, IndexError> {
        let is_given_up = level == 0 && self.given_up.contains(&node.page);
        let may_lose = changes.iter().all(|(key, _)| (self.may_lose)(key));
        if !is_given_up || !error.is_unreadable() || !may_lose {
            return Err(error);
        }
        let first = *changes.first().expect("a part has changes").0;
        let (page, changes, reason) = (node.page, changes.len(), error.to_string());
        self.lost_leaves.push(LostLeaf { page, first, changes, reason });
        Ok(Reference { page, checksum: LOST_LEAF })
    }

    /// Drops children without entries, and joins those that have few with a neighbour.
    async fn join_small(&mut self, children: &mut Vec<Child>, level: u8) -> Result<(), IndexError> {
        children.retain(|child| !matches!(child, Child::Changed(_, entries) if entries.is_empty()));
        let mut at = 0;
        while at < children.len() {
            let small = match &children[at] {
                Child::Kept(..) => false,
                Child::Changed(_, entries) => room(entries) < ROOM_USED_MIN,
            };
            if !small || children.len() == 1 {
                at += 1;
                continue;
            }
            let Some(low) = self.pair(children, at, level).await? else {
                at += 1;
                continue;
            };
            let high = children.remove(low + 1);
            let (_, more) = self.take(high, level).await?;
            let kept = std::mem::replace(&mut children[low], Child::Changed(key_of(&more), more));
            let (key, mut joined) = self.take(kept, level).await?;
            let Child::Changed(_, more) = &mut children[low] else { unreachable!("put there") };
            joined.append(more);
            children[low] = Child::Changed(key, joined);
            // It may still be small.
            at = low;
        }
        Ok(())
    }

    /// The lower one of a child and the neighbour that it can be joined with: one that cannot be
    /// read stays where it is, and says so to who asks for its keys.
    async fn pair(
        &self,
        children: &[Child],
        at: usize,
        level: u8,
    ) -> Result<Option<usize>, IndexError> {
        let neighbours = [at + 1, at.wrapping_sub(1)];
        for other in neighbours.into_iter().filter(|&other| other < children.len()) {
            if let Child::Kept(_, reference) = children[other] {
                match self.index.store.load(reference, level).await {
                    Err(error) if error.is_unreadable() => continue,
                    loaded => drop(loaded?),
                }
            }
            return Ok(Some(at.min(other)));
        }
        Ok(None)
    }

    /// The entries of a child, which is then written anew or not at all.
    async fn take(&mut self, child: Child, level: u8) -> Result<(Key, Vec<Entry>), IndexError> {
        match child {
            Child::Changed(key, entries) => Ok((key, entries)),
            Child::Kept(key, reference) => {
                let node = self.index.store.load(reference, level).await?;
                self.retired.push(reference);
                Ok((key, entries_of(&node).collect()))
            }
        }
    }

    /// Writes the changed children; returns the entries of their parent.
    async fn write_children(
        &mut self,
        level: u8,
        children: Vec<Child>,
    ) -> Result<Vec<Entry>, IndexError> {
        let mut contents = Vec::with_capacity(children.len() + 1);
        for child in children {
            match child {
                Child::Kept(key, reference) => contents.push(inner_entry(key, reference)),
                Child::Changed(key, entries) => {
                    let nodes = self.write_nodes(level, &entries).await?;
                    for (nth, (first, reference)) in nodes.into_iter().enumerate() {
                        // The first keeps its old key, below which nothing else can be, so that
                        // keys of inner nodes change seldom.
                        let key = if nth == 0 { first.min(key) } else { first };
                        contents.push(inner_entry(key, reference));
                    }
                }
            }
        }
        Ok(contents)
    }

    /// Cuts entries into nodes and has them written; returns the first key of each.
    async fn write_nodes(
        &mut self,
        level: u8,
        entries: &[Entry],
    ) -> Result<Vec<(Key, Reference)>, IndexError> {
        let mut nodes = Vec::new();
        for range in cut(entries) {
            let entries = &entries[range];
            let page = self.index.state().space.allocate().ok_or(IndexError::Full)?;
            self.taken.push(page);
            let store = &self.index.store;
            let header =
                NodeHeader { target: store.target, page, generation: self.generation, level };
            let start = self.bytes.len();
            self.bytes.resize(start + NODE_LEN, 0);
            let pairs = entries.iter().map(|entry| (entry.key.as_slice(), &entry.value[..]));
            let checksum = encode_node(header, pairs, &mut self.bytes[start..]);
            let reference = Reference { page, checksum };
            // Checked on the way out as on the way in: what cannot be read is never written.
            let bytes = Bytes::copy_from_slice(&self.bytes[start..]);
            let node = Node::decode(bytes, store.target, reference, level)
                .expect("a node reads back as it was made");
            store.keep(reference, node);
            self.waiting.push(reference);
            nodes.push((entries[0].key, reference));
            if self.waiting.len() == NODES_PER_WRITE {
                self.flush().await?;
            }
        }
        Ok(nodes)
    }

    /// Writes the nodes that wait.
    async fn flush(&mut self) -> Result<(), IndexError> {
        let pages = self.waiting.drain(..).map(|reference| reference.page);
        write_pages(&self.index.store, pages, &self.bytes).await?;
        self.bytes.clear();
        Ok(())
    }

    /// The tree counts: its pages stay taken. Returns what the old one alone used, and what was
    /// gone round.
    fn finish(mut self) -> (Vec<Reference>, Vec<LostLeaf>) {
        self.over = true;
        (std::mem::take(&mut self.retired), std::mem::take(&mut self.lost_leaves))
    }

    /// Nothing of it counts: its pages are free, its changes wait for the next attempt.
    fn give_up(mut self) {
        self.over = true;
        let mut state = self.index.state();
        for &page in &self.taken {
            state.space.release(page);
        }
        let Some(frozen) = state.frozen.take() else { return };
        let newer = std::mem::take(&mut state.delta);
        state.delta = Arc::unwrap_or_clone(frozen.delta);
        state.delta.overlay(newer);
    }
}

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        if !self.over {
            self.index.state().uncertain = true;
        }
    }
}

fn key_of(entries: &[Entry]) -> Key {
    entries.first().expect("children without entries are dropped before").key
}

fn inner_entry(key: Key, child: Reference) -> Entry {
    Entry { key, value: Bytes::copy_from_slice(&child.encode()) }
}

/// Writes pages, joined where they adjoin.
async fn write_pages(
    store: &NodeStore,
    pages: impl Iterator<Item = u64>,
    bytes: &[u8],
) -> Result<(), IndexError> {
    if bytes.is_empty() {
        return Ok(());
    }
    let mut pieces: Vec<Piece> = Vec::new();
    for (nth, page) in pages.enumerate() {
        let offset = page * NODE_LEN as u64;
        let range = nth * NODE_LEN..(nth + 1) * NODE_LEN;
        match pieces.last_mut() {
            Some(last) if last.offset + last.range.len() as u64 == offset => {
                last.range.end = range.end;
            }
            _ => pieces.push(Piece { offset, range }),
        }
    }
    let mut buffer = store.pool.acquire(bytes.len()).await;
    buffer.as_mut_slice()[..bytes.len()].copy_from_slice(bytes);
    store.disk.write(pieces, Arc::new(buffer)).await?;
    Ok(())
}

/// Writes both copies of a root record, and syncs.
async fn write_root(
    store: &NodeStore,
    first_page: u64,
    root: &RootRecord,
) -> Result<(), IndexError> {
    let copies = root.encode().repeat(2);
    let slot = first_page + RootRecord::slot(root.generation);
    write_pages(store, slot..slot + 2, &copies).await?;
    store.disk.sync().await?;
    Ok(())
}

/// Writes the first root record, and wipes what may have been in the other slots.
pub(super) async fn write_first_root(
    store: &NodeStore,
    first_page: u64,
    root: &RootRecord,
) -> Result<(), IndexError> {
    let other = first_page + RootRecord::slot(root.generation + 1);
    write_pages(store, other..other + 2, &[0; 2 * ROOT_LEN]).await?;
    write_root(store, first_page, root).await
}

/// The root record that counts.
pub(super) async fn newest_root(
    store: &NodeStore,
    first_page: u64,
) -> Result<RootRecord, IndexError> {
    let slots = usize::try_from(ROOT_SLOTS).expect("four");
    let bytes = store.read(first_page, slots).await?;
    let mut newest: Result<RootRecord, FormatError> = Err(FormatError::Magic("an index root"));
    for (nth, slot) in bytes.chunks_exact(ROOT_LEN).enumerate() {
        let found = RootRecord::decode(slot, store.target);
        let better = match (&newest, &found) {
            (Ok(known), Ok(found)) => found.generation > known.generation,
            (Err(_), Ok(_)) => true,
            (Err(_), Err(_)) => nth == 0,
            (Ok(_), Err(_)) => false,
        };
        if better {
            newest = found;
        }
    }
    newest.map_err(|source| IndexError::NoIndex { page: first_page, source })
}
