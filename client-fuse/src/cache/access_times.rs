//! Times of access that this mount knows, and the metadata server does not yet.
//!
//! What a program reads is noted here where `relatime` asks for it: as a file that was read before
//! is not due again until it changes, or for a day, almost every read is answered by comparing
//! numbers. What is noted is shown at once, told to the server in batches, and shown on for a
//! moment, since an answer from before the server knew may still be on its way.
//!
//! Bounded: past [`NOTED_MAX`], which takes a server that is away, reads are not noted. What is
//! noted dies with the mount's process.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use millrace_protocol::{
    access::{ACCESS_AGE, LastRead, READS_MAX, is_due},
    metadata::{Attributes, FileKind},
};
use millrace_types::{InodeId, Timestamp};
use tokio::sync::Notify;

/// Whose times of access a mount keeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Followed {
    /// Those of files and symbolic links.
    pub(crate) files: bool,
    /// Those of directories.
    pub(crate) directories: bool,
}

/// What was read on this mount.
#[derive(Debug)]
pub(crate) struct AccessTimes {
    followed: Followed,
    /// A time of access up to this is old: as of the last [`Self::handle_time`].
    old: AtomicI64,
    /// How many are noted: where there are none, no lock is taken.
    count: AtomicUsize,
    noted: Mutex<Noted>,
    /// There is a whole batch.
    full: Notify,
}

#[derive(Debug, Default)]
struct Noted {
    /// To be told.
    waiting: HashMap<InodeId, LastRead>,
    /// Told, and when.
    told: HashMap<InodeId, (LastRead, Timestamp)>,
}

impl AccessTimes {
    /// Nothing is noted, at `now`.
    pub(crate) fn new(followed: Followed, now: Timestamp) -> Self {
        let times = Self {
            followed,
            old: AtomicI64::new(i64::MIN),
            count: AtomicUsize::new(0),
            noted: Mutex::default(),
            full: Notify::new(),
        };
        times.handle_time(now);
        times
    }

    /// Whether any are kept.
    pub(crate) fn is_used(&self) -> bool {
        self.followed.files || self.followed.directories
    }

    /// Whether those of directories are kept.
    pub(crate) fn follows_directories(&self) -> bool {
        self.followed.directories
    }

    /// It is `now`, in server time. To be called every few seconds: that is how exactly a day is
    /// measured where nothing else is due.
    pub(crate) fn handle_time(&self, now: Timestamp) {
        let age = i64::try_from(ACCESS_AGE.as_nanos()).expect("a day");
        self.old.store(now.0.saturating_sub(age), Ordering::Relaxed);
    }

    /// Whether a read of what shows `shown` may have to be noted. Costs next to nothing.
    pub(crate) fn may_be_due(&self, shown: &Attributes) -> bool {
        let followed = match shown.kind {
            FileKind::Directory => self.followed.directories,
            _ => self.followed.files,
        };
        let accessed = shown.accessed;
        followed
            && (accessed <= shown.modified
                || accessed <= shown.changed
                || accessed.0 <= self.old.load(Ordering::Relaxed))
    }

    /// Notes a read at `now` of what shows `shown`, if it is due; `shown` shows it then.
    pub(crate) fn note(&self, shown: &mut Attributes, now: Timestamp) {
        // It comes after the change that it shows, although this host's idea of the server's time
        // may be behind.
        let now = now.max(Timestamp(shown.changed.0.saturating_add(1)));
        let mut noted = self.lock();
        noted.show(shown);
        if !is_due(shown, now) {
            return;
        }
        // The server still has what the first of several reads saw.
        let before = noted.waiting.get(&shown.inode).map(|read| read.seen);
        let seen = before.unwrap_or(shown.accessed);
        if self.insert(&mut noted, LastRead { inode: shown.inode, seen, at: now }) {
            shown.accessed = now;
        }
    }

