//! Circles of owners who wait for each other's ranges.
//!
//! A wait that closes one never ends, so it fails. Who waits for what it is no part of is of no
//! interest: in the middle of a circle stands only who both holds something and waits, which are
//! few even where very many hold, or very many wait.
//!
//! A search looks at each of those once, and follows what is waited for once, however many wait for
//! it. Somebody could still make waits of which each is for other bytes, and owners of which none
//! is in the way of any. So what an operation may look at has a bound; past it the answer is that
//! there is no circle. Then the wait is queued, and lasts until it is interrupted: a lock that can
//! be had is never refused. Linux looks at ten, with the same answer.

use std::collections::{BTreeMap, BTreeSet};

use millrace_types::InodeId;

use super::{
    inode::InodeLocks,
    piece::{Owner, Piece},
    steps,
};

/// Where a wait stands: the inode, and the number of its arrival.
pub(super) type Place = (InodeId, u64);

/// What owners have in the space of ranges.
#[derive(Debug, Default)]
pub(super) struct Owners {
    known: BTreeMap<Owner, Ties>,
    /// Those who hold something and wait.
    between: BTreeSet<Owner>,
}

#[derive(Debug, Default)]
struct Ties {
    /// Locks and reservations.
    held: usize,
    /// Waits that are queued.
    waits: BTreeSet<Place>,
}

impl Owners {
    /// The owner has `after` locks or reservations instead of `before`.
    pub(super) fn hold(&mut self, owner: Owner, before: usize, after: usize) {
        self.change(owner, |ties| ties.held = ties.held + after - before);
    }

    /// A wait is queued.
    pub(super) fn wait(&mut self, owner: Owner, place: Place) {
        self.change(owner, |ties| {
            ties.waits.insert(place);
        });
    }

    /// A wait is not queued any more.
    pub(super) fn end_wait(&mut self, owner: Owner, place: Place) {
        self.change(owner, |ties| {
            ties.waits.remove(&place);
        });
    }

    /// Whether the owner holds anything, or something is reserved for it.
    pub(super) fn holds(&self, owner: Owner) -> bool {
        self.known.get(&owner).is_some_and(|ties| ties.held > 0)
    }

    /// The waits of an owner that are queued.
    pub(super) fn waits(&self, owner: Owner) -> impl Iterator<Item = Place> + '_ {
        self.known.get(&owner).into_iter().flat_map(|ties| ties.waits.iter().copied())
    }

    #[cfg(test)]
    pub(super) fn is_empty(&self) -> bool {
        self.known.is_empty() && self.between.is_empty()
    }

    fn change(&mut self, owner: Owner, change: impl FnOnce(&mut Ties)) {
        let ties = self.known.entry(owner).or_default();
        change(ties);
        let (holds, waits) = (ties.held > 0, !ties.waits.is_empty());
        match holds && waits {
            true => drop(self.between.insert(owner)),
            false => drop(self.between.remove(&owner)),
        }
        if !holds && !waits {
            self.known.remove(&owner);
        }
    }
}

/// Looks for circles that an owner is part of.
#[derive(Debug)]
pub(super) struct Search<'a> {
    owner: Owner,
    inodes: &'a BTreeMap<InodeId, InodeLocks>,
    owners: &'a Owners,
    /// What this operation may still look at.
    left: &'a mut usize,
    /// Those that were met. Without a circle found, none of them waits for the owner.
    met: BTreeSet<Owner>,
    /// How many of those between others were not.
    unmet: usize,
    /// Which of them can be met in an inode, where there was a reason to ask that.
    unmet_in: BTreeMap<InodeId, Vec<Owner>>,
    /// What was followed.
    followed: BTreeSet<(InodeId, Piece)>,
    /// Those whose waits are to be followed.
    next: Vec<Owner>,
}

