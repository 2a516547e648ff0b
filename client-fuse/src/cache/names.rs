//! Names and attributes that the metadata server has covered with a lease.
//!
//! Owns what is kept, bounded by bytes, and the rules by which it counts. Knows neither the server
//! nor the kernel, which is told to keep nothing: it asks here each time.
//!
//! What is kept carries a *note*: a mark of the moment before its request was sent. Whatever is
//! taken back, or changed by this mount itself, is stamped with a later one ([`Stamps`]). So an
//! answer that was overtaken on its way by a recall never counts, and forgetting is one number that
//! rises: nothing has to be found first.
//!
//! Where a name leads is also remembered when no lease covers it, as a hint: who removes or moves a
//! name here must know whose attributes change with it.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use millrace_protocol::{
    lease::Recall,
    metadata::{Attributes, FileKind},
};
use millrace_types::{FileName, InodeId, SessionId, Timestamp};
use quick_cache::{Weighter, sync::Cache};
use tokio::sync::Notify;

use stamps::{Note, Stamps};
use whole::{Known, Whole};

mod shown;
pub(crate) mod stamps;
mod whole;

/// What one mount keeps.
#[derive(Debug)]
pub(crate) struct Names {
    names: Cache<(InodeId, FileName), Name, Weight>,
    attributes: Cache<InodeId, Kept, Weight>,
    /// Directories of which all names were known at a moment.
    whole: Cache<InodeId, Known, Weight>,
    stamps: Stamps,
    /// Whoever keeps attributes of a directory that take the place of others.
    shows: Mutex<()>,
    /// Told whenever a change from here has ended.
    ended: Notify,
    /// The session whose leases cover what is kept; 0 for none.
    session: AtomicU64,
    /// Until then nothing counts: a change of this mount may yet take place.
    suspended: Mutex<Option<Instant>>,
    /// The host's root is nobody to the server, which checks for it: it is not answered from here.
    squash_root: bool,
}

/// A change of this mount that is under way. What it concerns does not count meanwhile: another
/// host may see the change before it is acknowledged here.
#[derive(Debug)]
pub(crate) struct Changing<'a> {
    kept: &'a Names,
    names: &'a [(InodeId, &'a FileName)],
    concerned: Vec<Recall>,
    since: Note,
}

/// From when something counts that is kept.
#[derive(Clone, Copy, Debug)]
struct Since {
    /// Against what takes it back by its name, or its inode.
    own: Note,
    /// Against what takes back the lease that covers it, or everything.
    lease: Note,
}

/// What covers the attributes of an inode.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Lease {
    key: InodeId,
    since: Since,
}

/// Where a name leads.
#[derive(Clone, Copy, Debug)]
struct Name {
    /// `None`: nowhere.
    inode: Option<InodeId>,
    /// `None`: only a hint.
    since: Option<Since>,
}

#[derive(Clone, Debug)]
struct Kept {
    attributes: Attributes,
    lease: Lease,
    /// Whether the inode is known to have no extended attributes, as long as the rest counts.
    is_bare: bool,
}

#[derive(Clone, Debug)]
struct Weight;

impl Names {
    /// Keeps at most about `bytes`.
    pub(crate) fn new(bytes: u64, squash_root: bool) -> Self {
        let entries = usize::try_from(bytes / ENTRY_BYTES).unwrap_or(usize::MAX).max(1);
        Self {
            names: Cache::with_weighter(entries / 2, bytes / 2, Weight),
            attributes: Cache::with_weighter(entries / 2, bytes / 2, Weight),
            whole: Cache::with_weighter(WHOLE_MAX, bytes / 8, Weight),
            stamps: Stamps::default(),
            shows: Mutex::default(),
            ended: Notify::new(),
            session: AtomicU64::new(0),
            suspended: Mutex::new(None),
            squash_root,
        }
    }

    /// To be taken before a request is sent whose answer may be kept.
    pub(crate) fn note(&self) -> Note {
        self.stamps.note()
    }

