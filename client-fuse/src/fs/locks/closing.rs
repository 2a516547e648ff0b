//! Locks that end with a close that has returned.
//!
//! The kernel tells a mount of the last close of an open file, and waits for no answer: the program
//! goes on. What it asks for next comes with another request, of which another thread may take care
//! first. It must not find the lock in its way that it has just closed; so whoever is refused one
//! while others of this mount have some looks again when the closes that are under way have ended.
//! Of those of other mounts nothing is known here: their locks end within moments.

use std::time::Duration;

use tokio::time::{sleep, timeout};

use super::Key;
use crate::fs::FileSystem;

impl FileSystem {
    /// Returns when the closes have ended that were under way when `asker` was refused a lock, or
    /// after half a second. To be called where others here had locks of the same kind on the file
    /// before it asked: one whose end the server had heard of by then was in nobody's way.
    pub(super) async fn closes_end(&self, asker: Key) {
        let held = &self.locks.held;
        if !held.has_left(asker) {
            sleep(READ_MAX).await;
        }
        drop(timeout(CLOSING_MAX, held.until_ended(asker)).await);
    }
}

/// How long a thread may have had the news of a close in its hands before the file counts as
/// closed: it comes to that within microseconds, unless it gets no processor.
const READ_MAX: Duration = Duration::from_millis(2);

/// How long a program that does not want to wait for a lock waits for closes: what was written is
/// with the targets by then, and the end of a lock is one request. Only what programs have left
/// behind that were killed takes longer.
const CLOSING_MAX: Duration = Duration::from_millis(500);

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use millrace_protocol::lock::{Lock, LockSpace};
    use millrace_types::{InodeId, LockKind, LockRange, SessionId};

    use super::*;
    use crate::fs::locks::held::{Asker, HeldLocks};

    const SESSION: SessionId = SessionId(1);

    fn lock(space: LockSpace, owner: u64) -> Lock {
        let (kind, range) = (Some(LockKind::Write), LockRange::WHOLE);
        Lock { inode: InodeId(5), space, owner, kind, range, process: 9 }
    }

    #[tokio::test]
    async fn only_a_lock_of_who_has_closed_is_waited_for_and_only_until_it_has_ended() {
        let locks = Arc::new(HeldLocks::default());
        let (held, other) = (lock(LockSpace::Flock, 70), Key::of(&lock(LockSpace::Flock, 71)));
        let owner = locks.asking(Asker::of(&held), 7, SESSION);
        let key = owner.key();
        owner.record(SESSION, &key.names(held));
        drop(owner);
        assert!(locks.has_others(other) && !locks.has_left(other), "it is open");
        assert!(!locks.has_others(key), "that is its own");
        assert!(!locks.has_others(Key::of(&lock(LockSpace::Range, 71))), "of another kind");
        locks.until_ended(other).await;

        locks.leave_through(7);
        assert!(locks.has_left(other));
        let mut ended = std::pin::pin!(locks.until_ended(other));
        assert!(futures::poll!(&mut ended).is_pending());
        let owner = locks.find(key).expect("it is held");
        owner.record(SESSION, &key.nothing());
        assert!(futures::poll!(&mut ended).is_pending(), "the server has not heard of it");
        drop(owner);
        ended.await;
        assert!(!locks.has_others(other));
    }

    #[tokio::test]
    async fn the_right_of_the_mount_to_append_is_nobodys_close() {
        let locks = Arc::new(HeldLocks::default());
        let key = Key::of_append(InodeId(5));
        let owner = locks.asking_here(key, SESSION);
        owner.record(SESSION, &key.names(lock(LockSpace::Append, 0)));
        let other = Key::of(&lock(LockSpace::Append, 1));
        assert!(locks.has_others(other) && !locks.has_left(other));
    }
}
