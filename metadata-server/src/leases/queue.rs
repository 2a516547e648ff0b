//! What is on its way to be taken back from one session.

use std::{
    collections::{BTreeSet, VecDeque},
    time::Duration,
};

use millrace_protocol::lease::{RECALLS_MAX, Recall, Recalls};
use millrace_types::{InodeId, Timestamp};
use tokio::sync::watch;

use super::{Holding, marks::Debt};

/// Recalls that are not acknowledged, in the order of their numbers.
#[derive(Debug)]
pub struct Queue {
    entries: VecDeque<Entry>,
    /// The number of the last one.
    last: u64,
    /// The highest number that was ever sent.
    sent: u64,
    bound: usize,
    /// Raised whenever there is something new.
    news: watch::Sender<u64>,
}

#[derive(Debug)]
struct Entry {
    number: u64,
    recall: Recall,
    /// Who waits for the acknowledgement.
    debts: Vec<Debt>,
    /// The part of a lease that ends with it.
    ends: Option<(InodeId, Holding)>,
    /// For how long the server had listened when this was asked for, or the oldest of what it took
    /// the place of.
    since: Duration,
    /// Of attributes that go on to be kept: since when the session is to be shown what they are
    /// now, if it can be.
    shown: Option<Timestamp>,
}

/// What ended with an acknowledgement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// A part of the lease with this key.
    Part(InodeId, Holding),
    /// Every lease.
    Everything,
    /// Nothing: the session was told what this directory shows, at that time.
    Told(InodeId, Timestamp),
}

impl Queue {
    /// An empty queue that holds `bound` entries.
    #[must_use]
    pub fn new(bound: usize) -> Self {
        let news = watch::Sender::new(0);
        Self { entries: VecDeque::new(), last: 0, sent: 0, bound, news }
    }

    /// Adds a recall, for which `debt` waits and with which `ends` ends, and which is as old as
    /// [`Self::oldest`] counts it. A queue that is full becomes one recall of everything, as old as
    /// the oldest there was; tells whether it did.
    pub fn push(
        &mut self,
        recall: Recall,
        debt: Option<Debt>,
        ends: Option<(InodeId, Holding)>,
        since: Duration,
    ) -> bool {
        self.last += 1;
        let (full, number) = (self.entries.len() >= self.bound, self.last);
        let mut debts: Vec<_> = debt.into_iter().collect();
        let entry = if full {
            let since = self.oldest().unwrap_or(since);
            debts.extend(self.entries.drain(..).flat_map(|entry| entry.debts));
            Entry { number, recall: Recall::Everything, debts, ends: None, since, shown: None }
        } else {
            Entry { number, recall, debts, ends, since, shown: None }
        };
        self.entries.push_back(entry);
        self.news.send_replace(number);
        full
    }

    /// Adds that a directory has other attributes now, under a lease that goes on; otherwise as
    /// [`Self::push`].
    pub fn push_shown(
        &mut self,
        directory: InodeId,
        debt: Debt,
        since: Duration,
        now: Timestamp,
    ) -> bool {
        let full = self.push(Recall::Attributes(directory), Some(debt), None, since);
        if let Some(entry) = self.entries.back_mut() {
            entry.shown = (!full).then_some(now);
        }
        full
    }

    /// Everything up to `through` was dealt with: returns what ended with that. A number that was
    /// never sent acknowledges nothing.
    pub fn handle_acknowledged(&mut self, through: u64) -> Vec<Ended> {
        let mut ended = Vec::new();
        if through > self.sent {
            return ended;
        }
        while let Some(entry) = self.entries.front()
            && entry.number <= through
        {
            match (&entry.recall, entry.ends) {
                (Recall::Everything, _) => ended.push(Ended::Everything),
                (_, Some((key, part))) => ended.push(Ended::Part(key, part)),
                (Recall::Attributes(directory), None) => {
                    ended.extend(entry.shown.map(|since| Ended::Told(*directory, since)));
                }
                (_, None) => {}
            }
            self.entries.pop_front();
        }
        ended
    }

    /// What the session must hear next, from the oldest on.
    pub fn poll(&mut self) -> Recalls {
        let recalls: Vec<_> = self.entries.iter().take(RECALLS_MAX).collect();
        let through = recalls.last().map_or(self.last, |entry| entry.number);
        self.sent = self.sent.max(through);
        let recalls = recalls.into_iter().map(|entry| entry.recall.clone()).collect();
        Recalls { through, recalls }
    }

    /// As [`Self::poll`], with what can be shown apart: directories whose attributes are not taken
    /// back by anything else in the same answer.
    pub fn poll_shown(&mut self) -> (Recalls, BTreeSet<InodeId>) {
        let mut polled = self.poll();
        let entries = self.entries.iter().take(RECALLS_MAX);
        let (mut shown, mut taken) = (BTreeSet::new(), BTreeSet::new());
        for entry in entries {
            match &entry.recall {
                Recall::Attributes(inode) if entry.shown.is_some() => shown.insert(*inode),
                Recall::Attributes(inode) => taken.insert(*inode),
                _ => false,
            };
        }
        shown.retain(|directory| !taken.contains(directory));
        polled.recalls.retain(|recall| match recall {
            Recall::Attributes(inode) => !shown.contains(inode),
            _ => true,
        });
        (polled, shown)
    }

