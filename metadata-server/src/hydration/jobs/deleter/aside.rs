//! Objects that are not deleted now, and when each is looked at again. No I/O, no clock.
//!
//! What has no room here is looked at again with the next round that comes by.

use std::{
    collections::{BTreeMap, HashSet},
    ops::Bound,
    time::Duration,
};

use millrace_types::{Failure, LinkId, Timestamp};
use tokio::time::Instant;

use super::Queued;

/// Objects that are put aside, of all links: some 300 bytes each, with key and reason.
const ASIDE_MAX: usize = 100_000;

/// When something is looked at again that waits for something else here.
const WAIT_PAUSE: Duration = Duration::from_secs(5);

/// After a failure: twice this, then twice as long each time, up to the longest.
const FAILURE_PAUSE: Duration = Duration::from_secs(2);
const FAILURE_PAUSE_MAX: Duration = Duration::from_secs(600);

/// What is put aside of each link.
#[derive(Debug)]
pub(super) struct Aside {
    places: usize,
    /// Without those of which nothing is.
    links: BTreeMap<LinkId, BTreeMap<String, Reason>>,
}

/// Why something is not deleted now, and when it is looked at again.
#[derive(Debug)]
struct Reason {
    due: Instant,
    attempts: u32,
    /// Of the entry that was tried: one that was queued since is another one.
    queued: Timestamp,
    /// None while something here may need the object.
    failure: Option<Failure>,
}

impl Default for Aside {
    fn default() -> Self {
        Self::with_places(ASIDE_MAX)
    }
}

impl Aside {
    /// One that so many objects fit into.
    fn with_places(places: usize) -> Self {
        Self { places, links: BTreeMap::new() }
    }

    /// Puts an entry aside that was looked at: longer each time. Whether it fails for the first
    /// time, as far as anybody knows.
    pub(super) fn put(&mut self, entry: &Queued, failure: Option<Failure>, now: Instant) -> bool {
        let before = self.remove(entry).filter(|before| before.queued == entry.record.queued);
        let attempts = before.as_ref().map_or(0, |before| before.attempts) + 1;
        let doubled = FAILURE_PAUSE * (1 << attempts.min(10));
        let pause = match failure {
            Some(_) => doubled,
            None => WAIT_PAUSE.max(doubled / 4),
        };
        let is_new = failure.is_some() && before.is_none_or(|before| before.failure.is_none());
        if self.make_room(entry.link) {
            let due = now + pause.min(FAILURE_PAUSE_MAX);
            let reason = Reason { due, attempts, queued: entry.record.queued, failure };
            self.links.entry(entry.link).or_default().insert(entry.key.clone(), reason);
        }
        is_new
    }

    /// An entry is over.
    pub(super) fn forget(&mut self, entry: &Queued) {
        self.remove(entry);
    }

    /// Whether an entry is not aside, or was for long enough.
    pub(super) fn is_due(&self, entry: &Queued, now: Instant) -> bool {
        let reason = self.links.get(&entry.link).and_then(|keys| keys.get(&entry.key));
        reason.is_none_or(|reason| reason.due <= now || reason.queued != entry.record.queued)
    }

    /// What fails of a link that was queued at this time or later, in the order of the keys.
    pub(super) fn failing(
        &self,
        link: LinkId,
        since: Timestamp,
    ) -> impl Iterator<Item = (&String, &Failure)> {
        let keys = self.links.get(&link).into_iter().flatten();
        let keys = keys.filter(move |(_, reason)| reason.queued >= since);
        keys.filter_map(|(key, reason)| Some((key, reason.failure.as_ref()?)))
    }

    /// Forgets what is aside of a link behind a key, up to the last of a page of its queue, or to
    /// its end, and is not in that page: its entries are gone.
    pub(super) fn keep(
        &mut self,
        link: LinkId,
        after: Option<&str>,
        page: &[Queued],
        is_last: bool,
    ) {
        let Some(keys) = self.links.get_mut(&link) else { return };
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let last = page.last().filter(|_| !is_last);
        if after.zip(last).is_some_and(|(after, last)| *last.key <= *after) {
            // Only of keys that are no text, of which there are none.
            return;
        }
        let to = last.map_or(Bound::Unbounded, |last| Bound::Included(last.key.as_str()));
        let there: HashSet<&str> = page.iter().map(|entry| entry.key.as_str()).collect();
        let aside = keys.range::<str, _>((from, to)).map(|(key, _)| key);
        let gone: Vec<String> =
            aside.filter(|key| !there.contains(key.as_str())).cloned().collect();
        for key in gone {
            keys.remove(&key);
        }
        if keys.is_empty() {
            self.links.remove(&link);
        }
    }

    /// Forgets what is aside of links whose removals do not reach their buckets any more.
    pub(super) fn keep_links(&mut self, is_on: impl Fn(LinkId) -> bool) {
        self.links.retain(|link, _| is_on(*link));
    }

