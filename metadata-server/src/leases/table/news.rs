//! Names that are made where another session has a lease: it is told, and keeps what it has.
//!
//! A recall before each of them would cost both sessions a question for what the directory shows
//! since; and a directory in which two hosts make files all the time would be left alone. The new
//! name takes nothing away that the other session could act on once it knows: it was not there, and
//! the kernel never keeps that. So the change need not wait, only its answer.

use std::{collections::BTreeSet, sync::Arc};

use millrace_protocol::lease::{Recall, Recalls};
use millrace_types::{InodeId, SessionId, Timestamp};

use super::{Holding, Table};
use crate::leases::{Touch, Wait, marks::Debt, touched::made_in};

impl Table {
    /// The session listens for what directories show, or only for what is taken back.
    pub fn handle_follows(&mut self, session: SessionId, follows: bool) {
        self.session(session).follows = follows;
    }

    /// What the session must hear, and which directories it may be shown: those whose attributes it
    /// goes on to hold.
    pub fn poll_news(&mut self, session: SessionId) -> Option<(Recalls, BTreeSet<InodeId>)> {
        let (mut recalls, mut shown) = self.sessions.get_mut(&session)?.queue.poll_shown();
        shown.retain(|&directory| {
            let is_kept = self.is_kept(session, directory);
            if !is_kept {
                recalls.recalls.push(Recall::Attributes(directory));
            }
            is_kept
        });
        Some((recalls, shown))
    }

    /// What is over when everybody has heard of the names that were made in the directory; of those
    /// alone that this session made, if one is given.
    #[must_use]
    pub fn unheard(&self, directory: InodeId, by: Option<SessionId>) -> Vec<Wait> {
        self.unheard.of(directory, by)
    }

    /// If the touches are of names that `by` makes in a directory, and one other session has a
    /// lease there: tells it, in place of taking something back. Tells whether it did.
    ///
    /// With more than one of them none is told: each could see what others have not heard of yet.
    pub(super) fn tell(
        &mut self,
        touches: &[Touch],
        parties: &[(SessionId, &Touch)],
        by: Option<SessionId>,
        now: Timestamp,
    ) -> bool {
        let (Some(directory), Some(by)) = (made_in(touches), by) else { return false };
        let Some(&(other, _)) = parties.first() else { return false };
        let is_alone = parties.iter().all(|(session, _)| *session == other);
        let state = self.sessions.get(&other);
        let follows = state.is_some_and(|state| state.follows && !state.ending);
        let is_delegated = self.delegations.holder(directory).is_some();
        if !is_alone || !follows || is_delegated || self.restless.is_restless(directory, now) {
            return false;
        }
        let (wait, debt) = Wait::new(Vec::new());
        for (_, touch) in parties {
            match touch {
                Touch::Name { .. } => self.take_back(other, touch, Some(Arc::clone(&debt))),
                Touch::Attributes { .. } if self.is_kept(other, directory) => {
                    self.push_shown(other, directory, Arc::clone(&debt));
                }
                Touch::Attributes { .. } => self.take_back(other, touch, Some(Arc::clone(&debt))),
            }
        }
        drop(debt);
        self.unheard.handle_made(directory, by, wait);
        self.delegations.handle_shared(directory, now);
        true
    }

    /// Whether the session goes on to hold the attributes of the directory.
    fn is_kept(&self, session: SessionId, directory: InodeId) -> bool {
        let held = self.by_key.get(&directory).and_then(|holders| holders.get(&session));
        held.is_some_and(|held| held.ending == 0 && held.holding.meets(Holding::OWN))
    }

    fn push_shown(&mut self, session: SessionId, directory: InodeId, debt: Debt) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        self.recalled += 1;
        if state.queue.push_shown(directory, debt) {
            state.ending = true;
        }
    }
}

#[cfg(test)]
mod tests {
    use millrace_types::FileName;

    use super::*;
    use crate::leases::{
        Waits,
        restless::RECALLS_MAX,
        table::{ALL, Limits},
    };

