//! Names that were made while another session had a lease on their directory, and that it has not
//! heard of yet.
//!
//! Who made one is answered when it has. Until then nobody is shown the name, so that nobody can
//! tell that session of it first: it is as if it were made a moment later. But the directory may
//! show already that something was made. So who looks into it waits a moment, too.

use std::collections::HashMap;

use millrace_types::{FileName, InodeId, SessionId};

use super::Wait;

/// By directory, in the order in which they were made.
#[derive(Debug, Default)]
pub struct Unheard {
    by_directory: HashMap<InodeId, Vec<Made>>,
}

#[derive(Debug)]
struct Made {
    by: SessionId,
    names: Vec<FileName>,
    wait: Wait,
}

impl Unheard {
    /// A session has made names in the directory, of which another hears.
    pub fn handle_made(
        &mut self,
        directory: InodeId,
        by: SessionId,
        names: Vec<FileName>,
        wait: Wait,
    ) {
        // Few are on their way at a time.
        self.by_directory.retain(|_, made| {
            made.retain(|made| !made.wait.is_over());
            !made.is_empty()
        });
        self.by_directory.entry(directory).or_default().push(Made { by, names, wait });
    }

    /// What is over when everybody has heard of the names that this session has made.
    #[must_use]
    pub fn of_maker(&self, by: SessionId) -> Vec<Wait> {
        let made = self.by_directory.values().flatten().filter(|made| made.by == by);
        made.filter(|made| !made.wait.is_over()).map(|made| made.wait.clone()).collect()
    }

    /// What is over when everybody has heard of this name, if somebody has not.
    #[must_use]
    pub fn of_name(&self, directory: InodeId, name: &FileName) -> Option<Wait> {
        let made = self.pending(directory).find(|made| made.names.contains(name));
        made.map(|made| made.wait.clone())
    }

    /// What is over when everybody has heard of the names of the directory.
    #[must_use]
    pub fn of_directory(&self, directory: InodeId) -> Vec<Wait> {
        self.pending(directory).map(|made| made.wait.clone()).collect()
    }

    /// Whether somebody has not heard yet of a name of the directory.
    #[must_use]
    pub fn is_any_in(&self, directory: InodeId) -> bool {
        self.pending(directory).next().is_some()
    }

    fn pending(&self, directory: InodeId) -> impl Iterator<Item = &Made> {
        let made = self.by_directory.get(&directory).into_iter().flatten();
        made.filter(|made| !made.wait.is_over())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_waited_for_until_it_was_heard_of() {
        let mut unheard = Unheard::default();
        let (directory, [one, other]) = (InodeId(7), [1, 2].map(SessionId));
        let name = |text: &str| FileName::parse(text.as_bytes()).unwrap();
        let (first, first_debt) = Wait::new(Vec::new());
        let (second, second_debt) = Wait::new(Vec::new());
        unheard.handle_made(directory, one, vec![name("a"), name("b")], first.clone());
        unheard.handle_made(directory, other, vec![name("c")], second.clone());
        assert_eq!(unheard.of_maker(one), std::slice::from_ref(&first));
        assert_eq!(unheard.of_name(directory, &name("b")), Some(first));
        assert_eq!(unheard.of_name(directory, &name("c")), Some(second));
        assert_eq!(unheard.of_name(directory, &name("d")), None);
        assert_eq!(unheard.of_name(InodeId(8), &name("a")), None);
        assert!(unheard.is_any_in(directory) && !unheard.is_any_in(InodeId(8)));
        assert_eq!(unheard.of_directory(directory).len(), 2);
        drop(first_debt);
        assert_eq!((unheard.of_maker(one), unheard.of_name(directory, &name("a"))), (vec![], None));
        assert!(unheard.is_any_in(directory));
        drop(second_debt);
        assert!(!unheard.is_any_in(directory));
        let (third, _debt) = Wait::new(Vec::new());
        unheard.handle_made(InodeId(9), one, vec![name("a")], third);
        assert_eq!(unheard.by_directory.len(), 1, "what is over is forgotten");
    }
}
