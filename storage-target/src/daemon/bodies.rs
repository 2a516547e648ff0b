//! Room for the bodies of writes, from the network until they are in the volume's buffers.
//!
//! One bound for the daemon. Half of it is divided among the targets, the other half goes to who
//! comes first: a disk that is full or hangs keeps for long what its writes have, and the others
//! always have their part. Of each part a session takes a half at most, so that no single one that
//! writes to such a disk, or is slow to send its bodies, leaves the others without; two that do
//! may, until their requests are given up.
//!
//! From 16 targets on each has two writes of its own, the least that has a half; with more than 24
//! the bound grows with them, up to 144 MiB at 64.

use std::sync::{Arc, OnceLock};

use millrace_protocol::{cluster::TARGETS_PER_HOST_MAX, storage::TRANSFER_LEN_MAX};
use millrace_types::{ErrorKind, Failure, SessionId, TargetId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::shares::Shares;

/// Bytes of bodies in memory, with 24 targets or fewer.
const BYTES_MAX: u32 = 64 * 1024 * 1024;

/// What each target has at least: one write for each of two sessions.
const OWN_MIN: u32 = 2 * TRANSFER_LEN_MAX;

/// What goes to who comes first at least.
const COMMON_MIN: u32 = 16 * 1024 * 1024;

// With the most targets that a host has.
const _: () =
    assert!(TARGETS_PER_HOST_MAX * OWN_MIN as usize + COMMON_MIN as usize <= 144 * 1024 * 1024);

/// The room of a daemon.
#[derive(Debug)]
pub(super) struct Bodies {
    own: Vec<Own>,
    common: Part,
}

/// What a target has for itself, once it is known which that is.
#[derive(Debug)]
struct Own {
    target: OnceLock<TargetId>,
    part: Part,
}

/// Room for one body, until it is dropped.
#[derive(Debug)]
pub(super) struct BodyRoom {
    _share: OwnedSemaphorePermit,
    _room: OwnedSemaphorePermit,
}

#[derive(Debug)]
struct Part {
    sessions: Shares<SessionId>,
    /// A permit for each byte.
    room: Arc<Semaphore>,
}

impl Bodies {
    /// For so many targets.
    pub(super) fn new(targets: usize) -> Self {
        let count = u32::try_from(targets).unwrap_or(u32::MAX).max(1);
        let (own, common) = parts(count);
        let own = || Own { target: OnceLock::new(), part: Part::new(own) };
        let own = std::iter::repeat_with(own).take(targets).collect();
        Self { own, common: Part::new(common) }
    }

    /// Gives a target the next part that has none.
    pub(super) fn add(&self, target: TargetId) {
        let taken = self.own.iter().any(|own| own.target.set(target).is_ok());
        assert!(taken, "there is a part for each target");
    }

    /// Waits for room for a body of `len` bytes that a session writes to a target. May be dropped
    /// at its await.
    ///
    /// # Errors
    /// [`ErrorKind::StaleGroup`] for a target of another host.
    pub(super) async fn room(
        &self,
        target: TargetId,
        session: SessionId,
        len: u32,
    ) -> Result<BodyRoom, Failure> {
        let own = self.own.iter().find(|own| own.target.get() == Some(&target));
        let own = own.ok_or(ErrorKind::StaleGroup)?;
        Ok(tokio::select! {
            biased;
            room = own.part.take(session, len) => room,
            room = self.common.take(session, len) => room,
        })
    }

    /// Bytes that are taken now.
    #[cfg(test)]
    pub(super) fn taken(&self) -> usize {
        let all = self.own.iter().map(|own| &own.part).chain([&self.common]);
        let free: usize = all.map(|part| part.room.available_permits()).sum();
        let count = self.own.len();
        let (own, common) = parts(u32::try_from(count).expect("a few"));
        count * own as usize + common as usize - free
    }
}

/// Bytes of each target's part, and of that of all.
fn parts(targets: u32) -> (u32, u32) {
    let own = (BYTES_MAX / 2 / targets).max(OWN_MIN);
    (own, BYTES_MAX.saturating_sub(own.saturating_mul(targets)).max(COMMON_MIN))
}

impl Part {
    /// Of two writes at least.
    fn new(bytes: u32) -> Self {
        let sessions = Shares::new(bytes / 2);
        Self { sessions, room: Arc::new(Semaphore::new(bytes as usize)) }
    }

    async fn take(&self, session: SessionId, len: u32) -> BodyRoom {
        let share = self.sessions.take(session, len).await;
        let room = Arc::clone(&self.room).acquire_many_owned(len).await;
        BodyRoom { _share: share, _room: room.expect("the room is never closed") }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const MIB: usize = 1 << 20;

    fn target(number: u8) -> TargetId {
        TargetId([number; 8])
    }

    fn bodies(targets: u8) -> Bodies {
        let bodies = Bodies::new(targets.into());
        (0..targets).map(target).for_each(|target| bodies.add(target));
        bodies
    }

    /// Takes room for bodies of 1 MiB until a session gets none.
    fn take_all(bodies: &Bodies, of: u8, session: u64) -> Vec<BodyRoom> {
        let one = || {
            let room = bodies.room(target(of), SessionId(session), TRANSFER_LEN_MAX);
            room.now_or_never().map(Result::unwrap)
        };
        std::iter::from_fn(one).collect()
    }

    #[test]
    fn a_target_that_keeps_all_that_it_gets_leaves_the_others_their_part() {
        let bodies = bodies(4);
        let kept: Vec<_> = (1..9).map(|session| take_all(&bodies, 0, session)).collect();
        assert_eq!(bodies.taken(), 40 * MIB, "a quarter of one half, and all of the other");
        for other in 1..4 {
            assert_eq!(take_all(&bodies, other, 1).len(), 4, "who waits for the first target");
            let two = [take_all(&bodies, other, 20), take_all(&bodies, other, 21)];
            assert_eq!(two.map(|taken| taken.len()), [4, 4]);
        }
        drop(kept);
        assert_eq!(bodies.taken(), 0);
    }

    #[test]
    fn one_session_leaves_the_others_half() {
        let bodies = bodies(1);
        let mut first = take_all(&bodies, 0, 1);
        let second = take_all(&bodies, 0, 2);
        assert_eq!((first.len(), second.len()), (32, 32));
        assert!(take_all(&bodies, 0, 3).is_empty());
        first.pop();
        assert_eq!(take_all(&bodies, 0, 3).len(), 1);
    }

    #[test]
    fn however_many_targets_there_are_one_session_leaves_others_a_place_at_each() {
        for (targets, bound) in [(1, 64), (2, 64), (3, 64), (16, 64), (24, 64), (33, 82), (64, 144)]
        {
            let bodies = bodies(targets);
            let mut count = 0;
            let mut taken = Vec::new();
            for session in 0..4 {
                for of in 0..targets {
                    let all = take_all(&bodies, of, session);
                    let has_place = !all.is_empty() || session > 1;
                    assert!(has_place, "session {session} at {of} of {targets} targets");
                    count += all.len();
                    taken.push(all);
                }
            }
            assert!((bound * 3 / 4..=bound).contains(&count), "{count} with {targets} targets");
            assert_eq!(bodies.taken(), count * MIB);
        }
    }
}
