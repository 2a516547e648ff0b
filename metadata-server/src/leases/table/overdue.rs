//! Sessions that live and do not give back what others wait for.
//!
//! Whoever renews its ticket lives, whether or not it listens: others would wait for it for ever.
//! So a session that owes something for too long gets no ticket until it has given that back. When
//! its last one has run out it is dead as any other. Not before: until then targets take its
//! writes, also those under a lock, and its host shows names that it was granted.
//!
//! ```text
//!            a recall, a restart          for too long            its last ticket runs out
//!   clear ────────────────────────▶ owes ─────────────▶ overdue ──────────────────────────▶ dead
//!     ▲                              │                     │
//!     └──────── gives it back ───────┴─────────────────────┘
//! ```
//!
//! A mount gives back within milliseconds. It waits for its kernel, an eighth of a second at most,
//! and for this server, which it tells first of the files that it has made and opened by itself:
//! megabytes at most, or 65,536 opens, sixteen at a time. It waits neither for targets nor for what
//! other sessions have to give back; only after a restart what it has made waits until everybody
//! has declared. So nobody is cut off for somebody else, nor for a target that is away.

use std::{collections::BTreeMap, fmt, time::Duration};

use millrace_types::{SessionId, Timestamp};

use super::Table;

/// Who lets others wait for too long.
#[derive(Debug, Default)]
pub(super) struct Overdue {
    /// When it was last looked.
    looked: Option<Timestamp>,
    /// For how long the server has listened since its start.
    listened: Duration,
    sessions: BTreeMap<SessionId, Owed>,
}

/// What a session owes the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Owed {
    /// To say, after a restart, that it keeps nothing from before.
    Declaration,
    /// To give back what was taken back from it, or to say that it has heard.
    Acknowledgement,
}

/// How long a session may take to declare before it gets no ticket any more, in times after which a
/// silent one ends (32 s). It tells of what it has open before, which takes 82 s for 65,536 opens
/// where a round trip takes 20 ms.
pub const UNDECLARED_TIMES: u32 = 3;

/// How long it may take to acknowledge, in the same times. What it has made may wait for four of
/// them, until the last who does not declare has ended; and after the fifth one it still has its
/// last ticket.
const UNACKNOWLEDGED_TIMES: u32 = 5;

const _: () = assert!(UNACKNOWLEDGED_TIMES > UNDECLARED_TIMES + 1, "nobody ends for another one");

/// So much of the time between two looks counts, as it does for tickets: to a server that stands
/// still, or makes its store anew, nobody can give anything back.
const LISTENING_MAX: Duration = Duration::from_secs(2);

impl Overdue {
    /// For how long the server has listened since its start, as of the last look.
    pub(super) fn listened(&self) -> Duration {
        self.listened
    }

    /// The session has ended.
    pub(super) fn handle_end(&mut self, session: SessionId) {
        self.sessions.remove(&session);
    }

    fn handle_look(&mut self, now: Timestamp) {
        let since = self.looked.replace(now).map_or(Duration::ZERO, |looked| now.since(looked));
        self.listened += since.min(LISTENING_MAX);
    }

    /// Whether what was asked for at `since` is owed for longer than `most`.
    fn is_late(&self, since: Duration, most: Duration) -> bool {
        self.listened.saturating_sub(since) > most
    }

    /// These are overdue now; returns those that were not before.
    fn handle_found(&mut self, found: BTreeMap<SessionId, Owed>) -> Vec<(SessionId, Owed)> {
        let before = std::mem::replace(&mut self.sessions, found);
        let new = self.sessions.iter().filter(|(session, _)| !before.contains_key(*session));
        new.map(|(session, owed)| (*session, *owed)).collect()
    }
}

