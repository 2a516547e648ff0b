//! Files that wait to be left alone for long enough, or for their next try. No I/O, no clock.
//!
//! Each link has a line of its own. While there is room any line may be as long as it likes; when
//! there is none, the longest gives a place to one that is shorter even then, so that no link keeps
//! another from having as many as itself. What finds no room, or gives it, is for a walk to find.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    time::Duration,
};

use millrace_types::{InodeId, LinkId};
use tokio::time::Instant;

/// Files that wait, of all links: 100 bytes each, with both tables.
const WAITING_MAX: usize = 1 << 18;

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

/// Each file once, in the line of its link.
#[derive(Debug)]
pub(super) struct Queue {
    places: usize,
    files: HashMap<InodeId, Waiting>,
    /// Without those in which nobody waits.
    lines: BTreeMap<LinkId, Line>,
}

/// The files of one link, in the order in which they are due.
#[derive(Debug, Default)]
struct Line {
    /// Those that have not failed since they were changed.
    fresh: BTreeSet<(Instant, InodeId)>,
    failed: BTreeSet<(Instant, InodeId)>,
    /// Whether one that has failed comes next.
    failed_next: bool,
}

impl Default for Queue {
    fn default() -> Self {
        Self::with_places(WAITING_MAX)
    }
}

impl Queue {
    /// One that so many files fit into.
    pub(super) fn with_places(places: usize) -> Self {
        Self { places, files: HashMap::new(), lines: BTreeMap::new() }
    }

    /// Lets a file wait, in the place of what was known of it. When not everything fits, the link
    /// of which a file is left out: its own, which lets it not wait, or the one with most files.
    #[must_use]
    pub(super) fn put(&mut self, inode: InodeId, waiting: Waiting) -> Option<LinkId> {
        let mut left_out = None;
        if let Some(&known) = self.files.get(&inode) {
            self.leave(inode, known);
        } else if self.files.len() >= self.places {
            left_out = self.make_room(waiting.link);
            if left_out.is_none() {
                return Some(waiting.link);
            }
        }
        let line = self.lines.entry(waiting.link).or_default();
        line.order(waiting).insert((waiting.due, inode));
        self.files.insert(inode, waiting);
        left_out
    }

    /// As [`Self::put`], unless the file waits already, for whatever.
    #[must_use]
    pub(super) fn put_new(&mut self, inode: InodeId, waiting: Waiting) -> Option<LinkId> {
        match self.files.contains_key(&inode) {
            true => None,
            false => self.put(inode, waiting),
        }
    }

    /// Takes a file of a link that is due: in turn the one that has been due for longest of those
    /// that have failed, and of those that have not. So neither holds the other up.
    pub(super) fn take(&mut self, link: LinkId, now: Instant) -> Option<(InodeId, Waiting)> {
        let line = self.lines.get_mut(&link)?;
        let inode = line.pop_due(now)?;
        if line.len() == 0 {
            self.lines.remove(&link);
        }
        self.files.remove_entry(&inode)
    }

    /// The links of which files wait, with when the next one of each is due.
    pub(super) fn next(&self) -> impl Iterator<Item = (LinkId, Instant)> {
        self.lines.iter().filter_map(|(link, line)| Some((*link, line.next()?)))
    }

    /// Files of a link.
    pub(super) fn count(&self, link: LinkId) -> usize {
        self.lines.get(&link).map_or(0, Line::len)
    }

    /// Lets no file of a link that has not failed wait longer than until then.
    pub(super) fn hasten(&mut self, link: LinkId, due: Instant) {
        let Some(line) = self.lines.get_mut(&link) else { return };
        for (_, inode) in line.fresh.split_off(&(due, InodeId(u64::MAX))) {
            line.fresh.insert((due, inode));
            if let Some(waiting) = self.files.get_mut(&inode) {
                waiting.due = due;
            }
        }
    }

    /// Forgets the files of a link.
    pub(super) fn forget(&mut self, link: LinkId) {
        let Some(line) = self.lines.remove(&link) else { return };
        for (_, inode) in line.fresh.into_iter().chain(line.failed) {
            self.files.remove(&inode);
        }
    }

