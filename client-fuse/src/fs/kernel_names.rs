//! Lets the kernel keep names and attributes for a moment, and has it drop them.
//!
//! What a lease covers goes to the kernel with leave to answer from it for [`KEPT`], so that who
//! lists a directory, walks a path or opens many files does not ask here for every step. Before a
//! recall is acknowledged the kernel has dropped what is taken back:
//!
//! - *Attributes* go without waiting for anything: what is on its way to the kernel by then does
//!   not count there. Only of an inode that the kernel does not know yet it may still learn what is
//!   old: then the recall waits until that is over.
//! - *A name* goes behind whatever changes that directory on this mount, which may wait for the
//!   very host that waits for this recall. So the recall waits for that as long as the kernel may
//!   have the name, and no longer.
//! - *With attributes* the names expire that lead to them. By a name that it need not ask for the
//!   kernel decides from the owner that it last saw, dropped or not, who may change a file's mode,
//!   or remove it from a directory with the sticky bit.
//!
//! Nobody else is waited for, and nothing that the kernel holds outlives the session's ticket. That
//! a name leads nowhere the kernel never keeps.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use futures::future::join_all;
use millrace_protocol::{
    lease::Recall,
    metadata::{Attributes, FileKind},
};
use millrace_types::{FileName, InodeId};
use quick_cache::sync::Cache;
use tokio::sync::Semaphore;

use crate::{
    cache::{
        granted::{Granted, Leave},
        names::{Lease, stamps::Note},
    },
    fs::FileSystem,
};

/// How the kernel is told.
pub(crate) trait Way: Send + Sync {
    /// It drops the attributes of an inode, and those on their way to it; waits for nothing. Tells
    /// whether it knew the inode.
    fn drop_attributes(&self, inode: InodeId) -> bool;

    /// It drops a name. Blocks behind whatever changes that directory.
    fn drop_name(&self, directory: InodeId, name: &FileName);

    /// Whether it can be told to look a name up again without dropping what is mounted below: Linux
    /// can from 6.2.
    fn expires(&self) -> bool;

    /// It asks for a name when that is used again. Blocks as [`Self::drop_name`].
    fn expire_name(&self, directory: InodeId, name: &FileName);
}

/// How long the kernel may answer by itself from what one answer has shown.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Keep {
    /// Where the name leads.
    pub(crate) name: Duration,
    /// The attributes.
    pub(crate) attributes: Duration,
}

/// Attributes for the kernel, from what is kept here.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Shown {
    /// The attributes.
    pub(crate) attributes: Attributes,
    /// What it may keep.
    pub(crate) keep: Keep,
}

/// What the kernel may have, and the way to it.
pub(crate) struct KernelNames {
    way: OnceLock<Arc<dyn Way>>,
    granted: Arc<Granted>,
    /// Directories in which a rename last had to wait, and when.
    left: Cache<InodeId, Instant>,
    rooms: Arc<Semaphore>,
}

impl Default for KernelNames {
    fn default() -> Self {
        let rooms = Arc::new(Semaphore::new(AT_ONCE));
        let left = Cache::new(LEFT_MAX);
        Self { way: OnceLock::new(), granted: Arc::default(), left, rooms }
    }
}

impl Keep {
    /// Whether nothing of it needs to be asked for.
    pub(crate) fn is_whole(&self) -> bool {
        !self.name.is_zero() && !self.attributes.is_zero()
    }
}

impl Shown {
    /// For the one who asks: the kernel keeps nothing of it.
    pub(crate) fn once(attributes: Attributes) -> Self {
        Self { attributes, keep: Keep::default() }
    }
}

impl KernelNames {
    /// From now on the kernel may keep something, and is told in this way.
    pub(crate) fn connect(&self, way: impl Way + 'static) {
        assert!(self.way.set(Arc::new(way)).is_ok(), "a mount is made once");
    }

    fn expires(&self) -> bool {
        self.way.get().is_some_and(|way| way.expires())
    }

    /// The attributes of an inode change here, or are known better than the kernel may know them:
    /// it asks again. Waits for nothing.
    pub(crate) fn drop_attributes(&self, inode: InodeId) {
        if let Some(way) = self.way.get()
            && self.granted.find(&Recall::Attributes(inode)).is_some()
        {
            way.drop_attributes(inode);
        }
    }

    /// Returns when the kernel has nothing left of what is taken back. All of it must have stopped
    /// to count here before.
    pub(crate) async fn take_back(&self, recalls: &[Recall]) {
        self.take_back_with(recalls, &[]).await;
    }

