//! Holds answers back that name a content before its name is on stable storage.
//!
//! A content is named by its inode's generation and write epoch. Both grow by one, from what the
//! store holds, so that a raise that a loss of power takes away is given again: for other bytes,
//! while a target may hold some of the first. So whoever answers says which inodes' contents the
//! answer names ([`Names::note`]), and the answer waits until their last raises are synced. Without
//! a raise within the last moments there is nothing to wait for.

use std::collections::{HashMap, VecDeque};

use millrace_types::{InodeId, LogIndex};

/// The raises that may not be synced, and what the turn at hand names.
#[derive(Debug, Default)]
pub struct Names {
    /// The last raise of each inode's generation or write epoch.
    raised: HashMap<InodeId, LogIndex>,
    /// The same in the order of the log, with older raises of the same inodes.
    order: VecDeque<(LogIndex, InodeId)>,
    /// What must be synced before the answer of the turn at hand may go out.
    hold: Option<LogIndex>,
}

impl Names {
    /// The command at `index` gave the content of `inode` another name.
    pub fn handle_raise(&mut self, inode: InodeId, index: LogIndex) {
        self.raised.insert(inode, index);
        self.order.push_back((index, inode));
    }

    /// The log is synced up to `synced`.
    pub fn handle_synced(&mut self, synced: LogIndex) {
        while let Some(&(index, inode)) = self.order.front()
            && index <= synced
        {
            self.order.pop_front();
            if self.raised.get(&inode) == Some(&index) {
                self.raised.remove(&inode);
            }
        }
    }

    /// The answer of this turn names the present content of `inode`.
    pub fn note(&mut self, inode: InodeId) {
        self.hold = self.hold.max(self.raised.get(&inode).copied());
    }

    /// What must be synced before the answer of the turn that ends here.
    pub fn poll_hold(&mut self) -> Option<LogIndex> {
        self.hold.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: InodeId = InodeId(7);
    const SECOND: InodeId = InodeId(8);

    #[test]
    fn an_answer_waits_for_the_last_raise_of_what_it_names_and_for_nothing_else() {
        let mut names = Names::default();
        names.handle_raise(FIRST, LogIndex(3));
        names.handle_raise(SECOND, LogIndex(4));
        names.handle_raise(FIRST, LogIndex(5));
        names.note(InodeId(9));
        assert_eq!(names.poll_hold(), None);
        names.note(SECOND);
        assert_eq!(names.poll_hold(), Some(LogIndex(4)));
        assert_eq!(names.poll_hold(), None, "a hold is of one turn");
        names.note(FIRST);
        names.note(SECOND);
        assert_eq!(names.poll_hold(), Some(LogIndex(5)));
    }

    #[test]
    fn a_synced_raise_is_forgotten_and_a_later_one_of_the_inode_is_not() {
        let mut names = Names::default();
        names.handle_raise(FIRST, LogIndex(3));
        names.handle_raise(FIRST, LogIndex(5));
        names.handle_synced(LogIndex(4));
        names.note(FIRST);
        assert_eq!(names.poll_hold(), Some(LogIndex(5)));
        names.handle_synced(LogIndex(5));
        names.note(FIRST);
        assert_eq!(names.poll_hold(), None);
        assert!(names.raised.is_empty() && names.order.is_empty());
    }
}
