//! The same rules over a map of bytes, as slow and plain as can be, and what must hold of any
//! table.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const BYTES: usize = 6;

/// What one owner has of one byte of one file.
type Place = (InodeId, LockSpace, Owner, usize);

#[derive(Debug, Default)]
struct Model {
    held: BTreeMap<Place, LockKind>,
    /// In the order of arrival, those that are over included.
    waits: Vec<ModelWait>,
}

#[derive(Clone, Copy, Debug)]
struct ModelWait {
    number: u64,
    owner: Owner,
    lock: Lock,
    state: State,
}

#[derive(Clone, Debug)]
enum Step {
    Set { session: u64, lock: Lock, wait: u64 },
    Cancel { session: u64, wait: u64 },
    Close { session: u64, inode: InodeId },
    End { session: u64 },
}

fn bytes(lock: &Lock) -> impl Iterator<Item = usize> + use<> {
    let (start, last) = (lock.range.start, lock.range.last);
    (0..BYTES).filter(move |&byte| start <= of_byte(byte).start && of_byte(byte).last <= last)
}

/// The last byte stands for all from there on: they are locked together.
fn of_byte(byte: usize) -> LockRange {
    let start = byte as u64;
    LockRange { start, last: if byte == BYTES - 1 { LockRange::END } else { start } }
}

impl Model {
    fn holders(&self, owner: Owner, lock: &Lock) -> BTreeSet<Owner> {
        let kind = lock.kind.expect("only locks are in the way of something");
        let held = self.held.iter().filter(|((inode, space, holder, byte), held)| {
            *inode == lock.inode
                && *space == lock.space
                && *holder != owner
                && held.excludes(kind)
                && bytes(lock).any(|wanted| wanted == *byte)
        });
        let held = held.map(|((_, _, holder, _), _)| *holder);
        let reserved = self.waits.iter().filter(|wait| {
            wait.state == State::Reserved
                && wait.lock.inode == lock.inode
                && wait.lock.space == lock.space
                && wait.owner != owner
                && wait.lock.kind.is_some_and(|reserved| reserved.excludes(kind))
                && bytes(&wait.lock).any(|byte| bytes(lock).any(|wanted| wanted == byte))
        });
        held.chain(reserved.map(|wait| wait.owner)).collect()
    }

    fn apply(&mut self, owner: Owner, lock: &Lock) {
        for byte in bytes(lock) {
            let place = (lock.inode, lock.space, owner, byte);
            match lock.kind {
                Some(kind) => drop(self.held.insert(place, kind)),
                None => drop(self.held.remove(&place)),
            }
        }
    }

    /// Owners that can be reached from these over waits for ranges.
    fn reached(&self, from: BTreeSet<Owner>) -> BTreeSet<Owner> {
        let mut reached = from;
        loop {
            let waits = self.waits.iter().filter(|wait| {
                wait.state == State::Queued
                    && wait.lock.space == LockSpace::Range
                    && reached.contains(&wait.owner)
            });
            let more: BTreeSet<_> =
                waits.flat_map(|wait| self.holders(wait.owner, &wait.lock)).collect();
            let before = reached.len();
            reached.extend(more);
            if reached.len() == before {
                return reached;
            }
        }
    }

    fn break_circles(&mut self, owner: Owner) {
        let mut own: Vec<_> = (0..self.waits.len())
            .filter(|&at| {
                let wait = &self.waits[at];
                wait.owner == owner
                    && wait.state == State::Queued
                    && wait.lock.space == LockSpace::Range
            })
            .collect();
        own.sort_by_key(|&at| (self.waits[at].lock.inode, at));
        for at in own {
            let holders = self.holders(owner, &self.waits[at].lock);
            if self.reached(holders).contains(&owner) {
                self.waits[at].state = State::Deadlocked;
            }
        }
    }

    fn serve(&mut self, inode: InodeId) {
        let mut served = Vec::new();
        for at in 0..self.waits.len() {
            let wait = self.waits[at];
            let free = wait.state == State::Queued
                && wait.lock.inode == inode
                && self.holders(wait.owner, &wait.lock).is_empty();
            if free {
                self.waits[at].state = State::Reserved;
                served.push(wait.owner);
            }
        }
        for owner in served {
            self.break_circles(owner);
        }
    }

    fn set(&mut self, session: SessionId, lock: &Lock, number: u64) -> Result<bool, ErrorKind> {
        let owner = Owner { session, number: lock.owner };
        let outcome = self.decide(owner, lock, number);
        self.serve(lock.inode);
        outcome
    }

