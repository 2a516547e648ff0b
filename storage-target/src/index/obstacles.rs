//! Leaves that the next checkpoint needs and that cannot be read: which they are, and for how long.
//!
//! Damage stays. A page that the disk fails to read may come back in a moment, when a path has
//! failed over or a controller was reset. So it is remembered since when each look has met the
//! same page unreadable, and who asks decides for how long to wait for it.

use std::{
    collections::BTreeMap,
    sync::Arc,
    time::{Duration, Instant},
};

use futures::future::join_all;

use super::{
    Index, IndexError, Key,
    checkpoint::LOST_LEAF,
    delta::Change,
    merge::{Changed, divide},
};
use crate::format::{node::Reference, root::RootRecord};

/// Nodes read at once.
const READS: usize = 64;

/// Looks that are further apart say nothing about the time between them.
const APART_MAX: Duration = Duration::from_secs(150);

/// A leaf that changes belong to and that cannot be read.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Obstacle {
    /// Its page.
    pub page: u64,
    /// Whether all its changes may be lost.
    pub may_be_lost: bool,
    /// For how long the disk has failed to read it, at each look. `None`: it is damaged, or lost
    /// already.
    pub unread_for: Option<Duration>,
}

/// Pages that the disk has failed to read.
#[derive(Debug, Default)]
pub(super) struct Unread(BTreeMap<u64, Spell>);

#[derive(Clone, Copy, Debug)]
struct Spell {
    first: Instant,
    last: Instant,
}

impl Unread {
    /// Takes note of a look that has met these pages unreadable, and no others.
    fn note(&mut self, pages: &[u64], now: Instant) {
        let go_on = |spell: &Spell| now.saturating_duration_since(spell.last) <= APART_MAX;
        let before = std::mem::take(&mut self.0);
        self.0 = pages
            .iter()
            .map(|page| {
                let known = before.get(page).filter(|spell| go_on(spell));
                (*page, Spell { first: known.map_or(now, |spell| spell.first), last: now })
            })
            .collect();
    }

    fn since(&self, page: u64, now: Instant) -> Duration {
        self.0.get(&page).map_or(Duration::ZERO, |spell| now.saturating_duration_since(spell.first))
    }
}

/// What came of the look at one leaf.
struct Met {
    page: u64,
    may_be_lost: bool,
    is_unread: bool,
}

impl Index {
    /// Looks at every leaf that a change belongs to which no checkpoint has; returns those that
    /// cannot be read. Run it while no checkpoint is under way. May be dropped at its await.
    ///
    /// # Errors
    /// [`IndexError::Damaged`] and [`IndexError::Disk`] where a node on the way to a leaf cannot be
    /// read, or the disk has ended.
    pub async fn obstacles(
        &self,
        may_lose: fn(&Key) -> bool,
        now: Instant,
    ) -> Result<Vec<Obstacle>, IndexError> {
        let (tree, keys) = {
            let state = self.state();
            let frozen = state.frozen.iter().flat_map(|frozen| frozen.delta.iter());
            let mut keys: Vec<Key> =
                frozen.chain(state.delta.iter()).map(|(key, _)| *key).collect();
            keys.sort_unstable();
            keys.dedup();
            (Arc::clone(&state.root), keys)
        };
        // What is put there does not matter here.
        let value: Change = None;
        let changes: Vec<Changed<'_>> = keys.iter().map(|key| (key, &value)).collect();
        let leaves = self.leaves_of(&tree, &changes).await?;
        let mut met = Vec::new();
        for window in leaves.chunks(READS) {
            met.extend(self.look_at(window, may_lose).await?);
        }
        let unread: Vec<u64> =
            met.iter().filter(|leaf| leaf.is_unread).map(|leaf| leaf.page).collect();
        let mut known = self.unread();
        known.note(&unread, now);
        let obstacle = |Met { page, may_be_lost, is_unread }| {
            let unread_for = is_unread.then(|| known.since(page, now));
            Obstacle { page, may_be_lost, unread_for }
        };
        Ok(met.into_iter().map(obstacle).collect())
    }

    /// The leaves that changes belong to, each with its part of them.
    async fn leaves_of<'c, 'a>(
        &self,
        tree: &RootRecord,
        changes: &'c [Changed<'a>],
    ) -> Result<Vec<(Reference, &'c [Changed<'a>])>, IndexError> {
        let root = tree.root.filter(|_| !changes.is_empty());
        let mut due: Vec<_> = root.map(|root| (root, changes)).into_iter().collect();
        for level in (1..tree.height).rev() {
            let mut below = Vec::new();
            for window in due.chunks(READS) {
                let loads = window.iter().map(|&(node, _)| self.store.load(node, level));
                for (&(_, part), node) in window.iter().zip(join_all(loads).await) {
                    let node = node?;
                    let parts = divide(&node, part).into_iter();
                    below.extend(parts.map(|(at, part)| (node.child(at), part)));
                }
            }
            due = below;
        }
        Ok(due)
    }

    /// Those of some leaves that cannot be read.
    async fn look_at(
        &self,
        leaves: &[(Reference, &[Changed<'_>])],
        may_lose: fn(&Key) -> bool,
    ) -> Result<Vec<Met>, IndexError> {
        let loads = leaves.iter().map(|&(leaf, _)| self.store.load(leaf, 0));
        let mut met = Vec::new();
        for (&(leaf, part), loaded) in leaves.iter().zip(join_all(loads).await) {
            let Err(error) = loaded else { continue };
            if !error.is_unreadable() {
                return Err(error);
            }
            // What lies on the page of a leaf that is lost does not matter any more.
            let is_unread = error.is_failed_read() && leaf.checksum != LOST_LEAF;
            let may_be_lost = part.iter().all(|(key, _)| may_lose(key));
            met.push(Met { page: leaf.page, may_be_lost, is_unread });
        }
        Ok(met)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_is_unread_since_the_first_of_the_looks_that_met_it_so_without_a_gap() {
        let begun = Instant::now();
        let at = |seconds| begun + Duration::from_secs(seconds);
        let since = |unread: &Unread, page, seconds| unread.since(page, at(seconds)).as_secs();
        let mut unread = Unread::default();
        unread.note(&[1, 2], at(0));
        unread.note(&[1, 3], at(100));
        unread.note(&[1, 2, 3], at(200));
        assert_eq!([1, 2, 3].map(|page| since(&unread, page, 200)), [200, 0, 100]);
        // It was read in between, or nobody has looked for long.
        unread.note(&[3], at(340));
        unread.note(&[1, 3], at(341));
        assert_eq!([1, 3].map(|page| since(&unread, page, 341)), [0, 241]);
        unread.note(&[1, 3], at(600));
        assert_eq!([1, 2, 3].map(|page| since(&unread, page, 600)), [0; 3]);
    }
}