    /// Nothing from before counts; from now on what is kept is covered by leases of `session`.
    pub(crate) fn begin(&self, session: SessionId) {
        self.stamps.raise_all();
        self.session.store(session.0, Ordering::SeqCst);
    }

    /// Nothing that is kept counts any more.
    pub(crate) fn forget_all(&self) {
        self.stamps.raise_all();
    }

    /// A change of this mount went out and nobody knows whether, or when, it takes place: nothing
    /// counts for as long as it could.
    pub(crate) fn suspend(&self) {
        let until = Instant::now() + SUSPENSION;
        *self.suspended.lock().unwrap_or_else(PoisonError::into_inner) = Some(until);
        self.stamps.raise_all();
    }

    /// Whether answers from here count for a user of this host, in this session.
    pub(crate) fn is_usable(&self, session: SessionId, uid: u32) -> bool {
        if self.session.load(Ordering::SeqCst) != session.0 || (self.squash_root && uid == 0) {
            return false;
        }
        let mut suspended = self.suspended.lock().unwrap_or_else(PoisonError::into_inner);
        if suspended.is_some_and(|until| until <= Instant::now()) {
            *suspended = None;
        }
        suspended.is_none()
    }

    /// Whether what is kept answers every user of this host.
    pub(crate) fn is_for_all(&self) -> bool {
        !self.squash_root
    }

    /// Where the name leads, if that is known: `Some(None)` is nowhere.
    pub(crate) fn find(&self, directory: InodeId, name: &FileName) -> Option<Option<InodeId>> {
        let kept = self.names.get(&(directory, name.clone()));
        if let Some(Name { inode, since: Some(since) }) = kept
            && self.stamps.stands(&Recall::Name(directory, name.clone()), since.own)
            && self.stamps.stands(&Recall::Lease(directory), since.lease)
        {
            return Some(inode);
        }
        self.is_absent(directory, name).then_some(None)
    }

    /// Whether the lease of a directory still covers what it covered at `note`.
    pub(crate) fn is_covered(&self, directory: InodeId, note: Note) -> bool {
        self.stamps.stands(&Recall::Lease(directory), note)
    }

    /// Whether the directory is known to have had other names only, and this one has not changed
    /// since. What has changed since is stamped, so that the list need not follow.
    fn is_absent(&self, directory: InodeId, name: &FileName) -> bool {
        self.whole.get(&directory).is_some_and(|whole| {
            !whole.has(name)
                && self.stamps.stands(&Recall::Name(directory, name.clone()), whole.note)
                && self.stamps.stands(&Recall::Lease(directory), whole.note)
        })
    }

    /// The attributes of an inode and what covers them, if they are known.
    pub(crate) fn attributes(&self, inode: InodeId) -> Option<(Attributes, Lease)> {
        let kept = self.attributes.get(&inode)?;
        self.stands(inode, &kept.lease).then_some((kept.attributes, kept.lease))
    }

    /// Whether what was known of the attributes of an inode under this lease still counts.
    pub(crate) fn stands(&self, inode: InodeId, lease: &Lease) -> bool {
        self.stamps.stands(&Recall::Attributes(inode), lease.since.own)
            && self.stamps.stands(&Recall::Lease(lease.key), lease.since.lease)
    }

    /// The lease that covers what the answer to a change from here shows of an inode that was not
    /// known to be concerned by it; what was known of it before does not count any more. Nothing
    /// where no lease covers it, or it was taken back since.
    pub(crate) fn changed(
        &self,
        inode: InodeId,
        key: Option<InodeId>,
        since: Note,
    ) -> Option<Lease> {
        let own = self.stamps.raise_known(&Recall::Attributes(inode), since)?;
        key.map(|key| Lease { key, since: Since { own, lease: since } })
    }

    /// Keeps where a name leads; without a note, it is a hint.
    pub(crate) fn keep_name(
        &self,
        (directory, name): (InodeId, FileName),
        inode: Option<InodeId>,
        note: Option<Note>,
    ) {
        let since = note.map(Since::of);
        self.names.insert((directory, name), Name { inode, since });
    }