    /// Tells when there is something new.
    #[must_use]
    pub fn news(&self) -> watch::Receiver<u64> {
        self.news.subscribe()
    }

    /// For how long the server had listened when the oldest of them was asked for.
    #[must_use]
    pub fn oldest(&self) -> Option<Duration> {
        self.entries.front().map(|entry| entry.since)
    }

    /// The number of the last one that was added.
    #[must_use]
    pub fn last(&self) -> u64 {
        self.last
    }

    /// Whether one with that number, or before it, is not acknowledged.
    #[must_use]
    pub fn is_pending(&self, number: u64) -> bool {
        self.entries.front().is_some_and(|entry| entry.number <= number)
    }

    /// How many wait.
    #[must_use]
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::InodeId;

    use super::*;
    use crate::leases::Wait;

    const SINCE: Duration = Duration::from_secs(1);

    fn attributes(inode: u64) -> Recall {
        Recall::Attributes(InodeId(inode))
    }

    #[test]
    fn a_recall_comes_again_until_it_is_acknowledged() {
        let mut queue = Queue::new(10);
        let (wait, debt) = Wait::new(Vec::new());
        let part = (InodeId(9), Holding::OWN);
        assert!(!queue.push(attributes(1), Some(debt), Some(part), SINCE));
        assert_eq!(queue.handle_acknowledged(1), []);
        assert!(!wait.is_over(), "what was never sent is not acknowledged");
        for _ in 0..2 {
            let recalls = queue.poll();
            assert_eq!((recalls.through, recalls.recalls), (1, vec![attributes(1)]));
        }
        queue.push(attributes(2), None, None, SINCE);
        assert_eq!(queue.handle_acknowledged(1), [Ended::Part(InodeId(9), Holding::OWN)]);
        assert!(wait.is_over());
        assert_eq!(queue.poll().recalls, [attributes(2)]);
        queue.handle_acknowledged(2);
        assert!(queue.is_empty());
        assert_eq!(queue.poll(), Recalls { through: 2, recalls: Vec::new() });
    }

    #[test]
    fn a_full_queue_becomes_a_recall_of_everything_that_owes_all_that_was_owed() {
        let mut queue = Queue::new(3);
        let (first, debt) = Wait::new(Vec::new());
        queue.push(attributes(1), Some(debt), None, SINCE);
        queue.push(attributes(2), None, None, 2 * SINCE);
        queue.push(attributes(3), None, None, 3 * SINCE);
        queue.poll();
        let (second, debt) = Wait::new(Vec::new());
        assert!(queue.push(attributes(4), Some(debt), None, 4 * SINCE));
        assert_eq!(queue.oldest(), Some(SINCE), "as old as what it took the place of");
        assert_eq!(queue.handle_acknowledged(3), []);
        assert!(!first.is_over(), "it waits for the recall that took its place");
        let recalls = queue.poll();
        assert_eq!((recalls.through, recalls.recalls), (4, vec![Recall::Everything]));
        queue.push(attributes(5), None, None, 5 * SINCE);
        assert_eq!(queue.handle_acknowledged(4), [Ended::Everything]);
        assert_eq!(queue.oldest(), Some(5 * SINCE));
        assert!(first.is_over() && second.is_over());
    }

    #[test]
    fn what_a_directory_shows_takes_the_place_of_a_recall_unless_that_is_taken_back() {
        let mut queue = Queue::new(10);
        let debt = || Wait::new(Vec::new()).1;
        for (inode, at) in [(1, 5), (2, 6), (1, 7)] {
            queue.push_shown(InodeId(inode), debt(), SINCE, Timestamp(at));
        }
        queue.push(attributes(2), None, Some((InodeId(2), Holding::OWN)), SINCE);
        let (polled, shown) = queue.poll_shown();
        assert_eq!((polled.through, polled.recalls), (4, vec![attributes(2), attributes(2)]));
        assert_eq!(shown, BTreeSet::from([InodeId(1)]));
        let all: Vec<_> = [1, 2, 1, 2].map(attributes).into();
        assert_eq!(queue.poll().recalls, all, "who hears only of recalls hears of all");
        let told = |inode, at| Ended::Told(InodeId(inode), Timestamp(at));
        let taken = Ended::Part(InodeId(2), Holding::OWN);
        assert_eq!(queue.handle_acknowledged(4), [told(1, 5), told(2, 6), told(1, 7), taken]);
        assert!(queue.is_empty());
    }

    #[test]
    fn the_end_of_a_session_pays_its_debts() {
        let (wait, debt) = Wait::new(Vec::new());
        let mut queue = Queue::new(3);
        queue.push(attributes(1), Some(debt), None, SINCE);
        drop(queue);
        assert!(wait.is_over());
    }
}
