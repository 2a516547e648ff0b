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
const COUNTS: Duration = Duration::from_secs(30);

/// Contents remembered at most, in some 50 MB.
const CONTENTS_MAX: usize = 1 << 20;

impl Refused {
    /// It may not go, now.
    pub(super) fn insert(&mut self, content: ContentName) {
        self.since.insert(content, Instant::now());
    }

    pub(super) fn contains(&self, content: ContentName) -> bool {
        self.since.contains_key(&content)
    }

    /// Whether no more can be remembered.
    pub(super) fn is_full(&self) -> bool {
        self.since.len() >= CONTENTS_MAX
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
        let mut refused = Refused::default();
        let content = ContentName { inode: InodeId(7), generation: ContentGeneration(1) };
        refused.insert(content);
        refused.forget_old(Instant::now());
        assert!(refused.contains(content) && !refused.is_full());
        refused.forget_old(Instant::now() + COUNTS);
        assert!(!refused.contains(content));
    }
}
