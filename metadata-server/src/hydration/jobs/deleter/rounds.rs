//! Whose deletions have their turn. A round gives each link a share, which begins where its last
//! one ended. No I/O, no clock.
//!
//! A link of which nothing can be deleted, because its bucket refuses that or does not answer,
//! rests between its rounds, longer each time: each try of a bucket that is away takes some 40 s,
//! in which nothing of the link is exported.

use std::{collections::BTreeMap, time::Duration};

use millrace_types::{ErrorKind, LinkId};
use tokio::time::Instant;

use super::{Ended, Queued};

/// Entries of a round, in all its shares.
const ENTRIES_MAX: usize = 256;

/// The part of a round that each of some links has.
pub(super) fn part_of(links: usize) -> usize {
    (ENTRIES_MAX / links.max(1)).max(1)
}

/// How long a link rests: first about as long as a bucket that is away takes, then twice as long
/// each time, up to the longest, with which that has an eighth of the time.
const REST_FIRST: Duration = Duration::from_secs(30);
const REST_MAX: Duration = Duration::from_secs(300);

/// Where the rounds are.
#[derive(Debug, Default)]
pub(super) struct Rounds {
    /// The link that was looked at last.
    last: Option<LinkId>,
    links: BTreeMap<LinkId, Course>,
}

#[derive(Debug, Default)]
struct Course {
    /// The key behind which the next share begins; none for the first one.
    after: Option<String>,
    /// Rounds that failed since something was deleted.
    failed: u32,
    rests_until: Option<Instant>,
}

/// What a round deletes of one link.
#[derive(Debug)]
pub(super) struct Share {
    pub(super) link: LinkId,
    pub(super) entries: Vec<Queued>,
}

impl Rounds {
    /// Those of some links, which ascend, that do not rest: from the one on that is behind the link
    /// that was looked at last. Each comes with something of the caller's.
    pub(super) fn order<T>(&self, mut links: Vec<(LinkId, T)>, now: Instant) -> Vec<(LinkId, T)> {
        let rests = |link: &LinkId| self.links.get(link).is_some_and(|course| course.rests(now));
        links.retain(|(link, _)| !rests(link));
        let first = links.partition_point(|(link, _)| Some(*link) <= self.last);
        links.rotate_left(first);
        links
    }

    /// The key behind which the next share of a link begins.
    pub(super) fn after(&self, link: LinkId) -> Option<String> {
        self.links.get(&link).and_then(|course| course.after.clone())
    }

    /// A link was looked at, up to this key; `None` for its last one.
    pub(super) fn handle_look(&mut self, link: LinkId, up_to: Option<String>) {
        self.last = Some(link);
        self.links.entry(link).or_default().after = up_to;
    }

    /// Leaves a share so many entries. The link's next one begins with what is cut off.
    pub(super) fn cut(&mut self, share: &mut Share, most: usize) {
        let Share { link, entries } = share;
        if entries.len() > most {
            entries.truncate(most);
            let last = entries.last().map(|last| last.key.clone());
            self.links.entry(*link).or_default().after = last;
        }
    }

    /// Some entries of a link have been tried. Whether the link rests from now on and did not
    /// before.
    pub(super) fn handle_end(
        &mut self,
        link: LinkId,
        ended: &[(String, Ended)],
        now: Instant,
    ) -> bool {
        let course = self.links.entry(link).or_default();
        if ended.iter().any(|(_, ended)| matches!(ended, Ended::Deleted)) {
            (course.failed, course.rests_until) = (0, None);
            return false;
        }
        if course.rests(now) || !ended.iter().any(|(_, ended)| is_of_bucket(ended)) {
            return false;
        }
        let rest = REST_FIRST.saturating_mul(1 << course.failed.min(10));
        course.rests_until = Some(now + rest.min(REST_MAX));
        course.failed = course.failed.saturating_add(1);
        course.failed == 1
    }

    /// Whether the last round of a link failed because of its bucket.
    pub(super) fn has_failed(&self, link: LinkId) -> bool {
        self.links.get(&link).is_some_and(|course| course.failed > 0)
    }

    /// Forgets links whose removals do not reach their buckets any more.
    pub(super) fn keep_links(&mut self, is_on: impl Fn(LinkId) -> bool) {
        self.links.retain(|link, _| is_on(*link));
    }
}

impl Course {
    fn rests(&self, now: Instant) -> bool {
        self.rests_until.is_some_and(|until| now < until)
    }
}

/// Whether an entry failed because of the bucket, or of one that has more to do than it can.
fn is_of_bucket(ended: &Ended) -> bool {
    let kinds = [ErrorKind::BucketDenied, ErrorKind::BucketUnavailable, ErrorKind::Busy];
    matches!(ended, Ended::Failed(failure) if kinds.contains(&failure.kind))
}

