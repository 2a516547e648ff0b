//! Which links have their turn, and what of them is under way. No I/O, no clock.
//!
//! A link asks for its turn when something of it is due, and keeps it while anything is due or
//! under way. When a job wants it, nothing more begins.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use millrace_types::LinkId;
use tokio::{sync::Semaphore, time::Instant};

use crate::hydration::jobs::{
    alone::{Claim, Turn},
    export::UPLOADS_MAX,
};

/// Uploads of one link at a time, beside those of others that are busy: parts that hang on one
/// bucket keep none from another, and targets have not many times as much to do with several of
/// them.
fn uploads_max(others: usize) -> usize {
    (UPLOADS_MAX / (others + 1)).max(UPLOADS_MIN)
}

/// Uploads that any link may have at a time: the parts of one large file.
const UPLOADS_MIN: usize = 4;

/// Exports of removed files are looked for again after so many times what that took last: while
/// each look waits for a bucket that is away, that has the turn for a tenth of the time at most.
const REMOVED_REST: u32 = 9;

/// But not more often: each look goes through all exports that were left under way.
const REMOVED_REST_MIN: Duration = Duration::from_secs(1);

/// The links that have their turn, and those that wait for it.
#[derive(Debug, Default)]
pub(super) struct Turns<'a> {
    links: BTreeMap<LinkId, Busy<'a>>,
    asked: BTreeSet<LinkId>,
    /// When exports of removed files are looked for again; of others with their next turn.
    removed_due: BTreeMap<LinkId, Instant>,
}

/// A link that has its turn.
#[derive(Debug)]
struct Busy<'a> {
    turn: Turn<'a>,
    /// Each link's own: parts that hang at one bucket hold up none for another.
    uploads: Arc<Semaphore>,
    under_way: usize,
}

impl<'a> Turns<'a> {
    /// Whether a file of a link may begin.
    pub(super) fn may_send(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|busy| !busy.turn.is_wanted())
    }

    /// A file of a link that may send begins. What its uploads share.
    pub(super) fn begin(&mut self, link: LinkId) -> Arc<Semaphore> {
        let busy = self.links.get_mut(&link).expect("a link that may send has its turn");
        busy.under_way += 1;
        Arc::clone(&busy.uploads)
    }

    /// A file of a link has ended.
    pub(super) fn handle_end(&mut self, link: LinkId) {
        if let Some(busy) = self.links.get_mut(&link) {
            busy.under_way -= 1;
        }
    }

    /// Gives the turns back of which nothing is under way and, where no job wants them, due.
    pub(super) fn give_back(&mut self, due: &BTreeSet<LinkId>) {
        self.links.retain(|link, busy| {
            busy.under_way > 0 || (due.contains(link) && !busy.turn.is_wanted())
        });
    }

    /// Whether a link that has something due is to wait for its turn, and does not yet.
    pub(super) fn ask(&mut self, link: LinkId) -> bool {
        !self.links.contains_key(&link) && self.asked.insert(link)
    }

    /// A link waits no longer: it has its turn, or has to ask again. When its exports of removed
    /// files are to be looked for, which is under way from now on, what it has the turn of.
    pub(super) fn handle_turn(
        &mut self,
        link: LinkId,
        turn: Option<Turn<'a>>,
        now: Instant,
    ) -> Option<Arc<Claim>> {
        self.asked.remove(&link);
        let turn = turn?;
        let is_due = self.removed_due.get(&link).is_none_or(|due| *due <= now);
        let claim = is_due.then(|| Arc::clone(turn.claim()));
        let uploads = Arc::new(Semaphore::new(uploads_max(self.links.len())));
        self.links.insert(link, Busy { turn, uploads, under_way: usize::from(is_due) });
        claim
    }

    /// Exports of removed files of a link were looked for, which took so long.
    pub(super) fn handle_looked(&mut self, link: LinkId, took: Duration, now: Instant) {
        self.handle_end(link);
        self.removed_due.retain(|_, due| *due > now);
        self.removed_due.insert(link, now + (REMOVED_REST * took).max(REMOVED_REST_MIN));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hydration::jobs::Alone;

    const LINK: LinkId = LinkId(1);
    const OTHER: LinkId = LinkId(2);

    fn claim(link: LinkId) -> Arc<Claim> {
        Claim::of(&[(link.0, if link == LINK { "s3://b/1/" } else { "s3://b/2/" })])
    }

    #[tokio::test]
    async fn a_turn_is_kept_while_something_is_due_or_under_way_and_no_job_wants_it() {
        let (alone, now) = (Alone::default(), Instant::now());
        let (mut turns, both) = (Turns::default(), BTreeSet::from([LINK, OTHER]));
        for link in [LINK, OTHER] {
            assert!(turns.ask(link) && !turns.ask(link), "once");
            let turn = alone.take_last(claim(link)).await;
            assert!(turns.handle_turn(link, Some(turn), now).is_some());
            turns.handle_looked(link, Duration::from_secs(1), now);
        }
        turns.give_back(&both);
        assert!(turns.may_send(LINK) && turns.may_send(OTHER), "they wait for a slot");
        turns.begin(LINK);
        {
            let mut job = std::pin::pin!(alone.take(claim(LINK)));
            assert!(futures::poll!(&mut job).is_pending());
            assert!(!turns.may_send(LINK) && turns.may_send(OTHER));
            turns.give_back(&both);
            assert!(futures::poll!(&mut job).is_pending(), "a file is under way");
            turns.handle_end(LINK);
            turns.give_back(&both);
            assert!(futures::poll!(&mut job).is_ready());
        }
        turns.give_back(&BTreeSet::new());
        assert!(!turns.may_send(OTHER), "nothing of it is due");
        assert!(turns.ask(LINK) && turns.handle_turn(LINK, None, now).is_none());
        let turn = alone.take_last(claim(LINK)).await;
        assert!(turns.ask(LINK), "the last one could not be had");
        assert!(turns.handle_turn(LINK, Some(turn), now).is_none(), "that was looked at just now");
    }

    #[tokio::test]
    async fn exports_of_removed_files_are_not_looked_for_with_every_turn() {
        let (alone, now) = (Alone::default(), Instant::now());
        let mut turns = Turns::default();
        for (after, is_due) in [(0, true), (999, false), (1_000, true)] {
            let turn = alone.take_last(claim(LINK)).await;
            let looks = turns.handle_turn(LINK, Some(turn), now + Duration::from_millis(after));
            assert_eq!(looks.is_some(), is_due, "{after}");
            if after == 0 {
                turns.handle_looked(LINK, Duration::ZERO, now);
            }
            turns.give_back(&BTreeSet::new());
        }
    }

    #[test]
    fn links_share_uploads() {
        assert_eq!([0, 1, 3, 100].map(uploads_max), [32, 16, 8, 4]);
    }
}