impl Table {
    /// Looks who owes something for too long, where a silent session stands for `session_end`;
    /// returns who has come to that since the last look. To be called again and again: time counts
    /// only so.
    pub fn poll_overdue(
        &mut self,
        now: Timestamp,
        session_end: Duration,
    ) -> Vec<(SessionId, Owed)> {
        self.overdue.handle_look(now);
        let mut found = BTreeMap::new();
        let most = session_end * UNACKNOWLEDGED_TIMES;
        for (&session, state) in &self.sessions {
            if state.queue.oldest().is_some_and(|since| self.overdue.is_late(since, most)) {
                found.insert(session, Owed::Acknowledgement);
            }
        }
        if self.overdue.is_late(Duration::ZERO, session_end * UNDECLARED_TIMES) {
            let late = |session: &SessionId| (*session, Owed::Declaration);
            found.extend(self.undeclared.iter().map(late));
        }
        self.overdue.handle_found(found)
    }

    /// What the session owes for too long, as of the last look: it gets no ticket.
    #[must_use]
    pub fn owed(&self, session: SessionId) -> Option<Owed> {
        self.overdue.sessions.get(&session).copied()
    }
}

impl fmt::Display for Owed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Declaration => "it has not said since the restart that it keeps nothing",
            Self::Acknowledgement => "it has not given back what others change",
        })
    }
}

#[cfg(test)]
mod tests {
    use millrace_protocol::lease::Recall;
    use millrace_types::{FileName, InodeId};

    use super::*;
    use crate::leases::{Holding, Touch, Wait, Waits, table::Limits};

    const DIRECTORY: InodeId = InodeId(7);
    const KEEPER: SessionId = SessionId(1);
    const OTHER: SessionId = SessionId(2);
    const END: Duration = Duration::from_secs(32);

    /// A table, and the time of its server, which looks each second.
    struct World {
        table: Table,
        now: Timestamp,
    }

    impl World {
        fn new(undeclared: &[SessionId]) -> Self {
            let now = Timestamp::from_parts(1_800_000_000, 0);
            let mut table = Table::after_restart(Limits::default(), undeclared.iter().copied());
            assert_eq!(table.poll_overdue(now, END), []);
            Self { table, now }
        }

        /// Who has become overdue within so many seconds.
        fn pass(&mut self, seconds: u32) -> Vec<(SessionId, Owed)> {
            let mut found = Vec::new();
            for _ in 0..seconds {
                self.now = self.now.plus(Duration::from_secs(1));
                found.extend(self.table.poll_overdue(self.now, END));
            }
            found
        }

        /// The session listens, and acknowledges all that it hears.
        fn hear(&mut self, session: SessionId) {
            let through = self.table.poll_recalls(session).unwrap().through;
            self.table.handle_listening(session, through, self.now);
        }

        /// The keeper listens, and has everything of the directory.
        fn grant(&mut self) {
            self.table.handle_listening(KEEPER, 0, self.now);
            assert!(self.table.grant(KEEPER, DIRECTORY, Holding::NAMES, self.now));
        }

        /// Another one removes a name there.
        fn change(&mut self) -> Wait {
            let name = FileName::parse(b"name").unwrap();
            let touch = Touch::Name { directory: DIRECTORY, name, existed: true };
            let wait = self.table.recall(&[touch], Some(OTHER), Waits::Before, self.now);
            wait.expect("the keeper has it")
        }
    }

    #[test]
    fn who_acknowledges_late_is_overdue_until_it_has() {
        let mut world = World::new(&[]);
        world.grant();
        let wait = world.change();
        // That it listens on changes nothing.
        assert_eq!(world.table.poll_recalls(KEEPER).unwrap().recalls.len(), 1);
        world.table.handle_listening(KEEPER, 0, world.now);
        assert_eq!(world.pass(160), []);
        assert_eq!(world.table.owed(KEEPER), None);
        assert_eq!(world.pass(10), [(KEEPER, Owed::Acknowledgement)], "and it is named once");
        assert_eq!(world.table.owed(KEEPER), Some(Owed::Acknowledgement));
        assert!(!wait.is_over());
        world.hear(KEEPER);
        assert!(wait.is_over());
        assert_eq!((world.pass(200), world.table.owed(KEEPER)), (vec![], None));
    }