    const DIRECTORY: InodeId = InodeId(7);
    const NOW: Timestamp = Timestamp(0);
    const MAKER: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);
    const THIRD: SessionId = SessionId(3);

    fn new_name() -> [Touch; 2] {
        let name = FileName::parse(b"new").unwrap();
        let named = Touch::Name { directory: DIRECTORY, name, existed: false };
        [named, Touch::Attributes { key: DIRECTORY, inode: DIRECTORY }]
    }

    fn name_recall() -> Recall {
        Recall::Name(DIRECTORY, FileName::parse(b"new").unwrap())
    }

    /// These listen and follow, and have everything of the directory.
    fn holding(sessions: &[SessionId]) -> Table {
        let mut table = Table::after_restart(Limits::default(), []);
        for &session in sessions {
            table.handle_listening(session, 0, NOW);
            table.handle_follows(session, true);
            assert!(table.grant(session, DIRECTORY, ALL, NOW));
        }
        table
    }

    fn make(table: &mut Table) -> Option<Wait> {
        table.recall(&new_name(), Some(MAKER), Waits::Before, NOW)
    }

    #[test]
    fn who_makes_names_beside_another_waits_for_nothing_before_and_both_keep_what_they_have() {
        let mut table = holding(&[MAKER, OTHER]);
        for count in 0..10 * u64::from(RECALLS_MAX) {
            assert_eq!(make(&mut table), None);
            let [wait] = &table.unheard(DIRECTORY, Some(MAKER))[..] else { panic!("one waits") };
            assert_eq!(table.unheard(DIRECTORY, None), [wait.clone()]);
            assert_eq!(table.unheard(DIRECTORY, Some(OTHER)), []);
            assert!(!wait.is_over());
            let (told, shown) = table.poll_news(OTHER).unwrap();
            assert_eq!((told.recalls, shown), (vec![name_recall()], [DIRECTORY].into()));
            assert_eq!(told.through, 2 * (count + 1));
            table.handle_listening(OTHER, told.through, NOW);
            assert!(wait.is_over() && table.unheard(DIRECTORY, None).is_empty());
            for session in [MAKER, OTHER] {
                assert!(table.is_free(session, DIRECTORY, NOW));
            }
        }
        assert!(!table.delegate(MAKER, DIRECTORY, NOW), "two use it");
        assert!(table.is_kept(OTHER, DIRECTORY), "nothing was taken back for that");
    }

    #[test]
    fn where_two_others_have_something_or_one_listens_for_recalls_alone_it_is_taken_back() {
        let mut crowded = holding(&[MAKER, OTHER, THIRD]);
        assert!(make(&mut crowded).is_some());
        let mut old = holding(&[MAKER, OTHER]);
        old.handle_follows(OTHER, false);
        let wait = make(&mut old).expect("it waits before");
        assert_eq!(old.unheard(DIRECTORY, None), []);
        let told = old.poll_recalls(OTHER).unwrap();
        assert_eq!(told.recalls, [name_recall(), Recall::Attributes(DIRECTORY)]);
        old.handle_listening(OTHER, told.through, NOW);
        assert!(wait.is_over() && !old.is_kept(OTHER, DIRECTORY));
    }

    #[test]
    fn what_is_taken_back_meanwhile_is_not_shown() {
        let mut table = holding(&[MAKER, OTHER]);
        assert_eq!(make(&mut table), None);
        let mode = [Touch::Attributes { key: DIRECTORY, inode: DIRECTORY }];
        let wait = table.recall(&mode, Some(THIRD), Waits::Before, NOW);
        assert!(wait.is_some());
        let (told, shown) = table.poll_news(OTHER).unwrap();
        assert!(shown.is_empty() && told.recalls.contains(&Recall::Attributes(DIRECTORY)));
    }

    #[test]
    fn the_end_of_who_was_told_pays_for_it() {
        let mut table = holding(&[MAKER, OTHER]);
        assert_eq!(make(&mut table), None);
        table.handle_end(OTHER);
        assert_eq!(table.unheard(DIRECTORY, None), []);
    }
}
