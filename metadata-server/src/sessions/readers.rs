//! Who has which inode open for reading. In memory only: see [`super`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use millrace_protocol::session::Operation;
use millrace_types::{ErrorKind, InodeId, SessionId};

/// Opens for reading of all sessions.
#[derive(Debug, Default)]
pub struct Readers {
    by_inode: HashMap<InodeId, BTreeMap<SessionId, u32>>,
    by_session: HashMap<SessionId, SessionReads>,
    /// Sessions from before a restart that have not had a lease's time to declare what they read.
    undeclared: BTreeSet<SessionId>,
}

#[derive(Debug, Default)]
struct SessionReads {
    inodes: BTreeSet<InodeId>,
    /// Operations that were counted, so that a repeated one is not counted again.
    counted: BTreeSet<u64>,
}

/// What one session may have open for reading: above any host's limit of open files that was seen,
/// and 100 MB of memory here for a thousand such hosts.
const OPENS_MAX: usize = 1 << 20;

/// Unanswered operations of one session at a time.
const COUNTED_MAX: usize = 1 << 16;

impl Readers {
    /// Starts after a restart with the sessions that were known before it.
    #[must_use]
    pub fn after_restart(known: impl IntoIterator<Item = SessionId>) -> Self {
        Self { undeclared: known.into_iter().collect(), ..Self::default() }
    }

    /// Counts an open for reading once, however often the request arrives.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] past the limits.
    pub fn handle_open(&mut self, operation: Operation, inode: InodeId) -> Result<(), ErrorKind> {
        let reads = self.by_session.entry(operation.session).or_default();
        if reads.inodes.len() >= OPENS_MAX {
            return Err(ErrorKind::Busy);
        }
        if !reads.count(operation)? {
            return Ok(());
        }
        reads.inodes.insert(inode);
        let sessions = self.by_inode.entry(inode).or_default();
        let opens = sessions.entry(operation.session).or_default();
        *opens = opens.saturating_add(1);
        Ok(())
    }

    /// Takes one open back; tells whether the session does not read the inode any more.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] past the limits.
    pub fn handle_close(
        &mut self,
        operation: Operation,
        inode: InodeId,
    ) -> Result<bool, ErrorKind> {
        let session = operation.session;
        if !self.by_session.entry(session).or_default().count(operation)? {
            return Ok(!self.is_reading(session, inode));
        }
        if let Some(sessions) = self.by_inode.get_mut(&inode) {
            if let Some(opens) = sessions.get_mut(&session) {
                *opens = opens.saturating_sub(1);
                if *opens == 0 {
                    sessions.remove(&session);
                }
            }
            if sessions.is_empty() {
                self.by_inode.remove(&inode);
            }
        }
        let reading = self.is_reading(session, inode);
        if let (false, Some(reads)) = (reading, self.by_session.get_mut(&session)) {
            reads.inodes.remove(&inode);
        }
        Ok(!reading)
    }

    /// The session has ended.
    pub fn handle_end(&mut self, session: SessionId) {
        self.undeclared.remove(&session);
        let Some(reads) = self.by_session.remove(&session) else {
            return;
        };
        for inode in reads.inodes {
            if let Some(sessions) = self.by_inode.get_mut(&inode) {
                sessions.remove(&session);
                if sessions.is_empty() {
                    self.by_inode.remove(&inode);
                }
            }
        }
    }

    /// The lease after the restart is over: who has not declared a read does not read. Tells
    /// whether there was anybody to wait for.
    pub fn handle_declared(&mut self) -> bool {
        !std::mem::take(&mut self.undeclared).is_empty()
    }

    /// Everybody who reads the inode, or may.
    #[must_use]
    pub fn of(&self, inode: InodeId) -> Vec<SessionId> {
        let reading = self.by_inode.get(&inode);
        let reading = reading.into_iter().flat_map(BTreeMap::keys);
        let all: BTreeSet<_> = reading.chain(&self.undeclared).copied().collect();
        all.into_iter().collect()
    }

    /// Whether the session has the inode open for reading.
    #[must_use]
    pub fn is_reading(&self, session: SessionId, inode: InodeId) -> bool {
        self.by_inode.get(&inode).is_some_and(|sessions| sessions.contains_key(&session))
    }
}

impl SessionReads {
    /// Whether the operation is a new one.
    fn count(&mut self, operation: Operation) -> Result<bool, ErrorKind> {
        self.counted = self.counted.split_off(&operation.lowest_pending);
        if self.counted.len() >= COUNTED_MAX {
            return Err(ErrorKind::Busy);
        }
        Ok(self.counted.insert(operation.sequence))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation(sequence: u64) -> Operation {
        Operation { session: SessionId(1), sequence, lowest_pending: sequence.saturating_sub(3) }
    }

    #[test]
    fn a_repeated_open_counts_once() {
        let mut readers = Readers::default();
        let inode = InodeId(5);
        readers.handle_open(operation(1), inode).unwrap();
        readers.handle_open(operation(1), inode).unwrap();
        readers.handle_open(operation(2), inode).unwrap();
        assert_eq!(readers.of(inode), [SessionId(1)]);
        assert_eq!(readers.handle_close(operation(3), inode), Ok(false));
        assert_eq!(readers.handle_close(operation(4), inode), Ok(true));
        assert_eq!(readers.handle_close(operation(4), inode), Ok(true));
        assert!(readers.of(inode).is_empty());
    }

    #[test]
    fn after_a_restart_known_sessions_may_read_anything_until_they_had_time_to_say() {
        let mut readers = Readers::after_restart([SessionId(4)]);
        assert_eq!(readers.of(InodeId(9)), [SessionId(4)]);
        assert!(readers.handle_declared());
        assert!(readers.of(InodeId(9)).is_empty());
        assert!(!readers.handle_declared());
    }

    #[test]
    fn the_end_of_a_session_ends_its_reads() {
        let mut readers = Readers::default();
        readers.handle_open(operation(1), InodeId(5)).unwrap();
        readers.handle_end(SessionId(1));
        assert!(readers.of(InodeId(5)).is_empty());
    }
}
