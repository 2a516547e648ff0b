//! How a link's bucket stands: whether it answers, and when it is asked again if not. No I/O, no
//! clock.
//!
//! ```text
//!             several files fail, and none goes            one more fails: a longer pause
//!   Answers ────────────────────────────────────▶ Away ──┐
//!      ▲                                           │ ▲ ◀─┘
//!      └───────────────── one goes ────────────────┘
//! ```
//!
//! Each try of a file whose bucket does not answer takes some 40 s, with all its retries. While it
//! is away one file at a time is tried, so that this costs others one slot, and that not always.

use std::time::Duration;

use millrace_types::{ErrorKind, InodeId};
use tokio::time::Instant;

/// Files that fail, one after the other, before their bucket counts as away. One alone may be
/// refused for its key.
const FAILED_MAX: usize = 4;

/// The pauses between two tries of a bucket that is away: the first is about as long as a try. With
/// the longest one slot is busy for an eighth of the time, and files go soon after it is back.
const PAUSE_FIRST: Duration = Duration::from_secs(30);
const PAUSE_MAX: Duration = Duration::from_secs(300);

/// What is known of a bucket.
#[derive(Debug)]
pub(super) enum Standing {
    /// It answers, as far as anybody knows.
    Answers {
        /// Files that it has failed since one went, each once; fewer than [`FAILED_MAX`].
        failed: Vec<InodeId>,
    },
    /// It cannot be reached, or refuses the credentials.
    Away {
        /// How often it was tried since.
        tries: u32,
        /// When it is tried next.
        due: Instant,
    },
}

impl Default for Standing {
    fn default() -> Self {
        Self::Answers { failed: Vec::new() }
    }
}

impl Standing {
    /// When a file that is due then may be sent, while so many of the link are under way, of which
    /// `room` may be; `None` when one of them has to end before.
    pub(super) fn admits(&self, due: Instant, under_way: usize, room: usize) -> Option<Instant> {
        match self {
            Self::Answers { .. } => (under_way < room).then_some(due),
            Self::Away { due: next, .. } => (under_way == 0).then_some(due.max(*next)),
        }
    }

    /// A file went. Whether the bucket was away before.
    pub(super) fn handle_sent(&mut self) -> bool {
        let was_away = matches!(self, Self::Away { .. });
        *self = Self::default();
        was_away
    }

    /// A file failed because of the bucket, while so many others are under way. Whether the bucket
    /// is away from now on.
    pub(super) fn handle_failure(
        &mut self,
        inode: InodeId,
        now: Instant,
        under_way: usize,
    ) -> bool {
        match self {
            Self::Answers { failed } => {
                if !failed.contains(&inode) {
                    failed.push(inode);
                }
                let is_away = failed.len() >= FAILED_MAX;
                if is_away {
                    *self = Self::Away { tries: 0, due: now + PAUSE_FIRST };
                }
                is_away
            }
            Self::Away { tries, due } => {
                // Others were under way when it went away, and say nothing new.
                if under_way == 0 && *due <= now {
                    *tries = tries.saturating_add(1);
                    let pause = PAUSE_FIRST.saturating_mul(1 << (*tries).min(10));
                    *due = now + pause.min(PAUSE_MAX);
                }
                false
            }
        }
    }
}

/// Whether a failure is the bucket's and not the file's.
pub(super) fn is_of_bucket(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::BucketUnavailable | ErrorKind::BucketDenied)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOM: usize = 12;

    /// One whose bucket went away just now.
    fn away(now: Instant) -> Standing {
        let mut standing = Standing::default();
        let gone: Vec<bool> =
            (1..=4).map(|inode| standing.handle_failure(InodeId(inode), now, 4)).collect();
        assert_eq!(gone, [false, false, false, true]);
        standing
    }

    #[test]
    fn one_file_that_fails_for_ever_holds_up_no_other() {
        let now = Instant::now();
        let mut standing = Standing::default();
        for _ in 0..10 {
            assert!(!standing.handle_failure(InodeId(1), now, 0));
        }
        assert_eq!(standing.admits(now, ROOM - 1, ROOM), Some(now));
        assert_eq!(standing.admits(now, ROOM, ROOM), None);
        assert!(!standing.handle_failure(InodeId(2), now, 0));
        assert!(!standing.handle_failure(InodeId(3), now, 0));
        assert!(!standing.handle_sent(), "it was never away");
        assert!(!standing.handle_failure(InodeId(4), now, 0), "they are counted anew");
    }

    #[test]
    fn a_bucket_that_is_away_is_tried_with_one_file_at_a_time_and_ever_more_rarely() {
        let now = Instant::now();
        let mut standing = away(now);
        assert_eq!(standing.admits(now, 1, ROOM), None);
        // What was under way with those that failed says nothing new.
        assert!(!standing.handle_failure(InodeId(5), now, 1));
        assert!(!standing.handle_failure(InodeId(6), now, 0));
        let mut due = standing.admits(now, 0, ROOM).unwrap();
        let mut pauses = vec![due.duration_since(now).as_secs()];
        for _ in 0..5 {
            // A try takes its time too.
            let ended = due + Duration::from_secs(40);
            assert!(!standing.handle_failure(InodeId(7), ended, 0));
            due = standing.admits(now, 0, ROOM).unwrap();
            pauses.push(due.duration_since(ended).as_secs());
        }
        assert_eq!(pauses, [30, 60, 120, 240, 300, 300]);
        let later = due + Duration::from_secs(1);
        assert_eq!(standing.admits(later, 0, ROOM), Some(later), "no file comes before its time");
    }

    #[test]
    fn one_file_that_goes_lets_all_others_go() {
        let now = Instant::now();
        let mut standing = away(now);
        assert!(standing.handle_sent());
        assert_eq!(standing.admits(now, 11, ROOM), Some(now));
        assert!(!standing.handle_failure(InodeId(1), now, 0), "it answers, as far as is known");
    }
}