    /// Takes a file out of its line.
    fn leave(&mut self, inode: InodeId, known: Waiting) {
        let Some(line) = self.lines.get_mut(&known.link) else { return };
        line.order(known).remove(&(known.due, inode));
        if line.len() == 0 {
            self.lines.remove(&known.link);
        }
    }

    /// Forgets a file of the link with the most, if a link then still has no more with one more.
    /// Which link that was.
    fn make_room(&mut self, link: LinkId) -> Option<LinkId> {
        let own = self.count(link);
        let (&longest, line) = self.lines.iter_mut().max_by_key(|(_, line)| line.len())?;
        if line.len() < own + 2 {
            return None;
        }
        let inode = line.pop_last()?;
        self.files.remove(&inode);
        Some(longest)
    }
}

impl Line {
    fn len(&self) -> usize {
        self.fresh.len() + self.failed.len()
    }

    /// Where a file is to be found that waits so.
    fn order(&mut self, waiting: Waiting) -> &mut BTreeSet<(Instant, InodeId)> {
        match waiting.failed {
            0 => &mut self.fresh,
            _ => &mut self.failed,
        }
    }

    fn next(&self) -> Option<Instant> {
        let first = [self.fresh.first(), self.failed.first()];
        first.into_iter().flatten().map(|(due, _)| *due).min()
    }

    fn pop_due(&mut self, now: Instant) -> Option<InodeId> {
        let is_due = |first: Option<&(Instant, InodeId)>| first.is_some_and(|(due, _)| *due <= now);
        let takes_failed = match (is_due(self.fresh.first()), is_due(self.failed.first())) {
            (false, false) => return None,
            (true, true) => self.failed_next,
            (_, only_failed) => only_failed,
        };
        self.failed_next = !takes_failed;
        let files = if takes_failed { &mut self.failed } else { &mut self.fresh };
        files.pop_first().map(|(_, inode)| inode)
    }

