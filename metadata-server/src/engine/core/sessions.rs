//! The engine's part in the life of sessions: how many there are, how they end, who gets no ticket
//! any more, and what they have to declare after a restart.

use std::{mem, ops::Bound};

use millrace_types::{ErrorKind, Failure, HostId, InodeId, SessionId};

use super::Core;
use crate::{
    command::{Command, Opener},
    engine::opens::{OPENS_MAX, ends},
    leases::table::UNDECLARED_TIMES,
    namespace::tree,
    store::{
        StoreError, View, borrow, keys, prefix_end,
        records::{self, OpenRecord},
    },
};

/// Opens of a session that are looked at at once.
const OPENS_A_LOOK: usize = 1024;

/// Opens of what has no name that end in one turn, in which all others wait.
const OPENS_A_TURN: usize = 4 * OPENS_MAX;

impl Core {
    /// Ends every session whose lease ran out, the oldest first, behind those whose end has begun.
    /// With much to end, called again, this goes on. Looks before who lets the others wait for too
    /// long, and gets no ticket from now on.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn end_dead_sessions(&mut self) -> Result<(), Failure> {
        let (now, session_end) = (self.look().now, self.session_end());
        for (session, reason) in self.leases.poll_overdue(now, session_end) {
            tracing::warn!(%session, %reason, "session holds others up: it gets no ticket until it \
                stops, and ends when its last one runs out");
        }
        let mut left = OPENS_A_TURN;
        loop {
            let begun = self.ending.keys().next().copied();
            let dead = begun.or_else(|| self.expiry.poll_dead(now));
            let Some(session) = dead else { return Ok(()) };
            if begun.is_none() {
                self.tell_end(session);
            }
            if !self.end_within(session, &mut left)? {
                return Ok(());
            }
        }
    }

    fn tell_end(&self, session: SessionId) {
        match self.leases.owed(session) {
            Some(reason) => tracing::warn!(%session, %reason, "session ends: it held others up"),
            None => tracing::warn!(%session, "session ends: its lease ran out"),
        }
    }

    /// Whether the session may get a ticket: whoever renews it lives, and others wait for what it
    /// owes for as long as it does.
    ///
    /// # Errors
    /// [`ErrorKind::SessionGone`] once its end has begun; [`ErrorKind::Busy`] while it owes
    /// something for too long.
    pub fn check_owed(&self, session: SessionId) -> Result<(), Failure> {
        if self.ending.contains_key(&session) {
            return Err(ErrorKind::SessionGone.into());
        }
        let Some(owed) = self.leases.owed(session) else { return Ok(()) };
        let text = format!("{session} gets no ticket, because others wait for it: {owed}");
        Err(Failure::new(ErrorKind::Busy, text))
    }

    /// How many sessions the host has, and how many there are.
    #[must_use]
    pub fn session_counts(&self, host: HostId) -> (usize, usize) {
        let of_host = self.sessions_by_nonce.keys().filter(|(of, _)| *of == host).count();
        (of_host, self.sessions_by_nonce.len())
    }

    /// Ends a session and everything it holds, as far as that goes in one turn. Whether it has
    /// ended; otherwise, called again, this goes on, and so does [`Self::end_dead_sessions`].
    ///
    /// A session whose end has begun has lost some of what it had open and nobody can name, and
    /// gets no ticket any more. That is in memory: a session that the server's own end or crash has
    /// caught so, and that is renewed after the next start, lives on, and finds those files stale.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn end_session(&mut self, session: SessionId) -> Result<bool, Failure> {
        let mut left = OPENS_A_TURN;
        self.end_within(session, &mut left)
    }

    /// Ends a session, if what it has open that has no name is no more than what is left of this
    /// turn; otherwise a part of that. The contents go, and are too many at times for the command
    /// that ends the session.
    fn end_within(&mut self, session: SessionId, left: &mut usize) -> Result<bool, Failure> {
        let opened = keys::opened_by(session);
        let end = prefix_end(&opened);
        let mut from = match self.ending.get(&session) {
            Some(&last) => Bound::Excluded(keys::opened(session, last)),
            None => Bound::Included(opened),
        };
        let mut opens = Vec::new();
        loop {
            let page = self.view().scan(borrow(&from), borrow(&end), OPENS_A_LOOK);
            let page = page.map_err(|error| self.failure(error.into()))?;
            let Some((last, _)) = page.last() else { break };
            from = Bound::Excluded(last.clone());
            for (key, _) in &page {
                let open = nameless(self.view(), session, key);
                opens.extend(open.map_err(|error| self.failure(error.into()))?);
            }
            while opens.len() > OPENS_MAX {
                if *left < OPENS_MAX {
                    return Ok(false);
                }
                *left -= OPENS_MAX;
                let rest = opens.split_off(OPENS_MAX);
                self.end_part(session, &mem::replace(&mut opens, rest))?;
            }
        }
        if *left < opens.len() {
            return Ok(false);
        }
        *left -= opens.len();
        self.execute(None, Command::CloseSession(session))?;
        Ok(true)
    }

    /// Ends some opens of a session, whose end has begun with that.
    fn end_part(
        &mut self,
        session: SessionId,
        opens: &[(InodeId, OpenRecord)],
    ) -> Result<(), Failure> {
        // Before the first command: when one fails, nobody knows at once whether it is in the log.
        let reached = self.ending.entry(session).or_default();
        let last = opens.last().map_or(*reached, |(inode, _)| *inode);
        for command in ends(session, opens) {
            self.execute(None, command)?;
        }
        self.ending.insert(session, last);
        Ok(())
    }

    /// The session that the node opened with this number, if it is alive.
    #[must_use]
    pub fn session_of(&self, host: HostId, nonce: u64) -> Option<SessionId> {
        self.sessions_by_nonce.get(&(host, nonce)).copied()
    }

    /// The session has declared whatever it has from before the restart. When nobody else is waited
    /// for, what was not declared is dropped at once, not by the next look.
    ///
    /// # Errors
    /// As [`Self::execute`]; the next look goes on.
    pub fn handle_all_told(&mut self, session: SessionId) -> Result<(), Failure> {
        self.readers.handle_told(session);
        if self.readers.looked().is_some() && self.room.is_enough_for_ends() {
            self.drop_undeclared_readers()?;
        }
        Ok(())
    }

    /// Lets go of what nobody reads, and did not go at once because somebody might.
    pub(super) fn end_reading(&mut self) -> Result<(), Failure> {
        let (declared, late) = (self.end_declaring(), self.drop_late());
        declared.and(late)
    }

    /// Lets go of some of what has stayed for long enough for opens that were under way; called
    /// again, this goes on.
    ///
    /// # Errors
    /// As [`Self::execute`].
    pub fn drop_late(&mut self) -> Result<(), Failure> {
        let over = self.readers.late.over(self.now());
        if over.is_empty() || !self.room.is_enough_for_ends() {
            return Ok(());
        }
        for (inode, session) in over.into_iter().take(OPENS_A_LOOK) {
            // What is open is dropped with its close.
            if !self.readers.is_reading(session, inode) {
                self.execute(None, Command::DropReader(Opener { session, inode }))?;
            }
            self.readers.late.handle_over(inode, session);
        }
        Ok(())
    }

    /// Lets go of those who had time to declare after a restart and did not.
    fn end_declaring(&mut self) -> Result<(), Failure> {
        let now = self.look().now;
        // An older client does not say when it has come to the end of what it reads, and others may
        // not get to it. So they have as long as others wait for them.
        let told_by = self.declaring_since.plus(self.session_end() * UNDECLARED_TIMES);
        let is_over = now > told_by && self.readers.is_declaring();
        // A full disk would take none of it.
        if (is_over || self.readers.looked().is_some()) && self.room.is_enough_for_ends() {
            if is_over {
                self.readers.handle_declared();
            }
            self.drop_undeclared_readers()?;
        }
        // Whoever renews its ticket lives, and its locks with it. A client that cannot declare them
        // for so long, which it does first, has lost them, rather than stop all others for ever.
        if now > self.declaring_since.plus(self.lease() * 2) {
            let late = self.locks.handle_declaring_over();
            if late > 0 {
                tracing::warn!(sessions = late, "locks that were not declared are given up");
            }
        }
        Ok(())
    }

    /// Sessions that had time to declare what they read do not read the rest: looks at some of what
    /// is open, and called again goes on. What fails the next look takes up again.
    fn drop_undeclared_readers(&mut self) -> Result<(), Failure> {
        let Some((inode, session)) = self.readers.looked() else { return Ok(()) };
        let after = keys::open(inode, session);
        let store = &*self.store.0;
        let opens = tree::scan_after::<OpenRecord>(store, &[keys::OPENS], &after, OPENS_A_LOOK);
        let opens = opens.map_err(|error| self.failure(error.into()))?;
        let is_last = opens.len() < OPENS_A_LOOK;
        let mut through = None;
        for (key, open) in opens {
            let (Some(inode), Some(session)) = (keys::number_at(&key, 1), keys::number_at(&key, 9))
            else {
                continue;
            };
            let (inode, session) = (InodeId(inode), SessionId(session));
            if open.reads && !self.readers.is_reading(session, inode) {
                self.execute(None, Command::DropReader(Opener { session, inode }))?;
            }
            through = Some((inode, session));
        }
        self.readers.handle_looked(through.filter(|_| !is_last));
        Ok(())
    }
}

/// What a session has open by this key, if it has no name and nobody else has it open. What others
/// have open does not go with this session, and is left to the command that ends it: whatever the
/// session has written there counts as that of a dead writer.
fn nameless(
    view: &dyn View,
    session: SessionId,
    key: &[u8],
) -> Result<Option<(InodeId, OpenRecord)>, StoreError> {
    let Some(inode) = keys::number_at(key, 9).map(InodeId) else { return Ok(None) };
    if tree::find(view, inode)?.is_none_or(|found| found.links > 0) {
        return Ok(None);
    }
    if tree::scan::<OpenRecord>(view, &keys::opens(inode), 2)?.len() > 1 {
        return Ok(None);
    }
    let open = records::read::<OpenRecord>(view, &keys::open(inode, session))?;
    Ok(open.map(|open| (inode, open)))
}

#[cfg(test)]
mod tests;
