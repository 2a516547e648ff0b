//! When something was last taken back.

use std::{
    hash::{DefaultHasher, Hash as _, Hasher as _},
    sync::atomic::{AtomicU64, Ordering},
};

use millrace_protocol::lease::Recall;
use millrace_types::InodeId;

/// A moment, in an order of its own.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Note(u64);

/// The last moment at which each thing was taken back. Things share places, so that one may be
/// asked for again for nothing; never the other way round.
#[derive(Debug)]
pub(crate) struct Stamps {
    now: AtomicU64,
    /// What was noted before this does not count, whatever it is.
    floor: Place,
    places: Box<[Place]>,
}

/// The last moment, in the low [`MOMENT_BITS`], and above it how many changes are under way, during
/// which nothing counts.
#[derive(Debug, Default)]
struct Place(AtomicU64);

fn moment_of(value: u64) -> u64 {
    value & (CHANGE - 1)
}

fn changes_of(value: u64) -> u64 {
    value & !(CHANGE - 1)
}

/// 8 MiB: with a hundred thousand names made or taken back in a while, one answer in six is asked
/// for again.
const PLACES: usize = 1 << 20;

/// Moments for nine years of a million a second; 65,535 changes of one thing at a time, more than a
/// kernel sends.
const MOMENT_BITS: u32 = 48;

/// One change under way.
const CHANGE: u64 = 1 << MOMENT_BITS;

impl Default for Stamps {
    fn default() -> Self {
        let places = (0..PLACES).map(|_| Place::default()).collect();
        Self { now: AtomicU64::new(1), floor: Place::default(), places }
    }
}

impl Stamps {
    /// The present moment.
    pub(crate) fn note(&self) -> Note {
        Note(self.now.load(Ordering::SeqCst))
    }

    /// This is taken back: what was noted before does not count.
    pub(crate) fn raise(&self, what: &Recall) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        let raised = self.place(what).raise(now);
        self.now.fetch_max(raised, Ordering::SeqCst);
    }

    /// The content of the inode may have been cut or replaced by another host.
    pub(crate) fn raise_content(&self, inode: InodeId) {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        let raised = self.content(inode).raise(now);
        self.now.fetch_max(raised, Ordering::SeqCst);
    }

    /// Whether no other host has cut or replaced the content since.
    pub(crate) fn content_stands(&self, inode: InodeId, note: Note) -> bool {
        self.floor.stands(note) && self.content(inode).stands(note)
    }

    /// Everything is taken back.
    pub(crate) fn raise_all(&self) {
        self.raise(&Recall::Everything);
    }

    /// This is about to change: nothing that is known of it counts until [`Self::end`] was called
    /// as often.
    pub(crate) fn begin(&self, what: &Recall) {
        self.place(what).0.fetch_add(CHANGE, Ordering::SeqCst);
    }

    /// The change is over: what was noted before does not count.
    pub(crate) fn end(&self, what: &Recall) {
        self.raise(what);
        self.place(what).0.fetch_sub(CHANGE, Ordering::SeqCst);
    }

    /// The change is over, and its answer says how things are now. Returns the moment from which
    /// that counts; nothing where this was taken back since `since`, or changed from here by
    /// another: then the answer may be older than that.
    pub(crate) fn end_known(&self, what: &Recall, since: Note) -> Option<Note> {
        let known = self.raise_known(what, since);
        self.place(what).0.fetch_sub(CHANGE, Ordering::SeqCst);
        known
    }

    /// As [`Self::end_known`], of what was not known to be concerned when the change began.
    pub(crate) fn raise_known(&self, what: &Recall, since: Note) -> Option<Note> {
        let now = self.now.fetch_add(1, Ordering::SeqCst) + 1;
        if self.place(what).raise_known(now, since) {
            return Some(Note(now));
        }
        self.raise(what);
        None
    }

    /// Whether this was not taken back since it was noted.
    pub(crate) fn stands(&self, what: &Recall, note: Note) -> bool {
        self.floor.stands(note) && self.place(what).stands(note)
    }

    /// When this was taken back last, or changed from here.
    pub(crate) fn last(&self, what: &Recall) -> Note {
        Note(moment_of(self.place(what).0.load(Ordering::SeqCst)))
    }

    /// Whether a change of it is under way.
    pub(crate) fn is_changing(&self, what: &Recall) -> bool {
        changes_of(self.place(what).0.load(Ordering::SeqCst)) > 0
    }

    fn place(&self, what: &Recall) -> &Place {
        let mut hasher = DefaultHasher::new();
        match what {
            Recall::Name(directory, name) => (1, directory, name).hash(&mut hasher),
            Recall::Attributes(inode) => (2, inode).hash(&mut hasher),
            Recall::Lease(key) => (3, key).hash(&mut hasher),
            Recall::Everything => return &self.floor,
        }
        self.place_of(&hasher)
    }

    fn content(&self, inode: InodeId) -> &Place {
        let mut hasher = DefaultHasher::new();
        (4, inode).hash(&mut hasher);
        self.place_of(&hasher)
    }

    fn place_of(&self, hasher: &DefaultHasher) -> &Place {
        let bits = hasher.finish() % self.places.len() as u64;
        &self.places[usize::try_from(bits).expect("there are so many places")]
    }
}

impl Place {
    /// To a later moment than it had, `now` or behind it; returns that. What counts from the moment
    /// that it had ([`Stamps::end_known`]) does not count any more, however the two are ordered.
    fn raise(&self, now: u64) -> u64 {
        let raised = |moment: u64| now.max(moment + 1);
        let later = |value: u64| Some(changes_of(value) | raised(moment_of(value)));
        let before = self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later);
        raised(moment_of(before.expect("there always is a later moment")))
    }

    /// To `now`, unless its moment is later than `since`; tells whether it was.
    fn raise_known(&self, now: u64, since: Note) -> bool {
        let later = |value: u64| (moment_of(value) <= since.0).then_some(changes_of(value) | now);
        self.0.fetch_update(Ordering::SeqCst, Ordering::SeqCst, later).is_ok()
    }

    /// A change under way lies above every note.
    fn stands(&self, note: Note) -> bool {
        self.0.load(Ordering::SeqCst) <= note.0
    }
}
