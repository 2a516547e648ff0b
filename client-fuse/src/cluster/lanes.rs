//! How many requests about bytes are out at a time, so that those that wait for one target do not
//! stand before those that another one would answer.
//!
//! A request passes a lane for each of its attempts, and stands in none while it pauses. What is
//! fetched before anybody wants it has one of its own. No target may fill a lane: a part of it is
//! left to the others, however slow that one is. Whatever goes to a target that says nothing is in
//! no lane: until that one answers again, a few of its requests are out, and take no room from
//! others.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use millrace_types::{ErrorKind, Failure, TargetId};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, SemaphorePermit};

/// What a request is for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Purpose {
    /// Somebody waits for these bytes.
    Read,
    /// Somebody may want these bytes.
    ReadAhead,
    /// Bytes are stored.
    Write,
    /// One target writes what it reads from another one, or from a bucket behind that.
    Copy,
}

/// The lanes of one mount.
#[derive(Debug)]
pub(super) struct Lanes {
    reads: Lane,
    ahead: Lane,
    writes: Lane,
    copies: Lane,
    /// Targets of which the last attempt to ask them something was not answered.
    silent: Mutex<HashSet<TargetId>>,
}

/// Requests for one purpose.
#[derive(Debug)]
struct Lane {
    all: Semaphore,
    limits: Limits,
    /// As many as the cluster has.
    targets: Mutex<HashMap<TargetId, Ways>>,
}

/// How many requests are out.
#[derive(Clone, Copy, Debug)]
struct Limits {
    all: usize,
    to_one: usize,
    to_silent: usize,
}

/// The ways to one target.
#[derive(Clone, Debug)]
struct Ways {
    answering: Arc<Semaphore>,
    silent: Arc<Semaphore>,
}

/// A request is out until this is dropped.
#[derive(Debug)]
pub(super) struct Out<'a> {
    _to_target: OwnedSemaphorePermit,
    _in_lane: Option<SemaphorePermit<'a>>,
}

impl Default for Lanes {
    fn default() -> Self {
        let lane = |limits: Limits| Lane {
            all: Semaphore::new(limits.all),
            limits,
            targets: Mutex::default(),
        };
        Self {
            reads: lane(READS),
            ahead: lane(AHEAD),
            writes: lane(WRITES),
            copies: lane(COPIES),
            silent: Mutex::default(),
        }
    }
}

