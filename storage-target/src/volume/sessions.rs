//! Which writes of a session have been applied, so that a repeated one is only answered.
//!
//! A write below the lowest number that its session has ever been said to wait for is refused:
//! nobody waits for it. It is one that came late over a connection that was given up, behind others
//! that were sent after it.
//!
//! Bounded thrice: the client says which number it still waits for; past
//! [`WRITES_PER_SESSION_MAX`] the oldest of its session are forgotten whatever it says; and past
//! [`SESSIONS_MAX`] or [`WRITES_MAX`] whole sessions are, the one first that has written nothing
//! for the longest. After a restart the memory is rebuilt from the journal, as far back as the last
//! checkpoint. So it is when the target is opened again in place, and then nobody knows of the
//! writes that the memory before has admitted and that are still on their way: none of them may be
//! applied any more ([`AppliedWrites::has_ended`]).

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use millrace_protocol::{session::SESSIONS_MAX, storage::ChunkVersion};
use millrace_types::{SessionId, WriteNumber};
use tokio::sync::Notify;

/// Writes remembered for each session: more than any client has in flight.
const WRITES_PER_SESSION_MAX: usize = 4096;

/// Writes remembered in all: about 250 MB. Clients in order keep as many as they have in flight,
/// 64 each.
const WRITES_MAX: usize = 1 << 22;

/// The share that goes at once when there is too much: looking for the idlest is paid for once in
/// so many new ones.
const FORGOTTEN_SHARE: usize = 16;

/// The memory of all sessions. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppliedWrites {
    sessions: Arc<Mutex<Sessions>>,
    has_ended: Arc<AtomicBool>,
}

#[derive(Debug, Default)]
struct Sessions {
    known: HashMap<SessionId, Session>,
    /// Writes that they remember.
    writes: usize,
    /// Counts writes, so that it shows which session wrote last.
    now: u64,
}

#[derive(Debug, Default)]
struct Session {
    applied: BTreeMap<WriteNumber, ChunkVersion>,
    running: HashMap<WriteNumber, Arc<Notify>>,
    /// No number below this is waited for.
    lowest: WriteNumber,
    /// When it wrote last.
    used: u64,
}

/// Whether a write must be applied.
#[derive(Debug)]
pub(crate) enum Admission {
    /// It was applied before, and made this version.
    Repeated(ChunkVersion),
    /// It is new: apply it, then tell the guard.
    New(RunningWrite),
    /// Nobody waits for it any more, and later ones may have been applied.
    Late,
}

impl AppliedWrites {
    /// Admits a write, waiting while the same number is being applied. May be dropped at its await.
    pub(crate) async fn admit(
        &self,
        session: SessionId,
        number: WriteNumber,
        lowest_pending: WriteNumber,
    ) -> Admission {
        loop {
            let running = {
                let mut sessions = self.lock();
                let known = sessions.enter(session, lowest_pending.min(number));
                if let Some(&version) = known.applied.get(&number) {
                    return Admission::Repeated(version);
                }
                if number < known.lowest {
                    return Admission::Late;
                }
                let Some(running) = known.running.get(&number) else {
                    let ended = Arc::new(Notify::new());
                    known.running.insert(number, Arc::clone(&ended));
                    let writes = self.clone();
                    return Admission::New(RunningWrite { writes, session, number, ended });
                };
                Arc::clone(running).notified_owned()
            };
            running.await;
        }
    }

    /// Waits while a number is being applied. May be dropped at its await.
    pub(crate) async fn settled(&self, session: SessionId, number: WriteNumber) {
        loop {
            let running = {
                let sessions = self.lock();
                let known = sessions.known.get(&session);
                let Some(running) = known.and_then(|known| known.running.get(&number)) else {
                    return;
                };
                Arc::clone(running).notified_owned()
            };
            running.await;
        }
    }

    /// Another memory takes its place.
    pub(super) fn end(&self) {
        self.has_ended.store(true, Ordering::Release);
    }

    /// Whether another memory has taken its place, which may admit the same writes once more, and
    /// later ones.
    pub(crate) fn has_ended(&self) -> bool {
        self.has_ended.load(Ordering::Acquire)
    }

