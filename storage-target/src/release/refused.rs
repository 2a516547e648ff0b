//! What may not go, as the metadata server has said a moment ago.

use std::{
    collections::HashMap,
    time::{Duration, Instant},
};

use millrace_protocol::target::ContentName;

/// Contents that are passed over for a while.
#[derive(Debug, Default)]
pub(super) struct Refused {
    since: HashMap<ContentName, Instant>,
}

/// How long an answer counts: what is written or pinned mostly stays so for longer, and who ends a
/// pin because nothing can be written waits no longer for that.
pub(super) const COUNTS: Duration = Duration::from_secs(30);

/// Contents remembered at most, in some 50 MB.
const CONTENTS_MAX: usize = 1 << 20;

impl Refused {
    /// It may not go, now. What there is no room for is asked about once more.
    pub(super) fn insert(&mut self, content: ContentName, now: Instant) {
        if self.since.len() >= CONTENTS_MAX {
            self.since.clear();
        }
        self.since.insert(content, now);
    }

    pub(super) fn contains(&self, content: ContentName) -> bool {
        self.since.contains_key(&content)
    }

    /// Answers that are older than they count are asked for again.
    pub(super) fn forget_old(&mut self, now: Instant) {
        self.since.retain(|_, since| now.saturating_duration_since(*since) < COUNTS);
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::{ContentGeneration, InodeId};

    use super::*;

    #[test]
    fn what_was_refused_is_passed_over_for_a_while() {
        let (mut refused, now) = (Refused::default(), Instant::now());
        refused.insert(content(7), now);
        refused.forget_old(now);
        assert!(refused.contains(content(7)));
        refused.forget_old(now + COUNTS);
        assert!(!refused.contains(content(7)));
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let (mut refused, now) = (Refused::default(), Instant::now());
        let most = CONTENTS_MAX as u64;
        (0..=most).for_each(|inode| refused.insert(content(inode), now));
        assert!(refused.since.len() <= CONTENTS_MAX);
        assert!(refused.contains(content(most)), "the newest is");
    }

    fn content(inode: u64) -> ContentName {
        ContentName { inode: InodeId(inode), generation: ContentGeneration(1) }
    }
}
