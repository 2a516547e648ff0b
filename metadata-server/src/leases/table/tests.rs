//! The table against what clients may believe.
//!
//! The model is a client that keeps all that it was granted, forgets what it hears of, and says so
//! some time later. Whenever a change has nothing left to wait for, no other client keeps any of
//! what it changes. Where a client is told of a name that is made, it has heard of that when there
//! is nothing left to wait for before the answer.

use std::collections::{BTreeMap, BTreeSet};

use millrace_types::FileName;
use proptest::prelude::*;

use super::*;

const LIMITS: Limits = Limits { of_session: 3, of_all: 6, queue: 4 };

/// Something that a client may believe.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fact {
    /// A name leads somewhere, or nowhere.
    Name { directory: InodeId, name: u8, exists: bool },
    /// Attributes, under a key.
    Attributes { key: InodeId, inode: InodeId },
}

#[derive(Clone, Debug)]
enum Step {
    Listen {
        session: u8,
    },
    /// Deals with what was heard, and says so with the next listening.
    Hear {
        session: u8,
    },
    Learn {
        session: u8,
        fact: Fact,
    },
    /// A change of several facts at once; `by` 0 is the server itself.
    Change {
        by: u8,
        facts: Vec<Fact>,
    },
    GiveUp {
        change: prop::sample::Index,
    },
    End {
        session: u8,
    },
    Pass {
        milliseconds: i64,
    },
}

fn key() -> impl Strategy<Value = InodeId> {
    (1_u64..5).prop_map(InodeId)
}

