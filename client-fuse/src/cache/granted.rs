//! What the kernel may answer by itself for a while.
//!
//! Owns until when, for each name, inode and lease, at latest. Whoever gives leave writes it down
//! first, and looks then whether the answer still stands; whoever takes something back makes it
//! stand no more first, and looks then whether leave was given. So one of the two always sees the
//! other.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use millrace_protocol::lease::Recall;
use millrace_types::{FileName, InodeId};

use self::leads::Leads;

mod leads;

/// Leave that was given to the kernel.
#[derive(Debug)]
pub(crate) struct Granted {
    began: Instant,
    shards: Box<[Mutex<Shard>]>,
    leads: Box<[Mutex<Leads>]>,
}

/// Leave that was given, and when it ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Leave(u64);

#[derive(Debug, Default)]
struct Shard {
    /// Microseconds after the beginning; of one thing no two are the same.
    until: HashMap<Key, Leave>,
    /// At how many those are looked for that are over.
    sweep_at: usize,
}

/// What it is for, hashed twice: no two things in the life of a mount have the same.
type Key = (u64, u64);

/// Enough for threads not to meet often.
const SHARDS: u64 = 64;

/// Below so many a shard is not swept.
const SWEEP_MIN: usize = 256;

impl Default for Granted {
    fn default() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        let leads = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { began: Instant::now(), shards, leads }
    }
}

impl Granted {
    /// The kernel may have this for `time` from now on.
    pub(crate) fn note(&self, what: &Recall, time: Duration) {
        let now = self.micros(Instant::now());
        let key = key(what);
        let mut shard = self.shard(key);
        let until = Leave(now + u64::try_from(time.as_micros()).expect("moments"));
        // Never the same again, so that whoever takes back sees that it was given again.
        let given = |leave: &mut Leave| *leave = until.max(Leave(leave.0 + 1));
        shard.until.entry(key).and_modify(given).or_insert(until);
        if shard.until.len() > shard.sweep_at.max(SWEEP_MIN) {
            shard.until.retain(|_, leave| leave.0 > now);
            shard.sweep_at = 2 * shard.until.len();
        }
    }

    /// The kernel may find this inode under that name for `time` from now on. Where this tells
    /// `false` it must not: there are too many names to know each of them.
    #[must_use]
    pub(crate) fn note_lead(
        &self,
        inode: InodeId,
        place: (InodeId, &FileName),
        time: Duration,
    ) -> bool {
        let now = Instant::now();
        let until = (Leave(self.micros(now)), Leave(self.micros(now + time)));
        self.leads(inode).note(inode, place, until)
    }

    /// The names that the kernel has leave to keep of an inode.
    pub(crate) fn names_of(&self, inode: InodeId) -> Vec<(InodeId, FileName)> {
        let now = Leave(self.micros(Instant::now()));
        self.leads(inode).of(inode, now)
    }

    /// The leave that the kernel has for this, if it is not over.
    pub(crate) fn find(&self, what: &Recall) -> Option<Leave> {
        let now = self.micros(Instant::now());
        let key = key(what);
        let leave = self.shard(key).until.get(&key).copied();
        leave.filter(|leave| leave.0 > now)
    }

    /// The kernel has dropped what it had by this leave.
    pub(crate) fn end(&self, what: &Recall, leave: Leave) {
        let key = key(what);
        let mut shard = self.shard(key);
        if shard.until.get(&key) == Some(&leave) {
            shard.until.remove(&key);
        }
    }

    /// When it is over.
    pub(crate) fn end_of(&self, leave: Leave) -> Instant {
        self.began + Duration::from_micros(leave.0)
    }

    fn micros(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.began);
        u64::try_from(since.as_micros()).expect("a mount ends before that")
    }

    fn shard(&self, key: Key) -> MutexGuard<'_, Shard> {
        lock(&self.shards, key.0)
    }

    fn leads(&self, inode: InodeId) -> MutexGuard<'_, Leads> {
        lock(&self.leads, inode.0)
    }
}

fn lock<T>(shards: &[Mutex<T>], number: u64) -> MutexGuard<'_, T> {
    let shard = usize::try_from(number % SHARDS).expect("a few");
    // Each step leaves it whole.
    shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
}