    /// Remembers a write found in the journal.
    pub(crate) fn remember(&self, session: SessionId, number: WriteNumber, version: ChunkVersion) {
        let mut sessions = self.lock();
        let known = sessions.enter(session, WriteNumber(0));
        let mut more = usize::from(known.applied.insert(number, version).is_none());
        if known.applied.len() > WRITES_PER_SESSION_MAX {
            known.applied.pop_first();
            more -= 1;
        }
        sessions.writes += more;
    }

    fn lock(&self) -> MutexGuard<'_, Sessions> {
        self.sessions.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Sessions {
    /// The session, which is used now; it forgets writes below `lowest`.
    fn enter(&mut self, session: SessionId, lowest: WriteNumber) -> &mut Session {
        self.make_room(session);
        self.now += 1;
        let known = self.known.entry(session).or_default();
        known.used = self.now;
        known.lowest = known.lowest.max(lowest);
        if known.applied.first_key_value().is_some_and(|(&first, _)| first < lowest) {
            let kept = known.applied.split_off(&lowest);
            self.writes -= known.applied.len();
            known.applied = kept;
        }
        known
    }

    /// Forgets sessions where there are too many, or too many writes; those at work stay, whose
    /// number the requests in flight bound.
    fn make_room(&mut self, coming: SessionId) {
        let is_full = self.known.len() >= SESSIONS_MAX && !self.known.contains_key(&coming);
        if !is_full && self.writes < WRITES_MAX {
            return;
        }
        let idle =
            |(id, known): &(&SessionId, &Session)| known.running.is_empty() && **id != coming;
        let mut idle: Vec<_> =
            self.known.iter().filter(idle).map(|(id, known)| (known.used, *id)).collect();
        idle.sort_unstable();
        for (_, id) in idle {
            if self.known.len() <= SESSIONS_MAX - SESSIONS_MAX / FORGOTTEN_SHARE
                && self.writes <= WRITES_MAX - WRITES_MAX / FORGOTTEN_SHARE
            {
                return;
            }
            if let Some(gone) = self.known.remove(&id) {
                self.writes -= gone.applied.len();
            }
        }
    }
}

/// A write that is being applied; dropping it lets a repetition try again.
#[derive(Debug)]
pub(crate) struct RunningWrite {
    writes: AppliedWrites,
    session: SessionId,
    number: WriteNumber,
    /// Told when it has ended.
    ended: Arc<Notify>,
}

impl RunningWrite {
    /// Remembers the version that the write made.
    pub(crate) fn applied(self, version: ChunkVersion) {
        self.writes.remember(self.session, self.number, version);
    }
}

impl Drop for RunningWrite {
    fn drop(&mut self) {
        let mut sessions = self.writes.lock();
        if let Some(known) = sessions.known.get_mut(&self.session) {
            known.running.remove(&self.number);
        }
        drop(sessions);
        self.ended.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::GroupEpoch;

    use super::*;

    const VERSION: ChunkVersion = ChunkVersion { group_epoch: GroupEpoch(1), counter: 9 };

    #[tokio::test]
    async fn a_repeated_number_is_answered_and_a_failed_one_tried_again() {
        let writes = AppliedWrites::default();
        let (session, number) = (SessionId(1), WriteNumber(5));
        let Admission::New(running) = writes.admit(session, number, number).await else {
            panic!("the first is new")
        };
        let mut second = Box::pin(writes.admit(session, number, number));
        assert!(futures::poll!(&mut second).is_pending(), "it waits for the first");
        let mut settled = Box::pin(writes.settled(session, number));
        assert!(futures::poll!(&mut settled).is_pending(), "as does who only looks");
        drop(running);
        settled.await;
        let Admission::New(running) = second.await else { panic!("the first failed") };
        running.applied(VERSION);
        let third = writes.admit(session, number, number).await;
        assert!(matches!(third, Admission::Repeated(VERSION)));
    }

    #[tokio::test]
    async fn a_write_that_nobody_waits_for_any_more_is_not_applied_behind_later_ones() {
        let (writes, session) = (AppliedWrites::default(), SessionId(1));
        let admit =
            |number, lowest| writes.admit(session, WriteNumber(number), WriteNumber(lowest));
        for (number, lowest) in [(5, 5), (6, 5), (7, 6)] {
            let Admission::New(running) = admit(number, lowest).await else {
                panic!("{number} is new")
            };
            running.applied(VERSION);
        }
        assert!(matches!(admit(5, 5).await, Admission::Late), "6 was the lowest by then");
        assert!(matches!(admit(4, 1).await, Admission::Late));
        assert!(matches!(admit(6, 6).await, Admission::Repeated(VERSION)));
        assert!(matches!(admit(9, 6).await, Admission::New(_)), "8 and 9 may come in any order");
        assert!(matches!(admit(8, 6).await, Admission::New(_)));
        let other = writes.admit(SessionId(2), WriteNumber(1), WriteNumber(1)).await;
        assert!(matches!(other, Admission::New(_)), "of another session");
    }

    #[tokio::test]
    async fn numbers_that_nobody_waits_for_are_forgotten() {
        let writes = AppliedWrites::default();
        for number in 0..10 {
            writes.remember(SessionId(1), WriteNumber(number), VERSION);
        }
        drop(writes.admit(SessionId(1), WriteNumber(20), WriteNumber(8)).await);
        let sessions = writes.lock();
        assert_eq!((sessions.known[&SessionId(1)].applied.len(), sessions.writes), (2, 2));
    }

    #[tokio::test]
    async fn past_the_bound_the_idlest_session_goes_and_never_the_oldest_mount_at_work() {
        let writes = AppliedWrites::default();
        let number = WriteNumber(1);
        // The mount that was there first writes now and then; another waits for its disk.
        let (oldest, slow) = (SessionId(1), SessionId(2));
        writes.remember(oldest, number, VERSION);
        let Admission::New(running) = writes.admit(slow, number, number).await else {
            panic!("it is new")
        };
        let most = SESSIONS_MAX as u64;
        for id in 3..3 * most {
            writes.remember(SessionId(id), number, VERSION);
            if id % 1000 == 0 {
                writes.remember(oldest, number, VERSION);
            }
        }
        {
            let sessions = writes.lock();
            assert!(sessions.known.len() <= SESSIONS_MAX, "{}", sessions.known.len());
            assert_eq!(sessions.writes, sessions.known.len() - 1, "one each, but the slow one");
            assert!(sessions.known.contains_key(&SessionId(3 * most - 1)));
            assert!(!sessions.known.contains_key(&SessionId(3)));
        }
        let again = writes.admit(oldest, number, number).await;
        assert!(matches!(again, Admission::Repeated(VERSION)));
        let mut second = Box::pin(writes.admit(slow, number, number));
        assert!(futures::poll!(&mut second).is_pending(), "the slow write is still at work");
        running.applied(VERSION);
        assert!(matches!(second.await, Admission::Repeated(VERSION)));
    }

    #[tokio::test]
    async fn writes_that_fail_leave_no_session_behind_the_bound() {
        let writes = AppliedWrites::default();
        let number = WriteNumber(1);
        for id in 0..2 * SESSIONS_MAX as u64 {
            drop(writes.admit(SessionId(id), number, number).await);
        }
        assert!(writes.lock().known.len() <= SESSIONS_MAX);
    }

    #[test]
    fn the_writes_of_all_sessions_together_have_a_bound() {
        let writes = AppliedWrites::default();
        for id in 0..(WRITES_MAX / WRITES_PER_SESSION_MAX) as u64 + 10 {
            for number in 0..WRITES_PER_SESSION_MAX as u64 + 5 {
                writes.remember(SessionId(id), WriteNumber(number), VERSION);
            }
        }
        let sessions = writes.lock();
        assert!(sessions.writes <= WRITES_MAX, "{}", sessions.writes);
        let kept: usize = sessions.known.values().map(|known| known.applied.len()).sum();
        assert_eq!(kept, sessions.writes);
    }
}
