//! Names that are made where another session has a lease: it is told, and keeps what it has.
//!
//! A recall before each of them would cost both sessions a question for what the directory shows
//! since; and a directory in which two hosts make files all the time would be left alone. The new
//! name takes nothing away that the other session could act on once it knows: it was not there, and
//! the kernel never keeps that. So the change need not wait, only its answer.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use millrace_protocol::lease::{Recall, Recalls};
use millrace_types::{InodeId, SessionId, Timestamp};

use super::{ALL, Holding, Table};
use crate::leases::{Touch, Wait, marks::Debt, touched::made_in, unheard::Unheard};

/// A session that is told of so many names in a row, and makes none itself, only looked: its lease
/// ends, so that who makes them need not wait for it, and may have a delegation.
const TOLD_MAX: u32 = 16;

/// Who takes longer to hear is far away, or overloaded: several times what it takes on busy
/// machines that are near.
const SLOW: Duration = Duration::from_millis(20);

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

    /// What the answer to the last change waits for, if others were told of it in place of giving
    /// something back. Told once.
    pub fn take_told(&mut self) -> Option<Wait> {
        self.told.take()
    }

    /// Names that others have not heard of yet.
    #[must_use]
    pub fn unheard(&self) -> &Unheard {
        &self.unheard
    }

    /// If the touches are of names that `by` makes in a directory, and one other session has a
    /// lease there: tells it, in place of taking something back. Tells whether it did. `was_told`
    /// where `by` was told of names there since its last change.
    ///
    /// With more than one of them none is told: each could see what others have not heard of yet.
    pub(super) fn tell(
        &mut self,
        touches: &[Touch],
        parties: &[(SessionId, &Touch)],
        (by, was_told): (Option<SessionId>, bool),
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
        let mut names = Vec::new();
        for (_, touch) in parties {
            match touch {
                Touch::Attributes { .. } if self.is_kept(other, directory) => {
                    self.push_shown(other, directory, Arc::clone(&debt), now);
                }
                touch => self.take_back(other, touch, Some(Arc::clone(&debt))),
            }
        }
        for touch in touches {
            if let Touch::Name { name, .. } = touch {
                names.push(name.clone());
            }
        }
        drop(debt);
        self.told = Some(wait.clone());
        self.unheard.handle_made(directory, by, names, wait);
        if was_told {
            self.delegations.handle_shared(directory, now);
        }
        self.count_told(directory, other);
        true
    }

    /// The session changes something under these keys: it does not only look. Tells whether it was
    /// told of names there since its last change.
    pub(super) fn end_told(&mut self, keys: &BTreeSet<InodeId>, by: SessionId) -> bool {
        let mut was_told = false;
        for key in keys {
            if let Some(held) = self.by_key.get_mut(key).and_then(|holders| holders.get_mut(&by)) {
                was_told |= std::mem::take(&mut held.told) > 0;
            }
        }
        was_told
    }

    /// The session was told of one name more.
    fn count_told(&mut self, directory: InodeId, session: SessionId) {
        let holders = self.by_key.get_mut(&directory);
        let Some(held) = holders.and_then(|holders| holders.get_mut(&session)) else { return };
        held.told = held.told.saturating_add(1);
        if held.told == TOLD_MAX {
            self.push(session, Recall::Lease(directory), None, Some((directory, ALL)));
        }
    }

    /// The session has heard of what it was told of a directory then. One that takes long holds up
    /// whoever makes something there: the directory is left alone if that goes on.
    pub(super) fn handle_told(&mut self, directory: InodeId, since: Timestamp, now: Timestamp) {
        if since.plus(SLOW) < now {
            self.restless.handle_recall(directory, now);
        }
    }

    /// Whether the session goes on to hold the attributes of the directory.
    fn is_kept(&self, session: SessionId, directory: InodeId) -> bool {
        let held = self.by_key.get(&directory).and_then(|holders| holders.get(&session));
        held.is_some_and(|held| held.ending == 0 && held.holding.meets(Holding::OWN))
    }

    fn push_shown(&mut self, session: SessionId, directory: InodeId, debt: Debt, now: Timestamp) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        self.recalled += 1;
        if state.queue.push_shown(directory, debt, self.overdue.listened(), now) {
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

    fn is_told(table: &mut Table, other: SessionId, name: &[u8]) -> Wait {
        let wait = table.take_told().expect("the other is told");
        let name = FileName::parse(name).unwrap();
        assert_eq!(table.unheard().of_name(DIRECTORY, &name), Some(wait.clone()));
        let (told, shown) = table.poll_news(other).unwrap();
        assert_eq!((told.recalls, shown), (vec![name_recall()], [DIRECTORY].into()));
        assert!(!wait.is_over());
        table.handle_listening(other, told.through, NOW);
        assert!(wait.is_over() && !table.unheard().is_any_in(DIRECTORY));
        wait
    }

    #[test]
    fn two_who_make_names_wait_for_nothing_before_and_keep_what_they_have() {
        let mut table = holding(&[MAKER, OTHER]);
        for _ in 0..10 * RECALLS_MAX {
            for (by, other) in [(MAKER, OTHER), (OTHER, MAKER)] {
                assert_eq!(table.recall(&new_name(), Some(by), Waits::Before, NOW), None);
                assert_eq!(table.unheard().of_maker(by).len(), 1);
                assert_eq!(table.unheard().of_maker(other), []);
                is_told(&mut table, other, b"new");
                assert!(table.is_free(by, DIRECTORY, NOW) && table.is_free(other, DIRECTORY, NOW));
            }
        }
        assert!(!table.delegate(MAKER, DIRECTORY, NOW), "two use it");
        assert!(table.is_kept(OTHER, DIRECTORY), "nothing was taken back for that");
    }

    #[test]
    fn who_only_looked_is_not_told_for_ever() {
        let mut table = holding(&[MAKER, OTHER]);
        for _ in 1..TOLD_MAX {
            assert_eq!(make(&mut table), None);
            is_told(&mut table, OTHER, b"new");
        }
        assert_eq!(make(&mut table), None);
        let wait = table.take_told().unwrap();
        let (told, shown) = table.poll_news(OTHER).unwrap();
        assert!(shown.is_empty() && told.recalls.contains(&Recall::Lease(DIRECTORY)));
        table.handle_listening(OTHER, told.through, NOW);
        assert!(wait.is_over());
        assert_eq!((make(&mut table), table.take_told()), (None, None));
        assert!(table.delegate(MAKER, DIRECTORY, NOW), "it alone uses it");
    }

    #[test]
    fn a_directory_whose_other_user_hears_slowly_is_left_alone() {
        let mut table = holding(&[MAKER, OTHER]);
        let mut now = NOW;
        for count in 0..=RECALLS_MAX {
            let (by, other) = if count % 2 == 0 { (MAKER, OTHER) } else { (OTHER, MAKER) };
            assert_eq!(table.recall(&new_name(), Some(by), Waits::Before, now), None, "{count}");
            now = now.plus(2 * SLOW);
            let through = table.poll_news(other).unwrap().0.through;
            table.handle_listening(other, through, now);
        }
        assert!(table.restless.is_restless(DIRECTORY, now));
        assert!(table.recall(&new_name(), Some(MAKER), Waits::Before, now).is_some());
    }

    #[test]
    fn one_acknowledgement_that_is_late_counts_once() {
        let mut table = holding(&[MAKER, OTHER]);
        for _ in 0..10 {
            assert_eq!(make(&mut table), None);
        }
        let through = table.poll_news(OTHER).unwrap().0.through;
        let late = NOW.plus(2 * SLOW);
        table.handle_listening(OTHER, through, late);
        assert!(!table.restless.is_restless(DIRECTORY, late));
    }

    #[test]
    fn nobody_makes_files_by_itself_before_it_has_heard_of_those_that_are_there() {
        let mut table = holding(&[OTHER]);
        assert_eq!(make(&mut table), None);
        assert!(!table.delegate(OTHER, DIRECTORY, NOW));
        is_told(&mut table, OTHER, b"new");
        assert!(table.delegate(OTHER, DIRECTORY, NOW));
    }

    #[test]
    fn where_two_others_have_something_or_one_listens_for_recalls_alone_it_is_taken_back() {
        let mut crowded = holding(&[MAKER, OTHER, THIRD]);
        assert!(make(&mut crowded).is_some());
        let mut old = holding(&[MAKER, OTHER]);
        old.handle_follows(OTHER, false);
        let wait = make(&mut old).expect("it waits before");
        assert_eq!(old.take_told(), None);
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
        assert!(table.take_told().unwrap().is_over() && !table.unheard().is_any_in(DIRECTORY));
    }
}
