//! Who holds a lease on what.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    sync::Arc,
    time::Duration,
};

use millrace_protocol::lease::{AWAIT_RECALLS_MAX_MS, Recall, Recalls};
use millrace_types::{InodeId, SessionId, Timestamp};
use tokio::sync::watch;

use super::{
    Touch, Wait,
    delegations::Delegations,
    marks::{Debt, Marks},
    queue::{Ended, Queue},
    restless::Restless,
    unheard::Unheard,
};

mod delegating;
mod news;
mod overdue;
mod room;

use overdue::Overdue;
pub use overdue::{Owed, UNDECLARED_TIMES};
use room::Keys;

/// The leases of all sessions.
#[derive(Debug)]
pub struct Table {
    limits: Limits,
    by_key: HashMap<InodeId, BTreeMap<SessionId, Held>>,
    sessions: HashMap<SessionId, Session>,
    /// Pairs of a session and a key.
    leases: usize,
    /// Who gives leases back because there are too many in all.
    giver: Option<SessionId>,
    marks: Marks,
    restless: Restless,
    delegations: Delegations,
    /// Sessions from before a restart that may keep what the run before granted.
    undeclared: BTreeSet<SessionId>,
    /// What waits for them.
    declaring: Option<(Wait, Debt)>,
    /// Files whose other writers have not all heard yet that the content was cut.
    cuts: HashMap<InodeId, Wait>,
    /// Names that not everybody has heard of yet who was to be told.
    unheard: Unheard,
    /// What the answer to the change waits for of which others were just told.
    told: Option<Wait>,
    /// Who lets the others wait for too long.
    overdue: Overdue,
    granted: u64,
    recalled: u64,
}

/// What an operator sees of the table.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Leases that are held: pairs of a session and what it keeps something of.
    pub leases: usize,
    /// Leases that were granted since the start.
    pub granted: u64,
    /// What was taken back since the start, by name, attributes or lease, and from whom.
    pub recalled: u64,
    /// Sessions that may keep what a run before granted.
    pub undeclared: usize,
    /// Directories in which one session makes files by itself.
    pub delegations: usize,
}

/// Bounds of the table.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// Leases of one session.
    pub of_session: usize,
    /// Leases in all.
    pub of_all: usize,
    /// Recalls of one session that are not acknowledged.
    pub queue: usize,
}

/// Who waits for what a change takes back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waits {
    /// The change itself: it is executed when everybody has given that back, and nothing is granted
    /// on its keys until then.
    Before,
    /// Whoever had it executed, for those who may still show a file as it was.
    After,
    /// Nobody.
    Nobody,
}

/// What a lease covers; a set.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Holding(u8);

/// What a session has of a key.
#[derive(Debug, Default)]
struct Held {
    holding: Holding,
    /// Recalls that end a part of it and are not acknowledged. Nothing is granted meanwhile.
    ending: u32,
    /// Changes of which the session was told, since it has changed something there itself.
    told: u32,
}

#[derive(Debug)]
struct Session {
    keys: Keys,
    queue: Queue,
    /// The number of the last recall that makes room.
    giving: u64,
    /// When it listened last; one that has not begun is granted nothing, and hears what waits for
    /// it when it does.
    heard: Option<Timestamp>,
    /// Everything is taken back, and that is not acknowledged.
    ending: bool,
    /// It listens for what directories show, too.
    follows: bool,
}

impl Default for Limits {
    /// A million leases in all cost some 200 MB: 1,000 clients with 1,000 directories each.
    fn default() -> Self {
        Self { of_session: 1 << 16, of_all: 1 << 20, queue: 4096 }
    }
}

impl Holding {
    /// The attributes of the inode that the key names.
    pub const OWN: Self = Self(1);
    /// Names that were seen, and the attributes of files that have no other.
    pub const NAMES: Self = Self(2);
    /// Also that there are no other names.
    pub const WHOLE: Self = Self(4);

    /// Both.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Without what is in `other`.
    #[must_use]
    fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Whether something of `other` is in it.
    #[must_use]
    pub fn meets(self, other: Self) -> bool {
        self.0 & other.0 != 0
    }

    fn is_empty(self) -> bool {
        self.0 == 0
    }
}

/// Everything that a lease can cover.
const ALL: Holding = Holding(7);

