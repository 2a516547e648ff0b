//! Locks of programs on files, over all hosts: who holds them, who waits, who is told.
//!
//! Beside the command log and gone with the process: a lock lasts as long as its session and the
//! open file that it was taken through. After a restart the sessions declare what they hold
//! ([`Declarations`]); until then nothing new is granted. Exchanges are answered once
//! ([`Answered`]), and waits never hold a thread or a request of their own.
//!
//! Modules: [`table`] (rules), `inode` (one file) with its `intervals` (what is held) and its
//! `queue` (who waits), `circles` (deadlocks), [`answered`], [`watchers`].

use std::collections::{BTreeMap, BTreeSet};

use millrace_protocol::{
    lock::{Lock, LockConflict, WANTED_MAX},
    session::{Held, Operation},
};
use millrace_types::{ErrorKind, Failure, InodeId, SessionId};

use crate::sessions::Declarations;
use answered::Answered;
pub use table::{Counts, LockTable};
pub use watchers::News;
use watchers::Watchers;

pub mod answered;
mod circles;
mod inode;
mod intervals;
mod piece;
mod queue;
mod steps;
pub mod table;
pub mod watchers;

/// How long a client waits before it asks again while sessions have not declared. They come back
/// within a second.
const DECLARING_PAUSE: std::time::Duration = std::time::Duration::from_millis(200);

/// The locks, and the life around them.
#[derive(Debug)]
pub struct Locks {
    table: LockTable,
    answered: BTreeMap<SessionId, Answered>,
    declarations: Declarations,
    /// Somebody had to wait for declarations.
    held_up: bool,
    /// Who waits for the end of waits.
    watchers: Watchers,
    /// Who waits until somebody wants to append.
    append_watchers: Watchers,
}

impl Locks {
    /// Starts after a restart with the sessions that were known before it.
    #[must_use]
    pub fn after_restart(known: impl IntoIterator<Item = SessionId>) -> Self {
        Self {
            table: LockTable::new(table::Limits::default()),
            answered: BTreeMap::new(),
            declarations: Declarations::after_restart(known),
            held_up: false,
            watchers: Watchers::default(),
            append_watchers: Watchers::default(),
        }
    }

    /// Takes, changes or gives back a lock; see [`LockTable::set`].
    ///
    /// # Errors
    /// As there; [`ErrorKind::Busy`] while sessions have not declared, and nothing was decided;
    /// [`ErrorKind::InvalidArgument`] for an operation that nobody waits for any more.
    pub fn set(&mut self, operation: Operation, lock: &Lock, wait: u64) -> Result<bool, Failure> {
        let session = operation.session;
        let answered = self.answered.entry(session).or_default();
        if let Some(outcome) = answered.outcome(operation)? {
            return outcome.map_err(Failure::from);
        }
        if lock.kind.is_some()
            && !self.declarations.is_complete()
            && !self.table.holds(session, lock)
        {
            self.held_up = true;
            return Err(self.declaring());
        }
        let outcome = self.table.set(session, lock, wait);
        if let Some(answered) = self.answered.get_mut(&session) {
            answered.record(operation, outcome);
        }
        self.wake();
        outcome.map_err(Failure::from)
    }

    /// Ends a wait; see [`LockTable::cancel`].
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] for an operation that nobody waits for any more.
    pub fn cancel(&mut self, operation: Operation, wait: u64) -> Result<(), Failure> {
        let answered = self.answered.entry(operation.session).or_default();
        if answered.outcome(operation)?.is_none() {
            answered.record(operation, Ok(true));
            self.table.cancel(operation.session, wait);
            self.wake();
        }
        Ok(())
    }

    /// A lock that is in the way.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] while sessions have not declared.
    pub fn test(
        &mut self,
        session: SessionId,
        lock: &Lock,
    ) -> Result<Option<LockConflict>, Failure> {
        if self.declarations.is_complete() {
            return Ok(self.table.test(session, lock));
        }
        self.held_up = true;
        Err(self.declaring())
    }

    /// Tells which of the session's waits have ended, other than those in `known`, now or later.
    pub fn watch(&mut self, session: SessionId, known: &[u64]) -> News<u64> {
        let known: BTreeSet<_> = known.iter().collect();
        let mut ended = self.table.ended(session);
        ended.retain(|wait| !known.contains(wait));
        self.watchers.news(session, ended)
    }

    /// Tells which rights to append of the session others wait for, other than those in `known`,
    /// now or later.
    pub fn watch_appends(&mut self, session: SessionId, known: &[InodeId]) -> News<InodeId> {
        let known: BTreeSet<_> = known.iter().collect();
        let wanted = self.table.wanted(session).filter(|inode| !known.contains(inode));
        let wanted = wanted.take(WANTED_MAX).collect();
        self.append_watchers.news(session, wanted)
    }

    /// Takes over one lock of what a session holds from before the restart; tells whether it still
    /// can. What a session declares twice it holds once.
    pub fn declare(&mut self, session: SessionId, held: &Held) -> bool {
        let Held::Lock(lock) = held;
        let sound = lock.checked().is_ok() && lock.kind.is_some();
        sound && self.table.set(session, lock, 0).is_ok()
    }

    /// The session has declared all that it holds.
    pub fn handle_declared(&mut self, session: SessionId) {
        self.declarations.handle_declared(session);
    }

    /// Who has not declared in time is not waited for any more; returns how many those are.
    pub fn handle_declaring_over(&mut self) -> usize {
        self.declarations.handle_over()
    }

    /// The session has closed the inode for good.
    pub fn handle_close(&mut self, session: SessionId, inode: InodeId) {
        self.table.handle_close(session, inode);
        self.wake();
    }

    /// The session has ended.
    pub fn handle_end(&mut self, session: SessionId) {
        self.answered.remove(&session);
        self.watchers.forget(session);
        self.append_watchers.forget(session);
        self.declarations.handle_declared(session);
        self.table.handle_end(session);
        self.wake();
    }

    /// How much is held and waited for.
    #[must_use]
    pub fn counts(&self) -> Counts {
        self.table.counts()
    }

    /// Sessions that have not declared since the restart.
    #[must_use]
    pub fn undeclared(&self) -> usize {
        self.declarations.missing()
    }

    /// What an operator should know, if programs are held up.
    #[must_use]
    pub fn problem(&self) -> Option<String> {
        let missing = self.declarations.missing();
        (self.held_up && missing > 0).then(|| {
            format!(
                "no locks are granted yet after the restart: {missing} sessions have not declared \
                 those that they hold"
            )
        })
    }

    fn declaring(&self) -> Failure {
        let missing = self.declarations.missing();
        let text = format!("{missing} sessions have not declared yet which locks they hold");
        Failure::new(ErrorKind::Busy, text).retry_after(DECLARING_PAUSE)
    }

    fn wake(&mut self) {
        for session in self.table.poll_news() {
            self.watchers.wake(session);
        }
        for session in self.table.poll_wants() {
            self.append_watchers.wake(session);
        }
    }
}

#[cfg(test)]
mod tests;