impl<'a> Search<'a> {
    pub(super) fn new(
        owner: Owner,
        inodes: &'a BTreeMap<InodeId, InodeLocks>,
        owners: &'a Owners,
        left: &'a mut usize,
    ) -> Self {
        let mut search = Self {
            owner,
            inodes,
            owners,
            left,
            met: BTreeSet::new(),
            unmet: 0,
            unmet_in: BTreeMap::new(),
            followed: BTreeSet::new(),
            next: Vec::new(),
        };
        search.begin();
        search
    }

    /// Forgets what was met.
    fn begin(&mut self) {
        self.met = BTreeSet::from([self.owner]);
        self.unmet = self.owners.between.len();
        self.unmet -= usize::from(self.owners.between.contains(&self.owner));
        self.unmet_in.clear();
        self.followed.clear();
        self.next.clear();
    }

    /// Whether somebody in the way of what the owner wants waits for the owner, however many wait
    /// between them.
    pub(super) fn is_circle(&mut self, inode: InodeId, wanted: Piece) -> bool {
        self.follow(inode, wanted);
        while let Some(holder) = self.next.pop() {
            for (inode, arrival) in self.owners.waits(holder) {
                let entry = self.inodes.get(&inode);
                let Some(wait) = entry.and_then(|entry| entry.wait(arrival)) else { continue };
                if !self.look() {
                    tracing::debug!(owner = ?self.owner, "too much to look for a deadlock");
                    return false;
                }
                if !self.followed.insert((inode, wait.piece)) {
                    continue;
                }
                if self.is_held_up(inode, self.owner, wait.piece) {
                    self.begin();
                    return true;
                }
                self.follow(inode, wait.piece);
            }
        }
        false
    }

    /// Meets all who are in the way of a piece and wait.
    fn follow(&mut self, inode: InodeId, wanted: Piece) {
        let Some(entry) = self.inodes.get(&inode) else { return };
        let mut holders = entry.excluding(wanted, None);
        // Past so many it is quicker to ask of each who can be met whether it is one of them.
        let most = self.unmet_in.get(&inode).map_or(self.unmet, Vec::len).min(self.unmet);
        for _ in 0..most {
            let Some(holder) = holders.next() else { return };
            if !self.look() {
                return;
            }
            self.meet(holder);
        }
        if most > 0 && holders.next().is_some() {
            self.ask_each(inode, entry, wanted);
        }
    }

    /// Meets those who are in the way of a piece, of all who can be met.
    fn ask_each(&mut self, inode: InodeId, entry: &InodeLocks, wanted: Piece) {
        let known = self.unmet_in.remove(&inode);
        let is_known = known.is_some();
        let asked = known.unwrap_or_else(|| self.owners.between.iter().copied().collect());
        let mut unmet = Vec::new();
        for holder in asked {
            if !self.look() {
                return;
            }
            if self.met.contains(&holder) || !(is_known || entry.has_ranges(holder)) {
                continue;
            }
            match self.is_held_up(inode, holder, wanted) {
                true => self.meet(holder),
                false => unmet.push(holder),
            }
        }
        self.unmet_in.insert(inode, unmet);
    }

    fn meet(&mut self, holder: Owner) {
        if self.owners.between.contains(&holder) && self.met.insert(holder) {
            self.unmet -= 1;
            self.next.push(holder);
        }
    }

    /// Whether a lock or a reservation of the holder is in the way of somebody else's piece.
    fn is_held_up(&mut self, inode: InodeId, holder: Owner, wanted: Piece) -> bool {
        let Some(entry) = self.inodes.get(&inode) else { return false };
        if entry.is_held_by(holder, wanted) {
            return true;
        }
        for reserved in entry.reserved_of(holder) {
            if !self.look() {
                return false;
            }
            if reserved.excludes(wanted) {
                return true;
            }
        }
        false
    }

    /// Counts what is looked at; `false` when it is enough.
    fn look(&mut self) -> bool {
        steps::look();
        let left = self.left.checked_sub(1);
        *self.left = left.unwrap_or(0);
        left.is_some()
    }
}