fn key(what: &Recall) -> Key {
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        match what {
            Recall::Name(directory, name) => (1, directory, name).hash(&mut hasher),
            Recall::Attributes(inode) => (2, inode).hash(&mut hasher),
            Recall::Lease(key) => (3, key).hash(&mut hasher),
            Recall::Everything => 4.hash(&mut hasher),
        }
        hasher.finish()
    };
    (hash(0), hash(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    fn name(text: &str) -> Recall {
        Recall::Name(InodeId(7), FileName::parse(text.as_bytes()).unwrap())
    }

    #[test]
    fn leave_lasts_as_long_as_the_longest_that_was_given() {
        let granted = Granted::default();
        let began = Instant::now();
        assert_eq!(granted.find(&name("a")), None);
        granted.note(&name("a"), HOUR);
        granted.note(&name("a"), Duration::from_secs(1));
        let leave = granted.find(&name("a")).expect("not over");
        assert!(granted.end_of(leave) >= began + HOUR);
        for other in [name("b"), Recall::Attributes(InodeId(7)), Recall::Lease(InodeId(7))] {
            assert_eq!(granted.find(&other), None, "{other:?}");
        }
        granted.note(&name("b"), Duration::ZERO);
        assert_eq!(granted.find(&name("b")), None, "it is over");
    }

    #[test]
    fn leave_that_was_given_again_does_not_end_with_the_one_before() {
        let granted = Granted::default();
        granted.note(&name("a"), HOUR);
        let first = granted.find(&name("a")).unwrap();
        granted.note(&name("a"), Duration::ZERO);
        let second = granted.find(&name("a")).unwrap();
        assert!(second > first);
        granted.end(&name("a"), first);
        assert_eq!(granted.find(&name("a")), Some(second));
        granted.end(&name("a"), second);
        assert_eq!(granted.find(&name("a")), None);
    }

    #[test]
    fn the_names_of_an_inode_are_known_for_as_long_as_they_may_be_kept() {
        let granted = Granted::default();
        let give = |text: &str, time| {
            let what = name(text);
            let Recall::Name(directory, name) = &what else { unreachable!() };
            assert!(granted.note_lead(InodeId(9), (*directory, name), time));
        };
        let names = || -> Vec<_> {
            let places = granted.names_of(InodeId(9)).into_iter();
            places.map(|(directory, name)| Recall::Name(directory, name)).collect()
        };
        assert_eq!(names(), []);
        give("a", HOUR);
        give("b", HOUR);
        give("c", Duration::ZERO);
        give("a", Duration::ZERO);
        assert_eq!(names(), [name("a"), name("b")]);
        assert_eq!(granted.names_of(InodeId(7)), []);
    }

    #[test]
    fn of_an_inode_with_many_names_no_more_are_given_than_are_remembered() {
        let granted = Granted::default();
        let give = |number: u32| {
            let Recall::Name(directory, name) = name(&number.to_string()) else { unreachable!() };
            granted.note_lead(InodeId(9), (directory, &name), HOUR)
        };
        let given: Vec<_> = (0..100).filter(|number| give(*number)).collect();
        assert_eq!(given, (0..64).collect::<Vec<_>>());
        assert_eq!(granted.names_of(InodeId(9)).len(), 64);
        assert!(give(7), "it is remembered already");
    }

    #[test]
    fn names_that_are_over_are_swept() {
        let granted = Granted::default();
        let Recall::Name(directory, name) = name("a") else { unreachable!() };
        for number in 0..100_000 {
            assert!(granted.note_lead(InodeId(number), (directory, &name), Duration::ZERO));
        }
        let left: usize = granted.leads.iter().map(|leads| leads.lock().unwrap().len()).sum();
        assert!(left < 100_000 / 2, "{left}");
    }

    #[test]
    fn what_is_over_is_swept() {
        let granted = Granted::default();
        for number in 0..100_000 {
            granted.note(&Recall::Attributes(InodeId(number)), Duration::ZERO);
        }
        let left: usize =
            granted.shards.iter().map(|shard| shard.lock().unwrap().until.len()).sum();
        assert!(left < 100_000 / 2, "{left}");
    }
}