fn fact() -> impl Strategy<Value = Fact> {
    prop_oneof![
        (key(), 0_u8..3, any::<bool>()).prop_map(|(directory, name, exists)| Fact::Name {
            directory,
            name,
            exists
        }),
        (key(), 5_u64..8).prop_map(|(key, inode)| Fact::Attributes { key, inode: InodeId(inode) }),
        key().prop_map(|key| Fact::Attributes { key, inode: key }),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let session = 1_u8..4;
    prop_oneof![
        3 => session.clone().prop_map(|session| Step::Listen { session }),
        3 => session.clone().prop_map(|session| Step::Hear { session }),
        8 => (session.clone(), fact()).prop_map(|(session, fact)| Step::Learn { session, fact }),
        5 => (0_u8..4, prop::collection::vec(fact(), 1..4))
            .prop_map(|(by, facts)| Step::Change { by, facts }),
        1 => any::<prop::sample::Index>().prop_map(|change| Step::GiveUp { change }),
        1 => session.prop_map(|session| Step::End { session }),
        1 => (0_i64..3000).prop_map(|milliseconds| Step::Pass { milliseconds }),
    ]
}

/// A change that waits.
struct Change {
    by: u8,
    facts: Vec<Fact>,
    wait: Wait,
}

/// A name that was made, with what others believed then.
struct Told {
    wait: Wait,
    believed: Vec<(u8, Fact)>,
}

struct World {
    table: Table,
    now: Timestamp,
    /// What each session believes, and what it will acknowledge.
    believed: BTreeMap<u8, BTreeSet<Fact>>,
    dealt_with: BTreeMap<u8, u64>,
    changes: Vec<Change>,
    told: Vec<Told>,
}

fn id(session: u8) -> SessionId {
    SessionId(u64::from(session))
}

fn name(number: u8) -> FileName {
    FileName::parse(&[b'a' + number]).unwrap()
}

impl Fact {
    fn touch(&self) -> Touch {
        match self {
            Self::Name { directory, name: number, exists } => {
                Touch::Name { directory: *directory, name: name(*number), existed: *exists }
            }
            Self::Attributes { key, inode } => Touch::Attributes { key: *key, inode: *inode },
        }
    }

    /// The lease that is needed to believe it.
    fn holding(&self) -> (InodeId, Holding) {
        match self {
            Self::Name { directory, exists: true, .. } => (*directory, Holding::NAMES),
            Self::Name { directory, exists: false, .. } => (*directory, Holding::WHOLE),
            Self::Attributes { key, inode } if key == inode => (*key, Holding::OWN),
            Self::Attributes { key, .. } => (*key, Holding::NAMES),
        }
    }

    fn ends_with(&self, recall: &Recall) -> bool {
        match (self, recall) {
            (_, Recall::Everything) => true,
            (_, Recall::Lease(key)) => self.holding().0 == *key,
            (Self::Name { directory, name: own, .. }, Recall::Name(of, gone)) => {
                directory == of && name(*own) == *gone
            }
            (Self::Attributes { inode, .. }, Recall::Attributes(gone)) => inode == gone,
            _ => false,
        }
    }
}

impl World {
    fn new() -> Self {
        Self {
            table: Table::after_restart(LIMITS, []),
            now: Timestamp(1),
            believed: BTreeMap::new(),
            dealt_with: BTreeMap::new(),
            changes: Vec::new(),
            told: Vec::new(),
        }
    }

    fn take(&mut self, step: Step) {
        match step {
            Step::Listen { session } => {
                let through = self.dealt_with.get(&session).copied().unwrap_or(0);
                self.table.handle_follows(id(session), session != 3);
                self.table.handle_listening(id(session), through, self.now);
            }
            Step::Hear { session } => self.hear(session),
            Step::Learn { session, fact } => {
                let (key, holding) = fact.holding();
                let granted = self.table.grant(id(session), key, holding, self.now);
                let waits = |change: &Change| {
                    change.facts.iter().any(|changed| changed.touch().key() == key)
                };
                assert!(!granted || !self.changes.iter().any(waits), "a change waits for the key");
                if granted {
                    self.believed.entry(session).or_default().insert(fact);
                }
            }
            Step::Change { by, facts } => self.change(by, facts),
            Step::GiveUp { change } => {
                if !self.changes.is_empty() {
                    self.changes.swap_remove(change.index(self.changes.len()));
                }
            }
            Step::End { session } => {
                self.table.handle_end(id(session));
                self.believed.remove(&session);
                self.dealt_with.remove(&session);
                for told in &mut self.told {
                    told.believed.retain(|(by, _)| *by != session);
                }
            }
            Step::Pass { milliseconds } => {
                self.now = Timestamp(self.now.0 + milliseconds * 1_000_000)
            }
        }
    }

    fn hear(&mut self, session: u8) {
        let Some((recalls, shown)) = self.table.poll_news(id(session)) else { return };
        assert!(recalls.recalls.len() + shown.len() <= LIMITS.queue);
        let facts = self.believed.entry(session).or_default();
        for recall in &recalls.recalls {
            facts.retain(|fact| !fact.ends_with(recall));
        }
        // What is shown is believed from then on.
        for &inode in &shown {
            let held = self.table.by_key.get(&inode).and_then(|held| held.get(&id(session)));
            assert!(held.is_some_and(|held| held.holding.meets(Holding::OWN)), "{inode}");
        }
        let heard = |fact: &Fact| {
            recalls.recalls.iter().any(|recall| fact.ends_with(recall))
                || shown.iter().any(|inode| fact.ends_with(&Recall::Attributes(*inode)))
        };
        for told in &mut self.told {
            told.believed.retain(|(by, fact)| *by != session || !heard(fact));
        }
        self.dealt_with.insert(session, recalls.through);
    }

    fn change(&mut self, by: u8, facts: Vec<Fact>) {
        let touches: Vec<_> = facts.iter().map(Fact::touch).collect();
        let session = (by > 0).then(|| id(by));
        let waits = if by > 0 { Waits::Before } else { Waits::Nobody };
        let wait = self.table.recall(&touches, session, waits, self.now);
        assert!(by > 0 || wait.is_none());
        match wait {
            Some(wait) => self.changes.push(Change { by, facts, wait }),
            None if by > 0 => match self.table.take_told() {
                None => self.check(by, &facts),
                Some(wait) => self.told.push(self.told(by, &facts, wait)),
            },
            // Of the server's own changes everybody hears, some time.
            None => {}
        }
    }

    /// A name is made, of which others are told: those hear of it that believed otherwise.
    fn told(&self, by: u8, facts: &[Fact], wait: Wait) -> Told {
        let mut believed = Vec::new();
        for (&session, of_session) in self.believed.iter().filter(|(session, _)| **session != by) {
            let changed = of_session.iter().filter(|fact| facts.contains(fact));
            believed.extend(changed.map(|fact| (session, fact.clone())));
        }
        let first = believed.first().map(|(session, _)| *session);
        assert!(believed.iter().all(|(session, _)| Some(*session) == first), "one alone is told");
        assert_ne!(first, Some(3), "it does not listen for that");
        Told { wait, believed }
    }

    /// A change takes place: nobody else believes what it changes.
    fn check(&self, by: u8, facts: &[Fact]) {
        for (session, believed) in &self.believed {
            for fact in facts.iter().filter(|_| *session != by) {
                assert!(!believed.contains(fact), "{session} believes {fact:?} when it changes");
            }
        }
    }

    /// Changes that have nothing to wait for are tried again, and take place.
    fn settle(&mut self) {
        let (over, waiting): (Vec<_>, Vec<_>) =
            std::mem::take(&mut self.changes).into_iter().partition(|change| change.wait.is_over());
        self.changes = waiting;
        for Change { by, facts, wait } in over {
            self.check(by, &facts);
            let mut touches: Vec<_> = facts.iter().map(Fact::touch).collect();
            assert!(touches.iter().all(|touch| wait.has_settled(touch)));
            touches.retain(|touch| !wait.has_settled(touch));
            let again = self.table.recall(&touches, Some(id(by)), Waits::Before, self.now);
            assert!(again.is_none(), "nothing was granted meanwhile: {facts:?}");
            drop(wait);
        }
        self.told.retain(|told| {
            let is_over = told.wait.is_over();
            assert!(!is_over || told.believed.is_empty(), "believed still: {:?}", told.believed);
            !is_over
        });
    }

    fn check_bounds(&self) {
        let table = &self.table;
        let pairs: usize = table.by_key.values().map(BTreeMap::len).sum();
        let of_sessions: usize = table.sessions.values().map(|state| state.keys.len()).sum();
        assert_eq!((pairs, of_sessions), (table.leases, table.leases));
        assert!(table.leases <= LIMITS.of_all);
        for state in table.sessions.values() {
            assert!(state.keys.len() <= LIMITS.of_session && state.queue.len() <= LIMITS.queue);
        }
    }

    /// Everybody listens and deals with what there is: then every change takes place.
    fn drain(&mut self) {
        for session in [1, 2, 3] {
            for _ in 0..2 {
                self.take(Step::Hear { session });
                self.take(Step::Listen { session });
            }
        }
        self.settle();
        assert!(self.changes.is_empty() && self.told.is_empty(), "nobody has more to acknowledge");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn nobody_believes_what_has_changed(steps in prop::collection::vec(step(), 1..80)) {
        let mut world = World::new();
        for session in [1, 2, 3] {
            world.take(Step::Listen { session });
        }
        for step in steps {
            world.take(step);
            world.settle();
            world.check_bounds();
        }
        world.drain();
    }
}

fn name_of(directory: u64, existed: bool) -> Touch {
    Touch::Name { directory: InodeId(directory), name: name(0), existed }
}

fn listening(sessions: &[u64]) -> Table {
    let mut table = Table::after_restart(Limits::default(), []);
    for &session in sessions {
        table.handle_listening(SessionId(session), 0, Timestamp(0));
    }
    table
}

#[test]
fn a_new_name_is_heard_of_only_by_who_knows_the_whole_directory() {
    let (now, key) = (Timestamp(0), InodeId(7));
    let mut table = listening(&[1, 2, 3]);
    assert!(table.grant(SessionId(1), key, Holding::NAMES, now));
    assert!(table.grant(SessionId(2), key, Holding::WHOLE, now));
    let wait = table.recall(&[name_of(7, false)], Some(SessionId(3)), Waits::Before, now).unwrap();
    assert!(table.poll_recalls(SessionId(1)).unwrap().recalls.is_empty());
    let recalls = table.poll_recalls(SessionId(2)).unwrap();
    assert_eq!(recalls.recalls, [Recall::Name(key, name(0))]);
    assert!(!table.grant(SessionId(1), key, Holding::NAMES, now), "a change waits");
    table.handle_listening(SessionId(2), recalls.through, now);
    assert!(wait.is_over());
    drop(wait);
    assert!(table.grant(SessionId(1), key, Holding::NAMES, now));
}

#[test]
fn who_makes_a_change_is_not_asked() {
    let mut table = listening(&[1]);
    assert!(table.grant(SessionId(1), InodeId(7), Holding::WHOLE, Timestamp(0)));
    let touches = [name_of(7, true)];
    assert_eq!(table.recall(&touches, Some(SessionId(1)), Waits::Before, Timestamp(0)), None);
    assert!(table.recall(&touches, Some(SessionId(2)), Waits::Before, Timestamp(0)).is_some());
}

#[test]
fn a_session_that_does_not_listen_is_granted_nothing() {
    let mut table = listening(&[1]);
    let late = Timestamp(0).plus(SILENCE_MAX + Duration::from_millis(1));
    assert!(!table.grant(SessionId(2), InodeId(7), Holding::NAMES, Timestamp(0)));
    assert!(table.grant(SessionId(1), InodeId(7), Holding::NAMES, Timestamp(0)));
    assert!(!table.grant(SessionId(1), InodeId(8), Holding::NAMES, late));
    assert_eq!(table.leases, 1);
    table.handle_end(SessionId(1));
    assert!(table.is_idle());
}

#[test]
fn after_a_restart_a_change_waits_for_who_may_keep_something() {
    let known = [SessionId(1), SessionId(2)];
    let mut table = Table::after_restart(Limits::default(), known);
    let (touches, now) = ([name_of(7, true)], Timestamp(0));
    assert_eq!(table.recall(&touches, None, Waits::Nobody, now), None);
    let wait = table.recall(&touches, Some(SessionId(1)), Waits::Before, now).unwrap();
    table.handle_listening(SessionId(1), 0, now);
    assert!(!wait.is_over());
    assert!(
        table.recall(&touches, Some(SessionId(2)), Waits::Before, now).is_none(),
        "only itself is left"
    );
    table.handle_end(SessionId(2));
    assert!(wait.is_over());
    assert_eq!(table.recall(&touches, Some(SessionId(1)), Waits::Before, now), None);
}

#[test]
fn a_directory_that_changes_all_the_time_is_taken_back_whole() {
    let (key, now) = (InodeId(7), Timestamp(0));
    let mut table = listening(&[1, 2]);
    let mut wholly = 0;
    for _ in 0..20 {
        if !table.grant(SessionId(1), key, Holding::NAMES, now) {
            break;
        }
        let wait =
            table.recall(&[name_of(7, true)], Some(SessionId(2)), Waits::Before, now).unwrap();
        let recalls = table.poll_recalls(SessionId(1)).unwrap();
        wholly += recalls.recalls.iter().filter(|recall| **recall == Recall::Lease(key)).count();
        table.handle_listening(SessionId(1), recalls.through, now);
        assert!(wait.is_over());
    }
    assert_eq!((wholly, table.leases), (1, 0));
    let quiet = now.plus(Duration::from_secs(5));
    table.handle_listening(SessionId(1), 0, quiet);
    assert!(table.grant(SessionId(1), key, Holding::NAMES, quiet));
}

#[test]
fn what_is_granted_and_taken_back_is_counted() {
    let (key, now) = (InodeId(7), Timestamp(0));
    let mut table = listening(&[1, 2, 3]);
    for session in [1, 2] {
        assert!(table.grant(SessionId(session), key, Holding::NAMES, now));
        assert!(table.grant(SessionId(session), key, Holding::WHOLE, now));
    }
    let held = Counts { leases: 2, granted: 2, ..Counts::default() };
    assert_eq!(table.counts(), held, "more of a lease is the same lease");
    let wait = table.recall(&[name_of(7, true)], Some(SessionId(3)), Waits::Before, now);
    assert!(wait.is_some());
    table.handle_end(SessionId(1));
    assert_eq!(table.counts(), Counts { leases: 1, recalled: 2, ..held });
}

#[test]
fn who_cuts_a_content_waits_until_its_writers_have_heard() {
    let (cutter, writer, gone) = (SessionId(1), SessionId(2), SessionId(3));
    let (file, now) = (InodeId(9), Timestamp(0));
    let mut table = Table::after_restart(LIMITS, []);
    for session in [cutter, writer, gone] {
        table.handle_listening(session, 0, now);
    }
    // Nobody has a lease on it, as on nothing that several write; one has not listened yet.
    let late = SessionId(4);
    table.handle_cut(file, [writer, gone, late]);
    let wait = table.heard_of_cut(file, cutter, true).expect("three have not heard");
    assert_eq!(table.heard_of_cut(InodeId(8), cutter, true), None);
    let told = table.poll_recalls(writer).expect("it listens");
    assert_eq!(told.recalls, [Recall::Attributes(file)]);
    table.handle_listening(writer, told.through, now);
    table.handle_end(gone);
    assert!(!wait.is_over(), "one has not heard");
    assert!(!table.grant(late, InodeId(7), Holding::NAMES, now), "it could not be taken back");
    table.handle_listening(late, 0, now);
    let told = table.poll_recalls(late).expect("it listens now");
    assert_eq!(told.recalls, [Recall::Attributes(file)]);
    table.handle_listening(late, told.through, now);
    assert!(wait.is_over());
    assert_eq!(table.heard_of_cut(file, cutter, true), None);
    table.handle_cut(file, []);
    assert_eq!(table.heard_of_cut(file, cutter, true), None, "nobody else writes it");
}

#[test]
fn after_a_restart_nobody_knows_who_has_heard_of_a_cut() {
    let (cutter, writer) = (SessionId(1), SessionId(2));
    let (file, now) = (InodeId(9), Timestamp(0));
    let mut table = Table::after_restart(LIMITS, [cutter, writer]);
    assert_eq!(table.heard_of_cut(file, cutter, false), None, "there is no other writer");
    let wait = table.heard_of_cut(file, cutter, true).expect("the other has not listened");
    table.handle_listening(writer, 0, now);
    table.handle_listening(cutter, 0, now);
    assert!(wait.is_over());
    assert_eq!(table.heard_of_cut(file, cutter, true), None);
}

#[test]
fn a_change_that_is_waited_for_after_it_was_made_bars_nothing_and_counts_what_files_show() {
    let (mut table, now) = (Table::after_restart(Limits::default(), []), Timestamp(0));
    let (one, key) = (SessionId(1), InodeId(7));
    table.handle_listening(one, 0, now);
    assert!(table.grant(one, key, Holding::NAMES.with(Holding::OWN).with(Holding::WHOLE), now));
    // A new name, and what its directory shows: they are told, and nobody waits.
    let directory = Touch::Attributes { key, inode: key };
    let added = [name_of(7, false), directory];
    assert_eq!(table.recall(&added, None, Waits::After, now), None);
    let through = table.poll_recalls(one).unwrap();
    assert_eq!(through.recalls.len(), 2);
    table.handle_listening(one, through.through, now);
    let file = Touch::Attributes { key, inode: InodeId(8) };
    let wait = table.recall(&[file], None, Waits::After, now).unwrap();
    assert!(table.grant(one, key, Holding::NAMES, now), "it shows the change already");
    assert!(!wait.is_over());
    let through = table.poll_recalls(one).unwrap().through;
    table.handle_listening(one, through, now);
    assert!(wait.is_over());
}

#[test]
fn nobody_waits_for_a_restless_directory_to_be_given_back_for_new_names() {
    let (key, now) = (InodeId(7), Timestamp(0));
    let mut table = listening(&[1]);
    let whole = Holding::NAMES.with(Holding::WHOLE);
    let mut acknowledged = 0;
    for change in 0..30 {
        assert!(table.grant(SessionId(1), key, whole, now), "change {change}");
        let wait = table.recall(&[name_of(7, false)], None, Waits::After, now);
        assert_eq!(wait, None, "change {change}");
        let told = table.poll_recalls(SessionId(1)).unwrap();
        acknowledged = told.through;
        if told.recalls == [Recall::Lease(key)] {
            break;
        }
        table.handle_listening(SessionId(1), acknowledged, now);
    }
    // What is taken back whole now is still held; a name that shows a file is waited for with it.
    let shown = [name_of(7, false), name_of(7, true)];
    let wait = table.recall(&shown, None, Waits::After, now).expect("it shows a file");
    table.handle_listening(SessionId(1), acknowledged, now);
    assert!(!wait.is_over());
    let through = table.poll_recalls(SessionId(1)).unwrap().through;
    table.handle_listening(SessionId(1), through, now);
    assert!(wait.is_over());
}
