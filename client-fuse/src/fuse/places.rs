//! Where the kernel has each directory that it knows.
//!
//! It has a directory in one place. Found in another one, because another mount has moved it, the
//! kernel moves its entry there; but not while a rename is under way on this mount, also the very
//! one that looked the directory up: the program gets ESTALE then. So the kernel is made to drop
//! the old place before such a lookup is answered.
//!
//! That takes the lock of the old place's parent, which may belong to
//! - a change that waits for the server: it ends without this answer, and is waited for;
//! - the call that waits for this answer: then the answer is given after [`GRACE`], and the call
//!   lets go of the lock. The kernel walks the path once more, and is not shown the directories in
//!   question before the old place is dropped.
//!
//! What is known here is bounded, and only ever makes a program's call succeed that could not have.

use std::{
    collections::{BTreeSet, HashMap},
    fmt,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError},
    time::Duration,
};

use millrace_protocol::metadata::{Attributes, FileKind, RenameMode};
use millrace_types::{FileName, InodeId};
use tokio::sync::{Notify, Semaphore};

/// A name in a directory.
pub(super) type Place = (InodeId, FileName);

/// Has the kernel drop what it has in a place; blocks behind whatever changes that directory.
type Drops = Arc<dyn Fn(&Place) + Send + Sync>;

/// What is known of the kernel's directories.
pub(crate) struct Places {
    known: Mutex<Known>,
    ended: Notify,
    drops: OnceLock<Drops>,
    rooms: Arc<Semaphore>,
}

#[derive(Default)]
struct Known {
    places: HashMap<InodeId, Told>,
    directories: HashMap<Place, InodeId>,
    /// The number of the next change of names on this mount, and those that are under way.
    next: u64,
    changes: BTreeSet<u64>,
    /// Those in which a place is being dropped, or something is waiting for that.
    dropping: Vec<[InodeId; 2]>,
}

/// Where the kernel has a directory, and how often it was told of it: it forgets so many.
struct Told {
    place: Place,
    lookups: u64,
}

/// A change of names that is under way until this is dropped.
struct Change {
    places: Arc<Places>,
    number: u64,
}

impl Default for Places {
    fn default() -> Self {
        Self {
            known: Mutex::default(),
            ended: Notify::new(),
            drops: OnceLock::new(),
            rooms: Arc::new(Semaphore::new(AT_ONCE)),
        }
    }
}

impl Places {
    /// From now on `drops` is how a place is dropped. Before, there is no kernel that has any.
    pub(crate) fn connect(&self, drops: impl Fn(&Place) + Send + Sync + 'static) {
        assert!(self.drops.set(Arc::new(drops)).is_ok(), "a mount is made once");
    }

    /// Whether the kernel can be told that this was found in a place, as it is. Then it has it
    /// there.
    pub(super) fn take(&self, found: &Attributes, parent: InodeId, name: &FileName) -> bool {
        if found.kind != FileKind::Directory {
            return true;
        }
        let mut known = self.lock();
        !known.is_dropping(found.inode) && known.agrees(found.inode, parent, name)
    }

    /// Sees to it that the kernel can be told that this was found in a place. May be dropped at any
    /// time.
    pub(super) async fn settle(
        self: &Arc<Self>,
        found: &Attributes,
        parent: InodeId,
        name: &FileName,
    ) {
        if self.take(found, parent, name) {
            return;
        }
        let dropped = self.until(|known| !known.is_dropping(found.inode));
        // Later than that, it is not what the call that looks this up waits for.
        drop(tokio::time::timeout(GRACE, dropped).await);
        if self.lock().agrees(found.inode, parent, name) {
            return;
        }
        let Some(drops) = self.drops.get().cloned() else { return };
        // With all threads waiting in the kernel the answer goes as it is.
        let Ok(room) = Arc::clone(&self.rooms).try_acquire_owned() else { return };
        let (before, mark) = {
            let mut known = self.lock();
            let Some(before) = known.tell(found.inode, parent, name) else { return };
            known.dropping.push([before.0, parent]);
            (before, known.next)
        };
        let places = Arc::clone(self);
        let dropped = tokio::task::spawn_blocking(move || {
            drops(&before);
            places.end_drop([before.0, parent]);
            drop(room);
        });
        let patience = async {
            self.until(|known| known.changes.first().is_none_or(|first| *first >= mark)).await;
            tokio::time::sleep(GRACE).await;
        };
        tokio::select! {
            // It ends in a panic only if the closure does.
            done = dropped => drop(done),
            () = patience => {}
        }
    }

