//! Who has which inode open for reading. In memory only: see [`super`].

use std::collections::{BTreeMap, BTreeSet, HashMap};

use millrace_protocol::session::Operation;
use millrace_types::{ErrorKind, InodeId, SessionId};

use super::LateOpens;

/// Opens for reading of all sessions.
#[derive(Debug, Default)]
pub struct Readers {
    /// Opens that come too late, and what stays for them.
    pub late: LateOpens,
    by_inode: HashMap<InodeId, BTreeMap<SessionId, u32>>,
    by_session: HashMap<SessionId, SessionReads>,
    /// Pairs of a session and an inode.
    opens: usize,
    /// Sessions from before a restart that have not said that they have declared what they read,
    /// and may still do so.
    undeclared: BTreeSet<SessionId>,
    /// The first id that was given to nobody before the restart. What has it or a later one can
    /// only have been opened since, and was told of then.
    first: InodeId,
    /// Up to where the records of reads that were not declared in time have been looked for, unless
    /// that is done.
    looked: Option<(InodeId, SessionId)>,
}

#[derive(Debug, Default)]
struct SessionReads {
    inodes: BTreeSet<InodeId>,
    /// Operations that were counted, so that a repeated one is not counted again. Those below
    /// `lowest` nobody waits for.
    counted: BTreeSet<u64>,
    lowest: u64,
}

/// What one session may have open for reading: as many as Linux lets one process have by far
/// (`fs.nr_open`).
const OPENS_MAX: usize = 1 << 20;

/// What all sessions together may have open for reading: 1,000 hosts with 4,000 files each. Costs
/// 800 MB here if no two read the same file.
const OPENS_OF_ALL_MAX: usize = 1 << 22;

impl Readers {
    /// Starts after a restart with the sessions that were known before it, and the first id that
    /// nothing can have had by then.
    #[must_use]
    pub fn after_restart(known: impl IntoIterator<Item = SessionId>, first: InodeId) -> Self {
        Self { undeclared: known.into_iter().collect(), first, ..Self::default() }
    }

    /// Counts an open for reading once, however often the request arrives.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] past the limits; [`ErrorKind::InvalidArgument`] for an operation that
    /// the client has said not to wait for any more.
    pub fn handle_open(&mut self, operation: Operation, inode: InodeId) -> Result<(), ErrorKind> {
        let reads = self.by_session.entry(operation.session).or_default();
        if reads.is_counted(operation)? {
            return Ok(());
        }
        if !reads.inodes.contains(&inode) {
            if reads.inodes.len() >= OPENS_MAX || self.opens >= OPENS_OF_ALL_MAX {
                return Err(ErrorKind::Busy);
            }
            reads.inodes.insert(inode);
            self.opens += 1;
        }
        reads.counted.insert(operation.sequence);
        let sessions = self.by_inode.entry(inode).or_default();
        let opens = sessions.entry(operation.session).or_default();
        *opens = opens.saturating_add(1);
        Ok(())
    }

    /// Takes one open back; tells whether the session does not read the inode any more.
    ///
    /// # Errors
    /// [`ErrorKind::InvalidArgument`] as [`Self::handle_open`].
    pub fn handle_close(
        &mut self,
        operation: Operation,
        inode: InodeId,
    ) -> Result<bool, ErrorKind> {
        let session = operation.session;
        let reads = self.by_session.entry(session).or_default();
        if reads.is_counted(operation)? {
            return Ok(!self.is_reading(session, inode));
        }
        reads.counted.insert(operation.sequence);
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
        if let (false, Some(reads)) = (reading, self.by_session.get_mut(&session))
            && reads.inodes.remove(&inode)
        {
            self.opens -= 1;
        }
        Ok(!reading)
    }

    /// The session has ended.
    pub fn handle_end(&mut self, session: SessionId) {
        self.handle_told(session);
        self.late.handle_end(session);
        let Some(reads) = self.by_session.remove(&session) else {
            return;
        };
        self.opens -= reads.inodes.len();
        for inode in reads.inodes {
            if let Some(sessions) = self.by_inode.get_mut(&inode) {
                sessions.remove(&session);
                if sessions.is_empty() {
                    self.by_inode.remove(&inode);
                }
            }
        }
    }

    /// Whether anybody from before the restart may read what it has not declared.
    #[must_use]
    pub fn is_declaring(&self) -> bool {
        !self.undeclared.is_empty()
    }

    /// Whether the session is from before the restart and may read what it has not declared.
    #[must_use]
    pub fn is_undeclared(&self, session: SessionId) -> bool {
        self.undeclared.contains(&session)
    }

    /// The session has declared all that it reads, or has ended. After the last one it is as
    /// [`Self::handle_declared`] says.
    pub fn handle_told(&mut self, session: SessionId) {
        if self.undeclared.remove(&session) && self.undeclared.is_empty() {
            self.handle_declared();
        }
    }

    /// The time to declare after the restart is over: who has not declared a read does not read.
    /// What is recorded of such reads is looked for from here on.
    pub fn handle_declared(&mut self) {
        self.undeclared.clear();
        self.looked = Some((InodeId(0), SessionId(0)));
    }