    /// The same, and of what these inodes show, where whoever may do what is as it was: the names
    /// that lead to them do not expire.
    pub(crate) async fn take_back_with(&self, recalls: &[Recall], shown: &[InodeId]) {
        let Some(way) = self.way.get() else { return };
        let mut over = None;
        let mut names: BTreeMap<InodeId, Names> = BTreeMap::new();
        let shown = shown.iter().map(|inode| (Recall::Attributes(*inode), false));
        for (recall, expires) in recalls.iter().cloned().map(|recall| (recall, true)).chain(shown) {
            if let (Recall::Attributes(inode), true) = (&recall, expires) {
                for (directory, name) in self.granted.names_of(*inode) {
                    names.entry(directory).or_default().entry(name).or_insert(false);
                }
            }
            let Some(leave) = self.granted.find(&recall) else { continue };
            match &recall {
                Recall::Attributes(inode) if way.drop_attributes(*inode) => {
                    self.granted.end(&recall, leave);
                }
                Recall::Name(directory, name) => {
                    names.entry(*directory).or_default().insert(name.clone(), true);
                }
                _ => over = over.max(Some(self.granted.end_of(leave))),
            }
        }
        let taken =
            names.into_iter().map(|(directory, names)| self.take_names(way, directory, names));
        join_all(taken).await;
        // A timer that is over already still costs a millisecond, which whoever waits would pay.
        if let Some(over) = over {
            tokio::time::sleep_until(over.into()).await;
        }
    }

    /// The same for names of one directory, on a thread that may wait for its lock. With all
    /// threads waiting this waits until the kernel asks again.
    async fn take_names(&self, way: &Arc<dyn Way>, directory: InodeId, names: Names) {
        let named = names.into_iter().filter_map(|(name, is_gone)| {
            let what = Recall::Name(directory, name.clone());
            let leave = self.granted.find(&what)?;
            Some(Named { name, what, leave, is_gone })
        });
        let named: Vec<_> = named.collect();
        let Some(last) = named.iter().map(|named| named.leave).max() else { return };
        let limit = tokio::time::Instant::from_std(self.granted.end_of(last));
        let Ok(room) = Arc::clone(&self.rooms).try_acquire_owned() else {
            return tokio::time::sleep_until(limit).await;
        };
        let (way, granted) = (Arc::clone(way), Arc::clone(&self.granted));
        let taken = tokio::task::spawn_blocking(move || {
            for Named { name, what, leave, is_gone } in named {
                // Who waited behind a change of that directory has nothing left to drop.
                if granted.end_of(leave) <= Instant::now() {
                    continue;
                }
                if is_gone || !way.expires() {
                    way.drop_name(directory, &name);
                } else {
                    way.expire_name(directory, &name);
                }
                granted.end(&what, leave);
            }
            drop(room);
        });
        // It ends in a panic only if the way does.
        drop(tokio::time::timeout_at(limit, taken).await);
    }
}

/// Names that are taken back, and of each whether it may lead elsewhere by now, or nowhere:
/// otherwise only what is there has changed.
type Names = BTreeMap<FileName, bool>;

/// A name that is taken back, and the leave that the kernel has for it.
#[derive(Debug)]
struct Named {
    name: FileName,
    what: Recall,
    leave: Leave,
    is_gone: bool,
}

impl fmt::Debug for KernelNames {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KernelNames").field("connected", &self.way.get().is_some()).finish()
    }
}

impl FileSystem {
    /// Gives the kernel leave to keep where a name leads, if that still counts. The caller looks
    /// after this whether what it shows of the inode still counts.
    pub(super) fn keep_name(
        &self,
        directory: InodeId,
        name: &FileName,
        (inode, kind): (InodeId, FileKind),
    ) -> Duration {
        // What is mounted below a directory goes with its name where that cannot expire.
        let may_be_dropped = kind != FileKind::Directory || self.kernel.expires();
        if !may_be_dropped || !self.may_grant() {
            return Duration::ZERO;
        }
        if self.kernel.left.get(&directory).is_some_and(|left| left.elapsed() < LEFT) {
            return Duration::ZERO;
        }
        if !self.kernel.granted.note_lead(inode, (directory, name), KEPT + DELAY) {
            return Duration::ZERO;
        }
        // A recall may also be of all that is known of an inode with several names.
        self.note_leave(&[Recall::Name(directory, name.clone()), Recall::Lease(inode)], directory);
        let counts = self.names.find(directory, name) == Some(Some(inode));
        if counts { KEPT } else { Duration::ZERO }
    }