/// A session that has not listened for this long has stopped: it asks again after each answer.
const SILENCE_MAX: Duration = Duration::from_millis(2 * AWAIT_RECALLS_MAX_MS);

impl Table {
    /// Starts after a restart, with the sessions that may keep what they were granted before it.
    #[must_use]
    pub fn after_restart(limits: Limits, undeclared: impl IntoIterator<Item = SessionId>) -> Self {
        let undeclared: BTreeSet<_> = undeclared.into_iter().collect();
        Self {
            limits,
            by_key: HashMap::new(),
            sessions: HashMap::new(),
            leases: 0,
            giver: None,
            marks: Marks::default(),
            restless: Restless::default(),
            delegations: Delegations::default(),
            declaring: (!undeclared.is_empty()).then(|| Wait::new(Vec::new())),
            undeclared,
            cuts: HashMap::new(),
            unheard: Unheard::default(),
            told: None,
            overdue: Overdue::default(),
            granted: 0,
            recalled: 0,
        }
    }

    /// How much is held, and was granted and taken back.
    #[must_use]
    pub fn counts(&self) -> Counts {
        Counts {
            leases: self.leases,
            granted: self.granted,
            recalled: self.recalled,
            undeclared: self.undeclared.len(),
            delegations: self.delegations.len(),
        }
    }