    fn remove(&mut self, entry: &Queued) -> Option<Reason> {
        let keys = self.links.get_mut(&entry.link)?;
        let reason = keys.remove(&entry.key);
        if keys.is_empty() {
            self.links.remove(&entry.link);
        }
        reason
    }

    /// Whether one more of a link fits: else the link with the most has one less, if that is still
    /// no less than the other then has.
    fn make_room(&mut self, link: LinkId) -> bool {
        if self.links.values().map(BTreeMap::len).sum::<usize>() < self.places {
            return true;
        }
        let own = self.links.get(&link).map_or(0, BTreeMap::len);
        let most = self.links.values_mut().max_by_key(|keys| keys.len());
        let gives = most.filter(|keys| keys.len() >= own + 2);
        gives.is_some_and(|keys| keys.pop_last().is_some())
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::ErrorKind;

    use super::*;
    use crate::store::records::DeletionRecord;

    const LINK: LinkId = LinkId(1);
    const OTHER: LinkId = LinkId(2);

    fn entry(link: LinkId, key: &str, queued: i64) -> Queued {
        let (tag, inodes, queued) = (String::new(), Vec::new(), Timestamp(queued));
        Queued { link, key: key.to_owned(), record: DeletionRecord { tag, inodes, queued } }
    }

    fn denied() -> Option<Failure> {
        Some(ErrorKind::BucketDenied.into())
    }

    fn keys(aside: &Aside, link: LinkId) -> Vec<&str> {
        aside.failing(link, Timestamp(0)).map(|(key, _)| key.as_str()).collect()
    }

    #[test]
    fn failures_are_put_off_longer_each_time_and_never_for_ever() {
        let mut aside = Aside::default();
        let (entry, mut now) = (entry(LINK, "a", 1), Instant::now());
        let mut pauses = Vec::new();
        for attempt in 0..12 {
            assert_eq!(aside.put(&entry, denied(), now), attempt == 0, "it is news once");
            let second = Duration::from_secs(1);
            let pause = (1..).find(|seconds| aside.is_due(&entry, now + second * *seconds));
            pauses.extend(pause);
            now += second * pauses[attempt];
        }
        assert_eq!(pauses[..9], [4, 8, 16, 32, 64, 128, 256, 512, 600]);
        assert_eq!(pauses[11], 600);
        aside.forget(&entry);
        assert!(aside.is_due(&entry, now) && aside.links.is_empty());
    }

    #[test]
    fn what_is_queued_again_is_another_entry() {
        let mut aside = Aside::default();
        let now = Instant::now();
        aside.put(&entry(LINK, "a", 1), denied(), now);
        assert!(!aside.is_due(&entry(LINK, "a", 1), now));
        assert!(aside.is_due(&entry(LINK, "a", 2), now));
        assert!(aside.put(&entry(LINK, "a", 2), denied(), now), "it fails for the first time");
        // Of what was queued before propagation was switched on, for the last time, nothing is.
        assert_eq!(aside.failing(LINK, Timestamp(2)).count(), 1);
        assert_eq!(aside.failing(LINK, Timestamp(3)).count(), 0);
    }

    #[test]
    fn what_is_gone_from_the_queue_is_forgotten() {
        let mut aside = Aside::default();
        let now = Instant::now();
        for key in ["a", "b", "c", "d", "e"] {
            aside.put(&entry(LINK, key, 1), denied(), now);
        }
        aside.put(&entry(OTHER, "b", 1), denied(), now);
        let page = [entry(LINK, "c", 1), entry(LINK, "cc", 1)];
        aside.keep(LINK, Some("a"), &page, false);
        assert_eq!(keys(&aside, LINK), ["a", "c", "d", "e"]);
        aside.keep(LINK, Some("c"), &[entry(LINK, "d", 1)], true);
        assert_eq!(keys(&aside, LINK), ["a", "c", "d"]);
        aside.keep(LINK, None, &[], true);
        assert!(keys(&aside, LINK).is_empty());
        assert_eq!(keys(&aside, OTHER), ["b"]);
        aside.keep_links(|link| link != OTHER);
        assert!(aside.links.is_empty());
    }

    #[test]
    fn a_link_that_has_all_places_gives_them_to_others_until_all_have_as_many() {
        let mut aside = Aside::with_places(4);
        let now = Instant::now();
        for key in ["a", "b", "c", "d", "e"] {
            aside.put(&entry(LINK, key, 1), denied(), now);
        }
        assert_eq!(keys(&aside, LINK), ["a", "b", "c", "d"]);
        assert!(aside.is_due(&entry(LINK, "e", 1), now), "it is looked at in each round");
        for key in ["x", "y", "z"] {
            aside.put(&entry(OTHER, key, 1), denied(), now);
        }
        assert_eq!((keys(&aside, LINK), keys(&aside, OTHER)), (vec!["a", "b"], vec!["x", "y"]));
        // One that is there keeps its place.
        aside.put(&entry(OTHER, "x", 1), denied(), now);
        assert_eq!(keys(&aside, OTHER), ["x", "y"]);
    }
}