    /// Keeps that the directory has these names and no others, under its lease.
    pub(crate) fn keep_whole<'a>(
        &self,
        directory: InodeId,
        names: impl IntoIterator<Item = &'a FileName>,
        note: Note,
    ) {
        self.whole.insert(directory, Arc::new(Whole::new(names, note)));
    }

    /// Where the name led when it was last seen here, whether or not that still counts.
    pub(crate) fn hint(&self, directory: InodeId, name: &FileName) -> Option<InodeId> {
        self.names.get(&(directory, name.clone()))?.inode
    }

    /// The attributes of what the name led to when they were last seen here, likewise.
    pub(crate) fn last_seen(&self, directory: InodeId, name: &FileName) -> Option<Attributes> {
        let inode = self.hint(directory, name)?;
        self.attributes.get(&inode).map(|kept| kept.attributes)
    }

    /// Whether an inode is known to have no extended attributes.
    pub(crate) fn is_bare(&self, inode: InodeId) -> bool {
        let kept = self.attributes.get(&inode);
        kept.is_some_and(|kept| kept.is_bare && self.stands(inode, &kept.lease))
    }

    /// Keeps attributes under a lease. Those of a file with several names are not kept: who removes
    /// one of them here would have to know the others.
    pub(crate) fn keep_attributes(&self, attributes: Attributes, lease: Lease) {
        // What takes back that this is so takes these back too, which were asked for before now.
        let is_bare = self.is_bare(attributes.inode);
        self.keep_listed(attributes, lease, is_bare);
    }

    /// As [`Self::keep_attributes`], with whether the inode is known to have no extended attributes
    /// whatever was known of that.
    pub(crate) fn keep_listed(&self, attributes: Attributes, lease: Lease, is_bare: bool) {
        let inode = attributes.inode;
        let is_directory = attributes.kind == FileKind::Directory;
        let _alone =
            is_directory.then(|| self.shows.lock().unwrap_or_else(PoisonError::into_inner));
        // An answer that was overtaken does not take the place of what has overtaken it.
        let is_overtaken =
            is_directory && !self.stands(inode, &lease) && self.attributes(inode).is_some();
        if (is_directory || lease.key != inode) && !is_overtaken {
            self.attributes.insert(inode, Kept { attributes, lease, is_bare });
        }
    }

    /// The inode was read here at `at`: what is kept of it shows that, as far as it counts at all.
    pub(crate) fn show_access(&self, inode: InodeId, at: Timestamp) {
        if let Some(mut kept) = self.attributes.get(&inode) {
            kept.attributes.accessed = at;
            // What took its place meanwhile is lost with that. It said the same, or this is not
            // covered any more.
            self.attributes.insert(inode, kept);
        }
    }

    /// Forgets what is taken back. The server also tells writers so that a content was cut.
    pub(crate) fn forget(&self, recall: &Recall) {
        self.stamps.raise(recall);
        if let Recall::Attributes(inode) = recall {
            self.stamps.raise_content(*inode);
        }
    }

    /// Whether the content of an inode that is open for writing here is the one that an answer has
    /// shown which was asked for at `note`: no other host has cut or replaced it since.
    pub(crate) fn content_stands(&self, inode: InodeId, note: Note) -> bool {
        self.stamps.content_stands(inode, note)
    }

    /// This mount begins to change these names, with the attributes of their directories and of
    /// what they lead to, and those of `inode`: nothing of that counts until the result is dropped.
    pub(crate) fn changing<'a>(
        &'a self,
        names: &'a [(InodeId, &'a FileName)],
        inodes: impl IntoIterator<Item = InodeId>,
    ) -> Changing<'a> {
        let since = self.stamps.note();
        let mut concerned: Vec<_> = inodes.into_iter().map(Recall::Attributes).collect();
        for &(directory, name) in names {
            concerned.push(Recall::Name(directory, name.clone()));
            concerned.push(Recall::Attributes(directory));
            match self.names.get(&(directory, name.clone())) {
                Some(Name { inode, .. }) => concerned.extend(inode.map(Recall::Attributes)),
                None if self.is_absent(directory, name) => {}
                // Nobody knows what it leads to.
                None => concerned.push(Recall::Everything),
            }
            // Another host may have given the name to another file of this directory since.
            if self.find(directory, name).is_none() {
                concerned.push(Recall::Lease(directory));
            }
        }
        for recall in &concerned {
            self.stamps.begin(recall);
        }
        Changing { kept: self, names, concerned, since }
    }
}

