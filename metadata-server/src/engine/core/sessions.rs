//! The engine's part in the life of sessions: how many there are, how they end, and what they have
//! to declare after a restart.

use millrace_types::{Failure, HostId, InodeId, SessionId};

use super::Core;
use crate::{
    command::{Command, Opener},
    namespace::tree,
    store::{keys, records::OpenRecord},
};

impl Core {
    /// Ends every session whose lease ran out, the oldest first.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn end_dead_sessions(&mut self) -> Result<(), Failure> {
        let now = self.look().now;
        while let Some(session) = self.expiry.poll_dead(now) {
            tracing::warn!(%session, "session ended: its lease ran out");
            self.end_session(session)?;
        }
        Ok(())
    }

    /// How many sessions the host has, and how many there are.
    #[must_use]
    pub fn session_counts(&self, host: HostId) -> (usize, usize) {
        let of_host = self.sessions_by_nonce.keys().filter(|(of, _)| *of == host).count();
        (of_host, self.sessions_by_nonce.len())
    }

    /// Ends a session and everything it holds.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn end_session(&mut self, session: SessionId) -> Result<(), Failure> {
        self.execute(None, Command::CloseSession(session))?;
        Ok(())
    }

    /// The session that the node opened with this number, if it is alive.
    #[must_use]
    pub fn session_of(&self, host: HostId, nonce: u64) -> Option<SessionId> {
        self.sessions_by_nonce.get(&(host, nonce)).copied()
    }

    /// Lets go of those who had time to declare after a restart and did not.
    pub(super) fn end_declaring(&mut self) -> Result<(), Failure> {
        let now = self.look().now;
        if now > self.declared_by && self.readers.handle_declared() {
            self.drop_undeclared_readers()?;
        }
        // Twice as long for locks: whoever renews its ticket lives, and its locks with it. A client
        // that cannot declare for so long has lost them, rather than stop all others for ever.
        if now > self.declared_by.plus(self.lease()) {
            let late = self.locks.handle_declaring_over();
            if late > 0 {
                tracing::warn!(sessions = late, "locks that were not declared are given up");
            }
        }
        Ok(())
    }

    /// Sessions that had a lease's time to declare what they read do not read the rest.
    fn drop_undeclared_readers(&mut self) -> Result<(), Failure> {
        let opens = tree::scan::<OpenRecord>(&*self.store.0, b"O", usize::MAX);
        let opens = opens.map_err(|error| self.failure(error.into()))?;
        for (key, open) in opens {
            let (Some(inode), Some(session)) = (keys::number_at(&key, 1), keys::number_at(&key, 9))
            else {
                continue;
            };
            let (inode, session) = (InodeId(inode), SessionId(session));
            if open.reads && !self.readers.is_reading(session, inode) {
                self.execute(None, Command::DropReader(Opener { session, inode }))?;
            }
        }
        Ok(())
    }
}