    #[test]
    fn the_end_of_who_is_overdue_ends_the_waits() {
        let mut world = World::new(&[]);
        world.grant();
        let wait = world.change();
        assert_eq!(world.pass(161), [(KEEPER, Owed::Acknowledgement)]);
        world.table.handle_end(KEEPER);
        assert!(wait.is_over());
        assert_eq!((world.pass(200), world.table.owed(KEEPER)), (vec![], None));
    }

    #[test]
    fn who_goes_on_to_acknowledge_is_slow_and_no_more() {
        let mut world = World::new(&[]);
        world.grant();
        for _ in 0..10 {
            let wait = world.change();
            assert_eq!(world.pass(150), []);
            world.hear(KEEPER);
            assert!(wait.is_over());
            drop(wait);
            world.grant();
        }
    }

    #[test]
    fn a_writer_that_never_listens_is_overdue_with_what_it_was_to_hear_of_a_cut() {
        let mut world = World::new(&[]);
        world.pass(1000);
        world.table.handle_cut(InodeId(9), [KEEPER]);
        let wait = world.table.heard_of_cut(InodeId(9), OTHER, true).expect("it has not heard");
        assert_eq!(world.pass(160), []);
        assert_eq!(world.pass(1), [(KEEPER, Owed::Acknowledgement)]);
        world.table.handle_end(KEEPER);
        assert!(wait.is_over());
    }

    #[test]
    fn a_queue_that_overflows_makes_nothing_younger() {
        let mut world = World::new(&[]);
        world.table.limits.queue = 3;
        world.grant();
        for _ in 0..9 {
            world.table.handle_cut(InodeId(9), [KEEPER]);
            assert_eq!(world.pass(17), []);
        }
        let told = world.table.poll_recalls(KEEPER).unwrap();
        assert_eq!(told.recalls.first(), Some(&Recall::Everything));
        assert_eq!(world.pass(8), [(KEEPER, Owed::Acknowledgement)]);
    }

    #[test]
    fn who_does_not_declare_is_overdue_sooner_and_nobody_for_its_sake() {
        let mut world = World::new(&[KEEPER, OTHER]);
        // What it has made there it can publish when the other has declared, or ended.
        assert!(world.table.declare_delegation(KEEPER, DIRECTORY, world.now));
        world.table.handle_listening(KEEPER, 0, world.now);
        assert_eq!(world.pass(96), []);
        assert_eq!(world.pass(1), [(OTHER, Owed::Declaration)]);
        let wait = world.table.declaring(Some(KEEPER)).expect("the other has not declared");
        // A ticket that it got at the last moment has run out by then.
        assert_eq!(world.pass(31), []);
        world.table.handle_end(OTHER);
        assert!(wait.is_over());
        assert_eq!(world.pass(32), [], "so long it has to publish");
        world.hear(KEEPER);
        assert_eq!(world.pass(200), []);
    }

    #[test]
    fn who_declares_after_all_is_overdue_no_more() {
        let mut world = World::new(&[KEEPER]);
        assert_eq!(world.pass(100), [(KEEPER, Owed::Declaration)]);
        world.table.handle_listening(KEEPER, 0, world.now);
        assert_eq!((world.pass(1), world.table.owed(KEEPER)), (vec![], None));
    }

    #[test]
    fn time_in_which_the_server_stands_still_makes_nobody_overdue() {
        let mut world = World::new(&[OTHER]);
        world.table.handle_cut(InodeId(9), [KEEPER]);
        for _ in 0..48 {
            world.now = world.now.plus(END * 100);
            assert_eq!(world.table.poll_overdue(world.now, END), []);
        }
        assert_eq!(world.pass(1), [(OTHER, Owed::Declaration)]);
        assert_eq!(world.pass(63), []);
        assert_eq!(world.pass(1), [(KEEPER, Owed::Acknowledgement)]);
    }
}