    fn decide(&mut self, owner: Owner, lock: &Lock, number: u64) -> Result<bool, ErrorKind> {
        if lock.kind.is_none() {
            self.apply(owner, lock);
            return Ok(true);
        }
        let known = self.waits.iter().position(|wait| {
            number != 0 && wait.number == number && wait.owner.session == owner.session
        });
        if let Some(at) = known {
            let wait = self.waits[at];
            if (wait.owner, wait.lock) != (owner, *lock) {
                return Err(ErrorKind::InvalidArgument);
            }
            if wait.state == State::Queued {
                return Ok(false);
            }
            self.waits.remove(at);
            if wait.state == State::Deadlocked {
                return Err(ErrorKind::Deadlock);
            }
            self.apply(owner, lock);
            self.break_circles(owner);
            return Ok(true);
        }
        let held = self.held.get(&(lock.inode, lock.space, owner, 0)).copied();
        if lock.space == LockSpace::Flock && held != lock.kind {
            self.apply(owner, &unlocked(*lock));
        }
        let holders = self.holders(owner, lock);
        if holders.is_empty() {
            self.apply(owner, lock);
            self.break_circles(owner);
            return Ok(true);
        }
        if number == 0 {
            return Err(ErrorKind::Locked);
        }
        if lock.space == LockSpace::Range && self.reached(holders).contains(&owner) {
            return Err(ErrorKind::Deadlock);
        }
        self.waits.push(ModelWait { number, owner, lock: *lock, state: State::Queued });
        Ok(false)
    }

    /// Where the session may append, and others wait to.
    fn wanted(&self, session: SessionId) -> Vec<InodeId> {
        let held = self.held.keys().filter(|(_, space, owner, byte)| {
            *space == LockSpace::Append && owner.session == session && *byte == 0
        });
        let mut wanted: Vec<_> = held.map(|(inode, ..)| *inode).collect();
        wanted.retain(|inode| {
            self.waits.iter().any(|wait| {
                (wait.lock.inode, wait.lock.space) == (*inode, LockSpace::Append)
                    && wait.state == State::Queued
            })
        });
        wanted.dedup();
        wanted
    }

    fn close(&mut self, session: SessionId, inode: InodeId) {
        self.held.retain(|(of, _, owner, _), _| *of != inode || owner.session != session);
        self.waits.retain(|wait| wait.lock.inode != inode || wait.owner.session != session);
        self.serve(inode);
    }
}

fn space() -> impl Strategy<Value = LockSpace> {
    prop_oneof![Just(LockSpace::Range), Just(LockSpace::Flock), Just(LockSpace::Append)]
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let kinds = prop_oneof![Just(None), Just(Some(Read)), Just(Some(Write)), Just(Some(Write))];
    let set = (1_u64..4, 1_u64..3, 1_u64..3, space(), kinds, (0..BYTES, 0..BYTES), 0_u64..4);
    let set = set.prop_map(|(session, owner, inode, space, kind, (one, other), wait)| {
        let (start, last) = (of_byte(one.min(other)).start, of_byte(one.max(other)).last);
        let range = match space {
            LockSpace::Range => LockRange { start, last },
            LockSpace::Flock | LockSpace::Append => LockRange::WHOLE,
        };
        // Nobody shares the right to append.
        let shared = space == LockSpace::Append && kind == Some(Read);
        let kind = if shared { Some(Write) } else { kind };
        let lock = Lock { inode: InodeId(inode), space, owner, kind, range, process: 0 };
        Step::Set { session, lock, wait }
    });
    let rare = prop_oneof![
        3 => (1_u64..4, 1_u64..4).prop_map(|(session, wait)| Step::Cancel { session, wait }),
        1 => (1_u64..4, 1_u64..3)
            .prop_map(|(session, inode)| Step::Close { session, inode: InodeId(inode) }),
        1 => (1_u64..4).prop_map(|session| Step::End { session }),
    ];
    prop::collection::vec(prop_oneof![6 => set, 1 => rare], 1..80)
}