    /// Gives the kernel leave to keep what was shown of an inode under a lease, if that still
    /// counts.
    pub(super) fn keep_attributes(&self, inode: InodeId, lease: &Lease) -> Duration {
        if !self.may_grant() {
            return Duration::ZERO;
        }
        self.note_leave(&[Recall::Attributes(inode)], lease.key());
        // Whoever opens it looks, once it counts as open, what the kernel may have; but who opens
        // it for reading of what the lease covers shows the same.
        let counts = self.names.stands(inode, lease) && self.files.find(inode).is_none();
        if counts { KEPT } else { Duration::ZERO }
    }

    /// The same for a file that was just made here, and has no other version: what is written to it
    /// here the kernel sees, and of what happens to it elsewhere it hears.
    pub(super) fn keep_new(&self, inode: InodeId, lease: Option<&Lease>) -> Duration {
        let Some(lease) = lease.filter(|_| self.may_grant()) else { return Duration::ZERO };
        self.note_leave(&[Recall::Attributes(inode)], lease.key());
        if self.names.stands(inode, lease) { KEPT } else { Duration::ZERO }
    }

    /// Since when leases cover where all of these names lead, if they do.
    pub(super) fn covered(&self, names: &[(InodeId, &FileName)]) -> Option<Note> {
        let note = self.names.note();
        let mut names = names.iter();
        names.all(|(directory, name)| self.names.find(*directory, name).is_some()).then_some(note)
    }

    /// The kernel moves what it has of two names with their rename, and with it how long it may
    /// keep that. Where leases have covered both names since `covered` a recall finds it in its new
    /// place; otherwise the rename waits until the kernel asks again, and the next ones from that
    /// directory find that it keeps nothing.
    ///
    /// The names must have begun to change: no more leave is given for them.
    pub(super) async fn before_rename(
        &self,
        names: [(InodeId, &FileName); 2],
        covered: Option<Note>,
    ) {
        let granted = &self.kernel.granted;
        let recalls = names.map(|(directory, name)| Recall::Name(directory, name.clone()));
        let leaves = recalls.each_ref().map(|recall| granted.find(recall));
        let Some(leave) = leaves.into_iter().flatten().max() else { return };
        let end = granted.end_of(leave);
        let left = end.saturating_duration_since(Instant::now());
        for (recall, (directory, _)) in recalls.iter().zip(names) {
            granted.note(recall, left);
            granted.note(&Recall::Lease(directory), left);
        }
        let is_found = self.note_moved(names, leaves, left);
        let stands =
            |since| names.iter().all(|(directory, _)| self.names.is_covered(*directory, since));
        let is_covered = covered.is_some_and(stands);
        if !is_covered {
            for (directory, _) in names {
                self.kernel.left.insert(directory, Instant::now());
            }
        }
        if !is_covered || !is_found {
            tokio::time::sleep_until(end.into()).await;
        }
    }

    /// What these names lead to may be found under the other one for so long. `false` where that is
    /// not known of everything that the kernel has leave for.
    fn note_moved(
        &self,
        names: [(InodeId, &FileName); 2],
        leaves: [Option<Leave>; 2],
        left: Duration,
    ) -> bool {
        let found = names.iter().zip(leaves).zip([names[1], names[0]]);
        let mut is_found = true;
        for ((&(directory, name), leave), place) in found {
            is_found &= match self.names.hint(directory, name) {
                Some(inode) => self.kernel.granted.note_lead(inode, place, left),
                None => leave.is_none(),
            };
        }
        is_found
    }

    fn may_grant(&self) -> bool {
        let is_served = self.kernel.way.get().is_some() && self.names.is_for_all();
        is_served && self.cluster.is_ticket_valid_for(KEPT + DELAY)
    }

    /// Whoever gives leave looks after this whether what he gives still counts.
    fn note_leave(&self, whats: &[Recall], key: InodeId) {
        for what in whats.iter().chain(&[Recall::Lease(key), Recall::Everything]) {
            self.kernel.granted.note(what, KEPT + DELAY);
        }
    }
}

/// How long the kernel may answer by itself. Listings, walks and paths ask again within
/// microseconds, so that longer would save little; what cannot be dropped at once is waited for so
/// long.
const KEPT: Duration = Duration::from_millis(20);

/// How much longer that may be than was said: the kernel counts in ticks, from when the program
/// that asked has got a processor.
const DELAY: Duration = Duration::from_millis(100);

/// How long the kernel keeps no names of a directory after a rename had to wait for that: a program
/// that moves what it has made, one after the other, waits once in so long.
const LEFT: Duration = Duration::from_secs(10);

/// So many directories are remembered.
const LEFT_MAX: usize = 1024;

/// Threads that may wait in the kernel at a time.
const AT_ONCE: usize = 64;