    /// Behind which open the records of reads that were not declared are still to be looked for, if
    /// any are.
    #[must_use]
    pub fn looked(&self) -> Option<(InodeId, SessionId)> {
        self.looked
    }

    /// They have been looked for up to there, or everywhere.
    pub fn handle_looked(&mut self, through: Option<(InodeId, SessionId)>) {
        self.looked = through;
    }

    /// Everybody who reads the inode, or may.
    #[must_use]
    pub fn of(&self, inode: InodeId) -> Vec<SessionId> {
        let reading = self.by_inode.get(&inode);
        let reading = reading.into_iter().flat_map(BTreeMap::keys);
        let undeclared = (inode < self.first).then_some(&self.undeclared);
        let all: BTreeSet<_> = reading.chain(undeclared.into_iter().flatten()).copied().collect();
        all.into_iter().collect()
    }

    /// Whether the session has the inode open for reading.
    #[must_use]
    pub fn is_reading(&self, session: SessionId, inode: InodeId) -> bool {
        self.by_inode.get(&inode).is_some_and(|sessions| sessions.contains_key(&session))
    }
}

impl SessionReads {
    /// Whether the operation was counted before; forgets what nobody waits for any more. What stays
    /// spans less than [`Operation::SPAN_MAX`] numbers, because each operation does.
    fn is_counted(&mut self, operation: Operation) -> Result<bool, ErrorKind> {
        if operation.lowest_pending > self.lowest {
            self.lowest = operation.lowest_pending;
            self.counted = self.counted.split_off(&self.lowest);
        }
        if operation.sequence < self.lowest {
            return Err(ErrorKind::InvalidArgument);
        }
        Ok(self.counted.contains(&operation.sequence))
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
    fn what_is_remembered_of_a_session_follows_its_mark() {
        let mut readers = Readers::default();
        for sequence in 1..1000 {
            readers.handle_open(operation(sequence), InodeId(sequence % 7)).unwrap();
        }
        let late = Operation { lowest_pending: 1, ..operation(990) };
        assert_eq!(readers.handle_open(late, InodeId(5)), Err(ErrorKind::InvalidArgument));
        let reads = &readers.by_session[&SessionId(1)];
        assert_eq!((reads.counted.len(), reads.inodes.len(), readers.opens), (4, 7, 7));
        for sequence in 1000..2100 {
            readers.handle_close(operation(sequence), InodeId(sequence % 7)).unwrap();
        }
        assert_eq!(readers.opens, 0);
        readers.handle_open(operation(2100), InodeId(1)).unwrap();
        readers.handle_end(SessionId(1));
        assert_eq!((readers.opens, readers.by_inode.len(), readers.by_session.len()), (0, 0, 0));
    }

    #[test]
    fn after_a_restart_known_sessions_may_read_anything_until_they_had_time_to_say() {
        let mut readers = Readers::after_restart([SessionId(4)], InodeId(10));
        assert_eq!(readers.of(InodeId(9)), [SessionId(4)]);
        assert!(readers.of(InodeId(10)).is_empty(), "it was made since, and opened by nobody");
        assert!(readers.is_declaring() && readers.looked().is_none());
        assert!(readers.is_undeclared(SessionId(4)) && !readers.is_undeclared(SessionId(5)));
        readers.handle_declared();
        assert!(!readers.is_undeclared(SessionId(4)));
        assert!(readers.of(InodeId(9)).is_empty());
        assert!(!readers.is_declaring() && readers.looked().is_some());
    }

    #[test]
    fn nobody_is_waited_for_when_all_have_told_or_ended() {
        let known = [4, 5, 6].map(SessionId);
        let mut readers = Readers::after_restart(known, InodeId(10));
        readers.handle_told(SessionId(4));
        readers.handle_told(SessionId(4));
        // It was opened since.
        readers.handle_told(SessionId(9));
        assert!(!readers.is_undeclared(SessionId(4)) && readers.is_declaring());
        assert_eq!(readers.of(InodeId(9)), [SessionId(5), SessionId(6)]);
        readers.handle_end(SessionId(5));
        assert!(readers.is_declaring() && readers.looked().is_none());
        readers.handle_told(SessionId(6));
        assert!(!readers.is_declaring() && readers.looked().is_some());
        // What was looked for is not looked for again.
        readers.handle_looked(None);
        readers.handle_told(SessionId(6));
        readers.handle_end(SessionId(4));
        assert_eq!(readers.looked(), None);
    }

    #[test]
    fn a_session_that_ends_has_nothing_to_declare() {
        let mut readers = Readers::after_restart([SessionId(4)], InodeId(10));
        readers.handle_end(SessionId(4));
        assert!(!readers.is_declaring());
    }

    #[test]
    fn the_end_of_a_session_ends_its_reads() {
        let mut readers = Readers::default();
        readers.handle_open(operation(1), InodeId(5)).unwrap();
        readers.handle_end(SessionId(1));
        assert!(readers.of(InodeId(5)).is_empty());
    }
}