impl Lanes {
    /// Waits until a request may be sent to `target`, which is silent or not. May be dropped while
    /// it waits.
    pub(super) async fn enter(
        &self,
        purpose: Purpose,
        target: TargetId,
        is_silent: bool,
    ) -> Out<'_> {
        let lane = match purpose {
            Purpose::Read => &self.reads,
            Purpose::ReadAhead => &self.ahead,
            Purpose::Write => &self.writes,
            Purpose::Copy => &self.copies,
        };
        let ways = lane.ways_to(target);
        let way = if is_silent { ways.silent } else { ways.answering };
        // In this order: who waits for a target stands in nobody's way.
        let to_target = way.acquire_owned().await.expect("never closed");
        let in_lane = match is_silent {
            true => None,
            false => Some(lane.all.acquire().await.expect("never closed")),
        };
        Out { _to_target: to_target, _in_lane: in_lane }
    }

    /// Whether requests to `target` wait for each other alone.
    pub(super) fn is_silent(&self, target: TargetId) -> bool {
        self.lock().contains(&target)
    }

    /// An attempt to ask `target` something has ended so.
    pub(super) fn handle_outcome(
        &self,
        target: TargetId,
        purpose: Purpose,
        failure: Option<&Failure>,
    ) {
        let is_silent = match failure.map(|failure| failure.kind) {
            Some(ErrorKind::Unavailable) => true,
            // A slow bucket takes as long, behind a target that is well.
            Some(ErrorKind::DeadlineExceeded) if purpose != Purpose::Write => return,
            Some(ErrorKind::DeadlineExceeded) => true,
            _ => false,
        };
        let mut silent = self.lock();
        // Most often it was and is not: then nothing is written.
        if silent.contains(&target) != is_silent {
            match is_silent {
                true => silent.insert(target),
                false => silent.remove(&target),
            };
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashSet<TargetId>> {
        // Each step leaves the set whole, so that a panic elsewhere cannot have torn it.
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Lane {
    fn ways_to(&self, target: TargetId) -> Ways {
        // As above.
        let mut targets = self.targets.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Ways {
            answering: Arc::new(Semaphore::new(self.limits.to_one)),
            silent: Arc::new(Semaphore::new(self.limits.to_silent)),
        };
        targets.entry(target).or_insert_with(new).clone()
    }
}

/// Whether a target that was asked has not answered.
pub(super) fn is_silence(failure: &Failure) -> bool {
    matches!(failure.kind, ErrorKind::Unavailable | ErrorKind::DeadlineExceeded)
}

/// Reads in flight, of 1 MiB at most: bounds the memory that answers take before anybody has asked
/// for a budget. One target gets three quarters of each lane; one that says nothing, enough to go
/// on at once when it is back.
const READS: Limits = Limits { all: 64, to_one: 48, to_silent: 16 };

/// The same for reads that nobody waits for yet: apart, so that they never stand before others.
const AHEAD: Limits = Limits { all: 48, to_one: 36, to_silent: 8 };

/// Writes in flight; their bytes are in the budget already.
const WRITES: Limits = Limits { all: 64, to_one: 48, to_silent: 8 };

/// Copies in flight, which take no memory here. Apart, since they may wait for a bucket: a target
/// keeps half as many for one session.
const COPIES: Limits = Limits { all: 32, to_one: 24, to_silent: 4 };

#[cfg(test)]
mod tests {
    use futures::FutureExt as _;

    use super::*;

    const ONE: TargetId = TargetId([1; 8]);
    const OTHER: TargetId = TargetId([2; 8]);
    const THIRD: TargetId = TargetId([3; 8]);

    /// Sends requests until one has to wait; returns how many are out that were not before.
    fn fill<'a>(
        lanes: &'a Lanes,
        out: &mut Vec<Out<'a>>,
        purpose: Purpose,
        target: TargetId,
    ) -> usize {
        let before = out.len();
        let enter = || lanes.enter(purpose, target, lanes.is_silent(target)).now_or_never();
        out.extend(std::iter::from_fn(enter));
        out.len() - before
    }

    fn end(lanes: &Lanes, target: TargetId, purpose: Purpose, kind: ErrorKind) {
        lanes.handle_outcome(target, purpose, Some(&kind.into()));
    }

    #[test]
    fn requests_to_a_target_that_says_nothing_take_no_room_from_others() {
        let lanes = Lanes::default();
        let mut out = Vec::new();
        for silent in [ONE, OTHER] {
            end(&lanes, silent, Purpose::Write, ErrorKind::Unavailable);
        }
        assert_eq!(fill(&lanes, &mut out, Purpose::Write, ONE), WRITES.to_silent);
        assert_eq!(fill(&lanes, &mut out, Purpose::Read, ONE), READS.to_silent);
        // That one has only been restarted.
        assert_eq!(fill(&lanes, &mut out, Purpose::Write, OTHER), WRITES.to_silent);
        for (purpose, limits) in
            [(Purpose::ReadAhead, AHEAD), (Purpose::Read, READS), (Purpose::Write, WRITES)]
        {
            assert_eq!(fill(&lanes, &mut out, purpose, THIRD), limits.to_one);
        }
        // Whatever it answers.
        end(&lanes, OTHER, Purpose::Write, ErrorKind::StaleEpoch);
        let left = WRITES.all - WRITES.to_one;
        assert_eq!(fill(&lanes, &mut out, Purpose::Write, OTHER), left);
        assert!(lanes.is_silent(ONE), "another one of the same daemon");
    }

    #[test]
    fn a_slow_target_leaves_part_of_each_lane_to_others() {
        let lanes = Lanes::default();
        for (purpose, limits) in [
            (Purpose::ReadAhead, AHEAD),
            (Purpose::Read, READS),
            (Purpose::Write, WRITES),
            (Purpose::Copy, COPIES),
        ] {
            let mut out = Vec::new();
            assert_eq!(fill(&lanes, &mut out, purpose, ONE), limits.to_one);
            assert_eq!(fill(&lanes, &mut out, purpose, OTHER), limits.all - limits.to_one);
        }
    }

    #[test]
    fn who_waits_long_for_a_read_has_a_slow_bucket_and_not_a_silent_target() {
        let lanes = Lanes::default();
        for purpose in [Purpose::Read, Purpose::ReadAhead, Purpose::Copy] {
            end(&lanes, ONE, purpose, ErrorKind::DeadlineExceeded);
        }
        assert!(!lanes.is_silent(ONE));
        end(&lanes, ONE, Purpose::Write, ErrorKind::DeadlineExceeded);
        assert!(lanes.is_silent(ONE));
        end(&lanes, ONE, Purpose::Read, ErrorKind::DeadlineExceeded);
        assert!(lanes.is_silent(ONE), "that says nothing");
        lanes.handle_outcome(ONE, Purpose::Read, None);
        assert!(!lanes.is_silent(ONE));
    }
}