    /// Takes out the file that is due last.
    fn pop_last(&mut self) -> Option<InodeId> {
        let is_failed = self.failed.last() > self.fresh.last();
        let files = if is_failed { &mut self.failed } else { &mut self.fresh };
        files.pop_last().map(|(_, inode)| inode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINK: LinkId = LinkId(1);
    const OTHER: LinkId = LinkId(2);
    const QUIET: Duration = Duration::from_secs(30);

    /// When the next file of any link is due.
    fn next(queue: &Queue) -> Option<Instant> {
        queue.next().map(|(_, due)| due).min()
    }

    /// Lets so many more files of a link wait; those that are left out, by their links.
    fn fill(queue: &mut Queue, link: LinkId, count: u64, now: Instant) -> Vec<LinkId> {
        let first = (u64::from(link.0) << 32) + queue.count(link) as u64;
        let files = (first..first + count).map(InodeId);
        files.filter_map(|inode| queue.put(inode, Waiting::changed(link, now, QUIET))).collect()
    }

    #[test]
    fn a_file_waits_from_its_last_change_on_and_comes_once() {
        let start = Instant::now();
        let mut queue = Queue::default();
        assert_eq!((next(&queue), queue.take(LINK, start)), (None, None));
        let later = start + Duration::from_secs(20);
        for (inode, changed) in [(1, start), (2, start + Duration::from_secs(1)), (1, later)] {
            let left_out = queue.put(InodeId(inode), Waiting::changed(LINK, changed, QUIET));
            assert_eq!(left_out, None);
        }
        assert_eq!(queue.count(LINK), 2);
        let now = start + Duration::from_secs(31);
        assert_eq!(queue.take(LINK, now).map(|(inode, _)| inode), Some(InodeId(2)));
        assert_eq!(queue.take(LINK, now), None);
        assert_eq!(next(&queue), Some(later + QUIET));
        // What is found without having changed moves nobody back.
        assert_eq!(queue.put_new(InodeId(1), Waiting::changed(LINK, now, Duration::ZERO)), None);
        assert_eq!(next(&queue), Some(later + QUIET));
        assert!(queue.take(LINK, later + QUIET).is_some() && next(&queue).is_none());
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
    fn what_has_failed_and_what_has_not_take_turns() {
        let now = Instant::now();
        let mut queue = Queue::default();
        for inode in 0..6 {
            // Those that have failed have been due for longer.
            let (failed, due) = match inode {
                0..4 => (1, now),
                _ => (0, now + Duration::from_secs(1)),
            };
            assert_eq!(queue.put(InodeId(inode), Waiting { link: LINK, due, failed }), None);
        }
        let later = now + Duration::from_secs(1);
        let order = std::iter::from_fn(|| queue.take(LINK, later)).map(|(inode, _)| inode.0);
        assert_eq!(order.collect::<Vec<_>>(), [4, 0, 5, 1, 2, 3]);
        assert_eq!(queue.next().count(), 0, "no line is left behind");
    }

    #[test]
    fn a_shorter_time_holds_for_what_waits_already() {
        let now = Instant::now();
        let mut queue = Queue::default();
        let changed = Waiting::changed(LINK, now, QUIET);
        let failed = Waiting { failed: 3, ..changed };
        let others = Waiting::changed(OTHER, now, QUIET);
        for (inode, waiting) in [(1, changed), (2, others), (3, failed)] {
            assert_eq!(queue.put(InodeId(inode), waiting), None);
        }
        queue.hasten(LINK, now);
        assert_eq!(queue.take(OTHER, now), None);
        assert_eq!(queue.take(LINK, now), Some((InodeId(1), Waiting { due: now, ..changed })));
        assert_eq!(queue.take(LINK, now), None);
        assert_eq!(next(&queue), Some(now + QUIET));
    }

    #[test]
    fn a_link_is_forgotten_whole_and_there_is_a_bound() {
        let now = Instant::now();
        let mut queue = Queue::with_places(10);
        assert!(fill(&mut queue, LINK, 5, now).is_empty());
        assert_eq!(fill(&mut queue, OTHER, 7, now), [OTHER, OTHER]);
        let known = InodeId(u64::from(OTHER.0) << 32);
        let left_out = queue.put(known, Waiting::changed(OTHER, now, QUIET * 2));
        assert_eq!(left_out, None, "one that waits may wait longer");
        queue.forget(LINK);
        assert_eq!((queue.count(LINK), queue.count(OTHER)), (0, 5));
        assert_eq!(queue.take(LINK, now + QUIET), None);
        assert!(fill(&mut queue, LINK, 5, now).is_empty(), "its places are free");
    }

    #[test]
    fn a_link_that_has_all_places_gives_them_to_others_until_all_have_as_many() {
        let now = Instant::now();
        let mut queue = Queue::with_places(12);
        assert_eq!(fill(&mut queue, LINK, 14, now), [LINK; 2]);
        // The one that is due last goes first.
        let last = InodeId((u64::from(LINK.0) << 32) + 3);
        assert_eq!(queue.put(last, Waiting::changed(LINK, now, QUIET * 2)), None);
        let mut expected = vec![LINK; 6];
        expected.extend([OTHER; 3]);
        assert_eq!(fill(&mut queue, OTHER, 9, now), expected);
        assert!(!queue.files.contains_key(&last));
        assert_eq!((queue.count(LINK), queue.count(OTHER)), (6, 6));
        // Of two that have as many, each gives some.
        let given = fill(&mut queue, LinkId(3), 9, now);
        assert_eq!(given.iter().filter(|link| **link == LinkId(3)).count(), 5);
        let counts = [LINK, OTHER, LinkId(3)].map(|link| queue.count(link));
        assert_eq!((counts, queue.files.len()), ([4; 3], 12));
        // And nobody takes anything back.
        assert_eq!(queue.put(InodeId(7), Waiting::changed(LINK, now, QUIET)), Some(LINK));
        let held: usize = queue.lines.values().map(Line::len).sum();
        assert_eq!(held, queue.files.len());
    }
}
