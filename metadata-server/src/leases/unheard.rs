//! Names that were made while another session had a lease on their directory, and that it has not
//! heard of yet.
//!
//! Who made one is answered when it has. Whoever else sees the directory meanwhile could tell that
//! session of the name before it hears of it: the answer to that waits too.

use std::collections::HashMap;

use millrace_types::{InodeId, SessionId};

use super::Wait;

/// By directory, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Unheard {
    by_directory: HashMap<InodeId, Vec<(SessionId, Wait)>>,
}

impl Unheard {
    /// A session has made a name in the directory, of which others hear.
    pub fn handle_made(&mut self, directory: InodeId, by: SessionId, wait: Wait) {
        // Few are on their way at a time.
        self.by_directory.retain(|_, waits| {
            waits.retain(|(_, wait)| !wait.is_over());
            !waits.is_empty()
        });
        self.by_directory.entry(directory).or_default().push((by, wait));
    }

    /// What is over when everybody has heard of the names of the directory; of those alone that
    /// this session made, if one is given.
    #[must_use]
    pub fn of(&self, directory: InodeId, by: Option<SessionId>) -> Vec<Wait> {
        let waits = self.by_directory.get(&directory).into_iter().flatten();
        let asked =
            waits.filter(|(maker, wait)| by.is_none_or(|by| by == *maker) && !wait.is_over());
        asked.map(|(_, wait)| wait.clone()).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_waited_for_until_it_was_heard_of_by_its_maker_and_by_who_looks() {
        let mut unheard = Unheard::default();
        let (directory, [one, other]) = (InodeId(7), [1, 2].map(SessionId));
        let (first, first_debt) = Wait::new(Vec::new());
        let (second, second_debt) = Wait::new(Vec::new());
        unheard.handle_made(directory, one, first.clone());
        unheard.handle_made(directory, other, second.clone());
        assert_eq!(unheard.of(directory, None), [first.clone(), second.clone()]);
        assert_eq!(unheard.of(directory, Some(one)), [first]);
        assert_eq!(unheard.of(InodeId(8), None), []);
        drop(first_debt);
        assert_eq!(unheard.of(directory, Some(one)), []);
        assert_eq!(unheard.of(directory, None), [second]);
        drop(second_debt);
        let (third, _debt) = Wait::new(Vec::new());
        unheard.handle_made(InodeId(9), one, third);
        assert_eq!(unheard.by_directory.len(), 1, "what is over is forgotten");
    }
}