fn check(table: &LockTable, model: &Model) -> Result<(), TestCaseError> {
    let held = |space: LockSpace, owner: Owner, inode: InodeId, byte: usize, kind: LockKind| {
        let range = match space {
            LockSpace::Range => of_byte(byte),
            LockSpace::Flock | LockSpace::Append => LockRange::WHOLE,
        };
        let (owner, session) = (owner.number, owner.session);
        table.holds(session, &Lock { inode, space, owner, kind: Some(kind), range, process: 0 })
    };
    for (session, number) in (1..4).flat_map(|session| [(session, 1), (session, 2)]) {
        let owner = Owner { session: SessionId(session), number };
        for (inode, byte) in (1..3).flat_map(|inode| (0..BYTES).map(move |byte| (inode, byte))) {
            let inode = InodeId(inode);
            let of = |space| model.held.get(&(inode, space, owner, byte)).copied();
            let held = |space, kind| held(space, owner, inode, byte, kind);
            let range = of(LockSpace::Range);
            prop_assert_eq!(held(LockSpace::Range, Read), range.is_some());
            prop_assert_eq!(held(LockSpace::Range, Write), range == Some(Write));
            for space in [LockSpace::Flock, LockSpace::Append] {
                prop_assert_eq!(held(space, Read), of(space) == Some(Read));
                prop_assert_eq!(held(space, Write), of(space) == Some(Write));
            }
        }
        let over = model
            .waits
            .iter()
            .filter(|wait| wait.owner.session == SessionId(session) && wait.state != State::Queued);
        let mut over: Vec<_> = over.map(|wait| wait.number).collect();
        over.sort_unstable();
        prop_assert_eq!(table.ended(SessionId(session)), over);
        let wanted: Vec<_> = table.wanted(SessionId(session)).collect();
        prop_assert_eq!(wanted, model.wanted(SessionId(session)));
    }
    prop_assert_eq!(table.counts().waits, model.waits.len());
    for wait in model.waits.iter().filter(|wait| wait.state == State::Queued) {
        let holders = model.holders(wait.owner, &wait.lock);
        prop_assert!(!holders.is_empty(), "nobody is in the way of {:?}", wait);
        let circle = model.reached(holders).contains(&wait.owner);
        prop_assert!(wait.lock.space != LockSpace::Range || !circle, "a circle: {:?}", wait);
    }
    for (place, kind) in &model.held {
        let (inode, space, owner, byte) = *place;
        let shared = model.held.iter().filter(|((of, other_space, other, at), other_kind)| {
            (*of, *other_space, *at) == (inode, space, byte)
                && *other != owner
                && other_kind.excludes(*kind)
        });
        prop_assert_eq!(shared.count(), 0, "two have {:?}", place);
    }
    Ok(())
}

/// What each session must have been told of.
fn wants(model: &Model) -> BTreeSet<(SessionId, InodeId)> {
    let of = |session| model.wanted(session).into_iter().map(move |inode| (session, inode));
    (1..4).map(SessionId).flat_map(of).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn any_steps_end_as_a_map_of_bytes_says(steps in steps()) {
        let (mut table, mut model) = (table(), Model::default());
        for step in steps {
            let before = wants(&model);
            match step {
                Step::Set { session, lock, wait } => {
                    let session = SessionId(session);
                    let outcome = table.set(session, &lock, wait);
                    prop_assert_eq!(outcome, model.set(session, &lock, wait), "{:?}", lock);
                }
                Step::Cancel { session, wait } => {
                    let session = SessionId(session);
                    table.cancel(session, wait);
                    let of = |known: &ModelWait| {
                        known.number == wait && known.owner.session == session
                    };
                    if let Some(at) = model.waits.iter().position(of) {
                        let ended = model.waits.remove(at);
                        model.serve(ended.lock.inode);
                    }
                }
                Step::Close { session, inode } => {
                    table.handle_close(SessionId(session), inode);
                    model.close(SessionId(session), inode);
                }
                Step::End { session } => {
                    table.handle_end(SessionId(session));
                    for inode in 1..3 {
                        model.close(SessionId(session), InodeId(inode));
                    }
                }
            }
            check(&table, &model)?;
            let told = table.poll_wants();
            let unheard: Vec<_> = wants(&model).difference(&before).copied().collect();
            prop_assert!(unheard.iter().all(|(session, _)| told.contains(session)), "{unheard:?}");
        }
        for session in 1..4 {
            table.handle_end(SessionId(session));
        }
        prop_assert!(table.inodes.is_empty() && table.sessions.is_empty());
        prop_assert!(table.owners.is_empty());
        prop_assert_eq!((table.pieces, table.waits), (0, 0));
    }
}