#[cfg(test)]
mod tests {
    use std::ops::Range;

    use millrace_types::Timestamp;

    use super::*;
    use crate::store::records::DeletionRecord;

    const LINK: LinkId = LinkId(1);
    const OTHER: LinkId = LinkId(2);

    fn share(link: LinkId, count: usize) -> Share {
        let entry = |number| {
            let (tag, inodes, queued) = (String::new(), Vec::new(), Timestamp(1));
            let key = format!("{number:04}");
            Queued { link, key, record: DeletionRecord { tag, inodes, queued } }
        };
        Share { link, entries: (0..count).map(entry).collect() }
    }

    fn failed(kind: ErrorKind) -> (String, Ended) {
        ("key".to_owned(), Ended::Failed(kind.into()))
    }

    fn deleted() -> (String, Ended) {
        ("key".to_owned(), Ended::Deleted)
    }

    fn order(rounds: &Rounds, links: Range<u32>, now: Instant) -> Vec<u32> {
        let links = links.map(|link| (LinkId(link), ())).collect();
        rounds.order(links, now).into_iter().map(|(link, ())| link.0).collect()
    }

    #[test]
    fn a_round_begins_behind_the_link_that_was_looked_at_last() {
        let now = Instant::now();
        let mut rounds = Rounds::default();
        assert_eq!(order(&rounds, 1..5, now), [1, 2, 3, 4]);
        rounds.handle_look(LinkId(2), None);
        assert_eq!(order(&rounds, 1..5, now), [3, 4, 1, 2]);
        rounds.handle_look(LinkId(4), None);
        assert_eq!(order(&rounds, 1..5, now), [1, 2, 3, 4]);
        assert_eq!(order(&rounds, 1..3, now), [1, 2], "it is gone");
        assert!(order(&rounds, 1..1, now).is_empty());
    }

    #[test]
    fn links_share_a_round_and_each_goes_on_where_it_ended() {
        let mut rounds = Rounds::default();
        let mut shares = [share(LINK, 300), share(OTHER, 3)];
        rounds.handle_look(LINK, Some("0299".to_owned()));
        rounds.handle_look(OTHER, None);
        for share in &mut shares {
            rounds.cut(share, part_of(2));
        }
        assert_eq!(shares.each_ref().map(|share| share.entries.len()), [128, 3]);
        assert_eq!(rounds.after(LINK).as_deref(), Some("0127"));
        assert_eq!(rounds.after(OTHER), None, "it begins anew");
        let mut alone = share(LINK, 200);
        rounds.handle_look(LINK, Some("0199".to_owned()));
        rounds.cut(&mut alone, part_of(1));
        assert_eq!(alone.entries.len(), 200);
        assert_eq!(rounds.after(LINK).as_deref(), Some("0199"));
        rounds.keep_links(|link| link == OTHER);
        assert_eq!(rounds.after(LINK), None);
        assert_eq!([0, 3, 1000].map(part_of), [256, 85, 1]);
    }

    #[test]
    fn a_link_of_which_nothing_can_be_deleted_rests_longer_each_time() {
        let mut now = Instant::now();
        let mut rounds = Rounds::default();
        let mut rests = Vec::new();
        for round in 0..6 {
            let kinds = [ErrorKind::BucketDenied, ErrorKind::BucketUnavailable];
            let is_news = rounds.handle_end(LINK, &kinds.map(failed), now);
            assert_eq!(is_news, round == 0);
            // What a job tries meanwhile makes it no longer.
            assert!(!rounds.handle_end(LINK, &kinds.map(failed), now));
            assert_eq!(order(&rounds, 1..3, now), [OTHER.0]);
            let second = Duration::from_secs(1);
            let rest = (1..).find(|rest| order(&rounds, 1..3, now + second * *rest).len() == 2);
            rests.extend(rest);
            now += second * rests[round];
        }
        assert_eq!(rests, [30, 60, 120, 240, 300, 300]);
        assert!(rounds.has_failed(LINK) && !rounds.has_failed(OTHER));
        rounds.handle_end(LINK, &[failed(ErrorKind::BucketDenied), deleted()], now);
        assert!(!rounds.has_failed(LINK));
        assert!(rounds.handle_end(LINK, &[failed(ErrorKind::BucketDenied)], now));
        let later = now + REST_FIRST;
        assert_eq!(order(&rounds, 1..3, later), [1, 2], "it begins anew");
    }

    #[test]
    fn what_waits_or_fails_by_itself_holds_up_no_others_of_its_link() {
        let now = Instant::now();
        let mut rounds = Rounds::default();
        let ended = [failed(ErrorKind::Corrupt), ("key".to_owned(), Ended::Waits)];
        assert!(!rounds.handle_end(LINK, &ended, now));
        assert_eq!(order(&rounds, 1..3, now), [1, 2]);
    }
}