    /// Notes a read at `now` of an inode of which nothing is known here: the server decides.
    pub(crate) fn note_unseen(&self, inode: InodeId, now: Timestamp) {
        let mut noted = self.lock();
        if !noted.waiting.contains_key(&inode) && !noted.told.contains_key(&inode) {
            self.insert(&mut noted, LastRead { inode, seen: LastRead::UNSEEN, at: now });
        }
    }

    fn insert(&self, noted: &mut Noted, read: LastRead) -> bool {
        let known = noted.waiting.contains_key(&read.inode);
        if !known && noted.len() >= NOTED_MAX {
            noted.told.clear();
        }
        let room = known || noted.len() < NOTED_MAX;
        if room {
            noted.told.remove(&read.inode);
            noted.waiting.insert(read.inode, read);
        }
        self.count.store(noted.len(), Ordering::Release);
        if noted.waiting.len() >= READS_MAX {
            self.full.notify_one();
        }
        room
    }

    /// Has `shown` show what was read here and is not known at the server, or was not lately.
    pub(crate) fn show(&self, shown: &mut Attributes) {
        if self.count.load(Ordering::Acquire) > 0 {
            self.lock().show(shown);
        }
    }

    /// A program sets the time of access: reads from before do not count any more.
    pub(crate) fn forget(&self, inode: InodeId) {
        if self.count.load(Ordering::Acquire) > 0 {
            let mut noted = self.lock();
            noted.waiting.remove(&inode);
            noted.told.remove(&inode);
            self.count.store(noted.len(), Ordering::Release);
        }
    }

    /// Waits until there is a whole batch.
    pub(crate) async fn full(&self) {
        self.full.notified().await;
    }

    /// How many batches there are to tell.
    pub(crate) fn batches(&self) -> usize {
        self.lock().waiting.len().div_ceil(READS_MAX)
    }

    /// What to tell next; empty when there is nothing. To be answered by [`Self::handle_told`] or
    /// [`Self::handle_refused`]; otherwise it comes again.
    pub(crate) fn batch(&self) -> Vec<LastRead> {
        self.lock().waiting.values().take(READS_MAX).copied().collect()
    }

    /// The server knows a batch since `now`. What it has known for long is forgotten.
    pub(crate) fn handle_told(&self, batch: &[LastRead], now: Timestamp) {
        let mut noted = self.lock();
        noted.told.retain(|_, (_, told)| now.since(*told) < SHOWN_ON);
        for read in batch {
            match noted.waiting.get_mut(&read.inode) {
                Some(waiting) if waiting == read => {
                    noted.waiting.remove(&read.inode);
                    noted.told.insert(read.inode, (*read, now));
                }
                // Read again meanwhile.
                Some(waiting) => waiting.seen = read.at,
                None => {}
            }
        }
        self.count.store(noted.len(), Ordering::Release);
    }

    /// The server does not take a batch, and will not.
    pub(crate) fn handle_refused(&self, batch: &[LastRead]) {
        let mut noted = self.lock();
        for read in batch {
            noted.waiting.remove(&read.inode);
        }
        self.count.store(noted.len(), Ordering::Release);
    }

    fn lock(&self) -> MutexGuard<'_, Noted> {
        // Each step leaves the maps whole, so that a panic elsewhere cannot have torn them.
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Noted {
    fn len(&self) -> usize {
        self.waiting.len() + self.told.len()
    }

    /// As the server will, or does.
    fn show(&self, shown: &mut Attributes) {
        let told = || self.told.get(&shown.inode).map(|(read, _)| read);
        let Some(read) = self.waiting.get(&shown.inode).or_else(told) else { return };
        if let Some(at) = read.raises(shown, Timestamp(i64::MAX)) {
            shown.accessed = at;
        }
    }
}

/// What is noted at most: some 10 MiB, for minutes of reading thousands of files a second while
/// the server is away.
const NOTED_MAX: usize = 65_536;

/// Longer than an answer is on its way.
const SHOWN_ON: Duration = Duration::from_secs(10);

#[cfg(test)]
mod tests;