    /// The kernel has moved what it had in a place, as a rename that was answered had it.
    pub(super) fn handle_rename(&self, from: Place, to: Place, mode: RenameMode) {
        let mut known = self.lock();
        let of = |known: &mut Known, place| {
            let directory = *known.directories.get(place)?;
            Some((directory, known.remove(directory)?.lookups))
        };
        let (moved, other) = (of(&mut known, &from), of(&mut known, &to));
        if let (Some((other, lookups)), RenameMode::Exchange) = (other, mode) {
            known.put(other, Told { place: from, lookups });
        }
        if let Some((moved, lookups)) = moved {
            known.put(moved, Told { place: to, lookups });
        }
    }

    /// The kernel has forgotten so much of what it was told of an inode.
    pub(super) fn forget(&self, inode: InodeId, lookups: u64) {
        let mut known = self.lock();
        let Some(told) = known.places.get_mut(&inode) else { return };
        told.lookups = told.lookups.saturating_sub(lookups);
        if told.lookups == 0 {
            known.remove(inode);
        }
    }

    /// Does work that changes names, for which the kernel has directories locked.
    pub(super) fn change<W: Future>(
        self: &Arc<Self>,
        work: W,
    ) -> impl Future<Output = W::Output> + use<W> {
        let change = self.begin_change();
        async move {
            let done = work.await;
            drop(change);
            done
        }
    }

    fn begin_change(self: &Arc<Self>) -> Change {
        let mut known = self.lock();
        let number = known.next;
        known.next += 1;
        known.changes.insert(number);
        Change { places: Arc::clone(self), number }
    }

    fn end_drop(&self, directories: [InodeId; 2]) {
        let mut known = self.lock();
        if let Some(at) = known.dropping.iter().position(|these| *these == directories) {
            known.dropping.swap_remove(at);
        }
        drop(known);
        self.ended.notify_waiters();
    }

    /// Waits until changes or drops that end have made something true.
    async fn until(&self, is_so: impl Fn(&Known) -> bool) {
        loop {
            let mut ended = pin!(self.ended.notified());
            ended.as_mut().enable();
            if is_so(&self.lock()) {
                return;
            }
            ended.await;
        }
    }

    fn lock(&self) -> MutexGuard<'_, Known> {
        // Each step leaves it whole enough: a lost place costs what this module is there for.
        self.known.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Places {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Places").field("connected", &self.drops.get().is_some()).finish()
    }
}

impl Known {
    fn is_dropping(&self, directory: InodeId) -> bool {
        self.dropping.iter().any(|these| these.contains(&directory))
    }

    /// Whether the kernel can be told that a directory is in a place, as it is; notes it then.
    fn agrees(&mut self, directory: InodeId, parent: InodeId, name: &FileName) -> bool {
        // Within one directory the kernel needs no more than what the caller has locked.
        let agrees = self.places.get(&directory).is_none_or(|known| known.place.0 == parent);
        if agrees {
            self.tell(directory, parent, name);
        }
        agrees
    }

    /// The kernel is told that a directory is in a place; where it was before.
    fn tell(&mut self, directory: InodeId, parent: InodeId, name: &FileName) -> Option<Place> {
        if let Some(known) = self.places.get_mut(&directory)
            && known.place.0 == parent
            && known.place.1 == *name
        {
            known.lookups += 1;
            return None;
        }
        let before = self.remove(directory);
        let lookups = 1 + before.as_ref().map_or(0, |before| before.lookups);
        self.put(directory, Told { place: (parent, name.clone()), lookups });
        before.map(|before| before.place)
    }

    fn put(&mut self, directory: InodeId, told: Told) {
        if self.places.len() >= DIRECTORIES_MAX
            && let Some(&other) = self.places.keys().next()
        {
            self.remove(other);
        }
        if let Some(replaced) = self.directories.insert(told.place.clone(), directory) {
            self.places.remove(&replaced);
        }
        self.places.insert(directory, told);
    }

    fn remove(&mut self, directory: InodeId) -> Option<Told> {
        let told = self.places.remove(&directory)?;
        self.directories.remove(&told.place);
        Some(told)
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        self.places.lock().changes.remove(&self.number);
        self.places.ended.notify_waiters();
    }
}

/// Longer than the kernel takes from an answer to letting go of its locks, and than a thread that
/// waits for one of those locks has to wait until nobody overtakes it any more (4 ms).
const GRACE: Duration = Duration::from_millis(100);

/// Threads that may wait in the kernel at a time.
const AT_ONCE: usize = 64;

/// Directories of which the place is known; some 20 MiB.
const DIRECTORIES_MAX: usize = 1 << 16;

#[cfg(test)]
mod tests;
