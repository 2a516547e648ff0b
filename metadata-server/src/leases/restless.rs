//! Directories that several clients change, or one changes while others look: what is kept of them
//! would only be taken back again.

use std::{collections::HashMap, time::Duration};

use millrace_types::{InodeId, Timestamp};

/// Keys from which something was taken back lately.
#[derive(Debug, Default)]
pub struct Restless {
    keys: HashMap<InodeId, Unrest>,
}

#[derive(Debug)]
struct Unrest {
    /// Changes for which something was taken back, in the window that began then.
    recalls: u32,
    began: Timestamp,
    /// The last change of any kind.
    last: Timestamp,
}

/// So many changes that had to take something back within [`WINDOW`] make a key restless: each cost
/// its caller a round trip to another client.
pub const RECALLS_MAX: u32 = 8;

/// Within which they are counted.
pub const WINDOW: Duration = Duration::from_secs(4);

/// How long nobody may have changed anything before a lease is granted again: so the rate at which
/// something is taken back stays about what [`WINDOW`] allows, twice that at most. Not longer,
/// since who only walks through such a directory asks about it for every path: hosts that begin a
/// job by making a directory each.
pub const PAUSE: Duration = Duration::from_millis(500);

/// Past so many keys the quiet ones are forgotten; if none is, all.
const KEYS_MAX: usize = 1 << 16;

impl Restless {
    /// Something was taken back for a change under `key`. Tells whether it is restless now.
    pub fn handle_recall(&mut self, key: InodeId, now: Timestamp) -> bool {
        if self.keys.len() >= KEYS_MAX && !self.keys.contains_key(&key) {
            self.forget_quiet(now);
        }
        let unrest = self.keys.entry(key).or_insert(Unrest { recalls: 0, began: now, last: now });
        if unrest.recalls <= RECALLS_MAX && unrest.began.plus(WINDOW) < now {
            (unrest.recalls, unrest.began) = (0, now);
        }
        unrest.recalls = unrest.recalls.saturating_add(1);
        unrest.last = now;
        unrest.recalls > RECALLS_MAX
    }

    /// Something changed under `key`.
    pub fn handle_change(&mut self, key: InodeId, now: Timestamp) {
        let Some(unrest) = self.keys.get_mut(&key) else { return };
        if unrest.is_over(now) {
            self.keys.remove(&key);
            return;
        }
        if unrest.has_paused(now) {
            // The next recall makes it restless again, if it comes within the window.
            unrest.recalls = unrest.recalls.min(RECALLS_MAX);
        }
        unrest.last = now;
    }

    /// Whether nothing is granted on the key.
    pub fn is_restless(&mut self, key: InodeId, now: Timestamp) -> bool {
        let Some(unrest) = self.keys.get(&key) else {
            return false;
        };
        if unrest.is_over(now) {
            self.keys.remove(&key);
            return false;
        }
        unrest.recalls > RECALLS_MAX && !unrest.has_paused(now)
    }

    /// Whether there is nothing to watch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.keys.is_empty()
    }

    fn forget_quiet(&mut self, now: Timestamp) {
        self.keys.retain(|_, unrest| !unrest.is_over(now));
        if self.keys.len() >= KEYS_MAX {
            self.keys.clear();
        }
    }
}

impl Unrest {
    /// Nobody has changed anything for a moment.
    fn has_paused(&self, now: Timestamp) -> bool {
        self.last.plus(PAUSE) < now
    }

    /// Nobody has for so long that nothing of it counts any more.
    fn is_over(&self, now: Timestamp) -> bool {
        self.last.plus(WINDOW) < now
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: InodeId = InodeId(7);

    fn at(milliseconds: i64) -> Timestamp {
        Timestamp(milliseconds * 1_000_000)
    }

    #[test]
    fn a_key_is_restless_after_several_recalls_and_until_it_has_been_quiet() {
        let mut restless = Restless::default();
        for count in 1..=RECALLS_MAX {
            assert!(!restless.handle_recall(KEY, at(i64::from(count))));
        }
        assert!(!restless.is_restless(KEY, at(10)));
        assert!(restless.handle_recall(KEY, at(11)));
        assert!(restless.is_restless(KEY, at(12)));
        restless.handle_change(KEY, at(300));
        assert!(restless.is_restless(KEY, at(800)), "somebody changed it meanwhile");
        assert!(!restless.is_restless(KEY, at(801)));
        assert!(!restless.is_restless(KEY, at(4301)) && restless.is_empty());
    }

    #[test]
    fn a_change_after_a_long_time_begins_anew() {
        let mut restless = Restless::default();
        while !restless.handle_recall(KEY, at(0)) {}
        restless.handle_change(KEY, at(4001));
        assert!(!restless.is_restless(KEY, at(4002)), "nobody had looked in between");
        assert!(!restless.handle_recall(KEY, at(4003)));
    }

    #[test]
    fn after_a_pause_one_recall_is_enough_until_the_window_is_over() {
        let mut restless = Restless::default();
        while !restless.handle_recall(KEY, at(0)) {}
        for pause in 1..=6 {
            let now = pause * 600;
            restless.handle_change(KEY, at(now));
            assert!(!restless.is_restless(KEY, at(now)), "it may be granted, and named to others");
            assert!(restless.handle_recall(KEY, at(now)), "after pause {pause}");
            assert!(restless.is_restless(KEY, at(now + 500)));
        }
        restless.handle_change(KEY, at(4200));
        assert!(!restless.handle_recall(KEY, at(4200)), "its window is over");
    }

    #[test]
    fn changes_now_and_then_are_none() {
        let mut restless = Restless::default();
        for count in 0..100 {
            assert!(!restless.handle_recall(KEY, at(count * 600)), "at {count}");
        }
    }

    #[test]
    fn what_is_remembered_is_bounded() {
        let mut restless = Restless::default();
        for key in 0..3 * KEYS_MAX as u64 {
            restless.handle_recall(InodeId(key), at(1));
        }
        assert!(restless.keys.len() <= KEYS_MAX);
    }
}