    /// Whether no change has anything to ask here.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.leases == 0 && self.undeclared.is_empty() && self.restless.is_empty()
    }

    /// The session listens, keeps nothing from before a restart, and has dealt with everything up
    /// to `acknowledged`. Returns what tells when there are news for it.
    pub fn handle_listening(
        &mut self,
        session: SessionId,
        acknowledged: u64,
        now: Timestamp,
    ) -> watch::Receiver<u64> {
        self.handle_declared(session);
        let state = self.session(session);
        state.heard = Some(now).max(state.heard);
        let news = state.queue.news();
        let mut told = BTreeMap::new();
        for ended in state.queue.handle_acknowledged(acknowledged) {
            match ended {
                Ended::Part(key, part) => self.end_part(session, key, part),
                Ended::Everything => self.end_all(session),
                Ended::Told(directory, since) => drop(told.entry(directory).or_insert(since)),
            }
        }
        for (directory, since) in told {
            self.handle_told(directory, since, now);
        }
        news
    }

    /// What the session must hear.
    pub fn poll_recalls(&mut self, session: SessionId) -> Option<Recalls> {
        self.sessions.get_mut(&session).map(|state| state.queue.poll())
    }

    /// The session keeps nothing from before the restart.
    pub fn handle_declared(&mut self, session: SessionId) {
        self.undeclared.remove(&session);
        if self.undeclared.is_empty() {
            self.declaring = None;
        }
    }

    /// The session has ended: it holds nothing, and nobody waits for it.
    pub fn handle_end(&mut self, session: SessionId) {
        self.handle_declared(session);
        self.end_all(session);
        self.sessions.remove(&session);
        self.overdue.handle_end(session);
    }

    /// Whether a lease on the key could be granted to the session now. Where another session makes
    /// files by itself, that ends, and a lease can be granted soon.
    pub fn is_free(&mut self, session: SessionId, key: InodeId, now: Timestamp) -> bool {
        let Some(state) = self.sessions.get(&session) else {
            return false;
        };
        let listens = state.heard.is_some_and(|heard| heard.plus(SILENCE_MAX) >= now);
        // A session that has not declared may have files that it has not published.
        if state.ending || !listens || !self.undeclared.is_empty() {
            return false;
        }
        if self.delegations.holder(key).is_some_and(|holder| holder != session) {
            self.contest(key, None, now);
            return false;
        }
        if self.marks.is_marked(key) || self.restless.is_restless(key, now) {
            return false;
        }
        match self.by_key.get(&key).and_then(|holders| holders.get(&session)) {
            Some(held) => held.ending == 0,
            None => self.has_room(session),
        }
    }

    /// Grants the session a lease, or more of one that it has. Tells whether it did.
    pub fn grant(
        &mut self,
        session: SessionId,
        key: InodeId,
        holding: Holding,
        now: Timestamp,
    ) -> bool {
        if !self.is_free(session, key, now) {
            return false;
        }
        let held = self.by_key.entry(key).or_default().entry(session).or_default();
        held.holding = held.holding.with(holding);
        if let Some(state) = self.sessions.get_mut(&session)
            && state.keys.insert(key)
        {
            self.leases += 1;
            self.granted += 1;
        }
        true
    }

    /// What `touches` name changes, by `by` if that is a session's change. Takes it back from all
    /// others.
    ///
    /// Returns what is waited for, if anything: where that is before the change, nothing is granted
    /// on these keys while it is held. Of names that are made others may only be told, for which
    /// the change does not wait ([`Self::take_told`]).
    pub fn recall(
        &mut self,
        touches: &[Touch],
        by: Option<SessionId>,
        waits: Waits,
        now: Timestamp,
    ) -> Option<Wait> {
        if touches.is_empty() {
            return None;
        }
        let keys: BTreeSet<_> = touches.iter().map(Touch::key).collect();
        for &key in &keys {
            self.restless.handle_change(key, now);
        }
        let was_told = by.is_some_and(|by| self.end_told(&keys, by));
        if waits == Waits::Before
            && let Some(wait) = self.declaring(by)
        {
            return Some(wait);
        }
        let parties = self.parties(touches, by);
        if parties.is_empty() {
            return None;
        }
        if waits == Waits::Before && self.tell(touches, &parties, (by, was_told), now) {
            return None;
        }
        let (waiting, debt) = Wait::new(touches.to_vec());
        let is_waited_for = |touch: &Touch| match waits {
            Waits::Before => true,
            Waits::After => touch.shows_file(),
            Waits::Nobody => false,
        };
        let mut restless = BTreeMap::<_, bool>::new();
        for (_, touch) in &parties {
            *restless.entry(touch.key()).or_default() |= is_waited_for(touch);
        }
        restless.retain(|&key, _| self.restless.handle_recall(key, now));
        let mut contested = BTreeMap::<_, bool>::new();
        for (session, touch) in parties {
            let key = touch.key();
            if restless.contains_key(&key) {
                continue;
            }
            if self.delegations.holder(key) == Some(session) {
                *contested.entry(key).or_default() |= is_waited_for(touch);
            } else {
                self.take_back(session, touch, is_waited_for(touch).then(|| Arc::clone(&debt)));
            }
        }
        for (key, is_waited_for) in contested {
            self.contest(key, is_waited_for.then(|| Arc::clone(&debt)), now);
        }
        for (key, is_waited_for) in restless {
            self.take_whole(key, by, is_waited_for.then_some(&debt));
        }
        if waits == Waits::Before {
            for key in keys {
                self.marks.insert(key, &waiting);
            }
        }
        drop(debt);
        (waits != Waits::Nobody && !(waits == Waits::After && waiting.is_over())).then_some(waiting)
    }

    /// The content of `inode` was cut or replaced: these sessions, which have it open for writing,
    /// hear of it. Who has cut it is answered when they have ([`Self::heard_of_cut`]), so that what
    /// they write from then on goes to the content that there is by then.
    ///
    /// They are told after the fact, because what they fetched before it would say nothing of it.
    pub fn handle_cut(&mut self, inode: InodeId, writers: impl IntoIterator<Item = SessionId>) {
        let (wait, debt) = Wait::new(Vec::new());
        for session in writers {
            self.session(session);
            self.push(session, Recall::Attributes(inode), Some(Arc::clone(&debt)), None);
        }
        drop(debt);
        self.cuts.retain(|_, wait| !wait.is_over());
        if !wait.is_over() {
            self.cuts.insert(inode, wait);
        }
    }

    /// What tells when every writer of `inode` but `by` has heard of its last cut; nothing where
    /// all have. After a restart nobody knows who has, until everybody has listened again.
    #[must_use]
    pub fn heard_of_cut(&self, inode: InodeId, by: SessionId, others: bool) -> Option<Wait> {
        let pending = self.cuts.get(&inode).filter(|wait| !wait.is_over());
        pending.cloned().or_else(|| self.declaring(Some(by)).filter(|_| others))
    }

    fn session(&mut self, session: SessionId) -> &mut Session {
        let bound = self.limits.queue;
        self.sessions.entry(session).or_insert_with(|| Session {
            keys: Keys::default(),
            queue: Queue::new(bound),
            giving: 0,
            heard: None,
            ending: false,
            follows: false,
        })
    }

    /// What a change must wait for after a restart.
    #[must_use]
    pub fn declaring(&self, by: Option<SessionId>) -> Option<Wait> {
        let others = self.undeclared.iter().any(|session| Some(*session) != by);
        self.declaring.as_ref().filter(|_| others).map(|(wait, _)| wait.clone())
    }

    /// Who may keep what is touched.
    fn parties<'a>(
        &self,
        touches: &'a [Touch],
        by: Option<SessionId>,
    ) -> Vec<(SessionId, &'a Touch)> {
        let mut parties = Vec::new();
        for touch in touches {
            let Some(holders) = self.by_key.get(&touch.key()) else { continue };
            for (&session, held) in holders {
                if Some(session) != by && held.holding.meets(cover(touch)) {
                    parties.push((session, touch));
                }
            }
        }
        parties
    }

    fn take_back(&mut self, session: SessionId, touch: &Touch, debt: Option<Debt>) {
        match touch {
            Touch::Name { directory, name, .. } => {
                let recall = Recall::Name(*directory, name.clone());
                self.push(session, recall, debt, None);
            }
            Touch::Attributes { key, inode } => {
                let ends = (key == inode).then_some((*key, Holding::OWN));
                self.push(session, Recall::Attributes(*inode), debt, ends);
            }
        }
    }

    /// Takes the whole lease back from everybody but `by`, who goes on to hold it.
    fn take_whole(&mut self, key: InodeId, by: Option<SessionId>, debt: Option<&Debt>) {
        let holders: Vec<_> = self.by_key.get(&key).into_iter().flat_map(BTreeMap::keys).collect();
        let holders: Vec<_> = holders.into_iter().copied().collect();
        for session in holders.into_iter().filter(|session| Some(*session) != by) {
            self.push(session, Recall::Lease(key), debt.cloned(), Some((key, ALL)));
        }
    }

    fn push(
        &mut self,
        session: SessionId,
        recall: Recall,
        debt: Option<Debt>,
        ends: Option<(InodeId, Holding)>,
    ) {
        let Some(state) = self.sessions.get_mut(&session) else {
            return;
        };
        self.recalled += 1;
        // Where everything ends already, no part of it ends later than that.
        let ends = ends.filter(|_| !state.ending);
        if state.queue.push(recall, debt, ends, self.overdue.listened()) {
            state.ending = true;
        } else if let Some((key, _)) = ends
            && let Some(held) = self.by_key.get_mut(&key).and_then(|all| all.get_mut(&session))
        {
            held.ending += 1;
        }
    }

    fn end_part(&mut self, session: SessionId, key: InodeId, part: Holding) {
        let Some(holders) = self.by_key.get_mut(&key) else { return };
        let Some(held) = holders.get_mut(&session) else { return };
        held.ending = held.ending.saturating_sub(1);
        held.holding = held.holding.without(part);
        if part == ALL {
            self.delegations.end(key, session);
        }
        if !held.holding.is_empty() || held.ending > 0 {
            return;
        }
        holders.remove(&session);
        if holders.is_empty() {
            self.by_key.remove(&key);
        }
        if let Some(state) = self.sessions.get_mut(&session)
            && state.keys.remove(key)
        {
            self.leases -= 1;
        }
    }

    fn end_all(&mut self, session: SessionId) {
        let Some(state) = self.sessions.get_mut(&session) else { return };
        state.ending = false;
        self.delegations.end_all(session);
        let keys = std::mem::take(&mut state.keys);
        self.leases -= keys.len();
        for key in keys.iter() {
            if let Some(holders) = self.by_key.get_mut(&key) {
                holders.remove(&session);
                if holders.is_empty() {
                    self.by_key.remove(&key);
                }
            }
        }
    }
}

/// What a lease must cover so that its holder may keep what is touched.
fn cover(touch: &Touch) -> Holding {
    match touch {
        Touch::Name { existed: true, .. } => Holding::NAMES.with(Holding::WHOLE),
        Touch::Name { existed: false, .. } => Holding::WHOLE,
        Touch::Attributes { key, inode } if key == inode => Holding::OWN,
        Touch::Attributes { .. } => Holding::NAMES.with(Holding::WHOLE),
    }
}

#[cfg(test)]
mod tests;
