//! Which writes of a session have been applied, so that a repeated one is only answered.
//!
//! Bounded twice: the client says which number it still waits for, and past
//! [`WRITES_PER_SESSION_MAX`] the oldest are forgotten whatever it says. After a restart the memory
//! is rebuilt from the journal, as far back as the last checkpoint.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use millrace_protocol::storage::ChunkVersion;
use millrace_types::{SessionId, WriteNumber};
use tokio::sync::Notify;

/// Writes remembered for each session: more than any client has in flight.
const WRITES_PER_SESSION_MAX: usize = 4096;

/// Sessions remembered; past it the one with the lowest id goes, which is the oldest.
const SESSIONS_MAX: usize = 16_384;

/// The memory of all sessions. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct AppliedWrites {
    sessions: Arc<Mutex<BTreeMap<SessionId, Session>>>,
}

#[derive(Debug, Default)]
struct Session {
    applied: BTreeMap<WriteNumber, ChunkVersion>,
    running: HashMap<WriteNumber, Arc<Notify>>,
}

/// Whether a write must be applied.
#[derive(Debug)]
pub(crate) enum Admission {
    /// It was applied before, and made this version.
    Repeated(ChunkVersion),
    /// It is new: apply it, then tell the guard.
    New(RunningWrite),
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
                let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
                let known = sessions.entry(session).or_default();
                known.applied = known.applied.split_off(&lowest_pending.min(number));
                if let Some(&version) = known.applied.get(&number) {
                    return Admission::Repeated(version);
                }
                let Some(running) = known.running.get(&number) else {
                    known.running.insert(number, Arc::new(Notify::new()));
                    let writes = self.clone();
                    return Admission::New(RunningWrite { writes, session, number });
                };
                Arc::clone(running).notified_owned()
            };
            running.await;
        }
    }

    /// Remembers a write found in the journal.
    pub(crate) fn remember(&self, session: SessionId, number: WriteNumber, version: ChunkVersion) {
        let mut sessions = self.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let known = sessions.entry(session).or_default();
        known.applied.insert(number, version);
        while known.applied.len() > WRITES_PER_SESSION_MAX {
            known.applied.pop_first();
        }
        while sessions.len() > SESSIONS_MAX {
            sessions.pop_first();
        }
    }
}

/// A write that is being applied; dropping it lets a repetition try again.
#[derive(Debug)]
pub(crate) struct RunningWrite {
    writes: AppliedWrites,
    session: SessionId,
    number: WriteNumber,
}

impl RunningWrite {
    /// Remembers the version that the write made.
    pub(crate) fn applied(self, version: ChunkVersion) {
        self.writes.remember(self.session, self.number, version);
    }
}

impl Drop for RunningWrite {
    fn drop(&mut self) {
        let mut sessions = self.writes.sessions.lock().unwrap_or_else(PoisonError::into_inner);
        let running =
            sessions.get_mut(&self.session).and_then(|known| known.running.remove(&self.number));
        drop(sessions);
        if let Some(running) = running {
            running.notify_waiters();
        }
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
        drop(running);
        let Admission::New(running) = second.await else { panic!("the first failed") };
        running.applied(VERSION);
        let third = writes.admit(session, number, number).await;
        assert!(matches!(third, Admission::Repeated(VERSION)));
    }

    #[tokio::test]
    async fn numbers_that_nobody_waits_for_are_forgotten() {
        let writes = AppliedWrites::default();
        for number in 0..10 {
            writes.remember(SessionId(1), WriteNumber(number), VERSION);
        }
        drop(writes.admit(SessionId(1), WriteNumber(20), WriteNumber(8)).await);
        assert_eq!(writes.sessions.lock().unwrap()[&SessionId(1)].applied.len(), 2);
    }
}
