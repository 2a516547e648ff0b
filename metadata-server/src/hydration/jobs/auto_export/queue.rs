//! Files that wait to be left alone for long enough, or for their next try. No I/O, no clock.

use std::{
    collections::{BTreeSet, HashMap},
    time::Duration,
};

use millrace_types::{InodeId, LinkId};
use tokio::time::Instant;

/// Files that wait: 100 bytes each, with both tables.
pub(super) const WAITING_MAX: usize = 1 << 18;

/// The pauses between tries of a file whose bucket does not answer: the first, and the longest.
const PAUSE_FIRST: Duration = Duration::from_secs(2);
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// A file and when it is due.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Waiting {
    pub(super) link: LinkId,
    pub(super) due: Instant,
    /// How often it has failed since it was last changed.
    pub(super) failed: u32,
}

impl Waiting {
    /// A file that has just been changed, and shall be left alone for `quiet`.
    pub(super) fn changed(link: LinkId, now: Instant, quiet: Duration) -> Self {
        Self { link, due: now + quiet, failed: 0 }
    }

    /// The same file, after one more failure: later each time that it may pass by itself, and after
    /// the longest pause otherwise.
    pub(super) fn after_failure(self, now: Instant, quiet: Duration, may_pass: bool) -> Self {
        let pause = match may_pass {
            true => PAUSE_FIRST.saturating_mul(1 << self.failed.min(10)).min(PAUSE_MAX),
            false => PAUSE_MAX,
        };
        Self { due: now + pause.max(quiet), failed: self.failed + 1, ..self }
    }
}

/// Each file once, in the order in which they are due.
#[derive(Debug, Default)]
pub(super) struct Queue {
    order: BTreeSet<(Instant, InodeId)>,
    files: HashMap<InodeId, Waiting>,
}

impl Queue {
    /// Lets a file wait, in the place of what was known of it. False when there is no room.
    pub(super) fn put(&mut self, inode: InodeId, waiting: Waiting) -> bool {
        match self.files.get(&inode) {
            Some(known) => drop(self.order.remove(&(known.due, inode))),
            None if self.is_full() => return false,
            None => {}
        }
        self.order.insert((waiting.due, inode));
        self.files.insert(inode, waiting);
        true
    }

    /// As [`Self::put`], unless the file waits already, for whatever.
    pub(super) fn put_new(&mut self, inode: InodeId, waiting: Waiting) -> bool {
        self.files.contains_key(&inode) || self.put(inode, waiting)
    }

    /// Takes the file that has been due for longest.
    pub(super) fn take(&mut self, now: Instant) -> Option<(InodeId, Waiting)> {
        let &(due, inode) = self.order.first().filter(|(due, _)| *due <= now)?;
        self.order.remove(&(due, inode));
        self.files.remove_entry(&inode)
    }

    /// When the next file is due.
    pub(super) fn next(&self) -> Option<Instant> {
        self.order.first().map(|(due, _)| *due)
    }

    /// Whether no more files fit.
    pub(super) fn is_full(&self) -> bool {
        self.files.len() >= WAITING_MAX
    }

    /// Files of a link.
    pub(super) fn count(&self, link: LinkId) -> usize {
        self.files.values().filter(|waiting| waiting.link == link).count()
    }

    /// Lets no file of a link that has not failed wait longer than until then.
    pub(super) fn hasten(&mut self, link: LinkId, due: Instant) {
        let Self { order, files } = self;
        for (inode, waiting) in files.iter_mut() {
            if waiting.link == link && waiting.due > due && waiting.failed == 0 {
                order.remove(&(waiting.due, *inode));
                waiting.due = due;
                order.insert((due, *inode));
            }
        }
    }

    /// Forgets the files of a link.
    pub(super) fn forget(&mut self, link: LinkId) {
        self.files.retain(|_, waiting| waiting.link != link);
        self.order.retain(|(_, inode)| self.files.contains_key(inode));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkId = LinkId(1);
    const QUIET: Duration = Duration::from_secs(30);

    #[test]
    fn a_file_waits_from_its_last_change_on_and_comes_once() {
        let start = Instant::now();
        let mut queue = Queue::default();
        assert_eq!((queue.next(), queue.take(start)), (None, None));
        let later = start + Duration::from_secs(20);
        queue.put(InodeId(1), Waiting::changed(LINK, start, QUIET));
        queue.put(InodeId(2), Waiting::changed(LINK, start + Duration::from_secs(1), QUIET));
        queue.put(InodeId(1), Waiting::changed(LINK, later, QUIET));
        assert_eq!(queue.count(LINK), 2);
        let now = start + Duration::from_secs(31);
        assert_eq!(queue.take(now).map(|(inode, _)| inode), Some(InodeId(2)));
        assert_eq!(queue.take(now), None);
        assert_eq!(queue.next(), Some(later + QUIET));
        // What is found without having changed moves nobody back.
        queue.put_new(InodeId(1), Waiting::changed(LINK, now, Duration::ZERO));
        assert_eq!(queue.next(), Some(later + QUIET));
        assert!(queue.take(later + QUIET).is_some() && queue.next().is_none());
    }

    #[test]
    fn tries_come_later_each_time_and_a_change_begins_anew() {
        let now = Instant::now();
        let mut waiting = Waiting::changed(LINK, now, Duration::ZERO);
        let mut pauses = Vec::new();
        for _ in 0..12 {
            waiting = waiting.after_failure(now, Duration::ZERO, true);
            pauses.push(waiting.due.duration_since(now).as_secs());
        }
        assert_eq!(pauses[..10], [2, 4, 8, 16, 32, 64, 128, 256, 512, 600]);
        assert_eq!(pauses.last(), Some(&600));
        let long = Duration::from_secs(3600);
        assert_eq!(
            waiting.after_failure(now, long, true).due,
            now + long,
            "never sooner than left alone"
        );
        let first = Waiting::changed(LINK, now, QUIET);
        assert_eq!(
            (first.failed, first.after_failure(now, QUIET, false).due),
            (0, now + PAUSE_MAX)
        );
    }

    #[test]
    fn a_shorter_time_holds_for_what_waits_already() {
        let now = Instant::now();
        let mut queue = Queue::default();
        queue.put(InodeId(1), Waiting::changed(LINK, now, QUIET));
        queue.put(InodeId(2), Waiting::changed(LinkId(2), now, QUIET));
        let failed = Waiting { failed: 3, ..Waiting::changed(LINK, now, QUIET) };
        queue.put(InodeId(3), failed);
        queue.hasten(LINK, now);
        assert_eq!(queue.take(now).map(|(inode, _)| inode), Some(InodeId(1)));
        assert_eq!(queue.next(), Some(now + QUIET));
    }

    #[test]
    fn a_link_is_forgotten_whole_and_there_is_a_bound() {
        let now = Instant::now();
        let mut queue = Queue::default();
        let of = |link| Waiting::changed(LinkId(link), now, QUIET);
        for inode in 0..WAITING_MAX as u64 {
            assert!(queue.put(InodeId(inode), of(u32::from(inode % 2 == 0))));
        }
        assert!(queue.is_full());
        assert!(!queue.put(InodeId(u64::MAX), of(0)));
        assert!(queue.put(InodeId(3), of(0)), "one that waits may wait longer");
        queue.forget(LinkId(1));
        assert_eq!((queue.count(LinkId(1)), queue.count(LinkId(0))), (0, WAITING_MAX / 2));
        assert!(queue.take(now + QUIET).is_some_and(|(inode, _)| inode.0 % 2 == 1));
    }
}