impl Since {
    fn of(note: Note) -> Self {
        Self { own: note, lease: note }
    }
}

impl Lease {
    /// The lease with this key covers what an answer shows that was asked for at `note`.
    pub(crate) fn of(key: InodeId, note: Note) -> Self {
        Self { key, since: Since::of(note) }
    }

    /// The key.
    pub(crate) fn key(&self) -> InodeId {
        self.key
    }

    /// When that was asked for which it covers.
    pub(crate) fn note(&self) -> Note {
        self.since.lease
    }
}

impl Changing<'_> {
    /// What it concerns.
    pub(crate) fn concerned(&self) -> &[Recall] {
        &self.concerned
    }

    /// The inodes whose attributes are known to change.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = InodeId> {
        self.concerned.iter().filter_map(|recall| match recall {
            Recall::Attributes(inode) => Some(*inode),
            _ => None,
        })
    }

    /// From when that counts which was asked before the change, and is not concerned by it.
    pub(crate) fn note(&self) -> Note {
        self.since
    }

    /// The change took place and its answer says where this name leads now, and what its directory
    /// shows: that is kept, unless something took it back meanwhile.
    pub(crate) fn end_known(
        mut self,
        (directory, name): (InodeId, FileName),
        leads_to: Option<InodeId>,
        shows: Option<Attributes>,
    ) {
        self.end_hinted();
        // What the names lead to from now on is not concerned.
        self.names = &[];
        let (kept, lease) = (self.kept, self.since);
        let mut named = None;
        for recall in self.concerned.drain(..) {
            match recall {
                Recall::Attributes(inode) if inode == directory => {
                    kept.end_shown(inode, lease, shows.as_ref());
                }
                Recall::Name(..) => {
                    let known = kept.stamps.end_known(&recall, lease);
                    named = known.map(|own| Since { own, lease });
                }
                _ => drop(kept.stamps.end_known(&recall, lease)),
            }
        }
        let since = named.filter(|_| leads_to.is_some());
        kept.names.insert((directory, name), Name { inode: leads_to, since });
        kept.ended.notify_waiters();
    }

    /// A lookup may have told meanwhile of something else that the names led to.
    fn end_hinted(&self) {
        let hint = |&(directory, name): &(InodeId, &FileName)| self.kept.hint(directory, name);
        for inode in self.names.iter().filter_map(hint) {
            self.kept.stamps.raise(&Recall::Attributes(inode));
        }
    }
}

impl Drop for Changing<'_> {
    fn drop(&mut self) {
        self.end_hinted();
        for recall in &self.concerned {
            self.kept.stamps.end(recall);
        }
        self.kept.ended.notify_waiters();
    }
}

impl Weighter<(InodeId, FileName), Name> for Weight {
    fn weight(&self, (_, name): &(InodeId, FileName), _: &Name) -> u64 {
        ENTRY_BYTES + name.as_bytes().len() as u64
    }
}

impl Weighter<InodeId, Kept> for Weight {
    fn weight(&self, _: &InodeId, _: &Kept) -> u64 {
        ENTRY_BYTES + size_of::<Kept>() as u64
    }
}

impl Weighter<InodeId, Known> for Weight {
    fn weight(&self, _: &InodeId, whole: &Known) -> u64 {
        ENTRY_BYTES + whole.bytes()
    }
}

/// What an entry costs beside its own bytes: the map, the queue of the cache and an allocation.
const ENTRY_BYTES: u64 = 112;

/// About how many directories may be known as a whole: most were made here and were empty then.
const WHOLE_MAX: usize = 1024;

/// Longer than a server that was reached at all works on a request that nobody waits for.
const SUSPENSION: Duration = Duration::from_secs(600);

#[cfg(test)]
mod tests;
